"""Composed shaders and printed plans as exact text: a change of either is a difference to read.

After a change that is meant: pytest tests/golden --update-golden, then read `git diff tests/golden`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ort_gpu_ep.scheduler.plan import Dispatch, Plan
from ort_gpu_ep.shaders import compose
from tests.unit.graphs import graph_of, plan_of

Golden = Callable[[str, str], None]


def constants() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    shapes = {
        "w": (8, 3, 3, 3),
        "w2": (8, 8, 3, 3),
        "depthwise": (8, 1, 3, 3),
        "b": (8,),
        "m": (67, 35),
        "v": (35,),
        "q": (64, 64),
        "scale": (64,),
        "bias": (64,),
        "input": (1, 28, 5),
        "recurrent": (1, 28, 7),
    }
    return {n: rng.standard_normal(s).astype("f") for n, s in shapes.items()} | {
        "half": np.array(0.5, "f"),
        "rows": np.array([3, -1]),
        "tokens": rng.standard_normal((101, 64)).astype("f"),
    }


KERNELS = {
    "elementwise_broadcast": "(float[5, 1, 7] x, float[3, 1] z) => (y) { y = Add(x, z) }",
    "elementwise_fused_bool": "(float[5, 7] x, float[7] z) => (y) { a = Mul(x, z) y = Less(a, half) }",
    "transpose_uint8": "(uint8[2, 3, 5] x) => (y) { y = Transpose<perm=[2, 0, 1]>(x) }",
    "softmax": "(float[37, 211] x) => (y) { y = Softmax(x) }",
    "reduce_mean": "(float[3, 17, 5] x) => (y) { y = ReduceMean<axes=[1], keepdims=0>(x) }",
    "matmul_bias_relu": "(float[41, 67] x) => (y) { a = MatMul(x, m) s = Add(a, v) y = Relu(s) }",
    "conv_im2col": "(float[2, 3, 9, 9] x) => (y) { y = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, w, b) }",
    "conv_depthwise": "(float[1, 8, 9, 9] x) => (y) { y = Conv<group=8>(x, depthwise) }",
    "gather_int64": "(int64[4, 6] i) => (y) { y = Gather(tokens, i) }",
}

PLANS = {
    "residual_block": "(float[1, 3, 9, 9] x) => (y) { a = Conv<pads=[1, 1, 1, 1]>(x, w, b) r = Relu(a) c = "
    "Conv<pads=[1, 1, 1, 1]>(r, w2) "
    "s = Add(c, r) t = Relu(s) p = GlobalAveragePool(t) y = Flatten(p) }",
    "attention": "(float[2, 5, 64] x) => (y) { n = LayerNormalization(x, scale, bias) k = MatMul(n, q) t = "
    "Transpose<perm=[0, 2, 1]>(k) "
    "a = MatMul(n, t) h = Mul(a, half) p = Softmax(h) o = MatMul(p, n) y = Add(o, x) }",
    "shapes_and_views": "(float[6, 4] x) => (y, z) { r = Reshape(x, rows) s = Shape(x) a = Exp(r) b = Neg(r) c = "
    "Concat<axis=1>(a, b) "
    "y = Flatten(c) z = Identity(s) }",
    "lstm": "(float[3, 2, 5] x) => (y) { y = LSTM<hidden_size=7>(x, input, recurrent) }",
}


def make_plan(text: str) -> Plan:
    return plan_of(graph_of(text, constants(), opset=17))


def only_dispatch(plan: Plan) -> Dispatch:
    (step,) = plan.steps
    assert isinstance(step, Dispatch)
    return step


@pytest.mark.parametrize("name", KERNELS)
def test_shader(name: str, golden: Golden) -> None:
    step = only_dispatch(make_plan(KERNELS[name]))
    golden(
        f"{name}.wgsl",
        f"// {step.groups} workgroups\n" + compose(step.kernel, {t.name: (t.type, t.written) for t in step.tensors}),
    )


@pytest.mark.parametrize("name", PLANS)
def test_plan(name: str, golden: Golden) -> None:
    """Without what follows from all that a kernel is made of: a new field of kernels is no other plan."""
    golden(f"{name}.plan.txt", re.sub(r"(prepared:[^ ]*)#[0-9a-f]{16}", r"\1", f"{make_plan(PLANS[name])}\n"))


def golden_files() -> Iterator[str]:
    return (p.name for p in Path(__file__).parent.iterdir() if p.suffix in (".wgsl", ".txt"))


def test_every_golden_file_belongs_to_a_test() -> None:
    assert set(golden_files()) == {f"{n}.wgsl" for n in KERNELS} | {f"{n}.plan.txt" for n in PLANS}
