"""`bench --decode`: times the prompt and the generated tokens of a language model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_gpu_ep.cli import peers
from ort_gpu_ep.generation import Generator

PROMPTS = 4
"""Prompts that are timed: the first one compiles, and is told apart."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Of a side. opening_s: of the model. first_prompt_s: to the first token ever. prompt_per_s, token_per_s: tokens,
    by medians.

    token_ms: of each token behind the prompt, but the first quarter.
    """

    side: str
    opening_s: float
    first_prompt_s: float
    prompt_per_s: float
    token_per_s: float
    token_ms: tuple[float, ...]


def measure(
    model: Path,
    options: Mapping[str, str],
    context: int,
    tokens: int,
    cpu: bool,
    tell: Callable[[str, float], object],
) -> tuple[list[Decoding], dict[str, Any]]:
    """Greedy generations behind prompts of `context` random tokens, ours first; and peers.about() of ours. cpu: that
    side, too."""
    sides = {"this": {"placement": "gpu", **options}, **({"cpu": {"placement": "cpu"}} if cpu else {})}
    rows, facts = zip(
        *(
            _side(side, model, settings, context, tokens, lambda text, part, k=k: tell(text, (k + part) / len(sides)))  # type: ignore[misc]
            for k, (side, settings) in enumerate(sides.items())
        ),
        strict=True,
    )
    return list(rows), facts[0]


def timed(generator: Generator, prompt: npt.NDArray[np.int64], tokens: int) -> tuple[float, list[float]]:
    """Seconds from a prompt to its first token, and milliseconds of each of so many behind it."""
    start = time.perf_counter()
    answer, times = generator.generate(prompt, max_new_tokens=tokens + 1), list[float]()
    next(answer)
    first_s = time.perf_counter() - start
    for _ in range(tokens):
        start = time.perf_counter()
        next(answer)
        times.append((time.perf_counter() - start) * 1e3)
    return first_s, times


def _side(
    side: str,
    model: Path,
    options: Mapping[str, str],
    context: int,
    tokens: int,
    tell: Callable[[str, float], object],
) -> tuple[Decoding, dict[str, Any]]:
    tell(f"{side}: opening", 0.0)
    start = time.perf_counter()
    generator = Generator(model, max_length=context + tokens + 1, provider_options=options)
    opening_s, rng, first_s = time.perf_counter() - start, np.random.default_rng(0), list[float]()
    for k in range(PROMPTS):
        tell(f"{side}: prompt {k + 1} of {PROMPTS}", (k + 1) / (PROMPTS + 1))
        found_s, times = timed(
            generator, rng.integers(0, generator.vocabulary, context), tokens if k == PROMPTS - 1 else 0
        )
        first_s.append(found_s)
    steady = times[tokens // 4 :]
    return Decoding(
        side,
        opening_s,
        first_s[0],
        context / float(np.median(first_s[1:])),
        1e3 / float(np.median(steady)),
        tuple(steady),
    ), peers.about(generator.session, dict(options))
