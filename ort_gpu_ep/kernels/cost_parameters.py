"""Parameters of the cost model that chooses between forms of a kernel: times and rates of an adapter. Plain data.

The defaults are those of an H200, where the estimates of `ops/` were fitted to measurements. `scaled` makes them
another adapter's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Figures:
    """Names end in their unit: _ns nanoseconds, _clocks cycles, _per_ns per nanosecond; others are counts or factors.

    units: compute units, each as fast as one of an H200, that a choice aims to fill; a smaller GPU loses little by
    smaller tiles. registers, lane_registers: of 32 bits, of a unit, of an invocation at most. unit_lanes,
    unit_subgroups, unit_workgroup_nbytes: that a unit has at once; of workgroup memory what the driver lets be in use,
    of an H200's 228 KiB (`python -m benchmarks.persistent resident`). loads_ahead: whether the driver's compiler moves
    loads of an unrolled loop up, so that what they bring is in registers at once, too. least_lanes: of a subgroup.
    clocks_per_ns, fma_per_ns: of a unit at its full clock, with 128 lanes. dispatch_ns: a small dependent dispatch.
    byte_ns: a byte of partial sums, written or read back. workgroup_byte_ns: a byte that a unit reads of workgroup
    memory: 128 a clock, of 32 banks (NVIDIA, CUDA C++ Programming Guide, Shared Memory).

    gemm.wgsl: step_ns: latency of one step of a tile while few workgroups run (750 ns without the prefetch). fma_ns: a
    multiply-add of a tile on one unit, with a third more for the reads of workgroup memory. load_ns: one element from
    memory into workgroup memory, about ten instructions over 128 lanes, and the L1. planes_factor: what a product over
    planes takes beside its launch, over its estimate (16 layers of ResNet-50 took 228 us, with launches of 3 us each,
    and were estimated at 139).

    Packed products: launch_ns: a dispatch without its steps. dot_ns: four products of bytes, of a unit.

    product.wgsl: tile_launch_ns: a dispatch without its steps and stores. arrival_ns, arrival_element_ns: what it adds
    that the last workgroup of several adds up their sums, and each of these. tile_step_ns, window_step_ns: what the
    workgroups that a unit has at once wait for together in a step, and in one with a window. byte_launch_ns,
    byte_step_ns, byte_arrival_ns: likewise of byte_product.wgsl, with windows and without. few_groups, many_groups:
    workgroups that a cut of K aims at. depthwise_gain_ns: of a depthwise convolution whose channels lie together (3.2 to
    4.3 us instead of 3.0 to 4.9). winograd_factor: what a convolution by winograd*.wgsl counts for, over its estimate:
    it is taken where it wins clearly.

    matrix_product.wgsl: matrix_launch_ns: a dispatch. matrix_step_ns: the least that a step takes, times the tile's
    share. matrix_fma_per_ns: of a unit's matrix units, times the tile's efficiency. matrix_bytes_per_ns: what a unit
    loads, from caches mostly. matrix_arrival_ns, matrix_arrival_element_ns: what it adds that the last workgroup of
    several adds up their sums, and each of these. Fitted to ResNet-50's convolutions in three precisions, six products
    and BERT-base's, in four tiles each, with k whole and cut. attention_units.wgsl: matrix_attention_clocks: of a unit,
    a step of 64 queries, 64 keys and heads of 64; matrix_attention_wait_clocks: the least that a step takes. Fitted to
    31.5 us of 32 x 12 heads of 128 tokens and 46 of 32 heads of 512.

    grouped_last.wgsl: grouped_launch_ns: a dispatch. grouped_round_ns: what a lane's loads that are under way together
    wait for. grouped_load_ns: a vector that a unit loads. conv_direct.wgsl: direct_flops_per_ns.

    matvec*.wgsl: launch_ns: of each form, without its reads. bytes_per_ns: what it reads. rows_wait_ns: of a subgroup
    for 128 vectors. rows_uneven_ns: for each row of a workgroup where few workgroups run, rows_even_ns: at all where
    many do.

    attention.wgsl: launch_ns: beside the dispatch. A key's share of a subgroup: load_clocks a vector that lies apart,
    vector_clocks and query_clocks of arithmetic. apart_power: of the lines that a subgroup reads at once. parts_factor:
    where four lanes share a key. spill_factor: with more than spill_registers for vectors. wait_clocks,
    query_wait_clocks, parts_wait_clocks: of a block of keys, for each query of a lane, where four lanes share one.
    join_clocks, join_slice_clocks: to put slices together, for each of them. attention_split.wgsl and
    attention_join.wgsl: split_launch_ns: beside their dispatches. split_step_clocks, split_query_clocks: of a step of
    1,024 vectors of keys, and for each query of the workgroup, with three workgroups a unit. Fitted to 2, 4 and 8
    tokens, 32 heads in 8 groups and 28 in 4 of 128, 64 to 32,768 keys, four kinds of caches.

    normalize*.wgsl, softmax*.wgsl: fours_ns, any_ns: the launch of each form. round_ns: a unit full of subgroups with a
    row each. load_ns, lane_ns: a vector that the lanes of a workgroup keep, and, a lane, that they join their sums.
    piece_ns: that pieces of a row are joined, for each of them. unit_byte_ns: a byte that one unit reads or writes.
    any_element_ns: an element of a lane.

    transpose.wgsl: transpose_tile_factor: of bytes that go through workgroup memory, over byte_ns.

    packed_matvec.wgsl: packed_wait_ns, until its first codes are there; then of a unit, for a code: packed_words_clocks,
    and packed_halves_clocks where two at a time are read as float16, packed_column_clocks for each vector but the
    first. rounded_matvecs.wgsl, of a unit: packed_bytes_clocks, for a code, and packed_rounding_clocks, for an element
    of x in each workgroup. byte_vectors.wgsl: packed_bytes_clocks for a code, or packed_dot_clocks for a code and each
    vector, whichever is more.

    sparse_matvec*.wgsl: sparse_entry_clocks: an entry of an invocation, which waits for the one before.
    sparse_halving_clocks: a halving of a team, there and back, with its barriers. Of a unit: sparse_gather_clocks: an
    entry's read of x, with the bounds checks that it keeps (0.52 without), sparse_held_clocks: where x is in workgroup
    memory, sparse_staging_clocks: an element of x on the way there.

    sparse_product.wgsl: sparse_launch_ns: a dispatch. sparse_round_ns: four entries of a row, and what they name,
    waited for. Of a unit: sparse_place_clocks: an entry of a team; sparse_pixel_clocks: 32 pixels of an entry;
    sparse_begin_clocks: 32 pixels of a team, before and behind its entries; sparse_tap_round_ns, sparse_tap_clocks,
    sparse_tap_pixel_clocks: likewise with a window. sparse_rows_factor: where a lane has several rows. sparse_apart:
    what a pixel takes more for each that a step leaves out. sparse_factor: what these products count for, over their
    estimate: they are taken where they win clearly.

    recurrent*.wgsl: held_step_ns: the exchange, the activations and the barrier of a step with weights in registers;
    held_vector_ns: a vector that its subgroups read. general_step_ns: two barriers; general_byte_ns: weights, which one
    unit reads of the cache; general_turn_ns: what a lane reads of one element of the state. input_ns: the input's
    product before, without its dispatch. A dispatch a step: stepwise_wait_ns: what waits in it for memory one after the
    other; stepwise_unit_ns: 128 weights of a hidden unit of a team; stepwise_group_ns: a workgroup, of a unit.
    cache_nbytes: what the cache keeps from step to step, which then comes at cache_bytes_per_ns, else, and what further
    rows of a batch read, at uncached_bytes_per_ns. Fitted to LSTM, GRU and RNN layers of 64 to 1,024 units.
    """

    units: int = 132
    registers: int = 65536
    lane_registers: int = 255
    loads_ahead: bool = False
    least_lanes: int = 4
    unit_lanes: int = 2048
    unit_subgroups: int = 48
    unit_workgroup_nbytes: int = 49152
    clocks_per_ns: float = 1.98
    fma_per_ns: float = 128 * 1.98
    dispatch_ns: float = 2400.0
    byte_ns: float = 1 / 2000
    workgroup_byte_ns: float = 1 / (128 * 1.98)

    step_ns: float = 500.0
    fma_ns: float = 1.3 / 128 / 1.7
    load_ns: float = 0.12 / 1.7
    planes_factor: float = 1.3

    launch_ns: float = 2600.0
    dot_ns: float = 1 / 57
    tile_launch_ns: float = 1790.0
    arrival_ns: float = 2360.0
    arrival_element_ns: float = 0.0847
    tile_step_ns: float = 147.0
    window_step_ns: float = 247.0
    byte_launch_ns: float = 2990.0
    byte_step_ns: float = 410.0
    byte_arrival_ns: float = 1390.0
    few_groups: int = 140
    many_groups: int = 280
    depthwise_gain_ns: float = 300.0
    winograd_factor: float = 1.3
    matrix_launch_ns: float = 2600.0
    matrix_step_ns: float = 700.0
    matrix_fma_per_ns: float = 1095.0
    matrix_bytes_per_ns: float = 55.0
    matrix_arrival_ns: float = 13100.0
    matrix_arrival_element_ns: float = 0.3
    matrix_attention_clocks: float = 4200.0
    matrix_attention_wait_clocks: float = 4500.0
    grouped_launch_ns: float = 2600.0
    grouped_round_ns: float = 400.0
    grouped_load_ns: float = 0.1
    direct_flops_per_ns: float = 4000.0

    matvec_launch_ns: float = 3000.0
    matvec_bytes_per_ns: float = 1300.0
    packed_words_clocks: float = 0.061
    packed_halves_clocks: float = 0.044
    packed_wait_ns: float = 1800.0
    packed_column_clocks: float = 0.0255
    packed_bytes_clocks: float = 0.036
    packed_rounding_clocks: float = 0.12
    packed_dot_clocks: float = 0.0095
    rows_launch_ns: float = 3000.0
    rows_bytes_per_ns: float = 4000.0
    rows_wait_ns: float = 700.0
    rows_uneven_ns: float = 150.0
    rows_even_ns: float = 100.0
    columns_launch_ns: float = 2900.0
    columns_bytes_per_ns: float = 3500.0

    attention_launch_ns: float = 1400.0
    attention_load_clocks: float = 2.5
    attention_vector_clocks: float = 1.6
    attention_query_clocks: float = 2.9
    attention_apart_power: float = 0.69
    attention_parts_factor: float = 2.8
    attention_spill_registers: int = 190
    attention_spill_factor: float = 1.8
    attention_wait_clocks: float = 830.0
    attention_query_wait_clocks: float = 180.0
    attention_parts_wait_clocks: float = 240.0
    attention_join_clocks: float = 1000.0
    attention_join_slice_clocks: float = 20.0
    attention_split_launch_ns: float = 2600.0
    attention_split_step_clocks: float = 2400.0
    attention_split_query_clocks: float = 330.0

    normalize_fours_ns: float = 2900.0
    normalize_round_ns: float = 700.0
    normalize_load_ns: float = 90.0
    normalize_lane_ns: float = 0.9
    normalize_piece_ns: float = 10.0
    unit_byte_ns: float = 1 / 80
    normalize_any_ns: float = 4000.0
    normalize_any_element_ns: float = 330.0

    held_step_ns: float = 170.0
    held_vector_ns: float = 3.0
    general_step_ns: float = 700.0
    general_byte_ns: float = 0.02
    general_turn_ns: float = 52.0
    input_ns: float = 2000.0
    stepwise_wait_ns: float = 1950.0
    stepwise_unit_ns: float = 70.0
    stepwise_group_ns: float = 180.0
    cache_nbytes: int = 24 << 20
    cache_bytes_per_ns: float = 15000.0
    uncached_bytes_per_ns: float = 2000.0

    transpose_tile_factor: float = 1.3

    sparse_entry_clocks: float = 20.0
    sparse_halving_clocks: float = 60.0
    sparse_gather_clocks: float = 0.7
    sparse_held_clocks: float = 0.19
    sparse_staging_clocks: float = 0.33
    sparse_launch_ns: float = 2600.0
    sparse_round_ns: float = 250.0
    sparse_tap_round_ns: float = 320.0
    sparse_place_clocks: float = 0.7
    sparse_pixel_clocks: float = 3.3
    sparse_begin_clocks: float = 6.0
    sparse_tap_clocks: float = 4.6
    sparse_tap_pixel_clocks: float = 2.1
    sparse_rows_factor: float = 0.87
    sparse_apart: float = 0.6
    sparse_factor: float = 1.3

    def __hash__(self) -> int:
        # sessions ask for it at every node, and few figures differ
        return hash((self.units, self.dispatch_ns, self.byte_ns))

    @property
    def dispatch_nbytes(self) -> int:
        """What is written in the time of a dispatch."""
        return int(self.dispatch_ns / self.byte_ns)

    @property
    def tile_fma_ns(self) -> float:
        """A multiply-add of a tile of 4 x 4 sums a lane: fma_ns, or where that takes longer, what it reads of workgroup
        memory."""
        return max(self.fma_ns, FMA_NBYTES * self.workgroup_byte_ns)

    def scaled(
        self,
        arithmetic: float,
        memory: float,
        dispatch: float,
        wait: float | None = None,
        barrier: float | None = None,
        workgroup: float = 1.0,
    ) -> Figures:
        """Those of an adapter with so many times the arithmetic and the bytes a second, and the times of a dispatch, of
        a read that is waited for and of a barrier; all positive. wait, barrier: None for as long on the clock of one
        like this, as many clocks of another. workgroup: how many times as long a unit takes to read workgroup memory,
        for the same arithmetic.

        A unit stays what it is: an adapter with less arithmetic counts as one with fewer units, down to LEAST_UNITS;
        with still less its units are slower. Of what is waited for, one read or barrier takes longer; the rest is
        instructions.
        """
        slower = max(1.0, LEAST_UNITS / (self.units * arithmetic))
        factors = {
            "units": arithmetic * slower,
            "arithmetic": arithmetic,
            "unit rates": 1 / slower,
            "unit times": slower,
            "bandwidths": memory,
            "bytes": 1 / memory,
            "launches": dispatch,
            "workgroup memory": workgroup * slower,
        }
        figures = {name: getattr(self, name) * factor for scale, factor in factors.items() for name in SCALES[scale]}
        for kind, ratio, of_s in (("waits", wait, MEASURED_WAIT_S), ("barriers", barrier, MEASURED_BARRIER_S)):
            if ratio is not None:
                more_ns, clock, in_clocks = (ratio - 1.0) * of_s * 1e9, self.clocks_per_ns, SCALES[f"{kind} in clocks"]
                figures |= {name: _longer(getattr(self, name), ratio, more_ns) for name in SCALES[kind]}
                figures |= {
                    name: _longer(getattr(self, name) / clock, ratio, more_ns) * clock / slower for name in in_clocks
                }
        return replace(self, **figures | {name: max(1, round(figures[name])) for name in SCALES["units"]})


def _longer(ns: float, ratio: float, more_ns: float) -> float:
    """What waits `ratio` times as long once, which takes so much more; all of it, where that is less."""
    return ns * ratio if abs(ns * (ratio - 1.0)) < abs(more_ns) else ns + more_ns


FMA_NBYTES = 1.5
"""Of workgroup memory, for a multiply-add of a tile of 4 x 4 sums a lane. It reads two; but lanes that read the same
read it once, and with as many as this the reads of an H200 take as long as fma_ns."""

DEFAULT_FIGURES = Figures()
"""Of an adapter that was not measured."""

SOFTWARE_FIGURES = replace(
    DEFAULT_FIGURES,
    sparse_halving_clocks=20000.0,
    transpose_tile_factor=30.0,
    winograd_factor=1e9,
    normalize_lane_ns=10.0,
    packed_halves_clocks=0.08,
    packed_bytes_clocks=0.06,
    sparse_launch_ns=1000.0,
    sparse_round_ns=0.0,
    sparse_tap_round_ns=0.0,
    sparse_place_clocks=0.0,
    sparse_pixel_clocks=0.9,
    sparse_begin_clocks=1.0,
    sparse_tap_clocks=0.5,
    sparse_tap_pixel_clocks=2.3,
    sparse_rows_factor=1.0,
    sparse_apart=0.0,
    stepwise_group_ns=22000.0,
    attention_split_launch_ns=25000.0,
    attention_split_step_clocks=40000.0,
    attention_split_query_clocks=20000.0,
)
"""Of one that computes on the CPU: a barrier makes it change from coroutine to coroutine, through the whole workgroup.
What Winograd's transforms move there costs more than the products that they save, and float16 is read by a chain of
integer operations. Nobody waits for an entry of a sparse row, and reading x costs little more than a multiply-add of a
dense product."""

LEAST_UNITS = 12
"""Small GPUs have few units, but more than their arithmetic alone would say: Intel's UHD 3, Iris Xe 6, Apple's M1 8,
Mali G78 up to 24."""

_NAMES = tuple(f.name for f in fields(Figures))

SCALES: Mapping[str, Sequence[str]] = {
    "units": ("units", "few_groups", "many_groups", "cache_nbytes"),
    "arithmetic": ("direct_flops_per_ns",),
    "unit rates": ("clocks_per_ns", "fma_per_ns", "matrix_fma_per_ns"),
    "unit times": (
        "fma_ns",
        "load_ns",
        "dot_ns",
        "grouped_load_ns",
        "rows_uneven_ns",
        "rows_even_ns",
        "held_vector_ns",
        "general_byte_ns",
        "stepwise_group_ns",
        "stepwise_unit_ns",
        "normalize_piece_ns",
        "unit_byte_ns",
    ),
    "bandwidths": tuple(name for name in _NAMES if name.endswith("bytes_per_ns")),
    "bytes": ("byte_ns", "arrival_element_ns", "matrix_arrival_element_ns"),
    "workgroup memory": ("workgroup_byte_ns",),
    "launches": (
        "dispatch_ns",
        "launch_ns",
        "arrival_ns",
        "byte_arrival_ns",
        "matrix_arrival_ns",
        "normalize_fours_ns",
        "normalize_any_ns",
        "input_ns",
        *(name for name in _NAMES if name.endswith("_launch_ns")),
    ),
    "waits": (
        "step_ns",
        "tile_step_ns",
        "window_step_ns",
        "byte_step_ns",
        "matrix_step_ns",
        "rows_wait_ns",
        "grouped_round_ns",
        "normalize_round_ns",
        "normalize_load_ns",
        "normalize_any_element_ns",
        "sparse_round_ns",
        "sparse_tap_round_ns",
        "stepwise_wait_ns",
        "general_turn_ns",
        "packed_wait_ns",
    ),
    "waits in clocks": (
        "attention_wait_clocks",
        "attention_query_wait_clocks",
        "attention_parts_wait_clocks",
        "attention_split_step_clocks",
        "sparse_entry_clocks",
        "matrix_attention_wait_clocks",
    ),
    "barriers": ("held_step_ns", "general_step_ns", "normalize_lane_ns"),
    "barriers in clocks": ("sparse_halving_clocks", "attention_join_clocks"),
}
"""What of the figures follows from which of an adapter's measured rates. The others are clocks and ratios of a kernel's
text, and what a unit holds."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """What calibration/roofs.py measures of an adapter, 0 where it is not known: floating-point operations and bytes,
    read and written, a second, float32; seconds of a read that depends on the one before, and of a barrier of 256
    invocations, with what it orders; bytes a second that all units together read of workgroup memory.
    """

    flops_per_s: float = 0.0
    nbytes_per_s: float = 0.0
    wait_s: float = 0.0
    barrier_s: float = 0.0
    workgroup_nbytes_per_s: float = 0.0


MEASURED_FLOPS_PER_S, MEASURED_NBYTES_PER_S, MEASURED_DISPATCH_S = 2e9 * 132 * DEFAULT_FIGURES.fma_per_ns, 4e12, 2.4e-6
MEASURED_WAIT_S, MEASURED_BARRIER_S = 149e-9, 28e-9
"""What a profile says of the adapter that the defaults are of: its roofs, a dispatch, a read that is waited for, a
barrier. The last two are between what the GPU's clock says there (143 and 26 ns) and the host's (156 and 31)."""

WORKGROUP_FLOPS_PER_BYTE = 2e9 * DEFAULT_FIGURES.fma_per_ns / (1e9 / DEFAULT_FIGURES.workgroup_byte_ns)
"""Two: the arithmetic of a unit of the defaults' adapter while it reads a byte of workgroup memory, by its
documentation."""

MOST = 8.0
"""Times that another adapter waits longer, or less: a chip's caches answer in 0.1 to 1 us, so what says more was
disturbed."""


def figures_of(roofs: Roofs, dispatch_s: float) -> Figures:
    """The figures of an adapter by its profile: roofs of arithmetic and of memory, and a dispatch, all positive; the
    other roofs are 0 where they were not measured.

    Ratios to the defaults' adapter go in steps of half a power of two: the estimates are no finer, and a profile that
    is measured again leads to the same choices.
    """
    return DEFAULT_FIGURES.scaled(
        _step(roofs.flops_per_s / MEASURED_FLOPS_PER_S),
        _step(roofs.nbytes_per_s / MEASURED_NBYTES_PER_S),
        _step(dispatch_s / MEASURED_DISPATCH_S),
        _waited(roofs.wait_s / MEASURED_WAIT_S),
        _waited(roofs.barrier_s / MEASURED_BARRIER_S),
        _workgroup(roofs),
    )


COMPILERS: Mapping[str, Mapping[str, Any]] = {
    "amd": {"lane_registers": 256, "least_lanes": 32, "loads_ahead": True},
    "apple": {"registers": 53248, "lane_registers": 128, "least_lanes": 32, "loads_ahead": True},
    "arm": {"lane_registers": 64},
    "intel": {"registers": 28672, "lane_registers": 128, "least_lanes": 8, "loads_ahead": True},
    "nvidia": {},
    "nvk": {"lane_registers": 224, "least_lanes": 32, "loads_ahead": True},
    "qualcomm": {"registers": 49152, "lane_registers": 192, "least_lanes": 64, "loads_ahead": True},
}
"""What of the figures follows from whose compiler makes the kernels' code (AdapterInfo.compiler), as
benchmarks/compilers.py saw Mesa's do: AMD's RDNA and GCN; Apple's M1, 256 of 16 bits; Intel's 128 of 32 bytes with 8
invocations a subgroup, which its compiler goes back to before it spills; NVIDIA's by Mesa's NVK, 255 with some for
itself; Adreno's 48 of four. An invocation of a workgroup of 1024 has 52 on an M1, 48 on an Adreno; of 512 on a Skylake
56, since so many subgroups run at once there. Arm's Valhall: 64 with all of its threads. The defaults are those of
NVIDIA's own."""

INTEGRATED_REGISTERS = 64
"""Of 32 bits, of an invocation, of an integrated GPU of another maker."""

INTEGRATED_ROOFS, INTEGRATED_DISPATCH_S = Roofs(2e12, 6e10), 1e-5
"""Assumed of an integrated GPU that was not measured. Intel's Iris Xe: 96 units of 8 lanes at 1.35 GHz, so 2.07
TFLOP/s; two channels of LPDDR4x-4267, so 68 GB/s."""


def figures_for(kind: str, measured: Figures | None, compiler: str = "") -> Figures:
    """The figures of an adapter of a type and with a driver's compiler (AdapterInfo.type, .compiler): by its profile,
    where it was measured, else what is known of the type.
    """
    if kind == "software":
        return SOFTWARE_FIGURES
    changes: Mapping[str, Any] = COMPILERS.get(
        compiler, {"lane_registers": INTEGRATED_REGISTERS} if kind == "integrated" else {}
    )
    figures = measured or (
        figures_of(INTEGRATED_ROOFS, INTEGRATED_DISPATCH_S) if kind == "integrated" else DEFAULT_FIGURES
    )
    return replace(figures, **changes) if changes else figures


class Sized(Protocol):
    """Has a workgroup's size."""

    @property
    def workgroup_size(self) -> int: ...


Tiled = TypeVar("Tiled", bound=Sized)

SPILLED = 1.1
"""Registers of a tile over those of the tile with the fewest up to which it is taken where a lane has room for none:
Arm's compiler, with 64, spills 14 of product.wgsl's 32x32/4, 30 of 32x16/4 and 162 of 64x64, which takes it 20 times as
long; 8 of gemm.wgsl's 64x64x16 and 142 of 32x32x16."""


def within_registers(
    tiles: Sequence[Tiled], registers: Callable[[Tiled], int], of_lane: int, of_unit: int
) -> list[Tiled]:
    """The tiles whose lanes have registers enough. Where none has, those that keep the least in memory; a compiler takes
    long for the others, too. registers: that a lane needs. of_lane, of_unit: that there are (`lane_registers`,
    `registers`).
    """
    fitting = [t for t in tiles if registers(t) <= min(of_lane, of_unit // t.workgroup_size)]
    return fitting or [t for t in tiles if registers(t) <= SPILLED * min(map(registers, tiles))]


def _step(ratio: float) -> float:
    return float(2 ** (round(2 * math.log2(ratio)) / 2))


def _waited(ratio: float) -> float | None:
    return min(max(_step(ratio), 1 / MOST), MOST) if ratio else None


def _workgroup(roofs: Roofs) -> float:
    """How many times as long a unit reads, in half powers of two, too, but rounded down: a loop does not reach what is
    documented. Less time counts as nothing: what a tile does of its arithmetic was fitted where it reads as fast as
    that.
    """
    if not roofs.workgroup_nbytes_per_s:
        return 1.0
    ratio = roofs.flops_per_s / roofs.workgroup_nbytes_per_s / WORKGROUP_FLOPS_PER_BYTE
    return float(min(max(1.0, 2 ** (math.floor(2 * math.log2(ratio)) / 2)), MOST))
