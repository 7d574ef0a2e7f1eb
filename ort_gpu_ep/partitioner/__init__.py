"""Which nodes go to the GPU, fused how, in which groups, and why."""

from ort_gpu_ep.partitioner.fusion import fuse
from ort_gpu_ep.partitioner.partition import Partitioning, partition
from ort_gpu_ep.partitioner.report import Report

__all__ = ["Partitioning", "Report", "fuse", "partition"]
