"""A context of many parts: its tokens are those of the CPU, and device memory is that of caches and of one part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.language import language_model
from ort_gpu_ep.generation import Generator, generator

PART, PARTS, TOKENS = 64, 16, 6
LENGTH = PART * PARTS + TOKENS


@pytest.mark.parametrize("changed", [{}, {"window": 96, "sinks": True}], ids=["all keys", "windows"])
@pytest.mark.parametrize("bits", [None, 8])
def test_memory_is_flat_and_tokens_are_those_of_the_cpu(
    bits: int | None, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = language_model(layers=2, width=64, heads=4, groups=2, hidden=64, vocabulary=64, context=LENGTH, **changed)
    ids = np.random.default_rng(6).integers(0, 64, PART * PARTS)
    options: dict[str, Any] = {"max_length": LENGTH, "cache_bits": bits}
    cpu = Generator(model, **options, provider_options={"placement": "cpu"})
    wanted = list(cpu.generate(ids, max_new_tokens=TOKENS))
    monkeypatch.setattr(generator, "CHUNK", PART)
    ours = Generator(model, **options, provider_options={"placement": "gpu", "strict": 1})
    list(ours.generate(ids[: 2 * PART], max_new_tokens=TOKENS))
    held, gpu = ours.session.state.allowance, ours.session.state.gpu
    nbytes, compiled = held.held_nbytes, gpu.compiled
    assert list(ours.generate(ids, max_new_tokens=TOKENS)) == wanted
    assert held.held_nbytes == nbytes
    assert gpu.compiled == compiled
    assert ours.session.stats()["fallbacks"] == 0
