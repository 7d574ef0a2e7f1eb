"""Few vectors that MatMulNBits with accuracy_level 4 lets be rounded to bytes, the weights as the model stores them: one in
one dispatch, several in two; alone, together, behind a normalization, and one product as an argument of the other's
step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.config import ROUNDING as ROUNDING_KERNELS
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.registry import DEFAULT_LIMITS
from ort_gpu_ep.kernels.target import SUBNORMAL_HALVES, Choice, Target
from ort_gpu_ep.ops import byte_vectors, rounded_vectors
from ort_gpu_ep.ops.byte_vectors import ROUNDED_BEFORE, ROUNDING
from ort_gpu_ep.ops.packed_vectors import decoding_ns, groups_of
from ort_gpu_ep.ops.rounded_products import ROUNDED
from ort_gpu_ep.ops.rounded_vectors import SHADER, Shape
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.compressed.test_packed_products import RNG, close, nbits_model, pack
from tests.compressed.test_rounded_products import level, rounded
from tests.direct import run_direct
from tests.ops.single_node import on_cpu

SHADERS = [ROUNDING, byte_vectors.SHADER]
"""Of several vectors."""


@pytest.fixture
def form() -> Iterator[Callable[..., dict[str, Choice]]]:
    with ExitStack() as stack:
        yield lambda *names: stack.enter_context(forced(*names))


def kernels(model: onnx.ModelProto, x: Any, limits: Any = None) -> list[Any]:
    """Of one run, without the prologue."""
    kind = FLOAT32 if x.dtype == np.float32 else FLOAT16
    plan = make_plan(from_onnx(model), {"x": TensorType(kind, x.shape)}, limits or Gpu.open(Config()).limits, rewrite)
    return [step.kernel for step in plan.steps if isinstance(step, Dispatch)]


@pytest.mark.parametrize(
    ("count", "k", "n", "block", "zero"),
    [
        (1, 32, 3, 32, "none"),
        (1, 256, 69, 32, "codes"),
        (2, 96, 33, 32, "codes"),
        (3, 512, 20, 64, "none"),
        (4, 1024, 9, 128, "codes"),
        (1, 7168, 5, 32, "none"),
        (5, 7168, 5, 32, "codes"),
        (8, 2080, 70, 32, "none"),
        (13, 256, 69, 32, "codes"),
        (32, 64, 6, 64, "codes"),
    ],
)
def test_as_exact_sums_of_what_was_rounded(count: int, k: int, n: int, block: int, zero: str, form: Any) -> None:
    form(ROUNDED_BEFORE, ROUNDED)
    model, (dense, bias) = nbits_model((count, k), k, n, 4, block, zero, bias=n % 2 == 1)
    x = RNG.normal(size=(count, k)).astype("f")
    x[-1, :32] = 0
    assert [kernel.shader for kernel in kernels(level(model, 4), x)] == (SHADERS if count > 1 else [SHADER])
    (got,) = run_direct(model, {"x": x})
    close(got, rounded(x, 32) @ dense + bias)
    if block == 32:  # onnxruntime has a scale for each block of the weights
        close(got, on_cpu(model, {"x": x})[0])


@pytest.mark.parametrize(
    ("count", "accuracy", "bits", "size"),
    [
        (5, 4, 4, 5),
        (16, 4, 4, 8),
        (17, 4, 4, 6),
        (5, 1, 4, 4),
        (11, 1, 8, 4),
        (7, 1, 2, 4),
        (16, 1, 4, 4),
        (16, 1, 4, 8),
        (11, 1, 8, 8),
    ],
)
def test_more_vectors_in_groups(count: int, accuracy: int, bits: int, size: int, form: Any) -> None:
    """Some each, of the same rows one after another; the last group may be smaller."""
    form(groups_of(size), ROUNDED_BEFORE, ROUNDED)
    model, (dense, bias) = nbits_model((count, 256), 256, 69, bits, 32, "codes", bias=True)
    x = RNG.normal(size=(count, 256)).astype("f")
    *_, kernel = kernels(level(model, accuracy), x)
    assert [dict(kernel.consts)[name] for name in ("COLS", "COLUMN_GROUPS")] == [size, -(-count // size)]
    for every_size_open in (False, True):
        (got,) = run_direct(model, {"x": x}, every_size_open=every_size_open)
        close(got, (rounded(x, 32) if accuracy == 4 else x.astype("d")) @ dense + bias)


@pytest.mark.parametrize(
    ("units", "k", "share"), [(1, 2048, (4, 4, 4)), (1, 1024, (4, 4, 1)), (12, 2048, (4, 2, 1)), (80, 2048, (2, 1, 1))]
)
def test_teams_take_rows_in_turn(
    units: int, k: int, share: tuple[int, int, int], form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU with so many units, each of which has some workgroups left; iterations where a row takes two rounds
    anyhow. share: teams, rows of each, iterations."""
    form(ROUNDED)
    gpu = Gpu.open(Config())
    limits = replace(gpu.limits, figures=replace(gpu.limits.figures, units=units), subgroup_size=32)
    monkeypatch.setattr(gpu, "limits", limits)
    monkeypatch.setattr(rounded_vectors, "LANES", 128)
    monkeypatch.setattr(rounded_vectors, "TEAM_LANES", (32, 32))
    monkeypatch.setattr(rounded_vectors, "UNIT_LANES", 256)
    model, (dense, bias) = nbits_model((1, k), k, 275, 4, 32, "codes", bias=True)
    x = RNG.normal(size=(1, k)).astype("f")
    (kernel,) = kernels(level(model, 4), x, limits)
    assert tuple(dict(kernel.consts)[name] for name in ("TEAMS", "ROWS", "ITERS")) == share
    close(run_direct(model, {"x": x})[0], rounded(x, 32) @ dense + bias)


@pytest.mark.parametrize(("resident", "iters"), [(64, 17), (256, 5), (1 << 20, 1)])
def test_invocations_go_along_rows(resident: int, iters: int, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The more rows, the fewer invocations a unit is to have; the last workgroup has fewer."""
    form(ROUNDED_BEFORE, ROUNDED)
    gpu = Gpu.open(Config())
    limits = replace(gpu.limits, figures=replace(gpu.limits.figures, units=2))
    monkeypatch.setattr(gpu, "limits", limits)
    monkeypatch.setattr(byte_vectors, "RESIDENT", resident)
    model, (dense, bias) = nbits_model((3, 1024), 1024, 133, 4, 32, "codes", bias=True)
    x = RNG.normal(size=(3, 1024)).astype("f")
    *_, kernel = kernels(level(model, 4), x, limits)
    assert dict(kernel.consts)["ITERS"] == iters
    close(run_direct(model, {"x": x})[0], rounded(x, 32) @ dense + bias)


@pytest.mark.parametrize("dtype", ["f", "e"])
@pytest.mark.parametrize(
    ("count", "gated", "norm"),
    [(1, False, True), (3, False, False), (2, True, True), (1, True, False), (11, True, True), (16, False, True)],
)
def test_together(count: int, gated: bool, norm: bool, dtype: str, form: Any) -> None:
    """Queries, keys and values of an input, or a gate and what it lets through, behind an RMS normalization or not."""
    form(ROUNDED_BEFORE, ROUNDED)
    k, rows = 128, (36, 36) if gated else (36, 20, 5)
    x, gamma = RNG.normal(size=(count, k)).astype(dtype), RNG.uniform(0.5, 2, k).astype(dtype)
    held, nodes, dense = {"g": gamma}, list[Any](), list[Any]()
    if norm:
        nodes.append(helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["h"], axis=-1, epsilon=1e-5))
    for i, n in enumerate(rows):
        codes, scales = RNG.integers(0, 16, (n, k)), RNG.uniform(0.01, 0.2, (n, k // 32)).astype(dtype)
        held |= {f"w{i}": pack(codes, 4).reshape(n, k // 32, 16), f"s{i}": scales}
        dense.append(((codes - 8.0) * scales.astype("d").repeat(32, 1)).T)
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                ["h" if norm else "x", f"w{i}", f"s{i}"],
                [f"y{i}"],
                domain="com.microsoft",
                K=k,
                N=n,
                bits=4,
                block_size=32,
                accuracy_level=4,
            )
        )
    outputs = [f"y{i}" for i in range(len(rows))]
    if gated:
        nodes += [helper.make_node("Sigmoid", ["y0"], ["a"]), helper.make_node("Mul", ["a", "y1"], ["z"])]
        outputs = ["z"]
    kind = 1 if dtype == "f" else 10
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, (count, k))],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(a, name) for name, a in held.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    assert [kernel.shader for kernel in kernels(model, x)] == (SHADERS if count > 1 else [SHADER])
    wide = x.astype("f") * (gamma.astype("f") if norm else np.float32(1))
    factor = 1 / np.sqrt((x.astype("d") ** 2).mean(-1, keepdims=True) + 1e-5) if norm else 1.0
    wanted = [rounded(wide, 32) * factor @ d for d in dense]
    wanted = [1 / (1 + np.exp(-wanted[0])) * wanted[1]] if gated else wanted
    for got, want in zip(run_direct(model, {"x": x}, rewrite), wanted, strict=True):
        error = np.linalg.norm(got.astype("d") - want) / np.linalg.norm(want)
        assert error < (1e-5 if dtype == "f" else 1e-3), error


def test_only_where_the_model_allows_it_and_the_vectors_fit(form: Any) -> None:
    """Other levels, other codes and blocks, vectors with more elements than a workgroup has room or invocations for: in an
    exact form."""
    made = form("")
    for accuracy, k, bits, block, zero, count, may in (
        (4, 256, 4, 32, "codes", 1, True),
        (0, 256, 4, 32, "none", 1, False),
        (1, 256, 4, 32, "none", 1, False),
        (4, 256, 8, 32, "none", 1, False),
        (4, 256, 4, 16, "none", 1, False),
        (4, 256, 4, 32, "floats", 1, False),
        (4, 8192, 4, 32, "none", 1, True),
        (4, 65536, 4, 32, "none", 1, False),
        (4, 8192, 4, 32, "none", 4, True),
        (4, 16384, 4, 32, "none", 4, False),
    ):
        model, _ = nbits_model((count, k), k, 8, bits, block, zero, bias=False)
        made.clear()
        kernels(
            level(model, accuracy),
            np.zeros((count, k), "f"),
            replace(Gpu.open(Config()).limits, max_workgroup_nbytes=32768, max_invocations=256),
        )
        name = ROUNDED if count == 1 else ROUNDED_BEFORE
        assert any(name in choice.forms for choice in made.values()) == may, (accuracy, k, bits, block, zero, count)


@pytest.mark.parametrize("count", [1, 3, 16, 64])
def test_nothing_is_rounded_where_the_option_says_so(count: int, form: Any) -> None:
    form(ROUNDED_BEFORE, ROUNDED)
    model, _ = nbits_model((count, 256), 256, 8, 4, 32, "none", bias=False)
    x, limits = RNG.normal(size=(count, 256)).astype("f"), Gpu.open(Config()).limits
    assert {kernel.shader for kernel in kernels(level(model, 4), x, limits.of(Config()))} & {*ROUNDING_KERNELS}
    exact = {kernel.shader for kernel in kernels(model, x, limits.of(Config(rounding=False)))}
    assert not exact & {*ROUNDING_KERNELS, ROUNDING}


def test_without_subgroups_there_is_no_such_form(form: Any) -> None:
    made, limits = form(""), Gpu.open(Config()).limits
    model, _ = nbits_model((1, 256), 256, 8, 4, 32, "none", bias=False)
    kernels(level(model, 4), np.zeros((1, 256), "f"), replace(limits, features=limits.features - {"subgroup"}))
    assert not any(ROUNDED in choice.forms for choice in made.values())


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_shows(value: float, form: Any) -> None:
    form(ROUNDED_BEFORE, ROUNDED)
    model, (dense, _) = nbits_model(("rows", 128), 128, 40, 4, 32, "codes", bias=False)
    level(model, 4)
    x = RNG.normal(size=(3, 128)).astype("f")
    x[1, 77] = value
    for got in (run_direct(model, {"x": x})[0], np.concatenate([run_direct(model, {"x": row[None]})[0] for row in x])):
        assert not np.isfinite(got[1]).any()
        close(got[[0, 2]], rounded(x[[0, 2]], 32) @ dense)
    x[0], x[1], x[2] = 1e-38, 0, RNG.normal(size=128) * 1e-30
    (got,) = run_direct(model, {"x": x})
    assert np.abs(got[0]).max() < 1e-33
    np.testing.assert_array_equal(got[1], 0)
    close(got[2:] * 1e30, rounded(x[2:], 32) * 1e30 @ dense)


@pytest.mark.parametrize(("rows", "k"), [(4096, 4096), (1024, 4096), (4096, 14336), (2048, 2048), (128256, 4096)])
def test_estimates_have_the_order_of_an_h200(rows: int, k: int) -> None:
    """Measured there, a dispatch in a pass of its own: 8.8 us in bytes and 10 as halves for 4096 x 4096, 17.4 and 18.2
    for 4096 x 14336."""
    limits = replace(
        DEFAULT_LIMITS,
        subgroup_size=32,
        max_invocations=1024,
        max_workgroup_nbytes=49152,
        features=frozenset({"subgroup", SUBNORMAL_HALVES}),
    )
    exact = min(decoding_ns(Target(limits), rows * k).values())
    assert rounded_vectors.bytes_ns(Target(limits), rows, k) < exact
    assert Shape.of(Target(replace(limits, max_workgroup_nbytes=2048)), [rows], k, 1) is None
    exact += 3 * rows * k * limits.figures.packed_column_clocks / limits.figures.units / limits.figures.clocks_per_ns
    assert byte_vectors.estimate_ns(Target(limits), rows, k, 4) < exact


@pytest.mark.parametrize("name", [ROUNDED, "codes in words"])
def test_each_product_of_a_weight_reads_one_order_of_its_codes(name: str, form: Any) -> None:
    """One vector, three, and a prompt: stored or interleaved, once."""
    form(name)
    model, _ = nbits_model(("rows", 256), 256, 64, 4, 32, "codes", bias=False)
    level(model, 4)
    for count in (1, 3, 64):
        graph, limits = from_onnx(model), Gpu.open(Config()).limits
        plan = make_plan(graph, {"x": TensorType(FLOAT32, (count, 256))}, limits)
        packing = {step.kernel.shader for step in plan.prologue}
        assert packing == (set() if name == ROUNDED else {"repack.wgsl", "interleave_scales.wgsl"}), count
