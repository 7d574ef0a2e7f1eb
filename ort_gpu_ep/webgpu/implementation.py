"""Which implementation of webgpu.h this process uses: `own` has what it leaves to them."""

from __future__ import annotations

from ort_gpu_ep.webgpu.choice import DAWN
from ort_gpu_ep.webgpu.library import KIND
from ort_gpu_ep.webgpu.wgpu_native import WgpuNative


def _chosen() -> WgpuNative:
    if KIND == DAWN:
        from ort_gpu_ep.webgpu.dawn import Dawn

        return Dawn()
    return WgpuNative()


own = _chosen()
