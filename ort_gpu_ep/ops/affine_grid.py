"""AffineGrid: the places that GridSample reads for an affine map of each image."""

from __future__ import annotations

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import FLOATS, TensorType
from ort_gpu_ep.kernels.records import Known, case, normal, record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, kernel, op
from ort_gpu_ep.ops.axes import vector_of

record(
    "affine_grid.wgsl", "elementwise",
    cases=[case("AffineGrid", 20, normal(2, 2, 3), Known([2, 3, 5, 7]), align_corners=align) for align in (0, 1)])


@op("AffineGrid", since=20, dtypes={"T1": FLOATS}, bindings="theta _size -> y", epilogue=True)
def affine_grid(node: BoundNode) -> Kernel:
    """y[n, p] = theta[n] (p, 1), of the places p of an image in [-1, 1], the last axis first.

    theta: [N, 2, 3] or [N, 3, 4]; size: [N, C, H, W] or [N, C, D, H, W]; y: [N, H, W, 2] or [N, D, H, W, 3].
    """
    theta, size = node.input(0), vector_of(node, node.input(1))
    axes = len(size) - 2
    if axes not in (2, 3) or theta.shape != (size[0], axes, axes + 1):
        raise UnsupportedNodeError(
            Code.RANK, f"AffineGrid of {theta.type} for images {list(size)}; taken: [N, 2, 3] for [N, C, H, W], "
            "[N, 3, 4] for [N, C, D, H, W]")
    depth, height, width = (1,) * (3 - axes) + tuple(size[2:])
    consts = {"AXES": axes, "DEPTH": depth, "HEIGHT": height, "WIDTH": width, "ALIGN": bool(node.attr("align_corners"))}
    return kernel("affine_grid.wgsl", [TensorType(theta.dtype, (size[0], *size[2:], axes))], consts=consts)
