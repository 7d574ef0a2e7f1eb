"""Names of execution providers, as sessions of onnxruntime take them."""

from __future__ import annotations

EP_NAME = "WgpuExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"

VENDOR_ID = 0
"""Of our device memory: "no vendor", so that `bind_output(name, "gpu")` and its like find it without being told one."""
