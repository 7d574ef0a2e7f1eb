"""Ops whose outputs' sizes the data decide, against ONNX Runtime's CPU kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ops.selection import MANY
from ort_gpu_ep.runtime.program import Program
from tests.direct import opened, run_direct, run_program
from tests.ops.single_node import Array, assert_same, node_model, on_cpu

RNG = np.random.default_rng(17)


def check(
    op: str,
    inputs: tuple[Array | None, ...],
    opset: int,
    outputs: int = 1,
    every_size_open: bool = False,
    **attributes: Any,
) -> None:
    model, feeds = node_model(op, inputs, opset, outputs=outputs, **attributes)
    assert_same(run_direct(model, feeds, every_size_open=every_size_open), on_cpu(model, feeds))


def sparse(dtype: str, *shape: int, share: float = 0.3) -> Array:
    return ((RNG.random(shape) < share) * RNG.integers(1, 100, shape)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "bool", "uint8"])
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 7), (2, 3, 5, 7), (1023,), (1025,), (41, 257)])
def test_non_zero(dtype: str, shape: tuple[int, ...]) -> None:
    for share in (0.0, 0.3, 1.0):
        check("NonZero", (sparse(dtype, *shape, share=share),), 13)


def test_non_zero_of_more_chunks_than_a_workgroup_has_lanes() -> None:
    check("NonZero", (sparse("float32", 300_001),), 13)


def test_non_zero_of_special_numbers() -> None:
    check("NonZero", (np.array([0.0, -0.0, np.nan, np.inf, 1e-40, 1], np.float32),), 13)
    check("NonZero", (np.zeros((0, 3), np.float32),), 13)
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(*node_model("NonZero", (np.float32(3),), 13))
    assert caught.value.code is Code.RANK


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int64", "bool"])
def test_compress(dtype: str) -> None:
    x = RNG.integers(0, 100, (5, 7, 6)).astype(dtype)
    for axis, size in ((0, 5), (1, 7), (-1, 6), (1, 4)):
        check("Compress", (x, RNG.random(size) < 0.5), 11, axis=axis)
    for size in (210, 100, 1):
        check("Compress", (x, RNG.random(size) < 0.5), 11)
    check("Compress", (x, np.zeros(5, bool)), 11, axis=0)
    check("Compress", (x, np.ones(5, bool)), 11, axis=0)


def test_sizes_may_be_open() -> None:
    check("NonZero", (sparse("float32", 7, 11),), 13, every_size_open=True)
    check("Compress", (sparse("float32", 7, 11), RNG.random(7) < 0.5), 11, axis=0, every_size_open=True)
    check("Unique", (sparse("float32", 7, 11),), 11, 4, every_size_open=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64"])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique(dtype: str, is_sorted: int) -> None:
    x = RNG.integers(-5, 6, (6, 5, 4)).astype(dtype)
    check("Unique", (x,), 11, 4, sorted=is_sorted)
    check("Unique", (x[:, :1, :1] % 2,), 11, 4, sorted=is_sorted, axis=0)
    for axis in (0, 1, -1):
        check("Unique", (np.repeat(x % 2, 2, axis)[..., ::-1].copy(),), 11, 4, sorted=is_sorted, axis=axis)
    check("Unique", (RNG.integers(-40, 40, 1500).astype(dtype),), 11, 4, sorted=is_sorted)


def test_unique_without_some_outputs() -> None:
    x = RNG.integers(0, 5, 40).astype(np.float32)
    model, feeds = node_model("Unique", (x,), 11, outputs=4)
    model.graph.node[0].output[1] = model.graph.node[0].output[0 + 3] = ""
    del model.graph.output[3], model.graph.output[1]
    assert_same(run_direct(model, feeds), on_cpu(model, feeds))


def test_nan_is_one_number() -> None:
    x = np.array([np.nan, 2, np.nan, -np.inf, 2, np.inf], np.float32)
    y, indices, inverse, counts = run_direct(*node_model("Unique", (x,), 11, outputs=4))
    want = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    for got, wanted in zip((y, indices, inverse, counts), want, strict=True):
        np.testing.assert_array_equal(got, wanted)


def _chain() -> onnx.ModelProto:
    """Two that read what NonZero gives, one of them by way of a view, and what is before and after."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("NonZero", ["a"], ["n"]),
        helper.make_node("Transpose", ["n"], ["places"]),
        helper.make_node("GatherND", ["a", "places"], ["values"]),
        helper.make_node("Exp", ["values"], ["y"]),
        helper.make_node("Shape", ["n"], ["s"]),
    ]
    given = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 9])]
    wanted = [helper.make_empty_tensor_value_info(n) for n in ("y", "s")]
    return helper.make_model(
        helper.make_graph(nodes, "g", given, wanted), opset_imports=[helper.make_opsetid("", 17)], ir_version=10
    )


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_what_reads_such_an_output_is_in_the_same_partition(isolation: str) -> None:
    model = _chain()
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    options = {"placement": "gpu", "strict": "1", "isolation": isolation}
    session = InferenceSession(model.SerializeToString(), settings, provider_options=options)
    for n in (5, 1, 40, 5, 5, 5, 5):
        feeds = {"x": RNG.normal(size=(n, 9)).astype(np.float32)}
        got, want = session.run(None, feeds), on_cpu(model, feeds)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
        np.testing.assert_array_equal(got[1], want[1])
    feeds = {"x": -np.ones((3, 9), np.float32)}
    assert [a.tolist() for a in session.run(None, feeds)] == [[], [2, 0]]
    report = session.explain().reports[-1]
    assert {r.op for r in report.nodes if r.device == "cpu"} == set()
    assert len(report.partitions) == 1


def boxes_of(batches: int, size: int, centered: bool = False) -> Array:
    centers, sizes = RNG.uniform(0, 1, (batches, size, 2)), RNG.uniform(0.05, 0.4, (batches, size, 2))
    parts = (centers, sizes) if centered else (centers - sizes / 2, centers + sizes / 2)
    return np.concatenate(parts, 2).astype(np.float32)


@pytest.mark.parametrize(
    ("batches", "classes", "size", "most"),
    [(1, 1, 1, 1), (1, 1, 6, 3), (2, 3, 57, 10), (1, 2, 700, 700), (3, 1, 257, 1000)],
)
@pytest.mark.parametrize("centered", [0, 1])
def test_non_max_suppression(batches: int, classes: int, size: int, most: int, centered: int) -> None:
    boxes, scores = boxes_of(batches, size, bool(centered)), RNG.random((batches, classes, size)).astype(np.float32)
    scores[..., ::5] = 0.5  # of equal ones the first box
    for extra in ((), (0.3,), (0.5, 0.6)):
        inputs = (boxes, scores, np.array([most]), *(np.array([v], np.float32) for v in extra))
        check("NonMaxSuppression", inputs, 11, center_point_box=centered)
        if size < 100:
            check("NonMaxSuppression", inputs, 11, every_size_open=True, center_point_box=centered)


@pytest.mark.parametrize("most", [MANY, MANY + 1, 2**31 - 1, 2**62, 2**63 - 1])
def test_as_many_boxes_as_there_are(most: int) -> None:
    """What exporters write for no limit: an open number of boxes gives the size of the output then, in one plan for all
    of them."""

    def case(size: int) -> Any:
        inputs = (boxes_of(2, size), RNG.random((2, 3, size)).astype("f"), np.array([most]), np.array([0.3], "f"))
        return node_model("NonMaxSuppression", inputs, 11, known=(2, 3))

    program = Program(opened(from_onnx(case(9)[0])), Config(), Gpu.open(Config()))
    for size in (9, 1, 80, 300):
        model, feeds = case(size)
        assert_same(run_program(program, feeds), on_cpu(model, feeds))
    assert program.planned == 1
    program.close()


def test_corners_in_any_order_and_boxes_without_area() -> None:
    boxes, scores = boxes_of(1, 40), RNG.random((1, 2, 40)).astype(np.float32)
    boxes[:, ::3] = boxes[:, ::3][..., [2, 3, 0, 1]]
    boxes[:, 5] = boxes[:, 6]
    boxes[:, 7, 2:] = boxes[:, 7, :2]
    check("NonMaxSuppression", (boxes, scores, np.array([40]), np.array([0.2], np.float32)), 11)


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_a_threshold_that_is_no_share_of_an_area_is_an_error_as_on_the_cpu(threshold: float) -> None:
    boxes, scores = boxes_of(1, 9), RNG.random((1, 1, 9)).astype(np.float32)
    model, feeds = node_model(
        "NonMaxSuppression", (boxes, scores, np.array([9]), np.array([threshold], np.float32)), 11
    )
    session = InferenceSession(model.SerializeToString(), provider_options={"placement": "gpu"})
    with pytest.raises(Exception, match=r"iou_threshold must be in range \[0, 1\]"):
        session.run(None, feeds)


@pytest.mark.parametrize("every_size_open", [False, True])
def test_of_several_numbers_for_all_classes_the_first_counts(every_size_open: bool) -> None:
    boxes, scores = boxes_of(2, 9), RNG.random((2, 2, 9)).astype(np.float32)
    inputs = boxes, scores, np.array([3, 7]), np.array([0.4, 0.9], np.float32), np.array([[0.2], [0.7]], np.float32)
    check("NonMaxSuppression", inputs, 11, every_size_open=every_size_open)


def test_nothing_is_kept() -> None:
    boxes, scores = boxes_of(1, 5), RNG.random((1, 1, 5)).astype(np.float32)
    check("NonMaxSuppression", (boxes, scores), 11)
    check("NonMaxSuppression", (boxes, scores, np.array([0])), 11)
    check("NonMaxSuppression", (boxes, scores, np.array([5]), None, np.array([2.0], np.float32)), 11)
    check("NonMaxSuppression", (boxes[:, :0], scores[..., :0], np.array([5])), 11)
