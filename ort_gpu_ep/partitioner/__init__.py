"""Decides which nodes go to the GPU, how they are fused and grouped, and why."""

from ort_gpu_ep.partitioner.bodies import is_ours
from ort_gpu_ep.partitioner.costs import Costs
from ort_gpu_ep.partitioner.partition import Partitioning, nothing, partition
from ort_gpu_ep.partitioner.passes import fuse, rewrite
from ort_gpu_ep.partitioner.report import NodeReport, Prediction, Report

__all__ = ["Costs", "NodeReport", "Partitioning", "Prediction", "Report", "fuse", "is_ours", "nothing", "partition", "rewrite"]
