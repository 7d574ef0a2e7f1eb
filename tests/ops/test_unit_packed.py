"""Products of many vectors with packed weights on matrix units, which are emulated: within their error bound, against
float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.ops import matrix_units
from ort_gpu_ep.ops.matrix_units import TILES, UnitTile
from ort_gpu_ep.scheduler import make_plan
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.compressed.test_packed_products import nbits_model
from tests.ops.matrix_emulation import Emulated, emulation
from tests.ops.test_matrix_units import QUICK


@pytest.fixture(params=["unpacked for", "decoded in"])
def way(request: pytest.FixtureRequest) -> str:
    """Whether weights are decoded before, or in the tile."""
    return str(request.param)


@pytest.fixture
def trial(way: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    monkeypatch.setattr(matrix_units, "TILES", (QUICK,))
    with emulation() as made, forced(f"{way} {QUICK.name}"):
        yield made


def product(
    trial: Emulated,
    precision: str,
    zero: str = "none",
    bits: int = 4,
    power: float = 0,
    sizes: tuple[int, int, int, int] = (40, 96, 72, 32),
    **changes: Any,
) -> tuple[Any, Any, Any]:
    """What comes out, what should, and what may be missing. power: of two, for x; sizes: rows, k, columns, block;
    changes: in place of constants.
    """
    rows, k, n, block = sizes
    model, (dense, bias) = nbits_model((rows, k), k, n, bits, block, zero, True)
    for held in model.graph.initializer:
        if held.name in changes:
            before = numpy_helper.to_array(held)
            array = changes[held.name](before).astype(np.float32)
            held.raw_data = array.tobytes()
            dense = dense * np.repeat(array.astype(np.float64) / before, block, 1)[:, :k].T
    x = (np.random.default_rng().standard_normal((rows, k)) * 2.0**power).astype(np.float32)
    (got,) = trial.graph(from_onnx(model), [x], precision)
    return (
        got,
        x.astype(np.float64) @ dense + bias,
        (2.0**-10 + k * 2.0**-24) * np.abs(x).astype(np.float64) @ np.abs(dense) + 2.0**-22 * np.abs(bias),
    )


@pytest.mark.parametrize("precision", ["tf32", "f16acc"])
@pytest.mark.parametrize(("zero", "bits"), [("none", 4), ("codes", 4), ("codes", 8), ("none", 2)])
def test_codes(trial: Emulated, way: str, precision: str, zero: str, bits: int) -> None:
    got, want, allowed = product(trial, precision, zero, bits)
    assert (np.abs(got - want) <= allowed).all()
    assert "matrix_product.wgsl" in trial.shaders
    assert ("unpack_product.wgsl" in trial.shaders) == (way == "unpacked for")


@pytest.mark.parametrize("way", ["decoded in"], indirect=True)
@pytest.mark.parametrize(
    ("tile", "bits", "zero", "k", "block"),
    [
        ((32, 16, 32), 4, "codes", 160, 16),
        ((16, 32, 32), 4, "none", 96, 32),
        ((16, 16, 64), 4, "codes", 160, 16),
        ((16, 16, 64), 8, "codes", 112, 16),
        ((16, 32, 32), 2, "codes", 128, 64),
        ((32, 16, 32), 8, "none", 64, 64),
    ],
)
def test_codes_as_lanes_of_each_tile_have_them(
    trial: Emulated,
    monkeypatch: pytest.MonkeyPatch,
    tile: tuple[int, int, int],
    bits: int,
    zero: str,
    k: int,
    block: int,
) -> None:
    """Four vectors of a row, two, four of a longer one; steps that end behind the last k, lanes that meet one scale or
    several."""
    monkeypatch.setattr(matrix_units, "TILES", (UnitTile("small", *tile, 1, 1, 1.0),))
    with forced("decoded in small"):
        got, want, allowed = product(trial, "f16acc", zero, bits, sizes=(37, k, 40, block))
    assert (np.abs(got - want) <= allowed).all()
    assert "unpack_product.wgsl" not in trial.shaders
    assert "matrix_product.wgsl" in trial.shaders


def test_codes_whose_rows_begin_within_words(trial: Emulated) -> None:
    """They are brought into words once."""
    got, want, allowed = product(trial, "tf32", bits=4, sizes=(33, 36, 40, 16))
    assert (np.abs(got - want) <= allowed).all()
    assert "matrix_product.wgsl" in trial.shaders


@pytest.mark.parametrize("power", [50, -50])
def test_numbers_beyond_float16(trial: Emulated, power: int) -> None:
    got, want, allowed = product(trial, "tf32", power=power)
    assert (np.abs(got - want) <= allowed).all()
    assert "line_scales.wgsl" in trial.shaders


@pytest.mark.parametrize("scale", [1e9, 1e-9])
def test_weights_that_float16_does_not_hold(trial: Emulated, scale: float) -> None:
    """Scales of each row go together by a power of two."""
    for precision in ("tf32", "f16acc"):
        got, want, allowed = product(
            trial, precision, s=lambda array: array * scale * 2.0 ** np.arange(-36, 36)[:, None] / 2.0**30
        )
        assert np.isfinite(got).all()
        assert (np.abs(got - want) <= allowed).all()
    assert "matrix_product.wgsl" in trial.shaders


@pytest.mark.parametrize(("precision", "zero"), [("float32", "none"), ("tf32", "floats")])
def test_others_stay_off(trial: Emulated, precision: str, zero: str) -> None:
    got, want, _ = product(trial, precision, zero)
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
    assert "matrix_product.wgsl" not in trial.shaders


def test_float16_models(trial: Emulated) -> None:
    model, (dense, _) = nbits_model((40, 96), 96, 72, 4, 32, "codes", False)
    for held in model.graph.initializer:
        if held.name == "s":
            half = numpy_helper.to_array(held).astype(np.float16)
            dense = dense * np.repeat(half.astype(np.float64) / numpy_helper.to_array(held), 32, 1)[:, :96].T
            held.CopyFrom(numpy_helper.from_array(half, "s"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    x = np.random.default_rng().standard_normal((40, 96)).astype(np.float16)
    (got,) = trial.graph(from_onnx(model), [x])
    want, sizes = x.astype(np.float64) @ dense, np.abs(x).astype(np.float64) @ np.abs(dense)
    assert (np.abs(got - want) <= (2.0**-11 + 96 * 2.0**-24) * sizes + 2.0**-11 * np.abs(want)).all()
    assert "matrix_product.wgsl" in trial.shaders
    assert "part_scales.wgsl" not in trial.shaders


@pytest.mark.parametrize("way", ["decoded in"], indirect=True)
@pytest.mark.parametrize(
    ("rows", "weights", "shaders"),
    [(512, "auto", set()), (512, "packed", set()), (4096, "packed", {"unpack_product.wgsl"})],
)
def test_a_prompt_takes_them(
    trial: Emulated, monkeypatch: pytest.MonkeyPatch, rows: int, weights: str, shaders: set[str]
) -> None:
    """By estimate, with the figures of an H200: a dense copy that stays, else codes in the tile, of very many vectors
    decoded before."""
    monkeypatch.setattr(matrix_units, "TILES", TILES)
    model, _ = nbits_model((rows, 2048), 2048, 2048, 4, 32, "none", False)
    limits = replace(trial.gpu.limits.of(Config(precision="tf32", weights=weights)), figures=DEFAULT_FIGURES)
    with forced():
        plan = make_plan(from_onnx(model), {"x": TensorType(FLOAT32, (rows, 2048))}, limits)
    steps = [step.kernel for step in plan.steps if isinstance(step, Dispatch)]
    (unit,) = [k for k in steps if k.shader == "matrix_product.wgsl"]
    assert bool(dict(unit.consts)["CODES"]) == (weights == "packed" and not shaders)
    assert {k.shader for k in steps} & {"unpack_product.wgsl"} == shaders


def test_products_of_the_same_vectors_share_their_scales(trial: Emulated) -> None:
    """The gate and the way up of a layer."""
    model, _ = nbits_model((40, 96), 96, 72, 4, 32, "none", False)
    second = onnx.NodeProto()
    second.CopyFrom(model.graph.node[0])
    second.output[0] = "z"
    model.graph.node.append(second)
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, (40, 72)))
    x = np.random.default_rng().standard_normal((40, 96)).astype(np.float32)
    first, other = trial.graph(from_onnx(model), [x], "tf32")
    assert np.array_equal(first, other)
    plan = make_plan(
        from_onnx(model), {"x": TensorType(FLOAT32, x.shape)}, trial.gpu.limits.of(Config(precision="tf32"))
    )
    shaders = [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)]
    assert shaders.count("line_scales.wgsl") == 1
    assert shaders.count("matrix_product.wgsl") == 2


@pytest.mark.parametrize("way", ["decoded in"], indirect=True)
@pytest.mark.parametrize("precision", ["tf32", "f16acc"])
def test_k_in_parts(trial: Emulated, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """As few tiles as a prompt's way down has: each part decodes its own blocks, the last one is shorter."""
    monkeypatch.setattr(matrix_units, "LEAST_STEPS", 1)
    monkeypatch.setattr(matrix_units, "MOST_SPLIT", 2)
    with forced(f"decoded in {QUICK.name}*2") as made:
        got, want, allowed = product(trial, precision, "codes", sizes=(37, 160, 40, 32))
    assert [choice.form for choice in made.values()] == ["decoded in quick*2"]
    assert (np.abs(got - want) <= allowed).all()
