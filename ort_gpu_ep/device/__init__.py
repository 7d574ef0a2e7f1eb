"""The GPU: adapters, buffers, pipelines, programs. The only package that imports wgpu."""

from ort_gpu_ep.device.adapter import AdapterInfo, adapters
from ort_gpu_ep.device.gpu import Buffer, Gpu
from ort_gpu_ep.device.program import Program, Tensor
from ort_gpu_ep.device.scratch import run_wgsl

__all__ = ["AdapterInfo", "Buffer", "Gpu", "Program", "Tensor", "adapters", "run_wgsl"]
