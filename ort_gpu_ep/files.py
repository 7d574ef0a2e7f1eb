"""Opens files that may be anything by now: a FIFO, a device, a link that somebody else has put there."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


def open_regular(path: Path, flags: int = os.O_RDONLY, follow: bool = False) -> BinaryIO:
    """An open file, made for this user only if the flags say so. Raises OSError for what is no file: a FIFO, a device, a folder.

    follow: whether it may be a symbolic link.
    """
    extra = ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY", *(() if follow else ("O_NOFOLLOW",)))    # not all systems have all of them
    handle = os.open(path, flags | sum(getattr(os, name, 0) for name in extra), PRIVATE_FILE)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no regular file")
        return os.fdopen(handle, "rb" if flags & (os.O_RDWR | os.O_WRONLY) == 0 else "r+b" if flags & os.O_RDWR else "wb")
    except BaseException:
        os.close(handle)
        raise
