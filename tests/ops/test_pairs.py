"""64-bit integers on an adapter that has none: as pairs of words, on a device that was not given the feature."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.partitioner.passes import rewrite
from ort_gpu_ep.runtime.program import Program
from tests.direct import device_without, run_program
from tests.ops.single_node import Array, assert_agree, node_model, on_cpu, onnx_cases

EDGES = [
    0,
    1,
    -1,
    2,
    -2,
    7,
    -7,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    -(1 << 32),
    (1 << 32) + 5,
    (1 << 53) + 1,
    -(1 << 53) - 1,
    (1 << 62) + 12345,
    -(1 << 62) - 3,
    (1 << 63) - 1,
    -(1 << 63),
]


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return device_without("shader-int64")


def pairs_of(dtype: str) -> tuple[Array, Array]:
    """Each edge with each edge, and random numbers of all lengths. Unsigned: the same bits."""
    rng = np.random.default_rng(3)
    drawn = rng.integers(-(1 << 63), 1 << 63, (2, 200), dtype=np.int64) >> rng.integers(0, 63, (2, 200))
    x = np.concatenate([np.repeat(EDGES, len(EDGES)), drawn[0]]).astype(np.int64)
    y = np.concatenate([np.tile(EDGES, len(EDGES)), drawn[1]]).astype(np.int64)
    return x.view(dtype), y.view(dtype)


def on(gpu: Gpu, model: Any, feeds: dict[str, Array]) -> list[Array]:
    program = Program(from_onnx(model), Config(), gpu, rewrite)
    try:
        return run_program(program, feeds)
    finally:
        program.close()


def check(
    gpu: Gpu, op: str, inputs: list[Array | None], opset: int = 20, wanted: Array | None = None, **more: Any
) -> None:
    model, feeds = node_model(op, inputs, opset, **more)
    (got,) = on(gpu, model, feeds)
    assert_agree(got, on_cpu(model, feeds)[0] if wanted is None else wanted)


@pytest.mark.parametrize(
    "op",
    [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Mod",
        "Less",
        "Greater",
        "LessOrEqual",
        "GreaterOrEqual",
        "Equal",
        "Max",
        "Min",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
    ],
)
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_two_operands(gpu: Gpu, op: str, dtype: str) -> None:
    x, y = pairs_of(dtype)
    if op in ("Div", "Mod"):
        kept = (y != 0) & ((x != -(1 << 63)) | (y != -1)) if dtype == "int64" else y != 0  # C leaves the others open
        x, y = x[kept], y[kept]
    check(gpu, op, [x, y])


@pytest.mark.parametrize("fmod", [0, 1])
def test_mod_with_both_signs(gpu: Gpu, fmod: int) -> None:
    x, y = pairs_of("int64")
    kept = (y != 0) & (y != -1)
    wanted = np.array(
        [
            math.copysign(1, a) * (abs(a) % abs(b))
            if fmod and abs(a) < 1 << 53 and abs(b) < 1 << 53
            else (abs(a) % abs(b)) * (-1 if a < 0 else 1)
            if fmod
            else a % b
            for a, b in zip(x[kept].tolist(), y[kept].tolist(), strict=True)
        ],
        np.int64,
    )
    check(gpu, "Mod", [x[kept], y[kept]], wanted=wanted, fmod=fmod)


@pytest.mark.parametrize("op", ["Abs", "Neg", "Relu", "BitwiseNot"])
def test_one_operand(gpu: Gpu, op: str) -> None:
    # onnxruntime has no Relu of int64
    wanted = np.array([max(v, 0) for v in EDGES], np.int64) if op == "Relu" else None
    check(gpu, op, [np.array(EDGES, np.int64)], wanted=wanted)


def test_clip_and_where(gpu: Gpu) -> None:
    x, y = pairs_of("int64")
    low, high = np.array(-(1 << 40) - 7), np.array((1 << 33) + 1)
    check(gpu, "Clip", [x, low, high], known=(1, 2))
    check(gpu, "Clip", [x, low, high])
    check(gpu, "Clip", [x, None, high], known=(2,))
    check(gpu, "Where", [np.random.default_rng(1).random(x.shape) < 0.5, x, y])


@pytest.mark.parametrize("to", ["int32", "uint32", "int8", "uint8", "bool", "float32", "uint64"])
def test_cast_from(gpu: Gpu, to: str) -> None:
    x, _ = pairs_of("int64")
    check(gpu, "Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))
    if to == "float32":
        check(gpu, "Cast", [x.view(np.uint64)], to=TensorProto.FLOAT)


@pytest.mark.parametrize("of", ["int32", "uint32", "int8", "uint8", "bool", "float32"])
def test_cast_to(gpu: Gpu, of: str) -> None:
    x = np.array(EDGES, np.int64).astype(of)
    if of == "float32":
        x = np.concatenate([x, [0.4, -0.9, 1.5, -1.5, 8388607.5, -8388607.5, 1e10, -1e-30]]).astype(np.float32)
        x = x[np.abs(x) < 9.2e18]  # ONNX leaves the others open
    check(gpu, "Cast", [x], to=TensorProto.INT64)


@pytest.mark.parametrize(
    "op",
    ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare", "CumSum", "ArgMax", "ArgMin"],
)
def test_rows(gpu: Gpu, op: str) -> None:
    x = pairs_of("int64")[0].reshape(20, 30)
    if op.startswith("Arg"):
        check(gpu, op, [x], axis=1)
        check(gpu, op, [x.astype(np.float32)], axis=0)
    else:
        wanted = None
        # modulo 2^64: onnxruntime's go through floating point
        if op in ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare"):
            of = {"ReduceL1": abs, "ReduceSumSquare": lambda v: v * v}.get(op, lambda v: v)
            rows = [[of(v) for v in row] for row in x.tolist()]
            total = [math.prod(row) if op == "ReduceProd" else sum(row) for row in rows]
            wanted = np.array([[v & (1 << 64) - 1] for v in total], np.uint64).view(np.int64)
        check(gpu, op, [x, np.array(1) if op == "CumSum" else np.array([1])], known=(1,), wanted=wanted)


def test_max_pool_with_indices_and_rotary_embedding(gpu: Gpu) -> None:
    for _, model, feeds, wanted in onnx_cases("MaxPool", "RotaryEmbedding"):
        for got, want in zip(on(gpu, model, feeds), wanted, strict=True):
            assert_agree(got, want, 1e-5)


def test_fused_with_floats(gpu: Gpu) -> None:
    """Steps of several types in one kernel, in front of it and behind it."""
    nodes = [
        helper.make_node("Sub", ["i", "one"], ["a"]),
        helper.make_node("Cast", ["a"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "x"], ["g"]),
        helper.make_node("ReduceSum", ["g", "axis"], ["h"]),
        helper.make_node("Cast", ["h"], ["j"], to=TensorProto.INT64),
        helper.make_node("Add", ["j", "i0"], ["y"]),
    ]
    held = {"one": np.array([1], np.int64), "axis": np.array([1], np.int64)}
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, [5, 7]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 7]),
            helper.make_tensor_value_info("i0", TensorProto.INT64, [5, 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [5, 1])],
        [helper.make_tensor(n, TensorProto.INT64, v.shape, v) for n, v in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rng = np.random.default_rng(2)
    feeds = {
        "i": rng.integers(-100, 100, (5, 7)),
        "x": rng.normal(size=(5, 7)).astype(np.float32),
        "i0": rng.integers(1 << 40, 1 << 50, (5, 1)),
    }
    assert_agree(on(gpu, model, feeds)[0], on_cpu(model, feeds)[0])


def test_what_has_no_form_is_declined(gpu: Gpu) -> None:
    x, y = pairs_of("int64")
    with pytest.raises(
        UnsupportedNodeError, match="Pow of 64-bit integers needs the adapter feature shader-int64"
    ) as caught:
        check(gpu, "Pow", [x, y])
    assert caught.value.code is Code.DTYPE


@pytest.mark.parametrize(("start", "dtype"), [(-5, "int32"), ((1 << 33) + 3, "int64"), (-(1 << 40), "int64")])
def test_ranges_of_large_numbers(gpu: Gpu, start: int, dtype: str) -> None:
    """A run brings them: they reach the shader as numbers of 32 bits."""
    model, feeds = node_model("Range", [np.array(v, dtype) for v in (start, start + 100, 7)], 20)
    for device in (gpu, Gpu.open(Config())):
        assert_agree(on(device, model, feeds)[0], np.arange(start, start + 100, 7, dtype=dtype))
