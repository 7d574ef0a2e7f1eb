"""Evaluates nodes whose inputs the host knows: constants, and what exporters compute from shapes.

Such nodes are never dispatched; their results steer the plan (a Reshape's shape) or become constants of it. The
evaluation is shape_arithmetic.py's, or ONNX's own reference implementation, which knows all operators but takes numbers
only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ort_gpu_ep.ir.graph import Array, Attribute, Node
from ort_gpu_ep.ir.types import INT64, DType, TensorType, dtype_of
from ort_gpu_ep.kernels import shape_arithmetic
from ort_gpu_ep.kernels.registry import BoundNode

MAX_CONSTANT_NBYTES = 64 << 10
"""A larger constant is a weight: it lives on the device, and the host does not calculate with it."""

MAX_ELEMENTS = 4 << 20
"""Of a result. Sizes that are only tried (partitioner/solving.py) may ask for more than there is memory."""

_SHAPE_ONLY = ("Shape", "Size")

_MOVES: Mapping[str, tuple[int, ...]] = {
    "Transpose": (0,),
    "Flatten": (0,),
    "Tile": (0,),
    "Pad": (0, 2),
    "GatherElements": (0,),
    "GatherND": (0,),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Compress": (0,),
    "Trilu": (0,),
    "ReverseSequence": (0,),
}
"""Operators that give elements of some inputs, or zeros, whatever these are; and which inputs."""

RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
    "Dropout",
)
"""Ops that draw numbers."""


def is_host_node(bound: BoundNode) -> bool:
    """Whether the host can compute all outputs now: from the shape of the input, or from inputs it knows."""
    node = bound.node
    if node.domain or node.has_subgraph or node.op in RANDOM or node.epilogue:
        return False
    return node.op in _SHAPE_ONLY or all(i is None or i.content is not None for i in bound.inputs)


def is_shape_only(node: Node) -> bool:
    """Whether a node tells the shape of its input, whatever is in it."""
    return node.op in _SHAPE_ONLY and not node.domain


def has_sizes(bound: BoundNode) -> bool:
    """Whether an input that the host knows holds sizes of the run."""
    return any(o is not None and shape_arithmetic.is_symbolic(o.content) for o in bound.inputs)


def evaluate(bound: BoundNode) -> tuple[tuple[Array, DType] | None, ...]:
    """(array, element type) of the outputs of a host node (None for one left out). Sizes of the run become numbers, for
    which alone the plan then holds. Raises what onnx.reference raises on invalid input, KeyError for an element type
    that is unknown here, ValueError for a result that is too large.
    """
    if (elements := _elements(bound)) > MAX_ELEMENTS:
        raise ValueError(f"{elements} elements are more than the host calculates with, {MAX_ELEMENTS}")
    feeds = {}
    for i, operand in enumerate(bound.inputs):
        if operand is not None:
            if operand.content is None:  # an array of that shape, without its memory
                feeds[f"i{i}"] = np.broadcast_to(
                    np.zeros((), operand.dtype.numpy), tuple(int(d) for d in operand.shape)
                )
            else:
                feeds[f"i{i}"] = operand.content.astype(operand.dtype.numpy)
    results = iter(_evaluator(_Key(bound.node)).run(None, feeds))
    arrays = [_tensor(bound.node, next(results)) if name else None for name in bound.node.outputs]
    return tuple(None if a is None else (np.ascontiguousarray(a).reshape(a.shape), dtype_of(a)) for a in arrays)


def moved(bound: BoundNode, pins: bool = False) -> tuple[tuple[Array, DType] | None, ...] | None:
    """The outputs of a host node that only moves elements, some of which are sizes of the run; None of another node.

    pins: also where sizes of the run say how elements are moved; they become numbers, as in `evaluate`.

    ONNX's reference implementation moves the elements' positions instead, 0 stands for zero.
    """
    sources, node = _MOVES.get(bound.op, ()), bound.node
    is_other = node.attributes.get("reduction", "none") not in ("none", b"none") or (
        node.op == "Pad" and node.version < 11
    )
    others = [o for k, o in enumerate(bound.inputs) if k not in sources and o is not None]
    if not sources or is_other or (not pins and any(shape_arithmetic.is_symbolic(o.content) for o in others)):
        return None
    elements: list[Any] = [bound.input(0).dtype.numpy.type(0).item()]
    replaced = list(bound.inputs)
    for k in sources:
        if (operand := bound.optional(k)) is not None and operand.content is not None:
            places = np.arange(operand.size).reshape(operand.content.shape) + len(elements)
            elements += operand.content.reshape(-1).tolist()
            replaced[k] = replace(operand, type=TensorType(INT64, operand.shape), content=places)
    values = shape_arithmetic.objects(elements)
    return tuple(
        result and (shape_arithmetic.plain(values[result[0]], bound.input(0).dtype), bound.input(0).dtype)
        for result in evaluate(replace(bound, inputs=tuple(replaced)))
    )


def _elements(bound: BoundNode) -> int:
    """Of the result of a node whose numbers say how large it is; 0 of others, which give few more than they read."""

    def numbers(k: int) -> list[Any]:
        operand = bound.optional(k)
        return [] if operand is None or operand.content is None else operand.content.reshape(-1).tolist()

    match bound.op:
        case "ConstantOfShape":
            return math.prod(int(size) for size in numbers(0))
        case "Expand":
            return math.prod(np.broadcast_shapes(bound.input(0).shape, tuple(int(size) for size in numbers(1))))
        case "Tile":
            return bound.input(0).size * math.prod(int(times) for times in numbers(1))
        case "Range":
            (start,), (limit,), (delta,) = (numbers(k) for k in range(3))
            return int((limit - start) // delta) if delta else 0
    return 0


def _tensor(node: Node, result: Any) -> Array:
    """Raises TypeError for a sequence or an optional value."""
    if result is None or isinstance(result, (list, tuple, dict)):
        raise TypeError(f"what {node.op} gives is no tensor")
    return np.asarray(result)


class _Key:
    """A node by identity: the nodes of a graph are immutable."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __hash__(self) -> int:
        return id(self.node)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.node is other.node


@lru_cache(maxsize=1024)
def _evaluator(key: _Key) -> Any:
    import onnx
    from onnx.reference import ReferenceEvaluator

    node = key.node
    proto = onnx.helper.make_node(
        node.op,
        [f"i{i}" if name else "" for i, name in enumerate(node.inputs)],
        [f"o{i}" for i, name in enumerate(node.outputs) if name],
        **_attributes(node.attributes),
    )
    return ReferenceEvaluator(proto, opsets={"": max(node.version, 1)})


def _attributes(attributes: Mapping[str, Attribute]) -> dict[str, Any]:
    import onnx

    return {
        k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else list(v) if isinstance(v, tuple) else v
        for k, v in attributes.items()
        if v is not None
    }
