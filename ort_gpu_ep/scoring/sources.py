"""Input files, readable from any row on."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.files import identity as identity_of
from ort_gpu_ep.scoring.columns import Rows

FORMATS = (
    "Parquet (.parquet), Arrow (.arrow, .feather), CSV (.csv), .npy, .npz, a folder of images, or a folder of these"
)


class File(Protocol):
    """One file, or a folder of images. kinds: the type of each column, numpy's or pyarrow's; None for texts that may be
    numbers.

    groups: rows of each group that the file stores together, () where it has none.
    """

    @property
    def path(self) -> Path: ...

    @property
    def rows(self) -> int: ...

    @property
    def kinds(self) -> Mapping[str, Any]: ...

    @property
    def groups(self) -> tuple[int, ...]: ...

    def read(self, start: int, stop: int, names: Sequence[str]) -> Rows:
        """Columns of some rows. Going on where the last call ended costs nothing extra. Raises ScoringError."""

    def close(self) -> None:
        """Gives the file back."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells whether a file is still the same."""

    path: str
    nbytes: int
    mtime_ns: int
    ctime_ns: int
    rows: int
    groups: int
    listing: str = ""


def identity(file: File) -> Identity:
    """Of a folder of images: of the names, sizes and times of what is in it."""
    if file.path.is_dir():
        facts = [(str(p.relative_to(file.path)), identity_of(p).kept()) for p in file.paths]  # type: ignore[attr-defined]
        listing = hashlib.sha256(repr(facts).encode()).hexdigest()
        return Identity(str(file.path.resolve()), 0, 0, 0, file.rows, 0, listing)
    state = identity_of(file.path)
    return Identity(str(file.path.resolve()), state.nbytes, state.mtime_ns, state.ctime_ns, file.rows, len(file.groups))


def open_sources(data: str | Path | Sequence[str | Path], images: Any) -> list[File]:
    """The files that DATA means, in order. images: makes an images.Images of a folder. Raises ScoringError for what
    can't be read."""
    paths = [data] if isinstance(data, (str, Path)) else list(data)
    if not paths:
        raise ScoringError("no data: give at least one file")
    files = list[File]()
    try:
        for text in paths:
            for file in _opened(text, images):
                files.append(file)
        if not any(file.rows for file in files):
            raise ScoringError(f"{', '.join(str(f.path) for f in files[:3])}: no rows in {len(files)} files")
    except BaseException:
        for file in files:
            file.close()
        raise
    return [file for file in files if file.rows]


def _opened(text: str | Path, images: Any) -> Iterator[File]:
    """One after another: what is open already can be closed when the next one can't be opened."""
    from ort_gpu_ep.scoring.images import SUFFIXES

    path = Path(text)
    if path.is_dir():
        paths = sorted(
            p
            for p in path.rglob("*")
            if p.is_file() and not any(q.startswith(("_", ".")) for q in p.relative_to(path).parts)
        )
        pictures = [p for p in paths if p.suffix.lower() in SUFFIXES]
        if pictures:
            yield images(path, pictures)
            return
        tables = [p for p in paths if p.suffix.lower() in _OPENERS]
        if not tables:
            raise ScoringError(f"{path}: nothing to score in this folder; expected {FORMATS}")
        yield from map(_open, tables)
        return
    matches = [path] if path.exists() else sorted(map(Path, glob.glob(str(text), recursive=True)))
    if not matches:
        raise ScoringError(f"{text}: no such file")
    yield from map(_open, matches)


def _open(path: Path) -> File:
    name = _OPENERS.get(path.suffix.lower())
    if name is None:
        raise ScoringError(f"{path}: unknown kind of file; expected {FORMATS}")
    if path.stat().st_size == 0:
        raise ScoringError(f"{path}: the file is empty (0 bytes); leave it out, or write it again")
    module, _, kind = name.partition(".")
    opener: Callable[[Path], File] = getattr(import_module(f"ort_gpu_ep.scoring.{module}"), kind)
    return opener(path)


_OPENERS = {
    ".parquet": "tables.ParquetFile",
    ".pq": "tables.ParquetFile",
    ".arrow": "tables.ArrowFile",
    ".feather": "tables.ArrowFile",
    ".ipc": "tables.ArrowFile",
    ".csv": "text.CsvFile",
    ".npy": "arrays.NpyFile",
    ".npz": "arrays.NpzFile",
}
