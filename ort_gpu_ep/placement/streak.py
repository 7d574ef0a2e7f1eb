"""Fast path for quick runs of one size on one candidate: no new decision, and their times are recorded together."""

from __future__ import annotations

from dataclasses import dataclass, field

from ort_gpu_ep.placement.candidates import Candidate
from ort_gpu_ep.placement.learner import STEADY, Entry, Turn
from ort_gpu_ep.placement.policy import Policy
from ort_gpu_ep.placement.rhythm import CONCURRENT
from ort_gpu_ep.utilization import SLEEPS_S, Load

MOST = 16
"""Runs that are filed together: what follows from them comes so much later, and 15 of 16 runs don't pay for it."""


@dataclass(eq=False, slots=True)
class Streak:
    """turn, load, policy: of the run that it begins with, at whose reading of the load nothing changes. most: runs that may follow.

    seconds: of those that did and are not filed yet. ended_s: the end of the latest.
    """

    candidate: Candidate
    turn: Turn
    load: Load
    policy: Policy | None
    most: int
    ended_s: float
    seconds: list[float] = field(default_factory=list)

    @staticmethod
    def after(candidate: Candidate, turn: Turn, load: Load, policy: Policy | None, ended_s: float) -> Streak | None:
        """None where the run was a trial, or of another rhythm, or where the next run asks for a decision."""
        entry = turn.entry
        most = min(MOST, entry.think_at - entry.runs - 1)
        same = turn.name == candidate.name and not turn.trial and turn.rest in STEADY and turn.awake
        if most < 1 or not same or (policy is not None and policy.current != turn.name):
            return None
        return Streak(candidate, turn, load, policy, most, ended_s)

    def goes_on(self, entry: Entry, load: Load, others: int, now_s: float) -> bool:
        """Whether a run that begins now needs no decision. others: how many runs other threads have under way."""
        return (entry is self.turn.entry and load is self.load and now_s - self.ended_s < SLEEPS_S and len(self.seconds) < self.most
                and (not others or self.turn.rest == CONCURRENT))

    def taken(self) -> list[float]:
        """The seconds that are to be filed; nobody else gets them."""
        seconds, self.seconds = self.seconds, []
        self.most -= len(seconds)
        return seconds
