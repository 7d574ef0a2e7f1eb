"""Names of execution providers, as sessions of onnxruntime take them."""

from __future__ import annotations

EP_NAME = "WgpuExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"
