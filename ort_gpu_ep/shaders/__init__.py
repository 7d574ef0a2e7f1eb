"""WGSL bodies, one kernel a file, and the composer that writes their heads."""

from ort_gpu_ep.shaders.composer import compose

__all__ = ["compose"]
