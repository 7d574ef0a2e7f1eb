"""A Generator in several threads, its SessionOptions and sessions, positions beyond a model's tables, logits that are
no numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime import OrtValue

from models.language import language_model
from ort_gpu_ep.errors import ConfigError, InputError
from ort_gpu_ep.generation import Generator
from ort_gpu_ep.generation.positions import positions_of
from ort_gpu_ep.generation.sampling import KEPT, Draw, Sampler
from ort_gpu_ep.generation.step import NOTHING
from ort_gpu_ep.session.opening import own_settings
from tests.decoder import decoder
from tests.encoder import LENGTH, WORDS
from tests.unit.graphs import model_of

SIDES = [{"strict": 1}, {"placement": "cpu"}, {"isolation": "process"}]
INF = np.inf


def small(**changed: Any) -> onnx.ModelProto:
    return language_model(
        **{"seed": 3, "layers": 1, "vocabulary": 64, "width": 64, "heads": 2, "groups": 1, "hidden": 64, **changed}
    )


def in_turns(work: list[Callable[[], object]]) -> list[Any]:
    """What each gives or raises, in threads that begin together."""
    found, together = [None] * len(work), threading.Barrier(len(work))

    def run(k: int) -> None:
        together.wait()
        try:
            found[k] = work[k]()
        except Exception as error:
            found[k] = error

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("asked", [{}, {"temperature": 2.0, "top_k": 8, "seed": 1}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("options", SIDES, ids=str)
def test_a_generation_in_another_thread_ends_one_and_never_changes_it(
    options: dict[str, Any], asked: dict[str, Any]
) -> None:
    made, prompts = Generator(small(), max_length=32, provider_options=options), [np.arange(5), np.arange(20, 28)]
    wanted = [list(made.generate(p, max_new_tokens=16, **asked)) for p in prompts]
    assert wanted[0] != wanted[1]

    def often(k: int) -> list[tuple[list[int], bool]]:
        found = []
        for _ in range(6):
            tokens, is_whole = list[int](), True
            try:
                for token in made.generate(prompts[k], max_new_tokens=16, **asked):
                    tokens.append(token)
            except InputError:  # of another generation
                is_whole = False
            found.append((tokens, is_whole))
        return found

    for k, found in enumerate(in_turns([lambda: often(0), lambda: often(1)])):
        assert isinstance(found, list), found
        for tokens, is_whole in found:
            assert tokens == (wanted[k] if is_whole else wanted[k][: len(tokens)])
    assert list(made.generate(prompts[0], max_new_tokens=16, **asked)) == wanted[0]


@pytest.mark.parametrize("options", SIDES[:2], ids=str)
def test_generations_whose_caches_grow_go_on_beside_each_other(
    options: dict[str, Any], rng: np.random.Generator
) -> None:
    made, prompts = Generator(decoder(), max_length=40, provider_options=options), rng.integers(0, WORDS, (3, 6))
    asked = [{"max_new_tokens": 10, "temperature": t, "seed": 1, "top_k": 5} for t in (0.0, 2.0, 3.0)]
    wanted = [list(made.generate(p, **a)) for p, a in zip(prompts, asked, strict=True)]
    work = [
        lambda p=p, a=a: [list(made.generate(p, **a)) for _ in range(3)] for p, a in zip(prompts, asked, strict=True)
    ]
    assert in_turns(work) == [[w] * 3 for w in wanted]


def test_the_programs_session_options_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry is left in them: the folder of one model's weights, where another one looks for its own."""
    model = model_of("(float[64] x) => (float[64] y) { y = Add(x, w) }", {"w": np.ones(64, "f")})
    for folder, value in (("a", 1.0), ("b", 2.0)):
        (tmp_path / folder).mkdir()
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full(64, value, "f"), "w"))
        onnx.save(model, tmp_path / folder / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    onnx.save(small(), tmp_path / "a" / "lm.onnx")
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("a.program's", "own")
    settings.intra_op_num_threads, settings.enable_profiling, settings.log_severity_level = 1, True, 3
    settings.profile_file_prefix = str(tmp_path / "profile")
    settings.add_free_dimension_override_by_name("n", 3)
    made = Generator(
        tmp_path / "a" / "lm.onnx", max_length=16, sess_options=settings, provider_options={"placement": "cpu"}
    )
    assert len(list(made.generate([1], max_new_tokens=2))) == 2
    monkeypatch.chdir(tmp_path / "b")
    found = onnxruntime.InferenceSession(Path("m.onnx").read_bytes(), settings, providers=["CPUExecutionProvider"])
    assert found.run(None, {"x": np.zeros(64, "f")})[0][0] == 2.0
    for entry in ("session.model_external_initializers_file_folder_path", "session.qdq_matmulnbits_accuracy_level"):
        with pytest.raises(RuntimeError):
            settings.get_session_config_entry(entry)
    copy = own_settings(settings)
    assert (copy.get_session_config_entry("a.program's"), copy.intra_op_num_threads, copy.enable_profiling) == (
        "own",
        1,
        True,
    )
    assert settings.enable_profiling
    named = model_of("(float[n] x) => (float[n] y) { y = Neg(x) }").SerializeToString()
    assert onnxruntime.InferenceSession(named, copy, providers=["CPUExecutionProvider"]).get_inputs()[0].shape == [3]


def test_values_of_top_k_do_not_pile_up_sessions() -> None:
    made, prompt = Generator(small(), max_length=32), [3, 1, 4]
    asked = [{"max_new_tokens": 3, "temperature": 2.0, "seed": 1, "top_k": k} for k in range(2, 4 + KEPT)]
    first = [list(made.generate(prompt, **a)) for a in asked]
    assert len(made._samplers._answers) == KEPT
    assert [list(made.generate(prompt, **a)) for a in asked] == first


# ---- positions


def learned(nodes: str, constants: dict[str, Any]) -> onnx.ModelProto:
    return model_of(
        f"(int64[1, s] input_ids, int64[1, s] position_ids, int64[1, t] attention_mask) => (float[1, s, 8] y) "
        f"{{ {nodes} }}",
        {"words": np.zeros((50, 8), "f"), "places": np.zeros((20, 8), "f"), **constants},
    )


TABLES: dict[str, tuple[Callable[[], onnx.ModelProto], tuple[int, str] | None]] = {
    "angles": (lambda: small(context=24), (24, "cosines")),
    "no table": (lambda: learned("y = Gather(words, input_ids)", {}), None),
    "given": (
        lambda: learned("w = Gather(words, input_ids) p = Gather(places, position_ids) y = Add(w, p)", {}),
        (20, "places"),
    ),
    "from 2 on": (
        lambda: learned("i = Add(position_ids, two) y = Gather(places, i)", {"two": np.array([2])}),
        (18, "places"),
    ),
    "counted": (
        lambda: learned(
            "m = Cast<to = 7>(attention_mask) c = CumSum(m, one) k = Mul(c, m) l = Sub(k, one) i = Add(l, two) y = "
            "Gather(places, i)",
            {"one": np.array(1), "two": np.array(2)},
        ),
        (18, "places"),
    ),
    "by the token": (lambda: learned("a = Abs(input_ids) y = Gather(places, a)", {}), None),
    "growing": (lambda: decoder(), (LENGTH, "places")),
    "merged": (lambda: decoder(merged=True), (LENGTH, "places")),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_of_positions_are_seen(case: str) -> None:
    model, wanted = TABLES[case][0](), TABLES[case][1]
    found = positions_of(model)
    assert (found and found[0]) == (wanted and wanted[0])
    assert wanted is None or found is None or wanted[1] in found[1]


@pytest.mark.parametrize(
    ("model", "most"), [(lambda: small(context=24), 24), (decoder, LENGTH)], ids=["shared", "growing"]
)
def test_a_length_beyond_the_models_tables_is_refused_before_anything(
    model: Callable[[], onnx.ModelProto], most: int
) -> None:
    with pytest.raises(
        ConfigError, match=f"got {most + 1}, expected at most {most}, the positions of the model's table"
    ):
        Generator(model(), max_length=most + 1)
    made = Generator(model())
    assert made.max_length == most
    assert len(list(made.generate(np.arange(most - 3) % WORDS))) == 3


# ---- logits


@pytest.mark.parametrize("side", ["gpu", "cpu"])
@pytest.mark.parametrize("temperature", [0.5, 1e30, INF])
@pytest.mark.parametrize("vocabulary", [6, 5003])
def test_draws_among_infinite_logits(side: str, temperature: float, vocabulary: int) -> None:
    """-inf is never drawn, at no temperature; inf always, those of several alike. NaN and -inf alone leave nothing."""
    kept, rest = [1, 4], np.full(vocabulary - 6, -INF)
    cases: list[tuple[list[float], set[int]]] = [
        ([-INF, 1, -INF, -INF, 1, -INF], {*kept}),
        ([-INF, 3e38, -INF, -INF, 3e38, -INF], {*kept}),
        ([-INF, INF, -INF, -INF, INF, -INF], {*kept}),
        ([-INF] * 6, {NOTHING}),
        ([np.nan, 1, 2, 3, 4, 5], {NOTHING}),
        ([0, 1, 2, np.nan, 4, 5], {NOTHING}),
        ([INF, np.nan, 0, 0, 0, -INF], {NOTHING}),
    ]
    if temperature < 1e30:
        cases += [([0, INF, 5, -INF, INF, 1], {*kept}), ([0, 3e38, 5, -3e38, 3e38, 1], {*kept})]
    sampler = Sampler(vocabulary, vocabulary, "float32", "int64", {"placement": side})
    for logits, wanted in cases:
        found = set()
        for number in np.linspace(0, 1, 9):
            value = OrtValue.ortvalue_from_numpy(np.concatenate([logits, rest]).astype("f").reshape(1, 1, -1), side)
            found.add(sampler.tokens(value, Draw(temperature, 0, 1.0, Number(number)).next()).item())  # type: ignore[arg-type]
        assert found == wanted, logits


class Number:
    """A generator that gives one number."""

    def __init__(self, number: float) -> None:
        self.random = lambda: min(number, 1 - 2**-24)


def with_nan(model: onnx.ModelProto, name: str, row: int | slice) -> onnx.ModelProto:
    """The weights behind some logits are NaN."""
    held = next(t for t in model.graph.initializer if name in t.name)
    array = numpy_helper.to_array(held).copy()
    if name == "head":
        array[:, row] = np.nan
    else:
        array[row] = np.nan
    held.CopyFrom(numpy_helper.from_array(array, held.name))
    return model


@pytest.mark.parametrize(("options", "row"), [*((side, 37) for side in SIDES), (SIDES[0], slice(None))], ids=str)
@pytest.mark.parametrize(
    ("model", "name"), [(small, "lm_head/weight.scales"), (decoder, "head")], ids=["shared", "growing"]
)
def test_logits_that_are_nan_choose_no_token(
    model: Callable[[], onnx.ModelProto], name: str, options: dict[str, Any], row: int | slice
) -> None:
    made = Generator(with_nan(model(), name, row), max_length=32, provider_options=options)
    for asked in ({}, {"temperature": 1.0, "seed": 1}, {"temperature": INF, "top_k": 5, "seed": 1}):
        with pytest.raises(InputError, match="no token can be chosen behind 3 tokens"):
            next(made.generate([3, 1, 4], **asked))


def test_parameters_of_draws_that_are_none() -> None:
    made = Generator(small(), max_length=16)
    greedy = list(made.generate([3, 1, 4]))
    for asked in (
        {"temperature": -0.5},
        {"temperature": np.nan},
        {"temperature": "warm"},
        {"temperature": None},
        {"temperature": -INF},
        {"top_k": 1.5},
        {"top_k": -1},
        {"top_p": np.nan},
        {"top_p": 0.0},
        {"top_p": INF},
        {"seed": -1, "temperature": 1.0},
    ):
        with pytest.raises(ConfigError, match="generate: got temperature="):
            made.generate([3, 1, 4], **asked)
    for asked in (
        {"temperature": 0.0},
        {"temperature": -0.0},
        {"temperature": 1e-320, "seed": 1},
        {"temperature": 1.0, "top_p": 1e-45, "seed": 1},
        {"temperature": INF, "top_k": 1},
    ):
        assert list(made.generate([3, 1, 4], **asked)) == greedy, asked
    drawn = {
        token
        for seed in range(24)
        for token in made.generate([3, 1, 4], temperature=INF, top_k=3, seed=seed, max_new_tokens=1)
    }
    assert len(drawn) == 3
    assert greedy[0] in drawn
