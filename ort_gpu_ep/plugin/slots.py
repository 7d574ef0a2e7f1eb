"""Slot numbers and signatures of the ONNX Runtime C tables that this package touches.

The tables are append-only, so a slot number never changes. `since` is the API version (the minor number of the ONNX
Runtime release) that added a slot; a slot newer than the running ONNX Runtime is neither called nor filled.

Signature letters, return type first: v void, p void*, o void**, c const char*, z size_t, n size_t*, i int, u uint32_t,
q int64_t, b bool; a, h a pointer, a pointer's address as numbers (what every run uses, because numbers need no casts);
s OrtStatus*, which abi.py turns into an exception.
"""

from __future__ import annotations

from typing import NamedTuple

OLDEST_API = 24
"""ONNX Runtime 1.24: the first with kernel registries for plugin EPs."""

NEWEST_API = 32
"""The newest API version whose tables these slot numbers were checked against."""


class Slot(NamedTuple):
    """A function pointer in a table. empty: of a table that this package fills, why it leaves this one out."""

    number: int
    signature: str
    since: int = OLDEST_API
    empty: str = ""


ORT_API = {
    "CreateStatus": Slot(0, "pip"),
    "GetErrorMessage": Slot(2, "cp"),
    "CloneSessionOptions": Slot(12, "spp"),
    "CreateTensorWithDataAsOrtValue": Slot(49, "sppzpzip"),
    "GetTensorMutableData": Slot(51, "sah"),
    "CastTypeInfoToTensorInfo": Slot(55, "spp"),
    "GetTensorElementType": Slot(60, "spp"),
    "GetDimensionsCount": Slot(61, "spp"),
    "GetDimensions": Slot(62, "sppz"),
    "GetSymbolicDimensions": Slot(63, "sppz"),
    "KernelContext_GetInput": Slot(90, "sazh"),
    "KernelContext_GetOutput": Slot(91, "sazpzh"),
    "ReleaseStatus": Slot(93, "vp"),
    "ReleaseMemoryInfo": Slot(94, "vp"),
    "ReleaseValue": Slot(96, "vp"),
    "ReleaseSessionOptions": Slot(100, "vp"),
    "AddInitializer": Slot(150, "spcp"),
    "ReadOpAttr": Slot(272, "spipzp"),
    "GetValueInfoName": Slot(289, "spp"),
    "GetValueInfoTypeInfo": Slot(290, "spp"),
    "CreateKeyValuePairs": Slot(295, "vp"),
    "AddKeyValuePair": Slot(296, "vppp"),
    "GetKeyValue": Slot(297, "cpp"),
    "GetKeyValuePairs": Slot(298, "vpppp"),
    "ReleaseKeyValuePairs": Slot(300, "vp"),
    "HardwareDevice_Type": Slot(307, "ip"),
    "HardwareDevice_VendorId": Slot(308, "up"),
    "HardwareDevice_DeviceId": Slot(310, "up"),
    "GetEpApi": Slot(317, "p"),
    "CreateMemoryInfo_V2": Slot(320, "spiuiizip"),
    "ValueInfo_GetInitializerValue": Slot(326, "spp"),
    "ValueInfo_GetExternalInitializerInfo": Slot(327, "spp"),
    "ValueInfo_IsConstantInitializer": Slot(331, "spp"),
    "ValueInfo_IsFromOuterScope": Slot(332, "spp"),
    "Graph_GetName": Slot(333, "spp"),
    "Graph_GetModelPath": Slot(334, "spp"),
    "Graph_GetNumOperatorSets": Slot(336, "spp"),
    "Graph_GetOperatorSets": Slot(337, "spppz"),
    "Graph_GetNumInputs": Slot(338, "spp"),
    "Graph_GetInputs": Slot(339, "sppz"),
    "Graph_GetNumOutputs": Slot(340, "spp"),
    "Graph_GetOutputs": Slot(341, "sppz"),
    "Graph_GetNumNodes": Slot(344, "spp"),
    "Graph_GetNodes": Slot(345, "sppz"),
    "Graph_GetParentNode": Slot(346, "spp"),
    "Node_GetId": Slot(348, "spp"),
    "Node_GetName": Slot(349, "spp"),
    "Node_GetOperatorType": Slot(350, "spp"),
    "Node_GetDomain": Slot(351, "spp"),
    "Node_GetSinceVersion": Slot(352, "spp"),
    "Node_GetNumInputs": Slot(353, "spp"),
    "Node_GetInputs": Slot(354, "sppz"),
    "Node_GetNumOutputs": Slot(355, "spp"),
    "Node_GetOutputs": Slot(356, "sppz"),
    "Node_GetNumImplicitInputs": Slot(357, "spp"),
    "Node_GetImplicitInputs": Slot(358, "sppz"),
    "Node_GetNumAttributes": Slot(359, "spp"),
    "Node_GetAttributes": Slot(360, "sppz"),
    "OpAttr_GetTensorAttributeAsOrtValue": Slot(362, "spp"),
    "OpAttr_GetType": Slot(363, "spp"),
    "OpAttr_GetName": Slot(364, "spp"),
    "Node_GetNumSubgraphs": Slot(365, "spp"),
    "ReleaseExternalInitializerInfo": Slot(369, "vp"),
    "ExternalInitializerInfo_GetFilePath": Slot(370, "pp"),
    "ExternalInitializerInfo_GetFileOffset": Slot(371, "qp"),
    "ExternalInitializerInfo_GetByteSize": Slot(372, "zp"),
    "GetRunConfigEntry": Slot(373, "cpc"),
    "GetSessionOptionsConfigEntries": Slot(379, "spp"),
    "TensorTypeAndShape_HasShape": Slot(390, "bp"),
    "GetTensorElementTypeAndShapeDataReference": Slot(414, "sappp"),
}

EP_API = {
    "CreateEpDevice": Slot(0, "sppppp"),
    "EpGraphSupportInfo_AddNodesToFuse": Slot(2, "sppzp"),
    "EpGraphSupportInfo_AddSingleNode": Slot(3, "spp"),
    "NodeComputeContext_NodeName": Slot(4, "cp"),
    "EpDevice_AddAllocatorInfo": Slot(5, "spp"),
    "MemoryInfo_GetMemoryDevice": Slot(6, "pp"),
    "MemoryDevice_GetDeviceType": Slot(9, "ip"),
    "MemoryDevice_GetVendorId": Slot(11, "up"),
    "CreateHardwareDevice": Slot(16, "siuuppp"),
    "ReleaseHardwareDevice": Slot(17, "vp"),
    "CreateKernelRegistry": Slot(18, "sp"),
    "ReleaseKernelRegistry": Slot(19, "vp"),
    "KernelRegistry_AddKernel": Slot(20, "spppp"),
    "CreateKernelDefBuilder": Slot(21, "sp"),
    "ReleaseKernelDefBuilder": Slot(22, "vp"),
    "KernelDefBuilder_SetOperatorType": Slot(23, "spp"),
    "KernelDefBuilder_SetDomain": Slot(24, "spp"),
    "KernelDefBuilder_SetSinceVersion": Slot(25, "spii"),
    "KernelDefBuilder_SetExecutionProvider": Slot(26, "spp"),
    "KernelDefBuilder_SetInputMemType": Slot(27, "spzi"),
    "KernelDefBuilder_SetOutputMemType": Slot(28, "spzi"),
    "KernelDefBuilder_AddTypeConstraint": Slot(29, "spppz"),
    "KernelDefBuilder_Build": Slot(32, "spp"),
    "ReleaseKernelDef": Slot(33, "vp"),
    "GetTensorDataType": Slot(40, "sip"),
    "DeviceEpIncompatibilityDetails_SetDetails": Slot(44, "spuip"),
    "CreateIfKernel": Slot(45, "spo"),
    "CreateLoopKernel": Slot(46, "sppo"),
    "CreateScanKernel": Slot(47, "sppo"),
    "CreateProfilingEvent": Slot(65, "siiipqqppzo", 25),
    "ReleaseProfilingEvent": Slot(66, "vp", 25),
    "ProfilingEvent_GetTimestampUs": Slot(69, "spp", 25),
    "ProfilingEvent_GetDurationUs": Slot(70, "spp", 25),
    "ProfilingEventsContainer_AddEvents": Slot(72, "sppz", 25),
}

# Tables that this package fills, with all their functions: {uint32_t version; void *slot[]}. Here the signature is that
# of the callback, whose first argument is the table; it is "" for a function that is left out. docs/provider-api.md
# shows them.

_COMPILED = (
    "there are no compiled models (EPContext): kernels and weights belong to an adapter and its driver, and "
    "are kept in the cache"
)
_STREAMS = "WebGPU has one queue, in order, and a session's runs need no other: IsStreamAware says no"
_DECLARED = (
    "an operator of our own comes with the model, as a function (packed-weights.md), and onnxruntime "
    "declares all others"
)
_EVENTS = (
    "it would be called for every node, the CPU's too; StopEvent, which tells the same, is taken out again after a few"
)
_NOT_LENT = "WebGPU lends no memory and no semaphores of other APIs"

EP_FACTORY = {
    "GetName": Slot(0, "ca", 22),
    "GetVendor": Slot(1, "ca", 22),
    "GetSupportedDevices": Slot(2, "saozozn", 22),
    "CreateEp": Slot(3, "saoozppo", 22),
    "ReleaseEp": Slot(4, "vaa", 22),
    "GetVendorId": Slot(5, "ua", 23),
    "GetVersion": Slot(6, "ca", 23),
    "ValidateCompiledModelCompatibilityInfo": Slot(7, "", 23, _COMPILED),
    "CreateAllocator": Slot(8, "sappo", 23),
    "ReleaseAllocator": Slot(9, "vaa", 23),
    "CreateDataTransfer": Slot(10, "sao", 23),
    "IsStreamAware": Slot(11, "ba", 23),
    "CreateSyncStreamForDevice": Slot(12, "", 23, _STREAMS),
    "GetHardwareDeviceIncompatibilityDetails": Slot(13, "sapp", 24),
    "CreateExternalResourceImporterForDevice": Slot(14, "", 24, _NOT_LENT),
    "GetNumCustomOpDomains": Slot(15, "", 24, "see GetCustomOpDomains"),
    "GetCustomOpDomains": Slot(16, "", 24, _DECLARED),
    "InitGraphicsInterop": Slot(17, "", 25, _NOT_LENT),
    "DeinitGraphicsInterop": Slot(18, "", 25, _NOT_LENT),
    "SelectBestModelCandidate": Slot(19, "", 28, "any model runs: there are none for one adapter to choose from"),
    "GetDeviceMemoryCapacity": Slot(20, "", 32, "WebGPU does not tell how much memory an adapter has"),
}

EP = {
    "GetName": Slot(0, "ca", 22),
    "GetCapability": Slot(1, "sapp", 23),
    "Compile": Slot(2, "saoozoo", 23),
    "ReleaseNodeComputeInfos": Slot(3, "vahz", 23),
    "GetPreferredDataLayout": Slot(
        4, "", 23, "layouts are chosen inside a partition; around it they are NCHW, the default"
    ),
    "ShouldConvertDataLayoutForOp": Slot(5, "", 23, "see GetPreferredDataLayout"),
    "SetDynamicOptions": Slot(6, "", 23, "no option can change once kernels are chosen by it"),
    "OnRunStart": Slot(7, "sap", 23),
    "OnRunEnd": Slot(8, "", 23, "a run has ended for the provider when its partition has"),
    "CreateAllocator": Slot(9, "sapo", 23),
    "CreateSyncStreamForDevice": Slot(10, "", 23, _STREAMS),
    "GetCompiledModelCompatibilityInfo": Slot(11, "", 23, _COMPILED),
    "GetKernelRegistry": Slot(12, "sao", 24),
    "IsConcurrentRunSupported": Slot(13, "sap", 24),
    "Sync": Slot(14, "sa", 25),
    "CreateProfiler": Slot(15, "sao", 25),
    "IsGraphCaptureEnabled": Slot(16, "ba", 26),
    "IsGraphCaptured": Slot(17, "bai", 26),
    "ReplayGraph": Slot(18, "sai", 26),
    "GetGraphCaptureNodeAssignmentPolicy": Slot(
        19, "", 26, "the default, all nodes on the provider, is what a replay needs"
    ),
    "GetAvailableResource": Slot(20, "sap", 26),
    "OnSessionInitializationEnd": Slot(21, "sa", 27),
    "GetDefaultMemoryDevice": Slot(22, "sao", 27),
    "ReleaseCapturedGraph": Slot(23, "sai", 27),
    "GetWeightlessSupport": Slot(24, "", 29, _COMPILED),
    "GetEpContextDataCallbackSupport": Slot(25, "", 31, _COMPILED),
}

NODE_COMPUTE_INFO = {
    "CreateState": Slot(0, "sapo", 23),
    "Compute": Slot(1, "saaa", 23),
    "ReleaseState": Slot(2, "vap", 23),
}

ALLOCATOR = {
    "Alloc": Slot(0, "aaz", 1),
    "Free": Slot(1, "vaa", 1),
    "Info": Slot(2, "pa", 1),
    "Reserve": Slot(3, "aaz", 18),
    "GetStats": Slot(4, "sao", 23),
    "AllocOnStream": Slot(5, "", 23, _STREAMS),
    "Shrink": Slot(6, "sa", 25),
}

DATA_TRANSFER = {
    "Release": Slot(0, "va", 23),
    "CanCopy": Slot(1, "bapp", 23),
    "CopyTensors": Slot(2, "sahhoz", 23),
}

KERNEL = {
    "Compute": Slot(0, "saa", 24),
    "Release": Slot(1, "va", 24),
    "PrePackWeight": Slot(2, "", 24, "the kernels here copy or run bodies of nodes: none has weights"),
    "SetSharedPrePackedWeight": Slot(3, "", 24, "see PrePackWeight"),
}

LOOP_HELPER = {
    "Release": Slot(0, "va", 24),
    "ConcatOutput": Slot(1, "sapazaz", 24),
}

SCAN_HELPER = {
    "Release": Slot(0, "va", 24),
    "Transpose": Slot(1, "sanzapa", 24),
}

PROFILER = {
    "Release": Slot(0, "va", 25),
    "StartProfiling": Slot(1, "saq", 25),
    "StartEvent": Slot(2, "", 25, _EVENTS),
    "StopEvent": Slot(3, "saqp", 25),
    "EndProfiling": Slot(4, "sap", 25),
}

FILLED = {
    "OrtEpFactory": EP_FACTORY,
    "OrtEp": EP,
    "OrtNodeComputeInfo": NODE_COMPUTE_INFO,
    "OrtAllocator": ALLOCATOR,
    "OrtDataTransferImpl": DATA_TRANSFER,
    "OrtEpProfilerImpl": PROFILER,
    "OrtKernelImpl": KERNEL,
    "OrtLoopKernelHelper": LOOP_HELPER,
    "OrtScanKernelHelper": SCAN_HELPER,
}
"""By the header's names."""

MEMORY = {
    "OrtDeviceAllocator, DEFAULT": "",
    "OrtDeviceAllocator, HOST_ACCESSIBLE": "WebGPU has no memory that the host may touch while the GPU uses it",
    "OrtReadOnlyAllocator, DEFAULT": "weights do not come this way: a partition reads constants when it is compiled",
}
"""What EpDevice_AddAllocatorInfo can offer, and why it does not."""

NOT_FILLED = {
    "OrtSyncStreamImpl": (23, _STREAMS),
    "OrtSyncNotificationImpl": (23, _STREAMS),
    "OrtExternalResourceImporterImpl": (24, _NOT_LENT),
}
"""Tables of the header that nobody makes here: since which version there is one, and why not."""
