"""Sessions through plain ONNX Runtime: selection, graphs of all kinds, threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep import plugin
from tests.patience import PATIENCE_S
from tests.plugin.cases import ORT, assert_close, info, island, make_model, node, open_session, reference


def gpu_nodes(opened: Any) -> int:
    return sum(n.device == "gpu" for report in opened.state.reports for n in report.nodes)


def test_the_provider_is_offered_once() -> None:
    assert [d.ep_name for d in onnxruntime.get_ep_devices()].count(plugin.EP_NAME) == 1


def test_selection_by_name(mlp: bytes, rng: np.random.Generator) -> None:
    opened = open_session(mlp)
    assert opened.session.get_providers() == [plugin.EP_NAME, "CPUExecutionProvider"]
    assert opened.state.ready == (ORT >= (1, 27))  # an older ONNX Runtime does not tell
    assert gpu_nodes(opened) == 3
    x = rng.normal(size=(5, 16)).astype("f")
    assert_close(opened.run(x=x), reference(mlp, x=x))
    assert opened.state.partitions[0].runs == 1
    assert opened.state.partitions[0].fallbacks == 0
    assert not opened.state.events


def test_selection_by_device(mlp: bytes, rng: np.random.Generator) -> None:
    options = onnxruntime.SessionOptions()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == plugin.EP_NAME]
    options.add_provider_for_devices(devices, {"placement": "gpu", "strict": "1"})
    with plugin.capture() as seen:
        session = onnxruntime.InferenceSession(mlp, options)
    assert seen[0].config is not None
    assert seen[0].config.strict
    x = rng.normal(size=(5, 16)).astype("f")
    assert_close(session.run(None, {"x": x}), reference(mlp, x=x))
    assert seen[0].partitions[0].runs == 1


def test_capture_is_per_thread(mlp: bytes) -> None:
    with ThreadPoolExecutor(4) as pool:
        states = [f.result().state for f in [pool.submit(open_session, mlp) for _ in range(8)]]
    assert len({id(s) for s in states}) == 8


def test_model_path(mlp: bytes, tmp_path: Any) -> None:
    path = tmp_path / "mödel.onnx"
    path.write_bytes(mlp)
    assert open_session(str(path)).state.model_path == str(path)
    assert open_session(mlp).state.model_path == ""


def test_dynamic_shapes(mlp: bytes, rng: np.random.Generator) -> None:
    opened = open_session(mlp)
    for n in (1, 7, 1, 33, 7):
        x = rng.normal(size=(n, 16)).astype("f")
        assert_close(opened.run(x=x), reference(mlp, x=x))
    assert opened.state.partitions[0].fallbacks == 0


def test_no_rows(mlp: bytes) -> None:
    x = np.zeros((0, 16), "f")
    assert_close(open_session(mlp).run(x=x), reference(mlp, x=x))


def test_scalars(rng: np.random.Generator) -> None:
    nodes = [node("Mul", "x s", "p"), node("ReduceSum", "p", "y", keepdims=0)]
    model = make_model(nodes, [info("x", [4, 3]), info("s", [])], [info("y", [])])
    x, s = rng.normal(size=(4, 3)).astype("f"), np.array(1.5, "f")
    opened = open_session(model)
    (y,) = opened.run(x=x, s=s)
    assert y.shape == ()
    assert_close([y], reference(model, x=x, s=s))


@pytest.mark.parametrize("kind", ["float32", "int64", "int32", "bool", "uint8", "int8", "float16", "float64"])
def test_element_types_reach_the_device_and_come_back(kind: str, rng: np.random.Generator) -> None:
    onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    model = make_model(
        [node("Reshape", "x shape", "a"), node("Concat", "a a", "y", axis=1)],
        [info("x", [3, 5], onnx_type)],
        [info("y", None, onnx_type)],
        {"shape": np.array([5, 3])},
    )
    x = rng.integers(0, 2 if kind == "bool" else 100, (3, 5)).astype(kind)
    opened = open_session(model)
    (y,) = opened.run(x=x)
    np.testing.assert_array_equal(y, np.concatenate([x.reshape(5, 3)] * 2, 1))
    assert not opened.state.events


def test_if(rng: np.random.Generator) -> None:
    constant = numpy_helper.from_array(np.array([3.0], "f"), "K")
    then = helper.make_graph(
        [node("Mul", "o K", "t1"), node("Relu", "t1", "t2")], "then", [], [info("t2", None)], [constant]
    )
    other = helper.make_graph([node("Sigmoid", "o", "e1"), node("Add", "e1 x", "e2")], "else", [], [info("e2", None)])
    model = make_model(
        [
            node("Add", "x W", "o"),
            node("If", "c", "y0", then_branch=then, else_branch=other),
            node("Mul", "y0 y0", "y"),
        ],
        [info("x", ["N", 4]), info("c", [], TensorProto.BOOL)],
        ["y"],
        {"W": rng.normal(size=4).astype("f")},
    )
    opened = open_session(model)
    assert {r.nested for r in opened.state.reports} == {True, False}
    x = rng.normal(size=(3, 4)).astype("f")
    for c in (True, False):
        assert_close(opened.run(x=x, c=np.array(c)), reference(model, x=x, c=np.array(c)))
    assert gpu_nodes(opened) >= 5
    assert not opened.state.events


def test_loop(rng: np.random.Generator) -> None:
    nodes = [
        node("Identity", "cond_in", "cond_out"),
        node("Mul", "v W", "v1"),
        node("Add", "v1 x", "v2"),
        node("Sigmoid", "v2", "v_out"),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [info("i", [], TensorProto.INT64), info("cond_in", [], TensorProto.BOOL), info("v", ["N", 4])],
        [info("cond_out", [], TensorProto.BOOL), info("v_out", ["N", 4])],
    )
    model = make_model(
        [node("Relu", "x", "x0"), helper.make_node("Loop", ["n", "", "x0"], ["l"], body=body), node("Add", "l x", "y")],
        [info("x", ["N", 4]), info("n", [], TensorProto.INT64)],
        ["y"],
        {"W": rng.normal(size=4).astype("f")},
    )
    opened = open_session(model)
    x = rng.normal(size=(3, 4)).astype("f")
    for n in (5, 1, 0):
        assert_close(opened.run(x=x, n=np.array(n)), reference(model, x=x, n=np.array(n)))
    assert not opened.state.events


def test_partition_with_cpu_nodes_around(rng: np.random.Generator) -> None:
    model = make_model(
        [node("Add", "x x", "a"), island("a", "i"), node("Mul", "i a", "y")], [info("x", [2, 4, 4])], ["y"]
    )
    x = rng.normal(size=(2, 4, 4)).astype("f") + 8 * np.eye(4, dtype="f")
    opened = open_session(model)
    assert len(opened.state.partitions) == 2
    assert_close(opened.run(x=x), reference(model, x=x))


def hammer(opened: Any, model: bytes, seed: int, runs: int) -> None:
    rng = np.random.default_rng(seed)
    expected = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for _ in range(runs):
        x = rng.normal(size=(int(rng.integers(1, 5)), 16)).astype("f")
        assert_close(opened.run(x=x), expected.run(None, {"x": x}))


@pytest.mark.parametrize("parallel", [False, True])
def test_eight_threads_on_one_session(mlp: bytes, parallel: bool) -> None:
    options = onnxruntime.SessionOptions()
    if parallel:
        options.execution_mode, options.inter_op_num_threads = onnxruntime.ExecutionMode.ORT_PARALLEL, 2
    opened = open_session(mlp, options)
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(hammer, opened, mlp, seed, 10) for seed in range(8)]:
            future.result()
    assert opened.state.partitions[0].runs == 80
    assert opened.state.partitions[0].fallbacks == 0


def test_threads_that_create_run_and_close_sessions(mlp: bytes) -> None:
    before = plugin.live_tables()
    with ThreadPoolExecutor(6) as pool:
        for future in [
            pool.submit(lambda seed: [hammer(open_session(mlp), mlp, seed, 2) for _ in range(3)], s) for s in range(6)
        ]:
            future.result()
    assert plugin.live_tables() == before


def test_run_async(mlp: bytes, rng: np.random.Generator) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2  # run_async wants a pool
    opened = open_session(mlp, options)
    x, done, answers = rng.normal(size=(2, 16)).astype("f"), threading.Event(), []

    def callback(results: Any, data: Any, error: str) -> None:
        answers.append((results, error))
        done.set()

    opened.session.run_async(None, {"x": x}, callback, None)
    assert done.wait(PATIENCE_S)
    assert answers[0][1] == ""
    assert_close(answers[0][0], reference(mlp, x=x))


def test_no_table_outlives_its_session(mlp: bytes) -> None:
    before = plugin.live_tables()
    opened = open_session(mlp)
    assert plugin.live_tables()["Provider"] == before["Provider"] + 1
    assert plugin.live_tables()["Partition"] == before["Partition"] + 1
    opened.session = None
    assert plugin.live_tables() == before
