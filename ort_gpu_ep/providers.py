"""Names of execution providers, as sessions of onnxruntime take them."""

from __future__ import annotations

EP_NAME = "WgpuExecutionProvider"
STAND_IN_NAME = "WebGpuExecutionProvider"
"""ONNX Runtime's own WebGPU provider, which a library registered under this name stands in for: onnxruntime-genai keeps
its caches on the devices of providers that it knows by name only."""

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

VENDOR_ID = 0
"""Of our device memory: "no vendor", so that `bind_output(name, "gpu")` and its like find it without being told one."""
