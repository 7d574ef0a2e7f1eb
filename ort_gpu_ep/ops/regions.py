"""Regions of images, each sampled on a grid of its own: RoiAlign, CropAndResize."""

from __future__ import annotations

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.types import FLOATS, INT32, INT64, Shape, TensorType
from ort_gpu_ep.kernels.problems import Known, integers, normal, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, kernel, op
from ort_gpu_ep.ops.axes import vector_of
from ort_gpu_ep.ops.indexing import in_range

_ROIS = [[0.5, 1.5, 9.0, 6.0], [2.0, 0.0, 3.5, 7.0], [-3.0, -2.0, 30.0, 20.0]]

record(
    "roi_align.wgsl",
    "gather",
    data_indices=True,
    pairs=True,
    loop_bound=lambda k: (
        k["SAMPLING"] * (1 + k["SAMPLING"]) if k["SAMPLING"] else (2 * k["HEIGHT"] + 6) * (2 * k["WIDTH"] + 7)
    ),
    flops=lambda k: 32 * k.size("y"),
    nbytes=lambda k: 5 * k.nbytes("y"),
    problems=[
        problem(
            "RoiAlign",
            16,
            normal(2, 3, 7, 11),
            Known(_ROIS, "float32"),
            integers(0, 2, 3),
            output_height=2,
            output_width=3,
            sampling_ratio=sampling,
            spatial_scale=0.75,
        )
        for sampling in (0, 2)
    ],
)
record(
    "crop_and_resize.wgsl",
    "gather",
    data_indices=True,
    flops=lambda k: 16 * k.size("y"),
    nbytes=lambda k: 5 * k.nbytes("y"),
)


def _regions(node: BoundNode, out: tuple[int, ...]) -> tuple[TensorType, dict[str, Const], bool]:
    """The output of regions of such a height and width, what both shaders want to know of it, and whether an index may
    be out of range."""
    x, rois, batch = node.input(0), node.input(1), node.input(2)
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4 or batch.shape != rois.shape[:1]:
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op} of {x.type} with regions {rois.type} of images {batch.type}; expected [N, C, H, W], "
            f"[R, 4] and [R]",
        )
    shape: Shape = (rois.shape[0], x.shape[1], *out)
    if len(out) != 2 or min(out) < 1 or (TensorType(x.dtype, shape).size and not x.size):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} of {x.type} to regions of {list(out)}")
    images, channels, height, width = x.shape
    consts: dict[str, Const] = {
        "IMAGES": images,
        "CHANNELS": channels,
        "HEIGHT": height,
        "WIDTH": width,
        "OUT_HEIGHT": out[0],
        "OUT_WIDTH": out[1],
    }
    return TensorType(x.dtype, shape), consts, not in_range(batch, (images,))


@op("RoiAlign", since=10, dtypes={"T1": FLOATS, "T2": (INT64,)}, bindings="x rois batch -> y", epilogue=True)
def roi_align(node: BoundNode) -> Kernel:
    """y[r, c, p] = the mean (mode max: the largest) of x at points of bin p of region r, between four elements each;
    zeros outside.

    x: [N, C, H, W]; rois: [R, 4], x and y of two corners; batch: [R], which image; y: [R, C, output_height,
    output_width].
    """
    out, consts, reports = _regions(node, (int(node.attr("output_height")), int(node.attr("output_width"))))
    mode, coordinates, sampling = (
        str(node.attr("mode")),
        node.attr("coordinate_transformation_mode"),
        int(node.attr("sampling_ratio")),
    )
    if mode not in ("avg", "max") or coordinates not in (None, "half_pixel", "output_half_pixel") or sampling < 0:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"RoiAlign with mode {mode!r}, coordinates {coordinates!r}, sampling_ratio {sampling}; taken: avg and max, "
            "half_pixel and output_half_pixel, 0 and more",
        )
    consts |= {
        "SCALE": float(node.attr("spatial_scale")),
        "HALF_PIXEL": coordinates == "half_pixel",
        "SAMPLING": sampling,
        "MAX": mode == "max",
    }
    return kernel("roi_align.wgsl", [out], consts=consts, reports=reports)


@op(
    "CropAndResize",
    domain=DOMAIN,
    dtypes={"T1": FLOATS, "T2": (INT32,)},
    bindings="x rois batch _size -> y",
    epilogue=True,
)
def crop_and_resize(node: BoundNode) -> Kernel:
    """y[r, c, p] = x at the place of p in region r, between four elements or the nearest one; `extrapolation_value`
    outside.

    x: [N, C, H, W]; rois: [R, 4], y and x of two corners as parts of the image; batch: [R]; size: [2]; y: [R, C,
    size...].
    """
    out, consts, reports = _regions(node, vector_of(node, node.input(3)))
    mode = str(node.attr("mode"))
    if mode not in ("bilinear", "nearest"):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"CropAndResize with mode {mode!r}; taken: bilinear, nearest")
    consts |= {"NEAREST": mode == "nearest", "OUTSIDE": float(node.attr("extrapolation_value"))}
    return kernel("crop_and_resize.wgsl", [out], consts=consts, reads={"x": 0, "rois": 1, "batch": 2}, reports=reports)
