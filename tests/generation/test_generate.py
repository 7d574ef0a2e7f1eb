"""generate(): ONNX Runtime's tokens, steps submitted ahead, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ort_gpu_ep
from models.language import language_model
from ort_gpu_ep.errors import ConfigError, DeviceError, InputError, ModelError
from ort_gpu_ep.generation import Generator
from ort_gpu_ep.generation.model_file import without_weights
from ort_gpu_ep.plugin.state import COPIES
from ort_gpu_ep.runtime.program import Program
from tests.session.test_language_models import generated, prompt_of, session

TOKENS = 6


@pytest.fixture(scope="module")
def wanted() -> list[int]:
    return generated(session(language_model(), "plain"), prompt_of(1))[0]


@pytest.mark.parametrize(
    "options",
    [{}, {"isolation": "process"}, {"placement": "cpu"}, {"placement": "auto", "adapter": "software", "load": "off"}],
    ids=str,
)
def test_the_tokens_of_the_cpu(options: dict[str, str], wanted: list[int]) -> None:
    made = Generator(language_model(), max_length=64, provider_options=options)
    for _ in range(2):  # the second time by plans that are there
        assert list(made.generate(prompt_of(1), max_new_tokens=TOKENS)) == wanted
    other = generated(session(language_model(), "plain"), prompt_of(2))[0]
    assert list(made.generate(prompt_of(2)[None], max_new_tokens=TOKENS)) == other
    assert (
        list(made.generate(prompt_of(1), max_new_tokens=TOKENS, stop=wanted[2:3]))
        == wanted[: wanted.index(wanted[2]) + 1]
    )
    assert made.session.stats()["fallbacks"] == 0


def test_four_bytes_a_token_and_nothing_compiled_after_the_second() -> None:
    made = Generator(language_model(), max_length=64, provider_options={"strict": 1})
    assert len(made.session.state.partitions) == 1
    list(made.generate(prompt_of(1), max_new_tokens=4))
    gpu = made.session.state.gpu
    compiled, before = gpu.compiled, COPIES.as_dict()
    assert len(list(made.generate(prompt_of(3)[:5], max_new_tokens=40))) == 40
    assert gpu.compiled == compiled
    crossed = {kind: count - before[kind] for kind, count in COPIES.as_dict().items()}
    assert crossed == {
        "host_to_device": 2,
        "host_to_device_nbytes": 5 * 8 + 8,
        "device_to_host": 40,
        "device_to_host_nbytes": 40 * 8,
        "device_to_device": 0,
        "device_to_device_nbytes": 0,
    }


def test_float16_and_an_open_head(wanted: list[int]) -> None:
    model = language_model(packed=False)
    expected = generated(session(model, "plain"), prompt_of(1))[0]
    for value in model.graph.input[2:]:
        value.type.tensor_type.shape.dim[3].dim_param = "head"
    assert list(ort_gpu_ep.generate(model, prompt_of(1), max_length=32, max_new_tokens=TOKENS)) == expected
    assert (
        len(
            list(
                ort_gpu_ep.generate(language_model(dtype="float16"), prompt_of(1), max_length=32, max_new_tokens=TOKENS)
            )
        )
        == TOKENS
    )


def test_a_file_whose_weights_lie_beside_it(tmp_path: Path, wanted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(
        language_model(), tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=64
    )
    monkeypatch.chdir("/")
    assert list(ort_gpu_ep.generate(tmp_path / "m.onnx", prompt_of(1), max_length=32, max_new_tokens=TOKENS)) == wanted


def test_weights_stay_in_the_models_file(tmp_path: Path) -> None:
    """Read back from where it says they are, the model is the one that was written."""
    made = language_model()
    onnx.save(made, tmp_path / "m.onnx")
    found, folder = without_weights(str(tmp_path / "m.onnx"))
    assert folder == str(tmp_path)
    assert sum(t.data_location == onnx.TensorProto.EXTERNAL for t in found.graph.initializer) > 10
    assert len(found.SerializeToString()) < 0.2 * len(made.SerializeToString())
    onnx.external_data_helper.load_external_data_for_model(found, str(tmp_path))
    assert [(t.name, list(t.dims), t.raw_data) for t in found.graph.initializer] == [
        (t.name, list(t.dims), t.raw_data) for t in made.graph.initializer
    ]
    del found.graph.initializer[:], made.graph.initializer[:]
    assert found == made


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[: len(b) // 2], lambda b: b"\xff" * 40, lambda b: b"\x3b" + b[1:], lambda b: b""],
    ids=range(4),
)
def test_a_damaged_file_is_no_model(damage: Any, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(damage(language_model(layers=1).SerializeToString()))
    with pytest.raises(ModelError, match=r"m\.onnx: not a readable"):
        Generator(tmp_path / "m.onnx")


def test_positions_are_given(wanted: list[int]) -> None:
    model = language_model()
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input.append("position_ids")
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("position_ids", onnx.TensorProto.INT64, ["batch", "sequence"])
    )
    assert list(ort_gpu_ep.generate(model, prompt_of(1), max_length=32, max_new_tokens=TOKENS)) == wanted


def test_the_cpu_goes_on_where_the_gpu_fails(wanted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of an answer, from the caches that the steps before have changed in place."""
    made, failing, real = Generator(language_model(), max_length=64), [True], Program.run_bound
    list(made.generate(prompt_of(2), max_new_tokens=TOKENS))

    def run(*arguments: Any) -> Any:
        if failing:
            failing.clear()
            raise DeviceError("on purpose")
        return real(*arguments)

    monkeypatch.setattr(Program, "run_bound", run)
    assert list(made.generate(prompt_of(1), max_new_tokens=TOKENS)) == wanted
    assert not failing
    assert made.session.stats()["fallbacks"] >= 1
    made.session.state.gpu.circuit.reset()


def test_draws() -> None:
    made = Generator(language_model(), max_length=64)
    prompt, greedy = prompt_of(4), list(made_tokens(Generator(language_model(), max_length=64), 4))
    draws = [tuple(made.generate(prompt, max_new_tokens=TOKENS, temperature=1.5, seed=s)) for s in (1, 1, 2, 3)]
    assert draws[0] == draws[1]
    assert len(set(draws)) > 1
    assert list(made.generate(prompt, max_new_tokens=TOKENS, temperature=1.5, top_p=1e-9, seed=1)) == greedy
    assert list(made.generate(prompt, max_new_tokens=TOKENS, temperature=3.0, top_k=1, seed=1)) == greedy
    firsts = {next(made.generate(prompt, temperature=5.0, top_k=3, seed=s)) for s in range(30)}
    assert 1 < len(firsts) <= 3
    assert greedy[0] in firsts


def made_tokens(made: Generator, seed: int) -> Any:
    return made.generate(prompt_of(seed), max_new_tokens=TOKENS)


@pytest.mark.parametrize("length", [12, 128])
def test_a_generation_behind_one_with_a_token_out_of_range_is_right(length: int) -> None:
    made, prompt = Generator(language_model(), max_length=length), [3, 1, 4]
    wanted = list(made.generate(prompt, max_new_tokens=4))
    for _ in range(2):
        with pytest.raises(Exception, match="out of range"):
            list(made.generate([10**6], max_new_tokens=3))
        assert list(made.generate(prompt, max_new_tokens=4)) == wanted


def test_a_generation_behind_one_that_lost_its_device_is_right(wanted: list[int]) -> None:
    """The caches were on that device."""
    made = Generator(language_model(), max_length=64, provider_options={"faults": "lost@5;seed=1"})
    with pytest.raises(DeviceError):
        list(made.generate(prompt_of(2), max_new_tokens=TOKENS))
    for _ in range(2):
        assert list(made.generate(prompt_of(1), max_new_tokens=TOKENS)) == wanted


def test_bad_input() -> None:
    made = Generator(language_model(), max_length=12)
    for ids in ([], np.zeros((2, 3), int), [0.5], np.zeros((1, 1, 1), int), np.arange(12)):
        with pytest.raises(InputError, match="generate"):
            made.generate(ids)
    for options in (
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_k": -1},
        {"max_new_tokens": -1},
    ):
        with pytest.raises(ConfigError, match="generate"):
            made.generate([1], **options)
    assert len(list(made.generate(np.arange(9)))) == 3
    assert list(made.generate([1], max_new_tokens=0)) == []
    first = made.generate([1, 2])
    next(first)
    list(made.generate([3], max_new_tokens=1))
    with pytest.raises(InputError, match="another generation"):
        list(first)
    with pytest.raises(Exception, match="out of range"):
        list(made.generate([10**6], max_new_tokens=3))
    assert len(list(made.generate([1], max_new_tokens=3))) == 3
    with pytest.raises(ModelError, match="GroupQueryAttention"):
        Generator(
            onnx.helper.make_model(
                onnx.helper.make_graph(
                    [],
                    "g",
                    [onnx.helper.make_tensor_value_info("input_ids", 7, [1])],
                    [onnx.helper.make_tensor_value_info("logits", 1, [1])],
                )
            )
        )
    with pytest.raises(ModelError, match="not a readable"):
        Generator(b"nonsense")
