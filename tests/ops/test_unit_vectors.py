"""Products of few vectors of float16 with packed weights on matrix units, which are emulated: against float64, within the
rounding of weights and results to float16."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT16, TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.ops import unit_vectors
from ort_gpu_ep.scheduler import make_plan
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.template import make_template
from tests.ops.matrix_emulation import Emulated, emulation
from tests.ops.test_float16_units import LIMITS

HALF = onnx.TensorProto.FLOAT16


@pytest.fixture(params=["16x16x16", "8x8x8"])
def trial(request: pytest.FixtureRequest) -> Iterator[Emulated]:
    with emulation(fragment=request.param) as units:
        yield units


def model_of(
    rows: int | str, k: int, n: int, block: int, zeros: bool, bias: bool, power: int = 0
) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """A MatMulNBits of float16, its weights [n, k] and its bias. power: of two, for the scales."""
    rng, blocks = np.random.default_rng(), k // block
    codes = rng.integers(0, 256, (n, blocks, block // 2), np.uint8)
    scales = ((0.005 + 0.02 * rng.random((n, blocks))) * 2.0**power).astype(np.float16)
    inputs = {"w": codes, "s": scales.reshape(-1)}
    points = np.full((n, blocks), 8)
    if zeros:
        inputs["z"] = rng.integers(0, 256, (n, -(-blocks // 2)), np.uint8)
        points = np.stack([inputs["z"] & 15, inputs["z"] >> 4], -1).reshape(n, -1)[:, :blocks]
    added = rng.standard_normal(n).astype(np.float16)
    if bias:
        inputs["b"] = added
    names = ["x", "w", "s", "z" if zeros else "", "", "b" if bias else ""]
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=block)
    leading = {"batch": ["batch", 1], "tokens": [1, "tokens"]}.get(str(rows), [rows])
    shapes = ([*leading, k], [*leading, n])
    x, y = (helper.make_tensor_value_info(*pair) for pair in zip("xy", (HALF, HALF), shapes, strict=True))
    stored = [numpy_helper.from_array(array, name) for name, array in inputs.items()]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "codes", [x], [y], stored), opset_imports=opsets)
    numbers = np.stack([codes & 15, codes >> 4], -1).reshape(n, blocks, block).astype(np.float64)
    dense = (numbers - points[..., None]) * scales.astype(np.float64)[..., None]
    return model, dense.reshape(n, k), added.astype(np.float64) if bias else np.zeros(n)


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize(
    ("rows", "k", "n", "block", "zeros", "bias"),
    [
        (16, 384, 128, 32, False, False),
        (7, 416, 72, 32, True, True),
        (5, 640, 136, 16, True, False),
        (9, 512, 64, 128, False, True),
    ],
)
def test_few_vectors(
    trial: Emulated, rows: int, k: int, n: int, block: int, zeros: bool, bias: bool, split: int
) -> None:
    """Columns and k that end within a tile, rows fewer than a fragment's, k in one part and in several."""
    check(trial, rows, k, n, block, zeros, bias, split)


@pytest.mark.parametrize("power", [18, -8])
def test_scales_beyond_float16(trial: Emulated, power: int) -> None:
    """Weights that float16 does not reach to, and such as it has with fewer bits: a power of two for each column brings
    them to where it has all of them."""
    check(trial, 6, 256, 64, 32, False, False, 1, power, 2.0**-power)


def check(
    trial: Emulated,
    rows: int,
    k: int,
    n: int,
    block: int,
    zeros: bool,
    bias: bool,
    split: int,
    power: int = 0,
    factor: float = 1.0,
) -> None:
    model, dense, added = model_of(rows, k, n, block, zeros, bias, power)
    x = (factor * np.random.default_rng().standard_normal((rows, k))).astype(np.float16)
    with forced(f"vectors on units*{split}"):
        (got,) = trial.graph(from_onnx(model), [x])
    assert "unit_vectors.wgsl" in trial.shaders
    exact, sizes = x.astype(np.float64) @ dense.T + added, np.abs(x.astype(np.float64)) @ np.abs(dense).T
    assert (np.abs(got - exact) <= 2.0**-11 * (np.abs(exact) + sizes) + k * 2.0**-24 * sizes + 2.0**-24).all()


def test_a_batch_of_open_size() -> None:
    """One plan for 5 to 16 rows, which cuts k where columns are few; one for more, and for prompts, is another."""
    model, _, _ = model_of("batch", 4096, 4096, 32, False, False)
    template = make_template(
        from_onnx(model), [TensorType(FLOAT16, (12, 1, 4096))], LIMITS.of(Config(weights="packed"))
    )
    (kernel,) = (step.kernel for step in template.plan.steps if isinstance(step, Dispatch))
    assert kernel.shader == unit_vectors.SHADER
    assert dict(kernel.consts)["SPLIT"] > 1
    taken = [template.fill([TensorType(FLOAT16, (rows, 1, 4096))]) is not None for rows in (4, 5, 16, 17)]
    assert taken == [False, True, True, False]


@pytest.mark.parametrize(("tokens", "takes"), [(7, {7}), (8, {6, 8, 9, 500}), (500, {6, 8, 9, 500})])
def test_few_tokens_have_a_plan_for_their_number(tokens: int, takes: set[int]) -> None:
    """Drafts that a pass verifies, whose number a program says. The plan for prompts holds for all other lengths."""
    model, _, _ = model_of("tokens", 4096, 4096, 32, False, False)
    limits = LIMITS.of(Config(weights="packed", few_tokens=7))
    template = make_template(from_onnx(model), [TensorType(FLOAT16, (1, tokens, 4096))], limits)
    shaders = [step.kernel.shader for step in template.plan.steps if isinstance(step, Dispatch)]
    assert (unit_vectors.SHADER in shaders) == (tokens == 7)
    others = (4, 6, 7, 8, 9, 500)
    assert {n for n in others if template.fill([TensorType(FLOAT16, (1, n, 4096))]) is not None} == takes


@pytest.mark.parametrize("rows", [5, 8, 16])
def test_rows_of_a_batch_are_on_units_where_that_is_faster(rows: int) -> None:
    """The sizes of a layer of Llama 3.1 8B."""
    for k, n in ((4096, 14336), (4096, 6144), (4096, 4096), (14336, 4096)):
        model, _, _ = model_of(rows, k, n, 32, False, False)
        limits = LIMITS.of(Config(weights="packed"))
        plan = make_plan(from_onnx(model), {"x": TensorType(FLOAT16, (rows, k))}, limits)
        shaders = [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)]
        assert shaders == [unit_vectors.SHADER], (k, n)
