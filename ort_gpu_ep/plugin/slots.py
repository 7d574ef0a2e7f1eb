"""Slot numbers and signatures of the ONNX Runtime C tables that this package touches.

The tables are append-only, so a slot number never changes. `since` is the API version (the minor number of the ONNX
Runtime release) that added a slot; a slot newer than the running ONNX Runtime is neither called nor filled.

Signature letters, return type first: v void, p void*, o void**, c const char*, z size_t, n size_t*, i int,
u uint32_t, b bool; a, h a pointer, a pointer's address as numbers (what every run uses, because numbers need no casts);
s OrtStatus*, which abi.py turns into an exception.
"""

from __future__ import annotations

from typing import NamedTuple

OLDEST_API = 24
"""ONNX Runtime 1.24: the first with kernel registries for plugin EPs."""

NEWEST_API = 29
"""The newest API version whose tables these slot numbers were checked against."""


class Slot(NamedTuple):
    """A function pointer in a table."""

    number: int
    signature: str
    since: int = OLDEST_API


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
    "ValueInfo_IsConstantInitializer": Slot(331, "spp"),
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
    "CreateIfKernel": Slot(45, "spo"),
    "CreateLoopKernel": Slot(46, "sppo"),
    "CreateScanKernel": Slot(47, "sppo"),
}

# Tables that this package fills: {uint32_t version; void *slot[]}. Here the signature is that of the callback,
# whose first argument is the table.

EP_FACTORY = {
    "GetName": Slot(0, "ca"),
    "GetVendor": Slot(1, "ca"),
    "GetSupportedDevices": Slot(2, "saozozn"),
    "CreateEp": Slot(3, "saoozppo"),
    "ReleaseEp": Slot(4, "vaa"),
    "GetVendorId": Slot(5, "ua"),
    "GetVersion": Slot(6, "ca"),
    "CreateAllocator": Slot(8, "sappo"),
    "ReleaseAllocator": Slot(9, "vaa"),
    "CreateDataTransfer": Slot(10, "sao"),
    "IsStreamAware": Slot(11, "ba"),
}

EP = {
    "GetName": Slot(0, "ca"),
    "GetCapability": Slot(1, "sapp"),
    "Compile": Slot(2, "saoozoo"),
    "ReleaseNodeComputeInfos": Slot(3, "vahz"),
    "CreateAllocator": Slot(9, "sapo"),
    "GetKernelRegistry": Slot(12, "sao"),
    "OnSessionInitializationEnd": Slot(21, "sa", 27),
    "GetDefaultMemoryDevice": Slot(22, "sao", 27),
}

NODE_COMPUTE_INFO = {
    "CreateState": Slot(0, "sapo"),
    "Compute": Slot(1, "saaa"),
    "ReleaseState": Slot(2, "vap"),
}

ALLOCATOR = {
    "Alloc": Slot(0, "aaz"),
    "Free": Slot(1, "vaa"),
    "Info": Slot(2, "pa"),
    "Reserve": Slot(3, "aaz"),
}

DATA_TRANSFER = {
    "Release": Slot(0, "va"),
    "CanCopy": Slot(1, "bapp"),
    "CopyTensors": Slot(2, "sahhoz"),
}

KERNEL = {
    "Compute": Slot(0, "saa"),
    "Release": Slot(1, "va"),
}

LOOP_HELPER = {
    "Release": Slot(0, "va"),
    "ConcatOutput": Slot(1, "sapazaz"),
}

SCAN_HELPER = {
    "Release": Slot(0, "va"),
    "Transpose": Slot(1, "sanzapa"),
}
