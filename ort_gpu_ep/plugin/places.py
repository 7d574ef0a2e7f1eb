"""What ONNX Runtime passes: an address, of which the GPU is to be told, and a type."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING

from ort_gpu_ep.config import resolve
from ort_gpu_ep.errors import GpuEpError, InternalError
from ort_gpu_ep.ir.types import BY_ONNX, Shape, TensorType
from ort_gpu_ep.plugin.memory import memory

if TYPE_CHECKING:
    from ort_gpu_ep.device import Gpu

log = logging.getLogger("ort_gpu_ep")


@lru_cache(maxsize=4096)
def tensor_type(onnx_type: int, shape: Shape) -> TensorType:
    """The TensorType of what ONNX Runtime passes. Raises InternalError for an element type that is not ours."""
    if onnx_type not in BY_ONNX:
        raise InternalError(
            f"a tensor of ONNX element type {onnx_type} came to the device; expected one of {sorted(BY_ONNX)}"
        )
    return TensorType(BY_ONNX[onnx_type], shape)


def gpu_for(address: int) -> Gpu | None:
    """The GPU that new content of an address should go to: its session's, else that which has its content now, else the
    default one.

    None if there is none, or it is a worker's: what it holds is on the host then.
    """
    if memory.forked:
        return None
    state = memory.state_of(address)
    if state is not None:
        return gpu if (gpu := state.gpu) is not None and not gpu.lost else None
    if (holder := memory.gpu_of(address)) is not None and not holder.lost:
        return holder
    try:
        config = resolve()
        if config.isolation == "process":
            return None
        from ort_gpu_ep.health.open_adapter import open_gpu

        return open_gpu(config)
    except GpuEpError as error:
        log.warning("no GPU for shared device memory: %s", error)
        return None
