"""The memory of another process: large tensors go between it and what a driver has mapped, without a copy in between.

Linux's process_vm_readv(2) and process_vm_writev(2). It is the worker that reaches into its parent: the kernel reaches
memory that a driver has mapped (VM_PFNMAP) for the calling process only, and the parent's tensors are ordinary memory.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from ort_gpu_ep.isolation.channel import MIN_CORES
from ort_gpu_ep.processes.known import cores

NBYTES = 256 << 10
"""Tensors from here on are not copied through the shared memory. Pinning pages takes as long as copying some 100 KiB,
and an output takes one message more."""

THREADS, THREAD_NBYTES = 4, 1 << 20
"""How many threads share a copy, and from how many bytes each on: most of the time goes into finding and pinning pages,
one by one."""

_PROBE_NBYTES = 64
_PR_SET_PTRACER = 0x59616D61
"""prctl(2), "Yama": lets one process, which is no ancestor, reach this one."""


class _Piece(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class ProcessMemory:
    """The memory of process `pid`. Raises OSError, where the system does not allow it or an address is not the
    process's."""

    def __init__(self, pid: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._pid, self._threads = pid, ThreadPoolExecutor(THREADS)  # which starts them when they are first wanted
        self._shares = THREADS if cores() >= MIN_CORES else 1
        self._readv, self._writev = (_function(libc, name) for name in ("process_vm_readv", "process_vm_writev"))

    def read(self, address: int, into: int, nbytes: int) -> None:
        """Copies its memory to ours."""
        self._all(self._readv, into, address, nbytes)

    def write(self, address: int, source: int, nbytes: int) -> None:
        """Copies our memory to its."""
        self._all(self._writev, source, address, nbytes)

    def _all(self, call: Callable[..., int], here: int, there: int, nbytes: int) -> None:
        share = max(-(-nbytes // self._shares), THREAD_NBYTES)
        parts = [(here + start, there + start, min(share, nbytes - start)) for start in range(0, nbytes, share)]
        others = [self._threads.submit(self._part, call, *part) for part in parts[1:]]
        try:
            self._part(call, *parts[0])
        finally:
            wait(others)  # whatever happens: nothing is written to memory that was given back
        for other in others:
            other.result()

    def _part(self, call: Callable[..., int], here: int, there: int, nbytes: int) -> None:
        done = 0
        while done < nbytes:  # one call moves 2 GiB at most
            ours, its = _Piece(here + done, nbytes - done), _Piece(there + done, nbytes - done)
            moved = call(self._pid, ctypes.byref(ours), 1, ctypes.byref(its), 1, 0)
            if moved <= 0:
                code = ctypes.get_errno()
                raise OSError(
                    code, f"{nbytes - done} B at {there + done:#x} of process {self._pid}: {os.strerror(code)}"
                )
            done += moved


def _function(libc: Any, name: str) -> Any:
    if not hasattr(libc, name):
        raise OSError(f"this system has no {name}")
    function = getattr(libc, name)
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_ssize_t
    return function


class AccessCheck:
    """Shows whether a worker reaches this process: it turns round the bytes at `address`."""

    def __init__(self, worker: int) -> None:
        if sys.platform.startswith("linux"):
            # EINVAL where there is no Yama: not needed then
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(worker), 0, 0, 0)
        self._want = secrets.token_bytes(_PROBE_NBYTES)
        self._bytes = ctypes.create_string_buffer(self._want, _PROBE_NBYTES)
        self.address = ctypes.addressof(self._bytes)

    @property
    def passed(self) -> bool:
        return self._bytes.raw == self._want[::-1]


def answer_trial(parent: int, address: int) -> ProcessMemory | None:
    """The worker's part. None where the parent can't be reached."""
    try:
        memory = ProcessMemory(parent)
        block = ctypes.create_string_buffer(_PROBE_NBYTES)
        memory.read(address, ctypes.addressof(block), _PROBE_NBYTES)
        turned = ctypes.create_string_buffer(block.raw[::-1], _PROBE_NBYTES)
        memory.write(address, ctypes.addressof(turned), _PROBE_NBYTES)
    except OSError:
        return None
    return memory
