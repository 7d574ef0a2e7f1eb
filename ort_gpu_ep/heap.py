"""What the C heap keeps for later, given back to the system.

Reading a model takes memory that ONNX Runtime frees at once; glibc keeps it: 195 MiB behind a session of ResNet-50, which has 98 MiB of
weights.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

MIN_NBYTES = 16 << 20
"""Of weights: behind a smaller model it is not worth the time, and the heap is the whole program's. 20 ms behind ResNet-50."""


@cache
def _trim() -> Any:
    """glibc's function; None with another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None


def give_back(nbytes: int) -> None:
    """A model with so many bytes of weights has been read."""
    if nbytes >= MIN_NBYTES and (trim := _trim()) is not None:
        trim(0)
