"""Concat and Split: tensors seen as rows of the elements from the axis on, several of them in one dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import at_most, counts_of, same
from ort_gpu_ep.ir.types import ANY, FLOAT32, DType, TensorType
from ort_gpu_ep.kernels.problems import Known, integers, normal, problem
from ort_gpu_ep.kernels.records import KernelCall, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Operand, Strided, kernel, op, part_count
from ort_gpu_ep.ops.axes import around, axis_of, ints_of, replaced, strides_of
from ort_gpu_ep.ops.channels_last import along_axis
from ort_gpu_ep.ops.movement import moves_bits, reading
from ort_gpu_ep.ops.quantize import limits_of

WORKGROUP_SIZE = 128

MOST = 15
"""Tensors that one dispatch joins or splits, where the adapter binds as many: each element looks for its own among
them."""

IN_PLACE = "in_place"
"""Attribute of a Concat whose inputs have been written where they belong (partitioner/parts.py)."""

FOR_STEPS = 2
"""Bindings left for operands of fused steps."""


def _moved(names: str | tuple[str, ...]) -> Callable[[KernelCall], int]:
    """Bytes of the parts, read and written."""
    return lambda k: 2 * k.nbytes(*(name for name in k.tensors if name.startswith(names)))


record(
    "concat.wgsl",
    "movement",
    nbytes=_moved("x"),
    problems=[
        problem("Concat", 13, *(normal(n, 7) for n in range(3, 8)), axis=0),
        problem("Concat", 13, *(normal(7, n) for n in range(3, 8)), axis=1),
        problem("Concat", 13, *(normal(7, 4 * n) for n in range(3, 6)), axis=1),
        problem("Concat", 13, *(integers(0, 200, 7, n, dtype="uint8") for n in (4, 12, 8)), axis=1),
        problem("Concat", 13, *(integers(0, 200, 7, n, dtype="uint8") for n in (16, 48, 32)), axis=1),
    ],
)
record(
    "concat_packed.wgsl",
    "movement",
    nbytes=_moved(("x", "s", "z")),
    problems=[problem("Concat", 13, *(integers(0, 200, 7, n, dtype="uint8") for n in (3, 4, 6)), axis=1)],
)
record(
    "split.wgsl",
    "movement",
    nbytes=_moved("y"),
    problems=[
        problem("Split", 13, normal(7, 18), Known((3, 4, 5, 6)), outputs=4, axis=1),
        problem("Split", 13, normal(7, 24), Known((8, 16)), outputs=2, axis=1),
        problem("Split", 13, integers(0, 200, 7, 24, dtype="uint8"), Known((8, 16)), outputs=2, axis=1),
        problem("Split", 13, integers(0, 200, 7, 48, dtype="uint8"), Known((16, 32)), outputs=2, axis=1),
    ],
)


@dataclass(frozen=True, slots=True)
class _Part:
    """An input of a Concat, or an output of a Split. source: its position, or a temporary. size: along the axis."""

    source: int | str
    size: int


@op("Concat", dtypes={"T": ANY}, bindings="x... -> y", epilogue=True, channels_last=along_axis)
def concat(node: BoundNode) -> Lowering:
    """y = the inputs one after another along `axis`.

    One kernel for as many inputs as the adapter binds at once, each kernel writing its places in y; where elements are
    packed into words and two parts share one, or steps are fused, into a whole of its own.
    """
    operands = node.given()
    out = joined_type(node, operands, operands[0].dtype)
    axis = axis_of(node, int(node.attr("axis")), out.rank)
    if node.attr(IN_PLACE):
        return Lowering((out,))
    parts = [_Part(i, o.shape[axis]) for i, o in enumerate(operands) if o.size]
    if len(parts) < 2 and not node.has_steps:
        return Lowering((out,), views=((0, int(parts[0].source) if parts else 0),))
    packed = _per_word(out.dtype) > 1
    if packed and len(parts) > 1 and not (moves_bits(node) and _in_words(out, axis, parts)):
        return _joined(node, out, axis, parts)
    types = [node.input(int(part.source)).type for part in parts]
    kernels = []
    for first, last in _batches(node, out, types):
        consts, groups = _rows(out, axis, parts, first, last)
        vectors = [*(f"x{k}" for k in range(last - first)), "y"] if consts["VECTORS"] else []
        reads = {f"x{k}": part.source for k, part in enumerate(parts[first:last])}
        kernels.append(
            kernel(
                "concat.wgsl",
                [out],
                consts={**consts, "OUT_ROW": consts.pop("WHOLE_ROW")},
                groups=groups,
                workgroup_size=WORKGROUP_SIZE,
                vectors=vectors,
                words=["y"] if packed else [],
                raw=moves_bits(node) and (packed or not vectors),
                reads=reads,
                writes={"y": 0},
            )
        )
    return Lowering((out,), tuple(kernels))


def joined_type(node: BoundNode, given: Sequence[Operand], dtype: DType) -> TensorType:
    """What a node's operands make along its `axis`. Raises UnsupportedNodeError where they differ in another one."""
    axis = axis_of(node, int(node.attr("axis")), given[0].rank)
    rest = replaced(given[0].shape, axis, 0)
    if any(o.rank != given[0].rank or replaced(o.shape, axis, 0) != rest for o in given):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} along axis {axis} of {', '.join(str(o.type) for o in given)}"
        )
    return TensorType(dtype, replaced(given[0].shape, axis, sum(o.shape[axis] for o in given)))


def _batches(node: BoundNode, whole: TensorType, parts: Sequence[TensorType]) -> Iterator[tuple[int, int]]:
    """From which to which part a dispatch goes: as many as there are bindings for."""
    limits = node.target.limits
    free = (
        limits.max_buffers_per_stage
        - part_count(whole, limits.max_binding_nbytes)
        - (FOR_STEPS if node.has_steps else 0)
    )
    first, taken = 0, 0
    for k, tensor in enumerate(parts):
        count = part_count(tensor, limits.max_binding_nbytes)
        if k > first and (taken + count > free or k - first == MOST):
            yield first, k
            first, taken = k, 0
        taken += count
    yield first, len(parts)


def _per_word(dtype: DType) -> int:
    """Elements in 32 bits: more than one are packed, where their bits are moved."""
    return max(1, 4 // dtype.nbytes)


def _in_words(whole: TensorType, axis: int, parts: Sequence[_Part]) -> bool:
    """Whether no two parts share a word."""
    _, _, inner = around(whole.shape, axis)
    return all(same(part.size * inner % _per_word(whole.dtype), 0) for part in parts)


def _rows(whole: TensorType, axis: int, parts: Sequence[_Part], first: int, last: int) -> tuple[dict[str, Const], int]:
    """Constants of concat.wgsl and split.wgsl for parts `first` to `last`, and workgroups. Packed elements are counted
    by words, and where all positions allow it words, or floats, by four."""
    outer, size, inner = around(whole.shape, axis)
    sizes = [part.size * inner for part in parts]
    before, row, whole_row = sum(sizes[:first]), sum(sizes[first:last]), size * inner
    unit = _per_word(whole.dtype)
    fours = (whole.dtype is FLOAT32 or unit > 1) and all(
        same(n % (4 * unit), 0) for n in (before, whole_row, *sizes[first:last])
    )
    unit *= 4 if fours else 1
    total = outer * row // unit
    consts: dict[str, Const] = {
        "VECTORS": fours,
        "COUNT": last - first,
        "TOTAL": total,
        "ROW": row // unit,
        "WHOLE_ROW": whole_row // unit,
        "START": before // unit,
    }
    end = 0
    for k, n in enumerate(sizes[first:last]):
        end += n
        consts |= {f"SIZE{k}": n // unit, f"END{k}": end // unit}
    return consts, -(-total // WORKGROUP_SIZE)


def _joined(node: BoundNode, out: TensorType, axis: int, parts: list[_Part]) -> Lowering:
    """As many neighbours as the adapter binds are joined, then what they made, until one is left."""
    kernels, temps = list[Kernel](), list[tuple[str, TensorType]]()
    most = max(2, min(MOST, node.target.limits.max_buffers_per_stage - 1 - (FOR_STEPS if node.has_steps else 0)))
    while len(parts) > 1:
        joined = []
        for first in range(0, len(parts), most):
            its = parts[first : first + most]
            if len(its) == 1:
                joined += its
                continue
            whole = _Part(0 if len(parts) <= most else f"joined{len(temps)}", sum(part.size for part in its))
            tensor = TensorType(out.dtype, replaced(out.shape, axis, whole.size))
            reads = {f"x{k}": part.source for k, part in enumerate(its)}
            lowering = packed_concat(tensor, axis, [part.size for part in its], reads, whole.source)
            kernels.append(replace(lowering, raw=moves_bits(node)))
            temps += [] if whole.source == 0 else [(str(whole.source), tensor)]
            joined.append(whole)
        parts = joined
    return Lowering((out,), tuple(kernels), tuple(temps))


def packed_concat(
    out: TensorType, axis: int, sizes: Sequence[int], reads: Mapping[str, int | str], target: int | str
) -> Kernel:
    """A kernel that joins tensors of packed elements, these sizes along the axis. reads: of x0, x1, ...; of bytes that
    are brought to another scale s0, z0, y_scale and so on, too.
    """
    _, size, inner = around(out.shape, axis)
    low, high = limits_of(out.dtype)
    consts: dict[str, Const] = {"COUNT": len(sizes), "ROW": size * inner, "LOW": low, "HIGH": high}
    end = 0
    for k, n in enumerate(sizes):
        end += n * inner
        consts |= {f"SIZE{k}": n * inner, f"END{k}": end}
    scales = [f"{name}{k}" for k in range(len(sizes)) for name in "sz"]
    return replace(
        kernel("concat_packed.wgsl", [out], consts=consts, reads=reads, writes={"y": target}),
        optionals=tuple((name, name in reads) for name in (*scales, "y_scale", "y_zp")),
    )


@op("Split", since=2, dtypes={"T": ANY}, bindings="x _split? -> y", channels_last=along_axis)
def split(node: BoundNode) -> Lowering:
    """y_k = the k-th part of x along `axis`: a kernel for as many parts as the adapter binds at once; for each where
    they share words."""
    x = node.input(0)
    axis = axis_of(node, int(node.attr("axis")), x.rank)
    sizes = _sizes(node, x.shape[axis])
    equal = () if same(sum(sizes), x.shape[axis]) else ((x.shape[axis], sum(sizes)),)
    whole = TensorType(x.dtype, replaced(x.shape, axis, sum(sizes)))
    outputs = tuple(TensorType(x.dtype, replaced(x.shape, axis, size)) for size in sizes)
    parts, packed = [_Part(k, size) for k, size in enumerate(sizes)], _per_word(x.dtype) > 1
    is_whole = all(node.wants(k) for k in range(len(sizes))) and all(t.size != 0 for t in outputs)
    if not is_whole or not _in_words(whole, axis, parts):
        return Lowering(outputs, tuple(_each(node, outputs, axis)), equal=equal)
    kernels = []
    for first, last in _batches(node, whole, outputs):
        consts, groups = _rows(whole, axis, parts, first, last)
        names = [f"y{k}" for k in range(last - first)]
        vectors = ["x", *names] if consts["VECTORS"] else []
        kernels.append(
            kernel(
                "split.wgsl",
                outputs[first:last],
                consts={**consts, "IN_ROW": consts.pop("WHOLE_ROW")},
                groups=groups,
                workgroup_size=WORKGROUP_SIZE,
                raw=packed or not vectors,
                vectors=vectors,
                words=names if packed else (),
                reads={"x": 0},
                writes={name: first + k for k, name in enumerate(names)},
            )
        )
    return Lowering(outputs, tuple(kernels), equal=equal)


def _each(node: BoundNode, outputs: Sequence[TensorType], axis: int) -> Iterator[Kernel]:
    """A kernel for each part that is wanted."""
    strides, start = strides_of(node.input(0).shape), 0
    for k, out in enumerate(outputs):
        if node.wants(k):
            yield reading(node, out, Strided(out.shape, strides, start * strides[axis]), k)
        start += out.shape[axis]


def _sizes(node: BoundNode, size: int) -> tuple[int, ...]:
    """The sizes of the parts: as given, else equal ones (the last may be smaller where the op says `num_outputs`)."""
    sizes, count = ints_of(node, "split", 1), len(node.node.outputs)
    if sizes is None:
        chunk = -(-size // count)
        sizes = tuple(max(0, min(chunk, size - k * chunk)) for k in range(count))
        if node.attr("num_outputs") not in (None, count):
            raise UnsupportedNodeError(
                Code.ATTRIBUTE, f"Split with {count} outputs and num_outputs {node.attr('num_outputs')}"
            )
        if node.attr("num_outputs") is not None and count > size:
            raise UnsupportedNodeError(Code.ATTRIBUTE, f"Split of {size} into {count} parts, more than there are")
        if node.attr("num_outputs") is None and any(s != sizes[0] for s in sizes):
            raise UnsupportedNodeError(Code.ATTRIBUTE, f"Split of {size} into {count} equal parts")
    is_whole = sum(sizes) <= at_most(size) if counts_of(size) and not counts_of(*sizes) else sum(sizes) == size
    if len(sizes) != count or not is_whole or any(s < 0 for s in sizes):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Split of {size} into {sizes} for {count} outputs")
    return sizes
