"""Random kernels on matrix units are right, and what is wrong is seen: `python -m tests.dawn.fuzz_units` runs more
(scripts/dawn.sh)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ort_gpu_ep.health.probe import PROBES, Trial
from tests.dawn import fuzz_units
from tests.dawn.fuzz_units import run, units

pytestmark = pytest.mark.dawn

SEEDS = range(8)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    monkeypatch.setattr(fuzz_units, "RUNS", 3)
    with units() as made:
        yield made


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_are_right(trial: Trial, seed: int) -> None:
    _, on_units, problems = run(trial, seed)
    assert problems == []
    assert on_units == 3


def test_a_fault_is_seen(trial: Trial) -> None:
    trial.planted = PROBES["matrix units"].fault
    assert any(run(trial, seed)[2] for seed in SEEDS)
