"""Converts columns of a table to inputs of a model, and reports the rows that don't fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.scoring.model import Model, Value

Array = np.ndarray[Any, Any]

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a file. columns: numpy arrays [n, ...] or pyarrow's chunked arrays. errors: by row (0 the first here),
    what is wrong."""

    count: int
    columns: Mapping[str, Any]
    errors: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows as a model takes them. arrays: [m, ...] of the m rows that are right; kept: which ones these are. errors: of
    the others."""

    count: int
    arrays: dict[str, Array]
    kept: Array
    errors: dict[int, str]


def mapping(model: Model, there: Sequence[str], given: Mapping[str, str], where: str) -> dict[str, list[str]]:
    """Which columns each input is made of: those given (`x=pixels`, `x=f0,f1` or `x=f*`), else the one of its name, or
    the only one.

    Raises ScoringError, naming the columns of the first file, `where`.
    """
    names = [v.name for v in model.inputs]
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 1)
            raise ScoringError(
                f"columns {name}={given[name]}: the model has no input {name!r}; it has {', '.join(names)}"
                + (f". Did you mean {near[0]!r}?" if near else "")
            )
    by_input = {}
    for value in model.inputs:
        if value.name in given:
            by_input[value.name] = _matching(given[value.name], there, value, where)
        elif value.name in there or len(there) == len(names) == 1:
            by_input[value.name] = [value.name if value.name in there else there[0]]
        else:
            raise ScoringError(
                f"{where}: no column for input {value}; it has {_listed(there)}. Say which: --columns "
                f"{value.name}=COLUMN"
            )
    return by_input


def _matching(text: str, there: Sequence[str], value: Value, where: str) -> list[str]:
    matches = list[str]()
    for part in text.split(","):
        fitting = [name for name in there if name == part] or [name for name in there if fnmatchcase(name, part)]
        if not fitting:
            raise ScoringError(f"{where}: columns {value.name}={text}: no column {part!r}; it has {_listed(there)}")
        matches += fitting
    return matches


def _listed(names: Sequence[str]) -> str:
    return (
        ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "") or "no columns"
    )


def pack(model: Model, columns: Mapping[str, Sequence[str]], rows: Rows) -> Packed:
    """The rows as the model takes them; what is wrong with a row is an error of that row, never an exception."""
    errors, packed = dict(rows.errors), dict[str, tuple[Array, Array]]()
    for value in model.inputs:
        parts = [_dense(rows.columns[name], name, rows.count, errors) for name in columns[value.name]]
        packed[value.name] = _joined(parts, value, columns[value.name], errors)
    kept = np.setdiff1d(np.arange(rows.count), np.fromiter(errors, int, len(errors)))
    arrays = {}
    for value in model.inputs:
        array, there = packed[value.name]
        chosen = array if len(kept) == len(there) else array[np.searchsorted(there, kept)]
        arrays[value.name] = _typed(chosen, value, ", ".join(columns[value.name][:3]), kept, errors)
    if len(errors) > rows.count - len(kept):  # values that the type does not have
        right = np.array([k for k, row in enumerate(kept) if int(row) not in errors], np.int64)
        kept, arrays = kept[right], {name: array[right] for name, array in arrays.items()}
    return Packed(rows.count, arrays, kept, errors)


def _dense(column: Any, name: str, count: int, errors: dict[int, str]) -> tuple[Array, Array]:
    """(values [m, ...], the m rows that have a value)."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "fiub":
        return column, np.arange(count)
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, np.ndarray):  # of lists of several lengths, or of texts
        column = pa.chunked_array([pa.array(list(column))])
    column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    shape: tuple[int, ...] = ()
    if isinstance(column, pa.ExtensionArray):
        shape = tuple(getattr(column.type, "shape", ()))
        column = column.storage
    there = np.arange(count)
    if column.null_count:
        valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
        errors.update({int(row): f"column {name!r} has no value" for row in there[~valid]})
        column, there = column.drop_null(), there[valid]
    while (
        pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type)
    ):
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        length = int(np.bincount(lengths).argmax()) if len(lengths) else 0
        if shape and int(np.prod(shape)) == length:
            return column.flatten().to_numpy(zero_copy_only=False).reshape(len(there), *shape), there
        return _nested(column, lengths, length, name, there, errors)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _numbers(column, name, there, errors)
    return column.to_numpy(zero_copy_only=False), there


def _nested(
    column: Any, lengths: Array, length: int, name: str, there: Array, errors: dict[int, str]
) -> tuple[Array, Array]:
    """Lists of the length that most have; others are errors."""
    import pyarrow as pa

    right = lengths == length
    if not right.all():
        errors.update(
            {
                int(r): f"column {name!r} has {n} values, expected {length} as the other rows have"
                for r, n in zip(there[~right], lengths[~right], strict=True)
            }
        )
        column, there = column.filter(pa.array(right)), there[right]
    flat, inner = column.flatten(), dict[int, str]()
    values, kept = _dense(pa.chunked_array([flat]), name, len(flat), inner)
    if inner:
        bad = np.unique(np.fromiter(inner, int, len(inner)) // max(length, 1))
        errors.update({int(there[b]): f"column {name!r} has a list with a place without a value" for b in bad})
        whole = np.setdiff1d(np.arange(len(there)), bad)
        places = np.searchsorted(kept, (whole[:, None] * length + np.arange(length)).ravel())
        values, there = values[places], there[whole]
    return values.reshape(len(there), length, *values.shape[1:]), there


def _numbers(column: Any, name: str, there: Array, errors: dict[int, str]) -> tuple[Array, Array]:
    """Texts of a CSV file as float64, or int64 where all are whole."""
    import pyarrow as pa

    for kind in (pa.int64(), pa.float64()):
        try:
            return column.cast(kind).to_numpy(), there
        except pa.ArrowInvalid:
            continue
    right, values = list[int](), list[float]()
    for place, text in enumerate(column.to_pylist()):
        try:
            values.append(float(text))
            right.append(place)
        except ValueError:
            errors[int(there[place])] = f"column {name!r} has {text[:40]!r}, expected a number"
    return np.array(values, np.float64), there[right]


def _joined(
    parts: list[tuple[Array, Array]], value: Value, names: Sequence[str], errors: dict[int, str]
) -> tuple[Array, Array]:
    """One array of the columns of an input, [m, *sizes of a row]; rows of other sizes than the model's are errors."""
    if len(parts) == 1:
        array, there = parts[0]
    else:
        there = parts[0][1]
        for _, other in parts[1:]:
            there = np.intersect1d(there, other, assume_unique=True)
        array = np.stack([a[np.searchsorted(rows, there)] for a, rows in parts], axis=1)
    shape = _shape(array.shape[1:], value)
    if shape is None:
        got = "x".join(map(str, array.shape[1:])) or "one"
        errors.update(
            dict.fromkeys(map(int, there), f"column {names[0]!r} has {got} values in a row, expected {value}")
        )
        return np.empty((0, *(d or 0 for d in value.inner))), there[:0]
    return array.reshape(len(there), *shape), there


def _shape(got: tuple[int, ...], value: Value) -> tuple[int, ...] | None:
    """Sizes of a row for what has the sizes `got`; None where they don't fit. A flat list takes the model's, ones don't
    matter."""
    shape = value.inner
    if len(got) == len(shape) and all(w is None or w == g for g, w in zip(got, shape, strict=True)):
        return got
    fixed, open_sizes = [d for d in shape if d is not None], shape.count(None)
    total, fixed_size = int(np.prod(got)), int(np.prod(fixed))
    if open_sizes == 0 and (
        (len(got) <= 1 and total == fixed_size) or [d for d in got if d != 1] == [d for d in fixed if d != 1]
    ):
        return tuple(fixed)
    if open_sizes == 1 and len(got) <= 1 and fixed_size and total % fixed_size == 0:
        return tuple(total // fixed_size if d is None else d for d in shape)
    return None


def _typed(array: Array, value: Value, name: str, rows: Array, errors: dict[int, str]) -> Array:
    """As the model's type. A row with a number that the type does not have is an error of that row."""
    dtype = np.dtype(value.dtype)
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    if dtype.kind == "f" or np.can_cast(array.dtype, dtype, "safe"):
        return np.ascontiguousarray(array, dtype)
    with np.errstate(invalid="ignore"):
        typed = array.astype(dtype)
    bad = (typed != array).reshape(len(array), -1)
    for place in np.flatnonzero(bad.any(axis=1)):
        got = array.reshape(len(array), -1)[place][bad[place]][0]
        errors[int(rows[place])] = f"column {name!r} has {got}, expected an {value.dtype}"
    return np.ascontiguousarray(typed)


def check_type(kind: Any, value: Value, name: str, where: str) -> None:
    """Raises ScoringError for a column that can't be what the input takes. kind: a numpy dtype or pyarrow's type."""
    text = str(kind)
    if isinstance(kind, np.dtype):
        fits = kind.kind in "fiub"
    else:
        import pyarrow as pa

        while hasattr(kind, "storage_type") or hasattr(kind, "value_type"):
            kind = kind.storage_type if hasattr(kind, "storage_type") else kind.value_type
        fits = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not fits:
        raise ScoringError(f"{where}: column {name!r} is of {text}, expected numbers for input {value}")
