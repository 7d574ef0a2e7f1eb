"""Everything about a run before it starts: model, files, columns, shards. The same on one machine and with Ray."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.scoring import columns, outputs
from ort_gpu_ep.scoring.columns import Packed
from ort_gpu_ep.scoring.images import FILE, IMAGE, Images, preprocessing
from ort_gpu_ep.scoring.model import Model, read_model
from ort_gpu_ep.scoring.parts import Shard, cut
from ort_gpu_ep.scoring.require import require
from ort_gpu_ep.scoring.sources import File, identity, open_sources

SHARD_NBYTES = 32 << 20
SHARD_ROWS = 65536
"""The most in a shard, where nothing else is asked for: what is lost when a run is killed, and what the memory holds a
few of."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asks for; plain data. See `score` for each of them."""

    model: str
    data: tuple[str, ...]
    columns: tuple[tuple[str, str], ...] = ()
    key: tuple[str, ...] = ()
    outputs: tuple[str, ...] | None = None
    preprocess: Any = None
    shard_rows: int = 0


class Job:
    """A request, looked up. Raises ScoringError or ModelError for what does not fit together."""

    def __init__(self, request: Request) -> None:
        require("pyarrow", "scoring")
        self.request = request
        self.model: Model = read_model(request.model, request.outputs)
        self.how: Any = None
        self.files: list[File] = open_sources(request.data, self._images)
        try:
            self._look_up()
        except BaseException:
            self.close()
            raise
        self._lock = threading.Lock()

    def _look_up(self) -> None:
        """Columns, key and shards, checked in each file."""
        request, first = self.request, self.files[0]
        there = list(first.kinds) if self.how is None else [IMAGE]
        self.columns = columns.mapping(self.model, there, dict(request.columns), str(first.path))
        self.key = list(request.key) or ([FILE] if self.how is not None else [])
        taken = {v.name for v in self.model.outputs} | {outputs.ERROR}
        for name in self.key:
            if name not in first.kinds:
                raise ScoringError(
                    f"{first.path}: no column {name!r} for the key; it has {', '.join(map(str, first.kinds))}"
                )
            if name in taken:
                raise ScoringError(f"key {name!r}: an output of the model has this name, too; rename the column")
        for file in self.files:
            self._check(file)
        self.shard_rows = request.shard_rows or max(1, min(SHARD_ROWS, SHARD_NBYTES // max(self.model.row_nbytes(), 1)))
        self.shards: list[Shard] = list(cut([f.rows for f in self.files], self.shard_rows))

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def _images(self, path: Path, paths: Sequence[Path]) -> File:
        names = [name for name, text in self.request.columns if text == IMAGE]
        value = next((v for v in self.model.inputs if v.name in names), self.model.inputs[0])
        self.how = preprocessing(self.request.preprocess, value)
        return Images(path, paths, self.how)

    def _check(self, file: File) -> None:
        """Raises ScoringError for a file without the columns of the first, or with other types."""
        for value in self.model.inputs:
            for name in self.columns[value.name]:
                if name not in file.kinds:
                    raise ScoringError(
                        f"{file.path}: no column {name!r} for input {value}; it has {', '.join(file.kinds) or 'none'}"
                    )
                if file.kinds[name] is not None:
                    columns.check_type(file.kinds[name], value, name, str(file.path))
        for name in self.key:
            if name not in file.kinds or file.kinds[name] != self.files[0].kinds[name]:
                raise ScoringError(
                    f"{file.path}: the key {name!r} is {file.kinds.get(name, 'missing')}, in "
                    f"{self.files[0].path} it is "
                    f"{self.files[0].kinds[name]}"
                )

    def manifest(self) -> dict[str, Any]:
        """What makes the parts what they are: with another one of these they would be others."""
        return {
            "model": self.model.sha256,
            "outputs": [v.name for v in self.model.outputs],
            "columns": self.columns,
            "key": self.key,
            "preprocess": asdict(self.how) if self.how is not None else None,
            "shard_rows": self.shard_rows,
            "files": [asdict(identity(f)) for f in self.files],
        }

    def unused(self) -> list[str]:
        """Columns of the first file that nobody reads."""
        used = {*self.key, *(name for names in self.columns.values() for name in names)}
        return [name for name in self.files[0].kinds if name not in used]

    def read(self, shard: Shard) -> tuple[Packed, dict[str, Any]]:
        """The rows of a shard as the model takes them, and their keys. Raises ScoringError."""
        names = list(dict.fromkeys([*(n for column in self.columns.values() for n in column), *self.key]))
        with self._lock:
            rows = self.files[shard.file].read(shard.start, shard.stop, names)
        return columns.pack(self.model, self.columns, rows), {name: rows.columns[name] for name in self.key}

    def place(self, shard: Shard, row: int, text: str) -> str:
        """An error of a row, with where the row is."""
        return f"{self.files[shard.file].path}, row {shard.start + row} (counted from 0): {text}"

    def close(self) -> None:
        for file in self.files:
            file.close()


def request_of(model: str | Path, data: str | Path | Sequence[str | Path], given: Mapping[str, Any]) -> Request:
    """Plain data of what a user gives. given: the arguments of `score` that say what to score. Raises ScoringError."""
    paths = [data] if isinstance(data, (str, Path)) else list(data)
    key, preprocess = given.get("key") or (), given.get("preprocess")
    mapped = {
        name: text if isinstance(text, str) else ",".join(text) for name, text in (given.get("columns") or {}).items()
    }
    shard_rows, outputs = int(given.get("shard_rows") or 0), given.get("outputs")
    if shard_rows < 0:
        raise ScoringError(f"shard_rows: got {shard_rows}, expected at least 1, or nothing")
    if isinstance(preprocess, (str, Path)):
        preprocess = os.path.abspath(preprocess)
    return Request(
        os.path.abspath(model),
        tuple(map(os.path.abspath, paths)),
        tuple(mapped.items()),
        (key,) if isinstance(key, str) else tuple(key),
        tuple(outputs) if outputs is not None else None,
        preprocess,
        shard_rows,
    )
