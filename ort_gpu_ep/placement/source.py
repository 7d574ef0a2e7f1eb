"""The model file of a session, kept open so that candidates can be created after the file is gone or replaced."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.ir.model_file import op_types, stored_tensors
from ort_gpu_ep.plugin import CPU_PROVIDER, EP_NAME, PlainSession, ort_session

if TYPE_CHECKING:
    import onnx

settings_lock = threading.RLock()
"""Held while SessionOptions of a program, which may be those of several sessions, are changed for a moment, and where they are read."""

PART_NBYTES = 1 << 20
"""Of a file, read at a time."""


class Source:
    """A model as it is now. Thread-safe.

    model: path or bytes. Files are held open, weights of their own too (not on Windows, where nobody could delete them then): that takes
    no memory, and what is deleted or replaced meanwhile is copied to a temporary folder where it is needed. What is overwritten in place
    is gone: all that would read it then raises ModelError, for it may be another model.
    """

    def __init__(self, model: str | bytes) -> None:
        self._model = os.path.abspath(model) if isinstance(model, str) else model
        self._folder = os.path.dirname(self._model) if isinstance(self._model, str) else os.getcwd()
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}       # path -> file descriptor
        self._written: dict[str, tuple[int, int]] = {}
        self._digest: bytes | None = None
        weakref.finalize(self, _close, self._held)
        if os.name != "nt":
            self._hold()
        self._written = self._last_written()

    def digest(self) -> bytes:
        """See `digest_of`; read once. Raises OSError, ModelError."""
        if self._digest is None:
            file = self._held.get(self._model) if isinstance(self._model, str) else None
            with self._lock:
                found = digest_of(self._model, file)
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

    def proto(self, most_nbytes: int) -> onnx.ModelProto:
        """The model with its weights. Raises ModelError where they are more, OSError, what onnx raises."""
        import onnx

        if self.nbytes > most_nbytes:
            raise ModelError(f"the model has {self.nbytes >> 20} MiB")
        with self.there() as model:
            return onnx.load_model_from_string(model) if isinstance(model, bytes) else onnx.load(model)

    def _hold(self) -> None:
        """Opens the files. One that can't be is onnxruntime's to complain about."""
        try:
            if isinstance(self._model, str):
                self._held[self._model] = os.open(self._model, os.O_RDONLY)
            for location in self._locations():
                path = os.path.join(self._folder, location)
                self._held[path] = os.open(path, os.O_RDONLY)
        except OSError:
            return

    def _last_written(self) -> dict[str, tuple[int, int]]:
        """Of each file, its size and time of change. Without held files, of the model's own."""
        found, files = {}, dict[str, int | str](self._held)
        if not files and isinstance(self._model, str):
            files[self._model] = self._model
        with suppress(OSError):     # deleted: onnxruntime says so
            for path, file in files.items():
                state = os.stat(file)
                found[path] = state.st_size, state.st_mtime_ns
        return found

    def _check(self) -> None:
        """Raises ModelError where a file has been written to since the session was made."""
        for path, written in self._last_written().items():
            if self._written.get(path, written) != written:
                raise ModelError(f"{path} was overwritten after the session had been made of it. The session goes on with what it has; "
                                 "make a new one for the file as it is now, and put a new model in a file's place by os.replace.")

    def _locations(self) -> Iterable[str]:
        if isinstance(self._model, bytes):
            return external_files(self._model)
        return _external_files_of(self._held[self._model])

    def op_types(self) -> frozenset[str]:
        """See model_file.op_types. Raises OSError, ValueError for what is no ONNX model."""
        if isinstance(self._model, bytes):
            return op_types(self._model)
        held = self._held.get(self._model)
        with (open(self._model, "rb") if held is None else os.fdopen(os.dup(held), "rb")) as file, \
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return op_types(data)

    @contextmanager
    def there(self) -> Iterator[str | bytes]:
        """The model where onnxruntime finds all of it. Raises ModelError, also where it changes meanwhile."""
        self._check()
        if all(_is_there(path, file) for path, file in self._held.items()) and (
                isinstance(self._model, str) or not self._held or os.getcwd() == self._folder):
            yield self._model
            self._check()
            return
        with tempfile.TemporaryDirectory(prefix="ort_gpu_ep-") as folder:
            for path, file in self._held.items():
                self._copy(file, Path(folder) / os.path.relpath(path, self._folder))
            self._check()
            if isinstance(self._model, str):
                yield str(Path(folder) / os.path.basename(self._model))
            else:
                (Path(folder) / "model.onnx").write_bytes(self._model)
                yield str(Path(folder) / "model.onnx")

    def _copy(self, file: int, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, os.fdopen(os.dup(file), "rb") as source, target.open("wb") as into:
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


def digest_of(model: str | bytes, file: int | None = None) -> bytes:
    """Of what a model's own file holds; content in files of its own (external data) counts by its size and time of change.

    file: the descriptor of the model's own file, where it is open. Raises OSError.
    """
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(model, bytes):
        digest.update(model)
        return digest.digest()
    with open(model, "rb") if file is None else os.fdopen(os.dup(file), "rb") as source:
        source.seek(0)
        part = bytearray(PART_NBYTES)       # not the whole: that would be one more copy of all weights in memory
        while count := source.readinto(part):
            digest.update(memoryview(part)[:count])
        names = _external_files_of(source.fileno())
    for name in names:
        found = (Path(model).parent / name).stat()
        digest.update(f"{name} {found.st_size} {found.st_mtime_ns}".encode())
    return digest.digest()


def _external_files_of(file: int) -> list[str]:
    if not os.fstat(file).st_size:
        return []
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as data:
        return external_files(data)


def external_files(data: bytes | mmap.mmap) -> list[str]:
    """The files, relative to its own folder, that a model has weights in. None for what is no ONNX model."""
    if data.find(b"location") < 0:
        return []
    try:
        return sorted({tensor.external["location"] for tensor in stored_tensors(data) if "location" in tensor.external})
    except ValueError:
        return []


def _is_there(path: str, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except OSError:
        return False


def _close(held: dict[str, int]) -> None:
    for file in held.values():
        os.close(file)
