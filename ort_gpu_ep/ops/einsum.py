"""Einsum: of one or two operands a reading in another order, a batched matrix product where the strides allow it, else
an output element an invocation; of more, two at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_letters

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, FLOAT64, Shape, TensorType
from ort_gpu_ep.kernels.forms import lower
from ort_gpu_ep.kernels.problems import normal, problem
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Lowering, Strided, View, kernel, op
from ort_gpu_ep.ops import contraction, matrix_units
from ort_gpu_ep.ops.composed import Composed, Part
from ort_gpu_ep.ops.contraction import Matrix, Product
from ort_gpu_ep.ops.movement import moved
from ort_gpu_ep.shaders.indices import merged

ELLIPSIS = "0123456789"
"""Labels that stand for the dimensions of `...`, which broadcast; the last one is the innermost."""

record(
    "einsum.wgsl",
    "direct",
    loop_bound=lambda k: k["K"] // 4 + 3,
    flops=lambda k: 2 * k.size("y") * k["K"],
    problems=[
        problem("Einsum", 12, normal(5, 5, 7), equation="iij->j"),
        problem("Einsum", 12, normal(5, 5, 7), normal(13, 11), equation="iij,kl->kj"),
    ],
)


@dataclass(frozen=True)
class Terms:
    """An equation over concrete shapes. inputs, output: labels of each dimension. sizes: of each label."""

    inputs: tuple[str, ...]
    output: str
    shapes: tuple[Shape, ...]
    sizes: dict[str, int]

    @property
    def summed(self) -> str:
        return "".join(label for label in self.sizes if label not in self.output)

    def strides(self, operand: int, labels: str) -> tuple[int, ...]:
        """How far a step along each label moves in an operand: 0 where it broadcasts or lacks it, the sum along a
        diagonal."""
        steps, step = dict.fromkeys(labels, 0), 1
        for label, size in zip(reversed(self.inputs[operand]), reversed(self.shapes[operand]), strict=True):
            if label in steps and size > 1:
                steps[label] += step
            step *= size
        return tuple(steps.values())

    def strided(self, operand: int, labels: str) -> Strided:
        return Strided(tuple(self.sizes[label] for label in labels), self.strides(operand, labels))

    def size(self, labels: str) -> int:
        return math.prod(self.sizes[label] for label in labels)


@op("Einsum", dtypes={"T": (FLOAT32, FLOAT16, FLOAT64)}, bindings="a b? c? more... -> y", epilogue=True)
def einsum(node: BoundNode) -> Kernel | View | Lowering:
    """y = the sum over all labels that the output lacks of the product of the operands.

    a, b, ...: one dimension a label. Repeated labels take the diagonal; `...` broadcasts.
    """
    if len(node.inputs) > 2:
        return _by_pairs(node)
    terms = parse(node.attr("equation"), [o.shape for o in node.given()])
    out = TensorType(node.input(0).dtype, tuple(terms.sizes[label] for label in terms.output))
    if len(terms.inputs) == 1 and not terms.summed:
        return moved(node, out.shape, terms.strided(0, terms.output))
    product = as_product(terms) if len(terms.inputs) == 2 and out.dtype is not FLOAT64 else None
    if product is not None:
        product = replace(product, target=node.target)
        units = matrix_units.forms(matrix_units.of_product(node, replace(product, fours=True)))
        return lower(node.target, product.key, contraction.forms(product) | units, out)
    nothing = Strided((), ())
    indices = {"b_out": nothing, "b_sum": nothing}
    for k, name in enumerate("ab"[: len(terms.inputs)]):
        indices[f"{name}_out"], indices[f"{name}_sum"] = terms.strided(k, terms.output), terms.strided(k, terms.summed)
    return kernel("einsum.wgsl", [out], consts={"K": terms.size(terms.summed)}, indices=indices)


def _by_pairs(node: BoundNode) -> Lowering:
    """Of three operands and more: always the two whose product is the smallest, over the labels that are needed further
    on."""
    terms, composed = parse(node.attr("equation"), [o.shape for o in node.given()]), Composed(node)
    half = node.input(0).dtype is FLOAT16
    if len(terms.sizes) > len(ascii_letters):
        raise UnsupportedNodeError(
            Code.RANK, f"Einsum {node.attr('equation')} over {len(terms.sizes)} labels; taken: {len(ascii_letters)}"
        )
    if half and node.has_steps:  # the last kernel is a step itself
        raise UnsupportedNodeError(
            Code.DTYPE, f"Einsum of {len(node.inputs)} operands in float16, with steps behind it"
        )
    letters = dict(zip(terms.sizes, ascii_letters, strict=False))
    parts = [composed.given(i) for i in range(len(node.inputs))]
    if half:  # what is between two products would be rounded, or beyond float16
        parts = [composed.add_all("Cast", (part,), (None,), attributes={"to": FLOAT32.onnx})[0] for part in parts]
    left = list(zip(terms.inputs, parts, strict=True))
    while len(left) > 2:
        pairs = {(i, j): _kept(terms, left, i, j) for j in range(len(left)) for i in range(j)}
        i, j = min(pairs, key=lambda pair: hint(terms.size(pairs[pair])))
        equation = _written(letters, (left[i][0], left[j][0]), pairs[i, j])
        product = composed.add("Einsum", left[i][1], left[j][1], version=12, equation=equation)
        left = [one for k, one in enumerate(left) if k not in (i, j)] + [(pairs[i, j], product)]
    equation = _written(letters, [labels for labels, _ in left], terms.output)
    if half:
        product = composed.add("Einsum", *(part for _, part in left), version=12, equation=equation)
        composed.add_all("Cast", (product,), (0,), attributes={"to": FLOAT16.onnx})
    else:
        composed.add("Einsum", *(part for _, part in left), version=12, to=0, equation=equation)
    return composed.lowering()


def _kept(terms: Terms, left: Sequence[tuple[str, Part]], i: int, j: int) -> str:
    """The labels of the product of two operands: those that the output or another operand has."""
    needed = set(terms.output).union(*(labels for k, (labels, _) in enumerate(left) if k not in (i, j)))
    return "".join(label for label in dict.fromkeys(left[i][0] + left[j][0]) if label in needed)


def _written(letters: Mapping[str, str], inputs: Sequence[str], output: str) -> str:
    """An equation in letters alone: what `...` stands for has one each."""
    return (
        ",".join("".join(letters[c] for c in labels) for labels in inputs) + "->" + "".join(letters[c] for c in output)
    )


def parse(equation: str, shapes: Sequence[Shape]) -> Terms:
    """The labels of an equation, the output's derived where it is left out. Raises UnsupportedNodeError on what does
    not fit."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    operands = left.split(",")
    if len(operands) != len(shapes) or not all(
        re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", part) for part in (*operands, right)
    ):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Einsum {equation} of {len(shapes)} operand(s) is malformed")
    extra = [len(s) - len(t.replace("...", "")) if "..." in t else 0 for t, s in zip(operands, shapes, strict=True)]
    if min(extra) < 0 or max(extra) > len(ELLIPSIS):
        raise UnsupportedNodeError(Code.RANK, f"Einsum {equation} of shapes {[list(s) for s in shapes]}")
    inputs = tuple(t.replace("...", ELLIPSIS[len(ELLIPSIS) - e :]) for t, e in zip(operands, extra, strict=True))
    common = ELLIPSIS[len(ELLIPSIS) - max(extra) :]
    letters = left.replace(",", "").replace("...", "")
    once = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    output = right.replace("...", common) if arrow else common + once
    sizes = _sizes(equation, inputs, shapes)
    if len(set(output)) != len(output) or not set(output) <= set(sizes):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Einsum {equation}: output labels repeat or are in no operand")
    return Terms(inputs, output, tuple(shapes), sizes)


def _sizes(equation: str, inputs: Sequence[str], shapes: Sequence[Shape]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for labels, shape in zip(inputs, shapes, strict=True):
        if len(labels) != len(shape):
            raise UnsupportedNodeError(Code.RANK, f"Einsum {equation} of shapes {[list(s) for s in shapes]}")
        for label, size in zip(labels, shape, strict=True):
            if sizes.get(label, 1) != 1 and size not in (1, sizes[label]):
                raise UnsupportedNodeError(
                    Code.RANK, f"Einsum {equation} of shapes {[list(s) for s in shapes]}: sizes of {label} differ"
                )
            sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]
    return sizes


def as_product(terms: Terms) -> Product | None:
    """The equation as y[batch, m, n] = sum a[batch, m, k] b[batch, k, n], where its output has that order and m, n, k
    have one stride."""
    a, b = (set(labels) for labels in terms.inputs)
    batch = "".join(c for c in terms.output if c in a and c in b)
    for first, second in ((0, 1), (1, 0)):
        own, other = (a, b) if first == 0 else (b, a)
        m = "".join(c for c in terms.output if c in own and c not in other)
        n = "".join(c for c in terms.output if c in other and c not in own)
        steps = [
            _one_stride(terms, *group)
            for group in ((first, m), (first, terms.summed), (second, n), (second, terms.summed))
        ]
        if terms.output == batch + m + n and 0 not in terms.sizes.values() and None not in steps:
            outer, k, column, row = (0 if s is None else s for s in steps)
            return Product(
                terms.size(batch),
                terms.size(m),
                terms.size(n),
                terms.size(terms.summed),
                Matrix(first, terms.strided(first, batch), outer, k),
                Matrix(second, terms.strided(second, batch), column, row),
            )
    return None


def _one_stride(terms: Terms, operand: int, labels: str) -> int | None:
    """The stride of a group of labels that advance as one; None where they don't."""
    shape, strides = merged(tuple(terms.sizes[label] for label in labels), terms.strides(operand, labels))
    if not shape:
        return 1
    return strides[0] if len(shape) == 1 else None
