"""The output while it is made: a manifest that says what of, and a part a shard, there as a whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ort_gpu_ep import store
from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.files import new_file, open_regular

FORMAT = 1

MANIFEST, LOCK, REPORT = "_manifest.json", "_lock", "_report.json"
"""Readers of Parquet folders leave out what begins with an underscore."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows of a file that are committed together. first: its first row's number in the whole data."""

    number: int
    file: int
    start: int
    stop: int
    first: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def name(self) -> str:
        return f"part-{self.number:07d}.parquet"


def cut(rows: Sequence[int], shard_rows: int) -> Iterator[Shard]:
    """rows: of each file. A shard does not cross files."""
    number = first = 0
    for file, count in enumerate(rows):
        for start in range(0, count, shard_rows):
            stop = min(start + shard_rows, count)
            yield Shard(number, file, start, stop, first)
            number, first = number + 1, first + stop - start


def folder_of(out: Path) -> Path:
    """Where the parts lie: OUT itself, or OUT.parts where OUT is to be one file."""
    return out.with_name(out.name + ".parts") if out.suffix == ".parquet" else out


@contextmanager
def claimed(out: Path, manifest: Mapping[str, Any]) -> Iterator[Path]:
    """The folder of parts, for this process alone. Raises ScoringError where OUT is something else's, or another run is
    at it."""
    folder = folder_of(out)
    if out.suffix == ".parquet" and out.exists():
        raise ScoringError(f"{out} exists: choose another output, or remove it")
    if folder.exists() and not folder.is_dir():
        raise ScoringError(
            f"{folder} exists and is no folder: choose another output (a name that ends with .parquet asks "
            f"for one file)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MANIFEST).exists() and any(p.name not in (LOCK, MANIFEST + _TEMPORARY) for p in folder.iterdir()):
        raise ScoringError(
            f"{folder} exists and holds something else than parts of an earlier run: choose another output, "
            f"or remove it"
        )
    lock = locked(folder / LOCK)
    try:
        noted = _read(folder / MANIFEST)
        if noted is None:
            write_whole(folder / MANIFEST, json.dumps({"format": FORMAT, **manifest}, indent=1).encode())
        else:
            _compare(folder, noted, {"format": FORMAT, **manifest})
        for rest in folder.glob(f"*{_TEMPORARY}"):
            rest.unlink(missing_ok=True)
        yield folder
    finally:
        lock.close()


def noted(folder: Path) -> dict[str, int]:
    """The batch of each kind of adapter that an earlier run into this output has chosen; 0: it was found to be of no
    help."""
    return dict((_read(folder / MANIFEST) or {}).get(_BATCHES, {}))


def note(folder: Path, batches: Mapping[str, int]) -> None:
    """Adds to the manifest what a later run is to do likewise. No other run would be refused for it."""
    manifest = _read(folder / MANIFEST) or {}
    write_whole(
        folder / MANIFEST,
        json.dumps({**manifest, _BATCHES: {**manifest.get(_BATCHES, {}), **batches}}, indent=1).encode(),
    )


_BATCHES = "batches"

_TEMPORARY = ".tmp"


class LockedError(ScoringError):
    """Another process has the lock."""


def locked(path: Path) -> IO[bytes]:
    """A lock that ends with the process. Raises LockedError."""
    try:
        file = open_regular(path, os.O_RDWR | os.O_CREAT, mode=0o666)
    except OSError as error:
        raise ScoringError(f"{path}: {error}: choose another output, or remove it") from error
    try:
        store.lock(file)
    except OSError as error:
        file.close()
        raise LockedError(
            f"{path.parent}: another process is scoring into this output; wait for it, or choose another"
        ) from error
    return file


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with open_regular(path) as file:
            content = json.loads(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ScoringError(f"{path}: not a manifest ({error}): remove the output, or choose another one") from error
    return dict(content)


def _compare(folder: Path, known: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises ScoringError, saying what is different."""
    wanted = json.loads(json.dumps(wanted))
    for key, value in wanted.items():
        if known.get(key) != value:
            raise ScoringError(
                f"{folder} holds the output of another run: {_difference(key, known.get(key), value)}. Choose another "
                "output, or remove it; to go on with it, give what it was begun with"
            )


def _difference(key: str, before: Any, now: Any) -> str:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        name = next(k for k in (*now, *before) if before.get(k) != now.get(k))
        return _difference(f"{key} {name}", before.get(name), now.get(name))
    if isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            return f"{key}: {len(before)} then, {len(now)} now"
        place = next(k for k, (b, n) in enumerate(zip(before, now, strict=True)) if b != n)
        name = now[place].get("path", place) if isinstance(now[place], Mapping) else place
        return _difference(f"{key} {name}", before[place], now[place])
    return f"{key} was {before!r}, is {now!r}"


def is_done(folder: Path, shard: Shard) -> bool:
    """Whether the part of a shard is there. Only what was whole when it was written has this name; it may have been
    damaged since."""
    path = folder / shard.name
    if path.is_symlink() or not path.is_file():
        return False
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        return bool(parquet.read_metadata(path).num_rows == shard.rows)
    except (pa.ArrowException, OSError):
        return False


def commit(folder: Path, shard: Shard, table: Any) -> None:
    """Writes the part of a shard: there as a whole afterwards, whatever happens meanwhile. Raises OSError."""
    import pyarrow.parquet as parquet

    temporary = folder / f"{shard.name}.{os.getpid()}{_TEMPORARY}"
    with new_file(temporary) as file:
        parquet.write_table(table, file, compression="zstd")
    _put(temporary, folder / shard.name)


def write_whole(path: Path, data: bytes) -> None:
    """A small file, there as a whole or not at all."""
    temporary = path.with_name(path.name + _TEMPORARY)
    with new_file(temporary) as file:
        file.write(data)
    _put(temporary, path)


def _put(temporary: Path, path: Path) -> None:
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    if os.name == "posix":  # the name, too, is to be there after the power has failed
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def merge(folder: Path, out: Path, shards: Sequence[Shard]) -> None:
    """The parts as one file, in order; the folder goes away. A part at a time is in memory."""
    import shutil

    import pyarrow.parquet as parquet

    temporary = folder / f"{out.name}{_TEMPORARY}"
    schema = parquet.read_schema(folder / shards[0].name)
    with new_file(temporary) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for shard in shards:
            writer.write_table(parquet.read_table(folder / shard.name, partitioning=None))
    _put(temporary, out)
    shutil.rmtree(folder)
