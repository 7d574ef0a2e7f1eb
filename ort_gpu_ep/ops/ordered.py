"""Ops along an axis whose elements depend on an order: running sums and products, and the largest elements."""

from __future__ import annotations

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import at_most, hint, is_symbolic, lesser
from ort_gpu_ep.ir.types import ANY, BOOL, FLOAT64, INT64, NUMBERS, UINT32, UINT64, DType, TensorType
from ort_gpu_ep.kernels.problems import Known, integers, normal, problem
from ort_gpu_ep.kernels.records import KernelCall, ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Lowering, Strided, kernel, op
from ort_gpu_ep.ops.axes import around, axis_of, number_of, replaced, vector_of
from ort_gpu_ep.ops.indexing import tuple_consts

MAX_WORKGROUP_SIZE = 256
SUMMED = (*NUMBERS, FLOAT64, UINT32, UINT64)

RUN = 1024
"""Elements that a workgroup of topk_sort.wgsl sorts: a 64-bit key and an index each, 12 of WebGPU's 16 KiB of workgroup
memory."""

RUNS = (4, 16, 64, 256, RUN)
"""What a run is taken for where the length of a line is a size of the run: a plan holds for those that the same one
fits best. One of more elements than the line has costs as much as a line of its length.
"""

_FLOATING, _SIGNED, _UNSIGNED = range(3)


def _sort_loops(k: KernelCall) -> int:
    """Every pair of strides of a bitonic sort goes over half of the run."""
    stages = k["RUN"].bit_length()
    return stages * (2 + stages * (2 + k["RUN"] // (2 * k.workgroup_size))) + 2 * (1 + k["RUN"] // k.workgroup_size)


record(
    "cumulative.wgsl",
    "reduction",
    pairs=True,
    loop_bound=lambda k: ceil_div(k["N"], k.workgroup_size) * (1 + k.workgroup_size.bit_length()),
    steps=lambda k: max(ceil_div(k["N"], k.workgroup_size), 1),
    problems=[
        *(
            problem("CumSum", 14, normal(3, n), Known(1), reverse=reverse)
            for n in (1, 63, 257, 1030)
            for reverse in (0, 1)
        ),
        problem("CumProd", 26, integers(-9, 10, 3, 301, dtype="int32"), Known(1)),
    ],
)
record("topk_keys.wgsl", "elementwise")
record("topk_sort.wgsl", "sorting", loop_bound=_sort_loops)
# a binary search over 32-bit positions
record("topk_merge.wgsl", "sorting", data_indices=True, loop_bound=lambda k: 32)
record("topk_indices.wgsl", "movement")


def _power_of_two(n: int) -> int:
    """The smallest one that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


@op("CumProd", dtypes={"T": SUMMED}, bindings="x _axis -> y", epilogue=True)
@op("CumSum", since=11, dtypes={"T": SUMMED}, bindings="x _axis -> y", epilogue=True)
def cumulative(node: BoundNode) -> Kernel:
    """y[j] = the sum (CumProd: product) of x[k <= j] along the axis (`exclusive`: k < j; `reverse`: from the end), a
    workgroup a line."""
    x = node.input(0)
    outer, n, inner = around(x.shape, axis_of(node, number_of(node, 1), x.rank))
    workgroup_size = min(MAX_WORKGROUP_SIZE, max(32, _power_of_two(hint(n))))
    return kernel(
        "cumulative.wgsl",
        [x.type],
        groups=outer * inner,
        workgroup_size=workgroup_size,
        workgroup_nbytes=workgroup_size * max(4, x.dtype.nbytes),
        consts={
            "N": n,
            "INNER": inner,
            "EXCLUSIVE": bool(node.attr("exclusive")),
            "REVERSE": bool(node.attr("reverse")),
            "PRODUCT": node.op == "CumProd",
        },
    )


@op("TopK", dtypes={"T": tuple(t for t in ANY if t is not BOOL)}, bindings="x _k? -> values indices")
def top_k(node: BoundNode) -> Lowering:
    """values, indices = the k largest (or smallest) along `axis`, in order; of equal ones the lower index comes first.

    Workgroups sort runs of each line; pairs of runs are merged, never keeping more than k, until one run is left.
    """
    x = node.input(0)
    count = vector_of(node, node.input(1)) if node.has(1) else (int(node.attr("k")),)
    if len(count) != 1:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"TopK of {x.type} with k {count}; taken: one number")
    k = count[0]
    axis = axis_of(node, int(node.attr("axis")), x.rank)
    outer, n, inner = around(x.shape, axis)
    if not 0 <= k <= n:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"TopK of {x.type} along axis {axis} with k {k}")
    shape = replaced(x.shape, axis, k)
    values, indices = TensorType(x.dtype, shape), TensorType(INT64, shape)
    kernels, temps = _ordered(node, (outer, n, inner), k)
    rows, last = (outer, k, inner), temps[-1][0]
    place = Strided(rows, (inner * k, 1, k))
    if node.wants(0):
        kernels.append(
            kernel(
                "gather.wgsl",
                [values],
                consts=tuple_consts(node, UINT32, (n,), (inner,)),
                indices={"base": Strided(rows, (n * inner, 0, 1)), "first": place},
                raw=True,
                reads={"x": 0, "indices": last},
                writes={"y": 0},
            )
        )
    if node.wants(1):
        kernels.append(
            kernel(
                "topk_indices.wgsl",
                [indices],
                indices={"place": place},
                raw=True,
                reads={"order": last},
                writes={"y": 1},
            )
        )
    return Lowering((values, indices), tuple(kernels), tuple(temps))


def _ordered(node: BoundNode, shape: tuple[int, int, int], k: int) -> tuple[list[Kernel], list[tuple[str, TensorType]]]:
    """Kernels that leave in the last temporary, for each line, the k indices in order."""
    outer, n, inner = shape
    run, lines = (
        next((r for r in RUNS if at_most(n) <= r), RUN) if is_symbolic(n) else min(RUN, _power_of_two(n)),
        outer * inner,
    )
    runs, length = -(-n // run), lesser(k, run)
    keys, order = TensorType(UINT64, (lines, n)), TensorType(UINT32, (lines, runs, length))
    temps = [("keys", keys), ("order0", order)]
    largest = node.attr("largest") in (1, None)  # before opset 11 there are no others
    kernels = [
        kernel(
            "topk_keys.wgsl",
            [keys],
            indices={"place": Strided((outer, inner, n), (n * inner, 1, inner))},
            raw=True,
            consts={"LARGEST": largest, **_key_consts(node.input(0).dtype)},
            reads={"x": 0},
            writes={"keys": "keys"},
        ),
        kernel(
            "topk_sort.wgsl",
            [order],
            consts={"N": n, "RUN": run, "RUNS": runs, "KEEP": length},
            groups=lines * runs,
            workgroup_size=min(MAX_WORKGROUP_SIZE, run),
            workgroup_nbytes=12 * run,
            raw=True,
            reads={"keys": "keys"},
            writes={"order": "order0"},
        ),
    ]
    while at_most(runs) > 1:
        keep, source, name = lesser(k, 2 * length), temps[-1][0], f"order{len(temps) - 1}"
        order = TensorType(UINT32, (lines, -(-runs // 2), keep))
        kernels.append(
            kernel(
                "topk_merge.wgsl",
                [order],
                consts={"N": n, "RUNS": runs, "LENGTH": length, "KEEP": keep},
                raw=True,
                reads={"keys": "keys", "order": source},
                writes={"merged": name},
            )
        )
        temps.append((name, order))
        runs, length = order.shape[1], keep
    return kernels, temps


def _key_consts(dtype: DType) -> dict[str, int | bool]:
    """How topk_keys.wgsl reads an element's bits as a number to compare."""
    kind = _FLOATING if "float" in dtype.name else _UNSIGNED if dtype.name.startswith("u") else _SIGNED
    return {"KIND": kind, "WIDE": dtype.nbytes == 8, "SHIFT": max(0, 32 - 8 * dtype.nbytes)}
