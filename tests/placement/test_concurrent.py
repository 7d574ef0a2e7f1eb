"""Several models and threads in one process, on artificial sides: where runs go while others are under way, and what
that costs."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from ort_gpu_ep.placement.decider import Decider, Host, Turn
from ort_gpu_ep.placement.estimate import Size, Times
from ort_gpu_ep.placement.rhythm import BUSY, CONCURRENT, Rhythm
from ort_gpu_ep.utilization import Uses, run_begins, run_ends
from tests.patience import until

IDLE_S = {
    "squeezenet": (1.4e-3, 0.28e-3),
    "mobilenet": (1.7e-3, 0.37e-3),
    "encoder": (6.9e-3, 0.45e-3),
    "lstm": (0.15e-3, 0.17e-3),
}
"""Seconds of a run on the CPU and on the GPU, alone: as measured on an H200 with 16 cores."""

THREADS = 8


@dataclass
class Machine:
    """A GPU that takes runs in turn, and cores that all runs on the CPU share. stalls: part of the runs that take
    stall_s more where one of those at work is on the CPU: the threads of its pool spin, and more threads are awake than
    there are cores. turns_s: what each run costs the interpreter."""

    cpu_slots: float = 1.0
    stalls: float = 0.03
    stall_s: float = 40e-3
    turns_s: float = 0.2e-3
    now_s: float = 100.0
    gpu_free_s: float = 0.0
    python_free_s: float = 0.0
    on_cpu: int = 0
    at_work: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(3))

    def end_s(self, name: str, model: str) -> float:
        """When a run that begins now will be over."""
        cpu_s, gpu_s = IDLE_S[model]
        self.python_free_s = max(self.python_free_s, self.now_s) + self.turns_s
        stall_s = self.stall_s if self.on_cpu and self.at_work > 1 and self.rng.random() < self.stalls else 0.0
        if name == "gpu":
            self.gpu_free_s = max(self.gpu_free_s, self.python_free_s) + gpu_s
            return self.gpu_free_s + stall_s
        return self.python_free_s + cpu_s * max(self.on_cpu / self.cpu_slots, 1.0) + stall_s


def decider_of(model: str, machine: Machine) -> Decider:
    """After both sides were measured alone."""
    made = Decider(Uses(sleeps=False), 0.5, Host(1, machine.cpu_slots))
    for name, seconds in zip(("cpu", "gpu"), IDLE_S[model], strict=True):
        made.teach(Size(model, 1.0), name, seconds, 3, machine.now_s)
    entry = made.entry(model, lambda: 1.0)
    entry.ready, entry.seen = True, {"cpu": 1, "gpu": 1}
    made.decide(entry, machine.now_s)
    return made


def played(
    machine: Machine, seconds: float, fixed: str = "", threads: int = THREADS
) -> tuple[list[tuple[str, str, float]], dict[str, Decider]]:
    """(model, side, seconds) of each run of threads that never rest, thread i on the i-th model. fixed: one side takes
    all of them."""
    deciders = {model: decider_of(model, machine) for model in IDLE_S}
    models, found, end_s = list(IDLE_S), list[tuple[str, str, float]](), machine.now_s + seconds
    waiting: list[tuple[float, int, tuple[Turn | None, str, float] | None]]
    waiting = [(machine.now_s + i * 1e-5, i, None) for i in range(threads)]  # (when, thread, the run that is over)
    while waiting:
        machine.now_s, i, over = heapq.heappop(waiting)
        model = models[i % len(models)]
        decider = deciders[model]
        if over is not None:
            turn, name, begin_s = over
            machine.on_cpu -= name == "cpu"
            if turn is not None:
                decider.end(turn, machine.now_s - begin_s, machine.now_s)
            found.append((model, name, machine.now_s - begin_s))
        if machine.now_s < end_s:
            entry, others = decider.entry(model, lambda: 1.0), sum(o is not None for _, _, o in waiting)
            name = fixed or decider.choose(entry, machine.now_s, others=others)
            turn = None if fixed else decider.begin(entry, name, machine.now_s)
            machine.on_cpu += name == "cpu"
            machine.at_work = others + 1
            heapq.heappush(waiting, (machine.end_s(name, model), i, (turn, name, machine.now_s)))
    return found, deciders


def p99_s(ran: list[tuple[str, str, float]]) -> float:
    return float(np.percentile([s for *_, s in ran], 99))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_threads_do_as_well_as_on_the_better_side(seed: int) -> None:
    """As many runs a second within 5 %, and p99 within 1.2 times."""
    sides = {name: played(Machine(rng=random.Random(seed)), 8.0, name)[0] for name in ("cpu", "gpu")}
    ran, deciders = played(Machine(rng=random.Random(seed)), 8.0)
    assert len(ran) >= 0.95 * max(map(len, sides.values()))
    assert p99_s(ran) <= 1.2 * min(map(p99_s, sides.values()))
    # the CPU alone would be quicker than their turn on the GPU: it is no reason
    for model in ("squeezenet", "mobilenet", "encoder"):
        assert Counter(name for m, name, _ in ran if m == model)["cpu"] <= 3
    assert all(decider.rhythm.rest == CONCURRENT for decider in deciders.values())


def test_where_the_cores_are_enough_the_cpu_takes_what_waits_for_the_gpu() -> None:
    """Sessions of one thread each on 16 cores: beside others, runs take as long as alone."""
    machine = Machine(cpu_slots=16.0, stalls=0.0)
    ran, _ = played(machine, 8.0)
    late = Counter((m, name) for m, name, _ in ran[len(ran) // 2 :])
    assert late["lstm", "cpu"] > 0.9 * (late["lstm", "cpu"] + late["lstm", "gpu"])
    assert len(ran) >= 0.95 * max(
        len(played(Machine(cpu_slots=16.0, stalls=0.0), 8.0, name)[0]) for name in ("cpu", "gpu")
    )


def test_one_thread_learns_what_it_did_before() -> None:
    ran, deciders = played(Machine(turns_s=0.0), 1.0, threads=1)
    assert Counter(name for _, name, _ in ran) == {"gpu": len(ran)}
    assert deciders["squeezenet"].rhythm.rest == BUSY


def test_runs_beside_others_say_nothing_about_runs_alone() -> None:
    _, deciders = played(Machine(), 2.0)
    for model, decider in deciders.items():
        for name, seconds in zip(("cpu", "gpu"), IDLE_S[model], strict=True):
            alone = decider.estimate(name, BUSY, Size(model, 1.0), 110.0)
            assert alone is not None
            assert alone.seconds < 1.5 * seconds


def test_the_side_with_the_shorter_tail_wins_where_the_means_are_close() -> None:
    steady, stalling = Times(0.3, shared=True), Times(0.3, shared=True)
    size = Size("x", 1.0)
    for i in range(300):
        steady.add(size, 2.5e-3, 0.0)
        stalling.add(size, 40e-3 if i % 50 == 0 else 1.2e-3, 0.0)  # mean 2.0, p99 40
    found = [times.at(size, 0.0) for times in (steady, stalling)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].seconds == pytest.approx(2.5e-3)
    assert found[1].seconds > 3 * found[0].seconds


def test_a_tail_is_compared_with_a_tail() -> None:
    """A GPU whose runs beside others are seldom long is not left for a CPU that had few there, by their median, nor is
    the CPU tried."""
    size, decider = Size("x", 1.0), Decider(Uses(sleeps=False), 0.5)
    entry = decider.entry("x", lambda: 1.0)
    entry.ready, entry.seen = True, {"cpu": 1, "gpu": 1}
    for name, seconds in (("cpu", 1.4e-3), ("gpu", 0.3e-3)):
        decider.teach(size, name, seconds, 3, 1.0)
    decider.decide(entry, 1.0)
    decider.rhythm.others = 7.0

    def chosen() -> str:
        entry.think_at = entry.runs
        return decider.choose(entry, 2.0, others=7)

    for i in range(200):
        decider.times("gpu", CONCURRENT).add(size, 30e-3 if i % 50 == 0 else 3.5e-3, 1.0)
    decider.rhythm.end(2.0)
    decider.rhythm.uses.end(2.0)
    # the CPU is predicted to take 8 x 1.4 ms, less than the GPU's tail
    assert [chosen() for _ in range(5)] == ["gpu"] * 5
    for _ in range(8):
        decider.times("cpu", CONCURRENT).add(size, 5e-3, 2.0)
    assert [chosen() for _ in range(5)] == ["gpu"] * 5
    for _ in range(100):
        decider.times("cpu", CONCURRENT).add(size, 5e-3, 2.0)
    assert chosen() == "cpu"
    assert entry.choice == "cpu"


def test_concurrent_is_what_most_runs_are() -> None:
    rhythm = Rhythm(Uses(sleeps=False))

    def rests(*others: int) -> list[str]:
        found = []
        for count in others:
            rhythm.begin(1.0, count)
            found.append(rhythm.rest)
            rhythm.end(1.0)
        return found

    assert rests(0, 1, 0, 0, 1, 0) == [BUSY] * 6
    assert rests(*[3] * 12)[-1] == CONCURRENT
    assert rests(0, 0, 3, 0, 0, 3)[-1] == CONCURRENT
    assert rests(*[0] * 20)[-1] == BUSY


def test_runs_of_other_threads_are_counted() -> None:
    import threading

    assert run_begins() == 0
    begun, go_on, counted = threading.Event(), threading.Event(), list[int]()

    def other() -> None:
        counted.append(run_begins())
        begun.set()
        go_on.wait()
        run_ends()

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait()
    assert counted == [1]
    assert run_begins() == 1
    go_on.set()
    thread.join()
    until(lambda: run_begins() == 0)
    run_ends()
    run_ends()
