"""Copies in host memory, as they are or rounded to float16: large ones without the interpreter lock, very large ones by
several threads."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeAlias

from ort_gpu_ep.device import background
from ort_gpu_ep.processes import known as processes
from ort_gpu_ep.processes.interrupts import uninterrupted
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import ffi

_BY_INTERPRETER_NBYTES = 64 << 10
"""Up to here a copy on the host takes less than giving the GIL away and getting it back."""

MAX_THREADS, NBYTES_A_THREAD = 4, 4 << 20
"""On an H200's host of 16 cores 19.3 MB take 1.17 ms by one thread, 0.89 by two, 0.81 by four and by eight; 2.4 MB take
two threads longer than one. The memory's bandwidth is what they share, and waking one up takes as long as copying some
100 KB."""

READ_NBYTES_A_THREAD = 1 << 20
"""The same of results, whose source and target are the host's. There 1.2 MB take 0.09 ms by one thread and 0.08 by two;
by one to four 2.5 MB take 0.24, 0.17, 0.12 and 0.12, 6.3 MB 0.55, 0.48, 0.39 and 0.31, 12.6 MB 1.12, 0.94, 0.67 and
0.54."""

_PAGE = mmap.PAGESIZE

Piece: TypeAlias = tuple[int, int, int]
"""(address of the target, address of the source, bytes of the target)."""

Move: TypeAlias = Callable[[int, int, int], object]
"""Copies a piece."""


class Copy(NamedTuple):
    """target, source: cffi pointers. nbytes: of the target. rounds: the source is float32, twice as many bytes, the
    target float16."""

    target: Any
    source: Any
    nbytes: int
    rounds: bool = False

    @property
    def source_nbytes(self) -> int:
        return self.nbytes * 2 if self.rounds else self.nbytes


def copy(target: Any, source: Any, nbytes: int) -> None:
    """Copies between cffi pointers."""
    if nbytes <= _BY_INTERPRETER_NBYTES:
        ffi.memmove(target, source, nbytes)
    else:
        ctypes.memmove(_address(target), _address(source), nbytes)


def copy_all(copies: Sequence[Copy], threads: int = 1, nbytes_a_thread: int | None = None) -> None:
    """Copies by so many threads at most, this one among them; returns when all is copied. Raises what a thread raises.

    nbytes_a_thread: fewer threads where these would have less each; NBYTES_A_THREAD where it is not given.
    """
    total = sum(one.source_nbytes for one in copies)
    count = max(1, min(threads, total // (nbytes_a_thread or NBYTES_A_THREAD)))
    pieces = list[tuple[Move, Piece]]()
    for one in copies:
        target, source, nbytes, rounds = one
        if count > 1 and one.source_nbytes > _BY_INTERPRETER_NBYTES:
            share, move = -(-one.source_nbytes * count // total), round_to_half if rounds else ctypes.memmove
            pieces += [
                (move, piece)
                for piece in in_pieces(_address(target), _address(source), nbytes, share, 2 if rounds else 1)
            ]
        elif rounds:
            round_to_half(_address(target), _address(source), nbytes)
        else:
            copy(target, source, nbytes)
    if pieces:
        uninterrupted(_helpers.copy, pieces, count - 1)


def copy_results(copies: Sequence[tuple[Any, Any, int]], threads: int) -> None:
    """Copies (target, source, bytes) by as many threads as read_threads gives. Every run comes here: one thread copies
    without dividing."""
    if threads > 1:
        copy_all([Copy(*one) for one in copies], threads, READ_NBYTES_A_THREAD)
        return
    for one in copies:
        copy(*one)


def round_to_half(target: int, source: int, nbytes: int) -> None:
    """Rounds float32 to float16 between addresses, to so many bytes."""
    native.loops.ort_gpu_ep_round(target, source, nbytes // 2)


def rounds_fast() -> bool:
    """Whether rounding takes the processor about as long as copying."""
    return bool(native.loops.ort_gpu_ep_rounds_fast())


def usable_threads() -> int:
    """How many a copy should have on this machine: of each two cores one, for others have work besides."""
    return max(min(MAX_THREADS, processes.cores() // 2), 1)


def read_threads(nbytes: int, software: bool) -> int:
    """How many take part in copying results. software: the driver's own threads have the cores."""
    return 1 if software else min(usable_threads(), max(nbytes // READ_NBYTES_A_THREAD, 1))


def in_pieces(target: int, source: int, nbytes: int, count: int, width: int = 1) -> list[Piece]:
    """So many pieces at most, about equal, between which the target has a page's end. width: bytes of the source for
    one of the target."""
    ends = [(((target + nbytes * k // count) & -_PAGE) - target) & -width for k in range(1, count)]
    bounds = [0, *(end for end in ends if end > 0), nbytes]
    return [(target + begin, source + width * begin, end - begin) for begin, end in pairwise(bounds) if end > begin]


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


class _Work:
    """Pieces that threads take, one after another, until none is left."""

    def __init__(self, pieces: Sequence[tuple[Move, Piece]]) -> None:
        self._left, self._open, self._lock, self._over = deque(pieces), len(pieces), threading.Lock(), threading.Event()
        self._error: BaseException | None = None

    def take_part(self) -> None:
        """Copies pieces while there are any."""
        while True:
            try:
                move, piece = self._left.popleft()
            except IndexError:
                return
            try:
                move(*piece)
            except BaseException as error:
                self._error = error
            with self._lock:
                self._open -= 1
                over = not self._open
            if over:
                self._over.set()

    def finish(self) -> None:
        """Waits for the pieces that others have taken. Raises what one of them raised."""
        self._over.wait()
        if self._error is not None:
            raise self._error


class _Helpers:
    """Threads that copy for whoever asks; they sleep meanwhile. The one who asks goes without those that can't be
    started.

    They are daemons that touch no memory unless somebody waits for it.
    """

    def __init__(self) -> None:
        self._lock, self._wanted = threading.Lock(), SimpleQueue[_Work]()
        self._threads = 0

    def copy(self, pieces: Sequence[tuple[Move, Piece]], helpers: int) -> None:
        """Copies, with so many helpers at most."""
        work = _Work(pieces)
        for _ in range(self._started(helpers)):
            self._wanted.put(work)
        work.take_part()
        work.finish()

    def _started(self, helpers: int) -> int:
        """How many of so many there are: none at exit, when a thread may stop anywhere."""
        if background.ending():
            return 0
        with self._lock:
            while self._threads < helpers:
                try:
                    threading.Thread(target=_help, args=(self._wanted,), name="ort_gpu_ep-copy", daemon=True).start()
                except RuntimeError:  # the process has no more threads
                    break
                self._threads += 1
            return min(self._threads, helpers)


def _help(wanted: SimpleQueue[_Work]) -> None:
    while True:
        wanted.get().take_part()


def _after_fork() -> None:
    """In the child: the threads do not exist."""
    global _helpers
    _helpers = _Helpers()


_helpers = _Helpers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
