"""Curves and profiles: what they predict and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ort_gpu_ep.ops  # noqa: F401  fills the records
from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import MEASURED_FLOPS_PER_S, MEASURED_NBYTES_PER_S, Roofs
from ort_gpu_ep.kernels.profile import GUESSED, SIBLING, Curve, Profile, guessed_for
from ort_gpu_ep.kernels.records import BY_FLOPS, FAMILIES, Work
from ort_gpu_ep.kernels.registry import BoundNode, Lowering, Operand, kernel

MEASURED = Profile(
    "a",
    1e-4,
    2e-6,
    Curve(((4096.0, 1e-6), (65536.0, 1e-5))),
    Curve(((4096.0, 2e-6),)),
    {"product": Curve(((1e6, 1e-4), (1e8, 1e-3))), "elementwise": Curve(((1e4, 1e-6), (1e6, 3e-5)))},
)
NUMBERS = st.floats(1e-9, 1e12)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6)


def test_every_family_has_a_curve_in_its_own_unit() -> None:
    """A sibling is counted as the family is, and the chain of siblings ends at one that GUESSED knows."""
    for family in FAMILIES:
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


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((0.0, 1.0),),
        ((1.0, 0.0),),
        ((1.0, -1.0),),
        ((1.0, float("nan")),),
        ((float("inf"), 1.0),),
        ((1.0, 1.0), (1.0, 2.0)),
        ((2.0, 1.0), (1.0, 2.0)),
        ((1.0, 2.0), (2.0, 1.0)),
    ],
)
def test_a_curve_that_nothing_could_be_predicted_from_is_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="curve"):
        Curve(points)


def test_noise_is_levelled() -> None:
    assert Curve.through([(4, 3.0), (1, -0.5), (2, 5.0)], least_s=0.1).points == ((1, 0.1), (2, 5.0), (4, 5.0))


def test_transfers() -> None:
    assert (MEASURED.upload_s(4096), MEASURED.upload_s(16384)) == (1e-6, pytest.approx(10**-5.5))
    assert MEASURED.download_s(8192) == pytest.approx(4e-6)


def test_a_kernel_takes_its_operations_or_its_bytes_whichever_take_longer() -> None:
    assert MEASURED.work_s(Work("product", 10**7, 12)) == pytest.approx(10**-3.5)
    assert MEASURED.work_s(Work("product", 10**7, 10**9)) == pytest.approx(3e-2)
    assert MEASURED.work_s(Work("elementwise", 0, 10**7)) == pytest.approx(3e-4)
    # by the rate of `direct`, whose sibling is `product`
    assert MEASURED.work_s(Work("gather", 10**10, 8)) == pytest.approx(0.1)
    # no operation is slower than at the best rate
    assert MEASURED.work_s(Work("gather", 10, 8)) == 1e-6


def test_steps_wait_for_each_other() -> None:
    """Ten steps of so many operations take ten times one of them, not what as many operations at once take."""
    made = Profile(
        "a", 1e-4, 2e-6, MEASURED.upload, MEASURED.download, {"recurrent": Curve(((1e4, 1e-5), (1e6, 2e-5)))}
    )
    assert made.work_s(Work("recurrent", 10**5, 0, steps=10)) == pytest.approx(1e-4)
    assert MEASURED.work_s(Work("reduction", 0, 10**4, steps=1)) == pytest.approx(1e-6)
    assert MEASURED.work_s(Work("reduction", 0, 10**4, steps=101)) == pytest.approx(100 * MEASURED.dispatch_s)


def test_a_node_takes_what_its_kernels_take() -> None:
    node = Node("Add", ("a", "b"), ("y",), version=14)
    operand = TensorType(FLOAT32, (10**6,))
    bound = BoundNode(node, (Operand("a", operand), Operand("b", operand)))
    one = kernel("elementwise.wgsl", [operand], reads={"e0": 0, "e1": 1}, writes={"y": 0})
    other = kernel("strided.wgsl", [operand], reads={"x": 0}, writes={"y": 0})
    assert MEASURED.node_s(Lowering((operand,), (one, other)), bound) == pytest.approx(2 * 2e-6 + 3e-5 * (12 + 8))
    assert MEASURED.node_s(Lowering((operand,)), bound) == 0.0


def test_guessed_is_what_an_h200_takes() -> None:
    """The numbers that predictions rest on where nothing was measured."""
    assert GUESSED.work_s(Work("product", 4 * 10**12, 0)) == pytest.approx(1.0)
    assert (GUESSED.upload_s(5_000_000), GUESSED.download_s(5_000_000)) == (pytest.approx(1e-3), pytest.approx(1e-3))


def test_what_was_not_measured_is_a_third_of_the_roofs_and_no_more_than_an_h200_reaches() -> None:
    first = replace(GUESSED, families={}, roofs=Roofs(9e11, 3e10))
    assert first.curve("matvec").at(3e11) == first.curve("product").at(3e11) == pytest.approx(1.0)
    assert first.curve("gather").at(1e10) == pytest.approx(1.0)
    large = replace(first, roofs=Roofs(MEASURED_FLOPS_PER_S, MEASURED_NBYTES_PER_S))
    assert large.assumed == replace(first, roofs=Roofs()).assumed == dict(GUESSED.families)


def test_an_integrated_gpu_that_was_not_measured_is_not_an_h200() -> None:
    assert guessed_for("discrete") is guessed_for("software") is GUESSED
    assert guessed_for("integrated").curve("product").at(2e12) == pytest.approx(3.0)
    assert guessed_for("integrated").curve("elementwise").at(6e10) == pytest.approx(3.0)


@pytest.mark.parametrize("known", [GUESSED, MEASURED])
def test_a_profile_survives_json(known: Profile) -> None:
    assert Profile.from_dict(json.loads(json.dumps(known.as_dict()))) == known


@pytest.mark.parametrize(
    "change",
    [
        {"run_s": 0},
        {"dispatch_s": -1},
        {"run_s": "soon"},
        {"upload": []},
        {"upload": [[1, 2, 3]]},
        {"download": 3},
        {"families": []},
        {"families": {"magic": [[1, 1]]}},
        {"families": {"product": [[2, 1], [1, 1]]}},
        {"run_s": float("nan")},
    ],
)
def test_a_foreign_profile_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        Profile.from_dict({**MEASURED.as_dict(), **change})


def test_a_profile_is_frozen() -> None:
    with pytest.raises(TypeError):
        MEASURED.families["product"] = MEASURED.upload  # type: ignore[index]
