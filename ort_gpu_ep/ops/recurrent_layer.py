"""Code that the kernels of recurrent layers share: the cell, its dimensions, the layout of outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import Shape, TensorType
from ort_gpu_ep.kernels.problems import Problem, Random, normal, problem
from ort_gpu_ep.kernels.registry import BoundNode, Const


@dataclass(frozen=True)
class Cell:
    """What differs between the ops. activations: defaults of one direction."""

    code: int
    gates: int
    activations: tuple[str, ...]


@dataclass(frozen=True)
class Sizes:
    """Dimensions of a layer."""

    steps: int
    batch: int
    inputs: int
    directions: int
    hidden: int
    gates: int


RNN = Cell(0, 1, ("Tanh",))
GRU = Cell(1, 3, ("Sigmoid", "Tanh"))
LSTM = Cell(2, 4, ("Sigmoid", "Tanh", "Tanh"))
CELLS: Mapping[str, Cell] = {"LSTM": LSTM, "GRU": GRU, "RNN": RNN}


def problem_of(op: str, hidden: int, *forms: str, **attributes: Any) -> Problem:
    """Five steps of three numbers for a batch of two."""
    gates = CELLS[op].gates * hidden
    w, r = normal(1, gates, 3), Random((1, gates, hidden), scale=1 / hidden)
    return problem(
        op,
        14,
        normal(5, 2, 3),
        w,
        r,
        normal(1, 2 * gates),
        outputs=2,
        tolerance=1e-4,
        forms=forms,
        hidden_size=hidden,
        **attributes,
    )


ROUNDED = "rounded"
"""An attribute of an LSTM that is part of a DynamicQuantizeLSTM: in each step the old state is rounded."""


def sizes_of(node: BoundNode, cell: Cell) -> Sizes:
    """The layer's dimensions. Raises UnsupportedNodeError where a dimension is 0, or inputs have others."""
    x, w, r = (node.input(i).shape for i in range(3))
    if node.attr("direction") not in ("forward", "reverse", "bidirectional"):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} {node.attr('direction')!r}; taken: forward, reverse, bidirectional"
        )
    if len(x) != 3 or len(w) != 3 or len(r) != 3:
        raise UnsupportedNodeError(
            Code.RANK, f"{node.op} of x {list(x)}, W {list(w)}, R {list(r)}; each has three dimensions"
        )
    batch, steps = (x[0], x[1]) if node.attr("layout") else (x[1], x[0])
    sizes = Sizes(steps, batch, x[2], int(r[0]), int(r[2]), cell.gates)  # the shader has arrays of the hidden size
    if 0 in (steps, batch, x[2], sizes.hidden):
        raise UnsupportedNodeError(Code.LIMIT, f"{node.op} of an empty tensor: {sizes}")
    if node.attr("hidden_size") != sizes.hidden:  # ONNX lets it be left out, onnxruntime's CPU does not
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} with hidden_size {node.attr('hidden_size')} and R {list(r)}"
        )
    if (
        w != (r[0], cell.gates * sizes.hidden, x[2])
        or r[1] != cell.gates * r[2]
        or r[0] != 1 + (node.attr("direction") == "bidirectional")
    ):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} {node.attr('direction')} of W {list(w)} and R {list(r)} with {x[2]} inputs"
        )
    check_given(node, {3: (r[0], 2 * cell.gates * r[2])})
    if node.node.domain == "":
        state = output_types(node, sizes)[1].shape
        check_given(node, {4: (batch,), 5: state, 6: state, 7: (r[0], 3 * r[2])})
    return sizes


def check_given(node: BoundNode, given: Mapping[int, Shape]) -> None:
    """Raises UnsupportedNodeError where an optional input, by position, has another shape than this."""
    for position, shape in given.items():
        if node.has(position) and node.input(position).shape != shape:
            raise UnsupportedNodeError(
                Code.ATTRIBUTE, f"{node.op} with {node.input(position).type} as input {position}, not {list(shape)}"
            )


def output_types(node: BoundNode, sizes: Sizes) -> tuple[TensorType, TensorType, TensorType]:
    """Y, Y_h, Y_c."""
    d, t, b, h = sizes.directions, sizes.steps, sizes.batch, sizes.hidden
    dtype = node.input(0).dtype
    state = TensorType(dtype, (b, d, h) if node.attr("layout") else (d, b, h))
    return TensorType(dtype, (b, t, d, h) if node.attr("layout") else (t, d, b, h)), state, state


def strides_of(node: BoundNode, sizes: Sizes) -> dict[str, Const]:
    """Strides of x in rows, of Y and of the states in elements."""
    d, t, b, h = sizes.directions, sizes.steps, sizes.batch, sizes.hidden
    if node.attr("layout"):
        return {"ROW_T": 1, "ROW_B": t, "Y_T": d * h, "Y_D": h, "Y_B": t * d * h, "STATE_D": h, "STATE_B": d * h}
    return {"ROW_T": b, "ROW_B": 1, "Y_T": d * b * h, "Y_D": b * h, "Y_B": h, "STATE_D": b * h, "STATE_B": h}
