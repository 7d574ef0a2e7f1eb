"""Reshape, Transpose, Slice, Split, Concat, Expand, Tile, Pad, ... against ONNX Runtime's CPU kernels, bit by bit."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import TensorType, dtype_of
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct
from tests.ops.single_node import Array, Host, assert_same, data, model_of, on_cpu, onnx_cases

OPS = (
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Slice",
    "Split",
    "Concat",
    "Expand",
    "Tile",
    "DepthToSpace",
    "SpaceToDepth",
    "Pad",
    "CenterCropPad",
    "Trilu",
    "Shape",
    "Size",
    "ConstantOfShape",
)
FAR = 1 << 62


def case(name: str, op: str, *inputs: Array | Host | None, **options: Any) -> Any:
    return pytest.param(op, inputs, options, id=f"{op}-{name}")


def slices(x: Array, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> tuple[Array | Host | None, ...]:
    return (x, Host(starts), Host(ends), None if axes is None else Host(axes), None if steps is None else Host(steps))[
        : 3 if axes is None and steps is None else 5 if steps is not None else 4
    ]


VIEWS = [
    case("zero-and-rest", "Reshape", data(7, 11, 13), Host([0, -1])),
    case("bool", "Reshape", data(7, 11, dtype="bool"), Host([11, 7])),
    case("empty", "Reshape", data(0, 11), Host([11, 0]), allowzero=1),
    case("to-scalar", "Reshape", data(1, 1), Host(np.zeros(0))),
    case("opset5", "Reshape", data(6, 5), Host([5, 6]), opset=5),
    case("last", "Flatten", data(2, 3, 5), axis=3),
    case("negative", "Flatten", data(2, 3, 5), axis=-1, opset=11),
    case("default", "Flatten", data(2, 3, 5), opset=9),
    case("attribute", "Squeeze", data(1, 5, 1), axes=[0], opset=9),
    case("all", "Squeeze", data(1, 5, 1), opset=11),
    case("input", "Squeeze", data(1, 5, 1, dtype="int64"), Host([-1])),
    case("no-axes", "Squeeze", data(1, 5, 1), Host(np.zeros(0))),
    case("attribute", "Unsqueeze", data(5, 3), axes=[2, 0], opset=9),
    case("input", "Unsqueeze", data(5, 3), Host([-1, 0])),
]

AFFINE = [
    case("reversed", "Transpose", data(7, 11, 13)),
    case("opset9", "Transpose", data(7, 11, 13), perm=[1, 2, 0], opset=9),
    *(
        case(dtype, "Transpose", data(3, 5, 7, dtype=dtype), perm=[2, 0, 1])
        for dtype in ("bool", "int8", "uint8", "float16", "int16", "int32", "int64", "float64", "uint32")
    ),
    case("rank7", "Transpose", data(2, 3, 1, 5, 2, 3, 2), perm=[6, 0, 4, 2, 5, 1, 3]),
    case("same-order", "Transpose", data(1, 7, 1, 5), perm=[1, 0, 3, 2]),
    case("scalar", "Transpose", data()),
    case("over-65535-groups", "Transpose", data(1021, 4217), perm=[1, 0]),
    case("empty", "Transpose", data(3, 0, 5), perm=[2, 0, 1]),
    case("attributes", "Slice", data(7, 11), starts=[1, -5], ends=[100, -1], axes=[0, 1], opset=9),
    case("attributes-no-axes", "Slice", data(7, 11), starts=[2], ends=[6], opset=9),
    case("negative-step", "Slice", *slices(data(7, 11), [-1, 9], [-FAR, 2], [0, 1], [-1, -3])),
    case("negative-start-before", "Slice", *slices(data(5), [-100], [-FAR], [0], [-1])),
    case("past-the-end", "Slice", *slices(data(5), [3], [FAR])),
    case("step", "Slice", *slices(data(17, 3), [-16], [16], [0], [5])),
    case("negative-axis", "Slice", *slices(data(3, 7, dtype="bool"), [1], [6], [-1], [2])),
    case("whole", "Slice", *slices(data(3, 7), [0], [FAR])),
    case("empty", "Slice", *slices(data(3, 7), [5], [9])),
    case("int64", "Slice", *slices(data(3, 7, dtype="int64"), [6], [0], [1], [-1])),
    case("same-size", "Expand", data(3, 1, 5), Host([3, 1, 1])),
    case("prime", "Expand", data(7, 1, 5), Host([2, 7, 11, 5])),
    case("uint8", "Expand", data(3, 1, dtype="uint8"), Host([3, 7])),
    case("int64", "Expand", data(1, dtype="int64"), Host([13])),
    case("scalar", "Expand", data(), Host([3, 5])),
    case("empty", "Expand", data(1, 5), Host([0, 5])),
    case("prime", "Tile", data(3, 5), Host([7, 2])),
    case("bool", "Tile", data(3, 5, 2, dtype="bool"), Host([1, 3, 1])),
    case("ones", "Tile", data(3, 5), Host([1, 1])),
    case("none", "Tile", data(3, 5), Host([2, 0])),
    case("opset6", "Tile", data(3), Host([5]), opset=6),
    case("dcr", "DepthToSpace", data(2, 18, 5, 7), blocksize=3, opset=9),
    case("crd", "DepthToSpace", data(2, 18, 5, 7), blocksize=3, mode="CRD"),
    case("prime", "SpaceToDepth", data(2, 5, 6, 9), blocksize=3),
]

PARTS = [
    case("equal", "Split", data(3, 9, 2), outputs=3, axis=1),
    case("sizes", "Split", data(3, 11), Host([2, 0, 9]), outputs=3, axis=-1),
    case("attribute", "Split", data(11, 3), split=[7, 4], outputs=2, opset=11),
    case("opset2", "Split", data(6, 3), outputs=2, opset=2),
    case("num-outputs", "Split", data(11, 3), outputs=4, num_outputs=4, opset=18),
    case("bool", "Split", data(5, 7, dtype="bool"), Host([3, 4]), outputs=2, axis=1),
    case("one", "Split", data(5, 7), outputs=1),
    case("int64", "Split", data(4, 3, dtype="int64"), outputs=2),
    *(
        case(f"{dtype}-{n}", "Concat", *(data(3, k + 1, 5, dtype=dtype, seed=k) for k in range(n)), axis=1)
        for dtype in ("float32", "int64", "bool", "float16")
        for n in (1, 2, 3, 7)
    ),
    case("many", "Concat", *(data(1, 3, seed=k) for k in range(20)), axis=0),
    case("many-packed", "Concat", *(data(3, 1, dtype="uint8", seed=k) for k in range(20)), axis=1),
    case("last-axis", "Concat", data(7, 11), data(7, 13), data(7, 1), axis=-1),
    case("empty-parts", "Concat", data(3, 0), data(3, 5), data(3, 0), axis=1),
    case("all-empty", "Concat", data(0), data(0), axis=0),
    case("opset1-axis", "Concat", data(3, 2), data(3, 5), axis=1, opset=4),
    case("same-twice", "Concat", data(3, 2), data(3, 2), axis=0),
    case("over-65535-groups", "Concat", data(2, 4217, 257), data(2, 4217, 257, seed=2), data(2, 1, 257), axis=1),
]


def pads(*sides: int) -> Host:
    return Host(list(sides))


PADS = [
    case("attributes", "Pad", data(3, 5), pads=[1, 0, 2, 3], value=1.5, opset=2),
    case("attributes-edge", "Pad", data(3, 5), pads=[1, 0, 2, 3], mode="edge", opset=9),
    case("zero", "Pad", data(3, 5, 7), pads(1, 0, 2, 0, 0, 3)),
    case("none", "Pad", data(3, 5), pads(0, 0, 0, 0)),
    case("known-value", "Pad", data(3, 5), pads(1, 1, 2, 2), Host(-2.5, "float32")),
    case("device-value", "Pad", data(3, 5), pads(1, 1, 2, 2), np.array(-2.5, np.float32)),
    case("nan", "Pad", data(3), pads(1, 2), Host(np.nan, "float32")),
    case("minus-infinity", "Pad", data(3), pads(1, 2), Host(-np.inf, "float32")),
    case("int64", "Pad", data(3, dtype="int64"), pads(1, 2), Host(-(1 << 40))),
    case("int64-zero", "Pad", data(3, dtype="int64"), pads(1, 2)),
    case("bool", "Pad", data(3, 7, dtype="bool"), pads(0, 1, 2, 2), Host(True, "bool")),
    case("int8", "Pad", data(3, 7, dtype="int8"), pads(0, 1, 2, 2), Host(-7, "int8")),
    case("negative", "Pad", data(7, 5), pads(-2, 1, -1, -3)),
    case("mixed-signs", "Pad", data(7), pads(-2, 4), Host(9.0, "float32")),
    case("crops-all", "Pad", data(7, 2), pads(-4, 0, -3, 0)),
    case("axes", "Pad", data(3, 5, 7), pads(1, 2), None, Host([-2]), opset=18),
    case("from-empty", "Pad", data(0, 3), pads(2, 0, 1, 1), Host(4.0, "float32")),
    case("reflect", "Pad", data(5, 7), pads(3, 6, 4, 2), mode="reflect"),
    case("edge", "Pad", data(5, 7, dtype="int32"), pads(3, 9, 4, 2), mode="edge"),
    case("wrap", "Pad", data(5, 7), pads(3, 2, 4, 7), mode="wrap", opset=19),
    case("edge-negative", "Pad", data(5, 7), pads(-2, 0, -1, 3), mode="edge"),
    case("rank6", "Pad", data(2, 3, 2, 3, 2, 3), pads(1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1)),
    case("conv", "Pad", data(2, 17, 31, 37), pads(0, 0, 3, 3, 0, 0, 3, 3)),
    case("crop-and-pad", "CenterCropPad", data(7, 4, 3), Host([4, 7]), axes=[0, -1], opset=18),
    case("odd", "CenterCropPad", data(6, 3, 2), Host([3, 6, 2]), opset=18),
    *(
        case(f"{k}-{upper}", "Trilu", data(2, 5, 7), Host(k), upper=upper)
        for k in (-9, -2, 0, 3, 8)
        for upper in (0, 1)
    ),
    case("no-k", "Trilu", data(7, 5, dtype="int64")),
    case("bool", "Trilu", data(7, 5, dtype="bool"), upper=0),
    case("nan-outside", "Trilu", np.full((3, 3), np.nan, np.float32)),
]


@pytest.mark.parametrize(("op", "inputs", "options"), [*VIEWS, *AFFINE, *PARTS, *PADS])
def test_against_ort(op: str, inputs: Any, options: dict[str, Any]) -> None:
    model, feeds = model_of(op, inputs, **options)
    assert_same(run_direct(model, feeds), on_cpu(model, feeds))


@pytest.mark.parametrize(
    ("op", "inputs", "options"),
    [
        case("all", "Transpose", data(7, 11), perm=[1, 0]),
        case("copy", "Transpose", data(1, 11), perm=[1, 0]),
        case("step", "Slice", *slices(data(17, 3), [-1], [-FAR], [0], [-5])),
        case("whole", "Slice", *slices(data(3, 7), [0], [FAR])),
        case("prime", "Expand", data(7, 1), Host([7, 11])),
        case("prime", "Tile", data(7, 2), Host([1, 3])),
        *(case(str(n), "Concat", *(data(3, k + 1, seed=k) for k in range(n)), axis=1) for n in (1, 2, 5)),
        case("upper", "Trilu", data(5, 7)),
    ],
)
def test_fused_steps(op: str, inputs: Any, options: dict[str, Any]) -> None:
    after = (helper.make_node("Relu", ["y0"], ["r"]), helper.make_node("Add", ["r", "x0"], ["y"]))
    model, feeds = model_of(op, inputs, after=after, **options)
    feeds["bias"] = data(1)
    model.graph.node[-1].input[1] = "bias"
    model.graph.input.append(helper.make_tensor_value_info("bias", 1, [1]))
    assert_same(run_direct(model, feeds, rewrite), on_cpu(model, feeds))
    assert not [s.label for s in plan_of(model, feeds, rewrite).steps if "elementwise" in s.label]


def plan_of(model: onnx.ModelProto, feeds: dict[str, Array], rewrite: Any = None) -> Any:
    graph = from_onnx(model)
    return make_plan(
        graph, {n: TensorType(dtype_of(feeds[n]), feeds[n].shape) for n in graph.inputs}, Limits(), rewrite
    )


@pytest.mark.parametrize(
    ("op", "inputs", "options"),
    [
        case("of-ones", "Transpose", data(1, 7, 1), perm=[1, 2, 0]),
        case("whole", "Slice", *slices(data(3, 7), [0], [FAR])),
        case("same", "Expand", data(3, 7), Host([1, 7])),
        case("ones", "Tile", data(3, 7), Host([1, 1])),
        case("none", "Pad", data(3, 7), pads(0, 0, 0, 0)),
        case("one", "Concat", data(3, 7), axis=0),
    ],
)
def test_what_changes_nothing_dispatches_nothing(op: str, inputs: Any, options: dict[str, Any]) -> None:
    model, feeds = model_of(op, inputs, after=(helper.make_node("Relu", ["y0"], ["y"]),), **options)
    assert [s.label for s in plan_of(model, feeds).steps] == ["Relu->y/elementwise"]


def test_shapes_computed_from_a_device_tensor() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Shape", ["r"], ["s"]),
        helper.make_node("Size", ["r"], ["n"]),
        helper.make_node("Gather", ["s", "one"], ["d"], axis=0),
        helper.make_node("Div", ["n", "d"], ["rest"]),
        helper.make_node("Concat", ["d", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["r", "shape"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["a", "b", "c"])],
        [helper.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(np.array([1]), "one")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    feeds = {"x": data(3, 5, 7)}
    assert_same(run_direct(model, feeds), on_cpu(model, feeds))


@pytest.mark.parametrize("op", OPS)
def test_onnx_cases(op: str) -> None:
    ran = 0
    for _, model, feeds, wanted in onnx_cases(op):
        # which cases are declined is pinned by the conformance status
        with contextlib.suppress(UnsupportedNodeError):
            got = run_direct(model, feeds)
            assert_same(got, wanted)
            ran += 1
    assert ran, "every case was declined"


@pytest.mark.parametrize(
    ("code", "op", "inputs", "options"),
    [
        (Code.NOT_CONSTANT, "Reshape", (data(6), np.array([2, 3])), {}),
        (Code.NOT_CONSTANT, "Range", (np.array(0), np.array(5), np.array(1)), {}),
        (Code.NOT_CONSTANT, "ConstantOfShape", (np.array([5]),), {}),
        (Code.NOT_CONSTANT, "Slice", (data(6), np.array([0]), Host([3])), {}),
        (Code.ATTRIBUTE, "Pad", (data(7), pads(-2, 3)), {"mode": "reflect"}),
        (Code.OPSET, "Tile", (data(7), Host(2, "float32"), Host(0, "float32")), {"opset": 5}),
        (Code.RANK, "Pad", (data(*(2,) * 9), pads(*(1,) * 18)), {}),
    ],
)
def test_declines(code: Code, op: str, inputs: Any, options: dict[str, Any]) -> None:
    model, feeds = model_of(op, inputs, **options)
    with pytest.raises(UnsupportedNodeError) as caught:
        plan_of(model, feeds)
    assert caught.value.code is code
