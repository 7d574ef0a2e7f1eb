"""Moves training between GPU and CPU by the load, by the decider of inference."""

from __future__ import annotations

from collections.abc import Mapping

from ort_gpu_ep.config import Config
from ort_gpu_ep.placement import GPU
from ort_gpu_ep.placement.decider import WORST, Decider, Host
from ort_gpu_ep.processes import known as processes
from ort_gpu_ep.session.opening import sampler_for
from ort_gpu_ep.utilization import UNKNOWN, Load, Uses


class Mover:
    """Follows the load between steps.

    A step's seconds are those that the user's thread spends on it, the wait for its loss included: what the GPU does
    meanwhile costs nobody time. They are known once losses are read.
    """

    def __init__(self, timed_s: Mapping[str, float], config: Config) -> None:
        """timed_s: of a step on each side, under the load of just now."""
        self.sampler, software = sampler_for(config)
        cores = processes.physical_cores()
        host = Host(cores, cores, software, watched=True)
        self._load, self._spent_s, self._steps = self._latest(), 0.0, 0
        # with no budget for trials: they would take the weights along
        self._decider = Decider(Uses(sleeps=False), 0.0, host)
        self._step = self._decider.entry("a step", lambda: 1.0)
        for side, seconds in timed_s.items():
            self._decider.teach(self._step.size, side, seconds / host.slowdown(side, self._load), 1, 0.0)
            self._step.seen[side] = 1
        self._decider.decide(self._step, 0.0)
        self._step.place.choice = min(timed_s, key=lambda side: timed_s[side])

    def _latest(self) -> Load:
        return self.sampler.latest if self.sampler is not None else UNKNOWN

    @property
    def why(self) -> str:
        return self._step.place.why

    def side(self) -> str:
        """Where the next step is to run."""
        self._load = self._latest()
        return self._decider.choose(self._step, 0.0, self._load)

    def stepped(self, side: str, seconds: float) -> None:
        """A step is on its way after so long."""
        self._spent_s, self._steps = self._spent_s + seconds, self._steps + 1
        if self.sampler is not None and side == GPU:
            self.sampler.used(self._step.idle_s[GPU])

    def waited(self, side: str, seconds: float) -> None:
        """The steps so far are done, after so long."""
        if self._steps:
            turn = self._decider.begin(self._step, side, 0.0, self._load)
            self._decider.end(turn, (self._spent_s + seconds) / self._steps, 0.0)
        self.forget()

    def forget(self) -> None:
        """What was spent so far is no step's."""
        self._spent_s, self._steps = 0.0, 0


def comparable(timed_s: Mapping[str, float]) -> bool:
    """Whether the slower side may be the faster one under some load."""
    return max(timed_s.values()) < WORST * min(timed_s.values())
