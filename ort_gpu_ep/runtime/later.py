"""A readback that the host does not wait for yet; work that is submitted after it may change the buffer that it reads."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from ort_gpu_ep.device import index_check
from ort_gpu_ep.device.buffers import Piece
from ort_gpu_ep.device.gpu import ALIGNMENT, Gpu
from ort_gpu_ep.runtime.recording import BufferCopy, encode
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import ffi, lib


class Later:
    """The content of small pieces behind all that is enqueued so far, which is submitted. Raises DeviceError.

    words: looked at when it has arrived.
    """

    def __init__(self, gpu: Gpu, pieces: Sequence[Piece], words: Sequence[index_check.Word]) -> None:
        self._gpu, self._words, self._count = gpu, [word for word in words if not word.clean], len(pieces)
        self._pieces = [*pieces, *(word.piece for word in self._words)]
        self._arrival = native.Arrival(lib.WGPUMapMode_Read)
        self._staging = gpu.lend_staging(len(self._pieces) * ALIGNMENT)
        copies = [BufferCopy(buffer.native, offset, self._staging.native, k * ALIGNMENT, (nbytes + 3) & ~3)
                  for k, (buffer, offset, nbytes) in enumerate(self._pieces)]
        self._submission = gpu.run(encode(gpu, self, "later", copies, (), lambda: "a readback"), ((self._staging, self._arrival),))

    def wait(self) -> list[bytes]:
        """The content of each piece; to be called once. Raises DeviceError, InputError where a word is set."""
        self._gpu.while_waiting()
        submitted = time.perf_counter()
        native.wait(self._gpu, self._submission, self._arrival)
        waited_s = time.perf_counter() - submitted
        address = native.mapped(self._staging.native, self._staging.nbytes)
        found = [bytes(ffi.buffer(ffi.cast("char *", address + k * ALIGNMENT), nbytes)) for k, (_, _, nbytes) in enumerate(self._pieces)]
        native.unmap(self._staging.native)
        self._gpu.take_staging(self._staging)
        self._gpu.exchanged(None, (len(found), sum(map(len, found)), submitted, waited_s))
        index_check.check(self._words, [int.from_bytes(data, sys.byteorder) for data in found[self._count:]])
        for word in self._words:
            word.clean = True
        return found[:self._count]
