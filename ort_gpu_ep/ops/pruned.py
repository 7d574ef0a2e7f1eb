"""Products of few vectors with a matrix that is mostly zeros, as a pruned model stores it: only the others are read.

The matrix is packed once (pack_pruned.wgsl): for each output the columns and values of what is not zero, as many places
as the fullest one needs. Values stay what they are. It is taken where it is estimated to be faster than the dense
product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.ir.types import FLOAT32, UINT32, TensorType
from ort_gpu_ep.kernels.forms import Form
from ort_gpu_ep.kernels.records import ceil_div, record, restored_by
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Lowering, Strided, kernel
from ort_gpu_ep.kernels.target import Choice, Target

SHADER, PACKING, RESTORING = "pruned_matvec.wgsl", "pack_pruned.wgsl", "restore_pruned.wgsl"
MAX_VECTORS = 4
"""More are worth the tile of a dense product."""
MAX_DENSITY = 0.25
"""A value with its column takes 6 bytes instead of 4, and is read at a place that the data names."""
NOWHERE = 0xFFFF
"""Column of a place without a value: K is at most that."""
TEAMS = {32: 128, 8: 64, 1: 64}
"""Invocations of an output -> of a workgroup."""
PACKING_SIZE = 64

record(
    PACKING,
    "movement",
    loop_bound=lambda k: 2 * ceil_div(k["K"], PACKING_SIZE) + k["K"] + k["WIDTH"] + 8,
    data_indices=True,
    inverse=restored_by(RESTORING, "columns", "values"),
)
record(RESTORING, "movement", loop_bound=lambda k: k["WIDTH"].bit_length() + 1)
record(
    SHADER,
    "matvec",
    flops=lambda k: 2 * k["N"] * k["WIDTH"] * k["COLS"],
    loop_bound=lambda k: ceil_div(k["WIDTH"], 4 * k["TEAM"]) + k["TEAM"].bit_length(),
    data_indices=True,
)


@dataclass(frozen=True, slots=True)
class PrunedProduct:
    """y[c, n] = alpha * sum_k x[c, k] w[n, k] + beta * bias, where output n has `width` weights at most that are not
    zero.

    Strides: of x in vectors and k, of w (input 1) in outputs and k. bias: the place of an element of y in input 2.
    """

    vectors: int
    n: int
    k: int
    width: int
    x_strides: tuple[int, int]
    w_strides: tuple[int, int]
    bias: Strided | None
    alpha: float
    beta: float
    target: Target

    @property
    def nbytes(self) -> int:
        return self.n * self.width * 6

    @property
    def key(self) -> str:
        """What a choice is made for."""
        return f"pruned {self.vectors} x {self.n} x {self.k}, {self.width} of an output"


def of_matrices(
    node: BoundNode,
    vectors: int,
    n: int,
    k: int,
    x_strides: tuple[int, int],
    transposed: bool = False,
    bias: Strided | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> PrunedProduct | None:
    """The product of input 0 and the matrix in input 1, [k, n] (transposed: [n, k]); None where it has too few zeros or
    can't be packed."""
    w, limits = node.input(1), node.target.limits
    if (
        any(map(is_symbolic, (vectors, n, k)))
        or not 0 < vectors <= MAX_VECTORS
        or not 0 < k <= NOWHERE
        or not w.is_constant
        or w.rank != 2
    ):
        return None
    nonzeros = w.nonzeros
    if nonzeros is None or nonzeros.total > MAX_DENSITY * n * k or not node.input(0).dtype is w.dtype is FLOAT32:
        return None
    width = width_of(nonzeros.row if transposed else nonzeros.column)
    product = PrunedProduct(
        vectors, n, k, width, x_strides, (k, 1) if transposed else (1, n), bias, float(alpha), float(beta), node.target
    )
    packs = all(limits.allow(shader) for shader in (SHADER, PACKING, RESTORING))
    return product if packs and 2 * k + width + 8 <= limits.max_loop_iterations else None


def forms(product: PrunedProduct) -> dict[str, Form]:
    """By so many invocations for an output."""
    return {
        f"team {team}": Form(_estimate_ns(product, team), partial(_lowered, product, team))
        for team in TEAMS
        if team == max(TEAMS)
        or (team >= product.vectors and product.width // 4 // team <= product.target.limits.max_loop_iterations)
    }


def _estimate_ns(product: PrunedProduct, team: int) -> float:
    """Memory as fast as single elements are read, and a team's shares, four places at once, and halvings. Before, a
    column and what it names are waited for.
    """
    by = product.target.figures
    turns = max(1.0, product.n * team / (by.units * by.unit_lanes))
    clocks = by.sparse_entry_clocks * product.width / (4 * team) + by.sparse_halving_clocks * (team.bit_length() - 1)
    begun_ns = by.matvec_launch_ns + 2 * by.rows_wait_ns
    return float(begun_ns + product.nbytes / by.matvec_bytes_per_ns + turns * clocks / by.clocks_per_ns)


def _lowered(product: PrunedProduct, team: int, choice: Choice, out: TensorType) -> Lowering:
    """The packing, once, and the product."""
    workgroup_size, (columns, values) = TEAMS[team], places(product.n, product.width)
    packing = packed(product.n, product.k, product.width, product.w_strides)
    built = kernel(
        SHADER,
        [out],
        consts={
            "N": product.n,
            "K": product.k,
            "WIDTH": product.width,
            "COLS": product.vectors,
            "TEAM": team,
            "X_COL": product.x_strides[0],
            "X_K": product.x_strides[1],
            "Y_COL": product.n,
            "Y_ROW": 1,
            "ALPHA": product.alpha,
            "BETA": product.beta,
        },
        indices={"c_index": product.bias or Strided((1,), (0,))},
        groups=ceil_div(product.n, workgroup_size // team),
        workgroup_size=workgroup_size,
        workgroup_nbytes=4 * workgroup_size * product.vectors,
        choice=choice,
        vectors=["values"],
        reads={"columns": "columns", "values": "values", "x": 0, **({"c": 2} if product.bias else {})},
        writes={"y": 0},
    )
    return Lowering((out,), (packing, built), (columns, values))


def width_of(most: int) -> int:
    """Places of a row, where the fullest has so many values."""
    return max(4, ceil_div(most, 4) * 4)


def places(n: int, width: int) -> tuple[tuple[str, TensorType], tuple[str, TensorType]]:
    """What is packed: columns, two to a word, and values."""
    return ("columns", TensorType(UINT32, (n, width // 2))), ("values", TensorType(FLOAT32, (n, width)))


def packed(n: int, k: int, width: int, strides: tuple[int, int]) -> Kernel:
    """The kernel that packs the weights in input 1, with these strides of n and of k."""
    (_, columns), (_, values) = places(n, width)
    return kernel(
        PACKING,
        [columns, values],
        consts={"N": n, "K": k, "WIDTH": width, "W_N": strides[0], "W_K": strides[1]},
        groups=n,
        workgroup_size=PACKING_SIZE,
        workgroup_nbytes=4 * PACKING_SIZE,
        reads={"w": 1},
        writes={"columns": "columns", "values": "values"},
    )


def packed_nbytes(lowering: Lowering) -> tuple[int, int]:
    """Of the weight that a lowering packs into columns and values, and as it was dense; 0 for the latter where the
    model has entries."""
    packing = next((k for k in lowering.kernels if dict(k.writes or ()).keys() == {"columns", "values"}), None)
    if packing is None:
        return 0, 0
    sizes: Mapping[str, int] = {name: int(value) for name, value in packing.consts}
    return sum(t.nbytes for t in packing.outputs), 4 * sizes["N"] * sizes["K"] if packing.shader == PACKING else 0
