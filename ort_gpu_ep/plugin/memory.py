"""Device memory as ONNX Runtime sees it: finds the GPU buffer that belongs to an address.

ONNX Runtime allocates a block and uses ranges of it as tensors (its memory patterns put many into one block). A block
takes address space only. A GPU buffer is made when a range is written, one for each range: so Alloc never waits and
never fails for lack of GPU memory, two tensors of one block are never one buffer (a dispatch can't read and write the
same), and a range that is written while a run still reads it gets a new buffer instead.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ort_gpu_ep.device.allowance import VALUES
from ort_gpu_ep.errors import DeviceError, InternalError, OutOfDeviceMemoryError, forget_frames
from ort_gpu_ep.kernels.shape_arithmetic import MAX_ELEMENTS
from ort_gpu_ep.kernels.target import OFFSET_ALIGNMENT
from ort_gpu_ep.plugin.reservation import Reservation
from ort_gpu_ep.plugin.state import COPIES, SessionState

if TYPE_CHECKING:
    from ort_gpu_ep.device import Buffer, Gpu
    from ort_gpu_ep.device.index_check import Word
    from ort_gpu_ep.ir.graph import Array


FORKED = (
    "the GPU can't be used in a forked child process whose parent used it, nor can what the parent left on the GPU: "
    "the CPU answers here. "
    "Create the sessions in the child alone (gunicorn: without --preload; multiprocessing: the start method "
    "`spawn`), or use "
    "isolation=process, whose sessions get a worker of their own after a fork"
)

CONTENT_NBYTES = 8 * MAX_ELEMENTS
"""Of an upload that is small: as many 64-bit numbers as shapes are calculated with."""


@dataclass(eq=False, slots=True)
class Storage:
    """Bytes somewhere: in a GPU buffer, or on the host where the GPU could not take them. users: pieces and running
    calls.

    content: what is in the buffer, too, where little was uploaded: shapes may depend on it, and a readback would wait
    for the GPU. words: of the runs that it comes from, which say whether an index was out of range; they are read when
    it is.
    """

    nbytes: int
    gpu: Gpu | None = None
    buffer: Buffer | None = None
    host: Array | None = None
    users: int = 1
    content: bytes | None = None
    words: tuple[Word, ...] = ()

    @property
    def copy(self) -> Array | bytes | None:
        """Its bytes in host memory, if they are there, too."""
        return self.host if self.host is not None else self.content


@dataclass(eq=False, slots=True)
class Piece:
    """[start, stop) of the address space is in `storage` from `offset` on. gone: it is elsewhere now, or the block was
    freed."""

    start: int
    stop: int
    storage: Storage
    offset: int
    gone: bool = False


@dataclass(eq=False, slots=True)
class Block:
    """What ONNX Runtime has allocated. state: the session it was allocated for, None for a shared allocator. number: of
    blocks before it."""

    start: int
    nbytes: int
    state: SessionState | None
    pieces: list[Piece]
    number: int


class Memory:
    """All blocks of the process. version: counts up when a range may be elsewhere than before, or have a storage
    together with another. blocks: how many were allocated so far."""

    def __init__(self) -> None:
        self.version = self.blocks = 0
        self._reservation = Reservation()
        self._blocks: dict[int, Block] = {}
        self._lock = threading.RLock()
        self._freed: deque[int] = deque()
        self._orphans: list[Buffer] = []  # of a forked child: wgpu must not even hear that they are gone
        self.forked = False

    # ---- blocks

    def allocate(self, nbytes: int, state: SessionState | None) -> int:
        """The address of a new block. Raises OutOfDeviceMemoryError, when no address is left."""
        start = self._reservation.take(nbytes)
        with self._lock:
            self._free_pending()
            self._blocks[start] = Block(start, nbytes, state, [], self.blocks)
            self.blocks += 1
        return start

    def free(self, address: int) -> None:
        """Frees a block; its buffers go back to their GPU's pool.

        Never waits: a value may be collected on any thread at any allocation, also on one that has the GPU's lock,
        while another one has this lock and waits for the GPU's. Then whoever frees or allocates next does it.
        """
        self._freed.append(address)
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._free_pending()
        finally:
            self._lock.release()

    def _free_pending(self) -> None:
        """Frees what `free` was told of. The lock is held."""
        while self._freed:
            address = self._freed.popleft()
            block = self._blocks.pop(address, None)
            self.version += 1
            if block is None:
                raise InternalError(f"device address {address:#x} was freed twice, or never allocated")
            for piece in block.pieces:
                piece.gone = True
                self._release(piece.storage)
            self._reservation.give_back(address)

    def owns(self, address: int) -> bool:
        """Whether an address is device memory."""
        return self._reservation.contains(address)

    def state_of(self, address: int) -> SessionState | None:
        """The session that the block of an address was allocated for; None for host memory and shared blocks."""
        block = self.block_of(address)
        return block.state if block is not None else None

    def block_of(self, address: int) -> Block | None:
        """The block that an address is in; None for host memory, and where the block was freed."""
        block = self._blocks.get(address)  # most are asked about by where they begin
        if block is None and self.owns(address):
            block = self._blocks.get(self._reservation.start_of(address))
        return block

    def gpu_of(self, address: int) -> Gpu | None:
        """The GPU that has the content of an address; None where it is on the host, or nothing was written there
        yet."""
        with self._lock:
            pieces = self._find(address, 0)[0].pieces if self.owns(address) else []
            return next((p.storage.gpu for p in pieces if p.start <= address < p.stop), None)

    def gpus(self) -> set[Gpu]:
        """All that have content of a block."""
        with self._lock:
            return {p.storage.gpu for block in self._blocks.values() for p in block.pieces if p.storage.gpu is not None}

    # ---- ranges

    def read(self, gpu: Gpu, address: int, nbytes: int) -> tuple[Storage, int]:
        """(storage, offset) of a range on `gpu`, pinned: `release` it after the run. Brings it there if it is
        elsewhere."""
        self.check_usable()
        if nbytes == 0:
            return self._pin(self._empty_on(gpu)), 0
        with self._lock:
            block, pieces = self._find(address, nbytes)
            if len(pieces) == 1:
                piece = pieces[0]
                offset = piece.offset + address - piece.start
                whole = piece.start <= address and address + nbytes <= piece.stop
                if whole and piece.storage.gpu is gpu and offset % OFFSET_ALIGNMENT == 0:
                    return self._pin(piece.storage), offset
            return self._pin(self._gather(gpu, block, address, nbytes)), 0

    def write(self, gpu: Gpu, address: int, nbytes: int, in_part: bool = False) -> tuple[Storage, int]:
        """(storage, offset) for new content of a range, not pinned: the block holds it.

        in_part: the range may share its storage with what lies beside it, as a mask of which each token sets one more
        element; a run's outputs may not, since it may read the others.
        """
        self.check_usable()
        if nbytes == 0:
            return self._empty_on(gpu), 0
        with self._lock:
            block, pieces = self._find(address, nbytes)
            if len(pieces) == 1:
                piece, stop = pieces[0], address + nbytes
                same = piece.start == address and piece.stop == stop and piece.offset == 0
                offset = piece.offset + address - piece.start
                # the GPU copies whole words
                inside = in_part and piece.start <= address and offset % 4 == 0 and stop <= piece.stop
                fits = same or (inside and (nbytes % 4 == 0 or stop == piece.stop))
                if fits and piece.storage.gpu is gpu and piece.storage.users == 1:
                    piece.storage.content = None
                    return piece.storage, offset
            storage = Storage(nbytes, gpu, gpu.allocate(nbytes, VALUES))  # first: if it fails, the old content stays
            self._carve(block, address, address + nbytes)
            self._insert(block, Piece(address, address + nbytes, storage, 0))
            return storage, 0

    def temporary(self, gpu: Gpu, nbytes: int, host_address: int = 0) -> Storage:
        """A pinned storage that belongs to no block, with host memory's content if an address is given."""
        storage = Storage(max(nbytes, 4), gpu, gpu.allocate(max(nbytes, 4), VALUES))
        if host_address and nbytes:
            assert storage.buffer is not None
            gpu.upload(storage.buffer, 0, host_address, nbytes)
            storage.content = _small(host_address, nbytes)
        return storage

    def piece_of(self, address: int, nbytes: int) -> Piece | None:
        """The one piece that a range is in, None where there are several or none."""
        with self._lock:
            pieces = self._find(address, nbytes)[1] if nbytes and self.owns(address) else []
            return pieces[0] if len(pieces) == 1 else None

    def pin(self, storages: Iterable[Storage]) -> None:
        """They must not be reused until they are released."""
        with self._lock:
            for storage in storages:
                storage.users += 1

    def release(self, storages: Iterable[Storage]) -> None:
        """Ends the pins of a run."""
        with self._lock:
            for storage in storages:
                if storage.users > 1:
                    storage.users -= 1
                else:
                    self._release(storage)

    # ---- copies

    def copy_in(self, gpu: Gpu | None, address: int, host_address: int, nbytes: int, waits: bool = True) -> None:
        """Host memory into a range. Without a working GPU the range stays on the host, so that the CPU can go on from
        it.

        waits: as Gpu.upload has it, of the buffer that the range has had.
        """
        if nbytes == 0:
            return
        if gpu is not None:
            try:
                version = self.version
                storage, offset = self.write(gpu, address, nbytes, in_part=True)
                gpu.upload(storage.buffer, offset, host_address, nbytes, waits or self.version != version)  # type: ignore[arg-type]
                if nbytes == storage.nbytes:
                    storage.words, storage.content = (), _small(host_address, nbytes)
                self.count("host_to_device", self.state_of(address), nbytes)
                return
            except Exception as error:
                state = self.state_of(address)
                if state is not None:
                    state.record("error", "copy to device", error)
                    forget_frames(error)
        data = np.empty(nbytes, np.uint8)
        ctypes.memmove(data.ctypes.data, host_address, nbytes)
        with self._lock:
            block, _ = self._find(address, nbytes)
            self._carve(block, address, address + nbytes)
            self._insert(block, Piece(address, address + nbytes, Storage(nbytes, host=data), 0))

    def copy_out(self, address: int, host_address: int, nbytes: int) -> None:
        """A range into host memory; waits for the GPU. Raises DeviceError, if the GPU can't give it back."""
        self.copy_out_all([(address, host_address, nbytes)])

    def copy_out_all(self, wanted: Iterable[tuple[int, int, int]]) -> None:
        """Like `copy_out`, of (address, host_address, nbytes), with one wait for all that a GPU has."""
        # storage, its offset, host address, bytes, the block's address
        parts: list[tuple[Storage, int, int, int, int]] = []
        with self._lock:
            for address, host_address, nbytes in wanted:
                pieces = self._find(address, nbytes)[1] if nbytes else []
                copies = [
                    (max(p.start, address), min(p.stop, address + nbytes), p.storage, p.offset - p.start)
                    for p in pieces
                ]
                parts += [
                    (self._pin(s), start + shift, host_address + start - address, stop - start, address)
                    for start, stop, s, shift in copies
                ]
                if sum(stop - start for start, stop, _, _ in copies) < nbytes:
                    ctypes.memset(host_address, 0, nbytes)
        try:
            self._fetch_all([part[:4] for part in parts])
            for storage, _, _, nbytes, address in parts:
                self.count("device_to_host", self.state_of(address), nbytes if storage.copy is None else 0)
        finally:
            self.release(storage for storage, *_ in parts)

    def copy(self, gpu: Gpu | None, source: int, target: int, nbytes: int) -> None:
        """A range into another one: the two share the storage until one of them is written."""
        if nbytes == 0:
            return
        with self._lock:
            block, pieces = self._find(source, nbytes)
            if not (len(pieces) == 1 and pieces[0].start <= source and source + nbytes <= pieces[0].stop):
                if gpu is None:
                    raise DeviceError("device memory: a value in several parts can't be copied without a GPU")
                self._gather(gpu, block, source, nbytes)
                block, pieces = self._find(source, nbytes)
            storage, offset = self._pin(pieces[0].storage), pieces[0].offset + source - pieces[0].start
            into, _ = self._find(target, nbytes)
            self._carve(into, target, target + nbytes)
            self._insert(into, Piece(target, target + nbytes, storage, offset))
        self.count("device_to_device", self.state_of(target), nbytes)

    @staticmethod
    def count(kind: str, state: SessionState | None, nbytes: int) -> None:
        """Notes a copy that was made, unless it was of nothing. state: the session it was made for, if any."""
        if nbytes:
            COPIES.add(kind, nbytes)
            if state is not None:
                state.count(kind, nbytes)

    # ---- inside

    def _find(self, address: int, nbytes: int) -> tuple[Block, list[Piece]]:
        """The block of a range, and its pieces that overlap the range."""
        block = self._blocks.get(address) or self._blocks.get(self._reservation.start_of(address))
        if block is None or address + nbytes > block.start + block.nbytes:
            raise InternalError(f"device address {address:#x} + {nbytes} B is not inside a live block")
        return block, [p for p in block.pieces if p.start < address + nbytes and p.stop > address]

    def _carve(self, block: Block, start: int, stop: int) -> None:
        """Takes [start, stop) out of the block's pieces; what lies beside it keeps its content."""
        kept: list[Piece] = []
        self.version += 1
        for piece in block.pieces:
            if piece.stop <= start or piece.start >= stop:
                kept.append(piece)
                continue
            piece.gone = True
            if piece.start < start:
                kept.append(Piece(piece.start, start, self._pin(piece.storage), piece.offset))
            if piece.stop > stop:
                kept.append(Piece(stop, piece.stop, self._pin(piece.storage), piece.offset + stop - piece.start))
            self._release(piece.storage)
        block.pieces = kept

    @staticmethod
    def _insert(block: Block, piece: Piece) -> None:
        block.pieces.append(piece)
        if len(block.pieces) > 1:
            block.pieces.sort(key=lambda p: p.start)

    def _gather(self, gpu: Gpu, block: Block, address: int, nbytes: int) -> Storage:
        """One storage on `gpu` for a range that is in several, on another GPU, on the host, or badly aligned."""
        _, pieces = self._find(address, nbytes)
        storage = Storage(nbytes, gpu, gpu.allocate(nbytes, VALUES))
        try:
            self._fill(storage, address, pieces, block.state)
        except Exception:
            self._release(storage)
            raise
        self._carve(block, address, address + nbytes)
        self._insert(block, Piece(address, address + nbytes, storage, 0))
        return storage

    def _fill(self, storage: Storage, address: int, pieces: list[Piece], state: SessionState | None) -> None:
        """The content of a range into a storage of its size: by copies on the GPU if all parts allow that, else through
        the host.

        What nobody has written is 0, as in what a program makes in host memory: a cache's rows may be read before they
        are written.
        """
        gpu, nbytes = storage.gpu, storage.nbytes
        assert gpu is not None
        parts = []
        for piece in pieces:
            start, stop = max(piece.start, address), min(piece.stop, address + nbytes)
            parts.append((piece.storage, piece.offset + start - piece.start, start - address, stop - start))
        words = all(at % 4 == 0 and to % 4 == 0 and (n % 4 == 0 or to + n == nbytes) for _, at, to, n in parts)
        if words and all(source.gpu is gpu for source, _, _, _ in parts):
            if sum(n for _, _, _, n in parts) < nbytes:
                gpu.clear(storage.buffer, (nbytes + 3) & ~3)  # type: ignore[arg-type]
            for source, at, to, n in parts:
                gpu.copy(source.buffer, at, storage.buffer, to, n)  # type: ignore[arg-type]
            storage.words = tuple({word for source, _, _, _ in parts for word in source.words})
            return
        data = np.zeros(nbytes, np.uint8)
        for source, at, to, n in parts:
            self.fetch(source, at, data.ctypes.data + to, n)
        self.count("device_to_host", state, sum(n for source, _, _, n in parts if source.copy is None))
        gpu.upload(storage.buffer, 0, data.ctypes.data, nbytes)  # type: ignore[arg-type]
        self.count("host_to_device", state, nbytes)

    def _empty_on(self, gpu: Gpu) -> Storage:
        """Stands in for tensors without elements, for which ONNX Runtime may pass NULL."""
        with self._lock:
            if gpu.nothing is None:
                gpu.nothing = gpu.allocate(OFFSET_ALIGNMENT, VALUES)
            # one of them never ends: the buffer stays the GPU's
            return Storage(OFFSET_ALIGNMENT, gpu, gpu.nothing, users=2)

    def _pin(self, storage: Storage) -> Storage:
        with self._lock:
            storage.users += 1
        return storage

    def _release(self, storage: Storage) -> None:
        storage.users -= 1
        if storage.users == 0 and storage.gpu is not None and storage.buffer is not None:
            if self.forked:
                self._orphans.append(storage.buffer)
            else:
                storage.gpu.free(storage.buffer)
            storage.buffer = None

    def fetch(self, storage: Storage, offset: int, host_address: int, nbytes: int) -> None:
        """Bytes of a storage into host memory. Raises DeviceError, if the GPU can't give them back."""
        if storage.host is not None:
            ctypes.memmove(host_address, storage.host.ctypes.data + offset, nbytes)
        elif storage.content is not None:
            self.check_usable()
            ctypes.memmove(host_address, storage.content[offset : offset + nbytes], nbytes)
        elif offset % 4:  # the GPU copies whole words
            data = np.empty(nbytes + offset % 4, np.uint8)
            self.fetch(storage, offset - offset % 4, data.ctypes.data, data.nbytes)
            ctypes.memmove(host_address, data.ctypes.data + offset % 4, nbytes)
        else:
            self.check_usable()
            assert storage.gpu is not None
            storage.gpu.download_all([((storage.buffer, offset, nbytes), host_address)], storage.words)  # type: ignore[list-item]

    def _fetch_all(self, wanted: Iterable[tuple[Storage, int, int, int]]) -> None:
        """`fetch` of each, but those that need no more than a readback together."""
        together: dict[Gpu, tuple[list[tuple[tuple[Buffer, int, int], int]], set[Word]]] = {}
        for storage, offset, host_address, nbytes in wanted:
            if storage.copy is not None or offset % 4:
                self.fetch(storage, offset, host_address, nbytes)
            else:
                assert storage.gpu is not None
                assert storage.buffer is not None
                pairs, words = together.setdefault(storage.gpu, ([], set()))
                pairs.append(((storage.buffer, offset, nbytes), host_address))
                words.update(storage.words)
        for gpu, (pairs, words) in together.items():
            self.check_usable()
            gpu.download_all(pairs, tuple(words))

    def check_usable(self) -> None:
        """Raises DeviceError in a forked child, OutOfDeviceMemoryError without address space."""
        if self._reservation.trouble:
            raise OutOfDeviceMemoryError(self._reservation.trouble)
        if self.forked:
            raise DeviceError(FORKED)

    def after_fork(self) -> None:
        """In the child: the GPU is the parent's, and a thread that held a lock does not exist."""
        self.forked = True
        self._lock = threading.RLock()
        self._reservation.after_fork()


def _small(address: int, nbytes: int) -> bytes | None:
    """A copy of host memory, if it is small."""
    return ctypes.string_at(address, nbytes) if nbytes <= CONTENT_NBYTES else None


memory = Memory()
"""All device memory that ONNX Runtime holds."""
