"""A normalization, the scores and the mixture behind it in one node, and sums in what gives one of their terms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from models.builder import Value
from models.language import LanguageNet
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import BY_ONNX, FLOAT16, TensorType
from ort_gpu_ep.kernels.target import DEFAULT_LIMITS, Limits
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct
from tests.ops.single_node import on_cpu

WIDTH, HIDDEN, EXPERTS = 96, 64, 8
ROUTED = ["packed_matvec.wgsl", "normalized_scores.wgsl", "expert_matvec.wgsl", "expert_matvec.wgsl"]
"""A product with a sum behind it, and a mixture, of a few tokens, where buffers are many."""
NORMED = "packed_matvecs.wgsl"


def layer(
    tokens: int,
    *,
    dtype: str = "float32",
    biases: bool = True,
    skip: bool = True,
    also: str = "",
    experts: int = EXPERTS,
    packed: bool = False,
) -> onnx.ModelProto:
    """A layer of a decoder behind its attention, and a product behind that. also: what is an output, too. packed: the
    router is in codes."""
    net = LanguageNet("layer", 3, dtype, biases=biases)
    x = net.input("x", [1, tokens, WIDTH], dtype=net.element, channels=WIDTH)
    total = None
    if skip:
        attention = net.input("attention", [1, tokens, WIDTH], dtype=net.element, channels=WIDTH)
        total = net.matmul(attention, WIDTH, "o_proj")
    normal, x = net.norm(x, total, "post_norm")
    y = net.experts(normal, HIDDEN, experts, 2)
    z, x = net.norm(x, y, "next_norm")
    if packed:
        pack_router(net, normal, experts)
    outputs = {"z": net.matmul(z, 40, "next"), "sum": x}
    outputs |= {"normal": normal} if also == "normal" else {}
    for name, value in outputs.items():
        net.output(name, value, [1, tokens, value.channels], net.element)
    return net.model()


def pack_router(net: LanguageNet, normal: Value, experts: int) -> None:
    """The MatMul that gives the scores becomes a MatMulNBits with zero points. A bias of its own stands for what was
    added."""
    nodes = net._graph.node
    (at,) = (k for k, node in enumerate(nodes) if node.op_type == "MatMul")
    net.matmul(normal, experts, "router")
    product = nodes.pop()
    inputs = [*product.input, "", ""][:6]
    inputs[3] = net.initializer("zeros", net._rng("zeros").integers(0, 256, (experts, WIDTH // 64 + 1), np.uint8)).name
    del product.input[:]
    product.input.extend(inputs if net.biases else inputs[:4])
    product.output[0] = nodes[at + net.biases].output[0]
    nodes[at].CopyFrom(product)
    if net.biases:
        del nodes[at + 1]


def shaders(model: onnx.ModelProto, limits: Limits) -> list[str]:
    types = {
        i.name: TensorType(
            BY_ONNX[i.type.tensor_type.elem_type], tuple(d.dim_value for d in i.type.tensor_type.shape.dim)
        )
        for i in model.graph.input
    }
    plan = make_plan(from_onnx(model), types, limits, rewrite)
    return [s.kernel.shader for s in plan.steps if isinstance(s, Dispatch)]


def many_buffers() -> Limits:
    return replace(DEFAULT_LIMITS, max_buffers_per_stage=32, features=frozenset({FLOAT16.feature}))


def check(model: onnx.ModelProto, tolerance: float = 2e-5) -> None:
    rng, feeds = np.random.default_rng(7), dict[str, Any]()
    for i in model.graph.input:
        shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
        feeds[i.name] = rng.standard_normal(shape).astype(BY_ONNX[i.type.tensor_type.elem_type].numpy)
    for got, wanted in zip(run_direct(model, feeds, rewrite), on_cpu(model, feeds), strict=True):
        wide = wanted.astype("d")
        np.testing.assert_allclose(got.astype("d"), wide, rtol=0, atol=tolerance * np.abs(wide).max())


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("tokens", [1, 4])
def test_a_few_tokens_take_five_dispatches(tokens: int, biases: bool) -> None:
    model = layer(tokens, biases=biases)
    assert shaders(model, many_buffers()) == [*ROUTED, NORMED]
    check(model)


def test_without_a_sum_before_it() -> None:
    model = layer(2, skip=False)
    assert shaders(model, many_buffers()) == [*ROUTED[1:], NORMED]
    check(model)


def test_an_adapter_with_few_buffers_finds_the_experts_in_a_dispatch_of_its_own() -> None:
    model = layer(1)
    fewer = replace(DEFAULT_LIMITS, max_buffers_per_stage=7)
    assert shaders(model, DEFAULT_LIMITS) == [*ROUTED, NORMED]
    assert shaders(model, fewer)[:4] == [*ROUTED[:2], "route_experts.wgsl", ROUTED[2]]


def test_float16() -> None:
    model = layer(1, dtype="float16")
    assert shaders(model, many_buffers()) == [*ROUTED, NORMED]
    check(model, 4e-3)


def test_more_experts_than_a_workgroup_has_invocations() -> None:
    check(layer(1, experts=70))


@pytest.mark.parametrize("biases", [True, False])
def test_a_router_in_codes(biases: bool) -> None:
    model = layer(2, biases=biases, packed=True)
    assert shaders(model, many_buffers()) == [*ROUTED, NORMED]
    check(model)


@pytest.mark.parametrize(("tokens", "also"), [(40, ""), (1, "normal")])
def test_left_alone(tokens: int, also: str) -> None:
    """Many tokens, and what others read."""
    model = layer(tokens, also=also)
    assert "normalized_scores.wgsl" not in shaders(model, many_buffers())
    check(model)
