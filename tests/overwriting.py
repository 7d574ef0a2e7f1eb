"""A file that is written to in place, in the ways that copying programs do it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.patience import until


def overwrite(path: Path, content: bytes) -> None:
    """As `cp` does, later than whatever clock the file system has would tell apart."""
    changed = path.stat().st_mtime_ns + 10**9
    path.write_bytes(content)
    os.utime(path, ns=(changed, changed))


def overwrite_like(path: Path, content: bytes) -> None:
    """As `cp -p`, `rsync -t` and `tar` do with files whose times a build has normalised."""
    before = path.stat()
    until(lambda: _now(path.parent) > before.st_ctime_ns)
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def _now(folder: Path) -> int:
    """By the clock of the file system, which is coarser than others."""
    (folder / "now").write_bytes(b"")
    return (folder / "now").stat().st_ctime_ns
