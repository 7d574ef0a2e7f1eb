"""What crosses between host and device in a run: each value that the other side needs once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import DeviceError
from ort_gpu_ep.plugin import SessionState
from ort_gpu_ep.plugin.memory import CONTENT_NBYTES
from ort_gpu_ep.session.session import InferenceSession
from tests.patience import steps
from tests.plugin.cases import Opened, assert_close, device_value, info, island, make_model, node, raises, reference
from tests.unit.graphs import random_models


@dataclass
class Crossed:
    """Bytes of each value that crosses in a run, sorted; `up` to the device, `down` from it."""

    up: list[int]
    down: list[int]


def open_drop_in(model: bytes, options: Any = None) -> Opened:
    """A session that is told when a run begins, with every supported node on the GPU."""
    session = InferenceSession(model, options, provider_options={"placement": "gpu"})
    assert session.state is not None
    return Opened(session, session.state)


def sizes(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, int]:
    """Bytes of every value of a model, from a run on the CPU."""
    names = [name for n in model.graph.node for name in n.output]
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    whole.graph.output.extend(info(name, None) for name in names)
    made = zip(names, reference(whole.SerializeToString(), **feeds), strict=True)
    return {name: array.nbytes for name, array in (*feeds.items(), *made)}


def needed(model: onnx.ModelProto, opened: Opened, feeds: dict[str, Any], wanted: Sequence[str]) -> Crossed:
    """The oracle, from the partitions of the report and the model. wanted: the outputs that the user asks for."""
    graph, nbytes = model.graph, sizes(model, feeds)
    (report,) = opened.state.reports
    on_cpu = {n.name for n in report.nodes if n.device == "cpu"}
    assert {n.name for n in report.nodes} == {n.name for n in graph.node}  # nothing was optimised away
    made = {name for p in report.partitions for name in p.outputs}
    taken = {name for p in report.partitions for name in p.inputs}
    read_by_cpu = {name for n in graph.node if n.name in on_cpu for name in n.input}
    return Crossed(
        sorted(nbytes[n] for n in taken - made), sorted(nbytes[n] for n in made & (read_by_cpu | set(wanted)))
    )


def last_run(state: SessionState) -> Crossed:
    last = state.stats()["last_run"]
    return Crossed(sorted(last["host_to_device"]), sorted(last["device_to_host"]))


def crossings(opened: Opened, feeds: dict[str, Any], wanted: Sequence[str] | None = None) -> tuple[Crossed, list[Any]]:
    """What a run recorded, which is also what the device counted, and its results. The first run, which makes plans, is
    not counted."""
    opened.session.run(wanted, feeds)
    gpu = opened.state.gpu
    assert gpu is not None
    before, copies = replace(gpu.stats), replace(opened.state.copies)
    results = opened.session.run(wanted, feeds)
    found, stats, now = last_run(opened.state), gpu.stats, opened.state.copies
    assert (stats.uploads - before.uploads, stats.downloads - before.downloads) == (len(found.up), len(found.down))
    assert stats.uploaded_nbytes - before.uploaded_nbytes == sum(found.up)
    assert stats.downloaded_nbytes - before.downloaded_nbytes == sum(found.down)
    assert now.host_to_device_nbytes - copies.host_to_device_nbytes == sum(found.up)
    assert now.device_to_host - copies.device_to_host == len(found.down)
    assert not opened.state.events
    return found, results


def unoptimised() -> Any:
    """ONNX Runtime's optimisations off, so that the report is of the model's own nodes."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def named(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    for k, each in enumerate(nodes):
        each.name = f"n{k}"
    return list(nodes)


X = [info("x", [6, 4, 4])]
TALL = [info("x", [6, 4, 4]), info("t", [6, 4, 1])]

GRAPHS = {
    "one partition": ([node("Add", "x x", "a"), node("Softmax", "a", "y")], X, ["y"], 1),
    "an island between two partitions": (
        [node("Add", "x x", "a"), island("a", "i"), node("Mul", "i i", "y")],
        X,
        ["y"],
        2,
    ),
    "a value that stays on the device": (
        [node("Add", "x x", "a"), island("a", "i"), node("Mul", "i a", "y")],
        X,
        ["y"],
        2,
    ),
    "read by two CPU nodes": (
        [node("Add", "x x", "a"), island("a", "i"), island("a", "j"), node("Mul", "i j", "y")],
        X,
        ["y"],
        2,
    ),
    "made on the CPU, read by two partitions": (
        [island("x", "c"), node("Add", "c c", "a"), island("a", "i"), node("Mul", "i c", "y")],
        X,
        ["y"],
        2,
    ),
    "an input of two partitions": (
        [node("Mul", "x t", "a"), island("a", "i"), node("Mul", "i t", "y")],
        TALL,
        ["y"],
        2,
    ),
    "an input of a CPU node and a partition": (
        [island("x", "c"), node("Mul", "x t", "a"), node("Add", "a c", "y")],
        TALL,
        ["y"],
        1,
    ),
    "an output that is read on the GPU": (
        [node("Add", "x x", "a"), island("a", "i"), node("Mul", "i a", "y")],
        X,
        ["y", "a"],
        2,
    ),
    "an output that is read on the CPU": ([node("Add", "x x", "a"), island("a", "y")], X, ["y", "a"], 1),
    "an output of the CPU that is read on the GPU": ([island("x", "c"), node("Mul", "c t", "y")], TALL, ["y", "c"], 1),
    "an output and an input that nobody needs": ([node("Add", "x x", "y"), island("x", "i")], TALL, ["y"], 1),
    "three partitions in a row": (
        [
            node("Mul", "x t", "a"),
            island("a", "i"),
            node("Add", "i a", "b"),
            island("b", "j"),
            node("Sum", "j a b i", "y"),
        ],
        TALL,
        ["y"],
        3,
    ),
    "sizes that differ": (
        [node("Mul", "x t", "a"), node("ReduceSum", "a", "r"), island("a", "i"), node("Mul", "i r", "y")],
        TALL,
        ["y", "r"],
        2,
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_each_needed_value_crosses_once(name: str, rng: np.random.Generator) -> None:
    nodes, inputs, outputs, partitions = GRAPHS[name]
    serialized = make_model(named(nodes), inputs, outputs)
    opened = open_drop_in(serialized, unoptimised())
    assert len(opened.state.partitions) == partitions
    feeds = {"x": rng.normal(size=(6, 4, 4)).astype("f") + 8 * np.eye(4, dtype="f")}
    if inputs is TALL:
        feeds["t"] = rng.normal(size=(6, 4, 1)).astype("f")
    found, results = crossings(opened, feeds)
    assert found == needed(onnx.load_from_string(serialized), opened, feeds, outputs)
    assert_close(results, reference(serialized, **feeds))


def test_an_output_that_is_not_asked_for_does_not_come_back(rng: np.random.Generator) -> None:
    serialized = make_model(named([node("Add", "x x", "a"), node("Softmax", "a", "y")]), X, ["y", "a"])
    opened = open_drop_in(serialized, unoptimised())
    feeds = {"x": rng.normal(size=(6, 4, 4)).astype("f")}
    found, _ = crossings(opened, feeds, ["y"])
    assert found == needed(onnx.load_from_string(serialized), opened, feeds, ["y"]) == Crossed([384], [384])


@contextmanager
def forced_to_the_cpu(shaders: Sequence[str]) -> Iterator[None]:
    """Sessions created meanwhile get no kernel of these files."""
    from ort_gpu_ep.config import Config

    gpu = Gpu.open(Config())
    limits = gpu.limits
    gpu.limits = replace(limits, disabled=tuple((s, "forced to the CPU") for s in shaders))
    try:
        yield
    finally:
        gpu.limits = limits


@settings(max_examples=40)
@given(random_models(), st.sets(st.sampled_from(["softmax.wgsl", "strided.wgsl", "gemm.wgsl"]), min_size=1), st.data())
def test_each_needed_value_crosses_once_in_random_graphs(
    model: onnx.ModelProto, cpu: set[str], data: st.DataObject
) -> None:
    names = [o.name for o in model.graph.output]
    wanted = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    with forced_to_the_cpu(sorted(cpu)):
        opened = open_drop_in(model.SerializeToString(), unoptimised())
        event(f"{len(opened.state.partitions)} partitions")
        if opened.state.partitions:
            feeds = {i.name: np.random.default_rng(1).uniform(-1, 1, (5, 5)).astype("f") for i in model.graph.input}
            assert crossings(opened, feeds, wanted)[0] == needed(model, opened, feeds, wanted)
        opened.session = None


# ---- what is counted


def test_weights_are_counted_apart(rng: np.random.Generator) -> None:
    weights = rng.normal(size=(256, 256)).astype("f")
    model = make_model([node("MatMul", "x W", "y")], [info("x", ["N", 256])], ["y"], {"W": weights})
    opened = open_drop_in(model)
    stats = opened.state.stats()
    assert (stats["runs"], stats["host_to_device"], stats["weights"], stats["weights_nbytes"]) == (
        0,
        0,
        1,
        weights.nbytes,
    )
    opened.run(x=np.ones((3, 256), "f"))
    stats = opened.state.stats()
    assert (stats["runs"], stats["host_to_device_nbytes"], stats["weights_nbytes"]) == (1, 3 * 1024, weights.nbytes)
    assert stats["last_run"] == {"host_to_device": [3 * 1024], "device_to_host": [3 * 1024], "device_to_device": []}


def test_the_record_is_of_the_last_run(mlp: bytes, rng: np.random.Generator) -> None:
    opened = open_drop_in(mlp)
    for rows in (3, 5, 2):
        opened.run(x=rng.normal(size=(rows, 16)).astype("f"))
        assert last_run(opened.state) == Crossed([64 * rows], [64 * rows])
    assert opened.state.stats()["runs"] == 3
    assert opened.state.copies.host_to_device_nbytes == 64 * 10


def test_bound_values_do_not_cross(mlp: bytes, rng: np.random.Generator) -> None:
    opened = open_drop_in(mlp)
    x = device_value(opened, rng.normal(size=(3, 16)).astype("f"))
    for _ in range(2):
        binding = opened.session.io_binding()
        binding.bind_ortvalue_input("x", x)
        binding.bind_output("y", "gpu")
        opened.session.run_with_iobinding(binding)
        assert last_run(opened.state) == Crossed([], [])


def test_empty_values_do_not_count(mlp: bytes) -> None:
    opened = open_drop_in(mlp)
    opened.run(x=np.ones((0, 16), "f"))
    assert last_run(opened.state) == Crossed([], [])


@pytest.mark.parametrize("rows", [300, 3], ids=["large", "small"])
def test_a_run_that_the_cpu_answers_counts_what_it_takes(
    rows: int, mlp: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input comes back for the CPU, its result goes up, and comes back for the user. What is small has not left the
    host: nothing waits for the GPU to give it back."""
    from ort_gpu_ep.runtime.program import Program

    opened, is_large = open_drop_in(mlp), rows * 16 * 4 > CONTENT_NBYTES
    x = rng.normal(size=(rows, 16)).astype("f")
    opened.run(x=x)

    monkeypatch.setattr(Program, "run", raises(DeviceError("on purpose")))
    gpu = opened.state.gpu
    assert gpu is not None
    before = replace(gpu.stats)
    assert_close(opened.run(x=x), reference(mlp, x=x))
    assert last_run(opened.state) == Crossed([x.nbytes] * 2, [x.nbytes] * 2 * is_large)
    assert (gpu.stats.uploads - before.uploads, gpu.stats.downloads - before.downloads) == (2, 2 * is_large)


def test_what_stays_on_the_host_is_not_counted(
    mlp: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_drop_in(mlp)
    x = rng.normal(size=(3, 16)).astype("f")
    opened.run(x=x)

    gpu = opened.state.gpu
    monkeypatch.setattr(gpu, "upload", raises(DeviceError("no upload")))
    assert_close(opened.run(x=x), reference(mlp, x=x))
    assert last_run(opened.state) == Crossed([], [])


def test_counting_takes_little_of_a_run() -> None:
    """Of a run with one value in and one out."""
    state = SessionState()

    def run() -> None:
        state.begin_run()
        state.count("host_to_device", 64)
        state.count("device_to_host", 64)

    run()
    assert steps(run) < 400
