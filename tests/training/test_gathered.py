"""A data set in the device's memory: the same bits as batches from the host, and next to nothing to bring there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.runtime import prepared, recording
from ort_gpu_ep.training import SGD, Progress, Trainer, gathered, resident
from tests.training import references
from tests.training.test_step import conv_bn, dropout_model
from tests.training.test_trainer import bits, points, trainer


def images(count: int = 11) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(count, 2, 3, 3)).astype("f"), rng.integers(0, 4, count)


def dropping(**changed: Any) -> Trainer:
    return Trainer(
        dropout_model(size=64),
        loss="mse",
        optimizer=SGD(0.1),
        trainable=["w"],
        options={"placement": "gpu"},
        seed=7,
        **changed,
    )


def convolution() -> Trainer:
    return Trainer(
        conv_bn(),
        loss="cross_entropy",
        optimizer=SGD(0.01),
        batch_norm="train",
        accumulate=2,
        options={"placement": "gpu"},
    )


FITS: dict[str, tuple[Callable[[], Trainer], Any, dict[str, Any]]] = {
    "classes": (trainer, points(43), {"batch": 8, "epochs": 3}),
    "weights": (trainer, points(21), {"batch": 8, "sample_weight": np.linspace(0, 1, 21), "shuffle": False}),
    "float64 and int32": (trainer, (points(9)[0].astype(float), points(9)[1].astype(np.int32)), {"batch": 4}),
    "two in a row": (lambda: fitted(trainer()), points(30), {"batch": 4}),
    "convolution": (convolution, images(), {"batch": 6, "epochs": 2}),
    "dropout": (dropping, (np.ones((5, 64), "f"), np.zeros((5, 64), "f")), {"batch": 2}),
}


def fitted(t: Trainer) -> Trainer:
    """Has taken steps from the host, and some of another data set."""
    t.step(*points(4))
    t.fit(*points(10), batch=4)
    return t


@pytest.mark.parametrize("name", FITS)
def test_it_gives_the_bits_of_batches_from_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, data, options = FITS[name]
    found = []
    for nbytes in (gathered.NBYTES, 0):
        monkeypatch.setattr(gathered, "NBYTES", nbytes)
        t = make()
        found.append((t.fit(*data, **options), bits(t)))
        assert ("the device holds the data set" if nbytes else "each step's batch comes from the host") in t.explain()
    assert found[0] == found[1]


def test_a_step_brings_the_numbers_of_its_samples_and_the_optimizers() -> None:
    x, y = points(80)
    t = trainer()
    t.fit(x, y, batch=8)
    t._engine.journal.since = time.perf_counter() + 1e6  # no snapshot while we count
    before = t.stats()
    t.fit(x, y, batch=8)  # the same samples: they are there
    after = t.stats()
    moved = {k: after[k] - before[k] for k in before if k.endswith("_nbytes")}
    assert moved["host_to_device_nbytes"] == 10 * (8 * 4 + 12)  # a step: 8 numbers of samples, three of Adam
    assert moved["device_to_host_nbytes"] == 10 * 4
    assert moved["device_to_device_nbytes"] == moved["weights_nbytes"] == 0
    t.fit(x + 1, y, batch=8)
    assert t.stats()["host_to_device_nbytes"] - after["host_to_device_nbytes"] > x.nbytes


def test_in_the_steady_state_no_bind_group_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = points(50)
    t = trainer()
    t.fit(x, y, batch=8, epochs=4)
    made, encode = list[str](), recording.encode
    monkeypatch.setattr(prepared, "bind_group", lambda *a, **k: made.append("group"))
    monkeypatch.setattr(recording, "encode", lambda *a, **k: made.append("recording") or encode(*a, **k))
    t._engine.journal.since = time.perf_counter() + 1e6
    t.fit(x, y, batch=8, epochs=3)
    assert "group" not in made
    # a step; in each epoch one or two times the gathering of the next batches; ten ahead
    assert len(made) <= 21 + 2 * 3 + 10


@pytest.mark.parametrize("held", [False, True])
def test_what_a_step_asks_of_the_host(held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one call of onnxruntime; while the GPU is busy, one submission for ten steps, and one to read their
    losses."""
    monkeypatch.setattr(gathered, "NBYTES", gathered.NBYTES if held else 0)
    monkeypatch.setattr(resident, "SUBMISSION_S", 1e6)
    x, y = points(80)
    t = trainer()
    t.fit(x, y, batch=8, epochs=2)
    finished, gpu = Gpu.finished, t._engine.resident._gpu
    monkeypatch.setattr(Gpu, "finished", lambda self, arrival: arrival is not None and finished(self, arrival))
    monkeypatch.setattr(t._engine.resident.session, "run_with_iobinding", None)
    t._engine.journal.since = time.perf_counter() + 1e6
    before = replace(gpu.stats)
    t.fit(x, y, batch=8, epochs=3)
    assert gpu.stats.submits - before.submits == 3 * 2
    # the optimizer's numbers, and samples or their numbers
    assert gpu.stats.uploads - before.uploads == 3 * (11 if held else 30)
    # losses; whether the numbers were in range
    assert gpu.stats.downloads - before.downloads == 3 * (11 if held else 10)


@pytest.mark.usefixtures("brief_hangs")
@pytest.mark.parametrize("fault", ["lost@4", "lost@9,lost@14", "lost@20", "hang@6"])
def test_a_failing_device_loses_nothing(fault: str) -> None:
    """lost@20: while ten losses are on their way, whose places later steps have taken."""
    x, y = points(66)
    runs = []
    for options in ({}, {"faults": f"{fault};seed=1"}):
        t = trainer(model=references.mlp(), options=options)
        runs.append((t.fit(x, y, batch=4, epochs=2), bits(t)))
        assert "the device holds the data set" in t.summary()
    assert runs[0] == runs[1]
    assert t.stats()["renewals"] >= fault.count("@")


def test_where_there_is_no_memory_for_it_the_host_feeds() -> None:
    x, y = points(30)
    t, plain = trainer(options={"faults": "oom@7;seed=1"}), trainer()
    for made in (t, plain):
        made.fit(x, y, batch=4, epochs=2)
    assert "each step's batch comes from the host: with the data set there was no memory left" in t.explain()
    assert bits(t) == bits(plain)


def test_users_may_change_their_arrays_meanwhile() -> None:
    data, plain = points(30), trainer()
    x, y = data[0].copy(), data[1].copy()
    t = trainer(options={"faults": "lost@11;seed=1"})

    def spoil(progress: Progress) -> None:
        x[:] = y[:] = 0

    t.fit(x, y, batch=4, on_step=spoil)
    plain.fit(*data, batch=4)
    for made in (t, plain):
        made.fit(*points(12), batch=4)
    assert t.stats()["renewals"] == 1
    assert bits(t) == bits(plain)


def test_a_wrong_class_anywhere_is_said_before_the_first_step() -> None:
    x, y = points(30)
    y[29] = 3
    t = trainer()
    with pytest.raises(TrainingError, match=r"labels: got 3 at \[29\], expected 0 to 2"):
        t.fit(x, y, batch=4, shuffle=False)
    assert t.steps == 0
    t.fit(*points(4), batch=4)
    with pytest.raises(TrainingError, match="got 8 samples, but the steps of this trainer are for 4"):
        t.fit(*points(30), batch=8)


def test_how_much_it_may_take() -> None:
    sizes, mib = {"x": 6 << 20, "y": 2 << 20}, 1 << 20
    assert gathered.too_large(sizes, mib, 0, 1 << 30) == ""
    assert gathered.too_large(sizes, mib, 36 * mib, 1 << 30) == ""
    assert gathered.too_large(sizes, mib, 35 * mib, 1 << 30) == (
        "the data set and the next batches of it have 9.0 MiB, they may take 8.8 MiB (a quarter of memory_limit_mb)"
    )
    assert gathered.too_large(sizes, mib, 0, 5 * mib) == "'x' has 6.0 MiB, a kernel of this adapter reads 5.0 MiB"
    assert "(of a device whose memory_limit_mb is not given)" in gathered.too_large(
        {"x": gathered.NBYTES}, 1, 0, 1 << 40
    )


def test_batches_that_would_take_more_than_the_data_set_count(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = points(40)
    nbytes = x.nbytes + y.nbytes
    t = trainer()
    for batches, why in ((9, "each step's batch comes from the host"), (10, "the device holds the data set")):
        monkeypatch.setattr(gathered, "NBYTES", nbytes * (1 + batches))
        t.fit(x, y, batch=40)
        assert why in t.explain()
