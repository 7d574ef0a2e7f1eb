"""If, Loop and Scan on our provider: ONNX Runtime runs their bodies, and the values of each iteration stay on the
device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.plugin import slots
from ort_gpu_ep.plugin.abi import api, ffi, pointer_to, tensor_of
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.plugin.places import gpu_for, tensor_type
from ort_gpu_ep.plugin.tables import Table, entry
from ort_gpu_ep.plugin.transfer import add_kernel, recording


class LoopHelper(Table):
    """OrtLoopKernelHelper."""

    SLOTS = slots.LOOP_HELPER

    def release(self) -> None:
        self.drop()

    def concat_output(self, stream: Any, values: int, count: int, target: int, nbytes: int) -> None:
        """What the turns gave, one behind the other: the target refers to it until somebody reads it as one."""
        addresses = ffi.cast("uintptr_t*", pointer_to(values))
        at = target
        with recording(target):
            for i in range(count):
                address, shape, kind = tensor_of(addresses[i])
                size = tensor_type(kind, shape).nbytes
                memory.copy(gpu_for(target), address, at, size)
                at += size
        if at != target + nbytes:
            raise InternalError(f"Loop: its turns gave {at - target} bytes; expected {nbytes}")


class ScanHelper(Table):
    """OrtScanKernelHelper."""

    SLOTS = slots.SCAN_HELPER

    def release(self) -> None:
        self.drop()

    def transpose(self, permutation: Any, rank: int, source: int, stream: Any, target: int) -> None:
        """Not needed: a Scan over another axis than the first stays on the CPU."""
        raise InternalError(f"Scan: asked to transpose to {list(permutation[0:rank])}; such a Scan was not claimed")


@entry("sppo")
def create_loop(state: Any, info: Any, out: Any) -> None:
    _create(api.CreateLoopKernel, info, LoopHelper(), out)


@entry("sppo")
def create_scan(state: Any, info: Any, out: Any) -> None:
    _create(api.CreateScanKernel, info, ScanHelper(), out)


def _create(create: Callable[..., Any], info: Any, helper: Table, out: Any) -> None:
    """The kernel releases the helper; where there is none, nobody else would."""
    try:
        create(info, helper.pointer, out)
    except InternalError:
        helper.drop()
        raise


@entry("sppo")
def create_if(state: Any, info: Any, out: Any) -> None:
    api.CreateIfKernel(info, out)


def add_control_flow(registry: Any, ep_name: Any) -> None:
    """Adds If, Loop and Scan to a kernel registry. What decides on turns and branches is in host memory."""
    add_kernel(registry, ep_name, "If", create_if, (0,))
    add_kernel(registry, ep_name, "Loop", create_loop, (0, 1))
    add_kernel(registry, ep_name, "Scan", create_scan)
