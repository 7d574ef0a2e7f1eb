"""Runs leave the GPU while others keep it busy, and come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.placement import chooser, proof, runner
from ort_gpu_ep.placement.decider import TRIES, Decider, Turn
from tests.patience import Clock
from tests.session.conftest import assert_close, on_the_cpu

Array = np.ndarray[Any, Any]
Open = Callable[..., Any]


def tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the candidates take is told, on an idle machine and under the told load, and one run follows the other at
    once.

    What they really take depends on who else is at work, and so do pauses: a session tries the other candidate in
    another rhythm.
    """
    Clock(monkeypatch, runner, chooser, tick_s=1e-6)
    idle_s, end = {"cpu": 15e-3, "gpu": 10e-3}, Decider.end

    def told(self: Decider, turn: Turn, seconds: float, now_s: float, well: bool = True) -> bool:
        return end(self, turn, idle_s[turn.name] * self.host.slowdown(turn.name, turn.load), now_s, well)

    monkeypatch.setattr(chooser, "FLOOR", 0.0)
    monkeypatch.setattr(proof, "race", lambda *_, **__: idle_s)
    monkeypatch.setattr(Decider, "end", told)


def until(session: Any, feeds: dict[str, Array], want: list[Any], candidate: str, readings: int = 3000) -> None:
    """Runs until that candidate answers five times in a row, within so many readings of the load; every answer is
    right."""
    sampler, streak = session.runner.sampler, 0
    end = sampler.samples + readings
    while streak < 5:
        before = session.stats()["runs_by_candidate"].get(candidate, 0)
        assert_close(session.run(None, feeds), want)
        streak = streak + 1 if session.stats()["runs_by_candidate"].get(candidate, 0) > before else 0
        assert sampler.samples < end, session.stats()
        time.sleep(0.02)


def test_a_told_load_moves_runs_to_the_cpu_and_back(
    auto: Open, slow_on_one_thread: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, settings, feeds = slow_on_one_thread
    tell(monkeypatch)
    told = tmp_path / "load"
    told.write_text("0 0")
    session, want = auto(model, settings, load=f"file:{told}"), on_the_cpu(model, feeds)
    until(session, feeds, want, "gpu")
    assert [c.name for c in session.runner.candidates.made] == ["gpu"]
    told.write_text("0.95 0.5")
    until(session, feeds, want, "cpu")
    told.write_text("0 0")
    until(session, feeds, want, "gpu")
    stats = session.stats()
    assert stats["load"]["source"].startswith("file")
    policy = stats["policy"]
    assert policy["switches"] >= 2
    assert set(policy["candidates"]) == {"cpu", "gpu"}
    assert all(p["runs"] >= 5 for p in policy["candidates"].values())


def test_an_unknown_load_moves_nothing(
    auto: Open, slow_on_one_thread: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, settings, feeds = slow_on_one_thread
    tell(monkeypatch)
    told = tmp_path / "load"
    told.write_text("unknown 0.9")
    session = auto(model, settings, load=f"file:{told}")
    runs, sampler = 0, session.runner.sampler
    while sampler.samples < 8:  # twice what a known load takes to move runs
        session.run(None, feeds)
        runs += 1
        time.sleep(0.02)
    assert sampler.latest.gpu is None
    stats = session.stats()
    assert (stats["policy"]["current"], stats["policy"]["switches"]) == ("gpu", 0)
    assert stats["runs_by_candidate"]["gpu"] >= runs - TRIES  # a trial is no move
