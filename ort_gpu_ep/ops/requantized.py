"""What makes bytes of the sums of an integer product: zero points, scales and ranges of QLinearConv, QLinearMatMul and
QGemm.

Inputs of each: x, its scale and zero point, w, its scale and zero point, y's scale and zero point, and a bias; of QGemm
the bias is in front of y's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ort_gpu_ep.ir.types import INT8, UINT8, UINT32, DType, TensorType
from ort_gpu_ep.kernels.problems import Known, Problem, integers, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, kernel

X, X_SCALE, X_ZERO, W, W_SCALE, W_ZERO = range(6)
"""Positions of the inputs."""


class Ends(NamedTuple):
    """Those of what follows them."""

    y_scale: int
    y_zero: int
    bias: int


def ends(node: BoundNode) -> Ends:
    return Ends(7, 8, 6) if node.op == "QGemm" else Ends(6, 7, 8)


def probed(columns: int) -> Problem:
    """Its scales let no sum lie in the middle between two bytes, where either is right."""
    return problem(
        "QLinearMatMul",
        21,
        integers(0, 255, 17, 33, dtype="uint8"),
        Known(0.02, "float32"),
        Known(113, "uint8"),
        integers(0, 255, 33, columns, dtype="uint8"),
        Known(0.03, "float32"),
        Known(120, "uint8"),
        Known(0.493, "float32"),
        Known(118, "uint8"),
        tolerance=0.005,
    )


record("quantized_outputs.wgsl", "elementwise", loop_bound=lambda k: k["K"], problems=[probed(20)])


@dataclass(frozen=True, slots=True)
class Folded:
    """Weights whose sums are folded into the bias. k: how many an output has. output, along: strides between outputs,
    and along k."""

    k: int
    output: int
    along: int


def shift(dtype: DType) -> int:
    """What is taken off unsigned bytes, so that they are signed ones."""
    return 128 if dtype is UINT8 else 0


def zero_counts(node: BoundNode, source: int, zp: int | None) -> bool:
    """Whether a zero point of the shifted elements may differ from 0."""
    zero = node.optional(zp) if zp is not None else None
    its = shift(node.input(source).dtype)
    if zero is None:
        return its != 0
    return zero.value is None or any(int(v) != its for v in zero.value.reshape(-1))


def range_of(dtype: DType) -> dict[str, Const]:
    low = -128.0 if dtype is INT8 else 0.0
    return {"LOW": low, "HIGH": low + 255.0}


def alpha_of(node: BoundNode) -> float:
    """What the sums are multiplied by besides the scales."""
    return float(node.attr("alpha")) if node.op == "QGemm" else 1.0


def numbers(node: BoundNode, outputs: int, folded: Folded | None = None) -> Kernel:
    """The kernel that writes them to the temporary `numbers`; x has one scale. outputs: filters, or columns."""
    last = ends(node)
    reads = [
        ("a_scale", X_SCALE),
        ("b_scale", W_SCALE),
        ("y_scale", last.y_scale),
        ("y_zp", last.y_zero),
        ("c", last.bias),
    ]
    consts: dict[str, Const] = {
        "ALPHA": alpha_of(node),
        "OUTPUTS": outputs,
        "K": 0,
        "B_STRIDE": int(node.input(W_SCALE).size != 1),
    }
    if folded is not None:
        reads += [("w", W), ("x_zp", X_ZERO)]
        consts |= {
            "K": folded.k,
            "W_M": folded.output,
            "W_K": folded.along,
            "X_ZP": node.has(X_ZERO),
            "X_SHIFT": shift(node.input(X).dtype),
            "W_SHIFT": shift(node.input(W).dtype),
        }
    return kernel(
        "quantized_outputs.wgsl",
        [TensorType(UINT32, (2 * outputs + (1 if folded is None else 4),))],
        consts=consts,
        reads={name: i for name, i in reads if node.has(i)},
        writes={"y": "numbers"},
    )


def are_constant(node: BoundNode) -> bool:
    """Whether what `numbers` reads is held by the model."""
    read = (X_SCALE, W_SCALE, *ends(node), X_ZERO, W, W_ZERO)
    return all(node.input(i).is_constant for i in read if node.has(i))
