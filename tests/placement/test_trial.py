"""Candidates take turns, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from ort_gpu_ep.placement.proof import BLOCK, BLOCK_S, MAX_BLOCKS, PATIENCE, WAKE_S, WARM_UP_S, WARM_UPS, race


class Machine:
    """A clock that runs as its tasks take."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.awake = 0
        self.told_s = 0.0
        self.log: list[str] = []

    def task(self, name: str, *seconds: float) -> Callable[[], None]:
        """Takes each of the seconds in turn, the last one for ever."""
        left = list(seconds)

        def run() -> None:
            self.log.append(name)
            self.now_s += left.pop(0) if len(left) > 1 else left[0]

        return run

    def race(
        self, runs: Mapping[str, Callable[[], None]], budget_s: float, wake_s: float = 0.0, **predicted_s: float
    ) -> dict[str, float]:
        return race(runs, budget_s, wake_s, predicted_s, lambda: self.now_s, self.rest, self.told_s)

    def rest(self, seconds: float) -> None:
        self.now_s += seconds
        self.awake = 0


def test_the_first_runs_do_not_count() -> None:
    machine = Machine()
    got = machine.race({"a": machine.task("a", 9.0, 5.0, 5.0, 1e-3), "b": machine.task("b", 2e-3)}, 100.0)
    assert got == pytest.approx({"a": 1e-3, "b": 2e-3})


def test_they_take_turns_in_blocks_and_both_orders() -> None:
    machine = Machine()
    machine.race({"a": machine.task("a", 1.0), "b": machine.task("b", 1.0)}, 1e6)
    block = WARM_UPS + BLOCK
    assert "".join(machine.log) == ("a" * block + "b" * 2 * block + "a" * block) * (MAX_BLOCKS // 2)


def test_quick_runs_are_repeated_until_the_machine_is_awake() -> None:
    machine = Machine()
    machine.race({"a": machine.task("a", 1e-3), "b": machine.task("b", 1.0)}, 1e6)
    assert machine.log.count("a") == pytest.approx(2 * (WARM_UP_S + BLOCK_S) / 1e-3, abs=6)


def test_the_runs_after_a_rest_do_not_count() -> None:
    """Every block's first runs are slow."""
    machine, slow = Machine(), []

    def sleepy() -> None:
        machine.awake += 1
        slow.append(machine.awake < WARM_UPS)
        machine.now_s += 5.0 if slow[-1] else 1.0

    got = machine.race({"a": sleepy, "b": machine.task("b", 1.2)}, 1e6)
    assert got == pytest.approx({"a": 1.0, "b": 1.2})
    assert sum(slow) == MAX_BLOCKS * (WARM_UPS - 1)


def test_a_clear_race_is_short() -> None:
    machine = Machine()
    machine.race({"a": machine.task("a", 1.0), "b": machine.task("b", 1.6)}, 1000.0)
    assert len(machine.log) == 2 * 2 * (WARM_UPS + BLOCK)


@pytest.mark.parametrize(("seconds", "blocks"), [(1.0, 2), (1.4, MAX_BLOCKS)])
def test_what_the_cpu_is_told_to_take_is_not_run(seconds: float, blocks: int) -> None:
    machine = Machine()
    machine.told_s = 1.6
    got = machine.race({"cpu": machine.task("cpu", 9.0), "gpu": machine.task("gpu", seconds)}, 1000.0)
    assert got == pytest.approx({"cpu": 1.6, "gpu": seconds})
    assert machine.log == ["gpu"] * blocks * (WARM_UPS + BLOCK)


@pytest.mark.parametrize("ramp_s", [0.4, 1.0])
def test_a_gpu_is_raced_awake_against_a_cpu_that_is_told_of(ramp_s: float) -> None:
    machine = Machine()
    machine.told_s = 5e-3
    gpu = Gpu(machine, 6e-3, 2e-3, ramp_s)
    assert machine.race({"cpu": machine.task("cpu", 9.0), "gpu": gpu}, 0.5, WAKE_S)["gpu"] == pytest.approx(2e-3)


class Gpu:
    """Slow until it has worked for `ramp_s`."""

    def __init__(self, machine: Machine, asleep_s: float, awake_s: float, ramp_s: float = 0.4) -> None:
        self.machine, self.asleep_s, self.awake_s, self.worked_s, self.runs, self.ramp_s = (
            machine,
            asleep_s,
            awake_s,
            0.0,
            0,
            ramp_s,
        )

    def __call__(self) -> None:
        seconds = self.asleep_s if self.worked_s < self.ramp_s else self.awake_s
        self.worked_s += seconds
        self.machine.now_s += seconds
        self.runs += 1


@pytest.mark.parametrize(("ramp_s", "predicted_s"), [(0.4, 0.0), (1.0, 9e-3), (2.5, 1e-3)])
def test_a_gpu_is_raced_awake(ramp_s: float, predicted_s: float) -> None:
    """One that should win gets more time to wake up."""
    machine = Machine()
    gpu = Gpu(machine, 6e-3, 2e-3, ramp_s)
    got = machine.race({"cpu": machine.task("cpu", 5e-3), "gpu": gpu}, 0.5, WAKE_S, gpu=predicted_s)
    assert got == pytest.approx({"cpu": 5e-3, "gpu": 2e-3})
    assert gpu.worked_s > ramp_s


@pytest.mark.parametrize(
    ("seconds", "predicted_s", "awake"), [(4e-3, 3.5e-3, True), (4e-3, 1.5e-3, False), (6e-3, 9e-3, False)]
)
def test_a_gpu_that_wins_as_quickly_as_predicted_is_awake(seconds: float, predicted_s: float, awake: bool) -> None:
    """One that loses may be asleep, whatever was predicted."""
    machine = Machine()
    gpu = Gpu(machine, seconds, seconds)
    machine.race({"cpu": machine.task("cpu", 5e-3), "gpu": gpu}, 0.01, WAKE_S, gpu=predicted_s)
    assert (gpu.runs <= 5 + 2) == awake


@pytest.mark.parametrize(("asleep_s", "awake_s"), [(3e-3, 1e-3), (31e-3, 31e-3)])
def test_a_gpu_that_wins_asleep_or_can_t_win_awake_is_not_woken(asleep_s: float, awake_s: float) -> None:
    machine = Machine()
    gpu = Gpu(machine, asleep_s, awake_s)
    machine.race({"cpu": machine.task("cpu", 5e-3), "gpu": gpu}, 0.01, WAKE_S)
    assert gpu.runs <= 5 + 2


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


@pytest.mark.parametrize("first_s", [0.2, 1e-3])
def test_two_odd_runs_do_not_say_that_a_gpu_is_awake(first_s: float) -> None:
    """It compiles, or something else was measured: the median of five runs decides."""
    machine = Machine()
    gpu = Gpu(machine, 6e-3, 2e-3)
    first = [machine.task("gpu", first_s)] * 2

    def run() -> None:
        first.pop()() if first else gpu()

    got = machine.race({"cpu": machine.task("cpu", 5e-3), "gpu": run}, 0.01, WAKE_S)
    assert got == pytest.approx({"cpu": 5e-3, "gpu": 2e-3})


@pytest.mark.parametrize(("predicted_s", "patience"), [(0.0, 1), (1e-3, PATIENCE), (9e-3, 1)])
def test_only_a_gpu_that_should_win_is_waited_for(predicted_s: float, patience: float) -> None:
    """Of one that stays slow, nothing but a prediction that it wins is a reason to go on."""
    machine = Machine()
    gpu = Gpu(machine, 6e-3, 2e-3, 1e6)
    machine.race({"cpu": machine.task("cpu", 5e-3), "gpu": gpu}, 0.0, WAKE_S, gpu=predicted_s)
    assert gpu.worked_s == pytest.approx(WAKE_S * patience, abs=4 * 6e-3)
