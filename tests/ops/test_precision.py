"""Products with weights in float16, and in float16 altogether, in each of their kernels: against float64, within what
the format allows.

Bounds: a number of float16 is off by a step of its last digit at most, 2^-10 of it, however it is rounded, or by 2^-14
where small ones count as zero. In `f16acc` each of up to CHUNK products that are summed in float16 may be rounded twice
(product, sum).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.health.probes.tiles import chosen
from ort_gpu_ep.ir.graph import Graph, Node, Value, from_onnx
from ort_gpu_ep.ir.types import FLOAT32, HALF
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.target import LAST_ARRIVING, lacks
from ort_gpu_ep.ops import tiles
from ort_gpu_ep.ops.packed import BEFORE
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.compressed.test_packed_products import nbits_model
from tests.direct import run_program

Array = np.ndarray[Any, Any]
STEP, SMALLEST, FLOAT32_SUM = 2.0**-10, 2.0**-14, 2.0**-20


def graph_of(op: str, x: Array, w: Array, version: int = 13, channels_last: bool = False, **attributes: Any) -> Graph:
    values = {"x": Value("x", FLOAT32, x.shape), "w": Value("w", FLOAT32, w.shape, lambda: w), "y": Value("y", FLOAT32)}
    node = Node(op, ("x", "w"), ("y",), "node", "", version, attributes, channels_last=channels_last)
    return Graph("g", ("x",), ("y",), (node,), values)


def normal(*shape: int) -> Array:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def result(graph: Graph, x: Array, precision: str) -> tuple[Array, list[str], list[str]]:
    """Of the second run; its shaders, and the element types in which the device has the weight."""
    program = Program(graph, Config(precision=precision), Gpu.open(Config()))
    try:
        run_program(program, {"x": x})
        (got,) = run_program(program, {"x": x})
        plan = program.plans[-1]
        stored = [t.type.dtype.name for step in plan.prologue for t in step.tensors if t.written] + ["float32"] * (
            not program.context.replaced
        )
        return got, [s.kernel.shader for s in plan.steps if isinstance(s, Dispatch)], stored
    finally:
        program.close()


def assert_within(got: Array, x: Array, w: Array, precision: str) -> None:
    """Of x w in float64. x: rows of K; w: [K, M]."""
    exact, sizes = x.astype(np.float64) @ w, np.abs(x).astype(np.float64) @ np.abs(w)
    roundings = STEP * (1 if precision == "f16" else 2 + 2 * tiles.CHUNK) + FLOAT32_SUM
    lost = SMALLEST * (np.abs(x).sum(-1, keepdims=True) + np.abs(w).sum(0) + len(w))
    assert (np.abs(got.reshape(exact.shape) - exact) <= roundings * sizes + lost).all()
    # of random signs, so that errors add up as the root of their squares do
    typical = STEP * (1 if precision == "f16" else np.sqrt(tiles.CHUNK))
    assert 1e-6 < np.linalg.norm(got.reshape(exact.shape) - exact) / np.linalg.norm(exact) < typical


@pytest.mark.parametrize("precision", ["f16", "f16acc"])
@pytest.mark.parametrize(
    ("name", "split"), [("64x64", 1), ("32x32/4", 1), ("32x32/4", 3), ("16x32/4", 1), ("16x16", 1)], ids=str
)
def test_products_in_tiles(name: str, split: int, precision: str) -> None:
    """Weights that are packed, and (MatMul) that lie right already; sizes that fill no tile. The device has them in
    float16 alone."""
    tile = next(t for t in tiles.TILES if t.name == name)
    assert tile.fits(Gpu.open(Config()).limits, precision == "f16acc")
    x, w = normal(1, 1, 70, 160), normal(136, 160, 1, 1)
    with chosen(tile, split):
        got, shaders, stored = result(graph_of("Conv", x, w, 11, True), x, precision)
        assert_within(got, x[0, 0], w[:, :, 0, 0].T, precision)
        assert (shaders[0], stored) == ("product.wgsl", ["half"])
        x, w = normal(70, 160), normal(160, 132)
        got, _, stored = result(graph_of("MatMul", x, w), x, precision)
        assert_within(got, x, w, precision)
        assert stored == ["half"]


def test_parts_of_k_and_windows_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that the last workgroup adds up, taps beside the image, and an image in planes whose weights are too small
    to be halved."""
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, features=gpu.limits.features | {LAST_ARRIVING}))
    for x_shape, w_shape, planes in (((1, 9, 8, 64), (32, 64, 3, 3), False), ((1, 3, 9, 8), (12, 3, 3, 3), True)):
        x, w = normal(*x_shape), normal(*w_shape)
        padded = np.pad(x.transpose(0, 2, 3, 1) if planes else x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        rows = np.stack(
            [padded[0, i : i + 9, j : j + 8].reshape(72, -1) for i in range(3) for j in range(3)], 1
        ).reshape(72, -1)
        tile = next(t for t in tiles.TILES if t.name == "32x32/4")
        with chosen(tile, 1 if planes else 3):
            got, shaders, stored = result(graph_of("Conv", x, w, 11, True, pads=(1, 1, 1, 1)), x, "f16acc")
        assert_within(got, rows, w.transpose(2, 3, 1, 0).reshape(-1, len(w)), "f16acc")
        assert shaders == ["product.wgsl"]
        assert planes or stored == ["half"]


@pytest.mark.parametrize("precision", ["f16", "f16acc"])
@pytest.mark.parametrize(
    ("form", "op", "k", "count", "shader"),
    [
        ("rows 8", "Gemm", 516, 77, "matvec_rows"),
        ("rows 2", "Gemm", 1412, 33, "matvec_rows"),
        ("columns 8", "MatMul", 1031, 36, "matvec_columns"),
        ("columns 32", "MatMul", 129, 260, "matvec_columns"),
        ("any", "MatMul", 515, 77, "matvec"),
        ("any", "Gemm", 515, 77, "matvec"),
    ],
)
def test_products_by_a_vector(form: str, op: str, k: int, count: int, shader: str, precision: str) -> None:
    """Weights as the model has them, in float16. What is calculated is float32."""
    x, w = normal(1, k), normal(k, count)
    with forced(form):
        graph = graph_of(op, x, np.ascontiguousarray(w.T), transB=1) if op == "Gemm" else graph_of(op, x, w)
        got, shaders, stored = result(graph, x, precision)
    assert_within(got, x, w, "f16")
    assert (shaders[0], stored) == (f"{shader}.wgsl", ["half"])


def test_convolutions_over_planes() -> None:
    """gemm.wgsl, conv_direct.wgsl and conv_transpose.wgsl read weights through the composer's accessor: they are those
    of float16."""
    for op, x_shape, w_shape, attributes in (
        ("Conv", (1, 130, 5, 7), (131, 130, 1, 1), {}),
        ("Conv", (1, 30, 80), (30, 15, 46), {"group": 2}),
        ("Conv", (1, 512, 9, 9), (512, 4, 3, 3), {"group": 128}),
        ("ConvTranspose", (1, 70, 5, 5), (70, 30, 3, 3), {}),
        ("ConvTranspose", (1, 4, 5, 5), (4, 700, 3, 3), {}),
    ):
        x, w = normal(*x_shape), normal(*w_shape)
        rounded = w.astype(np.float16).astype(np.float32)
        assert w.nbytes > 64 << 10
        got, _, stored = result(graph_of(op, x, w, 11, **attributes), x, "f16")
        want, exact = (result(graph_of(op, x, each, 11, **attributes), x, "float32")[0] for each in (rounded, w))
        assert stored == ["half"]
        assert np.abs(got - want).max() <= 2e-3 * np.abs(want - exact).max() + 1e-5 * np.abs(want).max()


def test_a_weight_beyond_float16_stays_float32() -> None:
    """Each alone: one number decides."""
    x, w = normal(4, 160), normal(160, 132)
    exact = result(graph_of("MatMul", x, w), x, "float32")[0]
    for value in (65505.0, -65505.0, np.inf, np.nan):
        large = w.copy()
        large[7, 3] = value
        got, _, stored = result(graph_of("MatMul", x, large), x, "f16")
        np.testing.assert_array_equal(got[:, 4:], exact[:, 4:])
        assert stored == ["float32"]
    large[7, 3] = 65504.0
    assert result(graph_of("MatMul", x, large), x, "f16")[2] == ["half"]


@pytest.mark.parametrize("value", [1e6, -7e4, np.inf])
def test_a_product_of_a_weight_beyond_float16_is_calculated_in_float32(value: float) -> None:
    """Of either operand, of weights that are looked at as a whole and of small ones, of convolutions and of their
    transposes."""
    left, w, x = normal(64, 160), normal(160, 132), normal(64, 160)
    w[7, 3] = left[3, 7] = value
    as_left = Graph(
        "g",
        ("x",),
        ("y",),
        (Node("MatMul", ("left", "x"), ("y",), version=13),),
        {
            "left": Value("left", FLOAT32, left.shape, lambda: left),
            "x": Value("x", FLOAT32, w.shape),
            "y": Value("y", FLOAT32),
        },
    )
    small, filters, upwards = normal(160, 16), normal(136, 160, 1, 1), normal(160, 64, 2, 2)
    small[9, 2] = filters[3, 5] = upwards[7, 1, 1, 1] = value
    image = normal(1, 8, 9, 160)
    for graph, given in (
        (graph_of("MatMul", x, w), x),
        (as_left, normal(160, 132)),
        (graph_of("MatMul", x, small), x),
        (graph_of("Conv", image, filters, 11, True), image),
        (graph_of("ConvTranspose", image, upwards, 11, True, strides=(2, 2)), image),
    ):
        exact, shaders, _ = result(graph, given, "float32")
        got, same, _ = result(graph, given, "f16acc")
        assert "product.wgsl" in shaders
        assert shaders == same
        np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize(("scale", "same"), [(1.0, False), (1e4, True)])
def test_a_product_of_codes_that_stand_for_more_than_float16_is_calculated_in_float32(scale: float, same: bool) -> None:
    model, _ = nbits_model((64, 160), 160, 132, 4, 32, "codes", False)
    graph = from_onnx(model)
    scales = graph.constant("s") * np.float32(scale)
    graph = graph.with_nodes(graph.nodes, {"s": replace(graph.values["s"], load=lambda: scales)})
    x = normal(64, 160)
    with forced(BEFORE):
        exact, shaders, _ = result(graph, x, "float32")
        got, _, _ = result(graph, x, "f16acc")
    assert "product.wgsl" in shaders
    assert np.isfinite(got).all()
    assert (got == exact).all() == same


def test_float32_stays_as_it_is() -> None:
    """Also after the same node was asked for in the other precisions, and with a weight that one of them has halved."""
    x, w = normal(70, 160), normal(160, 132)
    before = result(graph_of("MatMul", x, w), x, "float32")
    others = [result(graph_of("MatMul", x, w), x, precision)[0] for precision in ("f16", "f16acc")]
    after = result(graph_of("MatMul", x, w), x, "float32")
    np.testing.assert_array_equal(before[0], after[0])
    assert after[2] == ["float32"]
    assert all((other != after[0]).any() for other in others)
    assert (others[0] != others[1]).any()


def test_a_halved_weight_is_given_back_rounded() -> None:
    """Two products of one weight, in orders of their own: each has its float16, and float32 is not there."""
    x, w = normal(1, 160), normal(160, 132)
    graph = graph_of("MatMul", x, w)
    program = Program(graph, Config(precision="f16"), Gpu.open(Config()))
    try:
        run_program(program, {"x": x})
        assert list(program.context.replaced) == ["w"]
        buffer = program.weight("w")
        restored = np.empty_like(w)
        program.gpu.download(buffer, 0, restored.ctypes.data, restored.nbytes)
        assert np.abs(restored - w).max() <= STEP * np.abs(w).max()
        assert (restored != w).any()
        made = {t.type.dtype for step in program.plans[-1].prologue for t in step.tensors if t.written}
        assert made == {HALF}
    finally:
        program.close()


def test_what_an_adapter_lacks() -> None:
    limits = Gpu.open(Config()).limits
    bare = replace(limits, features=frozenset())
    assert [lacks(limits, p) for p in ("float32", "f16", "f16acc")] == ["", "", ""]
    assert [bool(lacks(bare, p)) for p in ("float32", "f16", "f16acc")] == [False, False, True]
    for what in ("packed elements", "shader-f16"):
        broken = replace(limits, disabled=((what, "a probe failed"),))
        assert [bool(lacks(broken, p)) for p in ("float32", "f16", "f16acc")] == [False, True, True]
        assert lacks(broken, "f16") == f"{what} is not used on this adapter: a probe failed"
