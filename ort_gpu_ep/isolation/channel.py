"""Messages between two processes over a socket, and the memory that they share. Tensors go through the memory only."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
import tempfile
import time

import numpy as np

from ort_gpu_ep.ir.external import MAX_NBYTES
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.kernels.target import ALIGNMENT
from ort_gpu_ep.processes.known import cores

_HEAD = struct.Struct("<I")

_CHUNK = 1 << 16

_SLICE_S = 1.0
"""A wait counts this much at most for each time it wakes up: a process that was stopped meanwhile has not waited."""

SPIN_S = 4e-4
"""How long a wait asks for the answer before it sleeps: waking up takes 50-100 us on each side of a small run. Not
where cores are few and the driver may need them (lavapipe)."""

MIN_CORES = 4

_GRAIN = 1 << 20
"""The shared memory grows by multiples of this."""


class Channel:
    """One end of a socket: whole messages. Not thread-safe."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._rest = bytearray()
        self._spin_s = SPIN_S if cores() >= MIN_CORES else 0.0

    def send(self, message: bytes, timeout_s: float) -> None:
        """Raises OSError where the other end is gone, TimeoutError where it doesn't read."""
        self._socket.settimeout(timeout_s)
        self._socket.sendall(_HEAD.pack(len(message)) + message)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next message. Raises TimeoutError, EOFError where the other end is gone, ValueError for a length that
        can't be."""
        left_s = timeout_s
        while True:
            if len(self._rest) >= _HEAD.size:
                nbytes = _HEAD.unpack_from(self._rest)[0]
                if nbytes > MAX_NBYTES:  # no graph is as large: what claims to be is garbage
                    raise ValueError(f"a message of {nbytes} B")
                if len(self._rest) >= _HEAD.size + nbytes:
                    message = bytes(self._rest[_HEAD.size : _HEAD.size + nbytes])
                    del self._rest[: _HEAD.size + nbytes]
                    return message
            left_s = self._read_some(left_s)

    def _read_some(self, left_s: float | None) -> float | None:
        """Reads what is there; gives the time left."""
        part_s = None if left_s is None else min(left_s, _SLICE_S)
        start = time.monotonic()
        try:
            data = self._ask_at_once(start + self._spin_s)
            if data is None:
                self._socket.settimeout(part_s)
                data = self._socket.recv(_CHUNK)
        except TimeoutError:
            if left_s is None or left_s <= _SLICE_S:
                raise
            return left_s - _SLICE_S
        except ConnectionError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        self._rest += data
        return None if left_s is None or part_s is None else max(left_s - min(time.monotonic() - start, part_s), 1e-3)

    def _ask_at_once(self, until_s: float) -> bytes | None:
        """What has come, or comes until then (monotonic clock); None for nothing."""
        self._socket.settimeout(0.0)
        while time.monotonic() < until_s:
            try:
                return self._socket.recv(_CHUNK)
            except BlockingIOError:
                continue
        return None

    def close(self) -> None:
        self._socket.close()


class SharedMemory:
    """Memory without a name, so that nothing of it is left whichever way its processes end. It only grows.

    fd: of the other process's, inherited; None makes new memory. nbytes: how much of it this process has mapped.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _new() if fd is None else fd
        self.nbytes, self.address = 0, 0
        self._map: mmap.mmap | None = None
        self.reserve(1)

    def reserve(self, nbytes: int) -> None:
        """Makes room for nbytes. Addresses from before are void then.

        Raises OSError, where the system has no more memory: better now than a bus error at the first use of a page.
        """
        if nbytes <= self.nbytes:
            return
        there = os.fstat(self.fd).st_size
        if nbytes > there:
            size = -(-max(nbytes, there + there // 4) // _GRAIN) * _GRAIN
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.fd, there, size - there)
            else:
                os.ftruncate(self.fd, size)
        self.follow()

    def follow(self) -> None:
        """Maps what the other process has added. Addresses from before are void then."""
        there = os.fstat(self.fd).st_size
        if there == self.nbytes:
            return
        self._map = mmap.mmap(self.fd, there)
        self.nbytes, self.address = there, int(np.frombuffer(self._map, np.uint8).ctypes.data)

    def bytes_at(self, offset: int, nbytes: int) -> Array:
        """A view; it must not outlive the next `reserve`."""
        assert self._map is not None
        return np.frombuffer(self._map, np.uint8, nbytes, offset)

    def close(self) -> None:
        """Gives the memory back."""
        self._map, self.nbytes, self.address = None, 0, 0
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _new() -> int:
    if sys.platform != "linux":
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
    fd = os.memfd_create("ort_gpu_ep", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    import fcntl

    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # nobody can take mapped pages away from the other process
    return fd


def aligned(offset: int) -> int:
    """The next place where a tensor may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
