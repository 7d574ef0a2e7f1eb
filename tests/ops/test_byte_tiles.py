"""byte_product.wgsl and byte_depthwise.wgsl: QLinearConv whose channels lie together, and QLinearMatMul, in every tile:
exact bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.health.probes.tiles import chosen
from ort_gpu_ep.ir.graph import Graph, Node, Step, Value
from ort_gpu_ep.ir.types import BY_NAME, FLOAT32, INT8
from ort_gpu_ep.kernels.target import LAST_ARRIVING
from ort_gpu_ep.ops import tiles
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.daily import part
from tests.direct import opened, run_program
from tests.ops.test_tiles import expected
from tests.unit.graphs import graph_of, plan_of

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
NAMES = ("x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "c")


def quantized(
    op: str, x: Array, w: Array, outputs: int, kind: str, out: str, bias: bool, **attributes: Any
) -> tuple[Graph, dict[str, Array]]:
    """A node between bytes, and all that it reads; a scale for each output. x is the graph's input."""
    scales, depth = RNG.uniform(0.005, 0.02, outputs).astype("f"), w.size // outputs
    given = {
        "x": x,
        "xs": np.float32(0.02),
        "xz": np.array(RNG.integers(90, 120), kind),
        "w": w,
        "ws": scales,
        "wz": np.zeros(outputs, "int8"),
        "ys": np.float32(0.02 * scales.mean() * 60 * depth**0.5),
        "yz": np.array(11, out),
    }
    if bias:
        given["c"] = RNG.integers(-5000, 5000, outputs).astype("int32")
    given = {name: np.asarray(a) for name, a in given.items()}
    values = {
        n: Value(n, BY_NAME[a.dtype.name], a.shape, None if n == "x" else (lambda a=a: a)) for n, a in given.items()
    }  # type: ignore[misc]
    node = Node(op, NAMES if bias else NAMES[:8], ("y",), op, "", 10, attributes, channels_last=op == "QLinearConv")
    return Graph("g", ("x",), ("y",), (node,), values | {"y": Value("y", BY_NAME[out])}), given


def as_bytes(sums: Array, given: dict[str, Array]) -> Array:
    """As ONNX Runtime's CPU: scales are multiplied in float32, then the sum is."""
    limits = np.iinfo(given["yz"].dtype)
    rounded = np.rint(sums.astype("f") * (given["xs"] * given["ws"] / given["ys"]).astype("f")) + np.float32(
        given["yz"]
    )
    return np.clip(rounded, limits.min, limits.max).astype(given["yz"].dtype)


def integers(dtype: str, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True))


def check(graph: Graph, x: Array, wanted: Array, every_size_open: bool = False) -> None:
    program = Program(opened(graph) if every_size_open else graph, Config(), Gpu.open(Config()))
    try:
        for _ in range(2):  # what is kept between runs is as it was
            np.testing.assert_array_equal(run_program(program, {"x": x})[0], wanted)
    finally:
        program.close()


def check_conv(
    x: tuple[int, ...],
    w: tuple[int, ...],
    kind: str = "uint8",
    out: str = "uint8",
    bias: bool = True,
    every_size_open: bool = False,
    **attributes: Any,
) -> None:
    image = integers(kind, *x)
    planes = w[1] <= 4 and attributes.get("group", 1) == 1
    stored = image if planes else np.ascontiguousarray(image.transpose(0, 2, 3, 1))
    graph, given = quantized("QLinearConv", stored, integers("int8", *w), w[0], kind, out, bias, **attributes)
    sums = expected(image.astype(int) - int(given["xz"]), given["w"], given.get("c"), None, attributes)
    check(graph, stored, as_bytes(sums, given), every_size_open)


@pytest.mark.parametrize(("name", "split"), [("32x32/4", 1), ("64x64", 3), ("16x32/4", 3)])
def test_parts_of_k(name: str, split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of teams and of workgroups, of steps within a tap and across taps; the probe of the doctor has every tile."""
    tile = next(t for t in tiles.TILES if t.name == name)
    limits = Gpu.open(Config()).limits
    monkeypatch.setattr(Gpu.open(Config()), "limits", replace(limits, features=limits.features | {LAST_ARRIVING}))
    with chosen(tile, split):
        check_conv((1, 272, 5, 13), (tile.m + 4, 272, 1, 1))
        check_conv((2, 20, 7, 5), (8, 20, 3, 2), "int8", "int8", strides=[2, 1], pads=[1, 1, 1, 1])
        check_conv((1, 128, 5, 8), (12, 128, 3, 3), pads=[1, 1, 1, 1])


def test_padding_of_a_network_without_a_zero_point_of_x() -> None:
    image = integers("uint8", 1, 6, 5, 8)
    graph, given = quantized(
        "QLinearConv", image, integers("int8", 8, 8, 3, 3), 8, "uint8", "uint8", True, pads=[1, 1, 1, 1]
    )
    node = graph.nodes[0]
    graph = graph.with_nodes((replace(node, inputs=("x", "xs", "", *node.inputs[3:])),))
    sums = expected(image.transpose(0, 3, 1, 2).astype(int), given["w"], given["c"], None, {"pads": [1, 1, 1, 1]})
    check(graph, image, as_bytes(sums, given))


@pytest.mark.parametrize(
    ("x", "w", "attributes", "kind", "out", "bias"),
    part(
        [
            ((2, 3, 17, 15), (12, 3, 5, 5), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
            ((1, 1, 9, 8), (4, 1, 3, 3), {"pads": [1, 0, 1, 2]}),
            ((1, 4, 6, 7), (8, 4, 1, 1), {}),
            ((2, 12, 9, 7), (12, 1, 3, 3), {"group": 12, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
            ((1, 36, 11, 10), (36, 1, 7, 7), {"group": 36, "pads": [3, 3, 3, 3]}),
            ((1, 8, 13, 9), (8, 1, 3, 2), {"group": 8, "dilations": [2, 3]}),
            ((1, 64, 9, 8), (16, 64, 1, 1), {"strides": [2, 2]}),
            ((1, 12, 8, 9), (8, 12, 1, 1), {"pads": [1, 1, 1, 1]}),
            ((0, 12, 5, 6), (8, 12, 3, 3), {"pads": [1, 1, 1, 1]}),
        ],
        [("uint8", "uint8", True), ("int8", "int8", False)],
        of_two=1,
    ),
)
def test_windows(x: Any, w: Any, attributes: Any, kind: str, out: str, bias: bool) -> None:
    for every_size_open in (False, True):
        check_conv(x, w, kind, out, bias, every_size_open, **attributes)


@pytest.mark.parametrize(
    ("x", "m", "kind", "zero"),
    part(
        [((33, 64), 20), ((2, 5, 20), 36), ((9, 20), 21), ((3, 20), 8)], [("uint8", 113), ("int8", -7), ("uint8", None)]
    ),
)
def test_sums(kind: str, zero: int | None, x: tuple[int, ...], m: int) -> None:
    """Of MatMulInteger, with the zero point of a run, and steps behind it: in tiles of words where there are enough
    rows and whole words."""
    a, w, zeros = integers(kind, *x), integers("int8", x[-1], m), np.asarray(zero or 0, kind)
    values = {
        "x": Value("x", BY_NAME[kind], x),
        "z": Value("z", BY_NAME[kind], ()),
        "w": Value("w", INT8, w.shape, lambda: w),
    }
    steps = (Step("Cast", "f32(x)", ("v",), FLOAT32), Step("Mul", "x * y", ("s0", "e0"), FLOAT32))
    node = Node(
        "MatMulInteger", ("x", "w", "" if zero is None else "z"), ("y",), "m", "", 10, epilogue=steps, operands=("s",)
    )
    values |= {"s": Value("s", FLOAT32, (m,)), "y": Value("y", FLOAT32)}
    scales = RNG.uniform(0.5, 2, m).astype("f")
    wanted = ((a.astype(int) - int(zeros)) @ w.astype(int)).astype("f") * scales
    feeds = {"x": a, "z": zeros, "s": scales}
    for every_size_open in (False, True):
        graph = Graph("g", ("x", "z", "s"), ("y",), (node,), values)
        program = Program(opened(graph) if every_size_open else graph, Config(), Gpu.open(Config()))
        try:
            np.testing.assert_array_equal(run_program(program, feeds)[0], wanted)
            assert {s.kernel.shader for p in program.plans for s in p.steps if isinstance(s, Dispatch)} == {
                "integer_product.wgsl" if m % 4 or np.prod(x[:-1]) < 8 else "byte_product.wgsl"
            }
        finally:
            program.close()


@pytest.mark.parametrize(("x", "m"), [((33, 64), 20), ((1, 12), 8), ((2, 5, 20), 36), ((1, 1024), 68), ((0, 20), 8)])
def test_matrices(x: tuple[int, ...], m: int) -> None:
    a, w = integers("uint8", *x), integers("int8", x[-1], m)
    graph, given = quantized("QLinearMatMul", a, w, m, "uint8", "uint8", False)
    wanted = as_bytes((a.astype(int) - int(given["xz"])) @ w.astype(int), given)
    for every_size_open in (False, True):
        check(graph, a, wanted, every_size_open)


def test_a_column_too_long_for_one_invocation_is_left_to_planes() -> None:
    graph = graph_of("(uint8[8, 80000] x) => (y) { y = MatMulInteger(x, w) }", {"w": np.zeros((80_000, 4), "int8")})
    assert [step.kernel.shader for step in plan_of(graph).steps if isinstance(step, Dispatch)] == [
        "integer_product.wgsl"
    ]
