"""Arithmetic on shapes, evaluated on the host: small integer tensors whose elements may be sizes of the run.

Arrays with such a size have numpy's object type; what has none again becomes an array of its element type. Anything that is not
here, or not in a form that is here, is left to ONNX's reference implementation (host.py), which needs numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ort_gpu_ep.ir.graph import Array, Node
from ort_gpu_ep.ir.symbolic import Real, Size, derived, largest
from ort_gpu_ep.ir.types import BOOL, BY_NAME, BY_ONNX, FLOAT32, INT32, INT64, DType
from ort_gpu_ep.kernels.registry import BoundNode, Operand

MAX_ELEMENTS = 1024
"""Of one tensor: sizes are few, and what is large is data."""

_INTEGERS = (INT32, INT64, BOOL)

Result: TypeAlias = tuple[Array, DType]
Rule: TypeAlias = Callable[[BoundNode], list[Result] | None]


def has_rule(node: Node) -> bool:
    return node.op in _RULES and not node.domain


def evaluate(bound: BoundNode) -> list[Result] | None:
    """(array, element type) of each output; None where the node is not one of ours, or needs numbers that only a run has."""
    rule = _RULES.get(bound.op)
    if rule is None or bound.node.domain:
        return None
    known = [o for o in bound.inputs if o is not None and o.value is not None]
    taken = (*_INTEGERS, FLOAT32) if any(is_symbolic(o.require()) for o in known) else _INTEGERS
    if any(o.size > MAX_ELEMENTS or o.dtype not in taken for o in known):
        return None
    try:
        found = rule(bound)
    except (ValueError, IndexError, ArithmeticError):   # it varies, or is no valid node: the reference implementation says why
        return None
    if found is None or any(a.size > MAX_ELEMENTS for a, _ in found):
        return None
    return [(_plain(array, dtype), dtype) for array, dtype in found]


def is_symbolic(array: Array) -> bool:
    """Whether an array holds sizes of the run."""
    return bool(array.dtype == object)


def _plain(array: Array, dtype: DType) -> Array:
    array = np.asarray(array)
    if array.dtype == object and any(isinstance(v, (Size, Real)) for v in array.reshape(-1)):
        return array
    return np.ascontiguousarray(array.astype(dtype.numpy)).reshape(array.shape)


def objects(values: Any) -> Array:
    """A list of ints and sizes as a vector."""
    array = np.empty(len(values), object)
    array[:] = list(values)
    return array


def _shape(node: BoundNode) -> list[Result]:
    start, end = int(node.attr("start") or 0), node.attr("end")
    return [(objects(node.input(0).shape[start:None if end is None else int(end)]), INT64)]


def _size(node: BoundNode) -> list[Result]:
    return [(objects([node.input(0).size]).reshape(()), INT64)]


def _value(node: BoundNode, index: int) -> Array:
    value = node.input(index).require()
    return value if is_symbolic(value) else value.astype(object)


def _numbers(operand: Operand | None) -> list[int] | None:
    """An operand as plain numbers; None where it is left out. Raises _VariesError for a size of the run: what is taken or made varies."""
    if operand is None:
        return None
    if is_symbolic(operand.require()):
        raise _VariesError
    return [int(v) for v in operand.require().reshape(-1)]


class _VariesError(ValueError):
    """The shape of the result depends on sizes of the run: no array can stand for it."""


def _axes(node: BoundNode, index: int = 1) -> list[int] | None:
    given = _numbers(node.optional(index))
    attribute = node.node.attributes.get("axes")
    return given if given is not None or attribute is None else [int(a) for a in attribute]  # type: ignore[union-attr]


def _moved(rule: Callable[[BoundNode, Array], Array | None]) -> Rule:
    """A rule that picks or places elements of input 0."""
    def apply(node: BoundNode) -> list[Result] | None:
        found = rule(node, _value(node, 0))
        return None if found is None else [(found, node.input(0).dtype)]
    return apply


def _gather(node: BoundNode, x: Array) -> Array:
    indices = np.array(_numbers(node.input(1)), np.int64).reshape(node.input(1).shape)
    return np.asarray(np.take(x, indices, axis=int(node.attr("axis"))))


def _slice(node: BoundNode, x: Array) -> Array | None:
    if node.version < 10:
        return None
    starts, ends = _numbers(node.input(1)) or [], _numbers(node.input(2)) or []
    axes = _numbers(node.optional(3)) or list(range(len(starts)))
    steps = _numbers(node.optional(4)) or [1] * len(starts)
    if 0 in steps:
        return None
    where = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        where[axis] = slice(start, end, step)
    return np.asarray(x[tuple(where)])


def _concat(node: BoundNode) -> list[Result]:
    return [(np.concatenate([_value(node, i) for i in range(len(node.inputs))], axis=int(node.attr("axis"))), node.input(0).dtype)]


def _unsqueeze(node: BoundNode, x: Array) -> Array:
    axes = _axes(node) or []
    return np.expand_dims(x, tuple(axes))


def _squeeze(node: BoundNode, x: Array) -> Array:
    axes = _axes(node)
    return np.squeeze(x, None if axes is None else tuple(axes))


def _reshape(node: BoundNode, x: Array) -> Array:
    wanted = _numbers(node.input(1)) or []
    if not node.attr("allowzero"):
        wanted = [x.shape[i] if d == 0 else d for i, d in enumerate(wanted)]
    return x.reshape(wanted)


def _cast(node: BoundNode) -> list[Result] | None:
    source, target = node.input(0).dtype, BY_ONNX.get(int(node.attr("to")))
    if target not in (INT32, INT64, FLOAT32) or source is BOOL or target is None:
        return None
    x = _value(node, 0)
    if source is not target and FLOAT32 in (source, target):
        x = objects([derived(_rounded if target is FLOAT32 else math.trunc, v) for v in x.reshape(-1)]).reshape(x.shape)
    return [(x, target)]


def _rounded(x: float) -> float:
    return float(np.float32(x))


def _in_float32(function: Callable[..., Any]) -> Callable[..., float]:
    """The function of numbers, rounded to float32 as the CPU's kernel does it."""
    def rounded(*row: float) -> float:
        return float(function(*map(np.float32, row)))
    return rounded


def _arithmetic(of_ints: Callable[..., Any], of_floats: Callable[..., Any]) -> Rule:
    """An operator on sizes, and on floats that were computed from them."""
    rounded = _in_float32(of_floats)
    ints, floats = _elementwise(of_ints), _elementwise(lambda *row: derived(rounded, *row))
    return lambda node: (floats if node.input(0).dtype is FLOAT32 else ints)(node)


def _quotient(x: Any, y: Any) -> Any:
    """Towards zero, as C divides."""
    return x // y if (x >= 0) == (y > 0) else -(-x // y)


def _elementwise(function: Callable[..., Any], result: DType | int = 0) -> Rule:
    def apply(node: BoundNode) -> list[Result] | None:
        if any(o is None for o in node.inputs):
            return None
        arrays = np.broadcast_arrays(*(_value(node, i) for i in range(len(node.inputs))))
        made = objects([function(*row) for row in zip(*(a.reshape(-1) for a in arrays), strict=True)])
        return [(made.reshape(arrays[0].shape), result if isinstance(result, DType) else node.input(result).dtype)]
    return apply


def _modulo(node: BoundNode) -> list[Result] | None:
    """With the sign of the divisor, as Python has it; with fmod that of the dividend, which is not here."""
    return None if node.attr("fmod") or node.input(0).dtype is FLOAT32 else _elementwise(operator.mod)(node)


def _reduced(function: Callable[[Array], Any]) -> Rule:
    def apply(node: BoundNode) -> list[Result] | None:
        x, axes = _value(node, 0), _axes(node)
        if x.ndim != 1 or axes not in (None, [0], [-1]) or (not axes and node.attr("noop_with_empty_axes")):
            return None
        return [(objects([function(x)]).reshape((1,) if node.attr("keepdims") else ()), node.input(0).dtype)]
    return apply


def _expand(node: BoundNode, x: Array) -> Array:
    wanted = tuple(_numbers(node.input(1)) or ())
    return np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, wanted)))


def _split(node: BoundNode) -> list[Result] | None:
    sizes = _axes(node) if node.has(1) else node.node.attributes.get("split")
    x, axis = _value(node, 0), int(node.attr("axis"))
    if sizes is None:
        count = len(node.node.outputs)
        if x.shape[axis] % count:
            return None
        sizes = (x.shape[axis] // count,) * count
    parts = np.split(x, np.cumsum(sizes)[:-1], axis)
    return [(part, node.input(0).dtype) for part in parts]


def _constant_of_shape(node: BoundNode) -> list[Result] | None:
    value = node.attr("value")
    if value is None or value.dtype.name not in BY_NAME or is_symbolic(node.input(0).require()):
        return None
    dtype, shape = BY_NAME[value.dtype.name], _numbers(node.input(0)) or []
    if dtype not in _INTEGERS or math.prod(shape) > MAX_ELEMENTS:
        return None
    return [(np.full(shape, value.reshape(-1)[0]), dtype)]


_RULES: Mapping[str, Rule] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": _moved(lambda node, x: x),
    "Gather": _moved(_gather),
    "Slice": _moved(_slice),
    "Concat": _concat,
    "Unsqueeze": _moved(_unsqueeze),
    "Squeeze": _moved(_squeeze),
    "Reshape": _moved(_reshape),
    "Expand": _moved(_expand),
    "Split": _split,
    "Cast": _cast,
    "ConstantOfShape": _constant_of_shape,
    "Add": _arithmetic(operator.add, operator.add),
    "Sub": _arithmetic(operator.sub, operator.sub),
    "Mul": _arithmetic(operator.mul, operator.mul),
    "Div": _arithmetic(_quotient, operator.truediv),
    "Mod": _modulo,
    "Neg": _arithmetic(operator.neg, operator.neg),
    "Floor": _arithmetic(operator.pos, np.floor),
    "Ceil": _arithmetic(operator.pos, np.ceil),
    "Max": _elementwise(lambda *row: largest(*row)),
    "Min": _elementwise(lambda *row: -largest(*(-v for v in row))),
    "Equal": _elementwise(lambda x, y: bool(x == y), BOOL),
    "Less": _elementwise(lambda x, y: bool(x < y), BOOL),
    "Greater": _elementwise(lambda x, y: bool(x > y), BOOL),
    "LessOrEqual": _elementwise(lambda x, y: bool(x <= y), BOOL),
    "GreaterOrEqual": _elementwise(lambda x, y: bool(x >= y), BOOL),
    "And": _elementwise(lambda x, y: bool(x) and bool(y), BOOL),
    "Or": _elementwise(lambda x, y: bool(x) or bool(y), BOOL),
    "Not": _elementwise(operator.not_, BOOL),
    "Where": _elementwise(lambda c, x, y: x if c else y, 1),
    "ReduceProd": _reduced(math.prod),
    "ReduceSum": _reduced(sum),
    "ReduceMax": _reduced(lambda x: largest(*x)),
    "ReduceMin": _reduced(lambda x: -largest(*(-v for v in x))),
}
