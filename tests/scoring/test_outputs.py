"""Outputs become columns; rows that were left out are null in each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.scoring.model import Value
from ort_gpu_ep.scoring.outputs import columns


def listed(column: Any) -> Any:
    return getattr(column, "storage", column).to_pylist()


@pytest.mark.parametrize(
    ("inner", "row", "shape"),
    [
        ((), 0.0, None),
        ((3,), [0.0, 1.0, 2.0], None),
        ((2, 2), [0.0, 1.0, 2.0, 3.0], None),
        ((None,), [0.0, 1.0], None),
        ((2, None), [0.0, 1.0, 2.0, 3.0], [2, 2]),
    ],
)
def test_rows_that_were_left_out_are_null(inner: tuple[int | None, ...], row: Any, shape: Any) -> None:
    value, sizes = Value("y", "float32", inner), tuple(d or 2 for d in inner)
    piece = np.arange(np.prod(sizes, dtype=int), dtype="f").reshape(1, *sizes)
    for pieces, kept in (
        ([], []),
        ([piece], [1]),
        ([piece, piece], [0, 2]),
        ([np.concatenate([piece] * 3)], [0, 1, 2]),
    ):
        found = columns(value, pieces, np.array(kept, int), 3)
        assert set(found) == ({"y"} if shape is None else {"y", "y.shape"})
        assert listed(found["y"]) == [row if k in kept else None for k in range(3)]
        if shape is not None:
            assert listed(found["y.shape"]) == [shape if k in kept else None for k in range(3)]
