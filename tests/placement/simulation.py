"""A machine that runs a Decider: time passes by what the runs take, and a GPU that has rested is slow until it has
worked for a while."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ort_gpu_ep.placement.decider import LAW, LAW_S, Decider
from ort_gpu_ep.placement.estimate import Size
from ort_gpu_ep.utilization import Uses

Truth = Callable[[float], float]


def line(base_ms: float, each_us: float) -> Truth:
    """Seconds over work: base + each x work."""
    return lambda work: base_ms * 1e-3 + each_us * 1e-6 * work


def uneven(truth: Truth, works: Sequence[float], spread: float, rng: random.Random) -> Truth:
    """The same, but that each size is faster or slower than its neighbours promise. spread: of the logarithm."""
    factors = {work: math.exp(rng.gauss(0.0, spread)) for work in works}
    return lambda work: truth(work) * factors[work]


@dataclass
class Machine:
    """truth: steady seconds of each candidate over the work. first_s: what a size's first run takes besides. asleep:
    how many times as long the GPU takes after a pause of 0.1 s, until it has worked for wakes_s. disturbed: part of the
    runs that take up to 2.5 times as long. fails: candidates whose runs don't count."""

    truth: dict[str, Truth]
    budget_s: float = 0.5
    noise: float = 0.02
    disturbed: float = 0.0
    asleep: float = 1.0
    wakes_s: float = 0.4
    first_s: dict[str, float] = field(default_factory=lambda: {"cpu": 0.0, "gpu": 5e-3})
    sleeps: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self.decider, self.rng, self.now_s = Decider(Uses(self.sleeps), self.budget_s), random.Random(self.seed), 1000.0
        self.used_s, self.worked_s = self.now_s, 10.0
        self.compiled: set[tuple[str, float]] = set()
        self.fails: set[str] = set()
        self.ran: list[tuple[float, str, float]] = []

    def race(self, work: float) -> None:
        """What a session begins with: both sides measured at one size, and the GPU awake."""
        for name, truth in self.truth.items():
            self.decider.teach(Size(work, work), name, truth(work), 3, self.now_s)
            self.compiled.add((name, work))
        self.used_s, self.worked_s = self.now_s, 10.0
        self.decider.rhythm.uses.begin(self.now_s - 2.0)
        self.decider.rhythm.uses.end(self.now_s)

    def seconds(self, name: str, work: float) -> float:
        if name == "gpu":
            self.worked_s = 0.0 if self.now_s - self.used_s > 0.1 else self.worked_s
        slow = self.asleep if name == "gpu" and self.worked_s < self.wakes_s else 1.0
        took_s = self.truth[name](work) * slow * (1.0 + abs(self.rng.gauss(0.0, self.noise)))
        if self.rng.random() < self.disturbed:
            took_s *= 1.0 + 1.5 * self.rng.random()
        if (name, work) not in self.compiled:
            self.compiled.add((name, work))
            took_s += self.first_s[name]
        return took_s

    def run(self, work: float, pause_s: float = 0.0) -> str:
        self.now_s += pause_s
        entry = self.decider.entry(work, lambda: work)
        name = self.decider.choose(entry, self.now_s)
        turn = self.decider.begin(entry, name, self.now_s)
        took_s = self.seconds(name, work)
        self.now_s += took_s
        if name == "gpu":
            self.used_s, self.worked_s = self.now_s, self.worked_s + took_s
        if name in self.fails:
            self.decider.failed(name, self.now_s)
        elif self.decider.left_out:
            self.decider.succeeded(name)
        self.decider.end(turn, took_s, self.now_s, well=name not in self.fails)
        self.ran.append((work, name, took_s))
        return name

    def run_for(self, work: float, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.run(work)

    def others_use_the_gpu(self, work: float, seconds: float) -> None:
        """Another session of this process runs there."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.decider.rhythm.uses.begin(self.now_s)
            took_s = self.seconds("gpu", work)
            self.now_s += took_s
            self.used_s, self.worked_s = self.now_s, self.worked_s + took_s
            self.decider.rhythm.uses.end(self.now_s)

    def runs(self, work: float, times: int, pause_s: float = 0.0) -> Counter[str]:
        return Counter(self.run(work, pause_s) for _ in range(times))

    def better(self, work: float, factor: float = 1.0) -> set[str]:
        """The candidates that are within the law, where the GPU takes `factor` times as long as it does awake."""
        took_s = {name: truth(work) * (factor if name == "gpu" else 1.0) for name, truth in self.truth.items()}
        return {name for name, s in took_s.items() if s <= LAW * min(took_s.values()) + LAW_S}
