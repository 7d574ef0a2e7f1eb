"""Which versions of an op are taken: those that somebody read, and newer ones that ONNX describes in the same words."""

from __future__ import annotations

import onnx.defs
import pytest

from ort_gpu_ep import ops  # noqa: F401  fills the registry
from ort_gpu_ep.errors import Code
from ort_gpu_ep.ir.graph import Attribute, Node
from ort_gpu_ep.ir.schemas import same_but_for_types
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.registry import BoundNode, Decline, Limits, Operand

pytestmark = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 28, reason="this onnx is older than the opset that the cases are of"
)


def answer(op: str, version: int, inputs: int = 1, **attributes: Attribute) -> object:
    names = tuple("xyz"[:inputs])
    node = Node(op, names, ("out",), op, "", version, attributes)
    return claim(BoundNode(node, tuple(Operand(n, TensorType(FLOAT32, (1, 4, 6, 2))) for n in names)), Limits())


@pytest.mark.parametrize(("op", "attributes"), [("Cast", {"to": 6}), ("Celu", {}), ("DepthToSpace", {"blocksize": 2})])
def test_a_newer_form_of_other_types_is_taken(
    op: str, attributes: dict[str, Attribute], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ort_gpu_ep.kernels.claim.KNOWN_OPSET", 26)
    assert not isinstance(answer(op, 28, **attributes), Decline)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"), [("Mod", 2, {"fmod": 1}), ("SpaceToDepth", 1, {"blocksize": 2})]
)
def test_a_newer_form_that_says_something_else_is_declined(
    op: str, inputs: int, attributes: dict[str, Attribute], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not isinstance(answer(op, 28, inputs, **attributes), Decline)
    monkeypatch.setattr("ort_gpu_ep.kernels.claim.KNOWN_OPSET", 26)
    found = answer(op, 28, inputs, **attributes)
    assert isinstance(found, Decline)
    assert (found.code, found.reason) == (Code.OPSET, f"{op} of opset 28; taken from opset 1 to 26")


def test_a_form_that_this_onnx_does_not_know_is_declined() -> None:
    found = answer("Cast", 1000, to=6)
    assert isinstance(found, Decline)
    assert found.code is Code.OPSET


@pytest.mark.parametrize(
    ("op", "old", "new", "same"),
    [
        ("Cast", 25, 28, True),
        ("Cast", 18, 19, False),
        ("Relu", 13, 14, True),
        ("Range", 26, 27, False),
        ("SpaceToDepth", 26, 28, False),
        ("Clip", 10, 11, False),
        ("BitShift", 26, 28, False),
        ("Cast", 28, 29, False),
        ("NoSuchOp", 1, 2, False),
    ],
)
def test_forms_are_compared_by_what_onnx_says(op: str, old: int, new: int, same: bool) -> None:
    assert same_but_for_types(op, old, new) is same
