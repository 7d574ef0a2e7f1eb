"""What plain data says, as a hash that is the same in every process: names what was worked out of it
(runtime/known_plans.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from ort_gpu_ep.ir.graph import Array, Graph, Value, fits_half, nonzeros_of
from ort_gpu_ep.ir.types import DType, TensorType

_names: dict[type, tuple[str, ...]] = {}

_PLAIN = (int, str, float, bool, type(None))


def digest(*values: object) -> str:
    """Of numbers, texts, arrays, DTypes, and tuples, lists, sets, mappings and dataclasses of these. Raises TypeError
    for anything else."""
    return hashlib.blake2b("\0".join(map(_said, values)).encode("utf-8", "surrogatepass"), digest_size=24).hexdigest()


def graph_digest(graph: Graph, most_nbytes: int, halves: bool) -> str:
    """Of a graph, without its name. A constant of more than `most_nbytes` counts by what a plan follows from: its type,
    how many of its elements are not zero, and with `halves` whether they fit into float16; its elements are not read by
    who makes one.
    """
    values = {
        name: _constant(value, most_nbytes, halves) if value.is_constant else (value.dtype, value.shape)
        for name, value in graph.values.items()
    }
    return digest(graph.inputs, graph.outputs, graph.nodes, values, graph.nested, graph.parent)


def is_large(value: Value, most_nbytes: int) -> bool:
    """Whether a constant counts by its type."""
    sizes = [d for d in value.shape or () if isinstance(d, int)]
    is_known = value.dtype is not None and value.shape is not None and len(sizes) == len(value.shape)
    return is_known and value.dtype is not None and TensorType(value.dtype, tuple(sizes)).nbytes > most_nbytes


def _constant(value: Value, most_nbytes: int, halves: bool) -> object:
    if is_large(value, most_nbytes):
        return value.dtype, value.shape, nonzeros_of(value), halves and fits_half(value)
    return value.dtype, value.shape, value.load() if value.load is not None else None


def _said(value: Any) -> str:
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind in (tuple, list):
        return f"({_row(value)})"
    if isinstance(value, DType):
        return value.name
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str}{value.shape}{_content(value)}"
    if isinstance(value, (Enum, np.generic)):
        return repr(value)
    if isinstance(value, bytes):
        return hashlib.blake2b(value, digest_size=24).hexdigest()
    if isinstance(value, Set):
        return f"{{{','.join(sorted(map(_said, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{','.join(sorted(f'{repr(k) if type(k) in _PLAIN else _said(k)}:{_row((v,))}' for k, v in value.items()))}}}"
    if is_dataclass(kind):
        if kind not in _names:
            _names[kind] = tuple(f.name for f in fields(kind))
        return f"{kind.__name__}({_row([getattr(value, name) for name in _names[kind]])})"
    raise TypeError(f"{kind.__name__} has no text that is the same in every process")


def _row(values: Sequence[Any]) -> str:
    """Most values are texts and numbers, which are not asked for one by one."""
    return ",".join([repr(v) if type(v) in _PLAIN else v.name if type(v) is DType else _said(v) for v in values])


def _content(array: Array) -> str:
    if array.dtype.kind == "O":
        return _said(array.tolist())
    return hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=24).hexdigest()
