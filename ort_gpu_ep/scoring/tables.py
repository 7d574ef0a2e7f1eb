"""Parquet and Arrow files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.scoring.columns import Rows
from ort_gpu_ep.scoring.require import require

_DECODED_ROWS = 16384
"""At a time, of a row group."""


class _Cursor:
    """Batches of an iterator, cut anew. position: the row that comes next."""

    def __init__(self, batches: Iterator[Any], position: int) -> None:
        self._batches, self._rest, self.position = batches, list[Any](), position

    def take(self, count: int) -> list[Any]:
        """Batches of that many rows in all."""
        values, self.position = list[Any](), self.position + count
        while count:
            batch = self._rest.pop() if self._rest else next(self._batches)
            if batch.num_rows > count:
                self._rest.append(batch.slice(count))
                batch = batch.slice(0, count)
            values.append(batch)
            count -= batch.num_rows
        return values

    def skip(self, count: int) -> None:
        self.take(count)


class _Grouped:
    """A file whose rows lie in groups, of which only a part is in memory."""

    def __init__(self, path: Path, schema: Any, groups: Sequence[int]) -> None:
        self.path, self.groups = path, tuple(groups)
        self._ends = list(accumulate(self.groups))
        self.rows = self._ends[-1] if self._ends else 0
        self.kinds = {field.name: field.type for field in schema}
        self._cursor: tuple[tuple[str, ...], _Cursor] | None = None

    def read(self, start: int, stop: int, names: Sequence[str]) -> Rows:
        import pyarrow as pa

        columns = tuple(names)
        try:
            if self._cursor is None or self._cursor[0] != columns or self._cursor[1].position != start:
                first = next(k for k, end in enumerate(self._ends) if end > start)
                begin = self._ends[first] - self.groups[first]
                self._cursor = columns, _Cursor(self._batches(first, list(names)), begin)
                self._cursor[1].skip(start - begin)
            batches = self._cursor[1].take(stop - start)
        except (pa.ArrowException, OSError, StopIteration) as error:
            self._cursor = None
            raise ScoringError(
                f"{self.path}: rows {start} to {stop - 1} can't be read ({error or 'it ends before'}): the file "
                f"is damaged "
                "or was cut short. Write it again; what was scored stays"
            ) from error
        table = pa.Table.from_batches(batches)
        return Rows(stop - start, {name: table.column(name) for name in names})

    def _batches(self, first: int, names: list[str]) -> Iterator[Any]:
        raise NotImplementedError


class ParquetFile(_Grouped):
    """Row groups are decoded a part at a time."""

    def __init__(self, path: Path) -> None:
        parquet = require("pyarrow.parquet", str(path))
        import pyarrow as pa

        try:
            self._file = parquet.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise ScoringError(
                f"{path}: not a whole Parquet file ({error}); expected one that ends with a footer. Write it again, or "
                "leave it out"
            ) from error
        facts = self._file.metadata
        super().__init__(
            path, self._file.schema_arrow, [facts.row_group(k).num_rows for k in range(facts.num_row_groups)]
        )

    def _batches(self, first: int, names: list[str]) -> Iterator[Any]:
        for group in range(first, len(self.groups)):
            yield from self._file.iter_batches(_DECODED_ROWS, row_groups=[group], columns=names)

    def close(self) -> None:
        self._cursor = None
        self._file.close()


class ArrowFile(_Grouped):
    """Arrow's IPC file format (Feather 2), mapped into memory."""

    def __init__(self, path: Path) -> None:
        pa = require("pyarrow", str(path))
        try:
            self._file = pa.ipc.open_file(pa.memory_map(str(path)))
            groups = [self._file.get_batch(k).num_rows for k in range(self._file.num_record_batches)]
        except (pa.ArrowException, OSError) as error:
            raise ScoringError(
                f"{path}: not a whole Arrow file ({error}); expected the IPC file format (pyarrow.ipc.new_file), not a "
                "stream"
            ) from error
        super().__init__(path, self._file.schema, groups)

    def _batches(self, first: int, names: list[str]) -> Iterator[Any]:
        for k in range(first, len(self.groups)):
            yield self._file.get_batch(k).select(names)

    def close(self) -> None:
        self._cursor = None
