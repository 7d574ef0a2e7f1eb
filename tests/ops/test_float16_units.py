"""Float16 models use matrix units with every option at its default: what is planned for a GPU that has them. Sizes are
those of networks, so that the estimates choose as they do there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, DType, TensorType
from ort_gpu_ep.kernels.target import DEFAULT_LIMITS, SHOWN_FEATURES, SUBGROUP_MATRIX, Limits, without_units
from ort_gpu_ep.ops import attention_units
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.template import make_template

UNITS = {"matrix_product.wgsl", "attention_units.wgsl"}
LIMITS = replace(
    DEFAULT_LIMITS,
    features=frozenset({"shader-f16", "subgroup", SUBGROUP_MATRIX, *SHOWN_FEATURES}),
    max_binding_nbytes=(1 << 31) - 4,
    max_buffers_per_stage=16,
    max_workgroup_nbytes=49152,
    max_invocations=1024,
    max_loop_iterations=1 << 40,
    subgroup_size=32,
    configurations=("float16 float32 16x16x16",),
    configuration_subgroups=((32, 32),),
).of(Config())

Shape = tuple[int, ...]
X = (8, 128, 28, 28)
CODES = {"K": 1024, "N": 1024, "block_size": 32, "domain": "com.microsoft"}
HEADS = ((1, 12, 512, 64),) * 3
CASES: dict[str, tuple[str, tuple[Shape, ...], tuple[Any, ...], dict[str, Any]]] = {
    "a product": ("MatMul", ((512, 1024),), ((1024, 1024),), {}),
    "a product of each token": ("MatMul", ((8, 197, 768),), ((768, 768),), {}),
    "a product of two inputs": ("MatMul", ((12, 512, 64), (12, 64, 512)), (), {}),
    "rows of weights": ("Gemm", ((512, 1024),), ((1001, 1024), (1001,)), {"transB": 1}),
    "a sum by labels": ("Einsum", ((12, 512, 64), (12, 64, 512)), (), {"equation": "bij,bjk->bik"}),
    "a sum by labels, of the second first": ("Einsum", ((1024, 512), (768, 1024)), (), {"equation": "kn,mk->mn"}),
    "1x1": ("Conv", ((8, 256, 28, 28),), ((512, 256, 1, 1), (512,)), {}),
    "3x3": ("Conv", (X,), ((128, 128, 3, 3),), {"pads": (1,) * 4}),
    "3x3 with steps": ("Conv", ((8, 128, 56, 56),), ((128, 128, 3, 3),), {"pads": (1,) * 4, "strides": (2, 2)}),
    "3x3 apart": ("Conv", (X,), ((128, 128, 3, 3),), {"pads": (2,) * 4, "dilations": (2, 2)}),
    "5x5": ("Conv", (X,), ((128, 128, 5, 5),), {"pads": (2,) * 4}),
    "7x7 of an image": ("Conv", ((8, 3, 224, 224),), ((64, 3, 7, 7),), {"pads": (3,) * 4, "strides": (2, 2)}),
    "patches": ("Conv", ((8, 3, 224, 224),), ((768, 3, 16, 16), (768,)), {"strides": (16, 16)}),
    "groups": ("Conv", ((8, 1024, 14, 14),), ((1024, 32, 3, 3),), {"pads": (1,) * 4, "group": 32}),
    "21 filters": ("Conv", ((8, 256, 64, 64),), ((21, 256, 3, 3), (21,)), {"pads": (1,) * 4}),
    "a line": ("Conv", ((1, 512, 3000),), ((512, 512, 3),), {"pads": (1, 1), "strides": (2,)}),
    "groups of a line": ("Conv", ((1, 768, 499),), ((768, 48, 128),), {"pads": (64, 64), "group": 16}),
    "a space": ("Conv", ((1, 64, 16, 56, 56),), ((64, 64, 3, 3, 3),), {"pads": (1,) * 6}),
    "a space of planes": (
        "Conv",
        ((1, 3, 16, 112, 112),),
        ((64, 3, 3, 7, 7),),
        {"pads": (1, 3, 3, 1, 3, 3), "strides": (1, 2, 2)},
    ),
    "transposed": ("ConvTranspose", ((1, 256, 64, 64),), ((256, 128, 2, 2), (128,)), {"strides": (2, 2)}),
    "transposed, overlapping": (
        "ConvTranspose",
        ((1, 256, 64, 64),),
        ((256, 128, 4, 4),),
        {"strides": (2, 2), "pads": (1,) * 4},
    ),
    "transposed line": ("ConvTranspose", ((1, 256, 512),), ((256, 128, 16),), {"strides": (8,), "pads": (4, 4)}),
    "transposed space": ("ConvTranspose", ((1, 128, 16, 32, 32),), ((128, 64, 2, 2, 2), (64,)), {"strides": (2, 2, 2)}),
    "attention": ("Attention", HEADS, (), {}),
    "heads of 40 over other keys": ("Attention", ((2, 8, 4096, 40), *((2, 8, 77, 40),) * 2), (), {}),
    "heads of 72": ("Attention", ((1, 16, 729, 72),) * 3, (), {}),
    "heads of 80": ("Attention", ((2, 8, 1024, 80),) * 3, (), {}),
    "heads of 96": ("Attention", ((1, 24, 512, 96),) * 3, (), {}),
    "heads of 160": ("Attention", ((2, 8, 256, 160),) * 3, (), {}),
    "heads of 256": ("Attention", ((1, 8, 512, 256),) * 3, (), {"is_causal": 1}),
    "attention of joined heads": (
        "MultiHeadAttention",
        ((1, 512, 768),) * 3,
        (),
        {"num_heads": 12, "domain": "com.microsoft"},
    ),
    "4-bit weights": (
        "MatMulNBits",
        ((512, 1024),),
        (np.full((1024, 32, 16), 0x5A, np.uint8), (1024 * 32,)),
        {**CODES, "bits": 4},
    ),
    "8-bit weights": (
        "MatMulNBits",
        ((512, 1024),),
        (np.full((1024, 32, 32), 0x5A, np.uint8), (1024 * 32,)),
        {**CODES, "bits": 8},
    ),
}


NETWORK = """<ir_version: 10, opset_import: ["": 18]> g (float16[1, 3, 16, 112, 112] x, float16[64, 3, 3, 7, 7] u, float16[64, 64, 3, 3, 3] v,
    float16[64, 64, 3, 3, 3] w) => (float16[1, 64, 1, 1, 1] y) {
    a = Conv <pads = [1, 3, 3, 1, 3, 3], strides = [1, 2, 2]> (x, u) b = Relu (a) p = MaxPool <kernel_shape = [1, 2, 2], strides = [1, 2, 2]> (b)
    c = Conv <pads = [1, 1, 1, 1, 1, 1]> (p, v) d = Relu (c) e = Conv <pads = [1, 1, 1, 1, 1, 1]> (d, w) f = Add (e, p) g = Relu (f)
    y = GlobalAveragePool (g) }"""


def test_a_network_over_space_converts_nothing_between_its_layers() -> None:
    """It reads planes, and its last value has one pixel: nothing is moved at all."""
    model, rng = onnx.parser.parse_model(NETWORK), np.random.default_rng()
    for value in model.graph.input[1:]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        model.graph.initializer.append(
            numpy_helper.from_array(rng.standard_normal(shape).astype(np.float16), value.name)
        )
    del model.graph.input[1:]
    plan = make_template(from_onnx(model), [TensorType(FLOAT16, (1, 3, 16, 112, 112))], LIMITS, rewrite, {}).plan
    steps = [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)]
    assert steps.count("matrix_product.wgsl") == 3
    assert "transpose.wgsl" not in steps


def shaders(name: str, limits: Limits, dtype: DType = FLOAT16) -> set[str]:
    """Of the plan of a model of one node. Shapes of CASES: of inputs, then of weights."""
    op, inputs, weights, attributes = CASES[name]
    rng, names = np.random.default_rng(), [f"x{i}" for i in range(len(inputs) + len(weights))]
    held = [w if isinstance(w, np.ndarray) else rng.standard_normal(w).astype(dtype.numpy) for w in weights]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        name,
        [helper.make_tensor_value_info(n, dtype.onnx, s) for n, s in zip(names, inputs, strict=False)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(w, n) for n, w in zip(names[len(inputs) :], held, strict=True)],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    made = from_onnx(helper.make_model(graph, opset_imports=opsets))
    plan = make_template(made, [TensorType(dtype, s) for s in inputs], limits, rewrite, {}).plan
    return {step.kernel.shader for step in (*plan.prologue, *plan.steps) if isinstance(step, Dispatch)}


@pytest.mark.parametrize("name", CASES)
def test_units_are_used_by_default(name: str) -> None:
    assert shaders(name, LIMITS) & UNITS
    assert not shaders(name, without_units(LIMITS)) & UNITS


@pytest.mark.parametrize("name", ["transposed", "transposed line", "transposed space", "21 filters", "heads of 72"])
@pytest.mark.parametrize("precision", ["tf32", "f16acc"])
def test_units_are_used_where_the_precision_allows_them(name: str, precision: str) -> None:
    """Of float32 models, in what spreads its sums and in attention."""
    assert shaders(name, LIMITS.of(Config(precision=precision)), FLOAT32) & UNITS
    assert not shaders(name, LIMITS.of(Config(precision="float32")), FLOAT32) & UNITS


def test_the_form_follows_from_the_head() -> None:
    """Two invocations of a query, or four; and no units where a fragment is mostly zeros, or a head too wide."""
    for width, queries in ((16, 64), (40, 64), (128, 64), (132, 32), (256, 32), (12, 0), (260, 0)):
        forms = attention_units.forms_of(LIMITS, FLOAT16, 512, 512, width, width)
        assert [form.queries for form in forms] == ([queries] if queries else [])
        for form in forms:
            assert form.padded(width) % 16 == 0
            assert form.padded(width) >= width
