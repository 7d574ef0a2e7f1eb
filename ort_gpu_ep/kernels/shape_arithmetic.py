"""Arithmetic on shapes, evaluated on the host: small tensors whose elements may be sizes of the run, or floats that
follow from them.

Arrays with such an element have numpy's object type; what has none again becomes an array of its element type. Anything
that is not here, or not in a form that is here, is left to ONNX's reference implementation (host.py), which needs
numbers.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from ort_gpu_ep.ir.graph import Array, Node
from ort_gpu_ep.ir.symbolic import Real, Size, derived, equal, exactly, fitted, largest, less, less_or_equal
from ort_gpu_ep.ir.types import BOOL, BY_NAME, BY_ONNX, INT32, INT64, DType
from ort_gpu_ep.kernels.arithmetic import (
    FLOATS,
    INTEGERS,
    OF_TYPE,
    is_infinite,
    is_nan,
    limits_of,
    power_of_integers,
    quotient,
    remainder,
    select,
)
from ort_gpu_ep.kernels.registry import BoundNode, Operand

MAX_ELEMENTS = 1024
"""Of one tensor: sizes are few, and what is large is data."""

MAX_GUARDS = 8
"""The truths in a tensor, up to which each is a guard: of more, plans for each row of answers would be too many."""

_INTEGERS = (INT32, INT64, BOOL)

_EXACT = 1 << sys.float_info.mant_dig
"""Up to here float64 holds every integer."""

Result: TypeAlias = tuple[Array, DType]
Rule: TypeAlias = Callable[[BoundNode], list[Result] | None]


def has_rule(node: Node) -> bool:
    """Of a fused one: whether each of its operators has one."""
    is_ours = bool(node.epilogue) if not node.inputs else node.op in _RULES and not node.domain
    return is_ours and all(step.op in _RULES for step in node.epilogue)


def evaluate(bound: BoundNode) -> list[Result] | None:
    """(array, element type) of each output; None where the node is not one of ours, or needs numbers that only a run
    has."""
    rule = _RULES.get(bound.op)
    if rule is None or bound.node.domain:
        return None
    values = [o for o in bound.inputs if o is not None and o.content is not None]
    # numpy takes nothing from before the first element on
    is_ours = bound.op == "Slice" or any(is_symbolic(o.content) for o in values)
    taken = (*INTEGERS, BOOL, *FLOATS) if is_ours else _INTEGERS
    if any(o.size > MAX_ELEMENTS or o.dtype not in taken for o in values):
        return None
    try:
        with exactly(v for o in values if is_symbolic(o.content) for v in o.content.reshape(-1)):  # type: ignore[union-attr]
            results = rule(bound)
        if results is None or any(a.size > MAX_ELEMENTS for a, _ in results):
            return None
        return [(plain(array, dtype), dtype) for array, dtype in results]
    except (
        Exception
    ):  # it varies, or is no valid node, or in a form that no rule foresees: the reference implementation says why
        return None


def is_symbolic(array: Array | None) -> bool:
    """Whether an array holds sizes of the run."""
    return array is not None and bool(array.dtype == object)


def plain(array: Array, dtype: DType) -> Array:
    """As an array of its element type, where no size of the run is in it."""
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
    return [(objects(node.input(0).shape[start : None if end is None else int(end)]), INT64)]


def _size(node: BoundNode) -> list[Result]:
    return [(objects([node.input(0).size]).reshape(()), INT64)]


def _value(node: BoundNode, index: int) -> Array:
    value = node.input(index).content
    if value is None:
        raise _VariesError
    return value if is_symbolic(value) else value.astype(object)


def _numbers(operand: Operand | None) -> list[int] | None:
    """An operand as plain numbers; None where it is left out. Raises _VariesError for a size of the run: what is taken
    or made varies."""
    if operand is None:
        return None
    if operand.value is None:
        raise _VariesError
    return [int(v) for v in operand.value.reshape(-1)]


class _VariesError(ValueError):
    """The shape of the result depends on sizes of the run: no array can stand for it."""


def _axes(node: BoundNode, index: int = 1) -> list[int] | None:
    numbers = _numbers(node.optional(index))
    attribute = node.node.attributes.get("axes")
    return numbers if numbers is not None or attribute is None else [int(a) for a in attribute]  # type: ignore[union-attr]


def _moved(rule: Callable[[BoundNode, Array], Array | None]) -> Rule:
    """A rule that picks or places elements of input 0."""

    def apply(node: BoundNode) -> list[Result] | None:
        results = rule(node, _value(node, 0))
        return None if results is None else [(results, node.input(0).dtype)]

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
    where = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # a step back from before the first element starts there
        where[axis] = slice(max(start, -x.shape[axis]), end, step)
    return np.asarray(x[tuple(where)])


def _concat(node: BoundNode) -> list[Result]:
    return [
        (
            np.concatenate([_value(node, i) for i in range(len(node.inputs))], axis=int(node.attr("axis"))),
            node.input(0).dtype,
        )
    ]


def _unsqueeze(node: BoundNode, x: Array) -> Array:
    axes = _axes(node) or []
    return np.expand_dims(x, tuple(axes))


def _squeeze(node: BoundNode, x: Array) -> Array:
    axes = _axes(node)
    return np.squeeze(x, None if axes is None else tuple(axes))


def _reshape(node: BoundNode, x: Array) -> Array:
    shape = _numbers(node.input(1)) or []
    if not node.attr("allowzero"):
        shape = [x.shape[i] if d == 0 else d for i, d in enumerate(shape)]
    return x.reshape(shape)


def _cast(node: BoundNode) -> list[Result] | None:
    return _as_type(node, BY_ONNX.get(int(node.attr("to"))))


def _as_type(node: BoundNode, target: DType | None) -> list[Result] | None:
    source, x = node.input(0).dtype, _value(node, 0)
    if target is BOOL:
        return (
            _truths(lambda v: v != 0, lambda v: 1 - derived(equal, v, 0))(node) if source is not BOOL else [(x, BOOL)]
        )
    if target not in (*INTEGERS, *FLOATS):
        return None
    if target in FLOATS or source in FLOATS:
        one: Callable[[Any], Any] = lambda v: derived(OF_TYPE["Cast", target], v)  # noqa: E731
    else:
        low, high = limits_of(target)
        one = lambda v: fitted(v if isinstance(v, Size) else int(v), low, high)  # noqa: E731
    return [(objects([one(v) for v in x.reshape(-1)]).reshape(x.shape), target)]


def _range(node: BoundNode) -> list[Result] | None:
    """Of sizes, where their number is none: n to n + 3."""
    start, limit, delta = (_value(node, k).reshape(-1)[0] for k in range(3))
    if node.input(0).dtype not in INTEGERS or isinstance(delta, Size) or not delta:
        return None
    count = -(-(limit - start) // delta)
    if isinstance(count, Size) or count > MAX_ELEMENTS:
        return None
    return [(objects([start + k * delta for k in range(count)]), node.input(0).dtype)]


def _by_type(of_integers: Callable[..., Any] | None) -> Rule:
    """An operator on each element. of_integers: as Python calculates, of which what the type holds is kept; None where
    ONNX has it for floats only.
    """

    def apply(node: BoundNode) -> list[Result] | None:
        dtype = node.input(0).dtype
        function = _of_numbers(node.op, dtype, of_integers)
        return None if function is None else _elementwise(function)(node)

    return apply


def _of_numbers(op: str, dtype: DType, of_integers: Callable[..., Any] | None) -> Callable[..., Any] | None:
    if dtype in FLOATS:
        return lambda *row: derived(OF_TYPE[op, dtype], *row)
    if of_integers is None or dtype not in INTEGERS:
        return None
    low, high = limits_of(dtype)
    return lambda *row: fitted(of_integers(*row), low, high)


def _power(x: Any, y: Any) -> Any:
    return (
        x**y
        if type(x) is int and type(y) is int and y >= 0
        else math.prod([x] * y)
        if type(y) is int and 0 <= y <= 3
        else derived(power_of_integers, x, y)
    )


def _absolute(x: Any) -> Any:
    return x if x >= 0 else -x


def _sign(x: Any) -> int:
    return 0 if x == 0 else 1 if x > 0 else -1


def _mod(node: BoundNode) -> list[Result] | None:
    fmod = node.attr("fmod")
    if node.input(0).dtype in FLOATS and not fmod:
        return None
    return _by_type(remainder if fmod else operator.mod)(node)


def _clip(node: BoundNode) -> list[Result] | None:
    """min(max(x, low), high), of which both may be left out."""
    if node.version < 11:
        return None
    x, dtype = _value(node, 0).reshape(-1), node.input(0).dtype
    for index, op, bounded in ((1, "Max", largest), (2, "Min", _smallest)):
        if node.has(index):
            bound, function = _value(node, index).reshape(()).item(), _of_numbers(op, dtype, bounded)
            if function is None:
                return None
            x = objects([function(v, bound) for v in x])
    return [(x.reshape(node.input(0).shape), dtype)]


def _smallest(*row: Any) -> Any:
    return -largest(*(-v for v in row))


def _elementwise(function: Callable[..., Any], result: DType | int = 0) -> Rule:
    def apply(node: BoundNode) -> list[Result] | None:
        if any(o is None for o in node.inputs):
            return None
        arrays = np.broadcast_arrays(*(_value(node, i) for i in range(len(node.inputs))))
        array = objects([function(*row) for row in zip(*(a.reshape(-1) for a in arrays), strict=True)])
        return [(array.reshape(arrays[0].shape), result if isinstance(result, DType) else node.input(result).dtype)]

    return apply


def _truths(guarded: Callable[..., Any], counted: Callable[..., Any]) -> Rule:
    """A question to each element: few answers are guards, many are numbers of the run, 0 or 1. counted: the question as
    such."""
    few, many = _elementwise(lambda *row: bool(guarded(*row)), BOOL), _elementwise(counted, BOOL)

    def apply(node: BoundNode) -> list[Result] | None:
        arrays = [_value(node, i) for i in range(len(node.inputs)) if node.has(i)]
        asked = any(map(is_symbolic, (o.content for o in node.given()))) and math.prod(
            np.broadcast_shapes(*(a.shape for a in arrays))
        )
        return (many if asked > MAX_GUARDS else few)(node)

    return apply


def _where(node: BoundNode) -> list[Result] | None:
    def chosen(condition: Any, x: Any, y: Any) -> Any:
        if not isinstance(condition, Size):
            return x if condition else y
        return derived(select, condition, x, y) if node.input(1).dtype in FLOATS else y + condition * (x - y)

    return _elementwise(chosen, 1)(node)


def _is_infinite(node: BoundNode) -> list[Result] | None:
    ends = bool(node.attr("detect_negative")), bool(node.attr("detect_positive"))
    return _truths(*[lambda v: derived(is_infinite, v, *map(float, ends))] * 2)(node)


def _added_up(op: str, dtype: DType, of_integers: Callable[..., Any]) -> Callable[..., Any] | None:
    """A reduction of integers that ONNX Runtime calculates in float64: the same, as long as that holds each of them."""
    if dtype not in INTEGERS:
        return _of_numbers(op, dtype, of_integers)
    low, high = limits_of(dtype)
    low, high = max(low, -_EXACT), min(high, _EXACT)

    def added(*row: Any) -> Any:
        total = of_integers(*row)
        return total if low <= total <= high else derived(OF_TYPE[op, dtype], *row)

    return added


def _reduced(of_integers: Callable[..., Any], functions: Callable[..., Callable[..., Any] | None] = _added_up) -> Rule:
    def apply(node: BoundNode) -> list[Result] | None:
        x, axes, dtype = _value(node, 0), _axes(node), node.input(0).dtype
        if not axes and node.attr("noop_with_empty_axes"):
            return [(x, dtype)]
        function, reduced = functions(node.op, dtype, of_integers), sorted({a % x.ndim for a in axes or range(x.ndim)})
        kept = [a for a in range(x.ndim) if a not in reduced]
        if function is None or any(not x.shape[a] for a in reduced):
            return None
        rows = x.transpose(*kept, *reduced).reshape(math.prod(x.shape[a] for a in kept), -1)
        shape = [1 if a in reduced else d for a, d in enumerate(x.shape) if a in kept or node.attr("keepdims")]
        return [(objects([function(*row) for row in rows]).reshape(shape), dtype)]

    return apply


def _cumulated(node: BoundNode) -> list[Result] | None:
    """A running sum of one dimension."""
    x, dtype = _value(node, 0), node.input(0).dtype
    if x.ndim != 1 or dtype not in INTEGERS:
        return None
    low, high = limits_of(dtype)
    row = list(x[::-1] if node.attr("reverse") else x)
    sums = [fitted(v, low, high) for v in accumulate([0, *row])]
    sums = sums[:-1] if node.attr("exclusive") else sums[1:]
    return [(objects(sums[::-1] if node.attr("reverse") else sums), dtype)]


def _expand(node: BoundNode, x: Array) -> Array:
    target = tuple(_numbers(node.input(1)) or ())
    return np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, target)))


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
    if value is None or value.dtype.name not in BY_NAME or is_symbolic(node.input(0).content):
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
    "CastLike": lambda node: _as_type(node, node.input(1).dtype),
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Add": _by_type(operator.add),
    "Sub": _by_type(operator.sub),
    "Mul": _by_type(operator.mul),
    "Div": _by_type(quotient),
    "Mod": _mod,
    "Pow": _by_type(_power),
    "Neg": _by_type(operator.neg),
    "Abs": _by_type(_absolute),
    "Sign": _by_type(_sign),
    "Floor": _by_type(None),
    "Ceil": _by_type(None),
    "Round": _by_type(None),
    "Sqrt": _by_type(None),
    "Reciprocal": _by_type(None),
    "Max": _by_type(largest),
    "Min": _by_type(_smallest),
    "Sum": _by_type(None),
    "Clip": _clip,
    "Equal": _truths(operator.eq, lambda x, y: derived(equal, x, y)),
    "Less": _truths(operator.lt, lambda x, y: derived(less, x, y)),
    "Greater": _truths(operator.gt, lambda x, y: derived(less, y, x)),
    "LessOrEqual": _truths(operator.le, lambda x, y: derived(less_or_equal, x, y)),
    "GreaterOrEqual": _truths(operator.ge, lambda x, y: derived(less_or_equal, y, x)),
    "And": _elementwise(lambda x, y: x * y, BOOL),
    "Or": _elementwise(lambda x, y: x + y - x * y, BOOL),
    "Xor": _elementwise(lambda x, y: x + y - 2 * x * y, BOOL),
    "Not": _elementwise(lambda x: 1 - x, BOOL),
    "IsInf": _is_infinite,
    "IsNaN": _truths(*[lambda v: derived(is_nan, v)] * 2),
    "Where": _where,
    "ReduceProd": _reduced(lambda *row: math.prod(row)),
    "ReduceSum": _reduced(lambda *row: sum(row)),
    "ReduceMax": _reduced(largest, _of_numbers),
    "ReduceMin": _reduced(_smallest, _of_numbers),
    "ReduceMean": _reduced(lambda *row: quotient(sum(row), len(row))),
    "CumSum": _cumulated,
}
