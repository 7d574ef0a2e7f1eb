"""Ops that surround, crop or mask a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import same
from ort_gpu_ep.ir.types import ANY, DType, TensorType
from ort_gpu_ep.kernels.problems import Known, normal, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, ChannelsLast, Kernel, View, kernel, op
from ort_gpu_ep.ops.axes import axes_of, ints_of, number_of
from ort_gpu_ep.ops.channels_last import ints, permuted, stored
from ort_gpu_ep.ops.movement import moves_bits

MAX_RANK = 8
"""Lengths of the tables in pad.wgsl; neighbouring dimensions without padding count as one."""

_MODES = {"constant": 0, "reflect": 1, "edge": 2, "wrap": 3}

record(
    "pad.wgsl",
    "movement",
    loop_bound=lambda k: k["RANK"],
    nbytes=lambda k: 2 * k.nbytes("y"),
    problems=[
        problem("Pad", 13, normal(5, 7, 9), Known((1, 2, 0, 0, 3, 1)), mode=mode)
        for mode in ("constant", "reflect", "edge")
    ],
)
record("trilu.wgsl", "movement", problems=[problem("Trilu", 14, normal(3, 9, 11), upper=0)])


def _pad_layout(node: BoundNode) -> ChannelsLast | None:
    if node.has(3):
        return ChannelsLast((0,), constants={3: ints(stored(axis) for axis in node.input(3).ints())})
    pads = ints_of(node, "pads", 1) or ()
    places = (*permuted(pads[:4]), *permuted(pads[4:]))
    return (
        ChannelsLast((0,), attributes={"pads": places})
        if node.version < 11
        else ChannelsLast((0,), constants={1: ints(places)})
    )


@op("Pad", since=2, dtypes={"T": ANY}, bindings="x _pads? value? _axes? -> y", channels_last=_pad_layout)
def pad(node: BoundNode) -> Kernel | View:
    """y[c] = x[c - begin] along each of `axes`; outside of x a constant, or x reflected, clamped or repeated.

    _pads: [begin of each axis, end of each axis]; negative ones crop. value: one element, zero where it is left out.
    """
    x, pads = node.input(0), ints_of(node, "pads", 1) or ()
    axes = axes_of(node, node.input(3).ints() if node.has(3) else range(x.rank), x.rank)
    if len(pads) != 2 * len(axes):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Pad of {x.type} along {axes} by {len(pads)} numbers")
    begins, ends = [0] * x.rank, [0] * x.rank
    for axis, begin, end in zip(axes, pads, pads[len(axes) :], strict=False):
        begins[axis], ends[axis] = begin, end
    return _padded(node, begins, ends, node.attr("mode"))


@op("CenterCropPad", since=18, dtypes={"T": ANY}, bindings="x _shape -> y")
def center_crop_pad(node: BoundNode) -> Kernel | View:
    """y = the middle of x, or x in the middle of zeros, so that `axes` get the given sizes. Odd remainders go to the
    end."""
    x, sizes, numbers = node.input(0), node.input(1).ints(), node.attr("axes")
    axes = axes_of(node, range(x.rank) if numbers is None else numbers, x.rank)
    if len(sizes) != len(axes):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"CenterCropPad of {x.type} along {axes} to {sizes}")
    begins, ends = [0] * x.rank, [0] * x.rank
    for axis, size in zip(axes, sizes, strict=True):
        missing = size - x.shape[axis]
        begins[axis] = missing // 2 if missing > 0 else -(-missing // 2)
        ends[axis] = missing - begins[axis]
    return _padded(node, begins, ends, "constant")


def _padded(node: BoundNode, begins: Sequence[int], ends: Sequence[int], mode: str) -> Kernel | View:
    x = node.input(0)
    out = TensorType(x.dtype, tuple(b + d + e for b, d, e in zip(begins, x.shape, ends, strict=True)))
    sides = list(zip(begins, x.shape, ends, strict=True))
    if mode not in _MODES or any(d < 0 for d in out.shape):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Pad of {x.type} by {begins} and {ends}, mode {mode}")
    if mode != "constant" and any(min(b, e) < 0 < max(b, e) or (d == 0 and b + e > 0) for b, d, e in sides):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"Pad in mode {mode} of {x.type} by {begins} and {ends}: crops what it should repeat"
        )
    if mode == "reflect" and any(d == 1 and max(b, e) > 0 for b, d, e in sides):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"Pad in mode reflect of {x.type} by {begins} and {ends}: an edge has no neighbour"
        )
    if not any(begins) and not any(ends):
        return View(out)
    dims = _merged(begins, x.shape, out.shape)
    if len(dims) > MAX_RANK:
        raise UnsupportedNodeError(Code.RANK, f"Pad of {len(dims)} separate dimensions; taken: {MAX_RANK}")
    bits, source = _fill(node, x.dtype) if mode == "constant" else (0, 0)
    consts = {"RANK": len(dims), "MODE": _MODES[mode], "BITS": bits, "GIVEN": source != 0}
    for k, (begin, size, wide) in enumerate(dims + [(0, 1, 1)] * (MAX_RANK - len(dims))):
        consts |= {f"BEGIN{k}": begin, f"IN{k}": size, f"OUT{k}": wide}
    return kernel("pad.wgsl", [out], consts=consts, raw=True, reads={"x": 0, "value": source})


def _merged(begins: Sequence[int], shape: Sequence[int], out: Sequence[int]) -> list[tuple[int, int, int]]:
    """(begin, size in x, size in y) of each dimension, where neighbours without padding have become one."""
    dims: list[tuple[int, int, int]] = []
    for begin, size, wide in zip(begins, shape, out, strict=True):
        if dims and same(begin, 0) and same(size, wide) and same(dims[-1][0], 0) and same(dims[-1][1], dims[-1][2]):
            dims[-1] = (0, dims[-1][1] * size, dims[-1][2] * wide)
        else:
            dims.append((begin, size, wide))
    return dims


def _fill(node: BoundNode, dtype: DType) -> tuple[int, int]:
    """The constant: its bits if the host knows them and they fit a word, else the input that the kernel reads it from
    (0: none)."""
    value = node.optional(2)
    if value is None:
        number = np.asarray(node.attr("value") or 0, dtype.numpy)  # the attribute of opset 2; no other form has it
    elif value.value is not None and dtype.nbytes <= 4:
        number = value.value
    else:
        return 0, 2
    bits = int.from_bytes(number.tobytes(), "little")
    if bits and dtype.nbytes > 4:
        raise UnsupportedNodeError(Code.DTYPE, f"Pad with attribute value {number} of {dtype}")
    return bits, 0


@op("Trilu", since=14, dtypes={"T": ANY}, bindings="x _k? -> y", epilogue=True)
def trilu(node: BoundNode) -> Kernel:
    """y = x on and above (or, without `upper`, below) diagonal k of each matrix, else zero."""
    x = node.input(0)
    if x.rank < 2:
        raise UnsupportedNodeError(Code.RANK, f"Trilu of {x.type}")
    rows, columns = x.shape[-2:]
    k = number_of(node, 1) if node.has(1) else 0
    consts = {
        "ROWS": rows,
        "COLUMNS": columns,
        "UPPER": bool(node.attr("upper")),
        "DIAGONAL": min(max(k, -rows), columns),
    }  # all or nothing is kept beyond
    return kernel("trilu.wgsl", [x.type], consts=consts, raw=moves_bits(node))
