"""Products on matrix units, which are emulated (matrix_emulation.py): each mode within its error bound, against
float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.health.probe import PROBES
from ort_gpu_ep.health.probes.matrix_units import in_tile
from ort_gpu_ep.ir.graph import Graph, Node, Value
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, INT64, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.target import LAST_ARRIVING, MATRIX_UNITS, SUBGROUP_MATRIX, UNIT_SHADERS, Target, lacks
from ort_gpu_ep.ops.matrix_units import PLAIN_WIDTH, ROUNDED_WIDTH, SCALED_WIDTH, TILES, UnitTile, splits, tile_ns
from ort_gpu_ep.plugin.explain import Explanation
from ort_gpu_ep.scheduler import make_plan
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.ops.matrix_emulation import Emulated, emulation

Array = np.ndarray[Any, Any]
SMALL = TILES[-1]
QUICK = UnitTile("quick", 32, 32, 32, 2, 2, 1.0)
"""One fragment a subgroup: software compiles it ten times as fast."""
LARGE = replace(TILES[0], k=16)
"""With a shorter step, so that it has room in lavapipe's workgroup memory."""
KINDS = ("normal", "positive", "large", "small", "mixed")


@pytest.fixture
def trial() -> Iterator[Emulated]:
    with emulation() as made:
        yield made


def drawn(kind: str, rows: int, columns: int, by_rows: bool) -> Array:
    rng = np.random.default_rng()
    made = (
        rng.random((rows, columns), np.float32)
        if kind == "positive"
        else rng.standard_normal((rows, columns), np.float32)
    )
    powers: Any = {"large": 55, "small": -55}.get(kind, 0)
    if kind == "mixed":
        powers = rng.integers(-50, 51, (rows, 1) if by_rows else (1, columns))
    return (made * np.exp2(powers)).astype(np.float32)


def product(
    trial: Emulated,
    a: Array,
    b: Array,
    precision: str,
    op: str = "MatMul",
    bias: Array | None = None,
    **attributes: Any,
) -> Array:
    arrays = [a, b] if bias is None else [a, b, bias]
    names = "abc"[: len(arrays)]
    values = {name: Value(name, FLOAT32, array.shape) for name, array in zip(names, arrays, strict=True)}
    node = Node(op, tuple(names), ("y",), version=13, attributes=attributes)
    (got,) = trial.graph(Graph("g", tuple(names), ("y",), (node,), values), arrays, precision)
    return got


def assert_within(got: Array, a: Array, b: Array) -> None:
    """The bound of docs/precision.md."""
    wide, other = a.astype(np.float64), b.astype(np.float64)
    k = a.shape[-1]
    below = 2.0**-38 * (
        np.abs(wide).max(-1, keepdims=True) * np.abs(other).sum(-2, keepdims=True)
        + np.abs(wide).sum(-1, keepdims=True) * np.abs(other).max(-2, keepdims=True)
    )
    allowed = (2.0**-10 + k * 2.0**-24) * (np.abs(wide) @ np.abs(other)) + below
    assert (np.abs(got - wide @ other) <= allowed).all()


@pytest.mark.parametrize("kind", KINDS)
def test_tf32_is_within_its_bound(trial: Emulated, kind: str) -> None:
    a, b = drawn(kind, 70, 133, True), drawn(kind, 133, 68, False)
    with in_tile(SMALL if kind == "mixed" else QUICK):
        assert_within(product(trial, a, b, "tf32"), a, b)
    assert "matrix_product.wgsl" in trial.shaders


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("columns", [52, 53])
def test_constant_weights_are_scaled_and_stored_in_float16_once(trial: Emulated, transposed: int, columns: int) -> None:
    """They are read as vectors, and by elements."""
    a, b = drawn("mixed", 37, 70, True), drawn("mixed", 70, columns, False)
    given = np.ascontiguousarray(b.T) if transposed else b
    values = {"a": Value("a", FLOAT32, a.shape), "b": Value("b", FLOAT32, given.shape, lambda: given)}
    node = Node("Gemm", ("a", "b"), ("y",), version=13, attributes={"transB": transposed})
    with in_tile(QUICK):
        (got,) = trial.graph(Graph("g", ("a",), ("y",), (node,), values), [a], "tf32")
    assert_within(got, a, b)
    assert "scaled_rows.wgsl" in trial.shaders


@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_f16acc_is_within_its_bound(trial: Emulated, kind: str) -> None:
    a, b = drawn(kind, 130, 100, True), drawn(kind, 100, 132, False)
    with in_tile(LARGE):
        assert_within(product(trial, a, b, "f16acc"), a, b)
    assert trial.shaders == {"matrix_product.wgsl"}


@pytest.mark.parametrize("sizes", [(40, 72, 64), (33, 36, 44), (35, 37, 39)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_float16_models(trial: Emulated, sizes: tuple[int, int, int], transposed: int) -> None:
    """Operands are read by eight, by four, and by elements."""
    m, n, k = sizes
    a, b = (drawn("normal", *shape, True).astype(np.float16) for shape in ((m, k), (k, n)))
    given = np.ascontiguousarray(b.T) if transposed else b
    values = {name: Value(name, FLOAT16, array.shape) for name, array in (("a", a), ("b", given))}
    node = Node("Gemm", ("a", "b"), ("y",), version=13, attributes={"transB": transposed})
    with in_tile(QUICK):
        (got,) = trial.graph(Graph("g", ("a", "b"), ("y",), (node,), values), [a, given])
    exact = a.astype(np.float64) @ b.astype(np.float64)
    allowed = (
        k * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
        + 2.0**-11 * np.abs(exact)
        + 2.0**-24
    )
    assert (np.abs(got - exact) <= allowed).all()
    assert trial.shaders == {"matrix_product.wgsl"}


@pytest.mark.parametrize(("equation", "first", "second"), [("bij,bjk->bik", 0, 1), ("jk,ij->ik", 1, 0)])
@pytest.mark.parametrize("columns", [36, 35])
def test_sums_by_labels(trial: Emulated, equation: str, first: int, second: int, columns: int) -> None:
    """Einsum of a float16 model that is a product of matrices, of either operand's rows."""
    batch = (2,) if "b" in equation else ()
    rng = np.random.default_rng()
    a, b = (rng.standard_normal((*batch, *shape)).astype(np.float16) for shape in ((33, 44), (44, columns)))
    arrays = [(a, b)[first], (a, b)[second]]
    values = {name: Value(name, FLOAT16, array.shape) for name, array in zip("ab", arrays, strict=True)}
    node = Node("Einsum", ("a", "b"), ("y",), version=12, attributes={"equation": equation})
    with in_tile(QUICK):
        (got,) = trial.graph(Graph("g", ("a", "b"), ("y",), (node,), values), arrays)
    wide, other = a.astype(np.float64), b.astype(np.float64)
    exact = wide @ other
    assert (np.abs(got - exact) <= 45 * 2.0**-24 * (np.abs(wide) @ np.abs(other)) + 2.0**-11 * np.abs(exact)).all()
    assert trial.shaders == {"matrix_product.wgsl"}


@pytest.mark.parametrize("sizes", [(33, 35, 37), (65, 68, 64)])
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm_of_any_size_with_transposed_operands(
    trial: Emulated, sizes: tuple[int, int, int], turned: tuple[int, int]
) -> None:
    m, n, k = sizes
    a, b, bias = drawn("normal", m, k, True), drawn("normal", k, n, False), drawn("normal", 1, n, True)[0]
    given = [np.ascontiguousarray(v.T) if turn else v for v, turn in zip((a, b), turned, strict=True)]
    with in_tile(QUICK):
        got = product(
            trial, given[0], given[1], "tf32", "Gemm", bias, transA=turned[0], transB=turned[1], alpha=0.5, beta=2.0
        )
    exact = 0.5 * a.astype(np.float64) @ b + 2.0 * bias
    assert np.abs(got - exact).max() <= (2.0**-10 + k * 2.0**-24) * (np.abs(a).astype(np.float64) @ np.abs(b)).max()
    assert "matrix_product.wgsl" in trial.shaders


def test_batches_that_broadcast(trial: Emulated) -> None:
    a, b = (
        np.stack([drawn("mixed", 40, 36, True) for _ in range(3)]),
        np.stack([drawn("mixed", 36, 24, False) for _ in range(6)]),
    )
    b = b.reshape(2, 3, 36, 24)
    with in_tile(QUICK):
        assert_within(product(trial, a, b, "tf32"), a, b)
    assert "matrix_product.wgsl" in trial.shaders


def test_no_number_becomes_infinite_that_float32_holds(trial: Emulated) -> None:
    """The largest float32, the smallest normal one, rows of zeros; infinities and NaN stay in their rows."""
    a, b = drawn("normal", 40, 48, True), drawn("normal", 48, 32, False)
    a[0] *= np.float32(2.0**120)
    a[1] *= np.float32(2.0**-120)
    a[2] = 0.0
    a[3, 5], a[4, 6] = np.inf, np.nan
    a[5, :2] = 3e38, 1e-3
    b[:, 0] *= np.float32(1e-30)
    with in_tile(QUICK), np.errstate(all="ignore"):
        got, exact = product(trial, a, b, "tf32"), a.astype(np.float64) @ b
    finite = [row for row in range(40) if row not in (3, 4)]
    held = np.abs(exact[finite]) < 3.3e38
    assert np.isfinite(got[finite][held]).all()
    assert np.array_equal(got[3], exact[3].astype(np.float32))
    assert np.isnan(got[4]).all()
    assert not got[2].any()
    few = [row for row in finite if row not in (0, 1, 5)]
    assert_within(got[few], a[few], b)


def test_truncated_sums_are_a_bias(trial: Emulated) -> None:
    """On positive data that float16 holds, sums are too small, by more than rounding makes and less than the bound
    says."""
    rng = np.random.default_rng()
    a, b = (rng.random(shape, np.float32).astype(np.float16).astype(np.float32) for shape in ((32, 1024), (1024, 32)))
    with in_tile(QUICK):
        got = product(trial, a, b, "f16acc")
    exact = a.astype(np.float64) @ b
    bias = ((got - exact) / exact).mean()
    assert -1024 * 2.0**-24 < bias < -1e-6


def test_sizes_choose_tiles() -> None:
    """By estimate, with the figures of an H200: what was measured to be the fastest."""

    def chosen(rows: int, columns: int, k: int, x_width: float, w_width: float) -> str:
        return min(
            TILES, key=lambda tile: tile_ns(DEFAULT_FIGURES, tile, rows, columns, k, 1, 1.0, 1, (x_width, w_width))
        ).name

    for widths in ((ROUNDED_WIDTH, ROUNDED_WIDTH), (SCALED_WIDTH, PLAIN_WIDTH)):
        assert chosen(4096, 4096, 4096, *widths) == "units 128x128"
        assert chosen(512, 8192, 2048, *widths) == "units 128x128"
        assert chosen(1024, 1024, 1024, *widths) == "units 64x64"
        assert chosen(256, 1024, 1024, *widths) == "units 64x64"
        for columns, k in ((768, 768), (3072, 768), (768, 3072)):
            assert chosen(4096, columns, k, *widths) == "units 128x128"


def test_float32_never_uses_them(trial: Emulated) -> None:
    a, b = drawn("normal", 64, 64, True), drawn("normal", 64, 64, False)
    with in_tile(QUICK):
        product(trial, a, b, "float32")
    assert "matrix_product.wgsl" not in trial.shaders


def test_explain_names_them_and_their_bound(trial: Emulated) -> None:
    values = {name: Value(name, FLOAT32, (512, 512)) for name in "ab"}
    graph = Graph("g", ("a", "b"), ("y",), (Node("MatMul", ("a", "b"), ("y",), "product", version=13),), values)
    types = dict.fromkeys("ab", TensorType(FLOAT32, (512, 512)))
    with in_tile(QUICK):
        plan = make_plan(graph, types, trial.gpu.limits.of(Config(precision="tf32")))
        usual = make_plan(graph, types, trial.gpu.limits)
    lines = str(Explanation("adapter", (), (), (), (plan,))).splitlines()
    assert "on matrix units: 1 product" in lines
    assert any("product" in line and "within (2^-10 + 512 * 2^-24) of the sum of |x w|" in line for line in lines)
    assert "matrix units" not in str(Explanation("adapter", (), (), (), (usual,)))


def test_without_a_probe_or_the_feature_there_is_a_reason(trial: Emulated) -> None:
    limits = trial.gpu.limits
    assert lacks(limits, "tf32") == ""
    assert "no probe" in lacks(replace(limits, features=limits.features - {MATRIX_UNITS}), "tf32")
    assert "Dawn" in lacks(replace(limits, features=limits.features - {SUBGROUP_MATRIX}), "tf32")
    assert "64" in lacks(replace(limits, subgroup_size=64), "tf32")
    assert "it failed" in lacks(replace(limits, disabled=((MATRIX_UNITS, "it failed"),)), "tf32")


@pytest.mark.parametrize("shader", ["", *UNIT_SHADERS])
def test_the_probe_passes_and_sees_its_fault(shader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = PROBES["matrix units"]
    with emulation(shown=False) as trial, apart():
        trial.only, trial.planted = shader, found.fault if shader else ""
        monkeypatch.setattr("ort_gpu_ep.health.probes.matrix_units.TILES", (replace(QUICK, n=64), QUICK))
        if shader:
            with pytest.raises(WrongResultError):
                found.check(trial)
        else:
            assert found.check(trial)


def test_products_of_one_value_share_its_scales(trial: Emulated) -> None:
    """Bit for bit what each gives alone."""
    a, b, c = drawn("mixed", 40, 36, True), drawn("mixed", 36, 24, False), drawn("mixed", 36, 44, False)
    values = {name: Value(name, FLOAT32, array.shape) for name, array in (("a", a), ("b", b), ("c", c))}
    nodes = tuple(Node("MatMul", ("a", name), (f"y{name}",), version=13, id=k) for k, name in enumerate("bc"))
    graph, limits = (
        Graph("g", ("a", "b", "c"), ("yb", "yc"), nodes, values),
        trial.gpu.limits.of(Config(precision="tf32")),
    )
    with in_tile(QUICK):
        plan = make_plan(
            graph, {name: TensorType(FLOAT32, array.shape) for name, array in (("a", a), ("b", b), ("c", c))}, limits
        )
        got = trial.graph(graph, [a, b, c], "tf32")
        want = [product(trial, a, b, "tf32"), product(trial, a, c, "tf32")]
    assert [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)].count("line_scales.wgsl") == 3
    assert all(np.array_equal(one, other) for one, other in zip(got, want, strict=True))


def test_a_row_does_not_take_an_image_s_scales(trial: Emulated) -> None:
    """A convolution's output of one image, seen as a matrix: its rows are of other magnitudes."""
    rng = np.random.default_rng()
    x, w, b = (
        rng.standard_normal((1, 6, 6, 20), np.float32),
        rng.standard_normal((20, 20, 1, 1), np.float32),
        drawn("normal", 20, 24, False),
    )
    x *= np.exp2(rng.integers(-60, 60, (1, 6, 6, 1))).astype(np.float32)
    values = {
        "x": Value("x", FLOAT32, x.shape),
        "w": Value("w", FLOAT32, w.shape, lambda: w),
        "b": Value("b", FLOAT32, b.shape),
    }
    values["shape"] = Value("shape", INT64, (2,), lambda: np.array([36, 20]))
    nodes = (
        Node("Conv", ("x", "w"), ("v",), version=11, channels_last=True, id=0),
        Node("Reshape", ("v", "shape"), ("m",), version=14, id=1),
        Node("MatMul", ("m", "b"), ("y",), version=13, id=2),
    )
    with in_tile(QUICK):
        (got,) = trial.graph(Graph("g", ("x", "b"), ("y",), nodes, values), [x, b], "tf32")
        (between,) = trial.graph(Graph("g", ("x",), ("v",), nodes[:1], values), [x], "tf32")
        want = product(trial, between.reshape(36, 20), b, "tf32")
    assert np.array_equal(got, want)


@pytest.mark.parametrize(("more", "cut"), [(0, False), (4, True)])
def test_k_is_cut_where_the_word_of_arrivals_fits_beside_the_tile(trial: Emulated, more: int, cut: bool) -> None:
    limits, tile = trial.gpu.limits, TILES[-1]
    nbytes = max(tile.workgroup_nbytes(w_rows, limits) for w_rows in (False, True)) + more
    features = limits.features | {LAST_ARRIVING}
    target = Target(replace(limits, features=features, max_workgroup_nbytes=nbytes, figures=DEFAULT_FIGURES))
    assert bool([*splits(target, tile, 64, 64, 8192)]) == cut
