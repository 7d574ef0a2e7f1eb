"""Elementwise ops of any number of inputs (Sum, Mean, Max, Min), and Clip with its optional bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ort_gpu_ep.ir.graph import Step
from ort_gpu_ep.ir.types import FLOATS, INT64, DType, Shape, TensorType, summed
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Lowering, View, broadcast, kernel, op
from ort_gpu_ep.ops import channels_last
from ort_gpu_ep.ops.elementwise import (
    NUMERIC,
    REAL,
    Expression,
    by_type,
    common_shape,
    constant,
    elementwise,
    in_pairs,
    paired,
)

MAX_READS = 7
"""Inputs of one kernel: WebGPU guarantees 8 storage buffers, one is the output."""


def variadic(
    name: str, pair: Callable[[BoundNode], str], *, types: tuple[DType, ...], mean: bool = False, pairs: str = ""
) -> None:
    """Adds a row that folds its inputs from the left with `pair`, a formula over x and y. mean: then divides by their
    number.

    pairs: the formula for 64-bit integers that are pairs of words, as `elementwise` has it.
    """

    def build(node: BoundNode) -> Lowering | View:
        if len(node.inputs) == 1:
            return View(node.input(0).type)
        out = TensorType(node.input(0).dtype, common_shape(node, range(len(node.inputs))))
        text = str(paired(node, pairs)) if in_pairs(node) else pair(node)
        sources: list[int | str] = list(range(len(node.inputs)))
        temps: dict[str, TensorType] = {}
        kernels: list[Kernel] = []
        while len(sources) > MAX_READS:
            part = f"part{len(temps)}"
            taken, sources = sources[:MAX_READS], [part, *sources[MAX_READS:]]
            temps[part] = TensorType(summed(out.dtype), _common_shape(node, taken, temps))
            kernels.append(_fold(name, text, taken, temps[part], part))
        number = constant(len(node.inputs), out.dtype)
        last = "" if not mean else f"divide_f32(x, {number}).x" if out.dtype in FLOATS else f"x / {number}"
        kernels.append(_fold(name, text, sources, out, 0, last))
        return Lowering((out,), tuple(kernels), tuple(temps.items()))

    build.__doc__ = f"{pair.__doc__} over all inputs, from the left" + (", divided by their number." if mean else ".")
    op(name, dtypes={"T": types}, bindings="x... -> y", channels_last=channels_last.elementwise)(build)


def _common_shape(node: BoundNode, sources: list[int | str], temps: Mapping[str, TensorType]) -> Shape:
    shapes = [temps[s].shape if isinstance(s, str) else node.input(s).shape for s in sources]
    return broadcast(*shapes)


def _fold(name: str, pair: str, sources: list[int | str], out: TensorType, target: int | str, last: str = "") -> Kernel:
    """One kernel: e0 with e1, the result with e2, ..., then `last`."""
    steps = [Step(name, pair, (f"s{k - 1}" if k else "e0", f"e{k + 1}"), out.dtype) for k in range(len(sources) - 1)]
    if last:
        steps.append(Step(name, last, (f"s{len(steps) - 1}",), out.dtype))
    reads = {f"e{k}": source for k, source in enumerate(sources)}
    return kernel("elementwise.wgsl", [out], reads=reads, writes={"y": target}, epilogue=steps)


variadic("Sum", by_type("x + y", "x + y"), types=REAL)
variadic("Mean", by_type("x + y", "x + y"), types=REAL, mean=True)
variadic("Max", by_type("max_f32(x, y)", "max(x, y)"), types=NUMERIC, pairs="select(x, y, less_T(x, y))")
variadic("Min", by_type("min_f32(x, y)", "min(x, y)"), types=NUMERIC, pairs="select(x, y, less_T(y, x))")


def clip(node: BoundNode) -> Expression:
    """`min(max(x, low), high)`; a bound is an attribute before opset 11, then an optional input, in the text where the
    host knows it."""
    dtype, inputs, pairs = node.input(0).dtype, [0], in_pairs(node)
    bounds: list[str] = []
    for index, attribute in ((1, "min"), (2, "max")):
        operand = node.optional(index)
        if node.version < 11:
            value = node.attr(attribute)
            bounds.append("" if value is None else constant(value, dtype))
        elif operand is None:
            bounds.append("")
        elif operand.value is not None and operand.size == 1:
            bounds.append(constant(operand.value.reshape(-1)[0], dtype, pairs))
        else:
            bounds.append("xyz"[len(inputs)])
            inputs.append(index)
    low, high = bounds
    return Expression(_clipped(low, high, dtype, pairs), dtype, tuple(inputs))


def _clipped(low: str, high: str, dtype: DType, pairs: bool) -> str:
    if pairs:
        less = "less_signed_64" if dtype is INT64 else "less_64"
        raised = f"select(x, {low}, {less}(x, {low}))" if low else "x"
        return f"select({raised}, {high}, {less}({high}, {raised}))" if high else raised
    suffix = f"_{dtype.value}" if dtype in REAL else ""
    if low and high:
        return f"clamp{suffix}(x, {low}, {high})" if suffix else f"min(max(x, {low}), {high})"
    return f"max{suffix}(x, {low})" if low else f"min{suffix}(x, {high})" if high else "x"


elementwise("Clip", clip, types=NUMERIC, bindings="x low? high? -> y", keeps_shape=True, pairs=clip)
