"""MatMulNBits with accuracy_level 4, whose x is rounded to bytes: as ONNX Runtime's CPU does it, and the exact sums of
what was rounded.

And products of many float16 vectors, whose weights are written out before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import best_ns, forced
from ort_gpu_ep.kernels.target import Choice, Target
from ort_gpu_ep.ops import rounded_products, tiles
from ort_gpu_ep.ops.packed import BEFORE, DENSE_SHARE, IN_TILES, product_ns, unpack_ns
from ort_gpu_ep.ops.packed_operands import Columns, Weights
from ort_gpu_ep.ops.rounded_products import ROUNDED
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.compressed.test_packed_products import RNG, close, nbits_model, pack
from tests.daily import part
from tests.direct import run_direct
from tests.ops.single_node import on_cpu

CASES = [((5, 64), 33, 32), ((2, 20, 100), 70, 32), ((130, 256), 130, 64), ((300, 288), 65, 128), ((33, 96), 64, 96)]


def level(model: onnx.ModelProto, value: int) -> onnx.ModelProto:
    next(a for a in model.graph.node[0].attribute if a.name == "accuracy_level").i = value
    return model


@pytest.fixture
def form() -> Iterator[Callable[[str], dict[str, Choice]]]:
    """Makes products take a form wherever they have it. Gives the choices that are made, by key."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(forced(name))


def offered(made: dict[str, Choice]) -> set[str]:
    """The forms that there were for products of many vectors."""
    return {form for choice in made.values() if IN_TILES in choice.forms for form in choice.forms}


def shaders(model: onnx.ModelProto, x: Any) -> list[str]:
    kind = FLOAT32 if x.dtype == np.float32 else FLOAT16
    plan = make_plan(from_onnx(model), {"x": TensorType(kind, x.shape)}, Gpu.open(Config()).limits)
    return [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)]


def rounded(x: Any, block: int) -> Any:
    """What stands for x, in float64: the largest of a block as 127, halves to even."""
    k = x.shape[-1]
    blocks = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -k % block)]).reshape(*x.shape[:-1], -1, block)
    largest = np.abs(blocks).max(-1, keepdims=True)
    up = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    return (np.round(blocks * up).astype("d") * (largest / np.float32(127))).reshape(*x.shape[:-1], -1)[..., :k]


@pytest.mark.parametrize(
    ("shape", "n", "block", "zero", "bits", "is_open"), part(CASES, ["none", "codes"], [4, 8], [False, True])
)
def test_x_in_bytes(bits: int, zero: str, shape: tuple[int, ...], n: int, block: int, is_open: bool, form: Any) -> None:
    form(ROUNDED)
    model, (dense, bias) = nbits_model(shape, shape[-1], n, bits, block, zero, bias=n % 2 == 1)
    level(model, 4)
    x = RNG.normal(size=shape).astype("f")
    x[0] = 0
    assert shaders(model, x) == ["quantize_blocks.wgsl", "rounded_product.wgsl"]
    (got,) = run_direct(model, {"x": x}, every_size_open=is_open)
    close(got, rounded(x, block) @ dense + bias)
    if block & block - 1 == 0:  # onnxruntime takes powers of two
        close(got, on_cpu(model, {"x": x})[0])


def test_bytes_are_a_form_only_of_nodes_that_allow_it(form: Any) -> None:
    """Other levels, zero points that are no codes, and codes of 2 bits have no such form."""
    made = form("")
    for accuracy, bits, zero in (
        (4, 4, "none"),
        (4, 8, "codes"),
        (0, 4, "none"),
        (1, 4, "none"),
        (3, 8, "codes"),
        (4, 4, "floats"),
        (4, 2, "none"),
    ):
        model, _ = nbits_model((64, 256), 256, 64, bits, 32, zero, bias=False)
        level(model, accuracy)
        made.clear()
        found = shaders(model, np.zeros((64, 256), "f"))
        may = accuracy == 4 and bits > 2 and zero != "floats"
        assert (ROUNDED in offered(made)) == may
        assert may or "rounded_product.wgsl" not in found


def test_a_gpu_prefers_bytes_for_a_prompt() -> None:
    weights = Weights(8192, 2048, 2048, 1, 4, 1, 2, block=32, table_strides=(64, 1), zero=8.0)
    columns = Columns(0, 512, 2048, 1, 8192, 1)
    dense = tiles.TiledProduct(512, 8192, tiles.Weights("unpacked", 2048, 1, 1, 8192, 0, False), target=Target())
    unpacked_ns = best_ns(tiles.forms(dense)) + unpack_ns(Target(), weights)
    others = min(product_ns(Target(), weights, columns), DENSE_SHARE * unpacked_ns)
    assert rounded_products.estimate_ns(Target(), weights, columns) < 0.8 * others


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_shows(value: float, form: Any) -> None:
    form(ROUNDED)
    model, (dense, _) = nbits_model((9, 128), 128, 40, 4, 32, "codes", bias=False)
    level(model, 4)
    x = RNG.normal(size=(9, 128)).astype("f")
    x[3, 77] = value
    (got,) = run_direct(model, {"x": x})
    assert not np.isfinite(got[3]).any()
    others = [0, 1, 2, 4, 5, 6, 7, 8]
    close(got[others], rounded(x[others], 32) @ dense)
    x[3], x[4], x[5] = 1e-38, 0, RNG.normal(size=128) * 1e-30
    (got,) = run_direct(model, {"x": x})
    assert np.abs(got[3]).max() < 1e-33
    np.testing.assert_array_equal(got[4], 0)
    close(got[5] * 1e30, rounded(x[5:6], 32)[0] * 1e30 @ dense)


def half_model(m: int, k: int, n: int, bias: bool, accuracy: int) -> tuple[onnx.ModelProto, Any]:
    """A MatMulNBits of float16, and its dense weights."""
    codes, scales = RNG.integers(0, 16, (n, k)), RNG.uniform(0.01, 0.05, (n, k // 32)).astype("e")
    held = {
        "B": pack(codes, 4).reshape(n, k // 32, 16),
        "s": scales,
        **({"b": RNG.normal(size=n).astype("e")} if bias else {}),
    }
    node = helper.make_node(
        "MatMulNBits",
        ["x", "B", "s", *(["", "", "b"] if bias else [])],
        ["y"],
        domain="com.microsoft",
        K=k,
        N=n,
        bits=4,
        block_size=32,
        accuracy_level=accuracy,
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 10, (m, k))],
        [helper.make_tensor_value_info("y", 10, (m, n))],
        [numpy_helper.from_array(a, name) for name, a in held.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    dense = (codes.reshape(n, -1, 32) - 8.0) * scales[..., None].astype("d")
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), (
        dense.reshape(n, k).T,
        held.get("b", np.zeros(n)).astype("d"),
    )


@pytest.mark.parametrize(
    ("m", "k", "n", "name", "accuracy", "bias"),
    part([(37, 128, 68), (260, 64, 132)], [(BEFORE, 0), (IN_TILES, 0), (ROUNDED, 4)], [False, True]),
)
def test_float16_prompts_take_the_forms_of_float32(
    m: int, k: int, n: int, name: str, accuracy: int, bias: bool, form: Any
) -> None:
    made = form(name)
    model, (dense, c) = half_model(m, k, n, bias, accuracy)
    x = RNG.normal(size=(m, k)).astype("e")
    (got,) = run_direct(model, {"x": x})
    assert name in offered(made)
    wanted = (rounded(x.astype("f"), 32) if accuracy == 4 else x.astype("d")) @ dense + c
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, wanted, rtol=2.0**-10, atol=2e-4 * np.abs(wanted).max())
