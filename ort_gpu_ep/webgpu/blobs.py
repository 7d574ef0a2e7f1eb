"""What a library keeps of a pipeline that it has compiled, as pieces of bytes under keys that only it can read: of Dawn
the parsed text, the backend's text and the driver's machine code (its blob cache).

Who compiles a pipeline lends it what an earlier process has kept (runtime/artefact.py). The library asks on the thread
that compiles; on another one, and at any other time, there is nothing, and nothing is taken.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256

MOST_NBYTES = 4 << 20, 8
"""Of one blob, and how many a pipeline may have: Dawn has three, of 30 kB together (lavapipe)."""


class Blobs:
    """Those of one pipeline. kept: by a hash of the library's key. changed: whether something came since it was last
    set to False."""

    __slots__ = ("_asked", "changed", "kept")

    def __init__(self, kept: Mapping[str, bytes] | None = None) -> None:
        self.kept, self.changed, self._asked = dict(kept or {}), False, set[str]()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The library may load and store meanwhile, on this thread. Where it stores, what it did not ask for goes: it
        is of another version."""
        _thread.blobs = self
        self._asked.clear()
        stored, self.changed = self.changed, False
        try:
            yield
        finally:
            _thread.blobs = None
            if self.changed:
                self.kept = {key: blob for key, blob in self.kept.items() if key in self._asked}
            self.changed |= stored

    def load(self, key: bytes) -> bytes:
        """Empty where there is none."""
        name = _name(key)
        self._asked.add(name)
        return self.kept.get(name, b"")

    def store(self, key: bytes, blob: bytes) -> None:
        most_nbytes, most = MOST_NBYTES
        name = _name(key)
        self._asked.add(name)
        if 0 < len(blob) <= most_nbytes and len(self._asked) <= most:
            self.kept[name], self.changed = blob, True


class _Thread(threading.local):
    """Of which pipeline a thread is at work."""

    blobs: Blobs | None = None


_thread = _Thread()


def _name(key: bytes) -> str:
    return sha256(key).hexdigest()[:32]


def current() -> Blobs | None:
    """Those that are lent to the library on this thread."""
    return _thread.blobs
