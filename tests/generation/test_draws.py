"""Random tokens: drawn on the device as numpy draws them from the same logits and the same random number; no logits
cross."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime import OrtValue

from models.language import language_model
from ort_gpu_ep import Generator
from ort_gpu_ep.generation.sampling import Draw, Sampler
from ort_gpu_ep.plugin import Turns

OPTIONS = {"placement": "gpu", "strict": "1"}
ROUNDING = 2e-5
"""Of shares of the probability: sums of thousands of float32 numbers."""


class Chosen:
    """A generator that gives one number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


def expected(logits: np.ndarray, draw: Draw, chance: float) -> set[int]:
    """The tokens that numpy draws in float64, for numbers as near as float32 can tell."""
    order = np.argsort(-logits, kind="stable")[: draw.top_k or None]
    powers = np.exp((logits[order].astype("d") - float(logits[order[0]])) / draw.temperature)
    cumulated = np.cumsum(powers / powers.sum())
    found = set()
    for share in (draw.top_p - ROUNDING, draw.top_p, draw.top_p + ROUNDING):
        kept = min(int(np.searchsorted(cumulated, share)) + 1, len(order))
        first, last = (
            min(int(np.searchsorted(cumulated[:kept], near * cumulated[kept - 1], side="right")), kept - 1)
            for near in (chance - ROUNDING, chance + ROUNDING)
        )
        found |= {int(token) for token in order[first : last + 1]}
    return found


@pytest.mark.parametrize("vocabulary", [3, 700, 5003])
@pytest.mark.parametrize("top_k", [0, 2, 40])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_draws_are_those_of_numpy(vocabulary: int, top_k: int, dtype: str) -> None:
    count = min(top_k or vocabulary, vocabulary)
    sampler, rng = Sampler(vocabulary, count, dtype, "int64", OPTIONS), np.random.default_rng(vocabulary + top_k)
    seen = set()
    for temperature, top_p in ((1.0, 1.0), (0.7, 0.9), (2.5, 0.5), (1e-3, 1.0), (1e-40, 0.3), (5.0, 1e-9)):
        for chance in (0.0, 1.0 - 1e-9, *rng.random(4)):
            logits = (3 * rng.standard_normal(vocabulary)).astype(dtype)
            draw = Draw(temperature, top_k, top_p, Chosen(float(chance)))  # type: ignore[arg-type]
            value = OrtValue.ortvalue_from_numpy(logits.reshape(1, 1, -1), "gpu")
            wanted = expected(logits.astype("f"), draw, float(np.float32(chance)))
            found = int(sampler.tokens(value, draw.next()).item())
            assert found in wanted, (temperature, top_p, chance)
            seen.add(found)
    assert len(seen) > 2 or vocabulary == 3
    (report,) = sampler.session.explain().reports
    assert len(report.partitions) == 1


def test_a_random_token_crosses_without_its_logits() -> None:
    """And what the host brings for it is a random number."""
    made = Generator(language_model(), max_length=128, provider_options={"strict": 1})
    moved = []
    for options in ({}, {"temperature": 1.5, "top_k": 20, "top_p": 0.9}, {"temperature": 1.5}):
        list(made.generate([3, 1, 4], max_new_tokens=3, seed=1, **options))
        before = made.session.stats()
        list(made.generate([3, 1, 4], max_new_tokens=9, seed=1, **options))
        after = made.session.stats()
        moved.append(after["device_to_host_nbytes"] - before["device_to_host_nbytes"])
    assert moved == [9 * 8] * 3
    assert all(s.session.stats()["device_to_host_nbytes"] == 0 for s in made._samplers._answers.values())


@pytest.mark.parametrize("options", [{"isolation": "process"}, {"placement": "cpu"}])
def test_draws_are_the_same_elsewhere(options: dict[str, str]) -> None:
    asked = {"max_new_tokens": 8, "temperature": 1.5, "top_k": 30, "top_p": 0.9, "seed": 1}
    model = language_model()
    here, there = (
        list(Generator(model, max_length=64, provider_options=o).generate([3, 1, 4], **asked)) for o in ({}, options)
    )
    assert here == there


def test_the_host_draws_where_the_gpu_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Generator(language_model(), max_length=64)
    asked = {"max_new_tokens": 8, "temperature": 1.5, "seed": 1}
    wanted = list(made.generate([3, 1, 4], **asked))
    monkeypatch.setattr(Turns, "run", lambda *_: False)
    assert list(made.generate([3, 1, 4], **asked)) == wanted


def test_parameters_of_draws_can_change_between_generations() -> None:
    made = Generator(language_model(), max_length=128)
    options = (
        {"temperature": 1.5, "top_k": 20},
        {"temperature": 3.0},
        {},
        {"temperature": 0.5, "top_k": 20, "top_p": 0.8},
    )
    first = [list(made.generate([3, 1, 4], max_new_tokens=7, seed=5, **o)) for o in options]
    again = [list(made.generate([3, 1, 4], max_new_tokens=7, seed=5, **o)) for o in reversed(options)]
    assert first == again[::-1]
    assert first[0] != first[2]
