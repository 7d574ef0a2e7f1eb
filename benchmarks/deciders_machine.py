"""A machine that runs the decider of placement in virtual time: candidates, other programs, clocks that sink, threads
that wait."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

from ort_gpu_ep.placement import decider, estimate
from ort_gpu_ep.placement.decider import slowdown  # as it is, whatever is left out of the decider
from ort_gpu_ep.utilization import SLEEPS_S, Load, Uses

CORES, BUDGET_S, WAKES_S, PERIOD_S, SMOOTHING_S = 16, 0.5, 0.4, 0.1, 0.25
"""The last two: of the sampler's readings."""

NOISE, SPIKES, BENDS = 0.04, 0.004, 0.08
"""Standard deviations of the logarithm of a run's time, and of a size against its neighbours; part of the runs that
take 2 to 5 times."""

AWAKE_BY = 0.2
"""Load by others that keeps the clock up."""

ON_GPU = {"cpu": 0.0, "gpu": 1.0, "cut": 0.5}
H200, IN_STEPS = ((SLEEPS_S, 2.4), (0.1, 4.8)), ((SLEEPS_S, 1.4), (0.3, 6.0))
"""(rest in s, how many times as long the GPU takes after it): as measured, and one whose clock sinks in two steps."""

STALLS, STALL_S, TURN_S = 0.03, 40e-3, 0.2e-3
"""Runs beside others: how many wait for threads that spin, if one of them is on the CPU, for how long; and what each
costs Python."""

Sides = Mapping[str, tuple[float, float]]
GPU_WINS: Sides = {"cpu": (5.0, 0), "gpu": (2.0, 0), "cut": (3.0, 0)}
CPU_WINS: Sides = {"cpu": (2.0, 0), "gpu": (3.0, 0), "cut": (2.6, 0)}
CLOSE: Sides = {"cpu": (3.0, 0), "gpu": (2.2, 0), "cut": (2.7, 0)}
ENCODER: Sides = {"cpu": (1.2, 27.0), "gpu": (2.4, 3.0), "cut": (2.2, 12.0)}
FOUR = {
    m: {"cpu": (c, 0.0), "gpu": (g, 0.0)}
    for m, c, g in (("squeezenet", 1.4, 0.28), ("mobilenet", 1.7, 0.37), ("encoder", 6.9, 0.45), ("lstm", 0.15, 0.17))
}
AT_TIMES = partial(lambda high, begin_s, end_s, now_s: high if begin_s <= now_s < end_s else 0.0)


class Scenario(NamedTuple):
    """sides: milliseconds of each candidate, and microseconds for a unit of work. work: of run i. pause: seconds before
    it. gpu, cpu: load by others over time, which trembles by so much; runs take the model's slowdown to the power of
    `suffers`. failing: when the GPU fails. stalls: part of its runs that take 3 times as long. first_ms: of a new size
    there. misjudged: how wrong the race was about it."""

    sides: Sides = GPU_WINS
    work: Callable[[int, random.Random], float] = lambda i, rng: 1.0
    pause: Callable[[int, float], float] = lambda i, now_s: 0.0
    gpu: Callable[[float], float] = lambda now_s: 0.0
    cpu: Callable[[float], float] = lambda now_s: 0.0
    tremble: float = 0.0
    suffers: float = 1.0
    failing: tuple[float, float] = (math.inf, math.inf)
    stalls: float = 0.0
    first_ms: float = 0.0
    misjudged: float = 1.0
    deadline_s: float = 0.0
    asleep: tuple[tuple[float, float], ...] = H200
    models: Mapping[str, Sides] = {}
    seconds: float = 15.0


SCENARIOS = {
    "one size, GPU better": Scenario(),
    "one size, CPU better": Scenario(CPU_WINS),
    "one size, near tie": Scenario({"cpu": (3.0, 0), "gpu": (2.9, 0), "cut": (3.1, 0)}),
    "200 sizes": Scenario(ENCODER, lambda i, rng: 8.0 * rng.randint(1, 200), first_ms=3.0, seconds=30),
    "sizes in blocks": Scenario(
        ENCODER, lambda i, rng: (8.0, 128.0, 16.0, 96.0, 24.0, 64.0)[i // 1000 % 6], first_ms=3.0, seconds=45
    ),
    "new sizes only": Scenario(ENCODER, lambda i, rng: 10.0 + i / 2, first_ms=3.0, seconds=20),
    "same, small ones": Scenario(ENCODER, lambda i, rng: 60.0 + i / 50, first_ms=3.0, seconds=20),
    "same, nothing to compile": Scenario(ENCODER, lambda i, rng: 10.0 + i / 2, seconds=20),
    "a run a second": Scenario(pause=lambda i, now_s: 1.0, seconds=300),
    "a run in 0.2 s": Scenario(
        {"cpu": (9.9, 0), "gpu": (1.5, 0), "cut": (6.0, 0)}, pause=lambda i, now_s: 0.2, seconds=60
    ),
    "six quick runs a second": Scenario(pause=lambda i, now_s: 1.0 if i % 6 == 0 else 0.0, seconds=120),
    "rhythm that changes": Scenario(pause=lambda i, now_s: (0.0, 0.15, 1.0)[int(now_s / 20) % 3], seconds=140),
    "same, clock in two steps": Scenario(
        pause=lambda i, now_s: (0.0, 0.15, 1.0)[int(now_s / 20) % 3], asleep=IN_STEPS, seconds=140
    ),
    "GPU loaded for 30 s": Scenario(gpu=partial(AT_TIMES, 0.9, 5, 35), seconds=45),
    "same, it suffers little": Scenario(gpu=partial(AT_TIMES, 0.9, 5, 35), suffers=0.2, seconds=45),
    "same, it suffers more": Scenario(CLOSE, gpu=partial(AT_TIMES, 0.25, 5, 35), suffers=3.0, seconds=45),
    "CPU loaded for 30 s": Scenario(CPU_WINS, cpu=partial(AT_TIMES, 0.85, 5, 35), seconds=45),
    "load that trembles": Scenario(CLOSE, gpu=lambda now_s: 0.27, tremble=0.2, seconds=60),
    "load each 4 s": Scenario(gpu=lambda now_s: 0.9 * (int(now_s / 4) % 2), seconds=40),
    "four models, eight threads": Scenario(models=FOUR, seconds=6),
    "GPU that fails twice": Scenario(failing=(5.0, 6.5), seconds=30),
    "GPU that fails for 20 s": Scenario(failing=(5.0, 25.0), seconds=60),
    "deadline, GPU stalls": Scenario({"cpu": (13.0, 0), "gpu": (10.0, 0)}, stalls=0.2, deadline_s=16e-3, seconds=60),
    "race that misjudged": Scenario(CLOSE, misjudged=1.5),
    "same, slow, for two hours": Scenario(
        {"cpu": (300.0, 0), "gpu": (220.0, 0), "cut": (270.0, 0)}, misjudged=1.5, seconds=7200
    ),
}


@dataclass
class Machine:
    """A GPU that takes runs in turn and sleeps, cores that runs share, others who load both. rests: when the GPU worked
    last, for how long, and how slow it is until it has for long enough; met: sizes that it has compiled. Both also as
    if all runs were there."""

    scenario: Scenario
    rng: random.Random
    now_s: float = 0.0
    uses: Uses = field(default_factory=Uses)
    load: Load = field(default_factory=lambda: Load(0.0, 0.0, CORES, "simulated", 0.0))
    gpu_free_s: float = 0.0
    python_free_s: float = 0.0
    on_cpu: int = 0
    rests: dict[bool, tuple[float, float, float]] = field(
        default_factory=lambda: dict.fromkeys((False, True), (0.0, 10.0, 1.0))
    )
    met: dict[bool, set[float]] = field(default_factory=lambda: {False: set(), True: set()})

    def read(self) -> Load:
        """The sampler's latest reading."""
        while self.now_s - self.load.when_s >= PERIOD_S:
            at_s, part = self.load.when_s + PERIOD_S, 1.0 - math.exp(-PERIOD_S / SMOOTHING_S)
            gpu, cpu = (
                old + part * (min(max(of(at_s) + self.rng.uniform(-1.0, 1.0) * self.scenario.tremble, 0.0), 1.0) - old)
                for old, of in ((self.load.gpu or 0.0, self.scenario.gpu), (self.load.cpu, self.scenario.cpu))
            )
            self.load = Load(gpu, cpu, CORES, "simulated", at_s)
        return self.load

    def slow(self, oracle: bool) -> float:
        """Of the GPU, by its clock: since it last worked for long enough, the deepest rest counts."""
        used_s, worked_s, factor = self.rests[oracle]
        found = max((f for rest_s, f in self.scenario.asleep if self.now_s - used_s > rest_s), default=1.0)
        if found > 1.0:
            self.rests[oracle] = used_s, (worked_s := 0.0), (factor := found)
        return 1.0 if worked_s >= WAKES_S or self.scenario.gpu(self.now_s) > AWAKE_BY else factor

    def seconds(
        self, sides: Sides, name: str, work: float, luck: tuple[float, float], oracle: bool = False
    ) -> tuple[float, float]:
        """(on the cores, on the GPU), of a run that begins now."""
        scenario, share = self.scenario, ON_GPU[name]
        now = Load(scenario.gpu(self.now_s), scenario.cpu(self.now_s), CORES, "", 0.0)
        took_s = (sides[name][0] * 1e-3 + sides[name][1] * 1e-6 * work) * bend(name, work) * luck[0]
        first_s = scenario.first_ms * 1e-3 if share and work not in self.met[oracle] else 0.0
        on_cpu = max(self.on_cpu, 1) * slowdown("cpu", now, CORES, False) ** scenario.suffers
        on_gpu = self.slow(oracle) * slowdown("gpu", now, CORES, False) ** scenario.suffers
        return took_s * (1.0 - share) * on_cpu + first_s, took_s * share * on_gpu * (
            3.0 if luck[1] < scenario.stalls else 1.0
        )

    def worked(self, oracle: bool, seconds: float, end_s: float, work: float) -> None:
        _, worked_s, factor = self.rests[oracle]
        self.rests[oracle] = end_s, worked_s + seconds, factor
        self.met[oracle].add(work)

    def fails(self, name: str) -> bool:
        return name != "cpu" and self.scenario.failing[0] <= self.now_s < self.scenario.failing[1]


@cache
def bend(name: str, work: float) -> float:
    return math.exp(random.Random(f"{name} {work}").gauss(0.0, BENDS)) if work != 1.0 else 1.0


class Decider:
    """A session's."""

    def __init__(self, machine: Machine, sides: Sides, work: float, model: str) -> None:
        scenario = machine.scenario
        self.timed_s = {
            name: (base * 1e-3 + each * 1e-6 * work)
            * bend(name, work)
            * math.exp(machine.rng.gauss(0.0, NOISE / 3))
            * (scenario.misjudged if name == "gpu" else 1.0)
            for name, (base, each) in sides.items()
        }
        host = decider.Host(
            CORES if not scenario.models else 1, CORES if not scenario.models else 1, False, scenario.deadline_s, True
        )
        self.decider, size = decider.Decider(machine.uses, BUDGET_S, host), estimate.Size(work, work)
        self.decider.grows |= {
            name: each * 1e-6 * work / self.timed_s[name] for name, (_, each) in sides.items() if name != "cpu"
        }
        for name, seconds in self.timed_s.items():
            self.decider.teach(size, name, seconds, 3, 0.0)
        self.decider.entry(work, lambda: work).seen = dict.fromkeys(sides, 1)

    def choose(self, work: float, now_s: float, load: Load, others: int) -> tuple[str, bool, Any]:
        """(candidate, whether it is tried only, what `end` is told)."""
        entry = self.decider.entry(work, lambda: work)
        name = self.decider.choose(entry, now_s, load, others)
        turn = self.decider.begin(entry, name, now_s, load)
        return name, turn.trial, turn

    def end(self, turn: Any, name: str, seconds: float, now_s: float, well: bool) -> None:
        if not well:
            self.decider.failed(name, now_s)
        elif self.decider.left_out:
            self.decider.succeeded(name)
        self.decider.end(turn, seconds, now_s, well)


class Winner(Decider):
    """What won the race, for ever."""

    def choose(self, work: float, now_s: float, load: Load, others: int) -> tuple[str, bool, Any]:
        return min(self.timed_s, key=lambda name: self.timed_s[name]), False, None

    def end(self, turn: Any, name: str, seconds: float, now_s: float, well: bool) -> None:
        return


class Fixed(Winner):
    """The candidate that each model is given."""

    def __init__(self, names: Mapping[str, str], machine: Machine, sides: Sides, work: float, model: str) -> None:
        self.timed_s = {names[model]: 0.0}


class Ran(NamedTuple):
    model: str
    work: float
    name: str
    trial: bool
    seconds: float
    oracle_s: float
    when_s: float


def played(scenario: Scenario, seed: int, made: Callable[[Machine, Sides, float, str], Any]) -> list[Ran]:
    """The runs of a session, or of a session for each model and eight threads; `made` makes what decides."""
    machine, rng, models = (
        Machine(scenario, random.Random(seed + 99)),
        random.Random(seed),
        scenario.models or {"": scenario.sides},
    )
    first = scenario.work(0, rng)
    for known in machine.met.values():
        known.add(first)
    machine.uses.begin(-9.0), machine.uses.end(0.0)
    deciders = {model: made(machine, sides, first, model) for model, sides in models.items()}
    threads, ran, runs = 8 if scenario.models else 1, list[Ran](), 0
    waiting: list[tuple[float, int, Any]] = [(i * 1e-5, i, None) for i in range(threads)]
    while waiting:
        machine.now_s, i, over = heapq.heappop(waiting)
        model = list(models)[i % len(models)]
        if over is not None:
            run, begin_s, told, well = over
            machine.on_cpu -= run.name == "cpu"
            deciders[model].end(told, run.name, machine.now_s - begin_s, machine.now_s, well)
            ran.append(run._replace(seconds=machine.now_s - begin_s, when_s=machine.now_s))
            heapq.heappush(waiting, (machine.now_s + scenario.pause(runs, machine.now_s), i, None))
        elif machine.now_s < scenario.seconds:
            heapq.heappush(
                waiting,
                begun(
                    machine,
                    deciders[model],
                    models[model],
                    i,
                    scenario.work(runs, rng),
                    rng,
                    sum(o is not None for *_, o in waiting),
                    model,
                ),
            )
            runs += 1
    return ran


def begun(
    machine: Machine,
    decider: Any,
    sides: Sides,
    i: int,
    work: float,
    rng: random.Random,
    others: int,
    model: str,
) -> tuple[float, int, Any]:
    """(when it is over, thread, the run) of a run that begins now."""
    luck = math.exp(rng.gauss(0.0, NOISE)) * (rng.uniform(2.0, 5.0) if rng.random() < SPIKES else 1.0), rng.random()
    always_s = {name: machine.seconds(sides, name, work, luck, oracle=True) for name in sides}
    able = [sum(s) for name, s in always_s.items() if not machine.fails(name)]
    machine.worked(True, always_s["gpu"][1], machine.now_s + min(able), work)
    name, trial, told = decider.choose(work, machine.now_s, machine.read(), others)
    machine.on_cpu += name == "cpu"
    cpu_s, gpu_s = machine.seconds(sides, name, work, luck)
    end_s = machine.now_s + cpu_s
    if machine.scenario.models:
        machine.python_free_s = max(machine.python_free_s, machine.now_s) + TURN_S
        end_s = machine.python_free_s + cpu_s
    if gpu_s:
        machine.gpu_free_s = max(machine.gpu_free_s, end_s) + gpu_s
        end_s = machine.gpu_free_s
        machine.worked(False, gpu_s, end_s, work)
    well = not machine.fails(name)
    end_s += (0.0 if well else sum(always_s["cpu"])) + (
        STALL_S if machine.on_cpu and others and luck[1] < STALLS else 0.0
    )
    return end_s, i, (Ran(model, work, name, trial, 0.0, min(able), 0.0), machine.now_s, told, well)
