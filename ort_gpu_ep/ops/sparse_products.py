"""Products of many vectors, and convolutions, with weights that are mostly zeros: only the others are read
(sparse_product.wgsl).

x lies in planes, one for each index of the sum (of a convolution: for each channel), so that neighbouring lanes, which
make neighbouring vectors or pixels, read neighbouring elements. Weights are packed once, as for few vectors
(pruned.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from ort_gpu_ep.ir.graph import MIN_COUNTED_FILTERS
from ort_gpu_ep.ir.symbolic import hint, is_symbolic
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import Form
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Strided, kernel
from ort_gpu_ep.kernels.target import Choice, Target
from ort_gpu_ep.ops import pruned
from ort_gpu_ep.ops.window import INPUT_AXES, OUTPUT_AXES, Window

SHADER, PACKING = "sparse_product.wgsl", "pack_entries.wgsl"
DENSE = "dense"
"""The form of a weight that is stored sparse: it is written out before."""
MAX_TAPS = 32
"""Of a window: those that a pixel sees are the bits of a word."""
TEAM, WORKGROUP_SIZE = 32, 256
"""Lanes that share a row, and of a workgroup."""
FORMS = {
    f"{rows} x {each}{f', {slices} slices' if slices > 1 else ''}": (rows, each, slices)
    for rows, slices in ((1, 1), (1, 2), (1, 4), (1, 8), (4, 1))
    for each in (1, 2, 4, 8)
}
"""Rows and pixels of a lane, and teams that share a row."""

record(
    PACKING,
    "movement",
    loop_bound=lambda k: 2 * ceil_div(k["K"], k.workgroup_size) + k["K"] + k["WIDTH"] + 8,
    data_indices=True,
)
record(
    SHADER,
    "direct",
    flops=lambda k: 2 * k["N"] * k["PLACES"] * k["TOTAL"] * (4 if k["X_FOURS"] else 1),
    loop_bound=lambda k: k["PLACES"] // 4 + 1,
)


@dataclass(frozen=True, slots=True)
class Held:
    """A matrix of n rows along k that is mostly zeros. total: its other values; width: places of a row.

    strides: of n and k in input 1, a dense constant; None: inputs 1, 2 and 3 are `entries` entries, values and starts.
    """

    n: int
    k: int
    total: int
    width: int
    strides: tuple[int, int] | None
    entries: int = 0

    def packing(self) -> Kernel:
        """The kernel that packs it."""
        if self.strides is not None:
            return pruned.packed(self.n, self.k, self.width, self.strides)
        consts = {"K": self.k, "ENTRIES": self.entries, "WIDTH": self.width}
        outputs = [tensor for _, tensor in pruned.places(self.n, self.width)]
        return kernel(
            PACKING,
            outputs,
            consts=consts,
            groups=self.n,
            workgroup_size=pruned.PACKING_SIZE,
            workgroup_nbytes=8 * pruned.PACKING_SIZE,
            reads={"entries": 1, "starts": 3, "table": 2},
            writes={"columns": "columns", "values": "values"},
        )


@dataclass(frozen=True, slots=True)
class SparseProduct:
    """y[image, n, p] = alpha * sum over what is not zero in row n of the weights * x[image, k, p] + beta * bias.

    pixels: of an image of y; of matrices there is one image, whose pixels are vectors. plane: pixels of an image of x.
    x_planes: x lies so already, else it is [pixels, k]. y_strides: of an image, of n and of a pixel. bias: its input,
    and its strides of n and of a pixel.
    """

    held: Held
    images: int
    pixels: int
    plane: int
    x_planes: bool
    y_strides: tuple[int, int, int]
    bias: tuple[int, int, int] | None
    target: Target
    window: Window | None = None
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def windowed(self) -> bool:
        return self.window is not None and (self.window.taps > 1 or any(self.window.pads))

    @property
    def strided(self) -> bool:
        return self.window is not None and not self.windowed and self.window.large != self.window.small

    @property
    def fours(self) -> bool:
        """Whether four neighbouring pixels are four neighbours in x, from each multiple of four on."""
        return not (self.windowed or self.strided or is_symbolic(self.pixels)) and self.pixels % 4 == 0

    @property
    def key(self) -> str:
        """What a choice is made for."""
        varying = "+" if is_symbolic(self.images) or is_symbolic(self.pixels) else ""
        size = (
            f"{hint(self.images * self.pixels)}{varying} x {self.held.n} x {self.held.k}, {self.held.width} "
            f"of an output"
        )
        by = self.window
        return f"sparse {size}" + (
            f", {'x'.join(map(str, by.size))} steps {'x'.join(map(str, by.strides))}" if by and by.taps > 1 else ""
        )


def of_dense(node: BoundNode, by_rows: bool) -> Held | None:
    """A constant in input 1, [n, ...] (by_rows) or [k, n]; None where it has too few zeros or can't be packed."""
    w, limits = node.input(1), node.target.limits
    if w.dtype is not FLOAT32 or w.rank < 2 or w.size < MIN_COUNTED_FILTERS or not w.is_constant:
        return None
    n = w.shape[0] if by_rows else w.shape[1]
    k, nonzeros = w.size // n, w.nonzeros
    if nonzeros is None or nonzeros.total > pruned.MAX_DENSITY * w.size or k > pruned.NOWHERE:
        return None
    width = pruned.width_of(nonzeros.row if by_rows else nonzeros.column)
    packs = (
        all(map(limits.allow, (pruned.PACKING, pruned.RESTORING))) and 2 * k + width + 8 <= limits.max_loop_iterations
    )
    return Held(n, k, nonzeros.total, width, (k, 1) if by_rows else (1, n)) if packs else None


def of_entries(node: BoundNode, n: int, k: int) -> Held | None:
    """The sparse entries of inputs 1, 2 and 3; None where they can't be packed."""
    starts, entries, limits = node.input(3).value, node.input(1), node.target.limits
    if starts is None or not 0 < k <= pruned.NOWHERE or not entries.is_constant or not entries.size:
        return None
    most = int(np.diff(starts.astype(np.int64)).max(initial=0))
    width = pruned.width_of(max(0, min(most, k)))
    packs = limits.allow(PACKING) and 3 * k + width + 8 <= limits.max_loop_iterations
    return Held(n, k, entries.size, width, None, entries.size) if packs else None


def of_filters(node: BoundNode, window: Window, held: Held | None, bias: int | None) -> SparseProduct | None:
    """A Conv of planes with these filters; None where it is another one than the kernel takes. bias: the input that has
    it."""
    x, pixels, plane = node.input(0), math.prod(window.small), math.prod(window.large)
    if held is None or node.attr("group") != 1 or window.taps > MAX_TAPS or x.dtype is not FLOAT32:
        return None
    strides, of_bias = (held.n * pixels, pixels, 1), None if bias is None else (bias, 1, 0)
    product = SparseProduct(held, x.shape[0], pixels, plane, True, strides, of_bias, node.target, window)
    return product if _fits(product) else None


def of_matrices(
    node: BoundNode,
    vectors: int,
    held: Held | None,
    x_strides: tuple[int, int],
    bias: tuple[int, Strided] | None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> SparseProduct | None:
    """Vectors (input 0, strides of a vector and of k) times a matrix. bias: its input, and where an element of y finds
    it."""
    if held is None or node.input(0).dtype is not FLOAT32 or hint(vectors) <= pruned.MAX_VECTORS:
        return None
    planes = x_strides[0] == 1 and x_strides[1] == vectors
    if not planes and x_strides != (held.k, 1):
        return None
    of_bias = None if bias is None else (bias[0], bias[1].strides[1], bias[1].strides[0])
    product = SparseProduct(
        held, 1, vectors, vectors, planes, (0, 1, held.n), of_bias, node.target, None, float(alpha), float(beta)
    )
    return product if _fits(product) else None


def _fits(product: SparseProduct) -> bool:
    limits = product.target.limits
    return (
        limits.allow(SHADER)
        and limits.max_invocations >= WORKGROUP_SIZE
        and product.held.width // 4 < limits.max_loop_iterations
    )


def forms(product: SparseProduct | None) -> dict[str, Form]:
    """Every form that could be taken: rows and pixels of a lane, teams that share a row."""
    if product is None:
        return {}
    limits, unit, total = product.target.limits, 4 if product.fours else 1, hint(product.images * product.pixels)
    return {
        name: Form(_estimate_ns(product, rows, each, slices), partial(_lowered, product))
        for name, (rows, each, slices) in FORMS.items()
        if each % unit == 0
        and max(_grid(product, total, rows, each, slices)) <= limits.max_groups_per_dimension
        and _sums_nbytes(each, slices) <= limits.max_workgroup_nbytes
    }


def _grid(product: SparseProduct, total: int, rows: int, each: int, slices: int) -> tuple[int, int, int]:
    return ceil_div(total, TEAM * each), ceil_div(product.held.n, rows * WORKGROUP_SIZE // TEAM // slices), 1


def _sums_nbytes(each: int, slices: int) -> int:
    return 4 * WORKGROUP_SIZE * each if slices > 1 else 0


def _estimate_ns(product: SparseProduct, rows: int, each: int, slices: int) -> float:
    """A team waits for its entries and for what they name, four at a time, while the units read x; half of the shorter
    is hidden. What is not in planes is brought there before, and the elements of y lie apart then. Fitted to 16 layers
    of ResNet-50 and products on an H200.
    """
    by, weights, window = product.target.figures, product.held, product.window
    entry_clocks, pixel_clocks, begin_clocks, round_ns = (
        (
            by.sparse_tap_clocks,
            by.sparse_tap_pixel_clocks,
            2 * window.taps + by.sparse_begin_clocks,
            by.sparse_tap_round_ns,
        )
        if window is not None and product.windowed
        else (by.sparse_place_clocks, by.sparse_pixel_clocks, by.sparse_begin_clocks, by.sparse_round_ns)
    )
    if window is not None:  # neighbours in y lie apart in x
        pixel_clocks *= 1 + by.sparse_apart * (math.prod(window.strides) - 1)
    tiles = ceil_div(hint(product.images * product.pixels), TEAM * each)
    clocks = tiles * weights.total * (entry_clocks + each * pixel_clocks)
    clocks *= by.sparse_rows_factor if rows > 1 and not product.windowed else 1.0
    clocks += tiles * weights.n * slices * each * begin_clocks
    reads_ns, waits_ns = clocks / by.units / by.clocks_per_ns, round_ns * rows * ceil_div(weights.width, 4 * slices)
    ns = (
        by.sparse_launch_ns
        + max(waits_ns, reads_ns)
        + min(waits_ns, reads_ns) / 2
        + 6 * weights.n * weights.width * by.byte_ns
    )
    if product.y_strides[2] != 1:
        ns += 8 * 4 * weights.n * hint(product.pixels) * by.byte_ns
    if not product.x_planes:
        ns += by.dispatch_ns + 8 * weights.k * hint(product.pixels) * by.byte_ns
    return float(by.sparse_factor * ns)


def _lowered(product: SparseProduct, choice: Choice, out: TensorType) -> Lowering:
    """The packing, once; x in planes, where it does not lie so; the product."""
    codes = product.held
    kernels, temps = [codes.packing()], [*pruned.places(codes.n, codes.width)]
    x: int | str = 0
    if not product.x_planes:
        x = "planes"
        temps.append(("planes", TensorType(FLOAT32, (codes.k, product.pixels))))
        kernels.append(
            kernel(
                "strided.wgsl",
                [temps[-1][1]],
                indices={"x_index": Strided((codes.k, product.pixels), (1, codes.k))},
                raw=True,
                reads={"x": 0},
                writes={"y": x},
            )
        )
    kernels.append(_kernel(product, choice, x, out))
    return Lowering((out,), tuple(kernels), tuple(temps))


def _kernel(product: SparseProduct, choice: Choice, x: int | str, out: TensorType) -> Kernel:
    (rows, each, slices), sparse, window, unit = (
        FORMS[choice.form],
        product.held,
        product.window,
        4 if product.fours else 1,
    )
    total, channels = product.images * product.pixels, sparse.k // (window.taps if window else 1)
    _, c_row, c_pixel = product.bias or (0, 0, 0)
    by_fours = product.fours and product.y_strides[2] == 1 and c_pixel == 0
    of_image, of_row, of_pixel = (stride // 4 if by_fours else stride for stride in product.y_strides)
    bias = {"c": product.bias[0]} if product.bias else {}
    consts: dict[str, Const] = {
        "N": sparse.n,
        "K": sparse.k,
        "PLACES": sparse.width,
        "TEAM": TEAM,
        "MM": rows,
        "EACH": each // unit,
        "SLICES": slices,
        "TOTAL": total // unit,
        "PIXELS": product.pixels // unit,
        "X_IMAGE": channels * product.plane // unit,
        "PLANE": product.plane // unit,
        "Y_IMAGE": of_image,
        "Y_ROW": of_row,
        "Y_PIXEL": of_pixel,
        "C_ROW": c_row,
        "C_PIXEL": c_pixel,
        "ALPHA": product.alpha,
        "BETA": product.beta,
        "X_FOURS": product.fours,
        "Y_FOURS": by_fours,
        "WINDOWED": product.windowed,
        "STRIDED": product.strided,
    }
    if window is not None and (product.windowed or product.strided):
        consts |= window.consts(INPUT_AXES, OUTPUT_AXES)
    return kernel(
        SHADER,
        [out],
        consts=consts,
        workgroup_size=WORKGROUP_SIZE,
        workgroup_nbytes=_sums_nbytes(each, slices),
        choice=choice,
        grid=_grid(product, total, rows, each, slices),
        vectors=["values", *(["x"] if product.fours else []), *(["y"] if by_fours else [])],
        reads={"columns": "columns", "values": "values", "x": x, **bias},
        writes={"y": 0},
    )
