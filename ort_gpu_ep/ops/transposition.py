"""Readings of a tensor whose neighbours end up far apart, as a transposition's do, by tiles (transpose.wgsl) or an
element at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ort_gpu_ep.ir.symbolic import hint, same
from ort_gpu_ep.ir.types import FLOAT32, INT8, UINT8, DType, Shape, TensorType
from ort_gpu_ep.kernels.cost_parameters import Figures
from ort_gpu_ep.kernels.problems import integers, normal, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import WORKGROUP, BoundNode, Kernel, Strided, kernel
from ort_gpu_ep.kernels.target import Choice
from ort_gpu_ep.ops.axes import strides_of
from ort_gpu_ep.shaders.indices import merged

record("strided.wgsl", "movement", nbytes=lambda k: 2 * k.nbytes("y"))

EACH = "each"
"""The form of strided.wgsl: an invocation an element, or a word of them."""

SMALL = 4096
"""Elements; of fewer, no form takes longer than its launch."""

SECTOR = 32
"""Bytes that memory moves at least: of each element that is read alone."""

CACHED = 32 << 20
"""Bytes, read and written, of which the kernel before has left half in the cache."""

IDLE = 2
"""Bytes that could be moved in the time of an element that a tile has and the tensor has not."""

ALONG = 4
"""Elements of a run that could be moved in the time that it takes to begin one."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Elements of y in its order, as dimensions that cannot be merged, with how far a step along each moves in x.

    axis: of the dimension whose steps go to x's next element; y's own neighbours, along the last one, are `strides[-1]`
    apart in x.
    """

    shape: Shape
    strides: tuple[int, ...]
    offset: int
    axis: int

    @property
    def a(self) -> int:
        """Elements of a run of x."""
        return self.shape[self.axis]

    @property
    def b(self) -> int:
        """Elements of a run of y."""
        return self.shape[-1]

    def others(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Of numbers for each dimension, those for neither run."""
        return tuple(value for k, value in enumerate(values) if k not in (self.axis, len(values) - 1))

    def pitches(self) -> tuple[int, ...]:
        """How far a step along each dimension moves in y."""
        return tuple(math.prod(self.shape[k + 1 :]) for k in range(len(self.shape)))

    def begins_at(self, multiple: int) -> bool:
        """Whether runs of x begin at multiples of so many elements, and runs of y at multiples of four; so do their
        ends."""
        steps = (*self.others(self.strides), self.strides[-1], self.a, self.offset)
        return all(same(step % multiple, 0) for step in steps) and same(self.b % 4, 0)


@dataclass(frozen=True, slots=True)
class Tile:
    """What a workgroup moves: so many elements along the run of x, and along that of y.

    block: (along x, along y) that an invocation moves in registers; empty: all go through workgroup memory.
    """

    a: int
    b: int
    block: tuple[int, ...] = ()

    @property
    def workgroup_size(self) -> int:
        return self.a * self.b // (math.prod(self.block) if self.block else 4)


def _named(kind: str, sides: Iterable[tuple[int, int]], block: tuple[int, ...] = ()) -> dict[str, Tile]:
    return {f"{kind} {a} x {b}": Tile(a, b, block) for a, b in sides}


BLOCKS = _named("blocks", ((32, 32), (16, 64), (64, 16)), (4, 4))
OF_PACKED = _named("blocks", ((16, 64),), (4, 4))
WIDE = _named("wide", ((64, 64),), (16, 4))
TILES = _named("tile", ((32, 32), (16, 64), (64, 16), (8, 128), (128, 8), (4, 256), (256, 4)))

record(
    "transpose.wgsl",
    "movement",
    nbytes=lambda k: 2 * k.nbytes("y"),
    problems=[
        problem("Transpose", 13, normal(2, 268, 36), tolerance=0.0, forms=(*BLOCKS,), perm=(0, 2, 1)),
        problem("Transpose", 13, normal(2, 261, 37), tolerance=0.0, forms=(*TILES,), perm=(0, 2, 1)),
        problem(
            "Transpose",
            13,
            integers(-128, 128, 9, 5, 4, 3, 12, dtype="int8"),
            forms=(*OF_PACKED, *TILES),
            perm=(0, 3, 4, 1, 2),
        ),
        *(
            problem("Transpose", 13, integers(0, 250, 3, 36, 68, dtype=kind), forms=forms, perm=(0, 2, 1))
            for kind, forms in (
                ("uint8", ("blocks 16 x 64", "tile 32 x 32")),
                ("float16", ("blocks 16 x 64", "tile 32 x 32")),
                ("int64", ("tile 32 x 32",)),
            )
        ),
    ],
)


def swap_of(index: Strided) -> Swap | None:
    """None where neighbours of y are neighbours in x, or no dimension of y goes along x."""
    shape, strides = merged(index.shape, index.strides)
    axes = [k for k in range(len(shape) - 1) if same(strides[k], 1)]
    if not axes or same(strides[-1], 1) or hint(strides[-1]) < 2:
        return None
    return Swap(shape, strides, index.offset, axes[-1])


def transposed(shape: Shape, order: Sequence[int]) -> Strided:
    """How a tensor of that shape is read with its dimensions in another order."""
    strides = strides_of(shape)
    return Strided(tuple(shape[k] for k in order), tuple(strides[k] for k in order))


def moving_ns(index: Strided, dtype: DType, by: Figures) -> float:
    """What it takes to read a tensor so, by the cheapest form that there is for such sizes."""
    swap = swap_of(index)
    if swap is None:
        return float(by.dispatch_ns + _bytes_ns(2 * hint(math.prod(index.shape)) * dtype.nbytes, by))
    tiles = _known(swap, dtype, dtype, True)
    return min((each_ns(swap, dtype, by), *(tile_ns(swap, dtype, tile, by) for tile in tiles.values())))


def swapping(node: BoundNode, swap: Swap, out: TensorType, target: int) -> Kernel | Choice | None:
    """The kernel that makes output `target`; where strided.wgsl is to do it, the choice that it is, or None where there
    was none."""
    x, ends_in, limits, raw = node.input(0).dtype, node.ends_in(out.dtype), node.target.limits, not node.has_steps
    if hint(out.size) < SMALL or not limits.allow("transpose.wgsl"):
        return None
    tiles = {
        name: tile for name, tile in _known(swap, x, ends_in, raw).items() if tile.block or limits.allow(WORKGROUP)
    }
    if not tiles:
        return None
    estimates = {EACH: each_ns(swap, out.dtype, node.target.figures)} | {
        name: tile_ns(swap, out.dtype, tile, node.target.figures) for name, tile in tiles.items()
    }
    about = f"about {1 << hint(math.prod(swap.others(swap.shape))).bit_length()} times"
    choice = node.target.choose(
        f"transpose {hint(swap.a)} x {hint(swap.b)}, {about}, {x.bits} to {ends_in.bits} bits", estimates
    )
    return choice if choice.form == EACH else _kernel(swap, tiles[choice.form], x, out, ends_in, raw, target, choice)


def _known(swap: Swap, x: DType, ends_in: DType, raw: bool) -> Mapping[str, Tile]:
    """The tiles that can move these elements: four at a time those that have a vector or a word, others where no word
    of y has two runs."""
    vectors, tiles = (FLOAT32, INT8, UINT8), dict[str, Tile]()
    if swap.begins_at(4) and (x.bits <= 32 if raw else x in vectors and ends_in in vectors):
        tiles |= BLOCKS if x.bits == 32 else OF_PACKED
        tiles |= WIDE if raw and x.bits == 8 and swap.begins_at(16) else {}
    if not _is_packed(ends_in, raw) or ((raw or ends_in in vectors) and same(swap.b % (32 // ends_in.bits), 0)):
        tiles |= TILES
    return tiles


def _is_packed(dtype: DType, raw: bool) -> bool:
    return dtype.bits < 32 and (raw or dtype.storage == "u32")


def _kernel(
    swap: Swap, tile: Tile, x: DType, out: TensorType, ends_in: DType, raw: bool, target: int, choice: Choice
) -> Kernel:
    pitches, others, words = swap.pitches(), swap.others(swap.shape), _is_packed(ends_in, raw)
    tiles = ceil_div(swap.a, tile.a), ceil_div(swap.b, tile.b)
    wide = tile.block == (16, 4)
    vectors = [
        name
        for name, dtype in (("x", x), ("y", ends_in))
        if tile.block and (dtype.bits == 32 or (wide and name == "x"))
    ]
    return kernel(
        "transpose.wgsl",
        [out],
        raw=raw,
        reads={"x": 0},
        writes={"y": target},
        choice=choice,
        vectors=vectors,
        words=["y"] if words else [],
        consts={
            "A": swap.a,
            "B": swap.b,
            "PITCH": pitches[swap.axis],
            "TILES_A": tiles[0],
            "TILES_B": tiles[1],
            "TILE_A": tile.a,
            "TILE_B": tile.b,
            "BLOCKS": bool(tile.block),
            "WIDE": wide,
            "RAW": raw,
            "WORDS": words,
            "SIGNED": x is INT8,
        },
        indices={
            "x_place": Strided(others, swap.others(swap.strides), swap.offset),
            "x_row": Strided((swap.b,), (swap.strides[-1],)),
            "y_place": Strided(others, swap.others(pitches)),
        },
        groups=math.prod(others) * tiles[0] * tiles[1],
        workgroup_size=tile.workgroup_size,
        workgroup_nbytes=0 if tile.block else tile.b * (tile.a + 1) * max(4, x.nbytes),
    )


def each_ns(swap: Swap, dtype: DType, by: Figures) -> float:
    """An element at a time: of what a load brings, the other elements are asked for again later, by another
    workgroup."""
    elements = hint(math.prod(swap.shape))
    return float(by.dispatch_ns + max(SECTOR, 2 * dtype.nbytes) * elements * by.byte_ns)


def tile_ns(swap: Swap, dtype: DType, tile: Tile, by: Figures) -> float:
    """By tiles: its bytes, or of small elements what takes them apart; that runs begin; what tiles at an end lack."""
    elements, a, b = hint(math.prod(swap.shape)), hint(swap.a), hint(swap.b)
    idle = ceil_div(a, tile.a) * tile.a * ceil_div(b, tile.b) * tile.b * (elements // max(1, a * b)) - elements
    least, factor, idle_nbytes = (
        (24 // tile.block[0], 1.0, IDLE) if tile.block else (8, by.transpose_tile_factor, 2 * IDLE)
    )
    moved_ns = _bytes_ns(max(2 * dtype.nbytes, least) * elements, by) * (1 + ALONG / min(tile.a, tile.b))
    return float(by.dispatch_ns + factor * moved_ns + idle_nbytes * idle * by.byte_ns)


def _bytes_ns(moved: int, by: Figures) -> float:
    return (moved - min(moved, CACHED) / 2) * by.byte_ns
