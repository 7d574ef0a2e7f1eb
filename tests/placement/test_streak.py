"""Runs in quick succession are filed together, and that changes nothing but when they are."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from ort_gpu_ep.placement import CPU, GPU
from ort_gpu_ep.placement import runner as runner_module
from ort_gpu_ep.placement.candidates import Candidate
from ort_gpu_ep.placement.decider import Decider, Host, Place
from ort_gpu_ep.placement.estimate import Size
from ort_gpu_ep.placement.runner import Runner
from ort_gpu_ep.utilization import Load, Uses

RUN_S = {CPU: 8e-3, GPU: 1e-3}


class Machine:
    """A clock that runs and rests advance, and a session of it that learns. looks: how often a run was thought about on
    its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.now_s, self.fails, self.looks = 100.0, False, 0
        monkeypatch.setattr(runner_module, "time", SimpleNamespace(perf_counter=lambda: self.now_s))
        monkeypatch.setattr(runner_module, "MOST", most)
        self.decider = decider = Decider(Uses(), 0.5, Host(8, 8, watched=True))
        self.entry = decider.entry((), lambda: 1.0)
        self.entry.ready = True
        for name, seconds in RUN_S.items():
            decider.teach(Size((), 1.0), name, seconds, 3, self.now_s)
            self.entry.seen[name] = 1
        decider.decide(self.entry, self.now_s)
        self.runner: Any = object.__new__(Runner)
        self.load = Load(0.0, 0.0, 8, "a test", 1.0)
        made = {name: Candidate(name, SimpleNamespace(run=lambda *a, name=name: self.run(name))) for name in RUN_S}
        vars(self.runner).update(
            config=SimpleNamespace(deadline_ms=0),
            sampler=SimpleNamespace(latest=self.load, used=lambda s: None),
            candidates=SimpleNamespace(ready=made.get),
            front=made[CPU],
            _decisions=None,
            _last=None,
            _used_s={},
            _tidy_s=1e9,
            runs=Counter(),
            _streak=None,
            _filing=threading.Lock(),
            chooser=SimpleNamespace(decider=decider, entry=lambda feeds: self.entry, check_due=lambda *a: False),
        )
        choose = self.runner._choose
        self.runner._choose = lambda *a: (setattr(self, "looks", self.looks + 1), choose(*a))[1]

    def run(self, name: str) -> str:
        self.now_s += RUN_S[name]
        if self.fails:
            raise ValueError("of the model")
        return name

    def ask(self, times: int, rest_s: float = 1e-5) -> list[str]:
        answers = []
        for _ in range(times):
            self.now_s += rest_s
            answers.append(self.runner.run(None, {}, None))
        return answers

    def known(self) -> dict[str, Any]:
        self.runner._file()
        histogram = self.decider.as_dict(self.entry)["candidates"]
        assert isinstance(histogram, dict)
        return {
            "runs": self.entry.runs,
            "seen": dict(self.entry.seen),
            "total": round(self.decider.total_s, 9),
            "waking": round(self.decider.waking_s, 9),
            "histogram": histogram[GPU],
            "rest": self.decider.rhythm.rest,
        }


def test_the_same_is_known_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, together = (Machine(monkeypatch, most) for most in (0, 16))
    found = []
    for machine, most in ((alone, 0), (together, 16)):
        monkeypatch.setattr(runner_module, "time", SimpleNamespace(perf_counter=lambda machine=machine: machine.now_s))
        monkeypatch.setattr(runner_module, "MOST", most)
        machine.ask(2000)
        found.append(machine.known())
    assert found[0] == found[1]
    assert alone.looks == 2000
    assert together.looks < 1000 + 1000 / 8, "after 0.6 s in which the GPU wakes up"


def test_what_ends_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 16)
    assert set(machine.ask(1500)) == {GPU}

    def looks_of(times: int, **how: float) -> int:
        before = machine.looks
        machine.ask(times, **how)
        return machine.looks - before

    machine.runner._file()
    assert looks_of(17) == 1
    assert looks_of(2) == 1, "the 18th"
    assert looks_of(1, rest_s=0.2) == 1, "a rest"
    machine.ask(1500)
    machine.runner._file()
    assert looks_of(2) == 1
    machine.runner.sampler.latest = Load(0.0, 0.0, 8, "a test", 2.0)
    assert looks_of(1) == 1, "another reading of the load"
    machine.fails = True
    with pytest.raises(ValueError, match="of the model"):
        machine.ask(1)
    machine.fails = False
    assert looks_of(1) == 1, "a failure"


def test_none_after_a_trial_or_for_a_candidate_that_another_stands_in_for() -> None:
    entry = SimpleNamespace(think_at=100, runs=10)
    gpu = Candidate(GPU, None)

    def after(candidate: Candidate = gpu, choice: str = GPU, **turn: object) -> Any:
        given = {
            "entry": entry,
            "name": GPU,
            "rest": "busy",
            "awake": True,
            "trial": False,
            "place": Place(choice=choice),
            **turn,
        }
        return runner_module.Streak.after(candidate, SimpleNamespace(**given), 1.0)  # type: ignore[arg-type]

    assert after() is not None
    assert after(trial=True) is None
    assert after(awake=False) is None
    assert after(rest="") is None
    assert after(Candidate(CPU, None)) is None
    assert after(choice=CPU) is None, "it wants another one"
    entry.think_at = 11
    assert after() is None
