"""Kernels on matrix units whose fragments are not of 16 x 16 x 16, which are emulated (matrix_emulation.py): within the same error bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.health.probe import PROBES, Unsupported
from ort_gpu_ep.health.probes.matrix_units import in_tile
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.target import (
    BYTE_FRAGMENT,
    DEFAULT_LIMITS,
    FRAGMENTS,
    Fragment,
    Limits,
    no_attention_units,
    no_byte_units,
    no_matrix_units,
)
from ort_gpu_ep.ops import attention_units, matrix_units
from ort_gpu_ep.ops.attention_units import UnitForm
from tests.ops import test_attention_units as heads
from tests.ops import test_matrix_units as products
from tests.ops import test_unit_packed as packed
from tests.ops import test_unit_windows as windows
from tests.ops.matrix_emulation import Emulated, emulation
from tests.ops.test_matrix_units import QUICK
from tests.ops.test_unit_windows import in_parts  # noqa: F401  a fixture

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
    every = [*reversed(FRAGMENTS), "float16 float16 16x16x16", BYTE_FRAGMENT]
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
    assert BYTE_FRAGMENT in no_byte_units(offering("float16 float32 16x16x16"))
    assert no_byte_units(offering("float16 float32 16x16x16", BYTE_FRAGMENT)) == ""
    assert "nothing that Dawn tells" in no_matrix_units(offering())


@pytest.mark.parametrize("name", ["matrix units", "matrix units of attention", "matrix units of bytes"])
def test_no_probe_runs_without_a_configuration(name: str) -> None:
    with emulation(shown=False) as trial:
        trial.gpu.limits = replace(trial.gpu.limits, configurations=("float16 float16 8x8x8",))
        with pytest.raises(Unsupported, match="the driver offers none, but float16 float16 8x8x8"):
            PROBES[name].check(trial)
