"""Outputs whose size the data decide: NonZero, Compress, Unique, NonMaxSuppression. What is chosen is numbered by a
scan over chunks of flags, the number of it is read when the run is over, and only so much of the output is handed
out."""

from __future__ import annotations

from collections.abc import Mapping

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Step
from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.ir.types import ANY, BOOL, FLOAT32, FLOAT64, FLOATS, INT8, INT32, INT64, UINT8, UINT32, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Counted, Kernel, Lowering, Operand, kernel, op
from ort_gpu_ep.ops.axes import around, axis_of, replaced, strides_of
from ort_gpu_ep.ops.cast import converted
from ort_gpu_ep.ops.elementwise import COMPUTABLE

CHUNK, WORKGROUP_SIZE = 1024, 256
MAX_UNIQUE = 1 << 14
"""Slices that Unique compares each with each."""

MANY = 1 << 12
"""Boxes kept of a class, beyond which an open number of boxes is asked whether it is smaller: exporters write 2**63 - 1
for all of them."""

COUNT = "count"
_CHUNK_STEPS = CHUNK // WORKGROUP_SIZE + WORKGROUP_SIZE.bit_length()
ONE = TensorType(UINT32, (1,))

record("chunk_counts.wgsl", "reduction", loop_bound=lambda k: _CHUNK_STEPS)
record(
    "chunk_starts.wgsl",
    "reduction",
    loop_bound=lambda k: ceil_div(k["CHUNKS"], WORKGROUP_SIZE) * (1 + WORKGROUP_SIZE.bit_length()),
)
record("chunk_places.wgsl", "reduction", loop_bound=lambda k: 2 * _CHUNK_STEPS)
record("coordinates.wgsl", "movement")
record("sizes.wgsl", "elementwise", loop_bound=lambda k: k["STEPS"])
record("chosen_slices.wgsl", "gather")
record("unique_first.wgsl", "direct", loop_bound=lambda k: k["N"] * k["OUTER"] * k["INNER"])
record("unique_flags.wgsl", "elementwise")
record("unique_order.wgsl", "direct", loop_bound=lambda k: k["N"] * k["OUTER"] * k["INNER"])
record("unique_indices.wgsl", "direct", loop_bound=lambda k: k["N"])


def chosen_of(flags: int | str, n: int) -> tuple[list[Kernel], list[tuple[str, TensorType]]]:
    """Kernels that leave in "chosen" the places of true flags, in order, and in COUNT their number. flags: bool [n]."""
    chunks = ceil_div(n, CHUNK)
    counts, chosen = TensorType(UINT32, (chunks,)), TensorType(UINT32, (n,))

    def of_chunks(shader: str, out: TensorType, reads: Mapping[str, int | str], written: str) -> Kernel:
        return kernel(
            shader,
            [out],
            consts={"N": n},
            groups=chunks,
            workgroup_size=WORKGROUP_SIZE,
            workgroup_nbytes=4 * WORKGROUP_SIZE,
            reads=reads,
            writes={written: written},
        )

    kernels = [
        of_chunks("chunk_counts.wgsl", counts, {"flags": flags}, "counts"),
        starts_of("counts", chunks),
        of_chunks("chunk_places.wgsl", chosen, {"flags": flags, "starts": "starts"}, "chosen"),
    ]
    return kernels, [("counts", counts), ("starts", counts), (COUNT, ONE), ("chosen", chosen)]


def starts_of(counts: str, chunks: int) -> Kernel:
    """In "starts" the sum of the counts before each, in COUNT that of all. One workgroup."""
    return kernel(
        "chunk_starts.wgsl",
        [TensorType(UINT32, (chunks,)), ONE],
        consts={"CHUNKS": chunks},
        groups=1,
        workgroup_size=WORKGROUP_SIZE,
        workgroup_nbytes=4 * WORKGROUP_SIZE,
        reads={"counts": counts},
        writes={"starts": "starts", "count": COUNT},
    )


@op("NonZero", since=9, dtypes={"T": COMPUTABLE}, bindings="x -> y", counted=(0,))
def non_zero(node: BoundNode) -> Lowering:
    """y = the coordinates of all elements but zeros, in order. x: any shape; y: [rank, as many as there are]."""
    x = node.input(0)
    if not x.rank:
        raise UnsupportedNodeError(Code.RANK, "NonZero of a scalar; taken: 1 axis and more")
    n, flags = x.size, TensorType(BOOL, x.shape)
    step = Step("Cast", converted(x.dtype, BOOL), ("e0",), BOOL)
    test = (
        []
        if x.dtype is BOOL
        else [kernel("elementwise.wgsl", [flags], reads={"e0": 0}, writes={"y": "flags"}, epilogue=[step])]
    )
    kernels, temps = chosen_of("flags" if test else 0, n)
    out = TensorType(INT64, (x.rank, n))
    consts: dict[str, Const] = {"RANK": x.rank, "N": n}
    for a, (size, stride) in enumerate(zip(x.shape, strides_of(x.shape), strict=True)):
        consts |= {f"SIZE{a}": size, f"STEP{a}": stride}
    last = kernel(
        "coordinates.wgsl", [out], consts=consts, raw=True, reads={"chosen": "chosen", "count": COUNT}, writes={"y": 0}
    )
    return Lowering(
        (out,),
        (*test, *kernels, last),
        (*temps, *((("flags", flags),) if test else ())),
        kept=(COUNT,),
        counted=(Counted(0, 1, COUNT),),
    )


def _slices(source: int, order: str, out: TensorType, shape: tuple[int, int, int]) -> Kernel:
    """y = the slices of x along an axis that `order` names, as many as COUNT says. shape: of x, around the axis."""
    outer, n, inner = shape
    return kernel(
        "chosen_slices.wgsl",
        [out],
        consts={"OUTER": outer, "N": n, "INNER": inner},
        raw=True,
        reads={"x": source, "chosen": order, "count": COUNT},
        writes={"y": 0},
    )


@op("Compress", since=9, dtypes={"T": ANY, "T1": (BOOL,)}, bindings="x condition -> y", counted=(0,))
def compress(node: BoundNode) -> Lowering:
    """y = the slices of x along `axis` (without one: its elements in order) for which the condition holds; it may be
    shorter than x."""
    x, condition, number = node.input(0), node.input(1), node.attr("axis")
    if condition.rank != 1:
        raise UnsupportedNodeError(Code.RANK, f"Compress with a condition {condition.type}; taken: one dimension")
    axis = None if number is None else axis_of(node, int(number), x.rank)
    shape = (1, x.size, 1) if axis is None else around(x.shape, axis)
    if condition.size > shape[1]:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"Compress of {x.type} with a condition of {condition.size}, more than there are"
        )
    n = condition.size
    out = TensorType(x.dtype, (n,) if axis is None else replaced(x.shape, axis, n))
    kernels, temps = chosen_of(1, n)
    return Lowering(
        (out,),
        (*kernels, _slices(0, "chosen", out, shape)),
        tuple(temps),
        kept=(COUNT,),
        counted=(Counted(0, axis or 0, COUNT),),
    )


@op(
    "Unique",
    since=11,
    dtypes={"T": (*FLOATS, FLOAT64, INT8, UINT8, INT32, INT64)},
    bindings="x -> y indices inverse counts",
    counted=(0, 1, 3),
)
def unique(node: BoundNode) -> Lowering:
    """y = the different slices of x along `axis` (without one: its elements), sorted or as they come first; where,
    which, how many.

    x: any shape; indices: of each, the first; inverse: of each slice of x, which one of y; counts: of each, how many
    there are.
    """
    x, number, shape = node.input(0), node.attr("axis"), (1, node.input(0).size, 1)
    axis = None if number is None else axis_of(node, int(number), x.rank)
    if axis is not None:
        shape = around(x.shape, axis)
    outer, n, inner = shape
    if n > MAX_UNIQUE:
        raise UnsupportedNodeError(
            Code.LIMIT, f"Unique of {n} slices of {x.type}; taken: up to {MAX_UNIQUE}, each compared with each"
        )
    consts: dict[str, Const] = {"OUTER": outer, "N": n, "INNER": inner, "FLOAT": x.dtype in (*FLOATS, FLOAT64)}
    words, flags = TensorType(UINT32, (n,)), TensorType(BOOL, (n,))
    kernels, temps = chosen_of("flags", n)
    kernels = [
        kernel("unique_first.wgsl", [words], consts=consts, reads={"x": 0}, writes={"first": "first"}),
        kernel("unique_flags.wgsl", [flags], reads={"first": "first"}, writes={"flags": "flags"}),
        *kernels,
        kernel(
            "unique_order.wgsl",
            [words, words],
            consts={**consts, "SORTED": bool(node.attr("sorted"))},
            groups=ceil_div(n, WORKGROUP_SIZE),
            workgroup_size=WORKGROUP_SIZE,
            reads={"x": 0, "chosen": "chosen", "count": COUNT},
            writes={"order": "order", "rank": "rank"},
        ),
    ]
    out = TensorType(x.dtype, (n,) if axis is None else x.shape)
    numbers = TensorType(INT64, (n,))
    if node.wants(0):
        kernels.append(_slices(0, "order", out, shape))
    for kind in (k for k in (1, 2, 3) if node.wants(k)):
        reads = {"order": "order", "first": "first", "rank": "rank"}
        kernels.append(
            kernel(
                "unique_indices.wgsl",
                [numbers],
                consts={"KIND": kind, "N": n},
                raw=True,
                reads=reads,
                writes={"y": kind},
            )
        )
    types = tuple((out if k == 0 else numbers) if node.wants(k) else None for k in range(len(node.node.outputs)))
    room = (*temps, ("first", words), ("flags", flags), ("order", words), ("rank", words))
    counted = tuple(Counted(k, (axis or 0) if k == 0 else 0, COUNT) for k in (0, 1, 3) if node.wants(k))
    return Lowering(types, tuple(kernels), room, kept=(COUNT,), counted=counted)


record(
    "suppress.wgsl",
    "sorting",
    steps=lambda k: k["MOST"],
    loop_bound=lambda k: (k["MOST"] + 1) * (2 * ceil_div(k["BOXES"], WORKGROUP_SIZE) + WORKGROUP_SIZE.bit_length()),
)
record("suppressed_rows.wgsl", "movement")


@op("NonMaxSuppression", since=10, dtypes={}, bindings="boxes scores _most? _iou? _score? -> y", counted=(0,))
def non_max_suppression(node: BoundNode) -> Lowering:
    """y = (batch, class, box) of the boxes that are kept: of each class the highest score first, without those that
    overlap one before.

    boxes: [B, S, 4]; scores: [B, C, S]; y: [as many as there are, 3].
    """
    boxes, scores = node.input(0), node.input(1)
    if (
        boxes.rank != 3
        or scores.rank != 3
        or boxes.shape[2] != 4
        or (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2])
    ):
        raise UnsupportedNodeError(
            Code.RANK, f"NonMaxSuppression of {boxes.type} with {scores.type}; taken: [B, S, 4] and [B, C, S]"
        )
    batches, classes, size = scores.shape
    most = max(_filled(node, 2).ints()[0], 0) if node.has(2) else 0
    if (most > MANY or not is_symbolic(size)) and size < most:
        most = size
    lines = batches * classes
    out = TensorType(INT64, (lines * most, 3))
    if most == 0:
        return Lowering((out,), (), ())
    threshold, limit = _number(node, 3), _number(node, 4)
    if threshold is not None and not 0.0 <= threshold <= 1.0:  # onnxruntime's kernel raises for it
        raise UnsupportedNodeError(Code.LIMIT, f"NonMaxSuppression with iou_threshold {threshold}; taken: 0 to 1")
    consts: dict[str, Const] = {
        "BOXES": size,
        "CLASSES": classes,
        "MOST": most,
        "CENTERED": bool(node.attr("center_point_box")),
        "IOU": threshold or 0.0,
        "LIMITED": limit is not None,
        "LIMIT": limit or 0.0,
    }
    kept, left, words = (
        TensorType(UINT32, (lines, most)),
        TensorType(UINT32, (lines, size)),
        TensorType(UINT32, (lines,)),
    )
    kernels = (
        kernel(
            "suppress.wgsl",
            [words, kept, left],
            consts=consts,
            groups=lines,
            workgroup_size=WORKGROUP_SIZE,
            workgroup_nbytes=8 * WORKGROUP_SIZE + 16,
            reads={"boxes": 0, "scores": 1},
            writes={"numbers": "numbers", "kept": "kept", "left": "left"},
        ),
        starts_of("numbers", lines),
        kernel(
            "suppressed_rows.wgsl",
            [out],
            consts={"LINES": lines, "CLASSES": classes, "MOST": most},
            groups=ceil_div(lines * most, WORKGROUP_SIZE),
            workgroup_size=WORKGROUP_SIZE,
            raw=True,
            reads={"numbers": "numbers", "starts": "starts", "kept": "kept"},
            writes={"y": 0},
        ),
    )
    temps = (("numbers", words), ("starts", words), (COUNT, ONE), ("kept", kept), ("left", left))
    return Lowering((out,), kernels, temps, kept=(COUNT,), counted=(Counted(0, 0, COUNT),))


def _number(node: BoundNode, index: int) -> float | None:
    """What a threshold is; None where it is left out."""
    return float(_filled(node, index).require().reshape(-1)[0]) if node.has(index) else None


def _filled(node: BoundNode, index: int) -> Operand:
    """An input of which ONNX Runtime reads the first element, however many it has."""
    operand = node.input(index)
    if operand.size < 1 or operand.dtype is not (INT64 if index == 2 else FLOAT32):
        raise UnsupportedNodeError(
            Code.RANK, f"NonMaxSuppression with {operand.name!r} {operand.type}; taken: a number, or several"
        )
    return operand
