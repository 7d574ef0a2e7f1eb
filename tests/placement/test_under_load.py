"""Which candidate a run takes: converges, returns, does not flap, and never moves for a load that nobody knows."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_gpu_ep.placement.decider import LEAVE, SETTLE_S, SHARE, Decider, Host, slowdown
from ort_gpu_ep.placement.estimate import ENOUGH
from ort_gpu_ep.placement.rhythm import BUSY
from ort_gpu_ep.utilization import UNKNOWN, Load, Uses
from tests.patience import steps

PERIOD_S = 0.1

Truth = Callable[[str, Load], float]


class Machine:
    """A decider of one size, with what its candidates take on an idle machine, against true latencies: time passes by
    what the runs take, and a reading of the load comes every 0.1 s."""

    def __init__(self, idle_s: dict[str, float], truth: Truth, noise: float = 0.0, seed: int = 0, **host: Any) -> None:
        self.truth, self.noise, self.rng, self.now_s = truth, noise, random.Random(seed), 100.0
        self.decider = Decider(Uses(sleeps=False), 0.5, Host(**{"threads": 1, "cores": 2, "watched": True, **host}))
        self.entry = self.decider.entry("a size", lambda: 1.0)
        for name, seconds in idle_s.items():
            self.decider.teach(self.entry.size, name, seconds, 3, self.now_s)
            self.entry.seen[name] = 1
        self.decider.decide(self.entry, self.now_s)
        self.ran: Counter[str] = Counter()
        self.spent_s: Counter[str] = Counter()

    @property
    def current(self) -> str:
        return self.entry.choice

    @property
    def switches(self) -> int:
        return self.entry.place.switches

    def run(self, load: Load, took_s: float | None = None) -> str:
        """One run. took_s: where it is not what is true."""
        name = self.decider.choose(self.entry, self.now_s, load)
        turn = self.decider.begin(self.entry, name, self.now_s, load)
        took_s = took_s or self.truth(name, load) * (1.0 + self.rng.uniform(-self.noise, self.noise))
        self.now_s += took_s
        self.decider.end(turn, took_s, self.now_s)
        self.spent_s[name] += took_s
        return name

    def go(
        self, gpu: float | None, cpu: float = 0.0, seconds: float = 5.0, cores: int = 2, tremble: float = 0.0
    ) -> Counter[str]:
        """Runs for so long under this load, which trembles by so much; gives the runs of each candidate."""
        ran: Counter[str] = Counter()
        end_s, read_s = self.now_s + seconds, -math.inf
        while self.now_s < end_s:
            if self.now_s - read_s >= PERIOD_S:
                read_s = self.now_s
                change = self.rng.uniform(-tremble, tremble)
                seen = None if gpu is None else min(max(gpu + change, 0.0), 1.0)
                load = Load(seen, min(max(cpu + change, 0.0), 1.0) if cpu else 0.0, cores, "test", read_s)
            ran[self.run(load)] += 1
        self.ran += ran
        return ran


def queued(idle: dict[str, float]) -> Truth:
    """As the model says: the GPU shared in turn, the CPU candidate untouched."""
    return lambda candidate, load: idle[candidate] / (1.0 if candidate == "cpu" else 1.0 - min(load.gpu or 0.0, 0.95))


IDLE = {"cpu": 0.015, "gpu": 0.010}


def test_starts_with_what_is_fastest_when_idle() -> None:
    assert Machine(IDLE, queued(IDLE)).current == "gpu"
    idle = {"cpu": 1.0, "gpu": 2.0, "cut": 0.5}
    assert Machine(idle, queued(idle)).run(UNKNOWN) == "cut"


def test_moves_to_the_cpu_under_load_and_back() -> None:
    machine = Machine(IDLE, queued(IDLE))
    assert machine.go(0.0)["cpu"] <= 2  # tried once or twice: so far it only ran side by side
    machine.go(0.95, seconds=1.5)
    assert machine.current == "cpu"
    assert machine.go(0.95)["gpu"] <= 3
    machine.go(0.0, seconds=1.5)
    assert machine.current == "gpu"
    assert machine.go(0.0)["cpu"] <= 3
    assert machine.switches == 2


def test_two_runs_lie_between_two_moves() -> None:
    """Where runs take long, readings alone move nothing."""
    machine = Machine(IDLE, queued(IDLE))
    busy, idle = (
        [Load(gpu, 0.0, 2, "test", start_s + k) for k in range(4)] for gpu, start_s in ((0.95, 100.0), (0.0, 1000.0))
    )
    ran = [machine.run(load) for load in (*busy[:3], *idle)]
    assert ran == ["gpu", "cpu", "cpu", "cpu", "gpu", "gpu", "gpu"]
    machine.run(busy[3])
    machine.entry.place.runs = 1
    assert machine.run(Load(0.95, 0.0, 2, "test", 2000.0)) == "gpu"
    assert machine.run(Load(0.95, 0.0, 2, "test", 2001.0)) == "cpu"


def test_a_load_that_does_not_change_the_order_moves_nothing() -> None:
    machine = Machine(IDLE, queued(IDLE))
    assert machine.go(0.25, seconds=20)["cpu"] <= 20  # 13.3 against 15 ms: tried now and then
    assert machine.switches == 0


def test_the_cpu_plan_suffers_from_a_busy_cpu() -> None:
    machine = Machine(
        {"cpu": 0.010, "gpu": 0.015},
        threads=4,
        cores=4,
        truth=lambda candidate, load: {"cpu": 0.010 / max(1.0 - load.cpu, 0.1), "gpu": 0.015}[candidate],
    )
    machine.go(0.0, cpu=0.75, cores=4, seconds=1.5)
    assert machine.current == "gpu"
    machine.go(0.0, cpu=0.0, cores=4, seconds=1.5)
    assert machine.current == "cpu"


def test_on_a_software_adapter_the_gpu_plan_needs_all_cores() -> None:
    """One of two cores is busy: a candidate on all cores takes twice as long, one of a single thread as long as
    before."""
    machine = Machine(
        IDLE,
        software=True,
        truth=lambda candidate, load: IDLE[candidate] / (1.0 if candidate == "cpu" else 1.0 - load.cpu),
    )
    machine.go(0.5, cpu=0.5, seconds=1.5)
    assert machine.current == "cpu"
    machine.go(0.0, seconds=2.0)
    assert machine.current == "gpu"


def test_the_model() -> None:
    """Slowdowns by hand: shared in turn, threads over free cores, the worse of both for a cut, 20 at most."""
    idle, half, full = Load(0.0, 0.0, 4, "", 0.0), Load(0.5, 0.75, 4, "", 0.0), Load(1.0, 1.0, 4, "", 0.0)
    assert [
        [slowdown(candidate, load, 2, False) for candidate in ("cpu", "gpu", "cut")] for load in (idle, half, full)
    ] == [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], pytest.approx([10.0, 20.0, 20.0])]
    assert slowdown("cut", Load(0.9, 0.0, 4, "", 0.0), 2, False) == pytest.approx(10.0)
    assert [slowdown(candidate, half, 1, True) for candidate in ("cpu", "gpu")] == [1.0, 4.0]
    assert slowdown("cpu", Load(None, 0.9, 4, "", 0.0), 4, True) == 1.0


def test_what_is_learnt_moves_the_home_and_whoever_is_there() -> None:
    machine = Machine(
        IDLE,
        lambda name, load: (
            {"cpu": 0.009, "gpu": 0.012}[name] * (20.0 * load.cpu if name == "cpu" and load.cpu else 1.0)
        ),
    )
    machine.go(0.0, seconds=3.0)
    assert (machine.entry.place.home, machine.current) == ("cpu", "cpu")
    machine.go(0.0, cpu=0.9, seconds=1.5)
    assert (machine.entry.place.home, machine.current) == (
        "cpu",
        "gpu",
    )  # a load moved it: it stays until the load goes
    machine.go(0.0, seconds=1.5)
    assert machine.current == "cpu"


def test_nothing_moves_for_a_small_gain_or_a_trifle() -> None:
    """5 % of 14 ms, 15 us of 60: too little to leave, though the other candidate is better."""
    for cpu_s, gpu_s, load in ((0.0136, 0.010, 0.3), (45e-6, 40e-6, 0.33)):
        idle = {"cpu": cpu_s, "gpu": gpu_s}
        machine = Machine(idle, queued(idle))
        machine.go(load, seconds=10.0 if gpu_s > 1e-3 else 2.0)
        assert machine.switches == 0


def test_a_load_that_comes_and_goes_is_followed_each_time() -> None:
    """Only a load that trembles is damped."""
    machine = Machine(IDLE, queued(IDLE))
    for _ in range(8):
        machine.go(0.9, seconds=1.5)
        assert machine.current == "cpu"
        machine.go(0.0, seconds=1.5)
        assert machine.current == "gpu"


@given(st.floats(0.001, 0.1), st.floats(0.001, 0.1), st.floats(0.0, 1.0), st.floats(0.2, 5.0), st.floats(0.2, 5.0))
@settings(max_examples=8, deadline=None)
def test_converges_to_the_better_plan(
    cpu_s: float, gpu_s: float, load: float, wrong_cpu: float, wrong_gpu: float
) -> None:
    """Whatever the load does to the candidates, and however wrong the model is about it: the faster one is found,
    within the margin."""
    idle = {"cpu": cpu_s, "gpu": gpu_s}
    model = queued(idle)
    true = {
        "cpu": model("cpu", Load(load, 0.0, 2, "", 0.0)) * wrong_cpu,
        "gpu": model("gpu", Load(load, 0.0, 2, "", 0.0)) * wrong_gpu,
    }
    true = {candidate: max(s, idle[candidate]) for candidate, s in true.items()}  # a load makes nothing faster
    machine = Machine(idle, lambda candidate, _: true[candidate])
    machine.go(load, seconds=1000 * max(true.values()))
    assert true[machine.current] <= min(true.values()) * LEAVE + 40e-6
    better = min(true.values())
    machine.ran.clear()
    runs = machine.go(load, seconds=400 * better)
    assert runs[machine.current] >= 0.97 * sum(runs.values())


@given(st.floats(0.5, 2.0), st.floats(0.0, 1.0), st.integers(0, 99))
@settings(max_examples=6, deadline=None)
def test_does_not_flap(ratio: float, load: float, seed: int) -> None:
    """A load that trembles by 0.1 around any value, latencies by 10 %: each switch doubles the wait for the next (0.5,
    1, ... s)."""
    idle = {"cpu": 0.010 * ratio, "gpu": 0.010}
    machine = Machine(idle, queued(idle), noise=0.1, seed=seed)
    machine.go(load, seconds=60.0, tremble=0.1)
    assert machine.switches <= 9
    slowest, quickest = (1.0 / (1.0 - min(max(load + change, 0.0), 0.95)) for change in (0.1, -0.1))
    # no noise makes the worse candidate look better
    if ratio > 1.1 * slowest or 1.4 * ratio < quickest or ratio < 0.8:
        assert machine.switches <= 1


@given(st.floats(0.6, 0.95), st.floats(1.0, 10.0), st.integers(0, 99))
@settings(max_examples=6, deadline=None)
def test_returns_when_the_load_goes(load: float, seconds: float, seed: int) -> None:
    idle = {"cpu": 0.013, "gpu": 0.010}
    machine = Machine(idle, queued(idle), noise=0.05, seed=seed)
    machine.go(0.0, seconds=2.0)
    machine.go(load, seconds=1.0 + seconds)
    assert machine.current == "cpu"
    machine.go(0.0, seconds=2.0)
    assert machine.current == "gpu"


@given(st.lists(st.integers(0, 1), max_size=30), st.integers(0, 3))
def test_an_unknown_load_changes_nothing(seen: list[int], moved: int) -> None:
    machine = Machine(IDLE, queued(IDLE))
    if moved:
        machine.go(0.95, seconds=float(moved))
    there = machine.current
    for i, slow in enumerate(seen):
        machine.run(Load(None, 0.9, 2, "nothing", 500.0 + i), took_s=IDLE[there] * (1.0 + 0.01 * slow))
        assert machine.current == there
    assert machine.current == there


def test_trying_costs_no_more_than_its_budget() -> None:
    """The GPU looks 20 times slower under load and is: it is tried, seldom."""
    machine = Machine(IDLE, queued(IDLE))
    machine.go(0.95, seconds=5.0)
    before = machine.spent_s["gpu"]
    runs = machine.go(0.95, seconds=60.0)
    assert runs["gpu"] <= runs["cpu"] / 128
    assert machine.spent_s["gpu"] - before <= SHARE * 60.0
    assert machine.decider.left_s >= 0.0


def test_a_model_that_is_too_pessimistic_is_found_out() -> None:
    """The driver prefers us: the load does not slow the GPU candidate at all."""
    machine = Machine(IDLE, lambda candidate, _: IDLE[candidate])
    machine.go(0.95, seconds=60.0)
    assert machine.current == "gpu"


def test_a_deadline_prefers_the_steadier_plan() -> None:
    """The GPU's median is better, its tail is not; 14 ms are met by the CPU always, by the GPU in 4 of 5 runs."""
    rng = random.Random(1)

    def truth(candidate: str, _: Load) -> float:
        return 0.013 if candidate == "cpu" else 0.030 if rng.random() < 0.2 else 0.010

    plain = Machine({"cpu": 0.013, "gpu": 0.010}, truth)
    plain.go(0.05, seconds=30.0)
    assert plain.current == "gpu"
    strict = Machine({"cpu": 0.013, "gpu": 0.010}, truth, deadline_s=0.014)
    strict.go(0.05, seconds=60.0)
    assert strict.current == "cpu"
    easy = Machine({"cpu": 0.013, "gpu": 0.010}, truth, deadline_s=0.1)
    easy.go(0.05, seconds=30.0)
    assert easy.current == "gpu"  # both meet it: the faster median


def test_runs_are_believed_once_their_load_has_lasted() -> None:
    """After the first few, which nothing else tells about."""
    machine = Machine(IDLE, queued(IDLE))

    def expected_s() -> float:
        estimate = machine.decider.estimate("gpu", BUSY, machine.entry.size, machine.now_s)
        assert estimate is not None
        return estimate.seconds

    for reading in range(2 * ENOUGH):
        machine.run(Load(0.0, 0.0, 2, "test", 100.0 + reading * 0.1))
    for reading in range(5):  # a load that is not known yet
        assert expected_s() == IDLE["gpu"]
        machine.run(Load(0.0, 0.0, 2, "test", 101.0 + reading * 0.05), took_s=0.25)
    machine.run(Load(0.9, 0.0, 2, "test", 101.4))
    machine.run(Load(0.9, 0.0, 2, "test", 103.0))
    assert expected_s() == IDLE["gpu"]
    for reading in range(30):
        machine.run(Load(0.0, 0.0, 2, "test", 110.0 + reading * SETTLE_S), took_s=0.25)
    assert expected_s() > IDLE["gpu"]


def test_what_is_shown() -> None:
    machine = Machine(IDLE, queued(IDLE))
    machine.go(0.0, seconds=1.0)
    machine.go(0.95, seconds=3.0)
    shown = machine.decider.as_dict(machine.entry)
    assert (shown["current"], shown["home"], shown["switches"]) == ("cpu", "gpu", 1)
    assert "predicted cpu 15 ms, gpu 200 ms at GPU load 95%" in str(shown["why"])
    candidates = shown["candidates"]
    assert isinstance(candidates, dict)
    assert candidates["cpu"]["p50_ms"] == pytest.approx(15, rel=0.1)
    assert (
        sum(band["runs"] for band in candidates["gpu"]["bands"].values())
        == candidates["gpu"]["runs"]
        == machine.ran["gpu"]
    )
    assert candidates["gpu"]["bands"]["idle"]["p99_ms"] == pytest.approx(10, rel=0.1)


def test_choosing_is_quick() -> None:
    machine, load = Machine({"cpu": 1.0, "gpu": 2.0, "cut": 1.5}, queued(IDLE), threads=2), Load(0.5, 0.2, 8, "", 0.0)
    for _ in range(20):
        machine.decider.choose(machine.entry, 100.0, load)
    assert (
        min(steps(lambda: machine.decider.choose(machine.entry, 100.0, load)) for _ in range(9)) < 150
    )  # thinking takes thousands
