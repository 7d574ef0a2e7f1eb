"""8-bit quantization against ONNX Runtime's CPU kernels, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import TensorType, dtype_of
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct
from tests.ops.single_node import check_decline, check_node

RNG = np.random.default_rng(11)


def model_of(
    op: str, feeds: dict[str, Any], outputs: list[str], opset: int, attributes: dict[str, Any]
) -> onnx.ModelProto:
    def info(name: str, array: Any) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    node = helper.make_node(
        op, [n if n in feeds else "" for n in ("x", "w", "u", "v")][: len(feeds)], outputs, **attributes
    )
    graph = helper.make_graph(
        [node], "g", [info(n, a) for n, a in feeds.items()], [onnx.ValueInfoProto(name=o) for o in outputs]
    )
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    )


def check(op: str, feeds: dict[str, Any], outputs: list[str] | None = None, opset: int = 13, **attributes: Any) -> None:
    feeds = {n: np.asarray(a) for n, a in feeds.items()}
    model = model_of(op, feeds, outputs or ["y"], opset, attributes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, wanted in zip(run_direct(model, feeds), session.run(None, feeds), strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, np.shape(wanted))
        np.testing.assert_array_equal(got, wanted)


def floats(*shape: int, scale: float = 10.0) -> Any:
    return np.asarray(RNG.normal(size=shape) * scale, np.float32)


def scales(*shape: int) -> Any:
    return np.asarray(RNG.uniform(0.01, 0.3, shape), np.float32)


def integers(dtype: Any, *shape: int) -> Any:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("shape", "axis", "count"),
    [
        ((37, 41), 1, ()),
        ((3, 5, 7), 1, (5,)),
        ((3, 5, 7), -1, (7,)),
        ((3, 5, 7), 0, (3,)),
        ((13,), 0, (13,)),
        ((), 1, ()),
        ((3, 5), 1, (1,)),
        ((0, 5), 1, (5,)),
        ((2100, 2003), 0, (2100,)),
    ],
)
def test_linear(dtype: Any, shape: tuple[int, ...], axis: int, count: tuple[int, ...]) -> None:
    feeds = {"x": floats(*shape), "w": scales(*count), "u": integers(dtype, *count)}
    check("QuantizeLinear", feeds, axis=axis)
    check("DequantizeLinear", {**feeds, "x": integers(dtype, *shape)}, axis=axis)


def test_quantize_turns_halves_to_even_and_saturates() -> None:
    x = np.concatenate([np.arange(-400, 400, dtype=np.float32) / 2, np.float32([1e9, -1e9, np.inf, -np.inf, 3e38])])
    for scale in (1.0, 0.5, 0.1, 0.3, 1 / 3):
        feeds = {"x": (x * np.float32(scale)).astype(np.float32), "w": np.float32(scale), "u": np.int8(3)}
        check("QuantizeLinear", feeds)


@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
@pytest.mark.parametrize(("shape", "axis", "count"), [((37, 41), 1, ()), ((3, 5, 7), 1, (5,)), ((13,), 0, (13,))])
def test_sixteen_bits(dtype: Any, shape: tuple[int, ...], axis: int, count: tuple[int, ...]) -> None:
    feeds = {"x": floats(*shape, scale=2000.0), "w": scales(*count), "u": integers(dtype, *count)}
    check("QuantizeLinear", feeds, opset=21, axis=axis)
    check("DequantizeLinear", {**feeds, "x": integers(dtype, *shape)}, opset=21, axis=axis)


def test_without_zero_point() -> None:
    check("QuantizeLinear", {"x": floats(17), "w": scales()}, opset=10)
    check("QuantizeLinear", {"x": floats(17), "w": scales()}, opset=21, output_dtype=onnx.TensorProto.INT8)
    check("DequantizeLinear", {"x": integers(np.uint8, 17), "w": scales()}, opset=10)


def test_dequantize_int32() -> None:
    check("DequantizeLinear", {"x": integers(np.int32, 5, 7), "w": scales(7)}, axis=1)


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks(axis: int) -> None:
    shape = (4, 6, 5)
    scale_shape = tuple(s // 2 if k == axis else s for k, s in enumerate(shape))
    feeds = {"x": floats(*shape), "w": scales(*scale_shape), "u": integers(np.int8, *scale_shape)}
    check("QuantizeLinear", feeds, opset=21, axis=axis, block_size=2)
    check("DequantizeLinear", {**feeds, "x": integers(np.int8, *shape)}, opset=21, axis=axis, block_size=2)


@pytest.mark.parametrize(
    "x",
    [
        floats(3, 5),
        floats(331, 257),
        np.abs(floats(17)),
        -np.abs(floats(17)),
        floats(1),
        np.zeros(5, np.float32),
    ],
    ids=["mixed", "large", "positive", "negative", "one", "zero"],
)
def test_dynamic(x: Any) -> None:
    check("DynamicQuantizeLinear", {"x": x}, ["y", "scale", "zero_point"], opset=11)


@pytest.mark.parametrize(
    ("a", "b"), [((5, 7), (7, 3)), ((2, 3, 5, 7), (7, 11)), ((2, 1, 5, 7), (3, 7, 2)), ((131, 257), (257, 67))]
)
@pytest.mark.parametrize("zero_points", ["none", "scalar", "columns"])
def test_matmul_integer(a: tuple[int, ...], b: tuple[int, ...], zero_points: str) -> None:
    feeds = {"x": integers(np.uint8, *a), "w": integers(np.int8, *b)}
    if zero_points != "none":
        feeds["u"] = integers(np.uint8)
        feeds["v"] = integers(np.int8, *((b[-1],) if zero_points == "columns" and len(b) == 2 else ()))
    check("MatMulInteger", feeds, opset=10)


@pytest.mark.parametrize(("rows", "tile"), [(1, (16, 16)), (9, (16, 16)), (70, (64, 64))])
def test_where_registers_are_few_less_is_loaded_at_once(
    rows: int, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of columns that share no words: one tile less flat, in short steps. tile: rows of it, and elements of a step."""
    gpu = Gpu.open(Config())
    monkeypatch.setattr(
        gpu, "limits", replace(gpu.limits, figures=replace(gpu.limits.figures, loads_ahead=True, lane_registers=128))
    )
    feeds = {
        "x": integers(np.uint8, rows, 84),
        "w": integers(np.int8, 84, 10),
        "u": integers(np.uint8),
        "v": integers(np.int8),
    }
    graph = from_onnx(model_of("MatMulInteger", feeds, ["y"], 10, {}))
    plan = make_plan(
        graph, {name: TensorType(dtype_of(array), array.shape) for name, array in feeds.items()}, gpu.limits
    )
    (consts,) = [dict(step.kernel.consts) for step in plan.steps if isinstance(step, Dispatch)]
    assert (consts["TM"], consts["STEP"]) == tile
    check("MatMulInteger", feeds, opset=10)


def test_matmul_integer_with_a_zero_point_a_row() -> None:
    feeds = {"x": integers(np.uint8, 5, 7), "w": integers(np.uint8, 7, 3), "u": integers(np.uint8, 5)}
    (got,) = run_direct(model_of("MatMulInteger", feeds, ["y"], 10, {}), feeds)
    np.testing.assert_array_equal(
        got, (feeds["x"].astype(int) - feeds["u"][:, None].astype(int)) @ feeds["w"].astype(int)
    )


@pytest.mark.parametrize(
    ("code", "op", "feeds", "attributes"),
    [
        (Code.DTYPE, "QuantizeLinear", {"x": floats(3), "w": scales()}, {"output_dtype": onnx.TensorProto.FLOAT8E5M2}),
        (Code.DTYPE, "QuantizeLinear", {"x": integers(np.int32, 3), "w": scales()}, {}),
        (Code.RANK, "QuantizeLinear", {"x": floats(3, 5), "w": scales(3, 2)}, {"block_size": 2}),
        (Code.RANK, "DequantizeLinear", {"x": integers(np.int8, 3, 5), "w": scales(4)}, {}),
    ],
)
def test_declines(code: Code, op: str, feeds: dict[str, Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(model_of(op, feeds, ["y"], 21, attributes), feeds)
    assert caught.value.code is code


def quantized_product(a: Any, b: Any, out: str, a_scale: Any, b_scale: Any, a_zp: Any, b_zp: Any) -> list[Any]:
    """The inputs of QLinearMatMul; a scale of y that lets some results saturate."""
    y_scale = np.asarray(np.mean(a_scale) * np.mean(b_scale) * 40 * np.sqrt(a.shape[-1]), "f")
    return [
        a,
        np.asarray(a_scale, "f"),
        np.asarray(a_zp, a.dtype),
        b,
        np.asarray(b_scale, "f"),
        np.asarray(b_zp, b.dtype),
        y_scale,
        np.asarray(3, out),
    ]


@pytest.mark.parametrize(
    ("left", "right", "out"), [("uint8", "uint8", "uint8"), ("uint8", "int8", "uint8"), ("int8", "int8", "int8")]
)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1, 1), (1, 1)),
        ((17, 67), (67, 19)),
        ((3, 5, 31), (3, 31, 7)),
        ((2, 3, 5, 7), (7, 11)),
        ((0, 5), (5, 3)),
        ((257, 3), (3, 263)),
    ],
)
def test_qlinear_matmul(a: tuple[int, ...], b: tuple[int, ...], left: str, right: str, out: str) -> None:
    for per_column in (False, True):
        scale = scales(b[-1]) if per_column else scales()
        zero = integers(right, b[-1]) if per_column and right == "int8" else integers(right)
        inputs = quantized_product(integers(left, *a), integers(right, *b), out, scales(), scale, integers(left), zero)
        wanted = None
        # onnxruntime takes one scale a column of int8 matrices only
        if per_column and (right == "uint8" or len(b) > 2):
            product = (inputs[0].astype("i4") - inputs[2]) @ (inputs[3].astype("i4") - inputs[5])
            exact = np.rint(product.astype("f") * (inputs[1] * inputs[4] / inputs[6])) + inputs[7]
            wanted = [np.clip(exact, np.iinfo(out).min, np.iinfo(out).max).astype(out)]
        check_node("QLinearMatMul", inputs, 21, wanted=wanted)


def test_qlinear_matmul_of_rows() -> None:
    """A scale and a zero point for each row of a, which onnxruntime does not take."""
    inputs = quantized_product(
        integers("int8", 13, 31), integers("int8", 31, 7), "int8", scales(13), scales(), integers("int8", 13), 5
    )
    product = (inputs[0].astype("i4") - inputs[2][:, None]) @ (inputs[3].astype("i4") - inputs[5])
    exact = np.rint(product.astype("f") * (inputs[1][:, None] * inputs[4] / inputs[6])) + inputs[7]
    check_node("QLinearMatMul", inputs, 21, wanted=[np.clip(exact, -128, 127).astype("int8")])


def test_halves_of_qlinear_matmul_go_to_the_even_number() -> None:
    a = np.arange(-128, 128, dtype="int8").reshape(-1, 1)
    inputs = [
        a,
        np.float32(0.5),
        np.int8(0),
        np.ones((1, 1), "int8"),
        np.float32(1),
        np.int8(0),
        np.float32(1),
        np.int8(100),
    ]
    check_node("QLinearMatMul", [np.asarray(v) for v in inputs], 21)


@pytest.mark.parametrize(
    ("shapes", "opset"),
    [
        (((5, 7), (), (), (6, 3), (), (), (), ()), 21),
        (((7,), (), (), (7, 3), (), (), (), ()), 21),
        (((5, 7), (3,), (), (7, 3), (), (), (), ()), 21),
        (((5, 7), (), (), (7, 3), (), (5,), (), ()), 21),
        (((5, 7), (), (), (7, 3), (), (), (3,), ()), 21),
        (((5, 7), (5, 1), (), (7, 3), (), (), (), ()), 10),
    ],
)
def test_products_that_are_declined(shapes: tuple[tuple[int, ...], ...], opset: int) -> None:
    inputs = [scales(*s) if k in (1, 4, 6) else integers("uint8", *s) for k, s in enumerate(shapes)]
    check_decline(Code.RANK, "QLinearMatMul", inputs, opset)
