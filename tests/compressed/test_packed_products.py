"""Products that read packed weights: against the same product of the dense weights in float64, and ONNX Runtime's
CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES
from ort_gpu_ep.kernels.target import SUBNORMAL_HALVES
from ort_gpu_ep.ops.packed_vectors import HALVES
from ort_gpu_ep.partitioner import fuse
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.compressed.test_sub_byte import constant
from tests.daily import part
from tests.direct import run_direct, run_program
from tests.ops.single_node import on_cpu

RNG = np.random.default_rng(4)


def nbits_model(
    shape: tuple[Any, ...], k: int, n: int, bits: int, block: int, zero: str, bias: bool
) -> tuple[onnx.ModelProto, Any]:
    """A MatMulNBits, and the dense weights [k, n]."""
    blocks = -(-k // block)
    codes = RNG.integers(0, 1 << bits, (n, blocks * block))
    held = {"B": pack(codes, bits).reshape(n, blocks, -1), "s": RNG.uniform(0.01, 0.2, (n, blocks)).astype("f")}
    zeros = np.full((n, blocks), 1 << bits - 1, "f")
    inputs = ["x", "B", "s", "", "", ""]
    if zero == "codes":
        points = RNG.integers(0, 1 << bits, (n, -(-blocks * bits // 8) * 8 // bits))
        held["z"], zeros, inputs[3] = pack(points, bits).reshape(-1), points[:, :blocks].astype("f"), "z"
    elif zero == "floats":
        held["z"], inputs[3] = RNG.uniform(0, 1 << bits, (n, blocks)).astype("f"), "z"
        zeros = held["z"]
    if bias:
        held["b"], inputs[5] = RNG.normal(size=n).astype("f"), "b"
    while not inputs[-1]:
        inputs.pop()
    dense = (codes.reshape(n, blocks, block) - zeros[..., None].astype("d")) * held["s"][..., None].astype("d")
    node = helper.make_node(
        "MatMulNBits", inputs, ["y"], domain="com.microsoft", K=k, N=n, bits=bits, block_size=block, accuracy_level=1
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, (*shape[:-1], n))],
        [numpy_helper.from_array(a, name) for name, a in held.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), (
        dense.reshape(n, -1)[:, :k].T,
        held.get("b", 0),
    )


def pack(codes: Any, bits: int) -> Any:
    grouped = codes.reshape(-1, 8 // bits).astype(np.uint8)
    return np.bitwise_or.reduce(grouped << np.arange(0, 8, bits, dtype=np.uint8), axis=1)


def close(got: Any, wanted: Any) -> None:
    assert got.shape == np.shape(wanted)
    error = np.linalg.norm(got.astype("d") - wanted) / max(np.linalg.norm(wanted), 1e-30)
    assert error < 1e-5, error


@pytest.mark.parametrize(
    ("shape", "n", "block", "zero", "bits"),
    part(
        [
            ((1, 64), 5, 32),
            ((3, 100), 33, 16),
            ((4, 96), 37, 64),
            ((2, 3, 37), 70, 16),
            ((41, 257), 67, 128),
            ((64,), 9, 64),
            ((1, 1, 1030), 130, 32),
            ((0, 32), 8, 32),
        ],
        ["none", "codes", "floats"],
        [2, 4, 8],
    ),
)
def test_matmul_nbits(bits: int, zero: str, shape: tuple[int, ...], n: int, block: int) -> None:
    model, (dense, bias) = nbits_model(shape, shape[-1], n, bits, block, zero, bias=n % 2 == 1)
    x = RNG.normal(size=shape).astype("f")
    for every_size_open in (False, True) if zero == "codes" else (False,):
        (got,) = run_direct(model, {"x": x}, every_size_open=every_size_open)
        close(got, x.astype("d") @ dense + bias)


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's figures, and float16 numbers below 2^-14, which a probe would have shown."""
    gpu = Gpu.open(Config())
    features = gpu.limits.features | {SUBNORMAL_HALVES}
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, features=features, figures=DEFAULT_FIGURES))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero", ["none", "codes", "floats"])
@pytest.mark.parametrize(("count", "k", "block"), [(1, 164, 16), (3, 164, 16), (3, 164, 32), (3, 1056, 32)])
def test_codes_read_as_halves(bits: int, zero: str, count: int, k: int, block: int, halves: None) -> None:
    """Whatever the vector is: large and small elements beside each other, some that are not finite or become so, and
    some next to nothing. Of three vectors each iteration takes eight k where blocks and k are of 32."""
    model, (dense, _) = nbits_model((count, k), k, 37, bits, block, zero, bias=False)
    x = RNG.normal(size=(3, k)).astype("f")
    x[1] *= 10.0 ** RNG.uniform(-30, 3, k)
    x[2] *= 1e-34
    groups = [x[i : i + count] for i in range(0, 3, count)]
    forms = {
        (step.kernel.choice.key, step.kernel.choice.form) for step in plan_steps(model, groups[0]) if step.kernel.choice
    }
    assert forms == {(f"vectors 37 x {k}, {bits} bits", HALVES)}
    for large in (1, 1e33):
        x[0] *= large
        for group in groups:
            for row, wanted in zip(run_direct(model, {"x": group})[0], group.astype("d") @ dense, strict=True):
                close(row / np.abs(wanted).max(), wanted / np.abs(wanted).max())
    for value in (np.inf, -np.inf, np.nan):
        x[0, 77] = value
        with np.errstate(invalid="ignore"):
            wanted = x[:1].astype("d") @ dense
        np.testing.assert_array_equal(run_direct(model, {"x": groups[0]})[0][:1], wanted)


def test_bytes_with_a_scale_for_each_row_read_as_halves(halves: None) -> None:
    for zero_point in (False, True):
        model = weighted("Gemm", "int8", (1, 100), (100, 37), (37,), zero_point, (37,), {"axis": 1})
        feeds = {"x": RNG.normal(size=(1, 100)).astype("f")}
        close(run_direct(model, feeds, fuse)[0], exact(model, feeds))


def plan_steps(model: onnx.ModelProto, x: Any) -> list[Dispatch]:
    plan = make_plan(from_onnx(model), {"x": TensorType(FLOAT32, x.shape)}, Gpu.open(Config()).limits)
    return [step for step in plan.steps if isinstance(step, Dispatch)]


def test_matmul_nbits_is_what_onnxruntime_computes() -> None:
    model, _ = nbits_model((3, 96), 96, 40, 4, 32, "codes", bias=True)
    x = RNG.normal(size=(3, 96)).astype("f")
    close(run_direct(model, {"x": x})[0], on_cpu(model, {"x": x})[0])


def with_order(
    shape: tuple[int, ...], n: int, bits: int, block: int, zero: str, index: Any
) -> tuple[onnx.ModelProto, Any]:
    """A MatMulNBits with g_idx, and its dense weights."""
    k, blocks = shape[-1], -(-shape[-1] // block)
    model, (_, bias) = nbits_model(shape, k, n, bits, block, zero, bias=True)
    node, held = model.graph.node[0], {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    node.input[4] = "g"
    model.graph.initializer.append(numpy_helper.from_array(index.astype("i4"), "g"))

    def codes_of(stored: Any, count: int) -> Any:
        return (stored.reshape(n, -1)[..., None] >> np.arange(0, 8, bits) & (1 << bits) - 1).reshape(n, -1)[:, :count]

    zeros = (
        np.full((n, blocks), 1 << bits - 1)
        if zero == "none"
        else codes_of(held["z"], blocks)
        if zero == "codes"
        else held["z"]
    )
    own = index[:k]
    return model, (((codes_of(held["B"], k) - zeros[:, own].astype("d")) * held["s"][:, own].astype("d")).T, bias)


@pytest.mark.parametrize(
    ("shape", "n", "bits", "block", "zero", "order", "is_open"),
    part(
        [
            ((1, 64), 40, 4, 16),
            ((2, 3, 100), 33, 4, 32),
            ((70, 256), 64, 4, 64),
            ((1, 96), 9, 8, 32),
            ((5, 128), 20, 2, 32),
        ],
        ["none", "codes", "floats"],
        ["blocks", "shuffled", "padded"],
        [False, True],
    ),
)
def test_blocks_in_any_order(
    order: str, zero: str, shape: tuple[int, ...], n: int, bits: int, block: int, is_open: bool
) -> None:
    """g_idx, as models have it that were quantised by the size of their activations. onnxruntime's CPU leaves out zero
    points that are codes, takes 2 bits for 4, and does not take 8: there the sums in float64 tell."""
    k = shape[-1]
    index = np.arange(-(-k // block) * block if order == "padded" else k) // block
    index[:k] = index[:k] if order == "blocks" else RNG.permutation(index[:k])
    model, (dense, bias) = with_order(shape, n, bits, block, zero, index)
    x = RNG.normal(size=shape).astype("f")
    (got,) = run_direct(model, {"x": x}, every_size_open=is_open)
    close(got, x.astype("d") @ dense + bias)
    if bits == 4 and zero != "codes":
        close(got, on_cpu(model, {"x": x})[0])


@pytest.mark.parametrize(
    "index", [np.arange(64) % 3 % 2, np.zeros(64, int), np.arange(64) // 32 + 1, np.arange(40) // 32]
)
def test_blocks_of_other_lengths_are_declined(index: Any) -> None:
    model, _ = with_order((3, 64), 40, 4, 32, "none", np.arange(64) // 32)
    next(i for i in model.graph.initializer if i.name == "g").CopyFrom(numpy_helper.from_array(index.astype("i4"), "g"))
    with pytest.raises(UnsupportedNodeError, match="g_idx") as caught:
        run_direct(model, {"x": np.zeros((3, 64), "f")})
    assert caught.value.code is Code.ATTRIBUTE


def weighted(
    op: str,
    kind: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    scale: tuple[int, ...],
    zero_point: bool,
    bias: tuple[int, ...] | None,
    decoder: dict[str, Any],
    **attributes: Any,
) -> onnx.ModelProto:
    """y = relu(op(x, DequantizeLinear(w), bias))."""
    held = [constant("w", kind, w), helper.make_tensor("s", 1, scale, RNG.uniform(0.01, 0.3, scale).reshape(-1))]
    held += [constant("z", kind, scale)] if zero_point else []
    held += [helper.make_tensor("b", 1, bias, RNG.normal(size=bias).reshape(-1))] if bias is not None else []
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", *(["z"] if zero_point else [])], ["d"], **decoder),
        helper.make_node(op, ["x", "d", *(["b"] if bias is not None else [])], ["p"], **attributes),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, x)], [helper.make_empty_tensor_value_info("y")], held
    )
    opset = 25 if "2" in kind else 21
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=12 if opset == 25 else 10
    )
    return onnx.shape_inference.infer_shapes(model)


KINDS = ["int8", "uint8", "int4", "uint4", "int2", "uint2"]
CASES = [
    ("MatMul", (1, 64), (64, 96), (), None, {}, {}),
    ("MatMul", (3, 67), (67, 33), (33,), None, {"axis": 1}, {}),
    ("MatMul", (2, 20, 131), (131, 70), (70,), None, {"axis": -1}, {}),
    ("MatMul", (67,), (67, 5), (), None, {}, {}),
    ("MatMul", (5, 64), (64, 33), (4, 33), None, {"axis": 0, "block_size": 16}, {}),
    ("MatMul", (50, 70), (70, 33), (3, 33), None, {"axis": 0, "block_size": 32}, {}),
    ("Gemm", (1, 100), (100, 37), (37,), (37,), {"axis": 1}, {}),
    ("Gemm", (4, 128), (64, 128), (64,), (64,), {"axis": 0}, {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", (128, 40), (65, 128), (65, 4), (40, 1), {"axis": 1, "block_size": 32}, {"transB": 1, "transA": 1}),
    ("Conv", (2, 3, 9, 11), (13, 3, 3, 3), (13,), (13,), {"axis": 0}, {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ("Conv", (1, 16, 8, 8), (32, 16, 1, 1), (32,), None, {"axis": 0}, {}),
    ("Conv", (1, 64, 1, 1), (24, 64, 1, 1), (), (24,), {}, {}),
    ("Conv", (2, 16, 9), (32, 8, 3), (), (32,), {}, {"group": 2, "auto_pad": "SAME_UPPER"}),
    ("Conv", (1, 2, 5, 6, 7), (9, 2, 3, 3, 2), (9,), None, {"axis": 0}, {"pads": [0, 1, 0, 1, 0, 1]}),
]


@pytest.mark.parametrize(("op", "x", "w", "scale", "bias", "decoder", "attributes", "kind"), part(CASES, KINDS))
def test_decoders_are_absorbed(
    kind: str, op: str, x: Any, w: Any, scale: Any, bias: Any, decoder: Any, attributes: Any
) -> None:
    for zero_point in (False, True):
        model = weighted(op, kind, x, w, scale, zero_point, bias, decoder, **attributes)
        feeds = {"x": RNG.normal(size=x).astype("f")}
        seen = []

        def rewrite(*arguments: Any, seen: list[Any] = seen, **named: Any) -> Any:
            seen.append(fuse(*arguments, **named))
            return seen[-1]

        for every_size_open in (False, True) if zero_point and kind == "int4" else (False,):
            (got,) = run_direct(model, feeds, rewrite, every_size_open)
            wanted = exact(model, feeds)
            close(got, wanted)
        assert {tuple(n.op for n in g.nodes) for g in seen} == {(f"Packed{op}",)}, seen[-1].nodes


def exact(model: onnx.ModelProto, feeds: Any) -> Any:
    """By ONNX Runtime's CPU of the weights as DequantizeLinear's own model gives them: its products with quantised
    weights round activations."""
    decoder, held = model.graph.node[0], {i.name: i for i in model.graph.initializer}
    graph = helper.make_graph(
        [decoder], "d", [], [helper.make_empty_tensor_value_info("d")], [held[n] for n in decoder.input]
    )
    dense = on_cpu(helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version), {})[0]
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    whole.graph.node.remove(whole.graph.node[0])
    whole.graph.initializer.append(numpy_helper.from_array(dense, "d"))
    return on_cpu(whole, feeds)[0]


def test_few_vectors_after_many_read_the_weights_once() -> None:
    """A plan for many vectors, which unpacks weights, is not taken for few; and many of another number take the plan
    that there is."""
    model, _ = nbits_model(("n", 256), 256, 64, 4, 32, "codes", False)
    gpu = Gpu.open(Config())
    program, shaders = Program(from_onnx(model), Config(), gpu), list[bool]()
    for count in (64, 200, 3, 5, 3):
        x = RNG.normal(size=(count, 256)).astype("f")
        np.testing.assert_allclose(run_program(program, {"x": x})[0], on_cpu(model, {"x": x})[0], rtol=1e-4, atol=1e-4)
        plan = program.plan([TensorType(FLOAT32, x.shape)])
        shaders.append(any("matvec" in s.kernel.shader for s in plan.steps if isinstance(s, Dispatch)))
    assert shaders == [False, False, True, False, True]
    assert program.planned == 2
