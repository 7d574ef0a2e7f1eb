"""One kernel over one buffer on a device of its own, which shares no lock with the sessions' device."""

from __future__ import annotations

import time

from ort_gpu_ep.device.adapter import choose, request_device
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import ffi
from ort_gpu_ep.webgpu.objects import COPY_DST, COPY_SRC, MAP_READ, STORAGE


class Single:
    """source: WGSL whose `main` has the buffer at @group(0) @binding(0), read_write. data: its first content.

    Raises: AdapterError, where the driver gives no device; GPUError.
    """

    hang_timeout_s = 0.0

    def __init__(self, info: AdapterInfo, label: str, source: str, data: Array) -> None:
        self.info, self.lost, self._label = info, "", label
        self.device = device = request_device(info, choose(str(info.index))[1])
        native.watch(self)
        layout = device.create_bind_group_layout((True,))
        module = device.create_shader_module(label, source)
        self._pipeline = device.create_compute_pipeline(label, device.create_pipeline_layout(layout), module)
        self._buffer = device.create_buffer(label, data.nbytes, STORAGE | COPY_SRC | COPY_DST)
        self._staging = device.create_buffer(label, data.nbytes, MAP_READ | COPY_DST)
        self._group = device.create_bind_group(label, layout, [(self._buffer.handle, 0, data.nbytes)])
        native.write(device, self._buffer.handle, 0, data.ctypes.data, data.nbytes)

    def run(self, groups: int, dispatches: int, nbytes: int) -> tuple[bytes, float]:
        """The first nbytes of the buffer after that many dispatches of that many workgroups, and the seconds it took,
        submission included.

        Raises: GPUError, DeviceLostError.
        """
        encoder = self.device.create_command_encoder(self._label)
        compute = encoder.begin_compute_pass()
        for _ in range(dispatches):
            native.dispatch(compute, self._pipeline, self._group, (groups, 1, 1))
        compute.end()
        native.copy_buffer(encoder, self._buffer.handle, 0, self._staging.handle, 0, nbytes)
        commands, start = native.finish(encoder), time.perf_counter()
        index = native.submit(self.device, [commands])
        native.wait(self, index, native.map_read(self.device, self._staging.handle, nbytes))
        taken_s = time.perf_counter() - start
        got = bytes(ffi.buffer(ffi.cast("char *", native.mapped(self._staging.handle, nbytes)), nbytes))
        native.unmap(self._staging.handle)
        return got, taken_s

    def close(self) -> None:
        """Gives the device back."""
        self.device.destroy()
