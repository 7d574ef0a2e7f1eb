"""QuantizeLinear and DequantizeLinear of float16, as activations and as weights, against onnxruntime's CPU.

From opset 23 on onnxruntime divides in the type of the scale, or as `precision` says; before, in float32. Codes must be
the same, each.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_gpu_ep
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.direct import PACKED, opened, run_program

Array = np.ndarray[Any, Any]
HALF, SINGLE = np.float16, np.float32
ROWS, COLUMNS, BLOCK = 64, 32, 16
KINDS = ("one", "axis", "block")


def model_of(
    nodes: list[onnx.NodeProto],
    x: Array,
    y: int,
    held: list[onnx.TensorProto],
    opset: int = 21,
    sizes: list[Any] | None = None,
) -> onnx.ModelProto:
    given = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), sizes or x.shape)
    graph = helper.make_graph(nodes, "g", [given], [helper.make_tensor_value_info("y", y, None)], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def options() -> onnxruntime.SessionOptions:
    """Without optimizations: each node as ONNX has it."""
    found = onnxruntime.SessionOptions()
    found.log_severity_level = 4
    found.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return found


def on_cpu(model: onnx.ModelProto, x: Array) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def on_gpu(model: onnx.ModelProto, x: Array, every_size_open: bool = False) -> tuple[Array, list[str]]:
    """The result, and the shaders of a run."""
    graph = from_onnx(model)
    program = Program(opened(graph) if every_size_open else graph, PACKED, Gpu.open(Config()), rewrite)
    try:
        (got,) = run_program(program, {"x": x})
        return got, [step.kernel.shader for step in program.plans[-1].steps if isinstance(step, Dispatch)]
    finally:
        program.close()


def scale_of(kind: str, dtype: Any, shape: tuple[int, ...], axis: int) -> tuple[Array, dict[str, int]]:
    """Scales of one kind, and the attributes that say so."""
    sizes = {
        "one": (),
        "axis": (shape[axis],),
        "block": tuple(-(-d // BLOCK) if k == axis else d for k, d in enumerate(shape)),
    }[kind]
    attributes = {"one": {}, "axis": {"axis": axis}, "block": {"axis": axis, "block_size": BLOCK}}[kind]
    return np.asarray(np.random.default_rng([*shape, axis]).uniform(0.005, 0.03, sizes), dtype), attributes


def numbers(dtype: Any) -> Array:
    return (3 * np.random.default_rng(7).normal(size=(ROWS, COLUMNS))).astype(dtype)


QUANTIZED = [
    (19, HALF, HALF, None),
    (21, HALF, HALF, None),
    (23, HALF, HALF, None),
    (23, HALF, SINGLE, None),
    (23, SINGLE, HALF, None),
    (23, HALF, HALF, TensorProto.FLOAT),
    (23, HALF, SINGLE, TensorProto.FLOAT16),
    (23, SINGLE, SINGLE, TensorProto.FLOAT16),
]


@pytest.mark.parametrize(("opset", "x_type", "scale_type", "precision"), QUANTIZED, ids=str)
def test_codes(opset: int, x_type: Any, scale_type: Any, precision: int | None) -> None:
    """Whichever type, zero point and arrangement of scales: each code."""
    x = numbers(x_type)
    for kind, dtype in product(KINDS, (np.int8, np.uint8, np.int16, np.uint16)):
        if opset == 19 and (kind == "block" or dtype in (np.int16, np.uint16)):
            continue  # since opset 21
        scale, attributes = scale_of(kind, scale_type, x.shape, 0)
        zero = np.random.default_rng(1).integers(0, 9, scale.shape).astype(dtype)
        attributes |= {} if precision is None else {"precision": precision}
        held = [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(zero, "z")]
        node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], **attributes)
        model = model_of([node], x, helper.np_dtype_to_tensor_dtype(zero.dtype), held, opset)
        np.testing.assert_array_equal(on_gpu(model, x, kind == "axis")[0], on_cpu(model, x))


@pytest.mark.parametrize(
    ("opset", "scale_type", "asked"),
    [(19, HALF, None), (21, HALF, None), (23, HALF, TensorProto.FLOAT), (23, SINGLE, TensorProto.FLOAT16)],
    ids=str,
)
def test_numbers(opset: int, scale_type: Any, asked: int | None) -> None:
    """Of a run's codes, in the type of the scale or in the one that is asked for."""
    made = asked or helper.np_dtype_to_tensor_dtype(np.dtype(scale_type))
    for kind, dtype, has_zero in product(KINDS, (np.int8, np.uint8, np.int16, np.uint16, np.int32), (True, False)):
        if (opset == 19 and (kind == "block" or dtype in (np.int16, np.uint16))) or (dtype is np.int32 and has_zero):
            continue  # onnxruntime's CPU has no zero points of 32 bits
        x = np.random.default_rng(2).integers(0, 120, (ROWS, COLUMNS)).astype(dtype)
        scale, attributes = scale_of(kind, scale_type, x.shape, 0)
        held = [numpy_helper.from_array(scale, "s")]
        if has_zero:
            held.append(
                numpy_helper.from_array(np.random.default_rng(1).integers(0, 9, scale.shape).astype(dtype), "z")
            )
        attributes |= {} if asked is None else {"output_dtype": asked}
        node = helper.make_node("DequantizeLinear", ["x", "s", "z"][: 2 + has_zero], ["y"], **attributes)
        model = model_of([node], x, made, held, opset)
        np.testing.assert_array_equal(on_gpu(model, x)[0], on_cpu(model, x))


def test_the_ends_of_float16() -> None:
    """Quotients beyond it, small ones, halves, infinities: each code."""
    with np.errstate(over="ignore"):
        x = np.concatenate(
            [np.arange(-70, 70) * 0.5, [6e4, -6e4, 65504, -65504, np.inf, -np.inf, 6e-8, -6e-8, 0, 1e-3]]
        ).astype(HALF)
    for scale, opset, dtype in product((1, 6e-8, 0.03, 6e4), (21, 23), (np.int8, np.uint16)):
        held = [
            numpy_helper.from_array(np.asarray(scale, HALF), "s"),
            numpy_helper.from_array(np.asarray(3, dtype), "z"),
        ]
        model = model_of(
            [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])],
            x,
            helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
            held,
            opset,
        )
        np.testing.assert_array_equal(on_gpu(model, x)[0], on_cpu(model, x))


CHAINS = {
    "there and back": ["q = QuantizeLinear(x, s, z)", "y = DequantizeLinear(q, s, z)"],
    "elementwise between": [
        "q = QuantizeLinear(x, s, z)",
        "d = DequantizeLinear(q, s, z)",
        "r = Relu(d)",
        "e = QuantizeLinear(r, t, z)",
        "y = DequantizeLinear(e, t, z)",
    ],
    "product before": ["m = Mul(x, x)", "q = QuantizeLinear(m, t, z)", "y = DequantizeLinear(q, t, z)"],
    "Softmax of bytes": ["q = QuantizeLinear(x, t, z)", "d = DequantizeLinear(q, t, z)", "y = Softmax(d)"],
    "mean of bytes": ["q = QuantizeLinear(x, t, z)", "d = DequantizeLinear(q, t, z)", "y = ReduceMean(d, last)"],
    "transposed": [
        "q = QuantizeLinear(x, s, z)",
        "d = DequantizeLinear(q, s, z)",
        "a = Transpose(d)",
        "e = QuantizeLinear(a, s, z)",
        "y = DequantizeLinear(e, s, z)",
    ],
}


@pytest.mark.parametrize("opset", [21, 23])
@pytest.mark.parametrize("name", CHAINS)
def test_between_bytes(name: str, opset: int) -> None:
    """What fusion joins sees what onnxruntime's nodes see: float16 that was rounded."""
    x = numbers(HALF)
    nodes = []
    for text in CHAINS[name]:
        y, call = text.split(" = ")
        op, arguments = call.rstrip(")").split("(")
        nodes.append(helper.make_node(op, arguments.split(", "), [y]))
    held = [
        numpy_helper.from_array(np.asarray(v, d), n)
        for n, v, d in (("s", 0.0312, HALF), ("t", 0.0711, HALF), ("z", 3, np.int8), ("last", [-1], np.int64))
        if any(n in node.input for node in nodes)
    ]
    model = model_of(nodes, x, TensorProto.FLOAT16, held, opset)
    got, wanted = on_gpu(model, x)[0], on_cpu(model, x)
    if name in ("Softmax of bytes", "mean of bytes"):
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=2e-3, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, wanted)


OPS = {
    "MatMul": (ROWS, COLUMNS),
    "Gemm": (COLUMNS, ROWS),
    "Conv": (COLUMNS, ROWS, 1, 1),
    "ConvTranspose": (ROWS, COLUMNS, 2, 2),
    "Gather": (ROWS, COLUMNS),
    "Einsum": (ROWS, COLUMNS),
}
WEIGHTS = {"INT4": (-8, 8), "UINT4": (0, 16), "INT8": (-128, 128), "UINT8": (0, 256), "INT16": (-900, 900)}


def weight_model(
    op: str, dtype: str, kind: str, axis: int, has_zero: bool, count: int
) -> tuple[onnx.ModelProto, Array]:
    """DequantizeLinear of a constant with float16 scales, and what reads it: a few vectors, or many."""
    shape, rng = OPS[op], np.random.default_rng(5)
    scale, attributes = scale_of(kind, HALF, shape, axis)
    code = getattr(TensorProto, dtype)
    codes = rng.integers(*WEIGHTS[dtype], int(np.prod(shape)))
    held = [helper.make_tensor("w", code, shape, codes.tolist()), numpy_helper.from_array(scale, "s")]
    if has_zero:
        held.append(helper.make_tensor("z", code, scale.shape, rng.integers(0, 7, max(scale.size, 1)).tolist()))
    decoder = helper.make_node("DequantizeLinear", ["w", "s", "z"][: 2 + has_zero], ["d"], **attributes)
    images = op in ("Conv", "ConvTranspose")
    x = (
        rng.integers(0, ROWS, (count, 4))
        if op == "Gather"
        else rng.normal(size=(count, ROWS, *((3, 3) if images else ()))).astype(HALF)
    )
    given: dict[str, Any] = {"Gemm": {"transB": 1}, "Einsum": {"equation": "ik,kj->ij"}}.get(op, {})
    node = helper.make_node(op, ["d", "x"] if op == "Gather" else ["x", "d"], ["y"], **given)
    return model_of([decoder, node], x, TensorProto.FLOAT16, held, sizes=["n", *x.shape[1:]]), x


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", WEIGHTS)
def test_weights(op: str, dtype: str) -> None:
    for k, (kind, axis) in enumerate((("one", 0), ("axis", 0), ("axis", 1), ("block", 0), ("block", 1))):
        model, x = weight_model(
            op, dtype, kind, axis, has_zero=k % 2 == 0, count=40 if op == "MatMul" and axis == 0 else 2
        )
        got, wanted = on_gpu(model, x, True)[0], on_cpu(model, x)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        largest = np.abs(wanted.astype(np.float64)).max()
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=2e-3, atol=2e-3 * largest)


@pytest.mark.parametrize(
    ("op", "kind", "axis", "shaders"),
    [
        ("MatMul", "block", 0, ["packed_matvec.wgsl"]),
        ("Gemm", "block", 1, ["packed_matvec.wgsl"]),
        ("Gemm", "axis", 0, ["packed_matvec.wgsl"]),
        ("Gather", "block", 1, ["gather.wgsl"]),
    ],
)
@pytest.mark.parametrize("dtype", ["INT4", "INT8"])
def test_weights_stay_packed(op: str, kind: str, axis: int, shaders: list[str], dtype: str) -> None:
    model, x = weight_model(op, dtype, kind, axis, True, 2)
    assert on_gpu(model, x)[1] == shaders


@pytest.mark.parametrize("options_of", [onnxruntime.SessionOptions, options], ids=["optimized", "as written"])
@pytest.mark.parametrize(
    ("op", "dtype", "kind"),
    [("MatMul", "INT4", "block"), ("Conv", "INT8", "axis"), ("Gather", "UINT4", "block"), ("Gemm", "INT16", "one")],
)
def test_a_session_runs_what_it_claims(op: str, dtype: str, kind: str, options_of: Any) -> None:
    """All nodes on the GPU, before the first run and after it, without a fallback: strict=1 would raise."""
    model, x = weight_model(op, dtype, kind, 0, True, 2)
    session = ort_gpu_ep.InferenceSession(
        model.SerializeToString(), options_of(), provider_options={"placement": "gpu", "strict": "1"}
    )
    claimed = session.explain().count("gpu")
    got = session.run(None, {"x": x})[0]
    told = session.explain()
    assert (claimed, told.count("gpu"), told.count("cpu"), told.events, session.stats()["fallbacks"]) == (
        2,
        2,
        0,
        (),
        0,
    )
    wanted = on_cpu(model, x).astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max())


def test_a_quantized_convolution_of_float16() -> None:
    """Bytes in, bytes out, as quantizers write half-precision networks: the codes are onnxruntime's, but for sums near
    a half."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(1, 8, 9, 9)).astype(HALF)
    held = [
        numpy_helper.from_array(np.asarray(v, d), n)
        for n, v, d in (
            ("s", 0.05, HALF),
            ("z", 0, np.int8),
            ("u", 0.01, HALF),
            ("t", 0.09, HALF),
            ("w", rng.integers(-90, 90, (8, 8, 3, 3)), np.int8),
        )
    ]
    nodes = [
        helper.make_node(op, inputs.split(), [y], **given)
        for op, inputs, y, given in (
            ("QuantizeLinear", "x s z", "q", {}),
            ("DequantizeLinear", "q s z", "d", {}),
            ("DequantizeLinear", "w u z", "e", {}),
            ("Conv", "d e", "c", {"pads": [1, 1, 1, 1]}),
            ("Relu", "c", "r", {}),
            ("QuantizeLinear", "r t z", "y", {}),
        )
    ]
    model = model_of(nodes, x, TensorProto.INT8, held)
    off = np.abs(on_gpu(model, x)[0].astype(int) - on_cpu(model, x).astype(int))
    assert off.max() <= 1
    assert off.mean() < 0.02


def test_declined_with_a_reason() -> None:
    """bfloat16 scales, and codes of 4 bits that a run brings."""
    x = numbers(HALF)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=TensorProto.INT4),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"]),
    ]
    model = model_of(nodes, x, TensorProto.FLOAT16, [numpy_helper.from_array(np.asarray(0.5, HALF), "s")])
    with pytest.raises(UnsupportedNodeError, match="no kernel makes element type int4") as found:
        on_gpu(model, x)
    assert found.value.code is Code.DTYPE
    codes = x.astype(np.int8)
    scale = helper.make_tensor("s", TensorProto.BFLOAT16, (), [0.5])
    model = model_of([helper.make_node("DequantizeLinear", ["x", "s"], ["y"])], codes, TensorProto.BFLOAT16, [scale])
    with pytest.raises(UnsupportedNodeError, match="scale bfloat16; taken: float32, float16"):
        on_gpu(model, codes)
