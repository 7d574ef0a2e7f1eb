"""The providers that a benchmark compares with, and the adapter and versions that it reports."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import onnxruntime

from ort_gpu_ep.cli import shared
from ort_gpu_ep.config import resolve
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.providers import CPU_PROVIDER, CUDA_PROVIDER

WEBGPU = "onnxruntime_ep_webgpu"


def check(name: str) -> None:
    """Raises ConfigError for a provider that is not installed."""
    if name == "cuda" and CUDA_PROVIDER not in onnxruntime.get_available_providers():
        raise ConfigError("cuda: this onnxruntime has no CUDAExecutionProvider; install onnxruntime-gpu and CUDA")
    if name == "webgpu" and find_spec(WEBGPU) is None:
        raise ConfigError("webgpu needs ONNX Runtime's plugin: pip install onnxruntime-ep-webgpu")


def peer(name: str, model: str) -> Any:
    """A plain session of onnxruntime's with that provider: cpu, webgpu or cuda. Raises as `check`."""
    check(name)
    if name == "cpu":
        return shared.cpu_session(model)
    if name == "cuda":
        return onnxruntime.InferenceSession(model, shared.quiet(), providers=[CUDA_PROVIDER, CPU_PROVIDER])
    return _webgpu(model)


def _webgpu(model: str) -> Any:
    package = import_module(WEBGPU)
    provider = package.get_ep_name()
    if not any(d.ep_name == provider for d in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library("webgpu_peer", package.get_library_path())
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == provider]
    if not devices:
        raise ConfigError("webgpu: its plugin finds no device")
    settings = shared.quiet()
    settings.add_provider_for_devices(devices[:1], {})
    return onnxruntime.InferenceSession(model, settings)


def about(session: Any, options: dict[str, str]) -> dict[str, Any]:
    """Of a session that has run: adapter and driver, versions, placement, and how many nodes are where."""
    explained, state = session.explain(), session.state
    info = state.backend.adapter.info if state is not None and state.backend is not None else None
    return {
        "adapter": info.name if info else explained.adapter,
        "driver": f"{info.backend}, {info.driver}" if info else "",
        "placement": resolve(options).placement,
        "nodes": {device: explained.count(device) for device in ("gpu", "host", "cpu")},
        "onnxruntime": onnxruntime.__version__,
        "ort_gpu_ep": sys.modules["ort_gpu_ep"].__version__,
    }


def about_lines(facts: dict[str, Any]) -> list[str]:
    """The same for people."""
    nodes = facts["nodes"]
    driver = f" ({facts['driver']})" if facts["driver"] else ""
    return [
        f"adapter: {facts['adapter']}{driver}",
        f"placement={facts['placement']}: {nodes['gpu']} nodes on the GPU, {nodes['cpu']} on the CPU; "
        f"onnxruntime {facts['onnxruntime']}, ort-gpu-ep {facts['ort_gpu_ep']}",
    ]
