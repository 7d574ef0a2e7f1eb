"""Pipelines of a known model, compiled on threads beside what Python and onnxruntime do until they are wanted.

<cache>/pipelines/<key>.json has the texts of the pipelines that sessions of a model compiled. It says nothing that a
session relies on: a pipeline is taken by its text, which the session composes by itself, so a file that is wrong in any
way costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_gpu_ep import store
from ort_gpu_ep.device.background import ending
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.pipelines import compiled, is_checked
from ort_gpu_ep.errors import DeviceError, ShaderError
from ort_gpu_ep.files import identity

log = logging.getLogger("ort_gpu_ep")

FORMAT = 1

MAX_FILES, MAX_NBYTES = 64, 64 << 20
"""Models whose pipelines are known; ResNet-50's take 0.3 MB. The oldest go first."""

MAX_PIPELINES, MAX_BINDINGS = 1024, 64
"""Of a file that is read."""

HEAD_NBYTES = 1 << 20
"""Of a model that is given as bytes: so many tell it from others."""

_thread = threading.local()


@dataclass(frozen=True, slots=True)
class Entry:
    """A pipeline. shader: the file that its text is made of. written, varies, awaited: of its layout, see
    pipelines.bind_group_layout."""

    shader: str
    source: str
    label: str
    written: tuple[bool, ...]
    varies: bool
    awaited: int


def key_of(model: str | bytes, *about: str) -> str:
    """Names the file. A model's file counts by its path, size and times: to be wrong costs time only. Raises OSError.

    about: what else the pipelines follow from: the adapter with its driver, the options.
    """
    if isinstance(model, bytes):
        said = f"{len(model)} {hashlib.blake2b(model[:HEAD_NBYTES]).hexdigest()}"
    else:
        said = f"{os.path.abspath(model)} {identity(model).kept()}"
    return hashlib.sha256("\0".join((said, *about)).encode("utf-8", "surrogateescape")).hexdigest()[:32]


class Known:
    """The pipelines of one model. Thread-safe. As a context manager it is `current()` for the thread, whose programs
    tell it theirs."""

    def __init__(self, cache_path: str, key: str) -> None:
        self._path = Path(cache_path) / "pipelines" / f"{key}.json"
        self._lock, self._changed, self._before = threading.Lock(), False, list[Any]()
        self._entries = {_mark(e.source, e.awaited): e for e in store.read(self._path, FORMAT, _parsed) or ()}
        self._used = set[str]()

    @property
    def shaders(self) -> frozenset[str]:
        """The files that their texts are made of."""
        with self._lock:
            return frozenset(entry.shader for entry in self._entries.values())

    def __enter__(self) -> Known:
        self._before.append(current())
        _thread.known = self
        return self

    def __exit__(self, *error: object) -> None:
        _thread.known = self._before.pop()

    def compile(self, gpu: Gpu, checked: str) -> None:
        """Compiles all that is known, on as many threads as there are cores. The session that needs a pipeline reports
        why it fails.

        checked: the option checked_shaders.
        """

        def one(entry: Entry) -> None:
            if ending() or gpu.lost:
                return
            try:
                safe = is_checked(gpu, checked, entry.shader)
                compiled(
                    gpu, entry.label, entry.shader, entry.source, (entry.written, entry.varies, entry.awaited), safe
                )
            except (ShaderError, DeviceError) as error:
                log.info("a pipeline that is known from before does not compile: %s", str(error)[:200])

        if self._entries:
            with (
                suppress(RuntimeError),
                ThreadPoolExecutor(min(len(self._entries), os.cpu_count() or 1), "ort_gpu_ep-ahead") as pool,
            ):
                # RuntimeError: no thread begins any more at exit
                list(pool.map(one, list(self._entries.values())))

    def note(self, entry: Entry) -> None:
        """A program uses this one."""
        mark = _mark(entry.source, entry.awaited)
        with self._lock:
            self._used.add(mark)
            if mark not in self._entries:
                self._entries[mark] = entry
                self._changed = True

    def save(self) -> None:
        """Writes what is new; what this process did not use goes."""
        with self._lock:
            if not self._changed:
                return
            self._changed = False
            kept = [e for mark, e in self._entries.items() if mark in self._used][:MAX_PIPELINES]
        data = {"pipelines": [[e.shader, e.source, e.label, list(e.written), e.varies, e.awaited] for e in kept]}
        if store.write(self._path, FORMAT, data):
            with suppress(OSError):
                store.make_room(self._path.parent, MAX_FILES, MAX_NBYTES)


@contextmanager
def of_no_model() -> Iterator[None]:
    """The programs that this thread makes meanwhile tell theirs to nobody."""
    before = current()
    _thread.known = None
    try:
        yield
    finally:
        _thread.known = before


def current() -> Known | None:
    """What the sessions that this thread makes tell their pipelines to."""
    known_there: Known | None = getattr(_thread, "known", None)
    return known_there


def _mark(source: str, awaited: int) -> str:
    return f"{hashlib.blake2b(source.encode(), digest_size=16).hexdigest()} {awaited}"


def _parsed(data: Mapping[str, Any]) -> list[Entry]:
    rows = data["pipelines"]
    if not isinstance(rows, list) or len(rows) > MAX_PIPELINES:
        raise ValueError(f"got {type(rows).__name__}, expected a list of at most {MAX_PIPELINES} pipelines")
    return [_entry(*row) for row in rows]


def _entry(shader: Any, source: Any, label: Any, written: Any, varies: Any, awaited: Any) -> Entry:
    texts = all(isinstance(text, str) for text in (shader, source, label))
    flags = (
        isinstance(written, list)
        and len(written) <= MAX_BINDINGS
        and all(isinstance(flag, bool) for flag in (*written, varies))
    )
    if not texts or not flags or type(awaited) is not int or not 0 <= awaited <= MAX_BINDINGS:
        raise ValueError(f"got {str((shader, label, written, varies, awaited))[:100]}, expected a pipeline")
    return Entry(shader, source, label, tuple(written), varies, awaited)
