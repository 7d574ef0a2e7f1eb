"""NonMaxSuppression: of boxes that overlap, the one with the highest score."""

from __future__ import annotations

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.ir.types import FLOAT32, INT64, UINT32, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Counted, Lowering, kernel, op
from ort_gpu_ep.ops.axes import number_of
from ort_gpu_ep.ops.selection import COUNT, ONE, WORKGROUP_SIZE, starts_of

record(
    "suppress.wgsl", "sorting", steps=lambda k: k["MOST"],
    loop_bound=lambda k: (k["MOST"] + 1) * (2 * ceil_div(k["BOXES"], WORKGROUP_SIZE) + WORKGROUP_SIZE.bit_length()))
record("suppressed_rows.wgsl", "movement")


@op("NonMaxSuppression", since=10, dtypes={}, bindings="boxes scores _most? _iou? _score? -> y", counted=(0,))
def non_max_suppression(node: BoundNode) -> Lowering:
    """y = (batch, class, box) of the boxes that are kept: of each class the highest score first, without those that overlap one before.

    boxes: [B, S, 4]; scores: [B, C, S]; y: [as many as there are, 3].
    """
    boxes, scores = node.input(0), node.input(1)
    if boxes.rank != 3 or scores.rank != 3 or boxes.shape[2] != 4 or (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
        raise UnsupportedNodeError(Code.RANK, f"NonMaxSuppression of {boxes.type} with {scores.type}; taken: [B, S, 4] and [B, C, S]")
    batches, classes, size = scores.shape
    most = max(number_of(node, 2), 0) if node.has(2) else 0
    most = size if not is_symbolic(size) and size < most else most
    lines = batches * classes
    out = TensorType(INT64, (lines * most, 3))
    if most == 0:
        return Lowering((out,), (), ())
    threshold, limit = _number(node, 3), _number(node, 4)
    if threshold is not None and not 0.0 <= threshold <= 1.0:       # onnxruntime's kernel raises for it
        raise UnsupportedNodeError(Code.LIMIT, f"NonMaxSuppression with iou_threshold {threshold}; taken: 0 to 1")
    consts: dict[str, Const] = {
        "BOXES": size, "CLASSES": classes, "MOST": most, "CENTERED": bool(node.attr("center_point_box")), "IOU": threshold or 0.0,
        "LIMITED": limit is not None, "LIMIT": limit or 0.0}
    kept, left, words = TensorType(UINT32, (lines, most)), TensorType(UINT32, (lines, size)), TensorType(UINT32, (lines,))
    kernels = (
        kernel("suppress.wgsl", [words, kept, left], consts=consts, groups=lines, workgroup_size=WORKGROUP_SIZE,
               workgroup_nbytes=8 * WORKGROUP_SIZE + 16, reads={"boxes": 0, "scores": 1},
               writes={"numbers": "numbers", "kept": "kept", "left": "left"}),
        starts_of("numbers", lines),
        kernel("suppressed_rows.wgsl", [out], consts={"LINES": lines, "CLASSES": classes, "MOST": most},
               groups=ceil_div(lines * most, WORKGROUP_SIZE), workgroup_size=WORKGROUP_SIZE, raw=True,
               reads={"numbers": "numbers", "starts": "starts", "kept": "kept"}, writes={"y": 0}))
    temps = (("numbers", words), ("starts", words), (COUNT, ONE), ("kept", kept), ("left", left))
    return Lowering((out,), kernels, temps, kept=(COUNT,), counted=(Counted(0, 0, COUNT),))


def _number(node: BoundNode, index: int) -> float | None:
    """What a threshold is; None where it is left out."""
    operand = node.optional(index)
    if operand is None:
        return None
    if operand.dtype is not FLOAT32 or operand.size != 1:
        raise UnsupportedNodeError(Code.RANK, f"NonMaxSuppression with a threshold {operand.type}; taken: one float32")
    return float(operand.require().reshape(-1)[0])
