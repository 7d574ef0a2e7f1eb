"""Curves and profiles: what they predict, what they refuse, and that every kernel has a family."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ort_gpu_ep import profile
from ort_gpu_ep.profile import BY_FLOPS, FAMILY_OF, GUESSED, SIBLING, Curve, Profile
from ort_gpu_ep.registry import Lowering, kernel
from ort_gpu_ep.types import FLOAT32, TensorType

SHADERS = Path(profile.__file__).parent / "shaders"
MEASURED = Profile(
    "a", 1e-4, 2e-6, Curve(((4096.0, 1e-6), (65536.0, 1e-5))), Curve(((4096.0, 2e-6),)),
    {"product": Curve(((1e6, 1e-4), (1e8, 1e-3))), "elementwise": Curve(((1e4, 1e-6), (1e6, 3e-5)))})
NUMBERS = st.floats(1e-9, 1e12)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6)


def lowering(*shaders: str, size: int = 1000) -> Lowering:
    out = TensorType(FLOAT32, (size,))
    return Lowering((out,), tuple(kernel(f"{shader}.wgsl", [out]) for shader in shaders))


def test_every_kernel_has_a_family() -> None:
    kernels = {p.name for p in SHADERS.glob("*.wgsl") if re.search(r"^fn (element|group_main)\(", p.read_text("utf-8"), re.M)}
    assert len(kernels) > 40
    assert set(FAMILY_OF) == kernels


def test_every_family_has_a_curve_in_its_own_unit() -> None:
    """A sibling is counted as the family is, and the chain of siblings ends at one that GUESSED knows."""
    for family in set(FAMILY_OF.values()):
        assert GUESSED.curve(family) is GUESSED.families["product" if family in BY_FLOPS else "elementwise"]
    assert all((family in BY_FLOPS) == (sibling in BY_FLOPS) for family, sibling in SIBLING.items())


def test_a_curve_between_below_and_above_its_points() -> None:
    curve = Curve(((100.0, 1e-5), (10_000.0, 1e-3)))
    assert [curve.at(a) for a in (100, 10_000)] == [1e-5, 1e-3]
    assert curve.at(1000) == pytest.approx(1e-4)
    assert curve.at(1) == curve.at(0) == 1e-5
    assert curve.at(30_000) == pytest.approx(3e-3)


@given(PAIRS, NUMBERS, NUMBERS)
def test_a_measured_curve_never_descends(pairs: list[tuple[float, float]], a: float, b: float) -> None:
    curve = Curve.through(pairs)
    assert curve.at(min(a, b)) <= curve.at(max(a, b)) * (1 + 1e-9)
    assert curve.at(0) > 0


@pytest.mark.parametrize("points", [
    (), ((0.0, 1.0),), ((1.0, 0.0),), ((1.0, -1.0),), ((1.0, float("nan")),), ((float("inf"), 1.0),),
    ((1.0, 1.0), (1.0, 2.0)), ((2.0, 1.0), (1.0, 2.0)), ((1.0, 2.0), (2.0, 1.0))])
def test_a_curve_that_nothing_could_be_predicted_from_is_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="curve"):
        Curve(points)


def test_noise_is_levelled() -> None:
    assert Curve.through([(4, 3.0), (1, -0.5), (2, 5.0)], least_s=0.1).points == ((1, 0.1), (2, 5.0), (4, 5.0))


def test_transfers_and_nodes() -> None:
    assert (MEASURED.upload_s(4096), MEASURED.upload_s(16384)) == (1e-6, pytest.approx(10 ** -5.5))
    assert MEASURED.download_s(8192) == pytest.approx(4e-6)
    assert MEASURED.node_s(lowering("gemm"), 1e7, 12) == pytest.approx(2e-6 + 10 ** -3.5)
    assert MEASURED.node_s(lowering("elementwise"), 0.0, 10_000_000) == pytest.approx(2e-6 + 3e-4)
    assert MEASURED.node_s(lowering(), 0.0, 10_000_000) == 0.0


def test_a_kernel_costs_at_least_its_dispatch() -> None:
    for count in (1, 3, 9):
        assert MEASURED.node_s(lowering(*["strided"] * count, size=1), 0.0, 8) >= count * 2e-6


def test_several_kernels_multiply_once() -> None:
    alone, both = (MEASURED.node_s(lowering(*shaders), 1e8, 8000) for shaders in (("gemm",), ("gemm", "sum_parts")))
    assert both - alone == pytest.approx(2e-6 + 1e-6)
    slow = Profile("b", 1e-4, 2e-6, MEASURED.upload, MEASURED.download, {**MEASURED.families, "recurrent": Curve(((1e8, 1.0),))})
    assert slow.node_s(lowering("gemm", "recurrent"), 1e8, 8000) > 1.0


def test_the_steps_of_a_recurrent_layer_wait_for_each_other() -> None:
    """Ten steps of so many operations take ten times one of them, not what as many operations at once take."""
    made = Profile("a", 1e-4, 2e-6, MEASURED.upload, MEASURED.download, {"recurrent": Curve(((1e4, 1e-5), (1e6, 2e-5)))})
    assert made.node_s(lowering("gemm", "recurrent"), 1e5, 0, steps=10) - made.node_s(lowering("gemm", "recurrent"), 1e4, 0) == pytest.approx(9e-5)


def test_a_product_of_unknown_operations_goes_by_its_bytes() -> None:
    assert MEASURED.node_s(lowering("einsum"), 0.0, 10_000_000) == pytest.approx(2e-6 + 3e-4)


def test_guessed_is_what_an_h200_takes() -> None:
    """The numbers that predictions rest on where nothing was measured."""
    assert GUESSED.node_s(lowering("gemm"), 4e12, 0) == pytest.approx(1.0, rel=1e-4)
    assert (GUESSED.upload_s(5_000_000), GUESSED.download_s(5_000_000)) == (pytest.approx(1e-3), pytest.approx(1e-3))


@pytest.mark.parametrize("known", [GUESSED, MEASURED])
def test_a_profile_survives_json(known: Profile) -> None:
    assert Profile.from_dict(json.loads(json.dumps(known.as_dict()))) == known


@pytest.mark.parametrize("change", [
    {"run_s": 0}, {"dispatch_s": -1}, {"run_s": "soon"}, {"upload": []}, {"upload": [[1, 2, 3]]}, {"download": 3}, {"families": []},
    {"families": {"magic": [[1, 1]]}}, {"families": {"product": [[2, 1], [1, 1]]}}, {"run_s": float("nan")}])
def test_a_foreign_profile_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        Profile.from_dict({**MEASURED.as_dict(), **change})


def test_a_profile_is_frozen() -> None:
    with pytest.raises(TypeError):
        MEASURED.families["product"] = MEASURED.upload  # type: ignore[index]
