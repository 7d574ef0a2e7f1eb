"""Schemas of ops, from ONNX or for ONNX Runtime's own domain from it: defaults of attributes, and whether a node
follows its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ort_gpu_ep.ir import contrib
from ort_gpu_ep.ir.graph import Attribute, Node
from ort_gpu_ep.ir.types import DType


@cache
def schema(domain: str, name: str, version: int) -> Any:
    """The schema of an op at a since-version; None for an op that neither onnx.defs nor contrib.py knows."""
    if (domain, name) in contrib.schemas() or domain == contrib.DOMAIN:
        return contrib.schemas().get((domain, name))
    import onnx.defs  # here and below: a session whose plans are known loads none of it

    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


@dataclass(frozen=True, slots=True)
class Told:
    """What schemas say of a node. newer: its op says other things than in the newest opset that is known. parameters:
    the type parameter of each input, the last one's of all behind it; none without a schema. fault: in what the node
    does not keep to ONNX Runtime's own schema.
    """

    newer: bool
    parameters: Sequence[str]
    fault: str


def told(node: Node, types: Sequence[DType | None], opset: int) -> Told:
    """types: of its inputs, None for one left out. opset: of ONNX, the newest one that is known."""
    newer = not node.domain and node.version > opset and not same_but_for_types(node.op, opset, node.version)
    return Told(
        newer,
        _parameters(node.domain, node.op, node.version),
        fault(node, types) if node.domain == contrib.DOMAIN else "",
    )


@cache
def _parameters(domain: str, name: str, version: int) -> Sequence[str]:
    op_schema = schema(domain, name, version)
    return tuple(parameter.type_str for parameter in op_schema.inputs) if op_schema is not None else ()


@cache
def same_but_for_types(name: str, opset: int, version: int) -> bool:
    """Whether ONNX says of an op at since-version `version` what it says in `opset`, but for types; False of a version
    not known here."""
    old, new = schema("", name, opset), schema("", name, version)
    return old is not None and new is not None and new.since_version == version and _statement(old) == _statement(new)


def _statement(found: Any) -> object:
    """All of a schema that says what its op does."""
    inputs, outputs = (
        [(p.name, p.type_str, p.option, p.is_homogeneous, p.min_arity, p.description) for p in parameters]
        for parameters in (found.inputs, found.outputs)
    )
    attributes = {
        name: (a.type, a.required, a.default_value.SerializeToString(), a.description)
        for name, a in found.attributes.items()
    }
    return found.doc, found.deprecated, inputs, outputs, attributes


@cache
def default_attribute(domain: str, name: str, version: int, attribute: str) -> Attribute:
    """An attribute's default value by the schema; None where there is none."""
    op_schema = schema(domain, name, version)
    entry = op_schema.attributes.get(attribute) if op_schema else None
    if entry is None or not entry.default_value.type:
        return None
    import onnx

    value = onnx.helper.get_attribute_value(entry.default_value)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(v.decode() if isinstance(v, bytes) else v for v in value) if isinstance(value, list) else value


def fault(node: Node, types: Sequence[DType | None]) -> str:
    """In what a node does not keep to its schema; empty where it does, or there is none. types: of its inputs, None for
    one left out.

    For ops that onnx.checker knows nothing of; ONNX Runtime checks the models that it loads, and files are read without
    it, too.
    """
    op_schema = schema(node.domain, node.op, node.version)
    if op_schema is None:
        return ""
    from onnx.defs import OpSchema

    count = len(types)
    if not op_schema.min_input <= count <= op_schema.max_input:
        return f"{count} inputs; {op_schema.min_input} to {op_schema.max_input} are expected"
    for parameter, dtype in zip(op_schema.inputs, types, strict=False):
        if dtype is None and parameter.option != OpSchema.FormalParameterOption.Optional:
            return f"input {parameter.name} is left out"
    return _attribute_fault(op_schema, node) or _type_fault(op_schema, types)


_PYTHON: Mapping[str, type | tuple[type, ...]] = {
    "INT": int,
    "FLOAT": (int, float),
    "STRING": str,
    "INTS": tuple,
    "FLOATS": tuple,
    "STRINGS": tuple,
}
"""By the name of an AttrType."""


def _attribute_fault(found: Any, node: Node) -> str:
    for name, entry in found.attributes.items():
        value = node.attributes.get(name)
        if value is None and entry.required:
            return f"attribute {name} is left out"
        if value is not None and not isinstance(value, _PYTHON[entry.type.name]):
            return f"attribute {name} is {value!r}; {entry.type.name} is expected"
    unknown = sorted(set(node.attributes) - set(found.attributes))
    return f"attribute {unknown[0]}, which is none of {', '.join(sorted(found.attributes))}" if unknown else ""


def _type_fault(found: Any, types: Sequence[DType | None]) -> str:
    """Types that a parameter does not allow, or different ones for the same."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in found.type_constraints}
    of: dict[str, str] = {}
    for parameter, dtype in zip(found.inputs, types, strict=False):
        if dtype is None:
            continue
        name = f"tensor({onnx_name(dtype)})"
        # a type itself where there is no such parameter
        expected = allowed.get(parameter.type_str, [parameter.type_str])
        if name not in expected:
            return f"input {parameter.name} is {name}; {', '.join(expected)} are expected"
        if of.setdefault(parameter.type_str, name) != name:
            return f"input {parameter.name} is {name}, another one of the same type is {of[parameter.type_str]}"
    return ""


def onnx_name(dtype: DType) -> str:
    """As schemas write it."""
    return {"float32": "float", "float64": "double"}.get(dtype.name, dtype.name)
