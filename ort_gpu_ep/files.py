"""Opens files that may be anything by now, a FIFO, a device, a link that somebody else has put there; and knows them
again."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from weakref import WeakValueDictionary

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600

HEAD_NBYTES = 1 << 18
"""Of a file's fingerprint."""


def open_regular(path: Path, flags: int = os.O_RDONLY, follow: bool = False, mode: int = PRIVATE_FILE) -> BinaryIO:
    """An open file, made if the flags say so. Raises OSError for what is no file: a FIFO, a device, a folder.

    follow: whether it may be a symbolic link. mode: of a file that is made; for this user only by default.
    """
    # not all systems have all of them
    extra = ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY", *(() if follow else ("O_NOFOLLOW",)))
    handle = os.open(path, flags | sum(getattr(os, name, 0) for name in extra), mode)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is no regular file")
        return os.fdopen(
            handle, "rb" if flags & (os.O_RDWR | os.O_WRONLY) == 0 else "r+b" if flags & os.O_RDWR else "wb"
        )
    except BaseException:
        os.close(handle)
        raise


def new_file(path: Path) -> BinaryIO:
    """A file of the user's in place of what has its name, which is removed, and not followed where it is a link. Raises
    OSError."""
    path.unlink(missing_ok=True)
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o666)


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write a file at, which then takes the place of `path`: whole, or not at all. A link there is replaced,
    not followed; what is no file (/dev/stdout) is written to.

    Raises OSError with the file's name, how much of it had been written, and the reason.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        yield target
        return
    # writers look at the suffix
    part = target.with_name(f"{target.stem[:80]}.{secrets.token_hex(4)}.part{target.suffix[:20]}")
    try:
        yield part
        if target.exists() and not target.is_symlink():
            os.chmod(part, stat.S_IMODE(target.stat().st_mode))
        os.replace(part, target)
    except OSError as error:
        nbytes = f", after {part.stat().st_size:,} B" if part.exists() else ""
        raise OSError(f"{os.fspath(path)} can't be written{nbytes}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def write_array(path: Path, array: Any) -> None:
    """A .npy file. Raises OSError as `whole`."""
    import numpy as np  # not for the start of a command

    # into one that is not read, numpy writes past Python, and misses errors
    with whole(path) as part, open(part, "w+b") as file:
        np.save(file, array)


def file_names(names: Sequence[str]) -> list[str]:
    """A name of a file, without its ending, for each name out of a model, which may have any characters: no path, and
    no two the same."""
    paths = list[str]()
    for name in (
        re.sub(r"[^\w.+-]", "_", name).encode("utf-8", "replace")[:200].decode("utf-8", "ignore") or "_"
        for name in names
    ):
        taken = {other.casefold() for other in paths}  # not all systems tell A from a
        paths.append(
            next(n for n in (name, *(f"{name}-{k}" for k in range(2, len(names) + 2))) if n.casefold() not in taken)
        )
    return paths


class Identity(NamedTuple):
    """What tells a file from others, and from itself as it was: also from one that was overwritten in place with its
    size and time kept (cp -p, rsync -t, tar), whose time of change of status is another one.
    """

    device: int
    inode: int
    nbytes: int
    mtime_ns: int
    ctime_ns: int

    def kept(self) -> str:
        """For what outlives a boot: numbers of devices and inodes may change with each mount. Nobody can set the last
        of these times."""
        return f"{self.nbytes} {self.mtime_ns} {self.ctime_ns}"


def fingerprint(file: str | bytes) -> str:
    """Tells a file, by its path, or bytes from most others: by how many there are and the first of them. Empty where a
    path leads to no file that can be read."""
    if isinstance(file, bytes):
        return _fingerprint(len(file), file[:HEAD_NBYTES])
    try:
        with open_regular(Path(file), follow=True) as opened:
            return _fingerprint(os.fstat(opened.fileno()).st_size, opened.read(HEAD_NBYTES))
    except (OSError, ValueError):  # a path with a null character
        return ""


def _fingerprint(nbytes: int, head: bytes) -> str:
    return f"{nbytes} {hashlib.blake2b(head, digest_size=24).hexdigest()}"


def identity(file: int | str | os.PathLike[str]) -> Identity:
    """Of a descriptor or a path, through links. Raises OSError."""
    return _identity(os.stat(file))


def _identity(state: os.stat_result) -> Identity:
    return Identity(state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


class ChangedError(OSError):
    """A file is another one now, or was written to."""


class _Descriptor:
    """A file that is open. All that hold the same one have one of these."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        weakref.finalize(self, file.close).atexit = False


_open: WeakValueDictionary[Identity, _Descriptor] = WeakValueDictionary()


def most_held() -> int:
    """Descriptors that files are held by at the most: a quarter of what the process may have open. On Windows nobody
    could delete such a file: none.
    """
    if sys.platform == "win32":
        return 0
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (limit if limit != resource.RLIM_INFINITY else 1 << 20) // 4


class Held:
    """A file as it is when this is made, to be read later. Thread-safe.

    Where there is a descriptor for it, it may be deleted or replaced meanwhile; without one it has to be where it was.
    One that is written to in place raises ChangedError then, and so does one whose mode or owner is changed: the times
    of files don't tell these apart.
    """

    def __init__(self, file: BinaryIO, path: str, hold: bool = True) -> None:
        """file: what is open at the path; it is this object's now."""
        state = os.fstat(file.fileno())
        self.path, self.identity, self._links = path, _identity(state), state.st_nlink
        self._descriptor = _open.get(self.identity) if hold else None
        if self._descriptor is None and hold and len(_open) < most_held():
            self._descriptor = _open[self.identity] = _Descriptor(file)
        else:
            file.close()

    @property
    def is_held(self) -> bool:
        """Whether it may be deleted or replaced."""
        return self._descriptor is not None

    def check(self) -> None:
        """Raises ChangedError where it is not what it was, OSError where it is gone."""
        self._check(
            self._descriptor.file.fileno() if self._descriptor is not None else self.path, self._descriptor is not None
        )

    def is_there(self, path: str) -> bool:
        """Whether a path leads to it."""
        try:
            return identity(path)[:2] == self.identity[:2]
        except OSError:
            return False

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file, to be read by `read_at` and from its descriptor. Raises as `check`, before and after."""
        descriptor = self._descriptor
        if descriptor is not None:
            self._check(descriptor.file.fileno(), True)
            yield descriptor.file
            self._check(descriptor.file.fileno(), True)
            return
        with open_regular(Path(self.path), follow=True) as file:
            self._check(file.fileno(), False)
            yield file
            self._check(file.fileno(), False)

    def _check(self, file: int | str, is_held: bool) -> None:
        state = os.stat(file)
        now = _identity(state)
        if now == self.identity:
            return
        # deleting or renaming a file, and a name more or less for it, change its ctime too
        moved = state.st_nlink != self._links or (is_held and not self.is_there(self.path))
        if now[:4] != self.identity[:4] or not moved:
            raise ChangedError(f"{self.path} was {'overwritten' if now[:2] == self.identity[:2] else 'replaced'}")


def read_at(file: BinaryIO, into: memoryview, offset: int) -> int:
    """Fills the memory from a place in a file; returns how many bytes there were. Threads, and forked processes, may
    share the file."""
    if sys.platform == "win32":
        file.seek(offset)
        return int(file.readinto(into))  # type: ignore[attr-defined]
    done = 0
    while done < len(into) and (count := os.preadv(file.fileno(), [into[done:]], offset + done)):
        done += count
    return done


def content(file: BinaryIO) -> bytes:
    """All of a file."""
    data = bytearray(os.fstat(file.fileno()).st_size)
    return bytes(data[: read_at(file, memoryview(data), 0)])


def blocks(file: BinaryIO, nbytes: int = 1 << 20) -> Iterator[tuple[int, memoryview]]:
    """A file's blocks of so many bytes, with their places, each valid until the next one is asked for: the whole would
    be one more copy of all weights in memory. Without those that the file system has no bytes of: the file of a
    terabyte may take none on the disk.
    """
    part, at = memoryview(bytearray(nbytes)), 0
    while (at := _next_data(file, at) // nbytes * nbytes) >= 0 and (count := read_at(file, part, at)):
        yield at, part[:count]
        at += count


def _next_data(file: BinaryIO, at: int) -> int:
    """Where bytes are that the file system has, from a place on; negative where there are none any more."""
    if sys.platform == "win32":
        return at
    try:
        return os.lseek(file.fileno(), at, os.SEEK_DATA)
    except OSError as error:
        return -1 if error.errno == errno.ENXIO else at  # not all file systems know


def copy(file: BinaryIO, into: BinaryIO) -> None:
    """All of a file, whose holes stay such."""
    for at, part in blocks(file):
        into.seek(at)
        into.write(part)
    into.truncate(os.fstat(file.fileno()).st_size)
