"""Schemas of ONNX Runtime's own ops: as onnxruntime has them, and nodes that don't keep to them are declined with the
reason."""

from __future__ import annotations

import re
from typing import Any

import pytest
from onnx.defs import OpSchema
from onnxruntime.capi import onnxruntime_pybind11_state as ort

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.errors import Code
from ort_gpu_ep.ir import contrib
from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.ir.schemas import default_attribute, schema
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.registry import OPS, BoundNode, Decline, Limits, Lowering, Operand
from tests.unit.graphs import tensor

THEIRS = {
    s.name: s
    for s in ort.get_all_operator_schema()
    if (s.domain, s.name) in contrib.schemas() or s.domain == contrib.DOMAIN
}
OURS = {name: s for (_, name), s in contrib.schemas().items()}


def test_every_row_of_their_domain_has_a_schema() -> None:
    assert (
        {name for domain, name in OPS if domain == contrib.DOMAIN or (domain, name) in contrib.schemas()}
        == set(OURS)
        <= set(THEIRS)
    )


def formal(parameters: Any) -> list[tuple[str, str, int]]:
    kinds = {"Single": 0, "Optional": 1, "Variadic": 2}
    return [(p.name, p.type_str if hasattr(p, "type_str") else p.typeStr, kinds[p.option.name]) for p in parameters]


@pytest.mark.parametrize("name", sorted(OURS))
def test_it_is_what_onnxruntime_has(name: str) -> None:
    """Of an older onnxruntime, what newer ones added is missing."""
    mine, its = OURS[name], THEIRS[name]
    assert mine.since_version == its.since_version
    assert (mine.min_input, mine.max_input, mine.min_output, mine.max_output) == (
        its.min_input,
        its.max_input,
        its.min_output,
        its.max_output,
    )
    assert formal(mine.inputs) == formal(its.inputs)
    assert formal(mine.outputs) == formal(its.outputs)
    assert set(its.attributes) <= set(mine.attributes)
    for key, entry in its.attributes.items():
        assert (mine.attributes[key].type.name, mine.attributes[key].required) == (entry.type.name, entry.required), key
        told = re.search(r"[Dd]efault (?:value )?is (-?\d*\.?\d+(?:e-?\d+)?)(?!\.?\d|[e/])", entry.description)
        if told:
            assert default_attribute(mine.domain, name, 1, key) == pytest.approx(float(told[1])), key
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in mine.type_constraints}
    assert set(allowed) == {c.type_param_str for c in its.type_constraints}
    for constraint in its.type_constraints:
        assert set(constraint.allowed_type_strs) <= allowed[constraint.type_param_str]


def test_defaults() -> None:
    assert default_attribute(contrib.DOMAIN, "MatMulNBits", 1, "bits") == 4
    assert default_attribute(contrib.DOMAIN, "MatMulNBits", 1, "K") is None
    assert default_attribute(contrib.DOMAIN, "RotaryEmbedding", 1, "scale") == 1.0
    assert isinstance(schema(contrib.DOMAIN, "MatMulNBits", 1), OpSchema)
    assert schema(contrib.DOMAIN, "Inverse", 1) is None
    assert schema("else", "MatMulNBits", 1) is None


TYPES = {
    "a": tensor(3, 32),
    "b": tensor(8, 2, 8, dtype="uint8"),
    "s": tensor(16),
    "h": tensor(16, dtype="float16"),
    "i": tensor(32, dtype="int64"),
}
GIVEN: dict[str, Any] = {"K": 32, "N": 8, "block_size": 16}


def asked(inputs: str, **attributes: Any) -> Lowering | Decline:
    names = tuple("" if n == "-" else n for n in inputs.split())
    node = Node("MatMulNBits", names, ("y",), domain=contrib.DOMAIN, version=1, attributes=attributes)
    return claim(
        BoundNode(node, tuple(Operand(n, TYPES[n], constant=n != "a") if n else None for n in names)), Limits()
    )


def test_a_node_that_keeps_to_it() -> None:
    assert isinstance(asked("a b s", **GIVEN), Lowering)
    assert isinstance(asked("a b s", **GIVEN, bits=4, accuracy_level=0), Lowering)


@pytest.mark.parametrize(
    ("inputs", "attributes", "code", "reason"),
    [
        ("a b", GIVEN, Code.ATTRIBUTE, "2 inputs; 3 to 6 are expected"),
        ("a b -", GIVEN, Code.ATTRIBUTE, "input scales is left out"),
        ("a b s - - - -", GIVEN, Code.ATTRIBUTE, "7 inputs; 3 to 6 are expected"),
        ("a b s", {"K": 32, "N": 8}, Code.ATTRIBUTE, "attribute block_size is left out"),
        ("a b s", {**GIVEN, "K": "32"}, Code.ATTRIBUTE, "attribute K is '32'; INT is expected"),
        ("a b s", {**GIVEN, "zero": 1}, Code.ATTRIBUTE, "attribute zero, which is none of K, N, accuracy_level"),
        (
            "a b h",
            GIVEN,
            Code.ATTRIBUTE,
            "input scales is tensor(float16), another one of the same type is tensor(float)",
        ),
        ("a s s", GIVEN, Code.DTYPE, "float32 input 's'; taken: uint8"),
        ("a b s - i", GIVEN, Code.DTYPE, "int64 input 'i'; taken: int32"),
    ],
)
def test_nodes_that_do_not(inputs: str, attributes: dict[str, Any], code: Code, reason: str) -> None:
    answer = asked(inputs, **attributes)
    assert isinstance(answer, Decline)
    assert answer.code is code
    assert reason in answer.reason
