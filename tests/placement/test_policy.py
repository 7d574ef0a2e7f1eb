"""Which candidate a run takes: converges, returns, does not flap, and never moves for a load that nobody knows."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ort_gpu_ep.placement.policy import ENOUGH, EXPLORE_EVERY, LEAVE, SETTLE_S, WITHIN, Host, Policy, _band, slowdown
from ort_gpu_ep.utilization import BANDS, UNKNOWN, Load
from tests.patience import steps

PERIOD_S = 0.1

Truth = Callable[[str, Load], float]


class Machine:
    """Runs a policy against true latencies: time passes by what the runs take, and a reading of the load comes every
    0.1 s."""

    def __init__(self, policy: Policy, truth: Truth, noise: float = 0.0, seed: int = 0) -> None:
        self.policy, self.truth, self.noise, self.rng, self.now_s = policy, truth, noise, random.Random(seed), 100.0
        self.ran: Counter[str] = Counter()
        self.spent_s: Counter[str] = Counter()

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
            candidate = self.policy.choose(load)
            took_s = self.truth(candidate, load) * (1.0 + self.rng.uniform(-self.noise, self.noise))
            self.now_s += took_s
            self.policy.observe(candidate, took_s, load)
            ran[candidate] += 1
            self.spent_s[candidate] += took_s
        self.ran += ran
        return ran


def queued(idle: dict[str, float]) -> Truth:
    """As the model says: the GPU shared in turn, the CPU candidate untouched."""
    return lambda candidate, load: idle[candidate] / (1.0 if candidate == "cpu" else 1.0 - min(load.gpu or 0.0, 0.95))


IDLE = {"cpu": 0.015, "gpu": 0.010}


def test_starts_with_what_is_fastest_when_idle() -> None:
    assert Policy(IDLE, 1, False).current == "gpu"
    assert Policy({"cpu": 1.0, "gpu": 2.0, "cut": 0.5}, 1, False).choose(UNKNOWN) == "cut"


def test_moves_to_the_cpu_under_load_and_back() -> None:
    machine = Machine(Policy(IDLE, 1, False), queued(IDLE))
    assert set(machine.go(0.0)) == {"gpu"}
    machine.go(0.95, seconds=1.5)
    assert machine.policy.current == "cpu"
    assert machine.go(0.95)["gpu"] <= 3
    machine.go(0.0, seconds=1.5)
    assert machine.policy.current == "gpu"
    assert machine.go(0.0)["cpu"] <= 3
    assert machine.policy.switches == 2


def test_two_runs_lie_between_two_moves() -> None:
    """Where runs take long, readings alone move nothing."""
    policy = Policy(IDLE, 1, False)
    busy, idle = (
        [Load(gpu, 0.0, 2, "test", start_s + k) for k in range(3)] for gpu, start_s in ((0.95, 100.0), (0.0, 1000.0))
    )
    assert [policy.follow(load) for load in busy] == ["gpu", "cpu", "cpu"]
    policy.observe("cpu", 0.015, busy[2])
    assert [policy.follow(load) for load in idle[:2]] == ["cpu", "cpu"]
    policy.observe("cpu", 0.015, idle[1])
    assert policy.follow(idle[2]) == "gpu"


def test_a_load_that_does_not_change_the_order_moves_nothing() -> None:
    machine = Machine(Policy(IDLE, 1, False), queued(IDLE))
    assert machine.go(0.25, seconds=20)["cpu"] <= 20  # 13.3 against 15 ms: tried now and then
    assert machine.policy.switches == 0


def test_the_cpu_plan_suffers_from_a_busy_cpu() -> None:
    policy = Policy({"cpu": 0.010, "gpu": 0.015}, 4, False)
    machine = Machine(
        policy, lambda candidate, load: {"cpu": 0.010 / max(1.0 - load.cpu, 0.1), "gpu": 0.015}[candidate]
    )
    machine.go(0.0, cpu=0.75, cores=4, seconds=1.5)
    assert policy.current == "gpu"
    machine.go(0.0, cpu=0.0, cores=4, seconds=1.5)
    assert policy.current == "cpu"


def test_on_a_software_adapter_the_gpu_plan_needs_all_cores() -> None:
    """One of two cores is busy: a candidate on all cores takes twice as long, one of a single thread as long as
    before."""
    policy = Policy(IDLE, threads=1, software=True)
    machine = Machine(policy, lambda candidate, load: IDLE[candidate] / (1.0 if candidate == "cpu" else 1.0 - load.cpu))
    machine.go(0.5, cpu=0.5, seconds=1.5)
    assert policy.current == "cpu"
    machine.go(0.0, seconds=2.0)
    assert policy.current == "gpu"


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
    policy = Policy(IDLE, 1, False)
    policy.learn({"cpu": 0.009, "gpu": 0.012}, "cpu")
    assert (policy.home, policy.current, policy.idle_s) == ("cpu", "cpu", {"cpu": 0.009, "gpu": 0.012})
    machine = Machine(
        policy,
        lambda candidate, load: (
            policy.idle_s[candidate] * (20.0 * load.cpu if candidate == "cpu" and load.cpu else 1.0)
        ),
    )
    machine.go(0.0, cpu=0.9, seconds=1.5)
    assert policy.current == "gpu"
    policy.learn({"cpu": 0.008}, "cpu")  # a load moved it: it stays until the load goes
    assert policy.current == "gpu"


def test_nothing_moves_for_a_small_gain_or_a_trifle() -> None:
    """5 % of 14 ms, 15 us of 60: too little to leave, though the other candidate is better."""
    for cpu_s, gpu_s, load in ((0.0136, 0.010, 0.3), (45e-6, 40e-6, 0.33)):
        idle = {"cpu": cpu_s, "gpu": gpu_s}
        machine = Machine(Policy(idle, 1, False), queued(idle))
        machine.go(load, seconds=10.0 if gpu_s > 1e-3 else 2.0)
        assert machine.policy.switches == 0


def test_a_load_that_comes_and_goes_is_followed_each_time() -> None:
    """Only a load that trembles is damped."""
    machine = Machine(Policy(IDLE, 1, False), queued(IDLE))
    for _ in range(8):
        machine.go(0.9, seconds=1.5)
        assert machine.policy.current == "cpu"
        machine.go(0.0, seconds=1.5)
        assert machine.policy.current == "gpu"


@given(st.floats(0.001, 0.1), st.floats(0.001, 0.1), st.floats(0.0, 1.0), st.floats(0.2, 5.0), st.floats(0.2, 5.0))
@settings(max_examples=25)
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
    machine = Machine(Policy(idle, 1, False), lambda candidate, _: true[candidate])
    machine.go(load, seconds=3000 * max(true.values()))
    assert true[machine.policy.current] <= min(true.values()) * LEAVE + 40e-6
    better = min(true.values())
    machine.ran.clear()
    runs = machine.go(load, seconds=400 * better)
    assert runs[machine.policy.current] >= 0.97 * sum(runs.values())


@given(st.floats(0.5, 2.0), st.floats(0.0, 1.0), st.integers(0, 99))
@settings(max_examples=80)
def test_does_not_flap(ratio: float, load: float, seed: int) -> None:
    """A load that trembles by 0.1 around any value, latencies by 10 %: each switch doubles the wait for the next (0.5,
    1, ... s)."""
    idle = {"cpu": 0.010 * ratio, "gpu": 0.010}
    machine = Machine(Policy(idle, 1, False), queued(idle), noise=0.1, seed=seed)
    machine.go(load, seconds=200.0, tremble=0.1)
    assert machine.policy.switches <= 9
    slowest, quickest = (1.0 / (1.0 - min(max(load + change, 0.0), 0.95)) for change in (0.1, -0.1))
    # no noise makes the worse candidate look better
    if ratio > 1.1 * slowest or 1.4 * ratio < quickest or ratio < 0.8:
        assert machine.policy.switches <= 1


@given(st.floats(0.6, 0.95), st.floats(1.0, 60.0), st.integers(0, 99))
@settings(max_examples=40)
def test_returns_when_the_load_goes(load: float, seconds: float, seed: int) -> None:
    idle = {"cpu": 0.013, "gpu": 0.010}
    machine = Machine(Policy(idle, 1, False), queued(idle), noise=0.05, seed=seed)
    machine.go(0.0, seconds=2.0)
    machine.go(load, seconds=1.0 + seconds)
    assert machine.policy.current == "cpu"
    machine.go(0.0, seconds=2.0)
    assert machine.policy.current == "gpu"


@given(st.lists(st.sampled_from(["cpu", "gpu"]), max_size=30), st.integers(0, 3))
def test_an_unknown_load_changes_nothing(seen: list[str], moved: int) -> None:
    machine = Machine(Policy(IDLE, 1, False), queued(IDLE))
    if moved:
        machine.go(0.95, seconds=float(moved))
    there = machine.policy.current
    for i, candidate in enumerate(seen):
        machine.policy.observe(candidate, 1.0 if candidate == there else 1e-3, Load(None, 0.9, 2, "nothing", 500.0 + i))
        assert machine.policy.choose(Load(None, 0.9, 2, "nothing", 500.5 + i)) == there
    assert set(machine.go(None, seconds=3.0)) == {there}


def test_trying_costs_at_most_one_percent() -> None:
    """The GPU looks 20 times slower under load and is: it is tried, seldom."""
    machine = Machine(Policy(IDLE, 1, False), queued(IDLE))
    machine.go(0.95, seconds=5.0)
    before = machine.spent_s["gpu"]
    runs = machine.go(0.95, seconds=300.0)
    assert 2 <= runs["gpu"] <= runs["cpu"] / EXPLORE_EVERY
    assert machine.spent_s["gpu"] - before <= 0.012 * 300.0


def test_a_model_that_is_too_pessimistic_is_found_out() -> None:
    """The driver prefers us: the load does not slow the GPU candidate at all."""
    machine = Machine(Policy(IDLE, 1, False), lambda candidate, _: IDLE[candidate])
    machine.go(0.95, seconds=60.0)
    assert machine.policy.current == "gpu"


def test_a_deadline_prefers_the_steadier_plan() -> None:
    """The GPU's median is better, its tail is not; 14 ms are met by the CPU always, by the GPU in 4 of 5 runs."""
    rng = random.Random(1)

    def truth(candidate: str, _: Load) -> float:
        return 0.013 if candidate == "cpu" else 0.030 if rng.random() < 0.2 else 0.010

    plain = Machine(Policy({"cpu": 0.013, "gpu": 0.010}, 1, False), truth)
    plain.go(0.05, seconds=30.0)
    assert plain.policy.current == "gpu"
    strict = Machine(Policy({"cpu": 0.013, "gpu": 0.010}, 1, False, deadline_s=0.014), truth)
    strict.go(0.05, seconds=60.0)
    assert strict.policy.current == "cpu"
    easy = Machine(Policy({"cpu": 0.013, "gpu": 0.010}, 1, False, deadline_s=0.1), truth)
    easy.go(0.05, seconds=30.0)
    assert easy.policy.current == "gpu"  # both meet it: the faster median


def test_a_candidate_that_is_slower_by_all_of_the_factor_is_a_rival_still() -> None:
    of = Host(watched=True).policy
    policy = of({"gpu": 0.5, "cpu": 0.5 * WITHIN}, "gpu", None)
    assert policy is not None
    assert set(policy.idle_s) == {"cpu", "gpu"}
    assert of({"gpu": 0.5, "cpu": 0.5 * WITHIN + 0.01}, "gpu", None) is None


def test_runs_are_believed_once_their_band_has_lasted() -> None:
    """From the very moment: the times of this test are whole halves."""
    policy = Policy(IDLE, 1, False)
    for reading in range(ENOUGH + 1):
        load = Load(0.0, 0.0, 2, "test", reading * SETTLE_S)
        policy.choose(load)
        if reading < ENOUGH:
            assert policy._predict("gpu", load) == IDLE["gpu"], "too few are settled"
            policy.observe("gpu", 0.25, load)
    assert policy._predict("gpu", load) == 0.25


def test_bands() -> None:
    assert [_band(x) for x in (0.0, 0.10, 0.11, 0.39, 0.41, 0.79, 0.81, 1.0)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(BANDS) == 4


def test_what_is_shown() -> None:
    machine = Machine(Policy(IDLE, 1, False), queued(IDLE))
    machine.go(0.0, seconds=1.0)
    machine.go(0.95, seconds=3.0)
    shown = machine.policy.as_dict()
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
    policy, load = Policy({"cpu": 1.0, "gpu": 2.0, "cut": 1.5}, 2, False), Load(0.5, 0.2, 8, "", 0.0)
    policy.choose(load)
    assert steps(lambda: policy.choose(load)) < 150  # what it thinks once per reading takes thousands
