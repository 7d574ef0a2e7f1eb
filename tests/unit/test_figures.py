"""Figures that kernels are chosen by: those of an H200 unless an adapter's profile says what it does."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.health import verdicts
from ort_gpu_ep.health.open_adapter import _figures
from ort_gpu_ep.kernels import profile
from ort_gpu_ep.kernels.cost_parameters import (
    DEFAULT_FIGURES,
    MEASURED_DISPATCH_S,
    MEASURED_FLOPS_PER_S,
    MEASURED_NBYTES_PER_S,
    SOFTWARE_FIGURES,
    Figures,
    figures_of,
)
from ort_gpu_ep.kernels.profile import GUESSED
from ort_gpu_ep.kernels.registry import Strided
from ort_gpu_ep.kernels.target import Limits, Target
from ort_gpu_ep.ops import matvec
from ort_gpu_ep.ops.contraction import Matrix
from ort_gpu_ep.ops.tiles import TiledProduct, Weights, shares

SMALL = figures_of(MEASURED_FLOPS_PER_S / 16, MEASURED_NBYTES_PER_S / 16, MEASURED_DISPATCH_S * 4)
GPU = AdapterInfo(0, "a GPU", "discrete", "Vulkan", "driver 1", 1, 2)


@pytest.mark.parametrize("off", [0.85, 1.0, 1.18])
def test_a_profile_that_is_measured_again_changes_nothing(off: float) -> None:
    assert figures_of(MEASURED_FLOPS_PER_S * off, MEASURED_NBYTES_PER_S / off, MEASURED_DISPATCH_S * off) == DEFAULT_FIGURES


def test_a_smaller_gpu() -> None:
    """A sixteenth of the arithmetic and of the memory, dispatches four times as long."""
    assert (SMALL.units, SMALL.few_groups, SMALL.many_groups) == (8, 9, 18)
    assert SMALL.byte_ns == 16 * DEFAULT_FIGURES.byte_ns
    assert SMALL.rows_bytes_per_ns == DEFAULT_FIGURES.rows_bytes_per_ns / 16
    assert SMALL.dispatch_ns == 4 * DEFAULT_FIGURES.dispatch_ns
    assert SMALL.columns_launch_ns == 4 * DEFAULT_FIGURES.columns_launch_ns
    assert SMALL.fma_per_ns == DEFAULT_FIGURES.fma_per_ns, "of a unit"
    assert figures_of(1.0, 1.0, 1.0).units == 1


def test_every_figure_says_its_unit_and_is_told_of() -> None:
    told = Figures.__doc__ or ""
    for field in fields(Figures):
        assert field.name in told or field.name.split("_", 1)[1] in told, field.name
        assert getattr(DEFAULT_FIGURES, field.name) > 0


def test_what_is_chosen_follows_from_them() -> None:
    """A long vector product: fewer parts of K where fewer workgroups fill the adapter."""
    def parts_of_k(figures: Figures) -> int:
        wide = Matrix(0, Strided((1,), (0,)), 4096, 1)
        given = matvec.VectorProduct(1, 64, 4096, wide, Matrix(1, Strided((1,), (0,)), 1, 1), True, Target(Limits(figures=figures)))
        return given.split(16, 64)

    assert parts_of_k(DEFAULT_FIGURES) == 8
    assert parts_of_k(SMALL) == 1


def test_where_k_is_cut_follows_from_them() -> None:
    def cuts(figures: Figures) -> int:
        target = Target(Limits(max_workgroup_nbytes=49152, figures=figures))
        return sum(split > 1 for _, split in shares(TiledProduct(64, 64, Weights(1, 4096, 1, 4096, 1, 0, True), None, target=target)).values())

    assert cuts(DEFAULT_FIGURES) > cuts(replace(SMALL, few_groups=1, many_groups=1)) == 0


def test_an_opened_adapter_has_those_of_its_profile(tmp_path: Path) -> None:
    key = verdicts.key_of(GPU)
    assert _figures(GPU, str(tmp_path)) is DEFAULT_FIGURES
    profile.write(str(tmp_path), key, GUESSED)
    assert _figures(GPU, str(tmp_path)) is DEFAULT_FIGURES, "without roofs it says too little"
    profile.write(str(tmp_path), key, replace(GUESSED, flops_per_s=MEASURED_FLOPS_PER_S / 16, nbytes_per_s=MEASURED_NBYTES_PER_S / 16))
    assert _figures(GPU, str(tmp_path)).units == 8
    software = replace(GPU, type="software")
    profile.write(str(tmp_path), verdicts.key_of(software), replace(GUESSED, flops_per_s=1e9, nbytes_per_s=1e9))
    assert _figures(software, str(tmp_path)) is SOFTWARE_FIGURES


def test_they_are_plain_data() -> None:
    assert Figures(**asdict(SMALL)) == SMALL
    assert len({DEFAULT_FIGURES, SMALL, Figures()}) == 2
