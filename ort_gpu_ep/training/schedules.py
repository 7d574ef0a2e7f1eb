"""Learning rates over steps, computed on the host in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import TypeAlias

from ort_gpu_ep.errors import TrainingError


@dataclass(frozen=True)
class Schedule:
    """A learning rate for each step, counted from 0. text: says which, in explain() and in checkpoints."""

    text: str
    rate: Callable[[int], float]

    def __call__(self, step: int) -> float:
        return self.rate(step)

    def __str__(self) -> str:
        return self.text


Rate: TypeAlias = "float | Schedule"


def as_schedule(rate: Rate) -> Schedule:
    """A number as the schedule that always gives it."""
    return rate if isinstance(rate, Schedule) else constant(rate)


def constant(rate: float) -> Schedule:
    """Always the same."""
    if not isinstance(rate, Real) or not rate >= 0 or math.isinf(rate):
        raise TrainingError(
            f"learning rate: got {rate!r}, expected a finite number of at least 0, or a schedule as cosine(...)"
        )
    return Schedule(f"{rate:g}", lambda step: float(rate))


def cosine(peak: float, steps: int, *, warmup: int = 0, end: float = 0.0) -> Schedule:
    """From `peak` to `end` along half a cosine over `steps` steps, of which the first `warmup` rise linearly; then it
    stays at `end`.

    Source: Loshchilov and Hutter, SGDR, 2016, arXiv:1608.03983, one cycle.
    """
    if steps <= warmup or warmup < 0:
        raise TrainingError(
            f"cosine: got steps={steps} and warmup={warmup}, expected more steps than those of the warm-up"
        )
    top, low = constant(peak)(0), constant(end)(0)

    def rate(step: int) -> float:
        done = min(1.0, max(0, step - warmup) / (steps - warmup))
        return low + (top - low) * 0.5 * (1.0 + math.cos(math.pi * done))

    falling = Schedule(f"cosine({peak:g}, {steps}" + (f", end={end:g}" if end else "") + ")", rate)
    return falling if not warmup else with_warmup(falling, warmup)


def with_warmup(after: Rate, steps: int) -> Schedule:
    """The first `steps` steps rise linearly to what the other schedule gives."""
    other = as_schedule(after)
    return Schedule(f"warmup({steps}) then {other}", lambda step: other(step) * min(1.0, (step + 1) / steps))


def step_decay(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """Multiplied by `factor` after each `every` steps."""
    if every < 1:
        raise TrainingError(f"step_decay: got every={every}, expected at least 1")
    first = constant(rate)(0)
    return Schedule(f"step_decay({rate:g}, {every}, {factor:g})", lambda step: float(first * factor ** (step // every)))
