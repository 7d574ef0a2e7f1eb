"""Caches of codes in place of floats: what they change, what they take, and that they work wherever others do."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from models.language import language_model
from ort_gpu_ep.errors import ConfigError, InputError, ModelError
from ort_gpu_ep.generation import Generator
from ort_gpu_ep.generation.cache_codes import quantize_caches
from tests.decoder import decoder
from tests.generation.test_threads_and_limits import SIDES, small
from tests.session.test_language_models import session

PROMPT, TOKENS, ROWS = 48, 64, 80
OPEN: dict[str, Any] = {"max_length": ROWS}


def read(opened: Any, ids: np.ndarray, caches: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The logits behind each token: of a prompt, then of one after the other; and the caches."""
    logits, names = list[np.ndarray](), [o.name for o in opened.get_outputs()]
    for start, stop in [(0, PROMPT), *((k, k + 1) for k in range(PROMPT, len(ids)))]:
        mask = np.ones((1, stop), np.int64)
        given = opened.run(None, {"input_ids": ids[None, start:stop], "attention_mask": mask, **caches})
        results = dict(zip(names, given, strict=True))
        caches = {name: results[name.replace("past_key_values", "present")] for name in caches}
        logits.append(results["logits"][0])
    return np.concatenate(logits).astype("d"), caches


def empty(opened: Any) -> dict[str, np.ndarray]:
    kinds = {"tensor(float)": "f", "tensor(int8)": "i1", "tensor(uint8)": "u1"}
    return {i.name: np.zeros((1, i.shape[1], ROWS, i.shape[3]), kinds[i.type]) for i in opened.get_inputs()[2:]}


@pytest.mark.parametrize(("bits", "most", "mean"), [(8, 0.01, 0.004), (4, 0.1, 0.04)])
def test_error_of_logits(bits: int, most: float, mean: float) -> None:
    """As docs/language-models.md has it, and as with the same caches on ONNX Runtime's CPU."""
    model = language_model(layers=3)
    rng = np.random.default_rng(3)
    sample, ids = rng.integers(0, 512, (2, TOKENS))
    plain = session(model, "gpu")
    wanted, _ = read(plain, ids, empty(plain))
    _, caches = read(plain, sample, empty(plain))
    quantize_caches(model, {name: cache[:, :, :TOKENS] for name, cache in caches.items()}, bits)
    for value in model.graph.output[1:]:
        value.type.CopyFrom(
            next(i for i in model.graph.input if i.name == value.name.replace("present", "past_key_values")).type
        )
        value.type.tensor_type.shape.dim[2].dim_param = "present"
    ours, theirs = session(model, "gpu"), session(model, "plain")
    assert len(ours.state.partitions) == 1, str(ours.explain())
    (logits, held), (others, _) = (read(opened, ids, empty(opened)) for opened in (ours, theirs))
    assert sum(a.nbytes for a in held.values()) * 32 == sum(a.nbytes for a in caches.values()) * bits
    size = np.abs(wanted).max()
    assert 0 < np.abs(logits - wanted).max() < most * size
    assert np.sqrt(((logits - wanted) ** 2).mean() / (wanted**2).mean()) < mean
    np.testing.assert_allclose(logits, others, rtol=0, atol=1e-3 * size)


def tokens_of(made: Generator, **asked: Any) -> list[int]:
    return list(made.generate([3, 14, 15, 9, 2], max_new_tokens=16, **asked))


@pytest.mark.parametrize(("bits", "sides"), [(8, SIDES), (4, SIDES[:2])])
def test_the_same_tokens_wherever_it_runs(bits: int, sides: list[dict[str, Any]]) -> None:
    """On the CPU, which has such caches too, and in another process."""
    answers = []
    for options in sides:
        made = Generator(small(head=32), **OPEN, provider_options=options, cache_bits=bits)
        caches = [i for i in made.session.get_inputs() if i.name.startswith("past")]
        assert {(i.type, *i.shape[1:]) for i in caches} == {
            ("tensor(int8)" if bits == 8 else "tensor(uint8)", 1, ROWS, 4 * bits)
        }
        assert made.session.stats()["fallbacks"] == 0
        answers.append(tokens_of(made))
    assert answers == answers[:1] * len(sides)


def test_drafts_change_no_token() -> None:
    plain, drafted = (Generator(small(head=32), **OPEN, cache_bits=4, lookahead=count) for count in (0, 3))
    assert tokens_of(drafted) == tokens_of(plain)


@pytest.mark.parametrize(("bits", "options"), [(8, SIDES[1]), (4, SIDES[0])], ids=str)
def test_rows_of_a_batch_have_the_tokens_of_each_prompt_alone(bits: int, options: dict[str, Any]) -> None:
    made = Generator(small(head=32), **OPEN, provider_options=options, cache_bits=bits, rows=3)
    prompts = [np.random.default_rng(k).integers(0, 64, length) for k, length in enumerate((3, 9, 1, 17))]
    alone = [list(made.generate(prompt, max_new_tokens=6)) for prompt in prompts]
    assert made.generate_batch(prompts, max_new_tokens=6) == alone


def test_codes_of_8_bits_in_place_of_float16() -> None:
    """The decoder's logits lie so far apart that its answer stays."""
    plain, coded = (Generator(small(dtype="float16"), **OPEN, cache_bits=bits) for bits in (None, 8))
    assert tokens_of(plain) == tokens_of(coded)


def test_a_sample_tells_what_codes_stand_for() -> None:
    """It is read in a session that is gone then."""
    alive = weakref.WeakSet[Generator]()
    real = Generator.__init__

    def noted(self: Generator, *given: Any, **named: Any) -> None:
        alive.add(self)
        real(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Generator, "__init__", noted)
        given, other = (Generator(small(), **OPEN, cache_bits=4, sample=ids) for ids in (np.arange(40), [5]))
        gc.collect()
        assert set(alive) == {given, other}
    assert tokens_of(given) != tokens_of(other)


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (small, {"cache_bits": 2}, ConfigError, "cache_bits: got 2, expected 8, 4"),
        (small, {"sample": [1, 2]}, ConfigError, "got None with a sample"),
        (small, {"cache_bits": 8, "sample": [[1], [2]]}, InputError, "ids: got int64"),
        (decoder, {"cache_bits": 8}, ModelError, "caches grow"),
        (lambda: small(head=20, heads=8, groups=1), {"cache_bits": 4}, ModelError, "heads of 20, expected floats"),
    ],
)
def test_what_it_refuses(model: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Generator(model(), **OPEN, **options)


def test_a_model_that_has_codes_already() -> None:
    """It generates as it is, and with cache_bits is refused."""
    model = small(head=32)
    rng = np.random.default_rng(0)
    sample = {i.name: rng.standard_normal((1, 1, 9, 32)).astype("f") for i in model.graph.input[2:]}
    quantize_caches(model, sample, 8)
    assert tokens_of(Generator(model, **OPEN)) == tokens_of(Generator(model, **OPEN, provider_options=SIDES[1]))
    with pytest.raises(ModelError, match="holds int8"):
        Generator(model, **OPEN, cache_bits=8)
