"""GroupQueryAttention whose cache keeps a window of tokens (sliding_window_cache): attention over the rows that are
there and this step's tokens, staged together, and the rows that stay.
"""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.types import INT32, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Lowering, Operand, kernel
from ort_gpu_ep.ops.composed import Composed, Part

PAST_KEY, PAST_VALUE, LENGTHS, TOTAL, COSINES, POSITIONS, BIAS = 3, 4, 5, 6, 7, 9, 10
WORKGROUP_SIZE = 64

record("window_start.wgsl", "movement")
record("window_rows.wgsl", "movement")


def lower(node: BoundNode) -> Lowering:
    """The same attention by the node's row without such a cache. Raises UnsupportedNodeError."""
    q, past, window = node.input(0), node.optional(PAST_KEY), int(node.attr("local_window_size"))
    if (
        past is None
        or past.rank != 4
        or not node.has(PAST_VALUE)
        or window < 1
        or past.shape[2] < window
        or node.has(BIAS)
        or q.rank != 3
    ):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"GroupQueryAttention with sliding_window_cache, a window of {window}, a cache {past and past.type}"
            f"{' and attention_bias' if node.has(BIAS) else ''}; taken: a cache of at least the window, without a bias",
        )
    (total,) = node.input(TOTAL).ints()
    composed, (batch, sequence), capacity = Composed(node), q.shape[:2], past.shape[2]
    first = bool(sequence == total)
    consts: dict[str, Const] = {
        "SEQUENCE": sequence,
        "TOTAL": total,
        "FIRST": first,
        "CAPACITY": capacity,
        "WINDOW": window,
    }
    reads = {"given": POSITIONS} if node.has(POSITIONS) else {}
    kinds = TensorType(INT32, (batch,)), TensorType(INT32, (batch, sequence))
    composed.kernels.append(
        kernel(
            "window_start.wgsl",
            kinds,
            consts={"BATCH": batch, "GIVEN": bool(reads), **consts},
            groups=ceil_div(batch * sequence, WORKGROUP_SIZE),
            workgroup_size=WORKGROUP_SIZE,
            reads={"lengths": LENGTHS, **reads},
            writes={"staged": "staged", "places": "places"},
            reports=True,
        )
    )
    composed.temps |= dict(zip(("staged", "places"), kinds, strict=True))
    staged, positions = (
        Part(name, Operand(name, kind)) for name, kind in zip(("staged", "places"), kinds, strict=True)
    )
    bound = Part(
        None, Operand("", TensorType(INT32, (1,)), np.array([sequence if first else capacity + sequence], object))
    )
    inputs = [composed.optional(i) for i in range(len(node.inputs))]
    inputs[LENGTHS : LENGTHS + 2] = [staged, bound]
    if node.has(COSINES):
        inputs += [None] * (POSITIONS + 1 - len(inputs))
        inputs[POSITIONS] = positions
    attributes = {**node.node.attributes, "sliding_window_cache": 0}
    _, *rows = composed.add_all(
        "GroupQueryAttention", inputs, (0, None, None), version=1, domain=DOMAIN, attributes=attributes
    )
    for at, part in enumerate(rows, 1):
        if node.wants(at) and part.source is not None:
            _, heads, staged_rows, head = part.shape
            kept = TensorType(part.operand.dtype, (batch, heads, capacity, head))
            composed.kernels.append(
                kernel(
                    "window_rows.wgsl",
                    [kept],
                    consts={**consts, "HEADS": heads, "HEAD": head, "ROWS": staged_rows},
                    reads={"x": part.source, "lengths": LENGTHS},
                    writes={"y": at},
                    reports=True,
                )
            )
            composed.outputs[at] = kept
    return composed.lowering()
