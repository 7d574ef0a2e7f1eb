"""Encoding and decoding of compressed weights in numpy: what the functions (functions.py) and the kernels are measured
against.

Codebook: codes of 2 to 6, or 8 bits, eight of them in as many bytes as a code has bits, the first in the low bits.
Sparse: a byte for each entry along the flattened weight: the distance to the entry before it less one in the low four
bits, and in the high four bits which of 16 values it is. Value 0 is 0.0: it fills gaps of more than 16, and ends each
row. `starts` has the first entry of each row, and past the last one the number of entries.

Kernels rely on all of this. A file may say otherwise: `codebook_fault` and `sparse_fault` look at its constants.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from ort_gpu_ep.errors import InternalError

Array: TypeAlias = np.ndarray[Any, Any]

GAP = 16
"""The longest distance that one entry spans."""
VALUES = 16
"""Of a sparse weight, with the 0.0 that fills gaps."""


def pack_codes(codes: Array, bits: int) -> Array:
    """uint8 [groups of eight, bits] of codes below 2^bits."""
    groups: Array = np.pad(codes.reshape(-1).astype(np.uint64), (0, -codes.size % 8)).reshape(-1, 8)
    words = np.bitwise_or.reduce(groups << (np.arange(8, dtype=np.uint64) * np.uint64(bits)), axis=1)
    packed: Array = ((words[:, None] >> (np.arange(bits, dtype=np.uint64) * np.uint64(8))) & np.uint64(0xFF)).astype(
        np.uint8
    )
    return packed


def pack_sparse(codes: Array) -> tuple[Array, Array]:
    """(entries, starts) of a matrix of codes below VALUES, 0 where there is nothing. Raises InternalError for
    others."""
    if codes.ndim != 2 or (codes.size and int(codes.max()) >= VALUES):
        raise InternalError(f"sparse codes of shape {codes.shape}; expected a matrix of codes below {VALUES}")
    there = codes != 0
    there[:, -1:] = True  # each row ends with an entry, so that the next begins at a known place
    places = np.flatnonzero(there)
    gaps = np.diff(places, prepend=-1)
    fillers = (gaps - 1) // GAP
    at = np.cumsum(fillers) + np.arange(len(places))  # of each entry, among the fillers
    total = int(at[-1]) + 1 if len(at) else 0
    distance, value = np.full(total, GAP, np.int64), np.zeros(total, np.int64)
    distance[at] = gaps - GAP * fillers
    value[at] = codes.reshape(-1)[places]
    ends = np.cumsum(distance) - 1  # flat places of all entries
    starts = np.searchsorted(ends, np.arange(codes.shape[0] + 1, dtype=np.int64) * codes.shape[1]).astype(np.int32)
    return (distance - 1 | value << 4).astype(np.uint8), starts


def unpack_sparse(entries: Array, shape: tuple[int, int]) -> Array:
    """The matrix of codes. Raises InternalError for entries that run past it."""
    places = np.cumsum((entries & 15).astype(np.int64) + 1) - 1
    codes = np.zeros(shape[0] * shape[1], np.int64)
    if len(places) and places[-1] >= codes.size:
        raise InternalError(f"sparse entries reach place {places[-1]} of a weight of {codes.size} elements")
    codes[places] = entries >> 4
    return codes.reshape(shape)


CODES_AT_A_TIME = 1 << 20
"""Groups of eight codes that are looked at together, to bound the memory that this takes."""


def codebook_fault(codes: Array, codebook: Array, shape: tuple[int, ...], size: tuple[int, ...]) -> str:
    """What is wrong with a codebook weight of that shape, as a sentence; empty if nothing is. codes: uint8 [groups of
    eight, bits]."""
    count, bits, values = math.prod(shape), codes.shape[-1], codebook.size
    if size != (count,) or codes.shape != (-(-count // 8), bits):
        return f"size {list(size)} and codes {list(codes.shape)} for a weight of {count} elements"
    if values >= 1 << bits:
        return ""
    for first in range(0, len(codes), CODES_AT_A_TIME):
        words = np.zeros(len(part := codes[first : first + CODES_AT_A_TIME]), np.uint64)
        for k in range(bits):
            words |= part[:, k].astype(np.uint64) << np.uint64(8 * k)
        for k in range(8):
            places = (words >> np.uint64(bits * k)) & np.uint64((1 << bits) - 1)
            places = places[: max(0, -(-(count - 8 * first - k) // 8))]  # codes past the last element choose nothing
            if places.size and int(places.max()) >= values:
                return f"code {int(places.max())} in a codebook of {values} values"
    return ""


def sparse_fault(entries: Array, starts: Array, codebook: Array, shape: tuple[int, ...], size: tuple[int, ...]) -> str:
    """What is wrong with a sparse weight of that shape, as a sentence; empty if nothing is."""
    rows, width = shape[0], math.prod(shape[1:])
    if size != (rows * width,) or starts.shape != (rows + 1,) or codebook.shape != (VALUES,):
        return (
            f"size {list(size)}, starts {list(starts.shape)} and values {list(codebook.shape)} for a weight "
            f"{list(shape)}"
        )
    if codebook[0] != 0:
        return f"its first value is {codebook[0]}, and fills gaps between entries: it must be 0"
    if not rows * width:
        return "" if not entries.size and not starts.any() else f"{entries.size} entries for a weight without elements"
    if starts[0] != 0 or starts[-1] != entries.size or (np.diff(starts.astype(np.int64)) <= 0).any():
        return f"starts of rows do not lead from 0 to its {entries.size} entries, with one or more in each row"
    widths = np.add.reduceat(entries & np.uint8(GAP - 1), starts[:-1], dtype=np.int64) + np.diff(starts)
    wrong = np.flatnonzero(widths != width)
    return f"the entries of row {wrong[0]} span {widths[wrong[0]]} of its {width} elements" if wrong.size else ""
