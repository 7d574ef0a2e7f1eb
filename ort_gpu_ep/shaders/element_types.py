"""WGSL types of a binding and of its elements."""

from __future__ import annotations

from ort_gpu_ep.ir.types import HALF, DType
from ort_gpu_ep.kernels.registry import Kernel
from ort_gpu_ep.shaders.inlining import is_inner

_RAW_VALUE = {1: "u32", 2: "u32", 4: "u32", 8: "vec2<u32>"}


def per_word(dtype: DType, raw: bool) -> int:
    """Elements that share a 32-bit word in a binding: 1 unless packed."""
    packed = dtype.bits < 32 and (raw or dtype.storage == "u32")
    return 32 // dtype.bits if packed else 1


def storage(dtype: DType, raw: bool) -> str:
    return ("vec2<u32>" if dtype.nbytes == 8 else "u32") if raw else dtype.storage


def as_bits(kernel: Kernel, dtype: DType, name: str = "") -> bool:
    """Whether elements of this type are bits in a kernel: all that a raw one binds, 64-bit integers where they are
    pairs of words."""
    return (kernel.raw and not is_inner(kernel, name)) or (kernel.pairs and dtype.is_wide_integer)


def by_eight(kernel: Kernel, name: str, dtype: DType) -> bool:
    """Whether a binding that is read is bound by eight elements of 16 bits."""
    is_wide = name in kernel.vectors and name in kernel.words
    return is_wide and dtype.bits == 16 and all(name != written for written, _ in kernel.writes or ())


def value_type(dtype: DType, raw: bool) -> str:
    return _RAW_VALUE[dtype.nbytes] if raw else dtype.value


def vector_type(dtype: DType, raw: bool = False) -> str:
    """Of a binding of vectors: four elements, or of packed integers four words; raw, bits of either."""
    if raw:
        return "vec4<u32>"
    return "vec2<u32>" if dtype is HALF else f"vec4<{dtype.storage}>"
