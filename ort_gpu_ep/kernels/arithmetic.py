"""Arithmetic on single numbers of an element type, as ONNX Runtime's CPU calculates it: what the host does with sizes
of a run.

Numbers are Python's: a float stands for one of its element type. The functions are pure and have names, so that a plan
that follows from them can be kept in a file (scheduler/kept.py).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from ort_gpu_ep.ir.types import (
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)

INTEGERS = (INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8)
FLOATS = (FLOAT32, FLOAT16, FLOAT64)

Function: TypeAlias = Callable[..., Any]


def limits_of(dtype: DType) -> tuple[int, int]:
    """The least and the largest integer of a type."""
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


def quotient(x: Any, y: Any) -> Any:
    """Of integers, towards zero, as C divides. They may be sizes of a run."""
    return x // y if (x >= 0) == (y > 0) else -(-x // y)


def remainder(x: Any, y: Any) -> Any:
    """Of integers, with the sign of x, as C has it. They may be sizes of a run."""
    return x - quotient(x, y) * y


def power_of_integers(x: int, y: float) -> int:
    """By way of float64. Raises OverflowError beyond its range."""
    return int(float(x) ** float(y))


def select(condition: float, x: float, y: float) -> float:
    return x if condition else y


def is_infinite(x: float, negative: float, positive: float) -> int:
    return int(math.isinf(x) and bool(positive if x > 0 else negative))


def is_nan(x: float) -> int:
    return int(math.isnan(x))


def _power(x: Any, y: Any) -> Any:
    """Rounded once, as a C library does it."""
    return np.float64(x) ** np.float64(y)


def _sum(*row: Any) -> Any:
    """float16 is added up in float32."""
    return reduce(operator.add, [np.float32(x) if x.dtype == np.float16 else x for x in row])


def _product(*row: Any) -> Any:
    return reduce(operator.mul, [np.float32(x) if x.dtype == np.float16 else x for x in row])


_OF_FLOATS: Mapping[str, Function] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
    "Neg": operator.neg,
    "Abs": abs,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sqrt": np.sqrt,
    "Sign": np.sign,
    "Reciprocal": lambda x: type(x)(1) / x,
    "Pow": _power,
    "Mod": np.fmod,
    "Max": lambda *row: reduce(np.maximum, row),
    "Min": lambda *row: reduce(np.minimum, row),
    "Sum": _sum,
    "ReduceSum": _sum,
    "ReduceProd": _product,
    "ReduceMax": lambda *row: reduce(np.maximum, row),
    "ReduceMin": lambda *row: reduce(np.minimum, row),
    "ReduceMean": lambda *row: _sum(*row) / type(_sum(*row))(len(row)),
}


def _rounded(function: Function, dtype: DType) -> Function:
    """The function of numbers of a floating type, rounded to it."""
    kind = dtype.numpy.type

    def rounded(*row: float) -> float:
        with np.errstate(all="ignore"):
            return float(kind(function(*map(kind, row))))

    return rounded


def _saturated(function: Callable[[Sequence[float]], float], dtype: DType) -> Function:
    """A reduction of integers by way of float64, and the nearest integer that the type holds."""
    low, high = limits_of(dtype)

    def reduced(*row: int) -> int:
        number = function([float(x) for x in row])
        return high if number >= high else low if number <= low else int(number)

    return reduced


_REDUCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "ReduceSum": sum,
    "ReduceProd": math.prod,
    "ReduceMean": lambda row: sum(row) / len(row),
}


def _to_float(dtype: DType) -> Function:
    """A number in a floating type: an integer is rounded once."""
    kind = dtype.numpy.type

    def cast(x: float) -> float:
        with np.errstate(over="ignore"):
            return float(kind(np.array(x)))

    return cast


def _to_integer(dtype: DType) -> Function:
    """The whole part. Raises OverflowError, where the type does not hold it, and ValueError for NaN: what C gives is
    not said."""
    low, high = limits_of(dtype)

    def cast(x: float) -> int:
        whole = math.trunc(x)
        if not low <= whole <= high:
            raise OverflowError(f"{x} as {dtype}")
        return whole

    return cast


OF_TYPE: Mapping[tuple[str, DType], Function] = {
    **{(op, dtype): _rounded(function, dtype) for op, function in _OF_FLOATS.items() for dtype in FLOATS},
    **{(op, dtype): _saturated(function, dtype) for op, function in _REDUCTIONS.items() for dtype in INTEGERS},
    **{("Cast", dtype): _to_float(dtype) for dtype in FLOATS},
    **{("Cast", dtype): _to_integer(dtype) for dtype in INTEGERS},
}
"""By an ONNX operator and the element type: of its inputs, or that a Cast of floats leads to."""

FUNCTIONS: Mapping[str, Function] = {
    **{f"{op} {dtype}": function for (op, dtype), function in OF_TYPE.items()},
    "power": power_of_integers,
    "select": select,
    "infinite": is_infinite,
    "nan": is_nan,
}
"""All of them that a size of a run is derived by, by names for files."""
