"""The tensors of an ONNX model, found in the bytes of its file and not loaded: where each one's content lies; and its
op types.

Sources: onnx.proto3 (numbers of fields), the encoding of protocol buffers (tags, varints, lengths).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 64
"""Bodies of If, Loop and Scan inside each other."""

MODEL_GRAPH, MODEL_FUNCTION, FUNCTION_NODE, FUNCTION_ATTRIBUTE = 7, 25, 7, 11
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_SPARSE = 1, 5, 15
NODE_OP, NODE_ATTRIBUTE = 4, 5
ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS, ATTRIBUTE_SPARSE, ATTRIBUTE_SPARSES = (
    5,
    6,
    10,
    11,
    22,
    23,
)
SPARSE_VALUES, SPARSE_INDICES = 1, 2
TENSOR_NAME, TENSOR_RAW, TENSOR_EXTERNAL, TENSOR_LOCATION = 8, 9, 13, 14
ENTRY_KEY, ENTRY_VALUE = 1, 2
EXTERNAL = 1
"""TensorProto.data_location: the content lies in another file. Entries of other tensors mean nothing, and nobody has
looked at them."""


OF_GROUPS = " of groups"
"""Behind the type of an op whose attribute `group` is not 1, as `op_types` gives it."""
_GROUP, _ONE = b"\x0a\x05group", b"\x18\x01"
"""Of an attribute: its name, with the tag and the length, and its integer, with the tag."""


class Bytes(Protocol):
    """What a file's bytes are read from: bytes, or a mapped file."""

    def __getitem__(self, index: slice, /) -> bytes: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor. raw: where its content begins and ends in the file, None where it is not there as raw bytes.

    external: of content in another file, what the model says of that (`location`, `offset`, `length`); empty otherwise.
    See external.py. initializer: it is one of the main graph.
    """

    name: str
    raw: tuple[int, int] | None
    external: Mapping[str, str] = field(default_factory=dict)
    initializer: bool = True


def stored_tensors(data: Bytes) -> Iterator[StoredTensor]:
    """The tensors of a model's graph, bodies, attributes and functions. Raises ValueError for what is no ONNX model."""
    for number, start, end in _fields(data, 0, len(data)):
        if number == MODEL_GRAPH:
            yield from _of_graph(data, start, end, 0)
        elif number == MODEL_FUNCTION:
            for kind, at, to in _fields(data, start, end):
                if kind == FUNCTION_NODE:
                    yield from _of_node(data, at, to, 0)
                elif kind == FUNCTION_ATTRIBUTE:
                    yield from _of_attribute(data, at, to, 0)


def op_types(data: Bytes) -> frozenset[str]:
    """The types of a model's nodes, also in its bodies and functions, without domains. Raises ValueError for what is no
    ONNX model."""
    names = set[str]()
    for number, start, end in _fields(data, 0, len(data)):
        if number in (MODEL_GRAPH, MODEL_FUNCTION):
            names.update(_ops(data, start, end, GRAPH_NODE if number == MODEL_GRAPH else FUNCTION_NODE, 0))
    return frozenset(names)


def _ops(data: Bytes, start: int, end: int, node: int, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"more than {_MAX_DEPTH} graphs inside each other")
    for _, at, to in (part for part in _fields(data, start, end) if part[0] == node):
        op, more = "", ""
        for kind, begin, stop in _fields(data, at, to):
            if kind == NODE_OP:
                op = _text(data, begin, stop)
            elif kind == NODE_ATTRIBUTE:
                head = data[begin : min(stop, begin + 16)]
                more = OF_GROUPS if head.startswith(_GROUP) and _ONE not in head else more
                for inner, first, last in _fields(data, begin, stop):
                    if inner in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
                        yield from _ops(data, first, last, GRAPH_NODE, depth + 1)
        yield op
        if more:
            yield op + more


def _of_graph(data: Bytes, start: int, end: int, depth: int) -> Iterator[StoredTensor]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"more than {_MAX_DEPTH} graphs inside each other")
    for number, at, to in _fields(data, start, end):
        if number == GRAPH_INITIALIZER:
            yield _tensor(data, at, to, depth == 0)
        elif number == GRAPH_SPARSE:
            yield from _of_sparse(data, at, to)
        elif number == GRAPH_NODE:
            yield from _of_node(data, at, to, depth)


def _of_node(data: Bytes, start: int, end: int, depth: int) -> Iterator[StoredTensor]:
    for number, at, to in _fields(data, start, end):
        if number == NODE_ATTRIBUTE:
            yield from _of_attribute(data, at, to, depth)


def _of_attribute(data: Bytes, start: int, end: int, depth: int) -> Iterator[StoredTensor]:
    for number, at, to in _fields(data, start, end):
        if number in (ATTRIBUTE_TENSOR, ATTRIBUTE_TENSORS):
            yield _tensor(data, at, to, False)
        elif number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            yield from _of_graph(data, at, to, depth + 1)
        elif number in (ATTRIBUTE_SPARSE, ATTRIBUTE_SPARSES):
            yield from _of_sparse(data, at, to)


def _of_sparse(data: Bytes, start: int, end: int) -> Iterator[StoredTensor]:
    for number, at, to in _fields(data, start, end):
        if number in (SPARSE_VALUES, SPARSE_INDICES):
            yield _tensor(data, at, to, False)


def _tensor(data: Bytes, start: int, end: int, initializer: bool) -> StoredTensor:
    name, raw, external, location = "", None, dict[str, str](), 0
    for number, kind, at, to in _all_fields(data, start, end):
        if kind == _VARINT:
            location = at if number == TENSOR_LOCATION else location
        elif kind != _BYTES:
            continue
        elif number == TENSOR_NAME:
            name = _text(data, at, to)
        elif number == TENSOR_RAW:
            raw = at, to
        elif number == TENSOR_EXTERNAL:
            entry = {field: _text(data, begin, stop) for field, begin, stop in _fields(data, at, to)}
            external[entry.get(ENTRY_KEY, "")] = entry.get(ENTRY_VALUE, "")
    return (
        StoredTensor(name, None, external, initializer)
        if location == EXTERNAL
        else StoredTensor(name, raw, {}, initializer)
    )


def _text(data: Bytes, start: int, end: int) -> str:
    return data[start:end].decode("utf-8", "surrogateescape")  # as names of files, which need not be UTF-8


def _fields(data: Bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields with a length: (number, where its content begins, where it ends). Others are passed over."""
    return ((number, at, to) for number, kind, at, to in _all_fields(data, start, end) if kind == _BYTES)


def _all_fields(data: Bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields: (number, wire type, where its content begins, where it ends); of a varint its value, and where it
    ends."""
    at = start
    while at < end:
        tag, at = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at, end)
            yield number, kind, value, at
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            nbytes, at = _varint(data, at, end)
            if nbytes > end - at:
                raise ValueError(f"a field of {nbytes} B at {at}, expected at most {end - at}")
            yield number, kind, at, at + nbytes
            at += nbytes
        else:
            raise ValueError(f"a field of wire type {kind} at {at}, which ONNX does not have")


def _varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """(number, where the next one begins)."""
    value = shift = 0
    for byte in data[at : min(at + 10, end)]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"no number ends at {at}")
