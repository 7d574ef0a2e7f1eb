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

MAX_SHAPES = 256
"""Sets of input shapes of one model that are remembered: what a new one takes is computed in less than a
millisecond."""

MAX_TOLD = 8
"""Of these, of plans made for them, and of what else there may be many of, so many are told of one by one."""


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    name: as numpy calls it. onnx: TensorProto.DataType. bits: size of one element; less than 8 are packed, the first in
    the low bits. value: the WGSL type that arithmetic happens in, "" where no kernel computes with it. storage: the
    WGSL element type of a buffer that arithmetic reads; "u32" with fewer than 32 bits means packed into words. feature:
    the wgpu device feature that `storage` needs, "" for none.
    """

    name: str
    onnx: int
    bits: int
    value: str = ""
    storage: str = ""
    feature: str = ""
    numpy: np.dtype[Any] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numpy", np.dtype(getattr(ml_dtypes, self.name, self.name)))

    def __str__(self) -> str:
        return self.name

    @property
    def nbytes(self) -> int:
        """Bytes of one element. Raises ValueError for one that shares its byte with others."""
        if self.bits % 8:
            raise ValueError(
                f"an element of {self.name} has {self.bits} bits, no whole bytes; ask TensorType.nbytes for a tensor's"
            )
        return self.bits // 8

    @property
    def is_wide_integer(self) -> bool:
        """An integer of 64 bits: a pair of words where shaders have none."""
        return self.bits == 64 and self.value[:1] in ("i", "u")

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        """There is one of each: `is` holds in the worker process too, where graphs and plans come by pickle."""
        return _named, (self.name,)


def _named(name: str) -> DType:
    return BY_NAME[name]


FLOAT32 = DType("float32", 1, 32, "f32", "f32")
UINT8 = DType("uint8", 2, 8, "u32", "u32")
INT8 = DType("int8", 3, 8, "i32", "u32")
UINT16 = DType("uint16", 4, 16, "u32", "u32")
INT16 = DType("int16", 5, 16, "i32", "u32")
INT32 = DType("int32", 6, 32, "i32", "i32")
INT64 = DType("int64", 7, 64, "i64", "i64", "shader-int64")
BOOL = DType("bool", 9, 8, "bool", "u32")
FLOAT16 = DType("float16", 10, 16, "f32", "f16", "shader-f16")
HALF = DType("half", 10, 16, "f32", "u32")
"""float16, two of them to a word, which every adapter can take apart: weights that kernels calculate with in
float32."""
FLOAT64 = DType("float64", 11, 64, "f64", "f64", "shader-f64")
UINT32 = DType("uint32", 12, 32, "u32", "u32")
UINT64 = DType("uint64", 13, 64, "u64", "u64", "shader-int64")
BFLOAT16 = DType("bfloat16", 16, 16)
FLOAT8E4M3FN = DType("float8_e4m3fn", 17, 8)
FLOAT8E4M3FNUZ = DType("float8_e4m3fnuz", 18, 8)
FLOAT8E5M2 = DType("float8_e5m2", 19, 8)
FLOAT8E5M2FNUZ = DType("float8_e5m2fnuz", 20, 8)
FLOAT8E8M0 = DType("float8_e8m0fnu", 24, 8)
UINT4 = DType("uint4", 21, 4, "u32", "u32")
INT4 = DType("int4", 22, 4, "i32", "u32")
FLOAT4E2M1 = DType("float4_e2m1fn", 23, 4)
UINT2 = DType("uint2", 25, 2, "u32", "u32")
INT2 = DType("int2", 26, 2, "i32", "u32")

FLOAT8 = (FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ)
"""Moved as bytes; nothing computes with them."""

DTYPES = (FLOAT32, UINT8, INT8, UINT16, INT16, INT32, INT64, BOOL, FLOAT16, FLOAT64, UINT32, UINT64, BFLOAT16, *FLOAT8)
"""What kernels take and ONNX Runtime moves."""

SUB_BYTE = (UINT4, INT4, FLOAT4E2M1, UINT2, INT2)
"""Several share a byte. Only constants have them: a row that takes one says so by name."""

PACKED_INTS = (UINT4, INT4, UINT2, INT2)
"""Weights that kernels read as they are."""

_ALL = (*DTYPES, *SUB_BYTE, FLOAT8E8M0)
BY_ONNX = {t.onnx: t for t in _ALL}
BY_NAME = {t.name: t for t in (*_ALL, HALF)}

BY_ORT = {n: t for n, t in BY_ONNX.items() if n < 24} | {24: UINT2, 25: INT2}
"""By ONNXTensorElementDataType: ONNX Runtime's own numbers, which end otherwise than ONNX's."""

FLOATS = (FLOAT32, FLOAT16)
INTS = (INT32, INT64)
NUMBERS = FLOATS + INTS
ANY = DTYPES
"""For kernels that only move bits."""


def dtype_of(array: np.ndarray[Any, Any]) -> DType:
    """The DType of a numpy array. Raises KeyError for a type that this package does not know."""
    return BY_NAME[array.dtype.name]


def summed(dtype: DType) -> DType:
    """The element type in which a part of a sum of that type is stored: float16 reaches neither to large sums nor to
    small squares."""
    return FLOAT32 if dtype is FLOAT16 else dtype


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
        """Size in bytes, as ONNX Runtime lays the tensor out (dense, row-major, no part of a byte unused but in the
        last one)."""
        bits = self.dtype.bits
        return self.size * (bits // 8) if bits >= 8 else -(-self.size * bits // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def unpacked(data: np.ndarray[Any, np.dtype[np.uint8]], tensor: TensorType) -> np.ndarray[Any, Any]:
    """The elements of a tensor of less than 8 bits each, a byte each, as numpy has them. data: its nbytes, the first
    element lowest."""
    bits = tensor.dtype.bits
    codes = (data[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)).reshape(-1)[: tensor.size] & np.uint8(
        (1 << bits) - 1
    )
    if tensor.dtype.name.startswith("int"):
        # the sign goes on
        codes = codes | np.where(codes >> np.uint8(bits - 1), np.uint8(256 - (1 << bits)), np.uint8(0))
    array: np.ndarray[Any, Any] = codes.view(tensor.dtype.numpy).reshape(tensor.shape)
    return array


def packed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of a tensor as ONNX Runtime lays it out: what `unpacked` reads. An array of whole bytes stays as it is,
    but contiguous."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    dtype = BY_NAME.get(array.dtype.name)
    if dtype is None or dtype.bits >= 8:
        return array
    bits, per = dtype.bits, 8 // dtype.bits
    codes = array.reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    codes = np.pad(codes, (0, -len(codes) % per)).reshape(-1, per)
    packed_array: np.ndarray[Any, Any] = np.bitwise_or.reduce(codes << np.arange(0, 8, bits, dtype=np.uint8), axis=1)
    return packed_array


def names(dtypes: Iterable[DType]) -> str:
    """`float32, int64`, for messages."""
    return ", ".join(t.name for t in dtypes)
