"""What ONNX says of an op: its schema, and the defaults of its attributes."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx.defs

from ort_gpu_ep.graph import Attribute


@cache
def schema(domain: str, name: str, version: int) -> Any:
    """onnx.defs' schema of an op at a since-version, None for an op of another domain."""
    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def default_attribute(domain: str, name: str, version: int, attribute: str) -> Attribute:
    """An attribute's default value by the schema; None where there is none."""
    found = schema(domain, name, version)
    entry = found.attributes.get(attribute) if found else None
    if entry is None or not entry.default_value.type:
        return None
    value = onnx.helper.get_attribute_value(entry.default_value)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(v.decode() if isinstance(v, bytes) else v for v in value) if isinstance(value, list) else value
