"""Element types and tensor types: the one table that relates ONNX, numpy and WGSL."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Shape: TypeAlias = tuple[int, ...]
SymbolicShape: TypeAlias = tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    name: as numpy calls it. onnx: TensorProto.DataType. nbytes: size of one element.
    value: the WGSL type that arithmetic happens in, "" where no kernel computes with it.
    storage: the WGSL element type of a buffer that arithmetic reads; "u32" with nbytes < 4 means packed into words.
    feature: the wgpu device feature that `storage` needs, "" for none.
    """

    name: str
    onnx: int
    nbytes: int
    value: str = ""
    storage: str = ""
    feature: str = ""
    numpy: np.dtype[Any] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numpy", np.dtype(getattr(ml_dtypes, self.name) if self.name == "bfloat16" else self.name))

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        """There is one of each: `is` holds in the worker process too, where graphs and plans come by pickle."""
        return _named, (self.name,)


def _named(name: str) -> DType:
    return BY_NAME[name]


FLOAT32 = DType("float32", 1, 4, "f32", "f32")
UINT8 = DType("uint8", 2, 1, "u32", "u32")
INT8 = DType("int8", 3, 1, "i32", "u32")
UINT16 = DType("uint16", 4, 2)
INT16 = DType("int16", 5, 2)
INT32 = DType("int32", 6, 4, "i32", "i32")
INT64 = DType("int64", 7, 8, "i64", "i64", "shader-int64")
BOOL = DType("bool", 9, 1, "bool", "u32")
FLOAT16 = DType("float16", 10, 2, "f32", "f16", "shader-f16")
FLOAT64 = DType("float64", 11, 8)
UINT32 = DType("uint32", 12, 4, "u32", "u32")
UINT64 = DType("uint64", 13, 8, "u64", "u64", "shader-int64")
BFLOAT16 = DType("bfloat16", 16, 2)

DTYPES = (FLOAT32, UINT8, INT8, UINT16, INT16, INT32, INT64, BOOL, FLOAT16, FLOAT64, UINT32, UINT64, BFLOAT16)
BY_ONNX = {t.onnx: t for t in DTYPES}
BY_NAME = {t.name: t for t in DTYPES}

FLOATS = (FLOAT32,)
INTS = (INT32, INT64)
NUMBERS = FLOATS + INTS
ANY = DTYPES
"""For kernels that only move bits."""


def dtype_of(array: np.ndarray[Any, Any]) -> DType:
    """The DType of a numpy array. Raises KeyError for a type that this package does not know."""
    return BY_NAME[array.dtype.name]


@dataclass(frozen=True, slots=True)
class TensorType:
    """An element type and a shape of known, non-negative dimensions."""

    dtype: DType
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes, as ONNX Runtime and numpy lay the tensor out (dense, row-major)."""
        return self.size * self.dtype.nbytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def names(dtypes: Iterable[DType]) -> str:
    """`float32, int64`, for messages."""
    return ", ".join(t.name for t in dtypes)
