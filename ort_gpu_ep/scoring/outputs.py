"""From a model's outputs to columns: types that are the same in every part, and nulls where a row has an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ort_gpu_ep.scoring.columns import Array, Packed
from ort_gpu_ep.scoring.model import Value

ERROR = "error"
"""The column that says why a row has no result."""


Piece = tuple[Mapping[str, Array], Mapping[int, str]]
"""Of rows that went to the model together: outputs of those that it took, and why it refused others, by row of those
that were kept."""


def table(outputs: Sequence[Value], packed: Packed, others: Mapping[str, Any], pieces: Sequence[Piece]) -> Any:
    """A pyarrow table with a row for each row that was packed. others: columns that go through. pieces: in order, of
    all rows kept."""
    import pyarrow as pa

    refused = {int(packed.kept[row]): text for _, errors in pieces for row, text in errors.items()}
    errors = {**packed.errors, **refused}
    kept = np.setdiff1d(packed.kept, np.fromiter(refused, int, len(refused)))
    by_name = {
        name: pa.array(list(c) if c.ndim > 1 else c) if isinstance(c, np.ndarray) else c for name, c in others.items()
    }
    for value in outputs:
        by_name |= columns(value, [arrays[value.name] for arrays, _ in pieces if arrays], kept, packed.count)
    by_name[ERROR] = pa.array(
        [errors.get(row) for row in range(packed.count)] if errors else [None] * packed.count, pa.string()
    )
    return pa.table(by_name)


def arrow_type(value: Value) -> Any:
    """A number; a list of fixed size; a tensor of fixed shape (Arrow's canonical extension type); a list where the size
    is open."""
    import pyarrow as pa

    number = pa.from_numpy_dtype(np.dtype(value.dtype))
    if value.count is None:
        return pa.list_(number)
    if not value.inner:
        return number
    return (
        pa.list_(number, value.count)
        if len(value.inner) == 1
        else pa.fixed_shape_tensor(number, [d or 0 for d in value.inner])
    )


def shape_column(value: Value) -> str:
    """The column with the shapes of rows, for an output of several dimensions of which one is open; else empty."""
    return f"{value.name}.shape" if value.count is None and len(value.inner) != 1 else ""


def columns(value: Value, pieces: Sequence[Array], kept: Array, rows: int) -> dict[str, Any]:
    """The columns of an output. pieces: [m, ...] in order, m rows in all. kept: which of the rows these are; the others
    are null."""
    import pyarrow as pa

    places = np.full(rows, -1, np.int64)
    places[kept] = np.arange(len(kept))
    indices = pa.array(places, mask=places < 0)
    kind, shapes = arrow_type(value), shape_column(value)
    whole = pa.concat_arrays([_array(value, p, kind) for p in pieces]) if pieces else pa.array([], kind)
    filled = {value.name: _filled(whole, indices, kind)}
    if shapes:
        sizes = [list(p.shape[1:]) for p in pieces for _ in range(len(p))]
        filled[shapes] = pa.array(sizes, pa.list_(pa.int64())).take(indices)
    return filled


def _array(value: Value, piece: Array, kind: Any) -> Any:
    import pyarrow as pa

    piece = np.ascontiguousarray(piece)
    flat = pa.array(piece.reshape(-1))
    if value.count is None:
        width = piece.size // max(len(piece), 1)
        return pa.ListArray.from_arrays(pa.array(np.arange(len(piece) + 1, dtype=np.int32) * width), flat)
    if not value.inner:
        return flat
    lists = pa.FixedSizeListArray.from_arrays(flat, value.count)
    return lists if len(value.inner) == 1 else pa.ExtensionArray.from_storage(kind, lists)


def _filled(array: Any, indices: Any, kind: Any) -> Any:
    import pyarrow as pa

    if not indices.null_count:
        return array
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, array.storage.take(indices))
    return array.take(indices)
