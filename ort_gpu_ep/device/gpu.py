"""A device shared by all sessions and threads of the process: buffers, transfers, submission.

Commands are collected and submitted together with the readback that needs them: one submit a run.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import index_check
from ort_gpu_ep.device.adapter import choose, limits_of, request_device
from ort_gpu_ep.device.allowance import current
from ort_gpu_ep.device.buffers import Buffer, Buffers, Piece
from ort_gpu_ep.device.cache import Cache
from ort_gpu_ep.device.circuit import Circuit
from ort_gpu_ep.device.copying import copy_results, read_threads
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.device.probe import probe
from ort_gpu_ep.errors import DeviceError, DeviceLostError, InternalError, OutOfDeviceMemoryError
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.kernels.target import ALIGNMENT
from ort_gpu_ep.utilization import Uses
from ort_gpu_ep.webgpu import native, waiting
from ort_gpu_ep.webgpu.library import GPUError, ffi

KEPT_PIPELINES = 2048
"""Pipelines that wait for their next use, those in use among them: 64 input shapes of a model of 30 kernels (a
guess)."""

KEPT_PIPELINES_OF_SOFTWARE = 512
"""The same where they are machine code in this process: 1.0 to 1.4 MiB each with llvmpipe (benchmarks/shapes.py)."""

READBACK_NBYTES, READBACKS_AHEAD = 32 << 20, 2
"""What is read back together, with one wait, at most: of more the GPU copies so many such parts ahead of the host."""

MAX_PENDING = 64
"""Command buffers that may wait for a readback before they are submitted anyway."""

MAX_IN_FLIGHT = 8
"""Runs that are under way at the same time, of one plan and sizes or with values that stay on the device: two keep a
GPU busy, more wait behind each other."""

MAX_MILESTONES = 256
"""Submissions of parts of runs that waits look at: of a run that has more, its limit is that of several."""

TURNS_A_S, TURNS_A_S_OF_SOFTWARE = 1e10, 1e7
"""What a GPU is taken to do at least, of invocations times their turns of loops: a small integrated one, and llvmpipe
on two cores."""

SHARE = 1 / 8
"""Of the time after which a GPU counts as hung, a submission may take at most, as estimated."""

COMPILE_S = 3600.0
"""How long a driver that compiles at the first dispatch may compile."""

Maker: TypeAlias = "Callable[[AdapterInfo, Any, Limits], Gpu]"
"""Makes a Gpu of an adapter, its device and its limits."""


class _Readback(NamedTuple):
    """One under way. places: (index of a piece, its offset in the staging buffer). arrival: of the mapping."""

    places: Sequence[tuple[int, int]]
    nbytes: int
    staging: Buffer
    submission: int
    arrival: native.Arrival


def _parts(piece: Piece) -> Iterator[tuple[int, Piece]]:
    """A piece as parts that are read back one after another, each with where it begins."""
    buffer, offset, nbytes = piece
    for shift in range(0, max(nbytes, 1), READBACK_NBYTES):
        yield shift, (buffer, offset + shift, min(READBACK_NBYTES, nbytes - shift))


def _batches(pieces: Sequence[Piece]) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """What is read back together: (index of a piece, offset in a staging buffer), and the bytes of all. Empty pieces
    are left out."""
    places, end = list[tuple[int, int]](), 0
    for index, (_, _, nbytes) in enumerate(pieces):
        if places and end + nbytes > READBACK_NBYTES:
            yield places, end
            places, end = [], 0
        if nbytes:
            places.append((index, end))
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    if places:
        yield places, end


class PassTimes(Protocol):
    """What measures the GPU time of passes recorded while it is a device's timer, see timing.py. each: of every
    dispatch."""

    each: bool

    def recording(self, owner: object, first: int) -> Any:
        """What a command buffer's passes are timed by. owner, first: whose it is, and the first step in it."""

    def read_s(self) -> float:
        """Seconds on the GPU. Waits."""


class Gpu(Buffers):
    """One adapter's device. Thread-safe; `open` gives every caller of the same adapter the same one.

    workarounds: of its driver (health/workarounds.py), in use since it was opened. submit_each: one submit for each
    dispatch. rewritings: what is done to each shader's text before it is compiled (shaders/rewriting.py). compiling:
    held while a pipeline is made. trusted: shader files that need no bounds checks here (health/open_adapter.py).
    fatal: (shader file, why) of those whose compilation has lost a device of this adapter: they are out of use on all
    that follow. in_compilation: pipelines that are being made. lost_compiling: whether the device was lost while one
    was made. ahead: submissions with runs whose results stay on the device, which nobody has waited for.
    """

    _open: ClassVar[dict[tuple[int, str], Gpu]] = {}
    _circuits: ClassVar[dict[tuple[int, str], Circuit]] = {}
    _open_lock = threading.Lock()

    def __init__(self, info: AdapterInfo, raw: Any, limits: Limits) -> None:
        super().__init__(info, raw, limits)
        self._hang_timeout_s = self.last_wait_s = self.last_arrival_s = 0.0
        self.pollers = waiting.Pollers()
        self.circuit = Circuit(lambda: probe(info))
        self.uses = Uses(not info.is_software)
        self.workarounds: tuple[Any, ...] = ()
        self.submit_each = False
        self.rewritings: frozenset[str] = frozenset()
        self.compiling: AbstractContextManager[object] = nullcontext()
        self.trusted: frozenset[str] = frozenset()
        self.fatal: tuple[tuple[str, str], ...] = ()
        self.in_compilation, self.lost_compiling = 0, False
        self.lost = ""
        self.reported = False  # whether the circuit knows of the loss
        self.milestones: deque[tuple[int, float]] = deque(maxlen=MAX_MILESTONES)
        self.ahead: deque[int] = deque()
        self._submitted = -1  # the last submission
        self.timer: PassTimes | None = None
        self._pending: list[Any] = []
        self._idle: weakref.WeakSet[Any] = weakref.WeakSet()
        self.layouts = Cache()  # one for each number of bindings, and which of them are written: few
        self.pipelines = Cache(KEPT_PIPELINES_OF_SOFTWARE if info.is_software else KEPT_PIPELINES)
        native.watch(self)

    @classmethod
    def open(cls, config: Config, make: Maker | None = None) -> Gpu:
        """The shared device of the adapter that the config asks for. make: another kind of Gpu, where the option
        `faults` asks for that.

        Raises AdapterError.
        """
        info, raw = choose(config.adapter)
        with cls._open_lock:
            key = (info.index, config.faults)
            gpu = cls._open.get(key)
            if gpu is None and config.faults and make is None:
                raise InternalError(
                    f"a device with faults={config.faults!r} is wanted, and nobody brings one (drills/faults.py)"
                )
            if gpu is None or gpu.lost:
                lost, limits = gpu, limits_of(raw)
                gpu = (lost.successor if lost is not None else make or Gpu)(
                    info, request_device(info, raw), limits if lost is None else replace(limits, disabled=lost.fatal)
                )
                if lost is not None:
                    gpu.fatal, gpu.compiling = lost.fatal, lost.compiling
                cls._open[key] = gpu
                gpu.circuit = cls._circuits.setdefault(key, gpu.circuit)
            gpu.hang_timeout_s = config.hang_timeout_ms / 1e3
            return gpu

    @property
    def hang_timeout_s(self) -> float:
        """How long this thread's session waits for the GPU, 0 for ever; without one, what was set last."""
        allowance = current()
        return allowance.hang_timeout_s if allowance is not None else self._hang_timeout_s

    @hang_timeout_s.setter
    def hang_timeout_s(self, seconds: float) -> None:
        self._hang_timeout_s = seconds

    def successor(self, info: AdapterInfo, raw: Any, limits: Limits) -> Gpu:
        """The device that takes this one's place after it was lost."""
        return Gpu(info, raw, limits)

    # ---- transfers and commands

    def upload(self, buffer: Buffer, offset_bytes: int, address: int, nbytes: int, waits: bool = True) -> None:
        """Copies host memory into a buffer; the host memory may be reused on return. Sizes are rounded up to 4 bytes
        inside the buffer.

        waits: for what is pending, which is submitted; without it nothing pending may use these bytes.
        """
        if not nbytes:
            return
        start = time.perf_counter()
        with self._lock:
            self.check_alive()
            if waits:
                self.flush()
            try:
                native.write(self.device, buffer.native, offset_bytes, address, nbytes)
            except GPUError as error:  # the driver found no memory to stage them in
                raise self.failure(error, f"an upload of {nbytes} B") from error
            self.exchanged((1, nbytes, time.perf_counter() - start), None)

    def download(self, buffer: Buffer, offset_bytes: int, address: int, nbytes: int) -> None:
        """Waits for earlier work and copies from a buffer to host memory.

        Raises: DeviceLostError, where the driver dropped the device meanwhile.
        """
        self.download_all([((buffer, offset_bytes, nbytes), address)])

    def download_all(self, wanted: Sequence[tuple[Piece, int]], words: Sequence[index_check.Word] = ()) -> None:
        """Like `download`, of (piece, address) pairs, with one wait. Raises InputError where one of the words is
        set."""
        words = [word for word in words if not word.clean]
        seen = ffi.new("uint32_t[]", len(words))
        places = [
            (part, ffi.cast("char *", address + shift)) for piece, address in wanted for shift, part in _parts(piece)
        ]
        places += [(word.piece, seen + k) for k, word in enumerate(words)]

        def take(index: int, source: int) -> None:
            (_, _, nbytes), target = places[index]
            threads = read_threads(nbytes, self.info.is_software)
            copy_results([(target, ffi.cast("char *", source), nbytes)], threads)

        self.lend([piece for piece, _ in places], take)
        index_check.check(words, seen)
        for word in words:
            word.clean = True

    def lend(self, pieces: Sequence[Piece], take: Callable[[int, int], object]) -> None:
        """Waits for earlier work and calls `take` with the index and the address of each piece's content, valid
        meanwhile.

        An empty piece is left out. The GPU copies what comes next while `take` is at work. Raises what `take` does,
        too.
        """
        self._read_back(pieces, deque(), _batches(pieces), take)

    def read_later(self, pieces: Sequence[Piece], words: Sequence[index_check.Word] = ()) -> Callable[[], list[bytes]]:
        """The content of small pieces behind all that is enqueued so far, which is submitted; what is submitted later
        may change them.

        What this gives waits for it, and is called once. Raises DeviceError, both times, and then InputError where one
        of the words is set.
        """
        words = [word for word in words if not word.clean]
        every, count = [*pieces, *(word.piece for word in words)], len(pieces)
        under_way = deque([self._start_readback(every, *batch) for batch in _batches(every)])

        def wait() -> list[bytes]:
            found = [b""] * len(every)

            def take(index: int, source: int) -> None:
                found[index] = bytes(ffi.buffer(ffi.cast("char *", source), every[index][2]))

            self._read_back(every, under_way, (), take)
            index_check.check(words, [int.from_bytes(data, sys.byteorder) for data in found[count:]])
            for word in words:
                word.clean = True
            return found[:count]

        return wait

    def _read_back(
        self,
        pieces: Sequence[Piece],
        under_way: deque[_Readback],
        batches: Iterable[tuple[list[tuple[int, int]], int]],
        take: Callable[[int, int], object],
    ) -> None:
        """Waits for readbacks that are under way, and for further ones, so many ahead."""
        begin = time.perf_counter()
        try:
            for batch in batches:
                under_way.append(self._start_readback(pieces, *batch))
                if len(under_way) > READBACKS_AHEAD:
                    begin = self._end_readback(under_way[0], pieces, take, begin)
                    under_way.popleft()
            while under_way:
                begin = self._end_readback(under_way[0], pieces, take, begin)
                under_way.popleft()
        finally:
            for left in under_way if not self.lost else ():  # one of them failed: nobody waits for those behind it
                native.give_up(self.device, left.staging.native, left.arrival)

    def _start_readback(self, pieces: Sequence[Piece], places: Sequence[tuple[int, int]], size: int) -> _Readback:
        with self._lock:
            self.check_alive()
            staging = self.lend_staging(size)
            try:
                encoder = self.device.create_command_encoder("readback")
                for index, offset in places:
                    buffer, offset_bytes, piece_nbytes = pieces[index]
                    native.copy_buffer(
                        encoder, buffer.native, offset_bytes, staging.native, offset, (piece_nbytes + 3) & ~3
                    )
                submission = self._submit([native.finish(encoder)])
                return _Readback(places, size, staging, submission, native.map_read(self.device, staging.native, size))
            except GPUError as error:
                raise self.failure(error, f"a readback of {sum(pieces[index][2] for index, _ in places)} B") from error

    def _end_readback(
        self, readback: _Readback, pieces: Sequence[Piece], take: Callable[[int, int], object], begin: float
    ) -> float:
        """begin: time.perf_counter when it began, or the one before it ended. Returns that of its end."""
        submitted = time.perf_counter()
        self.while_waiting()
        native.wait(self, readback.submission, readback.arrival)
        self._passed(readback.submission)
        waited_s = time.perf_counter() - submitted
        staging, places = readback.staging, readback.places
        try:
            address = native.mapped(staging.native, readback.nbytes)
            for index, offset in places:
                take(index, address + offset)
        finally:
            native.unmap(staging.native)
            self.take_staging(staging)
        self.exchanged(None, (len(places), sum(pieces[index][2] for index, _ in places), begin, waited_s))
        return time.perf_counter()

    def exchanged(self, sent: tuple[int, int, float] | None, received: tuple[int, int, float, float] | None) -> None:
        """Notes transfers that are over.

        sent: (pieces, bytes, seconds) of uploads. received: (pieces, bytes, time.perf_counter at its beginning, seconds
        of waiting) of a readback.
        """
        with self._lock:
            stats = self.stats
            if sent is not None:
                stats.uploads += sent[0]
                stats.uploaded_nbytes += sent[1]
                stats.upload_s += sent[2]
            if received is not None:
                stats.downloads += received[0]
                stats.downloaded_nbytes += received[1]
                stats.download_s += time.perf_counter() - received[2]
                stats.wait_s += received[3]

    def copy(self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, nbytes: int) -> None:
        """Copies on the device. Offsets are multiples of 4."""
        if not nbytes:
            return
        with self._lock:
            self.check_alive()
            try:
                encoder = self.device.create_command_encoder("copy")
                native.copy_buffer(
                    encoder, source.native, source_offset, target.native, target_offset, (nbytes + 3) & ~3
                )
                self.enqueue(native.finish(encoder))
            except GPUError as error:
                raise self.failure(error, f"a copy of {nbytes} B") from error

    def clear(self, target: Buffer, nbytes: int) -> None:
        """Sets the first bytes, a multiple of 4, to 0."""
        with self._lock:
            self.check_alive()
            try:
                encoder = self.device.create_command_encoder("clear")
                native.clear_buffer(encoder, target.native, nbytes)
                self.enqueue(native.finish(encoder))
            except GPUError as error:
                raise self.failure(error, f"zeros in {nbytes} B") from error

    def execute(self, command_buffers: list[Any]) -> None:
        """Adds one run of a partition. All of it but its end is submitted where that takes long: so that the GPU begins
        meanwhile, or so that each part has the time in which a GPU is to answer.
        """
        is_long = len(command_buffers) > 1 and not native.RECORDS_LATE
        for command_buffer in command_buffers[:-1]:
            self.enqueue(command_buffer)
            if native.RECORDS_LATE or is_long:
                self.flush(self.hang_timeout_s if is_long else 0.0)
        self.enqueue(command_buffers[-1])

    def run(self, command_buffers: list[Any], mappings: Sequence[tuple[Buffer, native.Arrival]]) -> int:
        """Submits runs of a partition, and maps their staging buffers once they are done. Returns the submission's
        index.

        mappings: of each run, a staging buffer, and what its mapping reports to. Raises DeviceError.
        """
        with self._lock:
            try:
                self.execute(command_buffers)
                submission = self._submit([])
                for staging, arrival in mappings:
                    native.start_mapping(self.device, staging.native, staging.nbytes, arrival)
            except GPUError as error:
                raise self.failure(error, "a run and its readback") from error
        return submission

    def finished(self, arrival: native.Arrival | None) -> bool:
        """Whether a readback has arrived; without one, whether the queue is empty. Polls for it a while, less than a
        millisecond."""
        return native.finished(self, arrival)

    def ends_in_time(self, index: int, timeout_s: float) -> bool:
        """Whether a submission is done within the time. Waits."""
        return waiting.ends_in_time(self.device, index, timeout_s)

    def enqueue(self, command_buffer: Any) -> None:
        """Adds recorded work; it is submitted by the next readback, upload or flush."""
        with self._lock:
            self.check_alive()
            self._pending.append(command_buffer)
            if len(self._pending) >= MAX_PENDING:
                self.flush()

    def flush(self, limit_s: float = 0.0) -> None:
        """Submits what is pending; to a lost device nothing is submitted. limit_s: what waits behind it waits so long
        for it alone."""
        with self._lock:
            if self.lost:
                self._pending.clear()
            if self._pending:
                index = self._submit([])
                if limit_s:
                    self.milestones.append((index, limit_s))

    @property
    def most_turns(self) -> float:
        """Of loops of all invocations, how many a submission may have, see kernels.records.turns_of."""
        per_s = TURNS_A_S_OF_SOFTWARE if self.info.is_software else TURNS_A_S
        return self.hang_timeout_s * SHARE * per_s or float("inf")

    def submit_soon(self, now: bool) -> None:
        """Submits what is pending now, or only if the GPU has nothing else to do: else it waits for more."""
        if now or self.finished(None):
            self.flush()

    @property
    def _is_slow(self) -> bool:
        """Whether what was last waited for took longer than is polled for on software, some times what a submission
        takes. Software never counts: it computes with the cores of the host, and submissions wait for it."""
        return self.last_wait_s > waiting.SPIN_S and not self.info.is_software

    def submit_ahead(self) -> None:
        """Submits runs whose results stay on the device, so that the GPU begins before somebody asks for them: where
        runs are long, one if it has nothing else to do, or two; else so many as may be under way, for a submission
        takes as long as a short run. Where as many submissions are under way, waits for half of them.
        """
        slow, runs = self._is_slow, len(self._pending)
        due = runs >= (2 if slow else MAX_IN_FLIGHT) or bool(runs and slow and self.finished(None))
        with self._lock:
            index = self._submit([]) if due and self._pending else self._submitted
            if index not in self.ahead:  # parts of a long run are submitted as they are recorded
                self.ahead.append(index)
            half = self.ahead[MAX_IN_FLIGHT // 2] if len(self.ahead) > MAX_IN_FLIGHT else None
        if half is not None:
            begin = time.perf_counter()
            self.while_waiting()
            native.wait(self, half, None)
            self._passed(half)
            with self._lock:
                self.stats.wait_s += time.perf_counter() - begin

    def submit_long(self) -> None:
        """Submits a run before its readback is recorded, where runs are long: the GPU is at work meanwhile."""
        if self._is_slow:
            self.flush()

    def _passed(self, index: int) -> None:
        """A submission is done, and so are those before it."""
        if self.ahead:
            with self._lock:
                while self.ahead and self.ahead[0] <= index:
                    self.ahead.popleft()

    def finish(self) -> None:
        """Submits what is pending and waits until the GPU is idle."""
        with self._lock:
            self.check_alive()
            index = self._submit([])
        native.wait(self, index, None)
        self._passed(index)

    def _submit(self, more: list[Any]) -> int:
        """Submits pending work and `more`, in order. A submit to a lost device would abort the process: refuse."""
        self.check_alive()
        start = time.perf_counter()
        buffers, self._pending = [*self._pending, *more], []
        for buffer in buffers[:-1] if self.submit_each else ():
            self.stats.submits += 1
            native.submit(self.device, [buffer])
        self.stats.submits += 1
        index = self._submitted = native.submit(self.device, buffers[-1:] if self.submit_each else buffers)
        self.stats.submit_s += time.perf_counter() - start
        return index

    def failure(self, error: Exception, what: str) -> DeviceError:
        """The exception that an error of wgpu means. wgpu drops a device that ran out of memory in an upload or a
        recording, without telling: a submit would abort the process, so the device is asked.
        """
        if native.is_lost(self.device, error):
            self.lost = self.lost or f"{what} failed: {str(error).strip().splitlines()[-1].strip()}"
        if native.is_out_of_memory(error):
            return OutOfDeviceMemoryError(
                f"device memory: {self.info.name} had none left for {what}: {error}. "
                "Close sessions, use a smaller batch, or placement=cpu."
            )
        return (DeviceLostError if self.lost else DeviceError)(f"{what} on {self.info.name}: {error}")

    def check_alive(self) -> None:
        """Raises DeviceLostError for a device that the driver has dropped."""
        if self.lost:
            raise DeviceLostError(
                f"{self.info.name}: the driver dropped the device ({self.lost}). Its sessions get a new one once "
                f"the adapter "
                "has passed a probe (with strict=1, new sessions do)."
            )

    def stop_timing(self) -> None:
        """Ends what `timing.start_timing` began."""
        with self._lock:
            timer, self.timer = self.timer, None
            if timer is not None:
                # its buffer is not pooled: another thread may have recorded, but not yet submitted, a write to it
                self.flush()

    # ---- work for the time in which the GPU is busy

    def on_wait(self, owner: Any) -> None:
        """`owner.while_waiting()` will be called once, while the host waits for the GPU, and again as long as it
        returns true and the GPU is at work.
        """
        with self._lock:
            self._idle.add(owner)

    def while_waiting(self) -> None:
        """Does what `on_wait` was told of."""
        with self._lock:
            owners, self._idle = list(self._idle), weakref.WeakSet()
        for owner in owners:
            while owner.while_waiting() and not self.finished(None):
                pass

    @property
    def compiled(self) -> int:
        """How many pipelines were compiled so far."""
        return self.pipelines.made

    @contextmanager
    def compilation_of(self, shader: str) -> Iterator[None]:
        """While a pipeline of a shader file is made. Some drivers fail at a text, and wgpu then loses the device (V3D):
        that says nothing about the adapter, whose circuit stays closed, but about the text. Where others were made
        meanwhile it is not known which one it was: the next device makes one at a time.
        """
        with self.compiling:
            with self._lock:
                self.in_compilation += 1
                was_lost = bool(self.lost)
            try:
                yield
            except GPUError as error:
                with self._lock:
                    is_first = not (was_lost or self.lost_compiling) and native.is_lost(self.device, error)
                    if is_first:
                        what = f"the driver lost the device when it compiled {shader}"
                        self.lost, self.lost_compiling, self.reported = self.lost or what, True, True
                        if self.in_compilation == 1:
                            self.fatal = (*self.fatal, (shader, what))
                        else:
                            self.compiling = threading.Lock()
                raise
            finally:
                with self._lock:
                    self.in_compilation -= 1

    def pipeline(self, source: Hashable, make: Callable[[], Any]) -> Any:
        """The pipeline of a source, which `make` compiles if there is none."""
        return self.pipelines.get(source, make)


def _let_drivers_finish(process: int) -> None:
    """At exit: a software adapter's driver compiles and runs kernels on a thread of its own, and crashes where the
    process ends meanwhile. Nothing else waits for what a session submits when it is opened. process: whose devices
    these are; not a forked child's.
    """
    for gpu in (
        [gpu for gpu in Gpu._open.values() if gpu.info.is_software and not gpu.lost] if os.getpid() == process else []
    ):
        with suppress(DeviceError), gpu._lock:
            waiting.block(gpu.device, gpu._submit([]))  # by this thread: Python starts none any more


atexit.register(_let_drivers_finish, os.getpid())
