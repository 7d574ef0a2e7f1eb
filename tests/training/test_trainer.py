"""Trainer: it learns, keeps its state on the device, goes on after failures, and says what it can't do."""

from __future__ import annotations

import _thread
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import models
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.errors import DeviceLostError, OutOfDeviceMemoryError, TrainingError
from ort_gpu_ep.plugin import Turns
from ort_gpu_ep.runtime import prepared, recording
from ort_gpu_ep.training import SGD, Adam, Progress, Trainer, checkpoint, cosine
from tests.training import references
from tests.training.test_step import batches, conv_bn, dropout_model

SIDES = ["gpu", "cpu"]


def points(count: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that a line separates."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(count, 6)).astype("f")
    return x, (x @ rng.normal(size=(6, 3))).argmax(1)


def trainer(side: str = "gpu", **changed: Any) -> Trainer:
    arguments: dict[str, Any] = {
        "model": references.mlp(softmax=True),
        "loss": "cross_entropy",
        "optimizer": Adam(0.02),
        **changed,
    }
    return Trainer(arguments.pop("model"), options={"placement": side, **arguments.pop("options", {})}, **arguments)


def bits(t: Trainer) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in t._state().items()}


@pytest.mark.parametrize("side", SIDES)
def test_it_overfits(side: str) -> None:
    x, y = points(24)
    t = trainer(side, optimizer=Adam(0.1))
    history = t.fit(x, y, epochs=40, batch=12)
    assert history[-1]["loss"] < 0.05 < history[0]["loss"]
    assert t.evaluate(x, y)["accuracy"] == pytest.approx(1.0)
    np.testing.assert_array_equal(t.predict(x).argmax(1), y)
    assert t.stats()["placement"] == side


def test_twenty_steps_on_the_gpu_are_those_of_numpy() -> None:
    data = batches(20)
    t = trainer(model=references.mlp(), optimizer=SGD(0.1, 0.9))
    losses = [t.step(x, y) for x, y in data]
    want, weights = references.trajectory(references.mlp(), data, references.sgd(0.1, 0.9))
    np.testing.assert_allclose([float(loss) for loss in losses], want, atol=2e-6)
    for name, array in t.parameters().items():
        np.testing.assert_allclose(array, weights[name], atol=1e-5)


def test_a_step_moves_the_batch_and_the_loss_and_nothing_else() -> None:
    x, y = points(16)
    t = trainer()
    for _ in range(4):
        t.step(x, y)
    t._engine.journal.since = time.perf_counter() + 1e6  # no snapshot while we count
    before = t.stats()
    losses = [t.step(x, y) for _ in range(10)]
    after = t.stats()
    moved = {k: after[k] - before[k] for k in before if k.endswith("_nbytes")}
    assert moved["host_to_device_nbytes"] == 10 * (x.nbytes + y.nbytes + 12)  # 12: three numbers of Adam
    assert moved["device_to_host_nbytes"] == 0
    assert moved["device_to_device_nbytes"] == 0
    float(losses[-1])
    assert t.stats()["device_to_host_nbytes"] - after["device_to_host_nbytes"] == 40
    assert t.stats()["fallbacks"] == 0
    assert len(t._engine.resident.session.state.partitions) == 1


@pytest.mark.parametrize("hold", [1, 3, 25])
def test_in_the_steady_state_a_step_makes_no_bind_group_and_one_recording(
    hold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hold: after so many steps their losses are read. From then on the next step is recorded while the host waits;
    further ones, if the GPU is at work for longer, which it is here said not to be.
    """
    made, recorded, (x, y) = list[str](), list[bool](), points(8)
    waiting = Turns.while_waiting
    monkeypatch.setattr(Gpu, "finished", lambda self, arrival: True)
    bind_group, encode = prepared.bind_group, recording.encode
    monkeypatch.setattr(prepared, "bind_group", lambda *a, **k: made.append("group") or bind_group(*a, **k))
    monkeypatch.setattr(recording, "encode", lambda *a, **k: recorded.append(False) or encode(*a, **k))

    def ahead(self: Turns) -> bool:
        before = len(recorded)
        found = waiting(self)
        recorded[before:] = [True] * (len(recorded) - before)
        return found

    monkeypatch.setattr(Turns, "while_waiting", ahead)
    t, held = trainer(), list[Any]()
    for step in range(50):
        if step == 25:
            t._engine.journal.since = time.perf_counter() + 1e6  # no snapshot while we count
            made.clear()
            recorded.clear()
        held.append(t.step(x, y))
        if len(held) == hold:
            float(held[-1])
            held.clear()
    assert not made
    assert len(recorded) == 25
    # where the host waits: losses are read after 10 steps at the latest
    assert sum(recorded) == {1: 25, 3: 8, 25: 3}[hold]


def test_values_that_share_their_memory_are_told_apart_again() -> None:
    """A copy on the device shares the memory of what it was copied from until one of them is written."""
    x, y = points(8)
    t, plain = trainer(), trainer()
    for _ in range(12):
        t.step(x, y)
        plain.step(x, y)
    resident = t._engine.resident
    values, before = list(resident.values.values()), list(resident.read().values())
    copies = [onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(a), *resident.device) for a in before]
    onnxruntime.copy_tensors(values, copies)
    for _ in range(12):
        t.step(x, y)
        plain.step(x, y)
    assert bits(t) == bits(plain)
    for copy, array in zip(copies, before, strict=True):
        np.testing.assert_array_equal(copy.numpy(), array)


def test_losses_that_nobody_reads_are_read_before_their_places_are_needed() -> None:
    data = batches(23)
    t = trainer(model=references.mlp(), optimizer=SGD(0.1, 0.9))
    losses = [t.step(x, y) for x, y in data]
    assert [loss.value is None for loss in losses] == [True] * 20 + [False] * 3
    want, _ = references.trajectory(references.mlp(), data, references.sgd(0.1, 0.9))
    np.testing.assert_allclose([float(loss) for loss in losses], want, atol=2e-6)


def test_short_batches_are_padded_not_compiled() -> None:
    x, y = points(10)
    whole, short = trainer(), trainer()
    short.step(x, y)
    whole.step(x, y)
    whole.step(x, y, np.array([1] * 3 + [0] * 7))
    short.step(x[:3], y[:3])
    assert bits(whole) == bits(short)
    assert len(short._engine.resident.session.state.partitions) == 1


@pytest.mark.parametrize("side", SIDES)
def test_resuming_equals_never_having_stopped(side: str, tmp_path: Path) -> None:
    x, y = points(30)
    one, two, three = (trainer(side, optimizer=Adam(cosine(0.05, 12)), seed=3) for _ in range(3))
    one.fit(x, y, epochs=4, batch=8)
    two.fit(x, y, epochs=2, batch=8)
    two.save(tmp_path / "t.safetensors")
    three.load(tmp_path / "t.safetensors")
    assert three.steps == two.steps == 8
    three.fit(x, y, epochs=2, batch=8)
    assert bits(three) == bits(one)
    three.load(tmp_path / "t.safetensors")  # also into one that has steps already
    assert bits(three) == bits(two)


def test_dropout_goes_on_where_it_was(tmp_path: Path) -> None:
    def made() -> Trainer:
        return Trainer(
            dropout_model(size=64),
            loss="mse",
            optimizer=SGD(0.1),
            trainable=["w"],
            options={"placement": "gpu"},
            seed=7,
        )

    x, y = np.ones((2, 64), "f"), np.zeros((2, 64), "f")
    one, two = made(), made()
    for _ in range(3):
        one.step(x, y)
    one.save(tmp_path / "t.safetensors")
    two.load(tmp_path / "t.safetensors")
    for t in (one, two):
        t.step(x, y)
    assert bits(one) == bits(two)


def test_dropout_masks_are_equal_on_both_sides() -> None:
    x, y = np.ones((2, 64), "f"), np.zeros((2, 64), "f")
    found = []
    for side in SIDES:
        t = Trainer(
            dropout_model(size=64), loss="mse", optimizer=SGD(8.0), trainable=["w"], options={"placement": side}, seed=7
        )
        t.step(x, y)
        found.append(t.parameters()["w"])
    assert len(np.unique(np.round(found[0], 4))) > 1
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_the_exported_model_is_the_one_that_was_given_with_other_weights(tmp_path: Path) -> None:
    x, y = points(20)
    model = references.mlp(softmax=True)
    t = trainer(model=model, trainable=["*1"])
    t.fit(x, y, epochs=2, batch=10)
    t.export(tmp_path / "tuned.onnx")
    tuned = onnx.load(tmp_path / "tuned.onnx")
    assert tuned.graph.node == model.graph.node
    old, new = ({i.name: numpy_helper.to_array(i) for i in m.graph.initializer} for m in (model, tuned))
    assert {n for n in old if not np.array_equal(old[n], new[n])} == {"w1", "b1"}
    session = onnxruntime.InferenceSession(str(tmp_path / "tuned.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], t.predict(x), atol=1e-6)


def test_running_statistics_are_exported_and_used(tmp_path: Path, rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(6, 2, 3, 3)).astype("f") + 3, rng.integers(0, 4, 6)
    t = Trainer(conv_bn(), loss="cross_entropy", optimizer=SGD(0.01), batch_norm="train", options={"placement": "gpu"})
    for _ in range(5):
        t.step(x, y)
    t.export(tmp_path / "tuned.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "tuned.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], t.predict(x), atol=1e-5)
    assert abs(t.parameters()["mean"]).max() > 0.1


@pytest.mark.usefixtures("brief_hangs")
@pytest.mark.parametrize("fault", ["lost@4", "lost@2,lost@5", "hang@4", "oom@3"])
def test_a_failing_device_loses_nothing(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """The final weights are those of an undisturbed run, bit for bit; losses that were not read yet are, too."""
    data = batches(6)
    runs = []
    for options in ({}, {"faults": f"{fault};seed=1"}):
        t = trainer(model=references.mlp(), options=options)
        losses = [t.step(x, y) for x, y in data]
        runs.append(([float(loss) for loss in losses], bits(t), t.stats()["renewals"]))
    assert runs[0][:2] == runs[1][:2]
    assert runs[0][2] == 0
    assert runs[1][2] >= fault.count("@")
    assert "going on from step" in caplog.text


def test_a_worker_that_is_killed_loses_nothing() -> None:
    data, found = batches(4), []
    for options in ({}, {"isolation": "process", "faults": "abort@3;seed=1"}):
        t = trainer(model=references.mlp(), options=options)
        losses = [t.step(x, y) for x, y in data]
        found.append(([float(loss) for loss in losses], bits(t), t.evaluate(*data[0])))
    assert t.stats()["renewals"] == 1
    assert found[0] == found[1]


def test_a_device_that_always_fails_is_said() -> None:
    t = trainer(options={"faults": "lost~1;seed=1"})
    with pytest.raises(DeviceLostError):
        t.step(*points(8))


def test_a_batch_larger_than_memory_is_said_and_the_state_stays() -> None:
    x, y = points(8)
    t = trainer(options={"faults": "oom~1;seed=1"})
    with pytest.raises(
        OutOfDeviceMemoryError,
        match=r"for batches of 8; weights and state take .* MiB, two sets: try a smaller batch, with accumulate=",
    ):
        t.step(x, y)
    assert t.steps == 0


def test_a_snapshot_is_what_training_goes_on_from() -> None:
    data = batches(6)
    t, other = trainer(model=references.mlp()), trainer(model=references.mlp(), options={"faults": "lost@5;seed=2"})
    for step, (x, y) in enumerate(data):
        t.step(x, y)
        held = other.step(x, y)
        if step == 2:
            other._engine.snapshot()
            assert other._engine.journal.step == 3
            assert held.value is None  # read, as nothing could compute it again
    assert bits(t) == bits(other)
    assert other.steps == 6


def exploding() -> onnx.ModelProto:
    """y = log(w) x: the gradient makes w negative, and then it is NaN."""
    nodes = [
        helper.make_node("Log", ["w"], ["l"], name="the_log"),
        helper.make_node("Mul", ["x", "l"], ["y"], name="the_mul"),
    ]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 2]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "log", info[:1], info[1:], [numpy_helper.from_array(np.ones(2, "f"), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("side", SIDES)
def test_nan_is_said_with_its_node_and_the_last_good_state_kept(side: str) -> None:
    t = Trainer(exploding(), loss="l1", optimizer=SGD(0.3), options={"placement": side})
    x, y = np.ones((4, 2), "f"), np.full((4, 2), -9, "f")
    losses, good = [], []
    for _ in range(10):
        losses.append(t.step(x, y))
        good.append(t.parameters()["w"])
    bad = next(k for k, w in enumerate(good) if (w < 0).any()) + 1
    with pytest.raises(
        TrainingError,
        match=rf"the loss of step {bad} is nan; the first value that is not finite comes from node 'the_log' \(Log\);"
        rf".*state before step {bad}: try a lower learning rate",
    ):
        float(losses[-1])
    assert t.steps == bad
    np.testing.assert_array_equal(t.parameters()["w"], good[bad - 1])
    assert np.isnan(float(losses[-1]))
    assert float(losses[0]) == pytest.approx(9.0)


@pytest.mark.parametrize("side", SIDES)
def test_fit_stops_at_nan(side: str) -> None:
    """Also where further steps are on their way: 28 an epoch."""
    t = Trainer(exploding(), loss="l1", optimizer=SGD(0.3), options={"placement": side})
    with pytest.raises(TrainingError, match="the_log"):
        t.fit(np.ones((112, 2), "f"), np.full((112, 2), -9, "f"), epochs=3, batch=4)
    assert np.isfinite(t.parameters()["w"]).all()
    assert t.steps < 10


@pytest.mark.parametrize("side", SIDES)
def test_ctrl_c_in_fit_leaves_a_trainer_that_goes_on(side: str) -> None:
    x, y = points(40)
    t, seen = trainer(side), list[int]()

    def at(progress: Progress) -> None:
        seen.append(progress.step)
        if progress.step == 3:
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        t.fit(x, y, epochs=2, batch=8, on_step=at)
    assert t.steps == seen[-1] < 10
    assert t.evaluate(x, y)["loss"] > 0
    t.fit(x, y, epochs=1, batch=8)
    assert t.steps == seen[-1] + 5


def test_evaluating_first_makes_batches_of_a_usual_size() -> None:
    x, y = points(100)
    t = trainer("cpu")
    assert t.predict(x).shape == (100, 3)
    assert t._engine.step.feeds["x"][1] == (32, 6)
    np.testing.assert_allclose(trainer("cpu").predict(x[:5]), t.predict(x[:5]), atol=1e-6)
    weights = np.r_[np.ones(50), np.zeros(50)]
    assert t.evaluate(x, y, weights)["loss"] == pytest.approx(t.evaluate(x[:50], y[:50])["loss"], rel=1e-5)


def test_auto_runs_where_a_step_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = points(8)
    t = trainer("auto")
    t.step(x, y)
    assert t.stats()["placement"] == "cpu"
    assert "software" in t.explain()
    for gpu, side in ((1.0, "gpu"), (3.0, "cpu")):
        monkeypatch.setattr(
            "ort_gpu_ep.training.engine._timed", lambda resident, carried, gpu=gpu: gpu if resident.on_gpu else 2.0
        )
        t = trainer("auto", options={"adapter": "software", "load": "off"})
        t.step(x, y)
        assert t.stats()["placement"] == side
        assert "ms on the CPU" in t.explain()


def test_a_trainer_moves_between_steps_with_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    data, gpu_s = batches(9), [1.0]
    monkeypatch.setattr(
        "ort_gpu_ep.training.engine._timed", lambda resident, carried: gpu_s[0] if resident.on_gpu else 2.0
    )
    t = trainer("auto", model=references.mlp(), optimizer=SGD(0.1, 0.9), options={"adapter": "software", "load": "off"})
    with pytest.raises(TrainingError, match="there was none yet"):
        t.place()
    losses, where = [], []
    for step, (x, y) in enumerate(data):
        if step in (3, 6):
            gpu_s[0] = 3.0 if step == 3 else 1.0  # somebody else's work comes, and goes
            before = bits(t)
            where.append(t.place())
            assert bits(t) == before
            assert t.evaluate(x, y)["loss"] > 0
        losses.append(t.step(x, y))
    assert where == ["cpu", "gpu"]
    want, weights = references.trajectory(references.mlp(), data, references.sgd(0.1, 0.9))
    np.testing.assert_allclose([float(loss) for loss in losses], want, atol=2e-6)
    np.testing.assert_allclose(t.parameters()["w0"], weights["w0"], atol=1e-5)


def test_timing_leaves_the_state_as_it_was() -> None:
    x, y = points(8)
    t, timed = trainer("gpu"), trainer("auto", options={"adapter": "software", "load": "off"})
    for made in (t, timed):
        made.step(x, y)
    assert timed.steps == 1
    for name, array in t.parameters().items():
        np.testing.assert_allclose(timed.parameters()[name], array, atol=1e-6)


@pytest.mark.parametrize("name", ["lenet5", "har_lstm", "mlp_16", "mlp_16x3", "mlp_256", "mlp_784"])
def test_networks_on_the_gpu_follow_the_cpu(name: str, rng: np.random.Generator) -> None:
    model = models.build(name, batch=4, **({"steps": 3, "hidden": 6, "layers": 1} if name == "har_lstm" else {}))
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x, y = rng.normal(size=shape).astype("f"), rng.integers(0, 6, 4)
    found = []
    for side in SIDES:
        t = Trainer(model, loss="cross_entropy", optimizer=SGD(0.05), options={"placement": side})
        found.append([float(t.step(x, y)) for _ in range(3)])
        assert t.stats()["placement"] == side
        if side == "gpu":
            report = t._engine.resident.session.state.reports[-1]
            assert len(report.partitions) == 1
            assert {n.device for n in report.nodes} == {"gpu"}
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


WRONG: dict[str, tuple[Any, Any, str]] = {
    "class": (
        np.zeros((4, 6), "f"),
        np.array([0, 1, 3, 1]),
        r"labels: got 3 at \[2\], expected 0 to 2: the output has 3 classes",
    ),
    "labels": (np.zeros((4, 6), "f"), np.zeros(4, "f"), "labels: got float32, expected integers"),
    "counts": (np.zeros((4, 6), "f"), np.zeros(3, int), "numbers of samples differ: x 4, labels 3"),
    "none": (np.zeros((0, 6), "f"), np.zeros(0, int), "got no samples"),
    "width": (np.zeros((4, 7), "f"), np.zeros(4, int), r"input 'x': got the shape \[4, 7\], expected \[N, 6\]"),
    "names": ({"z": np.zeros((4, 6), "f")}, np.zeros(4, int), "inputs: got 'z', expected 'x'"),
    "larger": (np.zeros((9, 6), "f"), np.zeros(9, int), "got 9 samples, but the steps of this trainer are for 4"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_batches_are_said_before_anything_changes(name: str) -> None:
    x, y, message = WRONG[name]
    t = trainer("cpu")
    if name != "width":
        t.step(np.ones((4, 6), "f"), np.zeros(4, int))
        before = bits(t)
    with pytest.raises(TrainingError, match=message):
        t.step(x, y)
    assert name == "width" or bits(t) == before


@pytest.mark.parametrize("weight", [[1, 1], [0, 0, 0, 0], [1, -1, 1, 1], [1, np.nan, 1, 1]])
def test_wrong_weights_are_said(weight: list[float]) -> None:
    with pytest.raises(TrainingError, match="sample weights: got the shape"):
        trainer("cpu").step(np.ones((4, 6), "f"), np.zeros(4, int), np.array(weight))


def test_wrong_checkpoints_are_said(tmp_path: Path) -> None:
    x, y = points(4)
    t, path = trainer("cpu"), tmp_path / "t.safetensors"
    with pytest.raises(TrainingError, match="nothing to save"):
        t.save(path)
    t.step(x, y)
    t.save(path)
    with pytest.raises(TrainingError, match="it is of another model"):
        trainer("cpu", trainable=["w0"]).load(path)
    other = trainer("cpu", optimizer=SGD(0.1))
    other.load(path)
    with pytest.raises(TrainingError, match=r"'b0.mean' is float32.8., expected none.*another optimizer"):
        other.step(x, y)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TrainingError, match="not a whole safetensors file"):
        t.load(path)
    with pytest.raises(TrainingError, match="no such file"):
        t.load(tmp_path / "nowhere")


def entry(**changed: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changed}


DAMAGED: dict[str, object] = {
    "negative offsets": {"a": entry(data_offsets=[-8, 0])},
    "offsets from the end": {"a": entry(data_offsets=[-16, -8])},
    "offsets the wrong way round": {"a": entry(data_offsets=[8, 0], shape=[0])},
    "offsets that are true": {"a": entry(data_offsets=[False, 8])},
    "three offsets": {"a": entry(data_offsets=[0, 8, 8])},
    "two tensors in the same bytes": {"a": entry(), "b": entry()},
    "bytes of no tensor": {"a": entry(data_offsets=[0, 4], shape=[1])},
    "a tensor of other bytes": {"a": entry(shape=[3])},
    "a negative size": {"a": entry(shape=[-1])},
    "a size that is a fraction": {"a": entry(shape=[2.0])},
    "sizes beyond any memory": {"a": entry(shape=[2**40, 2**40, 0, 2**70])},
    "an unknown type": {"a": entry(dtype="F7")},
    "a type that is a list": {"a": entry(dtype=[])},
    "no entry": {"a": None},
    "a list of entries": {"a": [1, 2]},
    "an entry with more": {"a": entry(more=1)},
    "no object": [1, 2],
    "a number": 7,
    "metadata of a list": {"a": entry(), "__metadata__": [1]},
    "metadata of numbers": {"a": entry(), "__metadata__": {"step": 3}},
}


def safetensors(header: bytes, values: bytes = bytes(8)) -> bytes:
    return len(header).to_bytes(8, "little") + header + values


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_checkpoints_are_said(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(safetensors(json.dumps({"a": entry()}).encode()))
    assert checkpoint.read(path)[0]["a"].tolist() == [0, 0]
    path.write_bytes(safetensors(json.dumps(DAMAGED[kind]).encode()))
    with pytest.raises(TrainingError, match="not a whole safetensors file"):
        checkpoint.read(path)


@pytest.mark.parametrize("header", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"", b'{"a":' + b"9" * 10_000 + b"}"])
def test_what_is_no_header_is_said(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    for data in (safetensors(header), b"\xff" * 8 + header, header[:7]):
        path.write_bytes(data)
        with pytest.raises(TrainingError, match="not a whole safetensors file"):
            checkpoint.read(path)


def test_changed_bytes_of_a_checkpoint_load_or_are_said(tmp_path: Path) -> None:
    """Nothing but TrainingError, whatever 1,000 changes of a file make of it."""
    t, path = trainer("cpu"), tmp_path / "t.safetensors"
    t.step(*points(4))
    t.save(path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(7)
    said = 0
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(header)] = rng.choice(np.frombuffer(b'0123456789-"{}[],:eF\x00\xff', np.uint8))
        path.write_bytes(data)
        try:
            trainer("cpu").load(path)
        except TrainingError:
            said += 1
    assert said > 700


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("step", "-5"),
        ("step", "9" * 30),
        ("step", "9" * 5000),
        ("step", "1e3"),
        ("step", "²"),
        ("epochs", "-1"),
        ("seed", "-"),
        ("seed", "9" * 5000),
    ],
)
def test_numbers_that_no_run_has_are_said(key: str, text: str, tmp_path: Path) -> None:
    t, path = trainer("cpu"), tmp_path / "t.safetensors"
    t.step(*points(4))
    t.save(path)
    tensors, metadata = checkpoint.read(path)
    checkpoint.write(path, tensors, {**metadata, key: text})
    with pytest.raises(TrainingError, match=f"its {key} is '.*', expected a whole number from"):
        t.load(path)


def test_checkpoints_are_safetensors(tmp_path: Path) -> None:
    """As the format's description has them."""
    tensors = {"a": np.arange(6, dtype="f").reshape(2, 3), "b": np.array(7, np.int64)}
    checkpoint.write(tmp_path / "c", tensors, {"step": "3"})
    data = (tmp_path / "c").read_bytes()
    size = int.from_bytes(data[:8], "little")
    assert size % 8 == 0
    assert (
        data[8 : 8 + size]
        .rstrip()
        .startswith(b'{"__metadata__":{"step":"3"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}')
    )
    assert data[8 + size :] == tensors["a"].tobytes() + tensors["b"].tobytes()
    found, metadata = checkpoint.read(tmp_path / "c")
    assert metadata == {"step": "3"}
    assert {n: (a.tolist(), a.dtype) for n, a in found.items()} == {
        n: (a.tolist(), a.dtype) for n, a in tensors.items()
    }


def test_what_explain_says() -> None:
    t = trainer("gpu", trainable=["w*"])
    assert "no step yet" in t.explain()
    t.step(*points(4))
    text = t.explain()
    assert "2 weights of 72 elements are trained" in text
    assert "the last Softmax (softmax) is part of the loss" in text
    assert "in one partition" in text or "partition 0" in text


@pytest.mark.parametrize("side", SIDES)
def test_several_threads_train_one_model_step_by_step(side: str) -> None:
    """As many steps give the same bits, from whichever thread they come, while others evaluate, save and read."""
    x, y = points(16)
    wanted, t, found = trainer(side), trainer(side), list[Any]()
    before = wanted.predict(x)
    for _ in range(24):
        wanted.step(x, y)

    def work(*actions: Any) -> None:
        try:
            for k in range(12):
                for action in actions:
                    action(k)
        except Exception as error:
            found.append(error)

    losses = list[Any]()
    threads = [
        threading.Thread(target=work, args=actions)
        for actions in (
            [lambda _: losses.append(t.step(x, y))],
            [lambda _: float(t.step(x, y))],
            [lambda _: found.append(t.predict(x))],
            [lambda k: t.parameters() if k % 2 else t.summary(), lambda _: [float(loss) for loss in list(losses)]],
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [error for error in found if isinstance(error, Exception)]
    assert t.steps == 24
    assert bits(t) == bits(wanted)
    assert len(found) == 12
    assert all(np.isfinite(p).all() and p.shape == before.shape for p in found)


def test_fits_in_two_threads_take_turns(rng: np.random.Generator) -> None:
    (x, y), t = points(32), trainer()
    found = list[Any]()

    def work(k: int) -> None:
        try:
            found.append(t.fit(x[k::2], y[k::2], epochs=3, batch=8)[-1]["loss"])
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(loss, float) and np.isfinite(loss) for loss in found), found
    assert t.steps == 2 * 3 * 2
