"""ONNX models on any GPU: a WebGPU (Vulkan, Metal, DX12) execution provider for ONNX Runtime."""
