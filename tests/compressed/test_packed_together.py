"""Several products of the same few vectors in one dispatch, with the normalization before and the steps behind them,
against ONNX Runtime's CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.language import language_model
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import BY_ONNX, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES
from ort_gpu_ep.kernels.registry import DEFAULT_LIMITS, Limits
from ort_gpu_ep.kernels.target import SUBNORMAL_HALVES
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct
from tests.ops.single_node import on_cpu

RNG = np.random.default_rng(11)
TOGETHER = "packed_matvecs.wgsl"
SILU = "silu"


class Model:
    """A graph of MatMulNBits with random weights. dtype: of its floats. zeros: with zero points."""

    def __init__(self, dtype: str = "float32", bits: int = 4, block: int = 32, zeros: bool = False) -> None:
        self.dtype, self.bits, self.block, self.zeros = np.dtype(dtype), bits, block, zeros
        self.nodes, self.held = list[onnx.NodeProto](), dict[str, np.ndarray]()
        self.element = helper.np_dtype_to_tensor_dtype(self.dtype)

    def floats(self, name: str, *shape: int, low: float = 0.5, high: float = 1.5) -> str:
        self.held[name] = RNG.uniform(low, high, shape).astype(self.dtype)
        return name

    def product(self, x: str, k: int, n: int, name: str, bias: bool = False) -> str:
        blocks = -(-k // self.block)
        self.held[f"{name}.w"] = RNG.integers(0, 256, (n, blocks, self.block * self.bits // 8), np.uint8)
        inputs = [x, f"{name}.w", self.floats(f"{name}.s", n * blocks, low=0.2 / k**0.5, high=0.4 / k**0.5), "", "", ""]
        if self.zeros:
            inputs[3] = f"{name}.z"
            self.held[inputs[3]] = RNG.integers(0, 256, n * -(-blocks * self.bits // 8), np.uint8)
        if bias:
            inputs[5] = self.floats(f"{name}.b", n, low=-1)
        while not inputs[-1]:
            inputs.pop()
        return self.node(
            "MatMulNBits", inputs, name, domain="com.microsoft", K=k, N=n, bits=self.bits, block_size=self.block
        )

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=f"node of {output}", **attributes))
        return output

    def norm(self, x: str, k: int, name: str) -> str:
        return self.node("SimplifiedLayerNormalization", [x, self.floats(f"{name}.g", k)], name, axis=-1, epsilon=1e-5)

    def skip_norm(self, x: str, skip: str, k: int, name: str, total: bool) -> str:
        self.nodes.append(
            helper.make_node(
                "SkipSimplifiedLayerNormalization",
                [x, skip, self.floats(f"{name}.g", k)],
                [name, "", "", f"{name}.sum"] if total else [name],
                domain="com.microsoft",
                epsilon=1e-5,
                name=name,
            )
        )
        return name

    def gated(self, gate: str, up: str, name: str, kind: str = SILU) -> str:
        if kind == SILU:
            active = self.node("Mul", [self.node("Sigmoid", [gate], f"{name}.sigmoid"), gate], f"{name}.silu")
        else:
            active = self.node("Relu", [gate], f"{name}.relu")
        return self.node("Mul", [active, up], name)

    def made(self, inputs: dict[str, tuple[Any, ...]], outputs: Sequence[str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(n, self.element, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(o, self.element, None) for o in outputs],
            [numpy_helper.from_array(a, n) for n, a in self.held.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def shaders(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]], limits: Limits | None = None) -> list[str]:
    """Of the dispatches of a run."""
    types = {i.name: TensorType(BY_ONNX[i.type.tensor_type.elem_type], shapes[i.name]) for i in model.graph.input}
    plan = make_plan(from_onnx(model), types, limits or Gpu.open(Config()).limits, rewrite)
    return [s.kernel.shader for s in plan.steps if isinstance(s, Dispatch)]


def check(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]], count: int, scale: float = 1.0) -> None:
    """That a run has so many dispatches and gives what ONNX Runtime's CPU gives."""
    assert len(found := shaders(model, shapes)) == count, found
    dtype = np.dtype(
        np.float16 if model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16 else np.float32
    )
    feeds = {n: (scale * RNG.normal(size=s)).astype(dtype) for n, s in shapes.items()}
    for got, want in zip(run_direct(model, feeds, rewrite), on_cpu(model, feeds), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        error = np.abs(got.astype("d") - want.astype("d")).max() / np.abs(want.astype("d")).max()
        assert error < (1e-2 if dtype == np.float16 else 2e-5), error


VARIANTS = [
    ("float32", 4, False),
    ("float32", 4, True),
    ("float32", 8, True),
    ("float32", 2, False),
    ("float16", 4, False),
]


@pytest.mark.parametrize(("dtype", "bits", "zeros"), VARIANTS)
@pytest.mark.parametrize(("count", "k"), [(1, 64), (1, 2080), (3, 128), (4, 1104)])
def test_three_products_of_one_input(dtype: str, bits: int, zeros: bool, count: int, k: int) -> None:
    """Queries, keys and values, of which some have biases and no size is a whole number of workgroups."""
    made = Model(dtype, bits, zeros=zeros)
    outputs = [
        made.product("x", k, n, name, bias) for n, name, bias in ((70, "q", True), (33, "k", False), (5, "v", True))
    ]
    check(made.made({"x": (1, count, k)}, outputs), {"x": (1, count, k)}, 1)


@pytest.mark.parametrize(("dtype", "bits", "zeros"), VARIANTS)
@pytest.mark.parametrize("kind", [SILU, "relu"])
@pytest.mark.parametrize("count", [1, 4])
def test_gate_and_up(dtype: str, bits: int, zeros: bool, kind: str, count: int) -> None:
    made = Model(dtype, bits, zeros=zeros)
    gate, up = made.product("x", 192, 75, "gate"), made.product("x", 192, 75, "up", bias=True)
    check(made.made({"x": (count, 192)}, [made.gated(gate, up, "y", kind)]), {"x": (count, 192)}, 1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("total", [False, True], ids=["", "sum is read"])
def test_a_layer_without_attention(dtype: str, total: bool) -> None:
    """Four dispatches: what o gives with the sum, gate and up with the norm, down with the sum, the head with the
    norm."""
    made = Model(dtype)
    first = made.product("x", 128, 96, "o")
    y = made.skip_norm("h", first, 96, "post", True)
    hidden = made.gated(made.product(y, 96, 160, "gate"), made.product(y, 96, 160, "up"), "hidden")
    z = made.skip_norm("post.sum", made.product(hidden, 160, 96, "down"), 96, "last", total)
    outputs = [made.product(z, 96, 37, "logits"), *(["last.sum"] if total else [])]
    shapes = {"x": (1, 1, 128), "h": (1, 1, 96)}
    check(made.made(dict(shapes), outputs), shapes, 4)


@pytest.mark.parametrize("scale", [1e-4, 30.0, 1e15], ids=str)
def test_norms_of_small_and_large_inputs(scale: float) -> None:
    made = Model()
    y = made.norm("x", 320, "n")
    check(
        made.made({"x": (2, 320)}, [made.product(y, 320, 41, "a"), made.product(y, 320, 9, "b")]),
        {"x": (2, 320)},
        1,
        scale,
    )


def test_a_norm_that_others_read_stays() -> None:
    made = Model()
    y = made.norm("x", 64, "n")
    outputs = [made.product(y, 64, 24, "a"), made.product(y, 64, 24, "b"), made.node("Neg", [y], "c")]
    check(made.made({"x": (1, 64)}, outputs), {"x": (1, 64)}, 3)


def test_products_that_differ_stay_apart() -> None:
    """Of other blocks, of many vectors, or read by two."""
    made = Model()
    first = made.product("x", 128, 40, "a")
    made.block = 64
    model = made.made({"x": ("rows", 128)}, [first, made.product("x", 128, 40, "b")])
    check(model, {"x": (1, 128)}, 2)
    made = Model()
    gate, up = made.product("x", 64, 40, "gate"), made.product("x", 64, 40, "up")
    model = made.made({"x": ("rows", 64)}, [made.gated(gate, up, "y")])
    assert TOGETHER in shaders(model, {"x": (4, 64)})
    assert TOGETHER not in shaders(model, {"x": (5, 64)})
    check(made.made({"x": (1, 64)}, ["y", "up"]), {"x": (1, 64)}, 2)


def test_few_bindings_leave_them_apart() -> None:
    """WebGPU's least: three weights with their scales, an input and three outputs are ten."""
    made = Model()
    outputs = [made.product("x", 64, 24, name) for name in "abc"]
    assert shaders(made.made({"x": (1, 64)}, outputs), {"x": (1, 64)}, DEFAULT_LIMITS) == ["packed_matvec.wgsl"] * 3
    made = Model()
    y = made.norm("x", 64, "n")
    model = made.made({"x": (1, 64)}, [made.gated(made.product(y, 64, 40, "gate"), made.product(y, 64, 40, "up"), "y")])
    assert shaders(model, {"x": (1, 64)}, DEFAULT_LIMITS) == [TOGETHER]


def forms(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    gpu = Gpu.open(Config())
    features = (
        gpu.limits.features - {"subgroup"} if form == "no subgroups" else gpu.limits.features | {SUBNORMAL_HALVES}
    )
    figures = gpu.limits.figures if form == "no subgroups" else DEFAULT_FIGURES
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, features=features, figures=figures))


@pytest.mark.parametrize("form", ["no subgroups", "halves"])
@pytest.mark.parametrize(("bits", "zeros"), [(2, False), (4, False), (4, True), (8, True)])
def test_other_forms(form: str, bits: int, zeros: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without subgroups, and with codes that are read as float16 numbers, where what is not finite by that is added up
    anew."""
    forms(monkeypatch, form)
    made = Model(bits=bits, zeros=zeros)
    y = made.norm("x", 1056, "n")
    gated = made.gated(made.product(y, 1056, 50, "gate"), made.product(y, 1056, 50, "up", bias=True), "y")
    for count in (1, 4):
        check(made.made({"x": (count, 1056)}, [gated]), {"x": (count, 1056)}, 1)
    made = Model(bits=bits, zeros=zeros)
    model = made.made(
        {"x": (3, 1056)}, [made.product("x", 1056, n, name) for n, name in ((66, "a"), (18, "b"), (70, "c"))]
    )
    check(model, {"x": (3, 1056)}, 1)
    if form == "halves":
        check(model, {"x": (3, 1056)}, 1, 1e29)


@pytest.mark.parametrize("packed", [True, False], ids=["qkv", "q-k-v"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dispatches_of_a_token(packed: bool, dtype: str) -> None:
    """Of a layer six: q, k and v with the norm; attention, which stores the newest key; its join; o with the sum; gate
    and up; down with the sum."""
    counts = []
    for layers in (1, 3):
        model = language_model(layers=layers, packed=packed, dtype=dtype)  # type: ignore[arg-type]
        graph, sizes = from_onnx(model), {"batch": 1, "sequence": 1, "total": 9, "past": 16}
        types = {
            i.name: TensorType(
                BY_ONNX[i.type.tensor_type.elem_type],
                tuple(d.dim_value or sizes[d.dim_param] for d in i.type.tensor_type.shape.dim),
            )
            for i in model.graph.input
        }
        plan = make_plan(
            graph, types, Gpu.open(Config()).limits, rewrite, {"attention_mask": np.ones((1, 9), np.int64)}
        )
        counts.append(sum(isinstance(s, Dispatch) for s in plan.steps))
    assert (counts[1] - counts[0]) / 2 == 6
