"""Masks of Dropout: a hash of the element's number, in integers, so that every device draws the same one.

The hash mixes by multiplications, additions and shifts of 32 bits that wrap around. After the finalizers of MurmurHash3
(A. Appleby, public domain), with additions in place of exclusive ors, which ONNX has from opset 18 on only.
"""

from __future__ import annotations

import math

import numpy as np

from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training.writer import Value, Writer

_SPREAD, _FIRST, _SECOND, _NODE = 0x9E3779B1, 0x7FEB352D, 0x846CA68B, 0x85EBCA6B
_SHIFTS = (16, 15, 16)
_BITS = 24
"""Of a hash that decide: a ratio is met to 2^-24."""


def signed(number: int) -> int:
    """The int32 of the same bits as a number modulo 2^32."""
    return (number + 2**31) % 2**32 - 2**31


def seed_of(seed: int, step: int) -> Array:
    """The int32 [1] that the masks of a step start from."""
    mixed = (seed * _FIRST + step * _SPREAD + 1) % 2**32
    for shift, factor in zip(_SHIFTS, (_SECOND, _FIRST, 1), strict=True):
        mixed = (mixed + (mixed >> shift)) * factor % 2**32
    return np.array([signed(mixed)], np.int32)


def masked(writer: Writer, x: Value, ratio: float, seed: Value, number: int) -> Value:
    """1 / (1 - ratio) with probability 1 - ratio, else 0, in x's shape. number: of the Dropout among those of the
    model."""
    count = writer.constant(np.arange(math.prod(x.shape), dtype=np.int32).reshape(x.shape))
    state = count * signed(_SPREAD) + (seed + signed(number * _NODE))
    for shift, factor in zip(_SHIFTS, (_FIRST, _SECOND, None), strict=True):
        state = state + _shifted(writer, state, shift)
        state = state if factor is None else state * signed(factor)
    limit = writer.constant(np.array(round(ratio * 2**_BITS), np.int32))
    dropped = writer.op("Less", _shifted(writer, state, 32 - _BITS), limit)
    return writer.op(
        "Where", dropped, writer.constant(np.array(0, x.dtype)), writer.constant(np.array(1 / (1 - ratio), x.dtype))
    )


def _shifted(writer: Writer, x: Value, bits: int) -> Value:
    """x >> bits of an int32, zeros coming in."""
    unsigned = writer.op("Cast", x, to=12)
    return writer.op(
        "Cast", writer.op("BitShift", unsigned, writer.constant(np.array(bits, np.uint32)), direction="RIGHT"), to=6
    )
