"""The model file of a session, kept open so that candidates can be created after the file is gone or replaced."""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import onnxruntime

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.files import ChangedError, Held, blocks, content, copy, most_held, open_regular
from ort_gpu_ep.ir import external
from ort_gpu_ep.ir.model_file import op_types
from ort_gpu_ep.plugin import CPU_PROVIDER, EP_NAME, PlainSession, ort_session

T = TypeVar("T")

if TYPE_CHECKING:
    import onnx

settings_lock = threading.RLock()
"""Held while SessionOptions of a program, which may be those of several sessions, are changed for a moment, and where
they are read."""


class Source:
    """A model as it is now. Thread-safe.

    model: path or bytes. folder: of a model in memory, where its external data lie; the current one by default. Files
    are held open, those of external data too: that takes no memory, and what is deleted or replaced meanwhile is copied
    to a temporary folder where it is needed. Those of a model of very many files are not (see files.most_held). What is
    overwritten in place is gone: all that would read it then raises ModelError, for it may be another model.
    """

    def __init__(self, model: str | bytes, folder: str = "") -> None:
        self._model = os.path.abspath(model) if isinstance(model, str) else model
        self._path = self._model if isinstance(self._model, str) else ""
        self._folder = os.path.dirname(self._path) if self._path else os.path.abspath(folder or os.getcwd())
        # onnxruntime looks in the folder that is the current one when it opens it
        self._follows = not self._path and not folder
        self._own: Held | None = None
        self._external: dict[str, Held] = {}  # by location
        self._digest: bytes | None = None
        with suppress(OSError):  # onnxruntime says what is wrong with it
            self._look()

    def digest(self) -> bytes:
        """Of what the model's own file holds; external data count by what tells their files. Read once. Raises OSError,
        ModelError."""
        if self._digest is None:
            digest = hashlib.blake2b(digest_size=16)
            if isinstance(self._model, bytes):
                digest.update(self._model)
            else:
                end = 0
                with self._reading() as file:
                    for at, part in blocks(file):
                        if at != end:  # a hole: without any, the same bytes count the same
                            digest.update(at.to_bytes(8, "little"))
                        digest.update(part)
                        end = at + len(part)
            for location, file_held in self._external.items():
                digest.update(f"{location} {file_held.identity.kept()}".encode("utf-8", "surrogateescape"))
            self._digest = digest.digest()
        self._check()
        return self._digest

    @property
    def path_or_bytes(self) -> str | bytes:
        """What it was made of; a path is absolute."""
        return self._model

    @property
    def nbytes(self) -> int:
        """Of its files; of bytes, their number, and their files'."""
        return sum(file.identity.nbytes for file in self._files()) + (
            len(self._model) if isinstance(self._model, bytes) else 0
        )

    def session(self, settings: Any, names: list[str], options: list[dict[str, str]], kwargs: Mapping[str, Any]) -> Any:
        """A session of the model. Raises what onnxruntime raises, and ModelError."""
        # without callbacks of ours, Ctrl-C needs no care: half a microsecond
        kind = PlainSession if EP_NAME in names else ort_session
        # another session may have fewer threads set in them
        whole = settings_lock if names == [CPU_PROVIDER] else nullcontext()
        with whole, not_written(settings), self.there() as model:
            return kind(model, settings, names, options, **kwargs)

    def proto(self, most_nbytes: int) -> onnx.ModelProto:
        """The model with its weights. Raises ModelError where they are more, OSError, what onnx raises."""
        if self.nbytes > most_nbytes:
            raise ModelError(f"the model has {self.nbytes >> 20} MiB")
        with self.there() as model:
            return external.load(model)

    def _look(self) -> None:
        """Opens the files. One that can't be is onnxruntime's to complain about, if it reads that at all."""
        if isinstance(self._model, bytes):
            locations = external.locations(self._model)
        else:
            self._own = Held(open_regular(Path(self._path), follow=True), self._path)
            locations = self._of_own(external.locations) if self._own.identity.nbytes else []
        # all or none: a part of a model is none; and others want to be held, too
        hold = len(locations) < most_held() // 4
        for location in locations:
            with suppress(ModelError):
                path = external.path_of(location, self._folder, self._path)
                self._external[location] = Held(external.open_location(location, self._folder, self._path), path, hold)

    def _files(self) -> list[Held]:
        return [*([self._own] if self._own is not None else []), *self._external.values()]

    @contextmanager
    def _reading(self) -> Iterator[BinaryIO]:
        """The model's own file. Raises OSError, ModelError."""
        with open_regular(Path(self._path), follow=True) if self._own is None else self._own.opened() as file:
            yield file

    def _of_own(self, ask: Callable[[mmap.mmap], T]) -> T:
        with self._reading() as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return ask(data)

    def _check(self) -> None:
        """Raises ModelError where a file has been written to since the session was made."""
        for file in self._files():
            try:
                file.check()
            except ChangedError as error:
                raise ModelError(
                    f"{error} after the session had been made of it. The session goes on with what it has; make a "
                    f"new one for "
                    "the file as it is now, and put a new model in a file's place by os.replace."
                ) from error
            except OSError:
                pass  # it is gone: onnxruntime says so

    def op_types(self) -> frozenset[str]:
        """See model_file.op_types. Raises OSError, ValueError for what is no ONNX model."""
        return op_types(self._model) if isinstance(self._model, bytes) else self._of_own(op_types)

    @contextmanager
    def there(self) -> Iterator[str | bytes]:
        """The model where onnxruntime finds all of it. Raises ModelError, also where it changes meanwhile."""
        self._check()
        if not all(file.is_held for file in self._files()) or self._is_there():
            yield self._model
            self._check()
            return
        with tempfile.TemporaryDirectory(prefix="ort_gpu_ep-") as folder:
            path = self._copied(folder)
            self._check()
            yield path

    def _is_there(self) -> bool:
        if self._follows and self._external and os.getcwd() != self._folder:
            return False
        try:
            return (self._own is None or self._own.is_there(self._path)) and all(
                file.is_there(external.path_of(location, self._folder, self._path))
                for location, file in self._external.items()
            )
        except (OSError, ModelError):
            return False

    def _copied(self, folder: str) -> str:
        """The path of a copy in a folder of ours. Files of external data have numbers for names: those in the model
        mean what they like."""
        numbers = {location: str(number) for number, location in enumerate(self._external)}
        for location, number in numbers.items():
            with self._external[location].opened() as file, _new(folder, number) as into:
                copy(file, into)
        name = "model" + (os.path.splitext(self._path)[1] or ".onnx")
        with _new(folder, name) as into, self._reading() if self._path else io.BytesIO() as own:
            if isinstance(self._model, bytes):
                into.write(external.relocated(self._model, numbers))
            elif numbers:
                into.write(external.relocated(content(own), numbers))
            else:
                copy(own, into)
        return os.path.join(folder, name)


def _new(folder: str, name: str) -> BinaryIO:
    """For this user only: what it becomes a copy of may have been."""
    return open_regular(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL)


@contextmanager
def not_written(settings: Any) -> Iterator[None]:
    """Keeps onnxruntime from writing the optimised model, which fails for one with nodes of ours; see
    `write_optimized`."""
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
    """Sessions made meanwhile have onnxruntime's profiler on; its file's path begins with `prefix`. most: of
    optimisation."""
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
