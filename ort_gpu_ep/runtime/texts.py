"""Composed shaders on disk: a process that opens a known model reads their texts instead of composing them again.

<cache>/shaders/<key>.wgsl has one line with the format, the key and the hash of the text, and then the text. The key is
a hash of this package's code and of all that the text follows from, so a file of another version is never asked for. A
file that is not as it should be, or that somebody else may have written, is not used: the text is composed, and the
file replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from functools import cache, partial
from pathlib import Path

from ort_gpu_ep import store
from ort_gpu_ep.shaders import compose

FORMAT = "// ort_gpu_ep 1"

MAX_FILE_NBYTES = 1 << 20
"""Of a file that is read: the longest text of the networks in models/ has 60 kB."""

MAX_FILES, MAX_NBYTES = 2048, 32 << 20
"""Of the folder. ResNet-50 has 48 texts of 1 to 75 kB."""

LOOK_EVERY = 64
"""Texts that are written between two looks at how large the folder is."""


class Texts:
    """The folder below a cache path. Thread-safe, also with other processes. code: what the texts of another version
    differ in."""

    def __init__(self, cache_path: str, code: str) -> None:
        self.folder, self._code = Path(cache_path) / "shaders", code
        self._kept = store.SealedFolder(
            self.folder, ".wgsl", FORMAT, MAX_FILE_NBYTES, (MAX_FILES, MAX_NBYTES), LOOK_EVERY
        )

    def get(self, signature: Hashable, make: Callable[[], str]) -> str:
        """The text that follows from `signature`, which has the same repr in every process."""
        key = hashlib.sha256(f"{self._code} {signature!r}".encode()).hexdigest()
        return self._kept.get(key, lambda content: content.decode("utf-8"), make, str.encode)


@cache
def composer(cache_path: str, code: str) -> partial[str]:
    """`compose` with the texts below a cache path."""
    return partial(compose, kept=Texts(cache_path, code).get)
