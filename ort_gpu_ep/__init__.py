"""ONNX models on GPUs: an execution provider for ONNX Runtime through wgpu (Vulkan; Metal and DX12 are untested).

    from ort_gpu_ep import InferenceSession            # a subclass of onnxruntime.InferenceSession
    session = InferenceSession("model.onnx")
    outputs = session.run(None, {"x": x}); print(session.explain())

    import onnxruntime, ort_gpu_ep; ort_gpu_ep.register()
    onnxruntime.InferenceSession("model.onnx", providers=["WgpuExecutionProvider", "CPUExecutionProvider"])

Every other public name of onnxruntime can be reached through this module too (`import ort_gpu_ep as ort`).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.errors import (
    AdapterError,
    ConfigError,
    DeviceError,
    DeviceHangError,
    DeviceLostError,
    GpuEpError,
    IndexOutOfRangeError,
    InputError,
    IntegerDivisionError,
    InternalError,
    MemoryLimitError,
    MissingInputError,
    ModelError,
    OutOfDeviceMemoryError,
    ScoringError,
    ShaderError,
    TrainingError,
    UnfitAdapterError,
    UnsupportedNodeError,
    WrongResultError,
)

if TYPE_CHECKING:
    from onnxruntime import (
        AdapterFormat,
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        IOBinding,
        LoraAdapter,
        ModelCompiler,
        ModelMetadata,
        NodeArg,
        OrtAllocatorType,
        OrtArenaCfg,
        OrtCompileApiFlags,
        OrtDevice,
        OrtDeviceMemoryType,
        OrtDeviceVendorId,
        OrtEpAssignedNode,
        OrtEpAssignedSubgraph,
        OrtEpDevice,
        OrtExecutionProviderDevicePolicy,
        OrtExternalInitializerInfo,
        OrtHardwareDevice,
        OrtHardwareDeviceType,
        OrtMemoryInfo,
        OrtMemoryInfoDeviceType,
        OrtMemType,
        OrtSparseFormat,
        OrtSyncStream,
        OrtValue,
        RunOptions,
        SessionIOBinding,
        SessionOptions,
        SparseTensor,
        copy_tensors,
        create_and_register_allocator,
        create_and_register_allocator_v2,
        cuda_version,
        datasets,
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_build_info,
        get_device,
        get_ep_devices,
        get_version_string,
        has_collective_ops,
        import_capi_exception,
        package_name,
        preload_dlls,
        print_debug_info,
        register_execution_provider_library,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
        set_seed,
        unregister_execution_provider_library,
        version,
    )
    from onnxruntime import (
        OrtEpContextData as OrtEpContextData,
    )
    from onnxruntime import (
        OrtEpContextDataBuffer as OrtEpContextDataBuffer,
    )

    from ort_gpu_ep.generation import EncoderDecoder, Generator, decoding_session, generate
    from ort_gpu_ep.health.enumeration import adapters
    from ort_gpu_ep.plugin import (
        EP_NAME,
        get_available_providers,
        get_ep_name,
        get_ep_names,
        get_library_path,
        register,
        unregister,
    )
    from ort_gpu_ep.plugin.explain import Explanation
    from ort_gpu_ep.session.bound_runs import read_later
    from ort_gpu_ep.session.patching import Patch, patch
    from ort_gpu_ep.session.session import InferenceSession

__version__ = "0.1.0"

_LAZY = {
    "EP_NAME": "ort_gpu_ep.plugin",
    "EncoderDecoder": "ort_gpu_ep.generation",
    "Explanation": "ort_gpu_ep.plugin.explain",
    "Generator": "ort_gpu_ep.generation",
    "InferenceSession": "ort_gpu_ep.session.session",
    "Patch": "ort_gpu_ep.session.patching",
    "adapters": "ort_gpu_ep.health.enumeration",
    "decoding_session": "ort_gpu_ep.generation",
    "generate": "ort_gpu_ep.generation",
    "get_available_providers": "ort_gpu_ep.plugin",
    "get_ep_name": "ort_gpu_ep.plugin",
    "get_ep_names": "ort_gpu_ep.plugin",
    "get_library_path": "ort_gpu_ep.plugin",
    "patch": "ort_gpu_ep.session.patching",
    "read_later": "ort_gpu_ep.session.bound_runs",
    "register": "ort_gpu_ep.plugin",
    "unregister": "ort_gpu_ep.plugin",
}
"""Loaded on first use, so that tools which need no GPU don't load its driver."""

__all__ = [
    "EP_NAME",
    "AdapterError",
    "AdapterFormat",
    "ConfigError",
    "DeviceError",
    "DeviceHangError",
    "DeviceLostError",
    "EncoderDecoder",
    "ExecutionMode",
    "ExecutionOrder",
    "Explanation",
    "Generator",
    "GpuEpError",
    "GraphOptimizationLevel",
    "IOBinding",
    "IndexOutOfRangeError",
    "InferenceSession",
    "InputError",
    "IntegerDivisionError",
    "InternalError",
    "LoraAdapter",
    "MemoryLimitError",
    "MissingInputError",
    "ModelCompiler",
    "ModelError",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtCompileApiFlags",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph",
    "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy",
    "OrtExternalInitializerInfo",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtSyncStream",
    "OrtValue",
    "OutOfDeviceMemoryError",
    "Patch",
    "RunOptions",
    "ScoringError",
    "SessionIOBinding",
    "SessionOptions",
    "ShaderError",
    "SparseTensor",
    "TrainingError",
    "UnfitAdapterError",
    "UnsupportedNodeError",
    "WrongResultError",
    "__version__",
    "adapters",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "cuda_version",
    "datasets",
    "decoding_session",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "generate",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "get_version_string",
    "has_collective_ops",
    "import_capi_exception",
    "package_name",
    "patch",
    "preload_dlls",
    "print_debug_info",
    "read_later",
    "register",
    "register_execution_provider_library",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister",
    "unregister_execution_provider_library",
    "version",
]
"""Ours, and what onnxruntime has in each release since the oldest that works."""


def _module(name: str) -> Any:
    """A module, imported as a whole or not at all. Raises ModuleNotFoundError, with what to do where onnxruntime is not
    installed."""
    from ort_gpu_ep.processes.interrupts import load

    try:
        load(name)
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ModuleNotFoundError(
            "ort_gpu_ep needs ONNX Runtime, which is not installed. It brings none, since there are several builds: "
            "pip install 'onnxruntime>=1.26', or onnxruntime-gpu or another build of 1.26 or newer.",
            name="onnxruntime",
        ) from None


if not TYPE_CHECKING:  # for a type checker each name would be there then

    def __getattr__(name):
        if name in _LAZY:
            return getattr(_module(_LAZY[name]), name)
        if name == "datasets":  # a module of onnxruntime that importing it does not load
            return _module("onnxruntime.datasets")
        # `from ort_gpu_ep import store` asks here first
        if not name.startswith("_") and find_spec(f"ort_gpu_ep.{name}") is None:
            onnxruntime = _module("onnxruntime")
            if hasattr(onnxruntime, name):
                return getattr(onnxruntime, name)
        raise AttributeError(f"module 'ort_gpu_ep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
