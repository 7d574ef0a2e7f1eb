"""Steps move between GPU and CPU as the load is told, and the state with them, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.errors import DeviceLostError
from ort_gpu_ep.training import Adam, Trainer
from ort_gpu_ep.training.engine import Engine
from ort_gpu_ep.training.resident import Resident
from ort_gpu_ep.utilization import Load
from tests.training import references
from tests.training.test_step import batches
from tests.training.test_trainer import bits, points, trainer

IDLE_S = {"cpu": 0.002, "gpu": 0.001}


@dataclass
class Told:
    """A machine whose load and whose clock are told: a GPU is shared in turn, a CPU has cores to spare."""

    gpu: float | None = 0.0
    side: str = "gpu"
    now_s: float = 100.0
    used_s: list[float] = field(default_factory=list)

    @property
    def latest(self) -> Load:
        """Each look finds a new reading, one second later."""
        self.now_s += 1.0
        return Load(self.gpu, 0.0, 8, "told", self.now_s)

    def used(self, seconds: float) -> None:
        self.used_s.append(seconds)

    def clock(self) -> float:
        """Half a step goes by until it is on its way, half of it in the wait for its loss."""
        self.now_s += 0.5 * IDLE_S[self.side] / (1.0 if self.side == "cpu" else 1.0 - (self.gpu or 0.0))
        return self.now_s


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    machine, run = Told(), Resident.run

    def running(self: Resident, batch: Any) -> Any:
        machine.side = "gpu" if self.on_gpu else "cpu"
        return run(self, batch)

    monkeypatch.setattr("ort_gpu_ep.training.moving.sampler_for", lambda config: (machine, False))
    monkeypatch.setattr("ort_gpu_ep.processes.known.physical_cores", lambda: 4)
    monkeypatch.setattr("ort_gpu_ep.training.engine.clock", machine.clock)
    monkeypatch.setattr(
        "ort_gpu_ep.training.engine._timed", lambda resident, carried: IDLE_S["gpu" if resident.on_gpu else "cpu"]
    )
    monkeypatch.setattr(Resident, "run", running)
    return machine


def auto(**changed: Any) -> Trainer:
    return trainer("auto", model=references.mlp(), optimizer=Adam(0.02), options={"adapter": "software"}, **changed)


def steps(t: Trainer, data: list[Any], machine: Told, loads: list[float | None]) -> list[str]:
    """A step at each load, read at once; where each ran."""
    where = []
    for (x, y), load in zip(data, loads, strict=True):
        machine.gpu = load
        float(t.step(x, y))
        where.append(t.stats()["placement"])
    return where


BUSY = [0.0] * 4 + [0.9] * 6 + [0.0] * 8


@pytest.mark.parametrize("accumulate", [1, 4])
def test_steps_leave_a_busy_gpu_and_come_back(accumulate: int, told: Told, tmp_path: Path) -> None:
    """The same as stopping, and going on from a checkpoint on the other side."""
    data, t = batches(len(BUSY)), auto(accumulate=accumulate)
    where = steps(t, data, told, BUSY)
    first, last = where.index("cpu"), len(where) - where[::-1].index("cpu")
    assert 4 < first < 10 < last < len(where)
    assert where == ["gpu"] * first + ["cpu"] * (last - first) + ["gpu"] * (len(where) - last)
    assert t.stats()["moves"] == 2
    assert "GPU load" in t.explain()
    assert told.used_s == pytest.approx([IDLE_S["gpu"]] * where.count("gpu"))
    other = trainer(where[0], model=references.mlp(), optimizer=Adam(0.02), accumulate=accumulate)
    for k, (x, y) in enumerate(data):
        if k and where[k] != where[k - 1]:
            other.save(tmp_path / "t")
            other = trainer(where[k], model=references.mlp(), optimizer=Adam(0.02), accumulate=accumulate)
            other.load(tmp_path / "t")
        other.step(x, y)
    assert bits(t) == bits(other)


@pytest.mark.parametrize("load", [0.0, 0.3, None])
def test_they_stay_where_they_are_the_faster_ones(load: float | None, told: Told) -> None:
    where = steps(auto(), batches(10), told, [load] * 10)
    assert where == ["gpu"] * 10


def test_a_side_that_is_never_the_faster_one_is_let_go(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(IDLE_S, "cpu", 0.021)
    t = auto()
    assert steps(t, batches(10), told, [0.99] * 10) == ["gpu"] * 10
    assert t._engine._other is None


def test_fit_and_evaluation_go_along(told: Told) -> None:
    x, y = points(32)
    t = auto()
    before = t.evaluate(x, y)

    def busy(progress: Any) -> None:
        told.gpu = 0.9 if 8 <= progress.step < 24 else 0.0

    history = t.fit(x, y, batch=8, epochs=10, on_step=busy, validation=(x, y))
    assert t.stats()["moves"] == 2
    assert history[-1]["loss"] < history[0]["loss"]
    assert history[-1]["validation_loss"] < before["loss"]
    assert "the device holds the data set" in t.summary()


def test_place_times_anew_and_goes_on_from_there(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    t = auto()
    steps(t, batches(3), told, [0.0] * 3)
    residents = {id(t._engine.resident), id(t._engine._other)}
    monkeypatch.setitem(IDLE_S, "gpu", 0.005)
    before = bits(t)
    assert t.place() == "cpu"
    assert bits(t) == before
    assert {id(t._engine.resident), id(t._engine._other)} == residents  # no session is made anew


def test_a_gpu_that_is_gone_when_steps_come_back_leaves_them_on_the_cpu(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, t, open_one, write = batches(len(BUSY)), auto(), Resident.__init__, Resident.write

    def lost(self: Resident, carried: Any) -> None:
        if self.on_gpu:
            raise DeviceLostError("gone")
        write(self, carried)

    def none_left(self: Resident, step: Any, options: Any, carried: Any) -> None:
        if options["placement"] == "gpu":
            raise DeviceLostError("gone")
        open_one(self, step, options, carried)

    steps(t, data[:10], told, BUSY[:10])
    assert t.stats()["placement"] == "cpu"
    monkeypatch.setattr(Resident, "write", lost)
    monkeypatch.setattr(Resident, "__init__", none_left)
    assert steps(t, data[10:], told, BUSY[10:]) == ["cpu"] * 8
    assert "the GPU failed, and there is no other" in t.explain()
    assert np.isfinite(t.parameters()["w0"]).all()


def test_a_step_without_a_mover_looks_at_no_load() -> None:
    t = trainer("cpu")
    t.step(*points(4))
    assert isinstance(t._engine, Engine)
    assert t._engine._mover is None
