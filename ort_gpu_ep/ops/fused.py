"""Ops that only fusion creates (domain ort_gpu_ep)."""

from __future__ import annotations

from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, broadcast, kernel, op
from ort_gpu_ep.ops import channels_last


@op("Elementwise", domain="ort_gpu_ep", dtypes={}, bindings="-> y", epilogue=True, channels_last=channels_last.elementwise)
def elementwise(node: BoundNode) -> Kernel:
    """Several elementwise ops in one kernel: all arithmetic is in the node's steps.

    y: the broadcast shape of the operands.
    """
    shape = broadcast(*(o.shape for o in node.operands))
    return kernel("elementwise.wgsl", [TensorType(node.operands[0].dtype, shape)], writes={"y": 0})
