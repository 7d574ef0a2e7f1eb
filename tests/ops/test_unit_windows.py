"""Convolutions on matrix units, which are emulated (matrix_emulation.py): each mode within its error bound, against
float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.health.probes.matrix_units import in_tile
from ort_gpu_ep.ir.graph import Graph, Node, Step, Value
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, DType, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.ops import matrix_units, unit_windows
from ort_gpu_ep.ops.conv_last import MAX_PLANES
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler import make_plan
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.verify import violations
from tests.ops.matrix_emulation import Emulated, emulation
from tests.ops.test_matrix_units import KINDS, QUICK, SMALL, Array
from tests.ops.test_tiles import ADD, RELU, conv_graph, expected


@pytest.fixture
def trial() -> Iterator[Emulated]:
    with emulation() as made:
        yield made


WINDOWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((2, 20, 7, 5), (36, 20, 1, 1), {}),
    "1x1 steps": ((2, 32, 9, 7), (20, 32, 1, 1), {"strides": (2, 2)}),
    "3x3": ((1, 32, 7, 9), (68, 32, 3, 3), {"pads": (1, 1, 1, 1)}),
    "3x3 few channels": ((2, 12, 6, 5), (24, 12, 3, 3), {"pads": (1, 0, 0, 1), "strides": (2, 1)}),
    "3x3 by eight": ((1, 24, 6, 7), (20, 24, 3, 3), {"pads": (1, 1, 1, 1), "strides": (1, 2)}),
    "3x3 apart": ((1, 16, 9, 9), (16, 16, 3, 3), {"dilations": (2, 2), "pads": (2, 2, 2, 2)}),
    "planes": ((2, 3, 15, 13), (20, 3, 5, 5), {"strides": (2, 2), "pads": (2, 2, 2, 2)}),
    "groups": ((2, 48, 7, 6), (60, 16, 3, 3), {"pads": (1, 1, 1, 1), "group": 3}),
    "1x1 groups": ((3, 40, 5, 4), (72, 20, 1, 1), {"group": 2}),
    "line": ((2, 20, 37), (36, 20, 3), {"strides": (2,), "pads": (1, 1)}),
    "line of one channel": ((2, 1, 150), (20, 1, 20), {"strides": (5,)}),
    "line apart, groups": ((1, 48, 40), (60, 16, 8), {"dilations": (3,), "pads": (4, 5), "group": 3}),
    "space": ((2, 32, 4, 5, 6), (36, 32, 3, 3, 3), {"pads": (1,) * 6}),
    "space, few channels": (
        (1, 12, 5, 7, 6),
        (24, 12, 2, 3, 2),
        {"strides": (2, 1, 3), "dilations": (2, 1, 3), "pads": (1, 0, 2, 0, 1, 2)},
    ),
    "space 1x1x1 steps": ((2, 32, 3, 5, 7), (20, 32, 1, 1, 1), {"strides": (2, 2, 3)}),
    "space of planes": ((2, 3, 5, 9, 8), (20, 3, 3, 5, 4), {"strides": (1, 2, 2), "pads": (1, 2, 2, 1, 2, 2)}),
    "space, groups": ((1, 48, 3, 6, 5), (60, 16, 3, 1, 3), {"pads": (1, 0, 1, 1, 0, 1), "group": 3}),
}


def scaled(kind: str, x: Array, w: Array) -> tuple[Array, Array]:
    """Of a kind of data. mixed: images and filters of other magnitudes each."""
    rng = np.random.default_rng()
    if kind == "positive":
        return np.abs(x), np.abs(w)
    if kind == "mixed":
        powers = [np.exp2(rng.integers(-50, 51, (len(a), *(1,) * (a.ndim - 1)))) for a in (x, w)]
        return (x * powers[0]).astype(np.float32), (w * powers[1]).astype(np.float32)
    factor = np.float32(2.0 ** {"large": 55, "small": -55}.get(kind, 0))
    return x * factor, w * factor


def stored_of(x: Array, filters: tuple[int, ...]) -> Array:
    """As a channels-last Conv of such filters reads x."""
    return x if filters[1] <= MAX_PLANES else np.ascontiguousarray(np.moveaxis(x, 1, -1))


def check(trial: Emulated, name: str, kind: str, precision: str, residual: bool = False) -> None:
    rng = np.random.default_rng()
    shape, filters, attributes = WINDOWS[name]
    x, w = scaled(kind, rng.standard_normal(shape, np.float32), rng.standard_normal(filters, np.float32))
    bias = rng.standard_normal(filters[0], np.float32) if kind == "normal" else None
    exact = expected(x, w, bias, None, attributes)
    added: Array | None = rng.standard_normal(exact.shape, np.float32) if residual else None
    arrays: list[Array] = [
        stored_of(x, filters),
        *([] if added is None else [added]),
    ]
    (got,) = trial.graph(conv_graph(arrays[0], w, bias, added, **attributes), arrays, precision)
    wide, other, k = np.abs(x).astype(np.float64), np.abs(w).astype(np.float64), int(np.prod(filters[1:]))
    allowed = (2.0**-10 + k * 2.0**-24) * expected(wide, other, None, None, attributes)
    allowed += 2.0**-20 if kind == "normal" else 0.0  # of the bias, and of what is added
    if precision == "tf32":  # of an image and of a filter
        of_one, ones = tuple(range(1, x.ndim)), np.ones_like(w)
        largest = wide.max(of_one).reshape(-1, *(1,) * (x.ndim - 1))
        allowed += 2.0**-38 * (
            largest * other.sum(of_one) + expected(wide, ones, None, None, attributes) * other.max(of_one)
        )
    want = exact if added is None else np.maximum(exact, 0) + added
    assert np.isfinite(got).all()
    assert (np.abs(got - want) <= allowed).all()
    assert "matrix_product.wgsl" in trial.shaders


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_in_tf32(trial: Emulated, name: str) -> None:
    with in_tile(SMALL if name == "3x3" else QUICK):
        check(trial, name, "normal", "tf32")


def test_groups_have_scales_of_their_own(trial: Emulated) -> None:
    with in_tile(QUICK):
        check(trial, "groups", "mixed", "tf32")


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_windows_of_float16_models(trial: Emulated, name: str, kind: str) -> None:
    check_half(trial, name, kind)


def check_half(trial: Emulated, name: str, kind: str, is_open: bool = False) -> None:
    """x, the filters and the bias are the model's; what is stored is rounded once. is_open: images and pixels are
    those of a run."""
    rng = np.random.default_rng()
    shape, filters, attributes = WINDOWS[name]
    x, w = (
        a.astype(np.float16)
        for a in scaled(kind, rng.standard_normal(shape, np.float32), rng.standard_normal(filters, np.float32))
    )
    bias = rng.standard_normal(filters[0]).astype(np.float16)
    stored, axis = stored_of(x, filters), 1 if filters[1] <= MAX_PLANES else x.ndim - 1
    sizes_of_x = tuple(f"size{k}" if is_open and k != axis else n for k, n in enumerate(stored.shape))
    values = {"x": Value("x", FLOAT16, sizes_of_x), "y": Value("y", FLOAT16)}
    values |= {n: Value(n, FLOAT16, a.shape, lambda a=a: a) for n, a in (("w", w), ("c", bias))}  # type: ignore[misc]
    node = Node("Conv", ("x", "w", "c"), ("y",), version=11, attributes=attributes, channels_last=True)
    with in_tile(QUICK):
        (got,) = trial.graph(Graph("g", ("x",), ("y",), (node,), values), [stored])
    exact = expected(x, w, bias.astype(np.float32), None, attributes)
    sizes = expected(np.abs(x), np.abs(w), np.abs(bias).astype(np.float32), None, attributes)
    allowed = (int(np.prod(filters[1:])) + 1) * 2.0**-24 * sizes + 2.0**-11 * np.abs(exact) + 2.0**-24
    assert got.dtype == np.float16
    assert (np.abs(got - exact) <= allowed).all()
    assert trial.shaders == {"matrix_product.wgsl", "pack_rows.wgsl"}


@pytest.mark.parametrize("name", ["3x3", "planes", "line", "space", "space of planes", "space 1x1x1 steps"])
def test_sizes_of_a_run(trial: Emulated, name: str) -> None:
    check_half(trial, name, "normal", is_open=True)


SPREADS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "transposed": ("ConvTranspose", (2, 24, 7, 5), (24, 12, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "transposed, uneven": (
        "ConvTranspose",
        (1, 20, 6, 5),
        (20, 8, 3, 5),
        {"strides": (2, 3), "pads": (1, 3, 0, 2), "output_padding": (1, 2)},
    ),
    "transposed with gaps": ("ConvTranspose", (1, 16, 6, 7), (16, 4, 2, 1), {"strides": (3, 2)}),
    "transposed to planes": (
        "ConvTranspose",
        (1, 32, 6, 5),
        (32, 5, 4, 4),
        {"strides": (2, 2), "pads": (1, 1, 1, 1)},
    ),
    "transposed line": ("ConvTranspose", (2, 16, 21), (16, 8, 16), {"strides": (8,), "pads": (4, 3)}),
    "21 filters": ("Conv", (2, 16, 6, 7), (21, 16, 3, 3), {"pads": (1, 1, 1, 1), "strides": (1, 2)}),
    "18 filters of a line": ("Conv", (1, 16, 70), (18, 16, 9), {"strides": (2,)}),
    "transposed space": (
        "ConvTranspose",
        (2, 16, 3, 4, 5),
        (16, 8, 2, 3, 4),
        {"strides": (2, 2, 3), "pads": (1, 0, 2, 0, 1, 1), "output_padding": (1, 0, 2)},
    ),
    "transposed space to planes": ("ConvTranspose", (2, 20, 1, 5, 4), (20, 5, 3, 2, 2), {"strides": (2, 1, 2)}),
    "17 filters of a space": ("Conv", (2, 16, 3, 4, 5), (17, 16, 1, 3, 3), {"pads": (0, 1, 1, 0, 1, 1)}),
}
"""What is stored elsewhere than [row, column]: pixels between others, and planes where filters are no fours."""


def transposed(x: Array, w: Array, attributes: dict[str, Any]) -> Array:
    """ConvTranspose in float64; x: [N, C, spatial...], the result [N, spatial'..., M]."""
    strides, taps, rank = attributes["strides"], w.shape[2:], x.ndim - 2
    pads = attributes.get("pads", (0,) * (2 * rank))
    sizes = [(n - 1) * s + t for n, s, t in zip(x.shape[2:], strides, taps, strict=True)]
    whole = np.zeros((x.shape[0], *(n + max(strides) for n in sizes), w.shape[1]))
    for tap in np.ndindex(*taps):
        places = (slice(t, t + (n - 1) * s + 1, s) for t, n, s in zip(tap, x.shape[2:], strides, strict=True))
        whole[:, *places] += np.einsum("nc...,cm->n...m", x.astype(np.float64), w[:, :, *tap].astype(np.float64))
    beyond = attributes.get("output_padding", (0,) * rank)
    kept = (slice(pads[k], sizes[k] - pads[k + rank] + beyond[k]) for k in range(rank))
    return whole[:, *kept]


@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize("precision", ["float16", "f16acc", "tf32"])
@pytest.mark.parametrize("is_fused", [False, True])
def test_spread(trial: Emulated, name: str, precision: str, is_fused: bool) -> None:
    """With a fused Relu and sum, too."""
    rng = np.random.default_rng()
    op, shape, filters, attributes = SPREADS[name]
    dtype = FLOAT16 if precision == "float16" else FLOAT32
    x, w = (rng.standard_normal(some).astype(dtype.numpy) for some in (shape, filters))
    bias = rng.standard_normal(filters[1 if op == "ConvTranspose" else 0]).astype(dtype.numpy)
    convolved = transposed if op == "ConvTranspose" else lambda x, w, own: expected(x, w, None, None, own)
    exact, sizes = convolved(x, w, attributes) + bias, convolved(np.abs(x), np.abs(w), attributes) + np.abs(bias)
    if bias.size % 4:
        exact, sizes = (np.moveaxis(y, -1, 1) for y in (exact, sizes))
    stored, added = (
        stored_of(x, filters if op == "Conv" else shape),
        rng.standard_normal(exact.shape).astype(dtype.numpy),
    )
    values = {n: Value(n, dtype, a.shape) for n, a in (("x", stored), ("r", added))} | {"y": Value("y", dtype)}
    values |= {n: Value(n, dtype, a.shape, lambda a=a: a) for n, a in (("w", w), ("c", bias))}  # type: ignore[misc]
    fused: dict[str, Any] = {"epilogue": (RELU, ADD), "operands": ("r",)} if is_fused else {}
    node = Node(op, ("x", "w", "c"), ("y",), version=11, attributes=attributes, channels_last=True, **fused)
    arrays = [stored, added] if is_fused else [stored]
    graph = Graph("g", ("x", "r") if is_fused else ("x",), ("y",), (node,), values)
    with in_tile(QUICK):
        (got,) = trial.graph(graph, arrays, "float32" if precision == "float16" else precision)
        if precision == "float16":
            assert np.array_equal(trial.weight(graph, arrays, "w"), w), "packed weights come back as they were"
    rounded = 2.0**-11 if precision == "float16" else 0.0
    k = filters[0] * 16 if op == "ConvTranspose" else int(np.prod(filters[1:]))
    allowed = ((0.0 if rounded else 2.0**-10) + (k + 1) * 2.0**-24) * sizes + rounded * np.abs(exact) + 2.0**-24
    if is_fused:
        exact = np.maximum(exact, 0) + added
        allowed = allowed + rounded * np.abs(exact) + 2.0**-22 * np.abs(added)
    assert got.shape == exact.shape
    assert (np.abs(got - exact) <= allowed).all()
    assert "matrix_product.wgsl" in trial.shaders


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("name", ["transposed", "transposed to planes", "transposed line", "21 filters"])
def test_spread_of_other_magnitudes(trial: Emulated, name: str, kind: str) -> None:
    """In tf32, whose scales are those of an image and of a column: a phase of a filter, or a filter."""
    rng = np.random.default_rng()
    op, shape, filters, attributes = SPREADS[name]
    is_transposed = op == "ConvTranspose"
    x, w = scaled(kind, rng.standard_normal(shape, np.float32), rng.standard_normal(filters, np.float32))
    if is_transposed and kind == "mixed":
        w = rng.standard_normal(filters, np.float32)
        w *= np.exp2(rng.integers(-50, 51, (1, filters[1], *(1,) * (w.ndim - 2)))).astype(np.float32)
    convolved = transposed if is_transposed else lambda x, w, own: expected(x, w, None, None, own)
    stored = stored_of(x, filters if op == "Conv" else shape)
    values = {"x": Value("x", FLOAT32, stored.shape), "w": Value("w", FLOAT32, w.shape, lambda: w)}
    node = Node(op, ("x", "w"), ("y",), version=11, attributes=attributes, channels_last=True)
    with in_tile(QUICK):
        (got,) = trial.graph(Graph("g", ("x",), ("y",), (node,), values | {"y": Value("y", FLOAT32)}), [stored], "tf32")
    wide, other = np.abs(x).astype(np.float64), np.abs(w).astype(np.float64)
    of_image, axis = tuple(range(1, x.ndim)), 1 if is_transposed else 0
    of_filter = tuple(k for k in range(w.ndim) if k != axis)
    below = wide.max(of_image).reshape(-1, *(1,) * (x.ndim - 1)) * other.sum(of_filter)
    below = below + convolved(wide, np.ones_like(other), attributes) * other.max(of_filter)
    k = filters[0] * 16 if is_transposed else int(np.prod(filters[1:]))
    allowed = (2.0**-10 + k * 2.0**-24) * convolved(wide, other, attributes) + 2.0**-38 * below
    exact = convolved(x, w, attributes)
    if exact.shape[-1] % 4:
        exact, allowed = (np.moveaxis(y, -1, 1) for y in (exact, allowed))
    assert np.isfinite(got).all()
    assert (np.abs(got - exact) <= allowed).all()
    assert trial.shaders >= {"line_scales.wgsl", "scaled_rows.wgsl", "matrix_product.wgsl"}


@pytest.mark.parametrize("name", ["1x1", "3x3 few channels", "planes", "groups", "line", "space"])
def test_windows_in_f16acc(trial: Emulated, name: str) -> None:
    with in_tile(QUICK):
        check(trial, name, "normal", "f16acc")
    assert "part_scales.wgsl" not in trial.shaders


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each product with k in three parts."""
    monkeypatch.setattr(matrix_units, "LEAST_STEPS", 1)
    monkeypatch.setattr(matrix_units, "MOST_SPLIT", 3)
    monkeypatch.setattr(
        unit_windows,
        "_splits",
        lambda units, tile, usual=unit_windows._splits: (s for s in usual(units, tile) if s == 3),
    )
    with in_tile(QUICK), forced(f"{QUICK.name}*3"):
        yield


@pytest.mark.parametrize(
    ("name", "precision"), [("3x3", "tf32"), ("3x3", "f16acc"), ("3x3 apart", "tf32"), ("space", "tf32")]
)
@pytest.mark.usefixtures("in_parts")
def test_k_in_parts(trial: Emulated, name: str, precision: str) -> None:
    with forced(f"{QUICK.name}*3") as made:
        check(trial, name, "normal", precision, residual=name == "3x3")
    assert [choice.form for choice in made.values()] == ["quick*3"]


def test_fused_steps(trial: Emulated) -> None:
    with in_tile(QUICK):
        check(trial, "3x3 few channels", "normal", "tf32", residual=True)


def test_an_image_out_of_float16_leaves_the_others_alone(trial: Emulated) -> None:
    """Images of a batch have a power of two each: the largest float32 in one, an infinity in another."""
    rng = np.random.default_rng()
    x, w = rng.standard_normal((4, 20, 7, 5), np.float32), rng.standard_normal((36, 20, 1, 1), np.float32) / 64
    x[1] *= np.float32(2.0**120)
    x[2] *= np.float32(2.0**-120)
    x[3, 0, 0, 0] = np.inf
    with in_tile(QUICK), np.errstate(all="ignore"):
        stored = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        (got,) = trial.graph(conv_graph(stored, w, None, None), [stored], "tf32")
        exact = expected(x, w, None, None, {})
    sizes = np.einsum("nchw,mc->nhwm", np.abs(x[:3]).astype(np.float64), np.abs(w[:, :, 0, 0]))
    assert (np.abs(got[:3] - exact[:3]) <= 2.0**-10 * 1.01 * sizes).all()
    assert np.isinf(got[3, 0, 0]).all()
    assert np.isfinite(got[3, 1:]).all()


def test_layers_of_resnet_choose_them(trial: Emulated) -> None:
    """By estimate, with the figures of an H200: 32 images, and not one of few pixels."""

    def chosen(images: int, size: int, channels: int, filters: int, window: int, precision: str = "tf32") -> str:
        x, w = (
            np.empty((images, size, size, channels), np.float32),
            np.zeros((filters, channels, window, window), np.float32),
        )
        pads = (window // 2,) * 4
        limits = replace(
            trial.gpu.limits.of(Config(precision=precision)), figures=DEFAULT_FIGURES, max_workgroup_nbytes=49152
        )
        plan = make_plan(conv_graph(x, w, None, None, pads=pads), {"x": TensorType(FLOAT32, x.shape)}, limits)
        return next(step.kernel.choice.form for step in plan.steps if isinstance(step, Dispatch) and step.kernel.choice)

    assert chosen(32, 14, 256, 1024, 1).startswith("units")
    assert chosen(32, 28, 128, 128, 3).startswith("units")
    assert not chosen(1, 7, 64, 16, 1).startswith("units")
    for precision in ("tf32", "f16acc"):  # 84 us instead of 128, 57 instead of 79, 33 instead of 48
        assert chosen(32, 56, 64, 256, 1, precision) == "units 64x64x32"
        assert chosen(32, 14, 256, 256, 3, precision) == "units 64x64x32"
        assert chosen(32, 14, 1024, 256, 1, precision) == "units 64x64x32"
    x, w = np.empty((32, 3, 224, 224), np.float32), np.zeros((64, 3, 7, 7), np.float32)
    limits = replace(
        trial.gpu.limits.of(Config(precision="f16acc")), figures=DEFAULT_FIGURES, max_workgroup_nbytes=49152
    )
    plan = make_plan(
        conv_graph(x, w, None, None, pads=(3,) * 4, strides=(2, 2)), {"x": TensorType(FLOAT32, x.shape)}, limits
    )
    assert plan.halved_inputs == {0}, "the images may come in float16"


@pytest.mark.parametrize("kind", KINDS[1:])
def test_kinds_of_data(trial: Emulated, kind: str) -> None:
    with in_tile(QUICK):
        check(trial, "3x3 few channels", kind, "tf32")


def two_layers(
    rng: np.random.Generator, images: int, size: int, middle: int, residual: bool, is_transposed: bool = False
) -> tuple[Graph, Graph, Graph]:
    """Two convolutions behind each other, channels last, the first with a Relu and maybe a sum; and each of them
    alone. is_transposed: the first is a ConvTranspose, whose first row and column are cut off; the first channel's
    weights reach no further."""
    side = 2 * size if is_transposed else size
    between = images, side, side, middle
    shapes = {"x": (images, size, size, 20), "v": between, "added": between}
    weights = {
        "w": rng.standard_normal((20, middle, 3, 3) if is_transposed else (middle, 20, 3, 3), np.float32),
        "u": rng.standard_normal((36, middle, 1, 1), np.float32),
    }
    values = {name: Value(name, FLOAT32, shape) for name, shape in shapes.items()}
    values |= {name: Value(name, FLOAT32, w.shape, lambda w=w: w) for name, w in weights.items()}
    relu = Step("Relu", "max(x, 0.0)", ("v",), FLOAT32)
    steps = (relu, Step("Add", "x + y", ("s0", "e0"), FLOAT32)) if residual else (relu,)
    operands = ("added",) if residual else ()
    if is_transposed:
        weights["w"][0, :, 1:] = weights["w"][0, :, :, 1:] = 0.0
    first = Node(
        "ConvTranspose" if is_transposed else "Conv",
        ("x", "w"),
        ("v",),
        version=11,
        attributes={"pads": (1, 1, 0, 0), "strides": (2, 2)} if is_transposed else {"pads": (1, 1, 1, 1)},
        channels_last=True,
        operands=operands,
        epilogue=steps,
    )
    second = Node("Conv", ("v", "u"), ("y",), version=11, channels_last=True, id=1)
    given = ("x", *operands)
    return (
        Graph("both", given, ("y",), (first, second), values),
        Graph("first", given, ("v",), (first,), values),
        Graph("second", ("v",), ("y",), (second,), values),
    )


@pytest.mark.parametrize(("images", "size", "middle"), [(3, 7, 44), (2, 12, 20), (5, 3, 36), (2, 16, 68)])
@pytest.mark.parametrize("residual", [False, True])
def test_a_layer_gives_the_next_one_its_scales(
    trial: Emulated, images: int, size: int, middle: int, residual: bool
) -> None:
    with in_tile(QUICK):
        check_given_scales(trial, images, size, middle, residual)


@pytest.mark.usefixtures("in_parts")
def test_the_last_part_gives_the_scales(trial: Emulated) -> None:
    with forced(f"{QUICK.name}*3", QUICK.name):
        check_given_scales(trial, 3, 7, 44, True)


@pytest.mark.parametrize(("images", "size", "middle", "residual"), [(3, 4, 20, True), (2, 6, 44, False)])
def test_a_transposed_layer_gives_the_scales_of_what_it_stores(
    trial: Emulated, images: int, size: int, middle: int, residual: bool
) -> None:
    """The largest sums are those that are cut off."""
    with in_tile(QUICK):
        check_given_scales(trial, images, size, middle, residual, is_transposed=True)


def check_given_scales(
    trial: Emulated, images: int, size: int, middle: int, residual: bool, is_transposed: bool = False
) -> None:
    """Bit for bit what a look at each image gives, with images of any magnitude, and in runs that follow each other
    with others."""
    rng = np.random.default_rng()
    both, first, second = two_layers(rng, images, size, middle, residual, is_transposed)
    program = Program(both, Config(precision="tf32", weights="packed"), trial.gpu, composer=trial._composed)
    try:
        for low, high in ((30, 40), (-40, -30), (-40, 40)):
            x = rng.standard_normal((images, size, size, 20), np.float32)
            x *= np.exp2(rng.integers(low, high, (images, 1, 1, 1))).astype(np.float32)
            if is_transposed:
                x[..., 0] = 0.0
            x[-1, 0, 0, 0] = np.abs(x[-1]).max() * np.float32(2.0**28 if is_transposed else 2.0**60)
            arrays = [x, *([rng.standard_normal(both.values["v"].shape, np.float32)] if residual else [])]
            trial.shaders.clear()
            (got,) = trial._run(program, arrays)
            searches = sum(
                step.kernel.shader == "part_scales.wgsl"
                for step in program.plans[0].steps
                if isinstance(step, Dispatch)
            )
            assert searches == 1
            (between,) = trial.graph(first, arrays, "tf32")
            (want,) = trial.graph(second, [between], "tf32")
            assert np.isfinite(got).all()
            assert np.array_equal(got, want)
    finally:
        program.close()


@pytest.mark.parametrize(("size", "middle"), [(7, 44), (12, 40)])
def test_what_is_rounded_anyway_is_stored_in_float16(trial: Emulated, size: int, middle: int) -> None:
    """Bit for bit what two layers give whose value in between is float32. Read by four, and by eight."""
    rng = np.random.default_rng()
    both, first, second = two_layers(rng, 2, size, middle, True)
    arrays = [
        rng.standard_normal((2, size, size, 20), np.float32),
        rng.standard_normal((2, size, size, middle), np.float32),
    ]
    with in_tile(QUICK):
        (got,) = trial.graph(both, arrays, "f16acc")
        (between,) = trial.graph(first, arrays, "f16acc")
        (want,) = trial.graph(second, [between], "f16acc")
        plan = make_plan(
            both,
            {n: TensorType(FLOAT32, a.shape) for n, a in zip(both.inputs, arrays, strict=True)},
            trial.gpu.limits.of(Config(precision="f16acc")),
        )
    assert np.array_equal(got, want)
    assert FLOAT16 in {
        tensor.type.dtype
        for step in plan.steps
        if isinstance(step, Dispatch)
        for tensor in step.tensors
        if tensor.written
    }
    assert not violations(plan, trial.gpu.limits)


def test_what_others_read_stays_float32(trial: Emulated) -> None:
    """An output of the graph, and what a sum reads."""
    rng = np.random.default_rng()
    both, _, _ = two_layers(rng, 2, 7, 36, False)
    x = TensorType(FLOAT32, (2, 7, 7, 20))
    limits = trial.gpu.limits.of(Config(precision="f16acc"))
    second = replace(both.nodes[1], operands=("v",), epilogue=(Step("Add", "x + y", ("v", "e0"), FLOAT32),))
    with in_tile(QUICK):
        plans = [
            make_plan(replace(both, outputs=("y", "v")), {"x": x}, limits),
            make_plan(replace(both, nodes=(both.nodes[0], second)), {"x": x}, limits),
        ]
    for plan in plans:
        assert not any(
            t.type.dtype is FLOAT16
            for step in plan.steps
            if isinstance(step, Dispatch)
            for t in step.tensors
            if t.written
        )


@pytest.mark.parametrize(("dtype", "precision"), [(FLOAT32, "tf32"), (FLOAT32, "f16acc"), (FLOAT16, "float32")])
def test_nhwc_convolutions(trial: Emulated, dtype: DType, precision: str) -> None:
    rng = np.random.default_rng()
    x, w = (rng.standard_normal(shape).astype(dtype.numpy) for shape in ((2, 7, 6, 32), (36, 3, 3, 32)))
    values = {"x": Value("x", dtype, x.shape), "w": Value("w", dtype, w.shape, lambda: w), "y": Value("y", dtype)}
    node = Node("NhwcConv", ("x", "w"), ("y",), domain="com.microsoft", version=1, attributes={"pads": (1, 1, 1, 1)})
    with in_tile(QUICK):
        (got,) = trial.graph(Graph("g", ("x",), ("y",), (node,), values), [x], precision)
    planes = [np.ascontiguousarray(a.transpose(0, 3, 1, 2)).astype(np.float32) for a in (x, w)]
    exact, sizes = (
        expected(a, b, None, None, {"pads": (1, 1, 1, 1)}) for a, b in (planes, [np.abs(a) for a in planes])
    )
    assert (np.abs(got - exact) <= (2.0**-10 + 288 * 2.0**-24) * sizes + 2.0**-11 * np.abs(exact)).all()
    assert "matrix_product.wgsl" in trial.shaders


def test_a_maximum_passes_float16_on(trial: Emulated) -> None:
    """Of a pool between two layers: what it reads is stored in float16, too, and the result is the same bit for bit."""
    rng = np.random.default_rng()
    both, first, second = two_layers(rng, 2, 8, 40, False)
    pool = Node(
        "MaxPool",
        ("v",),
        ("p",),
        version=12,
        attributes={"kernel_shape": (2, 2), "strides": (2, 2)},
        channels_last=True,
        id=2,
    )
    pooled = replace(both, nodes=(both.nodes[0], pool, replace(both.nodes[1], inputs=("p", "u"))))
    x = rng.standard_normal((2, 8, 8, 20), np.float32)
    with in_tile(QUICK):
        (got,) = trial.graph(pooled, [x], "f16acc")
        plan = make_plan(pooled, {"x": TensorType(FLOAT32, x.shape)}, trial.gpu.limits.of(Config(precision="f16acc")))
        (between,) = trial.graph(first, [x], "f16acc")
        (want,) = trial.graph(second, [between.reshape(2, 4, 2, 4, 2, 40).max((2, 4))], "f16acc")
    stored = {
        t.name: t.type.dtype
        for step in plan.steps
        if isinstance(step, Dispatch) and step.kernel.shader == "pool_last.wgsl"
        for t in step.tensors
    }
    assert stored == {"x": FLOAT16, "y": FLOAT16}
    assert np.array_equal(got, want)
