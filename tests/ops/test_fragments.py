"""Kernels on matrix units whose fragments are not of 16 x 16 x 16, which are emulated (matrix_emulation.py): within the
same error bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.health.probe import PROBES, Unsupported
from ort_gpu_ep.health.probes.matrix_units import in_tile
from ort_gpu_ep.ir.graph import Graph, Node, Value
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.target import (
    BYTE_FRAGMENTS,
    DEFAULT_LIMITS,
    FRAGMENTS,
    SUBGROUP_MATRIX,
    SUBGROUP_SIZE_CONTROL,
    Fragment,
    Limits,
    no_attention_units,
    no_byte_units,
    no_matrix_units,
)
from ort_gpu_ep.ops import attention_units, matrix_units, unit_bytes
from ort_gpu_ep.ops.attention_units import UnitForm
from ort_gpu_ep.scheduler import make_plan
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.shaders import compose
from tests.ops import test_attention_units as heads
from tests.ops import test_matrix_units as products
from tests.ops import test_unit_packed as packed
from tests.ops import test_unit_windows as windows
from tests.ops.matrix_emulation import Emulated, emulation
from tests.ops.test_matrix_units import QUICK
from tests.ops.test_unit_windows import in_parts  # noqa: F401  a fixture

BYTES = "int8 int32 16x16x32"
OTHERS = ("16x8x16", "8x16x16", "8x8x8")


@pytest.fixture(params=OTHERS)
def trial(request: pytest.FixtureRequest) -> Iterator[Emulated]:
    with emulation(fragment=request.param) as made:
        yield made


def test_products_of_batches(trial: Emulated) -> None:
    products.test_batches_that_broadcast(trial)


def test_products_with_edges(trial: Emulated) -> None:
    products.test_gemm_of_any_size_with_transposed_operands(trial, (33, 35, 37), (1, 1))


def test_float16_models(trial: Emulated) -> None:
    products.test_float16_models(trial, (40, 72, 64), 0)


def test_f16acc(trial: Emulated) -> None:
    a, b = products.drawn("positive", 70, 100, True), products.drawn("positive", 100, 68, False)
    with in_tile(QUICK):
        products.assert_within(products.product(trial, a, b, "f16acc"), a, b)
    assert trial.shaders == {"matrix_product.wgsl"}


@pytest.mark.usefixtures("in_parts")
def test_windows_with_k_in_parts_and_a_fused_sum(trial: Emulated) -> None:
    windows.check(trial, "3x3", "normal", "tf32", residual=True)
    assert trial.shaders >= {"part_scales.wgsl", "matrix_product.wgsl"}


def test_a_layer_gives_the_next_one_its_scales(trial: Emulated) -> None:
    with in_tile(QUICK):
        windows.check_given_scales(trial, 2, 5, 20, False)


def test_codes_with_k_in_parts(trial: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_units, "TILES", (QUICK,))
    monkeypatch.setattr(matrix_units, "LEAST_STEPS", 1)
    monkeypatch.setattr(matrix_units, "MOST_SPLIT", 2)
    with forced(f"decoded in {QUICK.name}*2") as made:
        got, want, allowed = packed.product(trial, "tf32", "codes", sizes=(37, 160, 40, 32))
    assert [choice.form for choice in made.values()] == ["decoded in quick*2"]
    assert (np.abs(got - want) <= allowed).all()


def test_attention(trial: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values go through workgroup memory in two parts."""
    monkeypatch.setattr(attention_units, "FORMS", (heads.QUICK,))
    monkeypatch.setattr(attention_units, "MOST_CHUNK", 16)
    q, k, v = heads.heads_of("mixed", (1, 2, 37, 71, 16), 32)
    arrays = {"q": q, "k": k, "v": v}
    with forced(heads.QUICK.name):
        got = heads.run(trial, heads.graph_of("Attention", arrays, scale=0.2), arrays, "tf32")
    want, allowed = heads.wanted(q, k, v, 0.2, "tf32")
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize("name", ["matrix units", "matrix units of attention"])
@pytest.mark.parametrize("wrong", [False, True])
def test_probes_are_of_the_fragment_that_is_taken(monkeypatch: pytest.MonkeyPatch, name: str, wrong: bool) -> None:
    monkeypatch.setattr("ort_gpu_ep.health.probes.matrix_units.TILES", (QUICK,))
    monkeypatch.setattr("ort_gpu_ep.health.probes.matrix_units.ATTENTION_HEADS", (("f16acc", 16, 16),))
    monkeypatch.setattr(attention_units, "FORMS", (UnitForm(1, 16),))
    found = PROBES[name]
    with emulation(shown=False, fragment="8x16x16") as trial, apart():
        trial.planted = found.fault if wrong else ""
        if wrong:
            with pytest.raises(WrongResultError):
                found.check(trial)
        else:
            assert "8x16x16" in found.check(trial)


def offering(*configurations: str) -> Limits:
    """What an adapter can do whose driver offers these, and whose probes have passed."""
    with emulation() as trial:
        return replace(trial.gpu.limits, configurations=configurations)


def test_which_fragment_is_taken() -> None:
    every = [*reversed(FRAGMENTS), "float16 float16 16x16x16", BYTES]
    assert offering(*every).fragment == Fragment(16, 16, 16)
    assert offering(*every[:3]).fragment == Fragment(16, 8, 16)
    assert offering(*every[:1]).fragment == Fragment(8, 8, 8)
    assert DEFAULT_LIMITS.fragment is None


def test_another_configuration_is_a_reason() -> None:
    """Metal's, as Dawn names them; and of a driver that names none."""
    metal = "float32 float32 8x8x8", "float16 float16 8x8x8"
    for why in (no_matrix_units(offering(*metal)), no_attention_units(offering(*metal))):
        assert "float16 float32 16x16x16" in why
        assert "the driver offers none, but float32 float32 8x8x8, float16 float16 8x8x8" in why
    assert BYTES in no_byte_units(offering("float16 float32 16x16x16"))
    assert no_byte_units(offering("float16 float32 16x16x16", BYTES)) == ""
    assert "nothing that Dawn tells" in no_matrix_units(offering())


@pytest.mark.parametrize("name", ["matrix units", "matrix units of attention", "matrix units of bytes"])
def test_no_probe_runs_without_a_configuration(name: str) -> None:
    with emulation(shown=False) as trial:
        trial.gpu.limits = replace(trial.gpu.limits, configurations=("float16 float16 8x8x8",))
        with pytest.raises(Unsupported, match="the driver offers none, but float16 float16 8x8x8"):
            PROBES[name].check(trial)


CONTROL = frozenset({SUBGROUP_SIZE_CONTROL})


@pytest.mark.parametrize(
    ("size", "range_", "features", "used", "pinned"),
    [
        (32, (32, 32), CONTROL, 32, 0),  # NVIDIA
        (0, (32, 64), CONTROL, 32, 32),  # RDNA3, RDNA4
        (0, (64, 64), CONTROL, 64, 64),
        (0, (16, 16), CONTROL, 16, 16),  # Intel's Xe2
        (8, (8, 8), frozenset(), 8, 0),  # lavapipe
        (0, (32, 64), frozenset(), 0, 0),
        (64, (32, 32), frozenset(), 0, 0),
        (128, (128, 128), CONTROL, 0, 0),
        (4, (4, 4), CONTROL, 0, 0),
    ],
)
def test_which_subgroups_go_with_a_configuration(
    size: int,
    range_: tuple[int, int],
    features: frozenset[str],
    used: int,
    pinned: int,
) -> None:
    """The adapter's own size where it has one and that goes with it, else one that shaders ask for, else a reason."""
    usual = offering("float16 float16 8x8x8", "float16 float32 8x8x8")
    limits = replace(
        usual, subgroup_size=size, features=usual.features | features, configuration_subgroups=((1, 1), range_)
    )
    assert (limits.unit_subgroup(FRAGMENTS), limits.pinned_subgroup(FRAGMENTS)) == (used, pinned)
    why = no_matrix_units(limits)
    assert bool(why) == (used == 0)
    assert (
        used
        or f"its subgroups have {size or 'unknown'} invocations, and shaders can't ask for 8 or 16 or 32 or 64" in why
    )


WITHOUT_WIDE_HEADS = {(8, "16x16x16"), (16, "16x16x16"), (8, "16x8x16"), (8, "8x16x16")}
"""More subgroups would have to share rows than a step of 32 keys has fragments for."""


@pytest.mark.parametrize("subgroup", [8, 16, 32, 64])
@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_size_that_is_asked_for_is_in_the_text(subgroup: int, fragment: str) -> None:
    """And the workgroup has whole subgroups, each with whole fragments; attention, too."""
    usual = offering(fragment)
    limits = replace(
        usual,
        subgroup_size=0,
        features=usual.features | CONTROL,
        configuration_subgroups=((subgroup, subgroup),),
        precision="f16acc",
        max_workgroup_nbytes=49152,
        max_invocations=1024,
    )
    kernels = unit_kernels(limits)
    attentions = () if (subgroup, fragment.split()[-1]) in WITHOUT_WIDE_HEADS else ("attention_units.wgsl",)
    assert [kernel.kernel.shader for kernel in kernels] == ["matrix_product.wgsl", "attention_units.wgsl", *attentions]
    for step in kernels:
        text = compose(step.kernel, step.bindings, limits)
        assert text.count(f"@workgroup_size({step.kernel.workgroup_size}) @subgroup_size({subgroup})") == 1
        assert text.count("enable subgroup_size_control;") == 1
        assert step.kernel.workgroup_size % subgroup == 0
    for step in unit_kernels(replace(limits, subgroup_size=subgroup)):
        assert "subgroup_size_control" not in compose(step.kernel, step.bindings, limits)


def unit_kernels(limits: Limits) -> list[Dispatch]:
    """Of a product and of attention, on matrix units; of wide heads where subgroups and fragments allow it."""
    product, attention = (
        Node("MatMul", ("a", "b"), ("y",), version=13),
        Node("Attention", ("q", "k", "v"), ("y",), version=23),
    )
    steps = []
    for node, shape, form in (
        (product, (512, 512), matrix_units.TILES[0].name),
        (attention, (1, 1, 512, 64), attention_units.FORMS[0].name),
        (attention, (1, 1, 512, 256), attention_units.FORMS[1].name),
    ):
        graph = Graph("g", node.inputs, node.outputs, (node,), {n: Value(n, FLOAT32, shape) for n in node.inputs})
        with forced(form):
            plan = make_plan(graph, dict.fromkeys(node.inputs, TensorType(FLOAT32, shape)), limits)
        steps += [step for step in plan.steps if isinstance(step, Dispatch) and SUBGROUP_MATRIX in step.kernel.features]
    return steps


@pytest.mark.parametrize("fragment", BYTE_FRAGMENTS)
def test_fragments_of_bytes(fragment: str) -> None:
    limits = offering(fragment)
    assert limits.byte_fragment == BYTE_FRAGMENTS[fragment]
    assert no_byte_units(limits) == ""
    assert any(unit_bytes.fits(tile, replace(limits, max_workgroup_nbytes=49152)) for tile in unit_bytes.TILES)
