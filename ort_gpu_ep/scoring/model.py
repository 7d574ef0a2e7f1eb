"""Inputs and outputs of a model, row by row, read from its file without a session."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ort_gpu_ep.errors import ModelError, ScoringError
from ort_gpu_ep.files import blocks
from ort_gpu_ep.ir import external
from ort_gpu_ep.ir.refused import kind_of

_KINDS = "fiub"
"""Of numpy's types those that Arrow has, too: no strings, no bfloat16."""


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output. inner: sizes of a row, None for those that the model leaves open; known: whether the file
    tells them."""

    name: str
    dtype: str
    inner: tuple[int | None, ...]
    batch: int | None = None
    known: bool = True

    @property
    def count(self) -> int | None:
        """Elements of a row; None where it is open."""
        return None if not self.known or None in self.inner else prod(d for d in self.inner if d is not None)

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(str(d or '?') for d in (self.batch, *self.inner))}]"


@dataclass(frozen=True, slots=True)
class Model:
    """A model file. batch: rows in each run where the model fixes them, else None. sha256: of the file and its external
    data.

    weights: the locations of its external data, see ir/external.py.
    """

    path: str
    sha256: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: tuple[str, ...] = ()

    @property
    def batch(self) -> int | None:
        return next((v.batch for v in self.inputs if v.batch is not None), None)

    def row_nbytes(self) -> int:
        """Of all inputs; open sizes count as 1."""
        return sum(prod(d or 1 for d in v.inner) * np.dtype(v.dtype).itemsize for v in self.inputs)


def read_model(model: str | Path | bytes, outputs: Sequence[str] | None = None) -> Model:
    """model: a file, or what is in one. outputs: names of those that are wanted, all where it is None. Raises
    ModelError for what is no model, ScoringError for one whose inputs have no rows or types that no table has.
    """
    import onnx

    path = Path("(bytes)") if isinstance(model, bytes) else Path(model)
    try:
        data = model if isinstance(model, bytes) else path.read_bytes()
        proto = onnx.load_model_from_string(data)
        if not proto.HasField("graph"):
            raise ValueError("it has no graph")
    except OSError as error:
        raise ModelError(f"model {path}: {error.strerror or error}") from error
    except Exception as error:  # protobuf's own, which moves between its versions
        raise ModelError(f"model {path}: not an ONNX file ({kind_of(data) or error})") from error
    constants = {t.name for t in proto.graph.initializer}
    inputs = tuple(_value(v, path) for v in proto.graph.input if v.name not in constants)
    outputs_of = {v.name: v for v in proto.graph.output}
    missing = [name for name in outputs or () if name not in outputs_of]
    if missing:
        raise ScoringError(f"output {missing[0]!r}: model {path} has {', '.join(map(repr, outputs_of))}")
    if not inputs:
        raise ScoringError(f"model {path} has no inputs: there is nothing to score rows with")
    chosen = tuple(_value(outputs_of[name], path) for name in outputs or outputs_of)
    weights = tuple(external.locations_in(proto))
    return Model(
        str(path), _hash("" if isinstance(model, bytes) else str(path), data, weights), inputs, chosen, weights
    )


def _hash(path: str, data: bytes, weights: Sequence[str]) -> str:
    """Of the file, and of the files that hold its weights."""
    digest = hashlib.sha256(data)
    for location in weights:
        with external.open_location(
            location, os.path.dirname(os.path.abspath(path)) if path else os.getcwd(), path
        ) as file:
            for at, part in blocks(file):
                if np.frombuffer(part, np.uint8).any():  # a hole in the file is zeros elsewhere
                    digest.update(at.to_bytes(8, "little"))
                    digest.update(part)
    return digest.hexdigest()


def _value(value: Any, path: Path) -> Value:
    import onnx

    kind = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type":
        raise ScoringError(
            f"model {path}: {value.name!r} is no tensor; expected tensors with a row in each place of the "
            f"first dimension"
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if dtype.kind not in _KINDS:
        raise ScoringError(
            f"model {path}: {value.name!r} is of {dtype.name}, expected numbers or bool; cast inside the model"
        )
    sizes = [d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in kind.shape.dim]
    has_shape = kind.HasField("shape")
    if has_shape and not sizes:
        raise ScoringError(
            f"model {path}: {value.name!r} has no dimension for rows; leave it out with `outputs`, or export "
            f"it with one"
        )
    return Value(value.name, dtype.name, tuple(sizes[1:]), sizes[0] if sizes else None, has_shape)
