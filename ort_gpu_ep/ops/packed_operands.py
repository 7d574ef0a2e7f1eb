"""The operands of packed products, in which order their kernels want the codes, and what brings them into it once, in a
program's prologue.

Tiles read rows of whole words along K (`rows_of`), products of few vectors words of neighbouring rows (`interleaved`).
Where a weight meets both, tiles take the words of neighbouring rows, too: it is on the device once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ort_gpu_ep.ir.types import FLOAT32, UINT32, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record, restored_by
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, kernel

PLANES = {2: (2, 0), 3: (2, 1), 4: (4, 0), 5: (4, 1), 6: (4, 2), 7: (8, 0), 8: (8, 0)}
"""Bits of a code -> bits in the first and in the second plane, as the kernels read them."""

OPTIONALS = (("c", False),)
"""Of a kernel that brings operands into order, whichever inputs its node has: it is one kernel for all nodes, and what
it writes is shared."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix of `rows` x `k` codes in input `source`: code (row, k) is the (row * outer + k * inner)th.

    bits: of a code. signed: codes are two's complement. table, zp: inputs with scales (or the codebook) and zero
    points. block: codes of a row that share a scale, 0: the whole row. table_strides, zp_strides: of a row and of a
    block. zp_bits: zero points are codes of so many bits in a tensor of bytes; 0: elements. zero: where there are no
    zero points. levels: the numbers that a codebook of scaled codes has, where `table` has the scales. swapped: of two
    codes in a byte the first is the high one. groups: of rows, each with its own columns.
    """

    rows: int
    k: int
    outer: int
    inner: int
    bits: int
    source: int
    table: int
    signed: bool = False
    codebook: bool = False
    zp: int | None = None
    block: int = 0
    table_strides: tuple[int, int] = (0, 0)
    zp_strides: tuple[int, int] = (0, 0)
    zp_bits: int = 0
    zero: float = 0.0
    levels: tuple[float, ...] = ()
    swapped: bool = False
    groups: int = 1

    @property
    def flip(self) -> int:
        """What makes a signed code an unsigned one, larger by as much."""
        return 1 << self.bits - 1 if self.signed else 0

    @property
    def known_levels(self) -> Mapping[str, Const]:
        """The constants by which shaders know `levels`."""
        return {"LEVELS": True, **{f"LEVEL_{i}": value for i, value in enumerate(self.levels)}} if self.levels else {}


@dataclass(frozen=True, slots=True)
class Columns:
    """What the weights meet: x[k, j] of input `source`, and where its product goes; `outer` is a batch and a group of
    rows.

    window: constants of an implicit im2col, where k is (channel, tap) and j an output position.
    """

    source: int
    count: int
    column: int
    k: int
    y_column: int
    y_row: int
    batches: int = 1
    batch: int = 0
    group: int = 0
    y_outer: int = 0
    window: Mapping[str, Const] = field(default_factory=dict)


def are_rows(weights: Weights, columns: Columns) -> bool:
    """Whether x is whole vectors of K elements one after another, and y theirs of all rows: one group, no batches, no
    window."""
    return bool(
        not columns.window
        and columns.batches == weights.groups == columns.k == columns.y_row == 1
        and columns.column == weights.k
        and columns.y_column == weights.rows
    )


NO_WINDOW: Mapping[str, Const] = {
    f"{name}_{axis}": 1 for name in ("WINDOW", "STRIDE", "DILATION", "PAD") for axis in "ZYX"
} | {"DEPTH": 1, "HEIGHT": 1, "WIDTH": 1, "OUT_HEIGHT": 1, "OUT_WIDTH": 1}


@dataclass(frozen=True, slots=True)
class Layout:
    """Codes in words, as kernels read them. words: of a row, or of the rows that share words, in the first plane. bits,
    high: of a code, in either plane. sources: WGSL name -> input or temporary. kernels, temps: as a Lowering has them,
    for its prologue. together: rows share words, see `interleaved`.
    """

    words: int
    bits: int
    high: int
    flip: int
    sources: Mapping[str, int | str]
    kernels: tuple[Kernel, ...] = ()
    temps: tuple[tuple[str, TensorType], ...] = ()
    together: bool = False


def _ordering(shader: str, outputs: Sequence[TensorType], **given: Any) -> Kernel:
    """A kernel that knows none of its node's optional inputs."""
    return replace(kernel(shader, outputs, **given), optionals=OPTIONALS)


def _restored_codes(packing: Sequence[Kernel], stored: TensorType) -> Kernel | None:
    """From the words back to the model's own codes, where these are rows or columns. packing: of one plane, or two."""
    planes = [packing[0], *(k for k in packing[1:2] if dict(k.consts)["SHIFT"])]
    own, bits = dict(packing[0].consts), [int(dict(k.consts)["BITS"]) for k in planes]
    if 1 not in (own["ROW"], own["STEP"]):
        return None
    own |= {"BITS": bits[0], "HIGH": sum(bits[1:]), "ELEMENT": stored.dtype.bits}
    targets = [target for k in planes for _, target in k.writes or ()]
    return _ordering(
        "restore_codes.wgsl",
        [stored],
        consts={name: value for name, value in own.items() if name != "SHIFT"},
        reads=dict(zip(("rows", "upper"), targets, strict=False)),
        writes={"y": "restored"},
    )


def _of_scales(k: Mapping[str, Const]) -> dict[str, Const]:
    """The constants of restore_scales.wgsl."""
    return {**{name: k[name] for name in ("N", "PER", "BLOCKS")}, "BLOCK_FIRST": k["TABLE_BLOCK"] == 1}


record("repack.wgsl", "movement", loop_bound=lambda k: 32 // k["BITS"], inverse=_restored_codes)
record("restore_codes.wgsl", "movement", loop_bound=lambda k: 2 + k["ELEMENT"] // k["FROM"])
record(
    "interleave_scales.wgsl",
    "movement",
    inverse=restored_by("restore_scales.wgsl", "scales", consts=_of_scales, optionals=OPTIONALS),
)
record("restore_scales.wgsl", "movement")


def rows_of(weights: Weights) -> Layout:
    """The codes where they are, if rows begin at words; else the planes that repack.wgsl makes of them, which then
    stand for them."""
    bits, high = PLANES[weights.bits]
    per = 32 // bits
    if weights.inner == 1 and not weights.swapped and bits == weights.bits and weights.outer * bits % 32 == 0:
        flip = weights.flip * sum(1 << bits * k for k in range(per))
        return Layout(weights.outer // per, bits, 0, flip, {"w": weights.source})
    words = ceil_div(weights.k, per)
    words = -(-words // 4) * 4 if high else words  # so that a row of the second plane begins at a word, too
    kernels, temps, total = [], [], weights.rows * weights.groups
    for name, shift, width in (("rows", 0, bits), ("upper", bits, high)):
        if not width:
            continue
        count = words * width // bits
        layout = TensorType(UINT32, (total, count))
        kernels.append(
            _ordering(
                "repack.wgsl",
                [layout],
                consts={**_places(weights, count, False), "SHIFT": shift, "BITS": width},
                reads={"w": weights.source},
                writes={"y": name},
            )
        )
        temps.append((name, layout))
    sources: dict[str, int | str] = {"w": "rows", "high": "upper"} if high else {"w": "rows"}
    return Layout(words, bits, high, 0, sources, tuple(kernels), tuple(temps))


def interleaved(node: BoundNode, weights: Weights, number: str = "") -> Layout:
    """Codes of neighbouring rows together in a word, those of one k, as packed_matvec.wgsl reads them: K whole vectors
    of four words.

    Scales of blocks are brought into the same order, and zero points that are codes of as many bits: `scales`, `zeros`
    of its sources. number: behind these names, and behind `w`.
    """
    layout, scaled = _interleaved(weights, f"w{number}", ceil_div(weights.k, 4) * 4), f"scales{number}"
    if not 0 < weights.block < weights.k:
        return layout
    blocks, per = ceil_div(weights.k, weights.block), 32 // weights.bits
    ordered = TensorType(FLOAT32, (ceil_div(weights.rows, per), blocks, per))
    scales = _ordering(
        "interleave_scales.wgsl",
        [ordered],
        reads={"table": weights.table},
        writes={"y": scaled},
        consts={
            "N": weights.rows,
            "PER": per,
            "BLOCKS": blocks,
            "TABLE_ROW": weights.table_strides[0],
            "TABLE_BLOCK": weights.table_strides[1],
        },
    )
    parts = [layout, Layout(0, 0, 0, 0, {scaled: scaled}, (scales,), ((scaled, ordered),))]
    if weights.zp is not None:
        zp = node.input(weights.zp).dtype
        if zp.value in ("u32", "i32") and (weights.zp_bits or zp.bits) == weights.bits:
            outer, inner = weights.zp_strides
            points = replace(weights, source=weights.zp, k=blocks, outer=outer, inner=inner)
            parts.append(_interleaved(points, f"zeros{number}", blocks))
    return replace(
        layout,
        sources={name: source for p in parts for name, source in p.sources.items()},
        kernels=tuple(k for p in parts for k in p.kernels),
        temps=tuple(t for p in parts for t in p.temps),
    )


def _interleaved(weights: Weights, name: str, words: int) -> Layout:
    """Codes alone, which the kernel knows by that name."""
    layout, temp = TensorType(UINT32, (ceil_div(weights.rows, 32 // weights.bits), words)), f"interleaved_{name}"
    repacked = _ordering(
        "repack.wgsl",
        [layout],
        consts={**_places(weights, words, True), "SHIFT": 0, "BITS": weights.bits},
        reads={"w": weights.source},
        writes={"y": temp},
    )
    return Layout(words, weights.bits, 0, 0, {name: temp}, (repacked,), ((temp, layout),), together=True)


def _places(weights: Weights, words: int, interleaves: bool) -> dict[str, int]:
    """The constants of repack.wgsl, but for its plane."""
    return {
        "FROM": weights.bits,
        "FLIP": weights.flip,
        "ROW": weights.outer,
        "STEP": weights.inner,
        "ROWS": weights.rows * weights.groups,
        "K": weights.k,
        "WORDS": words,
        "INTERLEAVED": interleaves,
        **({"SWAPPED": True} if weights.swapped else {}),
    }
