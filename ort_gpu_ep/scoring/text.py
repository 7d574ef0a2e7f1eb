"""CSV files, with an index of where rows begin."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.scoring.columns import Rows
from ort_gpu_ep.scoring.require import require

_CHUNK = 1 << 22

_EVERY = 1024
"""Rows between two entries of the index."""


class CsvFile:
    """With a line of names. Values stay texts until a model wants numbers of them; keys stay as they are written."""

    groups: tuple[int, ...] = ()

    def __init__(self, path: Path) -> None:
        self._csv, self.path = require("pyarrow.csv", str(path)), path
        with path.open("rb") as file:
            self._offsets, self.rows = _index(file)
            file.seek(0)
            header = file.read(self._offsets[0])
        if not self.rows:
            raise ScoringError(f"{path}: a line of names and no rows")
        names = self._csv.read_csv(
            io.BytesIO(header.removeprefix(b"\xef\xbb\xbf") + b"\n"), parse_options=self._options()
        ).column_names
        if len(set(names)) < len(names):
            raise ScoringError(f"{path}: two columns have the same name: {', '.join(names)}")
        self._names = names
        self.kinds: dict[str, Any] = dict.fromkeys(names)

    def _options(self) -> Any:
        return self._csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=True)

    def read(self, start: int, stop: int, names: Sequence[str]) -> Rows:
        import pyarrow as pa

        first = start // _EVERY
        last = min(-(-stop // _EVERY), len(self._offsets) - 1)
        with self.path.open("rb") as file:
            file.seek(self._offsets[first])
            data = file.read(self._offsets[last] - self._offsets[first])
        texts = dict.fromkeys(names, pa.string())
        convert = self._csv.ConvertOptions(column_types=texts, include_columns=list(names), strings_can_be_null=True)
        reading = self._csv.ReadOptions(column_names=self._names, block_size=max(len(data), 1), use_threads=False)
        try:
            table = self._csv.read_csv(pa.BufferReader(data), reading, self._options(), convert)
        except pa.ArrowInvalid as error:
            raise ScoringError(
                f"{self.path}: a line behind row {first * _EVERY} (counted from 0): {error}. Mend it; the "
                f"file counts as "
                "another one then, so score into a new output. What was scored stays"
            ) from error
        table = table.slice(start - first * _EVERY, stop - start)
        if table.num_rows != stop - start:
            raise ScoringError(
                f"{self.path}: rows {start} to {stop - 1}: got {table.num_rows} rows; a quote that is not "
                f"closed, or the "
                "file has changed since it was opened"
            )
        return Rows(stop - start, {name: table.column(name) for name in names})

    def close(self) -> None:
        """No file stays open."""


def _index(file: Any) -> tuple[list[int], int]:
    """(where row 0, 1024, 2048, ... begin and where the last one ends, how many there are). Empty lines are no rows."""
    offsets, place, rows, quotes, previous = list[int](), 0, -1, 0, -1
    while data := file.read(_CHUNK):
        codes = np.frombuffer(data, np.uint8)
        inside = (np.cumsum(codes == 34) + quotes) & 1
        ends = np.flatnonzero((codes == 10) & (inside == 0)) + place
        quotes += int(np.count_nonzero(codes == 34))
        begins = np.concatenate(([previous], ends[:-1])) if len(ends) else ends
        full = ends[_is_full(codes, begins, ends, place)]
        numbers = np.arange(rows + 1, rows + 1 + len(full))
        offsets += [int(e) + 1 for e in full[numbers % _EVERY == 0]]
        rows, place = rows + len(full), place + len(data)
        previous = int(ends[-1]) if len(ends) else previous
    if place > previous + 1:  # a last line without its end
        rows += 1
        offsets += [place] if rows % _EVERY == 0 else []
    return [*offsets, place] if not offsets or offsets[-1] != place else offsets, max(rows, 0)


def _is_full(found: Any, begins: Any, ends: Any, place: int) -> Any:
    """Which lines have more than a carriage return."""
    lengths = ends - begins - 1
    before = found[np.clip(ends - place - 1, 0, len(found) - 1)]
    return (lengths > 1) | ((lengths == 1) & (before != 13))
