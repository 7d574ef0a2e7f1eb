"""GridSample: reads an image at coordinates given by another tensor; AffineGrid: those of an affine map."""

from __future__ import annotations

from math import prod

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.types import BOOL, FLOAT16, FLOAT32, FLOATS, INT8, INT32, INT64, UINT8, UINT32, UINT64, TensorType
from ort_gpu_ep.kernels.problems import Known, normal, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, kernel, op
from ort_gpu_ep.ops.axes import vector_of

MAX_SPATIAL = 3
FLOATING = (FLOAT32, FLOAT16)
SAMPLED = (*FLOATING, INT8, UINT8, INT32, UINT32, INT64, UINT64, BOOL)

KINDS = {"nearest": 0, "linear": 1, "bilinear": 1, "cubic": 2, "bicubic": 2}
"""Opset 16 calls them bilinear and bicubic."""
TAPS = (1, 2, 4)
PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}

record(
    "grid_sample.wgsl",
    "gather",
    data_indices=True,
    loop_bound=lambda k: k.nested("TAPS0", "TAPS1", "TAPS2"),
    flops=lambda k: 2 * k.size("y") * k["TAPS0"] * k["TAPS1"] * k["TAPS2"],
    nbytes=lambda k: k.nbytes("grid") + 2 * k.nbytes("y"),
    problems=[
        problem("GridSample", 20, normal(2, 3, 5, 7), normal(2, 9, 11, 2), mode="linear"),
        problem(
            "GridSample",
            20,
            normal(2, 3, 5, 7),
            normal(2, 9, 11, 2),
            mode="nearest",
            padding_mode="border",
            align_corners=1,
        ),
        problem(
            "GridSample",
            20,
            normal(1, 2, 5, 7),
            normal(1, 7, 5, 2),
            mode="cubic",
            padding_mode="reflection",
            tolerance=1e-4,
        ),
        problem("GridSample", 20, normal(1, 2, 3, 5, 4), normal(1, 3, 5, 2, 3), mode="linear", align_corners=1),
    ],
)


@op("GridSample", domain=DOMAIN, dtypes={"T1": FLOATING}, bindings="x grid -> y", epilogue=True)
@op("GridSample", since=16, dtypes={"T1": SAMPLED, "T2": FLOATING}, bindings="x grid -> y", epilogue=True)
def grid_sample(node: BoundNode) -> Kernel:
    """y[n, c, p] = x[n, c] at the place grid[n, p], nearest, linear or cubic; outside zeros, the border or a
    reflection.

    x: [N, C, spatial...], one to three axes; grid: [N, out..., axes], in [-1, 1], the last axis of x first; y: [N, C,
    out...].
    """
    x, grid = node.input(0), node.input(1)
    rank = x.rank - 2
    if not 1 <= rank <= MAX_SPATIAL or grid.rank != x.rank or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank:
        raise UnsupportedNodeError(
            Code.RANK,
            f"GridSample of {x.type} by {grid.type}; taken: [N, C, spatial...] of 1 to {MAX_SPATIAL} axes by [N, "
            f"out..., axes]",
        )
    mode, padding = str(node.attr("mode")), str(node.attr("padding_mode"))
    if mode not in KINDS or padding not in PADDINGS:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"GridSample with mode {mode!r}, padding {padding!r}; taken: {', '.join(KINDS)}; {', '.join(PADDINGS)}",
        )
    if KINDS[mode] and x.dtype not in FLOATING:
        raise UnsupportedNodeError(Code.DTYPE, f"GridSample in mode {mode!r} of {x.dtype}; taken: float32, float16")
    out = TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))
    if out.size and not x.size:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"GridSample of {x.type}, which has no elements, at {out}")
    return kernel("grid_sample.wgsl", [out], consts=_consts(node, KINDS[mode], PADDINGS[padding]))


def _consts(node: BoundNode, kind: int, padding: int) -> dict[str, Const]:
    x, grid = node.input(0), node.input(1)
    missing = MAX_SPATIAL - (x.rank - 2)
    consts: dict[str, Const] = {
        "KIND": kind,
        "PADDING": padding,
        "ALIGN": bool(node.attr("align_corners")),
        "CHANNELS": x.shape[1],
        "PIXELS": prod(grid.shape[1:-1]),
        "RANK": x.rank - 2,
    }
    for a, size in enumerate((1,) * missing + x.shape[2:]):
        consts |= {f"IN{a}": size, f"TAPS{a}": 1 if a < missing else TAPS[kind]}
    return consts


record(
    "affine_grid.wgsl",
    "elementwise",
    problems=[problem("AffineGrid", 20, normal(2, 2, 3), Known([2, 3, 5, 7]), align_corners=align) for align in (0, 1)],
)


@op("AffineGrid", since=20, dtypes={"T1": FLOATS}, bindings="theta _size -> y", epilogue=True)
def affine_grid(node: BoundNode) -> Kernel:
    """y[n, p] = theta[n] (p, 1), of the places p of an image in [-1, 1], the last axis first.

    theta: [N, 2, 3] or [N, 3, 4]; size: [N, C, H, W] or [N, C, D, H, W]; y: [N, H, W, 2] or [N, D, H, W, 3].
    """
    theta, size = node.input(0), vector_of(node, node.input(1))
    axes = len(size) - 2
    if axes not in (2, 3) or theta.shape != (size[0], axes, axes + 1):
        raise UnsupportedNodeError(
            Code.RANK,
            f"AffineGrid of {theta.type} for images {list(size)}; taken: [N, 2, 3] for [N, C, H, W], "
            "[N, 3, 4] for [N, C, D, H, W]",
        )
    depth, height, width = (1,) * (3 - axes) + tuple(size[2:])
    consts = {"AXES": axes, "DEPTH": depth, "HEIGHT": height, "WIDTH": width, "ALIGN": bool(node.attr("align_corners"))}
    return kernel("affine_grid.wgsl", [TensorType(theta.dtype, (size[0], *size[2:], axes))], consts=consts)
