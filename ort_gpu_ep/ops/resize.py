"""Resize and its predecessor Upsample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite, prod

import numpy as np

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.ir.symbolic import derived, is_symbolic, same
from ort_gpu_ep.ir.types import BOOL, FLOATS, INT8, INT32, INT64, UINT8, Shape, TensorType, names
from ort_gpu_ep.kernels.problems import Known, normal, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, ChannelsLast, Const, Kernel, Operand, Strided, kernel, op
from ort_gpu_ep.ops.channels_last import ints, numbers, permuted, stored
from ort_gpu_ep.ops.reduce import normal_axes

F = np.float32
"""Scales and coordinates are float32, rounded after each operation, as in ONNX Runtime."""

WORKGROUP_SIZE = 128
"""resize_last.wgsl."""
MAX_RESIZED = 3
"""Resized axes that the kernel takes; ONNX Runtime interpolates over as many."""

KINDS = {"nearest": 0, "linear": 1, "cubic": 2}
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
COORDINATES = {
    "half_pixel": 0,
    "asymmetric": 1,
    "pytorch_half_pixel": 2,
    "tf_half_pixel_for_nn": 3,
    "align_corners": 4,
    "tf_crop_and_resize": 5,
    "half_pixel_symmetric": 6,
}
DIFFERS_AT_ONE = ("tf_half_pixel_for_nn", "tf_crop_and_resize")
"""Coordinates that are other ones where an axis keeps its length than where it is left alone."""
ROUNDING = {"simple": 0, "round_prefer_floor": 1, "round_prefer_ceil": 2, "floor": 3, "ceil": 4}

record(
    "resize.wgsl",
    "pool",
    loop_bound=lambda k: k.nested("TAPS0", "TAPS1", "TAPS2"),
    flops=lambda k: 2 * k.size("y") * k["TAPS0"] * k["TAPS1"] * k["TAPS2"],
    problems=[
        problem("Resize", 13, normal(1, 2, 4, 6), None, Known((1, 1, 2, 2.5), "float32"), tolerance=1e-4, mode=mode)
        for mode in ("nearest", "linear", "cubic")
    ],
)
record(
    "resize_last.wgsl",
    "pool",
    loop_bound=lambda k: k.nested("TAPS0", "TAPS1", "TAPS2"),
    flops=lambda k: 2 * k.size("y") * k["TAPS0"] * k["TAPS1"] * k["TAPS2"],
    problems=[
        problem("Resize", 13, normal(2, 5, 6, 8), None, Known((1, 2, 1.5, 1), "float32"), tolerance=1e-4, mode=mode)
        for mode in ("nearest", "linear", "cubic")
    ],
)
record(
    "resize_antialias.wgsl",
    "pool",
    loop_bound=lambda k: (
        k.nested("TAPS0", "TAPS1", "TAPS2")
        + k["TAPS0"]
        + k["TAPS1"]
        + k["TAPS2"]
        + (k["TAPS1"] * (1 + k["TAPS1"] + k["TAPS2"] * k["TAPS2"]) if dict(k.kernel.consts).get("WHOLE") else 0)
    ),
    flops=lambda k: 12 * k.size("y") * k["TAPS0"] * k["TAPS1"] * k["TAPS2"],
    problems=[
        problem(
            "Resize",
            19,
            normal(1, 1, 23, 37),
            None,
            Known((1, 1, 0.6, 0.7), "float32"),
            tolerance=1e-4,
            mode="linear",
            antialias=1,
        )
    ],
)


@dataclass(frozen=True, slots=True)
class Axis:
    """How one axis is resized. start, end: region of interest as fractions of the axis."""

    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0


def _is_resized(axis: Axis) -> bool:
    return is_symbolic(axis.scale) or axis.scale != 1.0


def _given(node: BoundNode, index: int) -> Operand | None:
    """An input that is there and not empty: exporters write an empty tensor for `scales` where they give `sizes`."""
    operand = node.optional(index)
    return operand if operand and operand.size else None


def _by_scales(node: BoundNode, scales: Sequence[float], axes: tuple[int, ...]) -> list[Axis]:
    """scales: of float32, some of them perhaps of a run."""
    shape = node.input(0).shape
    if len(scales) != len(axes) or not all(s > 0 for s in scales):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} of rank {len(shape)} with scales {list(scales)} for axes {axes}"
        )
    by_axis = dict(zip(axes, scales, strict=True))
    lines = [(size, by_axis.get(a, 1.0)) for a, size in enumerate(shape)]
    return [Axis(size, size if scale == 1.0 else derived(_scaled, size, scale), scale) for size, scale in lines]


def _scaled(size: int, scale: float) -> int:
    return int(F(F(scale) * F(size)))


def _ratio(out: int, size: int) -> float:
    return float(F(out) / F(size))


def _by_sizes(node: BoundNode, sizes: tuple[int, ...], axes: tuple[int, ...]) -> list[Axis]:
    shape, policy = node.input(0).shape, node.attr("keep_aspect_ratio_policy") or "stretch"
    if (
        len(sizes) != len(axes)
        or any(size == 0 for size in shape)
        or policy not in ("stretch", "not_larger", "not_smaller")
    ):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} of {list(shape)} with sizes {sizes} for axes {axes}, policy {policy!r}"
        )
    target = dict(zip(axes, sizes, strict=True))
    scales = {a: derived(_ratio, out, shape[a]) for a, out in target.items()}
    if policy != "stretch":
        common = derived(_least if policy == "not_larger" else _most, *scales.values())
        scales = dict.fromkeys(axes, common)
        target = {a: derived(_rounded, common, shape[a]) for a in axes}
    kept = {a for a, size in enumerate(shape) if same(target.get(a, size), size)}
    if len(shape) - len(kept) > MAX_RESIZED or node.attr("coordinate_transformation_mode") in DIFFERS_AT_ONE:
        kept = {a for a, size in enumerate(shape) if target.get(a, size) == size}
    return [Axis(size, size, 1.0) if a in kept else Axis(size, target[a], scales[a]) for a, size in enumerate(shape)]


def _least(*scales: float) -> float:
    return min(scales)


def _most(*scales: float) -> float:
    return max(scales)


def _rounded(scale: float, size: int) -> int:
    return floor(float(F(F(scale) * F(size))) + 0.5)


def _with_region(node: BoundNode, found: list[Axis], axes: tuple[int, ...]) -> list[Axis]:
    """tf_crop_and_resize: the region of interest, [starts..., ends...]."""
    roi = _given(node, 1)
    if roi is None or roi.size != 2 * len(axes):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"tf_crop_and_resize over axes {axes} without a roi of {2 * len(axes)} numbers"
        )
    values = roi.require().astype(F).reshape(-1).tolist()
    region = {a: (values[k], values[len(axes) + k]) for k, a in enumerate(axes)}
    return [Axis(x.size, x.out, x.scale, *region.get(a, (0.0, 1.0))) for a, x in enumerate(found)]


def _check_length(node: BoundNode, axis: Axis, coordinates: str) -> None:
    """ONNX takes scale * size as the length of the output, ONNX Runtime its whole part: declines where that differs and
    matters."""
    matters = coordinates in ("align_corners", "tf_crop_and_resize") or (
        coordinates == "pytorch_half_pixel" and axis.out == 1
    )
    if not matters or (not is_symbolic(axis.scale) and float(axis.scale).is_integer()):
        return
    if not derived(_fits, axis.scale, axis.size, axis.out):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op}: {coordinates} with scale {axis.scale} of {axis.size} elements: that is not a whole number",
        )


def _fits(scale: float, size: int, out: int) -> int:
    exact = scale * size
    return int(abs(exact - out) <= 1e-4 * exact)


def _axis_consts(slot: int, axis: Axis, stride: int, step: int, taps: int, coordinates: str) -> dict[str, Const]:
    """Constants of one axis; what depends on the region or on all sizes is computed here, in ONNX Runtime's order of
    rounding."""
    start, end = F(axis.start), F(axis.end)
    begin, width = derived(lambda size: float(F(start * (F(size) - F(1)))), axis.size), float(F(end - start))
    center = derived(lambda size: 0.5 * float(F(start + end)) * float(F(size) - F(1)), axis.size)
    if coordinates == "half_pixel_symmetric":
        shift = derived(_symmetric_shift, axis.size, axis.out, axis.scale)
        begin = derived(lambda shift: round(shift * 64) / 64, shift)
        width = derived(lambda shift, begin: shift - begin, shift, begin)
    return {
        f"ACTIVE{slot}": taps > 0,
        f"IN{slot}": axis.size,
        f"OUT{slot}": axis.out,
        f"STRIDE{slot}": stride,
        f"STEP{slot}": step,
        f"TAPS{slot}": max(taps, 1),
        f"SCALE{slot}": axis.scale,
        f"START{slot}": begin,
        f"WIDTH{slot}": width,
        f"CENTER{slot}": center,
    }


def _symmetric_shift(size: int, out: int, scale: float) -> float:
    adjustment = F(F(out) / F(F(scale) * F(size)))
    return float(F(F(F(size) / F(2)) * F(F(1) - adjustment))) - 0.5


def _check(node: BoundNode, found: list[Axis], kind: str, coordinates: str, rounding: str) -> None:
    dtype, resized = node.input(0).dtype, sum(_is_resized(axis) for axis in found)
    if kind not in KINDS or coordinates not in COORDINATES or rounding not in ROUNDING:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with {kind!r}, {coordinates!r}, {rounding!r}")
    # with antialias ONNX Runtime's CPU takes int8 for uint8, and without it has no cubic for either
    smooth = bool(node.attr("antialias"))
    taken = (*FLOATS, *((UINT8,) if smooth else (UINT8, INT8) if kind == "linear" else ()))
    if kind != "nearest" and dtype not in taken:
        raise UnsupportedNodeError(
            Code.DTYPE, f"{node.op} with mode {kind!r}, antialias {int(smooth)} of {dtype}; taken: {names(taken)}"
        )
    if resized > MAX_RESIZED:
        raise UnsupportedNodeError(Code.RANK, f"{node.op} of {resized} axes; taken: at most {MAX_RESIZED}")
    for axis in found:
        _check_length(node, axis, coordinates)


def _resample(
    node: BoundNode, found: list[Axis], kind: str, coordinates: str, rounding: str, consts: dict[str, Const]
) -> Kernel:
    """The kernel of a Resize or Upsample; resized axes take the last of its three slots."""
    _check(node, found, kind, coordinates, rounding)
    x = node.input(0)
    out: Shape = tuple(a.out for a in found)
    strides = tuple(prod(x.shape[a + 1 :]) for a in range(x.rank))
    resized = [a for a, axis in enumerate(found) if _is_resized(axis)]
    if kind == "linear" and x.dtype in (UINT8, INT8) and not node.attr("antialias"):
        resized, consts["WHOLE"] = _rounded_axes(node, resized)
    for slot in range(MAX_RESIZED - len(resized)):
        consts |= _axis_consts(slot, Axis(1, 1, 1.0), 0, 1, 0, coordinates)
    for slot, a in enumerate(resized, MAX_RESIZED - len(resized)):
        consts |= _axis_consts(slot, found[a], strides[a], prod(out[a + 1 :]), TAPS[kind], coordinates)
    consts |= {
        "KIND": KINDS[kind],
        "COORDINATES": COORDINATES[coordinates],
        "ROUNDING": ROUNDING[rounding],
        "EXTRAPOLATE": coordinates == "tf_crop_and_resize",
    }
    kept = Strided(out, tuple(0 if a in resized else strides[a] for a in range(x.rank)))
    result = TensorType(x.dtype, out)
    if node.attr("antialias") or x.dtype not in FLOATS or x.rank - 1 in resized or not same(out[-1] % 4, 0):
        return kernel("resize.wgsl", [result], consts=consts, indices={"kept": kept}, reads={"x": 0})
    return kernel(
        "resize_last.wgsl",
        [result],
        consts={**consts, "TOTAL": result.size // 4},
        indices={"kept": kept},
        groups=ceil_div(result.size, 4 * WORKGROUP_SIZE),
        workgroup_size=WORKGROUP_SIZE,
        vectors=("x", "y"),
        reads={"x": 0},
        writes={"y": 0},
    )


def _rounded_axes(node: BoundNode, resized: list[int]) -> tuple[list[int], int]:
    """The axes that ONNX Runtime goes along where bytes are interpolated, the outermost first, and the way in which it
    rounds (WHOLE of resize.wgsl): also the unchanged ones among the last two or three add products.
    """
    rank = node.input(0).rank
    if rank == 4 and resized in ([1, 2], [1]):
        return [1, 2], 2
    axes = {2: [0, 1], 3: [0, 1, 2], 4: [2, 3], 5: [2, 3, 4]}.get(rank, [])
    if not set(resized) <= set(axes):
        raise UnsupportedNodeError(
            Code.RANK,
            f"{node.op} of bytes of rank {rank} along axes {resized}; taken: two of a matrix or of images, "
            f"three of volumes",
        )
    return axes, 1


REACH = {"linear": 1.0, "cubic": 2.0}
"""How far from its middle a filter reaches."""

SAMPLED = (*FLOATS, INT8, UINT8, INT32, INT64, BOOL)
_PLAIN: dict[str, Const] = {"CUBIC_A": -0.75, "EXCLUDE_OUTSIDE": False, "OUTSIDE": 0}


def _layout(node: BoundNode) -> ChannelsLast | None:
    """The same, with `axes`, or scales, sizes and region of the axes as they are stored. Bytes that are not copied stay
    plain."""
    if str(node.attr("mode")) != "nearest" and node.input(0).dtype in (UINT8, INT8):
        return None
    if node.op == "Upsample" and node.version < 9:
        return ChannelsLast((0,), attributes={"scales": permuted(node.attr("scales"))})
    is_new = node.op == "Resize" and node.version >= 11
    if is_new and node.attr("axes"):
        return ChannelsLast((0,), attributes={"axes": tuple(stored(axis) for axis in node.attr("axes"))})
    constants: dict[int, Array] = {}
    for position in (2, 3) if is_new else (1,):
        if (scales_given := _given(node, position)) is not None:
            constants[position] = (
                ints(permuted(scales_given.ints())) if position == 3 else numbers(permuted(scales_given.floats()), F)
            )
    if (
        is_new
        and node.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
        and (region := _given(node, 1)) is not None
    ):
        starts, ends = np.split(region.require().reshape(-1), 2)
        constants[1] = np.array([*permuted(starts), *permuted(ends)], region.dtype.numpy)
    return ChannelsLast((0,), constants=constants)


@op("Upsample", since=7, dtypes={"T": SAMPLED}, bindings="x _scales? -> y", epilogue=True, channels_last=_layout)
def upsample(node: BoundNode) -> Kernel:
    """y[o] = x[o / scale], nearest or linear. x: any shape, y: x's sizes times `scales` (an attribute before opset
    9)."""
    return _old_form(node, np.asarray(node.attr("scales"), F).tolist() if node.version < 9 else node.input(1).floats())


def _old_form(node: BoundNode, scales: Sequence[float]) -> Kernel:
    """Upsample, and Resize of opset 10."""
    lines = _by_scales(node, scales, tuple(range(node.input(0).rank)))
    return _resample(node, lines, str(node.attr("mode")), "asymmetric", "simple", dict(_PLAIN))


@op(
    "Resize",
    since=10,
    dtypes={"T": SAMPLED, "T1": SAMPLED},
    bindings="x _roi? _scales? _sizes? -> y",
    epilogue=True,
    channels_last=_layout,
)
def resize(node: BoundNode) -> Kernel:
    """y = x sampled on another grid (nearest, linear or cubic). x: any shape, y: x's sizes times `scales`, or
    `sizes`."""
    if node.version < 11:
        return _old_form(node, node.input(1).floats())
    kind, coordinates = str(node.attr("mode")), str(node.attr("coordinate_transformation_mode"))
    smooth = bool(node.attr("antialias"))
    if node.attr("exclude_outside") and kind != "cubic" and not smooth:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Resize with exclude_outside in mode {kind!r}")
    if smooth and (kind not in REACH or coordinates == "tf_crop_and_resize"):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"Resize with antialias in mode {kind!r}, {coordinates}; taken: {', '.join(REACH)}"
        )
    outside = float(node.attr("extrapolation_value")) if coordinates == "tf_crop_and_resize" else 0.0
    if not (isfinite(outside) and isfinite(node.attr("cubic_coeff_a"))):  # asked before what only a run may tell
        numbers = f"extrapolation_value {outside}, cubic_coeff_a {node.attr('cubic_coeff_a')}"
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Resize with {numbers}; taken: finite numbers")
    rank = node.input(0).rank
    axes = tuple(node.attr("axes") or range(rank))
    normal_axes(node, axes, rank)
    axes = tuple(a % rank for a in axes)
    scales, sizes = _given(node, 2), _given(node, 3)
    if (scales is None) == (sizes is None):
        raise UnsupportedNodeError(Code.ATTRIBUTE, "Resize needs either scales or sizes")
    lines = _by_scales(node, scales.floats(), axes) if scales else _by_sizes(node, sizes.ints() if sizes else (), axes)
    if coordinates == "tf_crop_and_resize":
        lines = _with_region(node, lines, axes)
    consts: dict[str, Const] = {
        "CUBIC_A": float(node.attr("cubic_coeff_a")),
        "EXCLUDE_OUTSIDE": bool(node.attr("exclude_outside")),
        "OUTSIDE": outside if node.input(0).dtype in FLOATS else int(outside),
    }
    lowering = _resample(node, lines, kind, coordinates, str(node.attr("nearest_mode")), consts)
    return _smoothed(lowering, lines, kind) if smooth else lowering


def _smoothed(made: Kernel, found: list[Axis], kind: str) -> Kernel:
    """The kernel with antialias: its filter is as much wider as the step in x is, of an axis that gets shorter."""
    consts, resized = dict(made.consts), [axis for axis in found if _is_resized(axis)]
    for slot, axis in enumerate([Axis(1, 1, 1.0)] * (MAX_RESIZED - len(resized)) + resized):
        factor = derived(lambda scale: min(scale, 1.0), axis.scale)
        wide = derived(lambda factor, reach=REACH[kind]: float(F(reach) / F(factor)), factor)
        consts |= {
            f"FACTOR{slot}": factor,
            f"WIDE{slot}": wide,
            f"TAPS{slot}": derived(lambda wide: 2 * ceil(wide) + 1, wide),
        }
    if made.outputs[0].dtype is UINT8:
        if len(resized) > 2:
            raise UnsupportedNodeError(Code.RANK, "Resize of bytes with antialias along three axes; taken: two")
        consts["WHOLE"] = 1
    return replace(made, shader="resize_antialias.wgsl", consts=tuple(consts.items()))
