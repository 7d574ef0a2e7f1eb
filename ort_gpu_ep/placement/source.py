"""The model file of a session, kept open so that candidates can be created after the file is gone or replaced."""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

import onnxruntime

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.files import PRIVATE_FILE, open_regular
from ort_gpu_ep.ir import external
from ort_gpu_ep.ir.model_file import op_types
from ort_gpu_ep.plugin import CPU_PROVIDER, EP_NAME, PlainSession, ort_session

settings_lock = threading.RLock()
"""Held while SessionOptions of a program, which may be those of several sessions, are changed for a moment, and where they are read."""

PART_NBYTES = 1 << 20
"""Of a file, read at a time."""


class Source:
    """A model as it is now. Thread-safe.

    model: path or bytes. folder: of a model in memory, where its external data lie; the current one by default. Files are held open, those
    of external data too (not on Windows, where nobody could delete them then): that takes no memory, and what is deleted or replaced
    meanwhile is copied to a temporary folder where it is needed. What is overwritten in place is gone: all that would read it then raises
    ModelError, for it may be another model.
    """

    def __init__(self, model: str | bytes, folder: str = "") -> None:
        self._model = os.path.abspath(model) if isinstance(model, str) else model
        self._path = self._model if isinstance(self._model, str) else ""
        self._folder = os.path.dirname(self._path) if self._path else os.path.abspath(folder or os.getcwd())
        self._follows = not self._path and not folder       # onnxruntime looks in the folder that is the current one when it opens it
        self._lock = threading.Lock()
        self._held: dict[str, BinaryIO] = {}        # by location; the model's own file by ""
        self._written: dict[str, tuple[int, int]] = {}
        self._digest: bytes | None = None
        weakref.finalize(self, _close, self._held)
        if os.name != "nt":
            self._hold()
        self._written = self._last_written()

    def digest(self) -> bytes:
        """See `digest_of`; read once. Raises OSError, ModelError."""
        if self._digest is None:
            with self._lock:
                found = digest_of(self._model, self._held.get(""))
            self._check()
            self._digest = found
        self._check()
        return self._digest

    @property
    def path_or_bytes(self) -> str | bytes:
        """What it was made of; a path is absolute."""
        return self._model

    @property
    def nbytes(self) -> int:
        """Of its files, as far as they are held open; of bytes, their number."""
        return sum(size for size, _ in self._written.values()) or len(self._model)

    def session(self, settings: Any, names: list[str], options: list[dict[str, str]], kwargs: Mapping[str, Any]) -> Any:
        """A session of the model. Raises what onnxruntime raises, and ModelError."""
        kind = PlainSession if EP_NAME in names else ort_session      # without callbacks of ours, Ctrl-C needs no care: half a microsecond
        whole = settings_lock if names == [CPU_PROVIDER] else nullcontext()       # another session may have fewer threads set in them
        with whole, not_written(settings), self.there() as model:
            return kind(model, settings, names, options, **kwargs)

    def _hold(self) -> None:
        """Opens the files. One that can't be is onnxruntime's to complain about, if it reads that at all."""
        with suppress(OSError):
            if self._path:
                self._held[""] = open_regular(Path(self._path), follow=True)
            for location in self._locations():
                with suppress(ModelError):
                    self._held[location] = external.open_location(location, self._folder, self._path)

    def _last_written(self) -> dict[str, tuple[int, int]]:
        """Of each file, its size and time of change. Without held files, of the model's own."""
        found, files = {}, dict[str, int | str]((name, file.fileno()) for name, file in self._held.items())
        if not files and self._path:
            files[""] = self._path
        with suppress(OSError):     # deleted: onnxruntime says so
            for name, file in files.items():
                state = os.stat(file)
                found[name] = state.st_size, state.st_mtime_ns
        return found

    def _check(self) -> None:
        """Raises ModelError where a file has been written to since the session was made."""
        for name, written in self._last_written().items():
            if self._written.get(name, written) != written:
                raise ModelError(f"{os.path.join(self._folder, name) if name else self._path} was overwritten after the session had been "
                                 "made of it. The session goes on with what it has; make a new one for the file as it is now, and put a "
                                 "new model in a file's place by os.replace.")

    def _locations(self) -> list[str]:
        if isinstance(self._model, bytes):
            return external.locations(self._model)
        return _locations_of(self._held[""])

    def op_types(self) -> frozenset[str]:
        """See model_file.op_types. Raises OSError, ValueError for what is no ONNX model."""
        if isinstance(self._model, bytes):
            return op_types(self._model)
        held = self._held.get("")
        with nullcontext(held) if held is not None else open_regular(Path(self._model), follow=True) as file, \
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return op_types(data)

    @contextmanager
    def there(self) -> Iterator[str | bytes]:
        """The model where onnxruntime finds all of it. Raises ModelError, also where it changes meanwhile."""
        self._check()
        if self._is_there():
            yield self._model
            self._check()
            return
        with tempfile.TemporaryDirectory(prefix="ort_gpu_ep-") as folder:
            path = self._copied(folder)
            self._check()
            yield path

    def _is_there(self) -> bool:
        if self._follows and self._held and os.getcwd() != self._folder:
            return False
        try:
            paths = {name: external.path_of(name, self._folder, self._path) if name else self._path for name in self._held}
            return all(os.path.samestat(os.stat(paths[name]), os.fstat(file.fileno())) for name, file in self._held.items())
        except (OSError, ModelError):
            return False

    def _copied(self, folder: str) -> str:
        """The path of a copy in a folder of ours. Files of external data have numbers for names: those in the model mean what they like."""
        numbers = {location: str(number) for number, location in enumerate(filter(None, self._held))}
        with self._lock:
            for location, number in numbers.items():
                _copy(self._held[location], os.path.join(folder, number))
            path = os.path.join(folder, "model" + (os.path.splitext(self._path)[1] or ".onnx"))
            own = io.BytesIO(self._model) if isinstance(self._model, bytes) else self._held[""]
            _copy(external.relocated(own, numbers) if numbers else own, path)
        return path


def _copy(source: BinaryIO, path: str) -> None:
    """For this user only: the file that it is a copy of may have been."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), PRIVATE_FILE), "wb") as into:
        source.seek(0)
        shutil.copyfileobj(source, into)


@contextmanager
def not_written(settings: Any) -> Iterator[None]:
    """Keeps onnxruntime from writing the optimised model, which fails for one with nodes of ours; see `write_optimized`."""
    if settings is None or not settings.optimized_model_filepath:
        yield
        return
    with settings_lock:
        path, settings.optimized_model_filepath = settings.optimized_model_filepath, ""
        try:
            yield
        finally:
            settings.optimized_model_filepath = path


@contextmanager
def with_profiler(settings: Any, prefix: str, most: onnxruntime.GraphOptimizationLevel | None = None) -> Iterator[None]:
    """Sessions made meanwhile have onnxruntime's profiler on; its file's path begins with `prefix`. most: of optimisation."""
    with settings_lock:
        kept = settings.enable_profiling, settings.profile_file_prefix, settings.graph_optimization_level
        settings.enable_profiling, settings.profile_file_prefix = True, prefix
        if most is not None and kept[2] != onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL:
            settings.graph_optimization_level = most
        try:
            yield
        finally:
            settings.enable_profiling, settings.profile_file_prefix, settings.graph_optimization_level = kept


def write_optimized(model: str | bytes, settings: Any, kwargs: Mapping[str, Any]) -> None:
    """Writes `optimized_model_filepath`, if the settings ask for it: the model as it is for the CPU."""
    if settings is not None and settings.optimized_model_filepath:
        PlainSession(model, settings, [CPU_PROVIDER], [{}], **kwargs)


def digest_of(model: str | bytes, file: BinaryIO | None = None) -> bytes:
    """Of what a model's own file holds; external data count by the size and time of change of their files.

    file: the model's own file, where it is open. Raises OSError.
    """
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(model, bytes):
        digest.update(model)
        return digest.digest()
    with open_regular(Path(model), follow=True) if file is None else nullcontext(file) as source:
        source.seek(0)
        part = bytearray(PART_NBYTES)       # not the whole: that would be one more copy of all weights in memory
        while count := source.readinto(part):       # type: ignore[attr-defined]
            digest.update(memoryview(part)[:count])
        names = _locations_of(source)
    for name in names:
        try:
            found = os.stat(external.path_of(name, os.path.dirname(os.path.abspath(model)), model))
            facts = f"{found.st_size} {found.st_mtime_ns}"
        except ModelError:
            facts = "none"      # onnxruntime does not read it either
        digest.update(f"{name} {facts}".encode("utf-8", "surrogateescape"))
    return digest.digest()


def _locations_of(file: BinaryIO) -> list[str]:
    if not os.fstat(file.fileno()).st_size:
        return []
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return external.locations(data)


def _close(held: dict[str, BinaryIO]) -> None:
    for file in held.values():
        file.close()
