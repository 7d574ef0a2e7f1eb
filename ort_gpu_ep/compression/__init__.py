"""Compresses a model's weights: `compress` writes a file that stock ONNX Runtime runs with the same result."""

from ort_gpu_ep.compression.model import compress
from ort_gpu_ep.compression.report import LayerReport, Report

__all__ = ["LayerReport", "Report", "compress"]
