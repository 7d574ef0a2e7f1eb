"""Addresses for device memory: a reserved range of address space that the CPU can neither read nor write.

ONNX Runtime wants a pointer for every tensor. Ours name device memory; whoever follows one by mistake faults at once
instead of reading garbage.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from bisect import bisect_right

from ort_gpu_ep.errors import OutOfDeviceMemoryError

GRANULE_NBYTES = 4096
_WANTED_NBYTES = 1 << 44
_LEAST_NBYTES = 1 << 33


class Reservation:
    """Hands out address ranges. A freed range is the next one given for its size class, so steady states repeat
    addresses.

    trouble: why there are no addresses at all; empty where there are.
    """

    def __init__(self) -> None:
        self.base, self.nbytes = _reserve()
        self.trouble = (
            ""
            if self.nbytes
            else (
                f"address space: the system does not even reserve {_LEAST_NBYTES} B of it for device memory (is "
                f"`ulimit -v` set?)"
            )
        )
        self._next = self.base
        self._starts: list[int] = []  # of every range ever given, ascending: ranges are reused, never merged
        self._sizes: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> int:
        """The start of a range of at least nbytes. Raises OutOfDeviceMemoryError, when no address is left."""
        if self.trouble:
            raise OutOfDeviceMemoryError(self.trouble)
        size = max(GRANULE_NBYTES, 1 << (nbytes - 1).bit_length())
        with self._lock:
            free = self._free.get(size)
            if free:
                return free.pop()
            start = self._next
            if start + size > self.base + self.nbytes:
                raise OutOfDeviceMemoryError(
                    f"address space: {nbytes} B asked for; the {self.nbytes} B for device memory are in use"
                )
            self._next = start + size
            self._starts.append(start)
            self._sizes[start] = size
            return start

    def give_back(self, start: int) -> None:
        """Frees a range that `take` gave."""
        with self._lock:
            self._free.setdefault(self._sizes[start], []).append(start)

    def contains(self, address: int) -> bool:
        """Whether an address is one of ours, whatever its state."""
        return self.base <= address < self.base + self.nbytes

    def start_of(self, address: int) -> int:
        """The start of the range that an address lies in."""
        return self._starts[bisect_right(self._starts, address) - 1]

    def after_fork(self) -> None:
        """In the child: a thread that held the lock does not exist."""
        self._lock = threading.Lock()


def _reserve() -> tuple[int, int]:
    """(address, size) of as much unreadable address space as the system gives; (0, 0) if that is too little."""
    nbytes = _WANTED_NBYTES
    while nbytes >= _LEAST_NBYTES:
        address = _mapped(nbytes)
        if address:
            return address, nbytes
        nbytes >>= 1
    return 0, 0


if sys.platform == "win32":

    def _mapped(nbytes: int) -> int:
        """The address of so much, 0 where there is not that much."""
        mem_reserve, page_no_access = 0x2000, 0x01
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.VirtualAlloc.restype = ctypes.c_void_p
        kernel.VirtualAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_ulong, ctypes.c_ulong]
        return int(kernel.VirtualAlloc(None, nbytes, mem_reserve, page_no_access) or 0)

else:

    def _mapped(nbytes: int) -> int:
        """The address of so much, 0 where there is not that much."""
        import mmap

        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        no_reserve = 0x4000 if sys.platform.startswith("linux") else 0x40
        protection_none = 0
        address = libc.mmap(None, nbytes, protection_none, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve, -1, 0)
        return 0 if address in (None, ctypes.c_void_p(-1).value) else int(address)
