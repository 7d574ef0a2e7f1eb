"""Candidates take turns, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from ort_gpu_ep.placement.trial import BLOCK, MAX_BLOCKS, WARM_UPS, race


class Machine:
    """A clock that runs as its tasks take."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.rested = False
        self.log: list[str] = []

    def task(self, name: str, *seconds: float) -> Callable[[], None]:
        """Takes each of the seconds in turn, the last one for ever."""
        left = list(seconds)

        def run() -> None:
            self.log.append(name)
            self.rested = False
            self.now_s += left.pop(0) if len(left) > 1 else left[0]
        return run

    def race(self, runs: Mapping[str, Callable[[], None]], budget_s: float) -> dict[str, float]:
        return race(runs, budget_s, lambda: self.now_s, self.rest)

    def rest(self, seconds: float) -> None:
        self.now_s += seconds
        self.rested = True


def test_the_first_runs_do_not_count() -> None:
    machine = Machine()
    got = machine.race({"a": machine.task("a", 9.0, 5.0, 5.0, 1e-3), "b": machine.task("b", 2e-3)}, 100.0)
    assert got == pytest.approx({"a": 1e-3, "b": 2e-3})


def test_they_take_turns_in_blocks_and_both_orders() -> None:
    machine = Machine()
    machine.race({"a": machine.task("a", 1.0), "b": machine.task("b", 1.0)}, 1e6)
    log = "".join(machine.log)
    first, later = WARM_UPS + BLOCK, 1 + BLOCK
    assert log.startswith("a" * first + "b" * first + "b" * later + "a" * later + "a" * later + "b" * later)
    assert len(log) == 2 * (first + (MAX_BLOCKS - 1) * later)


def test_the_run_that_wakes_up_does_not_count() -> None:
    """Every block's first run is slow."""
    machine, calls = Machine(), []

    def sleepy() -> None:
        calls.append(machine.rested)
        machine.now_s += 5.0 if machine.rested else 1.0
        machine.rested = False
    got = machine.race({"a": sleepy, "b": machine.task("b", 1.2)}, 1e6)
    assert got == pytest.approx({"a": 1.0, "b": 1.2})
    assert sum(calls) == MAX_BLOCKS


def test_a_clear_race_is_short() -> None:
    machine = Machine()
    machine.race({"a": machine.task("a", 1.0), "b": machine.task("b", 1.6)}, 1000.0)
    assert len(machine.log) == 2 * (WARM_UPS + 1 + 2 * BLOCK)


def test_the_median_ignores_a_hiccup() -> None:
    machine = Machine()
    got = machine.race({"a": machine.task("a", 1.0, 1.0, 1.0, 1.0, 50.0, 1.0), "b": machine.task("b", 1.4)}, 1000.0)
    assert got == pytest.approx({"a": 1.0, "b": 1.4})


def test_slow_candidates_are_run_once_and_measured_once() -> None:
    machine = Machine()
    got = machine.race({"a": machine.task("a", 1.0, 0.7), "b": machine.task("b", 3.0, 0.4)}, 0.5)
    assert machine.log == ["a", "a", "b", "b"]
    assert got == pytest.approx({"a": 0.7, "b": 0.4})


def test_what_a_candidate_raises_comes_through() -> None:
    def fail() -> None:
        raise ValueError("no")
    with pytest.raises(ValueError, match="no"):
        race({"a": fail}, 1.0)
