"""Rows of the functions that decode compressed weights: where no product absorbs one, a kernel writes the weight, in
each run."""

from __future__ import annotations

import math

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import FLOAT32, INT32, UINT8, Shape, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Strided, kernel, op
from ort_gpu_ep.kernels.target import Target
from ort_gpu_ep.weights.formats import VALUES
from ort_gpu_ep.weights.functions import CODEBOOK, DOMAIN, SPARSE

WORKGROUP_SIZE = 64
TAKEN = {"T": (UINT8, FLOAT32, INT32)}
DAMAGE = "damage"
"""The attribute that says what is wrong with a decoder's constants (partitioner/damage.py)."""

record("unpack_codebook.wgsl", "gather")
record(
    "unpack_sparse.wgsl",
    "gather",
    loop_bound=lambda k: 2 * ceil_div(k["K"], k.workgroup_size) + 2 * ceil_div(k["K"], k.workgroup_size) + 8,
    data_indices=True,
)


def decoded_shape(stored: Shape, perm: Shape) -> Shape:
    """The shape of a weight whose stored axes are permuted. Raises UnsupportedNodeError for what is no permutation."""
    if sorted(perm) != list(range(len(stored))):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"a packed weight stored as {list(stored)} with perm {list(perm)}")
    return tuple(stored[axis] for axis in perm)


def check_codebook(node: BoundNode, codes: int, table: int, bits: int, count: int) -> None:
    """Raises UnsupportedNodeError, where the codes are not as formats.py has them. codes, table: inputs."""
    if (
        node.input(codes).shape != (ceil_div(count, 8), bits)
        or node.input(codes).dtype is not UINT8
        or not (node.input(table).rank == 1 and 0 < node.input(table).size <= 1 << bits)
    ):
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op}: codes {node.input(codes).type} and values {node.input(table).type} for {count} elements of "
            f"{bits} bits",
        )


def check_sparse(node: BoundNode, entries: int, starts: int, table: int, stored: Shape) -> None:
    """Likewise of sparse entries."""
    fits = (
        len(stored) == 2
        and node.input(starts).type == TensorType(INT32, (stored[0] + 1,))
        and node.input(table).shape == (VALUES,)
    )
    if not fits or node.input(entries).dtype is not UINT8 or node.input(entries).rank != 1:
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op}: entries {node.input(entries).type}, starts {node.input(starts).type}, "
            f"values {node.input(table).type} for rows {list(stored)}",
        )


def _check_damage(node: BoundNode) -> None:
    if problem := node.node.attributes.get(DAMAGE):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op}: the weight is damaged: {problem}")


def codebook(node: BoundNode) -> Kernel:
    """weight = the values that codes choose from a codebook, eight codes in as many bytes as a code has bits; axes
    permuted by `perm`."""
    _check_damage(node)
    stored, bits = tuple(node.attr("shape")), CODEBOOK[node.op]
    out, count = decoded_shape(stored, tuple(node.attr("perm"))), math.prod(stored)
    check_codebook(node, 0, 1, bits, count)
    strides = [math.prod(stored[axis + 1 :]) for axis in range(len(stored))]
    index = Strided(out, tuple(strides[axis] for axis in node.attr("perm")))
    return kernel(
        "unpack_codebook.wgsl",
        [TensorType(FLOAT32, out)],
        consts={"BITS": bits, "TABLE_SIZE": node.input(1).size},
        indices={"code_index": index},
    )


for _name in CODEBOOK:
    op(_name, domain=DOMAIN, dtypes=TAKEN, bindings="w table -> y", epilogue=True)(codebook)


@op(SPARSE, domain=DOMAIN, dtypes=TAKEN, bindings="entries starts table -> y")
def sparse(node: BoundNode) -> Kernel:
    """weight = few values among zeros: an entry has the distance to the one before it and which of 16 values it is."""
    _check_damage(node)
    stored, perm = tuple(node.attr("shape")), tuple(node.attr("perm"))
    out, rows = decoded_shape(stored, perm), (stored[0], math.prod(stored[1:]))
    check_sparse(node, 0, 1, 2, rows)
    if perm not in ((1, 0), tuple(range(len(stored)))):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} of {list(stored)} permuted by {list(perm)}")
    strides = (1, rows[0]) if perm == (1, 0) else (rows[1], 1)
    return kernel(
        "unpack_sparse.wgsl",
        [TensorType(FLOAT32, out)],
        consts={"K": rows[1], "ENTRIES": node.input(0).size, "OUT_ROW": strides[0], "OUT_K": strides[1]},
        groups=rows[0],
        workgroup_size=WORKGROUP_SIZE,
        workgroup_nbytes=4 * WORKGROUP_SIZE,
    )


def unpack_sparse_ns(target: Target, size: int) -> float:
    """Of writing out the zeros and values of a weight of so many elements: a dispatch, and its bytes."""
    by = target.figures
    return float(by.dispatch_ns + 4 * size * by.byte_ns)
