"""Det: determinants of square matrices."""

from __future__ import annotations

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import FLOAT64, FLOATS, TensorType, summed
from ort_gpu_ep.kernels.problems import normal, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Lowering, kernel, op

record(
    "determinant.wgsl",
    "direct",
    loop_bound=lambda k: k["M"] * (k["M"] + 2) * (k["M"] + 2),
    flops=lambda k: k.size("y") * k["M"] * k["M"] * k["M"],
    problems=[problem("Det", 22, normal(5, 7, 7), tolerance=1e-4)],
)


@op("Det", since=11, dtypes={"T": (*FLOATS, FLOAT64)}, bindings="x -> y")
def det(node: BoundNode) -> Kernel | Lowering:
    """y = the determinant of each matrix, by elimination with the largest pivot of a column. x: [..., M, M]; y:
    [...]."""
    x = node.input(0)
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise UnsupportedNodeError(Code.RANK, f"Det of {x.type}; taken: [..., M, M]")
    out, rest = TensorType(x.dtype, x.shape[:-2]), TensorType(summed(x.dtype), x.shape)
    lowering = kernel(
        "determinant.wgsl", [out, rest], consts={"M": x.shape[-1]}, reads={"x": 0}, writes={"y": 0, "rest": "rest"}
    )
    return Lowering((out,), (lowering,), temps=(("rest", rest),))
