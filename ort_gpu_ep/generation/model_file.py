"""A model file read without its weights: they stay where they are, and the model says where that is.

A weight inside of an .onnx file becomes external data at its place in the same file. So a model of gigabytes is changed
and opened without being copied, or written again, in memory.

Source: Protocol Buffers' encoding, https://protobuf.dev/programming-guides/encoding; field numbers of onnx.proto.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import set_external_data

from ort_gpu_ep.files import open_regular
from ort_gpu_ep.ir import external

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
"""Of ModelProto, GraphProto, TensorProto."""

_OWN = ""
"""Stands for the model's own file, as a location."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

KEPT_NBYTES = 4096
"""Weights up to that size stay in the model: shapes and scalars are read from there."""


def without_weights(path: str) -> tuple[onnx.ModelProto, str]:
    """The model of a file, large weights as external data in that file; and the folder that all its external data is to
    be looked for in.

    That is the model's, or one above where files are links, as in the cache of Hugging Face's hub. Raises OSError;
    DecodeError where it is no model; ModelError for external data that onnxruntime would refuse.
    """
    own, folder = os.path.realpath(path), os.path.dirname(os.path.abspath(path))
    with open_regular(Path(own)) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        model = _model(data, _OWN)
    files = {
        location: external.path_of(location, folder, path)
        for location in external.locations_in(model)
        if location != _OWN
    }
    above = os.path.commonpath([os.path.dirname(file) for file in (own, *files.values())])
    names = {location: os.path.relpath(file, above) for location, file in {**files, _OWN: own}.items()}
    external.relocate(model, names)
    return model, above


def _model(data: mmap.mmap, name: str) -> onnx.ModelProto:
    rest, graphs = bytearray(), list[onnx.GraphProto]()
    for number, start, inner, stop in _fields(data, 0, len(data)):
        if number == _GRAPH and inner >= 0:
            graphs.append(_graph(data, inner, stop, name))
        else:
            rest += data[start:stop]
    model: onnx.ModelProto = onnx.ModelProto.FromString(bytes(rest))
    for graph in graphs:
        model.graph.MergeFrom(graph)
    return model


def _graph(data: mmap.mmap, start: int, stop: int, name: str) -> onnx.GraphProto:
    rest, tensors = bytearray(), list[onnx.TensorProto]()
    for number, begin, inner, end in _fields(data, start, stop):
        if number == _INITIALIZER and inner >= 0:
            tensors.append(_tensor(data, inner, end, name))
        else:
            rest += data[begin:end]
    graph: onnx.GraphProto = onnx.GraphProto.FromString(bytes(rest))
    graph.initializer.extend(tensors)
    return graph


def _tensor(data: mmap.mmap, start: int, stop: int, name: str) -> onnx.TensorProto:
    rest, where = bytearray(), (0, 0)
    for number, begin, inner, end in _fields(data, start, stop):
        if number == _RAW_DATA and inner >= 0 and end - inner > KEPT_NBYTES:
            where = inner, end - inner
        else:
            rest += data[begin:end]
    tensor: onnx.TensorProto = onnx.TensorProto.FromString(bytes(rest))
    if where[1] and tensor.data_location != onnx.TensorProto.EXTERNAL:  # else another file has the content
        tensor.raw_data = b" "  # set_external_data wants some
        set_external_data(tensor, name, *where)
        tensor.ClearField("raw_data")
    return tensor


def _fields(data: mmap.mmap, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Of each field of a message: its number, where it begins, where its content does if that is bytes (else -1), where
    it ends."""
    while at < stop:
        start, inner = at, -1
        key, at = _varint(data, at, stop)
        kind = key & 7
        if kind == _VARINT:
            _, at = _varint(data, at, stop)
        elif kind == _BYTES:
            nbytes, inner = _varint(data, at, stop)
            at = inner + nbytes
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise DecodeError(f"a field of wire type {kind} at byte {start}")
        if at > stop:
            raise DecodeError(f"a field at byte {start} that ends behind byte {stop}")
        yield key >> 3, start, inner, at


def _varint(data: mmap.mmap, at: int, stop: int) -> tuple[int, int]:
    """A number, and where it ends. Raises DecodeError."""
    value = shift = 0
    while at < stop and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise DecodeError(f"a number that does not end, at byte {at}")
