"""What kernels may use of an adapter, from what its backend tells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ort_gpu_ep.device.adapter import limits_of
from ort_gpu_ep.webgpu.library import lib


def told(backend: int, storage_buffers: int) -> Any:
    limits = SimpleNamespace(
        maxStorageBufferBindingSize=1 << 30,
        maxBufferSize=1 << 30,
        maxStorageBuffersPerShaderStage=storage_buffers,
        maxComputeWorkgroupStorageSize=32768,
        maxComputeInvocationsPerWorkgroup=1024,
        maxComputeWorkgroupSizeX=1024,
        maxComputeWorkgroupsPerDimension=65535,
        minStorageBufferOffsetAlignment=256,
    )
    info = SimpleNamespace(backendType=backend, vendorID=0, subgroupMinSize=4, subgroupMaxSize=64)
    return SimpleNamespace(features=frozenset[str](), configurations=(), limits=limits, info=info, name="one")


@pytest.mark.parametrize(
    ("backend", "storage_buffers", "most"),
    [
        (lib.WGPUBackendType_Metal, 31, 29),
        (lib.WGPUBackendType_Vulkan, 31, 31),
        (lib.WGPUBackendType_Vulkan, 1 << 20, 32),
        (lib.WGPUBackendType_D3D12, 1 << 16, 32),
    ],
)
def test_metals_table_of_buffers_has_room_for_what_is_not_storage(
    backend: int, storage_buffers: int, most: int
) -> None:
    assert limits_of(told(backend, storage_buffers)).max_buffers_per_stage == most
