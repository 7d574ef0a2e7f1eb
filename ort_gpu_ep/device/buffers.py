"""Device memory: buffers, and the pool of freed buffers for reuse."""

from __future__ import annotations

import itertools
import math
import threading
import time
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from ort_gpu_ep.device.allowance import OTHER, Allowance, DeviceMemory, current
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.errors import DeviceError, MemoryLimitError, OutOfDeviceMemoryError
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.webgpu.library import GPUError
from ort_gpu_ep.webgpu.objects import COPY_DST, COPY_SRC, MAP_READ, MAP_WRITE, STORAGE

_USAGE = STORAGE | COPY_SRC | COPY_DST
STAGING = MAP_READ | COPY_DST
POOL_AGE_S = 10.0
"""How long a freed buffer, and what runs together need, wait for their next use before they go back to the driver."""

POOL_FACTOR, POOL_NBYTES = 2.0, 8 << 20
"""What waits at most: so many times what was in use at once lately, so that values of two sizes can take turns, and as
much besides. A state that grows would leave each size that it had: of 1 GiB some 12."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Buffer:
    """Device memory.

    nbytes: its size, a multiple of 4, at least what was asked for. serial: never reused, so that a cached bind group
    can't meet another buffer than its own (submitting one of a destroyed buffer would abort the process). freed_s: when
    it came into the pool (monotonic clock). forgotten: corrects the statistics if the buffer is dropped without `free`,
    as after an error. users: the session that it counts for, and what as (allowance.USES); none while it is in the
    pool.
    """

    raw: Any
    nbytes: int
    native: Any = field(repr=False)
    serial: int = field(default_factory=itertools.count().__next__)
    freed_s: float = 0.0
    forgotten: Any = field(default=None, repr=False)
    users: list[tuple[Allowance, str]] = field(default_factory=list, repr=False)


Piece = tuple[Buffer, int, int]
"""A part of a buffer: (buffer, offset_bytes, nbytes)."""


@dataclass
class Stats:
    """What this process holds and has moved: bytes, counts, and the seconds that callers spent in transfers (waiting
    included).

    staging_nbytes: of what is allocated, buffers that the host maps. submit_s, wait_s: in submissions, and waiting for
    a readback; what `download_s` has besides is copying.
    """

    allocated_nbytes: int = 0
    pooled_nbytes: int = 0
    staging_nbytes: int = 0
    peak_nbytes: int = 0
    buffers: int = 0
    submits: int = 0
    uploads: int = 0
    downloads: int = 0
    uploaded_nbytes: int = 0
    downloaded_nbytes: int = 0
    upload_s: float = 0.0
    download_s: float = 0.0
    submit_s: float = 0.0
    wait_s: float = 0.0


class Buffers(ABC):
    """The memory of one device. Thread-safe.

    memory_limit_nbytes: what this thread's session may hold; without one, what all may hold together, as it was set. 0
    for what the adapter has.
    """

    def __init__(self, info: AdapterInfo, raw: Any, limits: Limits) -> None:
        self.info, self.limits, self.stats = info, limits, Stats()
        self.device = raw
        self._limit_nbytes = 0
        self._lock = threading.RLock()
        self.holders: weakref.WeakSet[Any] = weakref.WeakSet()  # programs that can give memory back
        self._free: dict[int, list[Buffer]] = {}
        self._staging: dict[int, list[Buffer]] = {}
        self.nothing: Buffer | None = None  # stands in for tensors without elements (plugin/memory.py)
        self.destroyed = 0  # buffers given back to the driver so far
        self._swept_s = time.monotonic()
        self._most_nbytes = self._most_before_nbytes = 0  # in use at once, since the last sweep and before it

    @property
    def memory_limit_nbytes(self) -> int:
        allowance = current()
        return allowance.memory_nbytes if allowance is not None else self._limit_nbytes

    @memory_limit_nbytes.setter
    def memory_limit_nbytes(self, nbytes: int) -> None:
        self._limit_nbytes = nbytes

    @abstractmethod
    def check_alive(self) -> None:
        """Raises DeviceLostError for a device that the driver has dropped."""

    @abstractmethod
    def flush(self) -> None:
        """Submits what is pending."""

    @abstractmethod
    def failure(self, error: Exception, what: str) -> DeviceError:
        """The exception that an error of wgpu means."""

    def allocate(self, nbytes: int, use: str = OTHER) -> Buffer:
        """A buffer of at least nbytes, from the pool where it has one, for this thread's session. Content undefined.
        Never waits.

        use: what it counts as, one of allowance.USES. Raises: OutOfDeviceMemoryError, DeviceLostError.
        """
        try:
            return self._taken(nbytes, use)
        except OutOfDeviceMemoryError as error:
            if not self._given_back(error):
                raise
        return self._taken(nbytes, use)

    def _given_back(self, error: OutOfDeviceMemoryError) -> bool:
        """Has holders free what they can do without: those of this session, where it is the session that may have no
        more."""
        own = current() if isinstance(error, MemoryLimitError) and not self._limit_nbytes else None
        freed = [holder.give_back() for holder in list(self.holders) if own is None or holder.allowance is own]
        if any(freed):
            self.trim()
        return any(freed)

    def dense_nbytes(self, apart_from: object) -> int:
        """What holders could give back. apart_from: the context of one that does not count."""
        return sum(
            holder.context.prologue.dense_nbytes for holder in list(self.holders) if holder.context is not apart_from
        )

    def memory_of(self, allowance: Allowance) -> DeviceMemory:
        """What a session holds here, and the process."""
        with self._lock:
            stats = self.stats
            return DeviceMemory(
                dict(allowance.held),
                allowance.memory_nbytes,
                stats.allocated_nbytes,
                stats.staging_nbytes,
                stats.pooled_nbytes,
                stats.peak_nbytes,
            )

    def _taken(self, nbytes: int, use: str) -> Buffer:
        size, allowance = size_class(nbytes), current()
        with self._lock:
            if allowance is not None:
                allowance.take(size, use)
            try:
                buffer = self._allocated(size)
            except BaseException:
                if allowance is not None:
                    allowance.give_back(size, use)
                raise
            if allowance is not None:
                buffer.users.append((allowance, use))
            return buffer

    def _allocated(self, size: int) -> Buffer:
        self.check_alive()
        pool = self._free.get(size)
        if pool:
            self.stats.pooled_nbytes -= size
            buffer = pool.pop()
        else:
            buffer = self.create(size, _USAGE)
        self._most_nbytes = max(self._most_nbytes, self.stats.allocated_nbytes - self.stats.pooled_nbytes)
        return buffer

    def create(self, size: int, usage: int) -> Buffer:
        """A buffer for a pool of the caller's. Raises: OutOfDeviceMemoryError (MemoryLimitError), DeviceLostError."""
        limit = self._limit_nbytes
        if size > self.limits.max_buffer_nbytes:
            raise OutOfDeviceMemoryError(
                f"device memory: a buffer of {size} B is asked for, {self.info.name} allows "
                f"{self.limits.max_buffer_nbytes} B in one. "
                "Use a smaller batch, or placement=cpu."
            )
        if limit and self.stats.allocated_nbytes + size > limit:
            self.trim()
        if limit and self.stats.allocated_nbytes + size > limit:
            raise MemoryLimitError(
                f"device memory: {self.stats.allocated_nbytes} B are held and {size} B more asked for, "
                f"memory_limit_mb allows {limit} B. "
                "Close sessions, use a smaller batch, or raise memory_limit_mb."
            )
        raw = self._created(size, usage)
        self.stats.buffers += 1
        self.stats.allocated_nbytes += size
        self.stats.peak_nbytes = max(self.stats.peak_nbytes, self.stats.allocated_nbytes)
        mapped_nbytes = size if usage & (MAP_READ | MAP_WRITE) else 0
        self.stats.staging_nbytes += mapped_nbytes
        buffer = Buffer(raw, size, raw.handle)
        # a finalizer of `self` would keep it alive
        buffer.forgotten = weakref.finalize(buffer, _uncount, self.stats, self._lock, size, mapped_nbytes, buffer.users)
        buffer.forgotten.atexit = False
        return buffer

    def _created(self, size: int, usage: int) -> Any:
        """From the driver; once more without what waits in the pools, where it has no memory left."""
        label = f"pool/{size}"
        try:
            return self.device.create_buffer(label, size, usage)
        except GPUError as error:
            self.trim()
            failure = self._failed(error, size)
            if not isinstance(failure, OutOfDeviceMemoryError):
                raise failure from error
        try:
            return self.device.create_buffer(label, size, usage)
        except GPUError as error:
            raise self._failed(error, size) from error

    def _failed(self, error: GPUError, size: int) -> DeviceError:
        return self.failure(error, f"a buffer of {size} B ({self.stats.allocated_nbytes} B are held)")

    def free(self, buffer: Buffer) -> None:
        """Gives a buffer back to the pool. Work already submitted may still use it: the queue runs in order. Never
        waits."""
        with self._lock:
            _give_back(buffer.users, buffer.nbytes)
            buffer.freed_s = time.monotonic()
            self._free.setdefault(buffer.nbytes, []).append(buffer)
            self.stats.pooled_nbytes += buffer.nbytes
            self.sweep()
            most = POOL_FACTOR * max(self._most_nbytes, self._most_before_nbytes) + POOL_NBYTES
            if self.stats.pooled_nbytes > most:
                self._shrink(most / 2)

    def sweep(self) -> None:
        """Returns what has waited for its next use for POOL_AGE_S to the driver; looks no more often than that."""
        now = time.monotonic()
        if now - self._swept_s > POOL_AGE_S:
            self.trim(now - POOL_AGE_S)

    def lend_staging(self, nbytes: int) -> Buffer:
        """A buffer for a readback of so many bytes, unmapped; `take_staging` gives it back. Raises DeviceError."""
        with self._lock:
            pool = self._staging.get(size_class(nbytes))
            return pool.pop() if pool else self.create(size_class(nbytes), STAGING)

    def take_staging(self, buffer: Buffer) -> None:
        """Gives a readback's buffer back to the pool; it is mapped no more."""
        with self._lock:
            buffer.freed_s = time.monotonic()
            self._staging.setdefault(buffer.nbytes, []).append(buffer)

    def trim(self, before_s: float = math.inf) -> None:
        """Returns pooled buffers to the driver: all, or those that nobody has wanted since `before_s` (monotonic
        clock)."""
        with self._lock:
            self.flush()  # pending work may name them
            self._swept_s = time.monotonic()
            self._most_before_nbytes, self._most_nbytes = (
                self._most_nbytes,
                self.stats.allocated_nbytes - self.stats.pooled_nbytes,
            )
            for pools in (self._free, self._staging):
                for size, buffers in list(pools.items()):
                    pools[size] = [b for b in buffers if b.freed_s >= before_s]
                    for buffer in buffers:
                        if buffer.freed_s < before_s:
                            self.stats.pooled_nbytes -= buffer.nbytes if pools is self._free else 0
                            self.destroy(buffer)

    def _shrink(self, nbytes: float) -> None:
        """Returns the pooled buffers to the driver that have waited the longest, until no more than nbytes are left."""
        self.flush()  # pending work may name them
        for buffer in sorted((b for pool in self._free.values() for b in pool), key=lambda b: b.freed_s):
            if self.stats.pooled_nbytes <= nbytes:
                return
            self._free[buffer.nbytes].remove(buffer)
            self.stats.pooled_nbytes -= buffer.nbytes
            self.destroy(buffer)

    def destroy(self, buffer: Buffer) -> None:
        """Returns a buffer that no pending work names to the driver."""
        self.destroyed += 1
        buffer.raw.destroy()
        buffer.forgotten()


def _uncount(stats: Stats, lock: Any, nbytes: int, mapped_nbytes: int, users: list[tuple[Allowance, str]]) -> None:
    with lock:
        _give_back(users, nbytes)
        stats.allocated_nbytes -= nbytes
        stats.staging_nbytes -= mapped_nbytes
        stats.buffers -= 1


def _give_back(users: list[tuple[Allowance, str]], nbytes: int) -> None:
    while users:
        allowance, use = users.pop()
        allowance.give_back(nbytes, use)


def size_class(nbytes: int) -> int:
    """Sizes that buffers are pooled by: multiples of 256 B up to 4 KiB, then eight steps to each power of two.

    A state that grows by a row a run so finds the buffer of the run before the last one, and its bind groups.
    """
    nbytes = max(nbytes, 4)
    step = 256 if nbytes <= 4 << 10 else 1 << (nbytes - 1).bit_length() - 4
    return -(-nbytes // step) * step
