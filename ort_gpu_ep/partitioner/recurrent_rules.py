"""Rules for recurrent layers on top of each other: one dispatch runs them all, each a step behind the one below."""

from __future__ import annotations

from inspect import Parameter, Signature

import numpy as np

from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.kernels.lowering import Facts
from ort_gpu_ep.ops.recurrent_held import PER_LAYER
from ort_gpu_ep.partitioner.fusions import Built, fusion
from ort_gpu_ep.partitioner.patterns import Call, Match

DEPTHS = (4, 3, 2)
"""Layers of a stack, the most first."""


class _Stack:
    """The pattern of a stack: layer, Squeeze of its directions, the next layer, ..."""

    def __init__(self, op: str, depth: int) -> None:
        self.op, self.depth = op, depth
        names = ("op", "x", *(f"{name}{k}" for k in range(depth) for name in "wrb"), "axes")
        self.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])

    def __call__(self, op, x, *values):  # type: ignore[no-untyped-def]
        *weights, axes = values
        y: Call = getattr(op, self.op)(x, *weights[:3])
        for k in range(1, self.depth):
            y = getattr(op, self.op)(op.Squeeze(y, axes), *weights[3 * k : 3 * k + 3])
        return y


def _stacked(found: Match, facts: Facts) -> Built | str:
    """Layers of one direction, each over the whole output of the one below."""
    axes = found.constant("axes")
    if axes is None or axes.reshape(-1).tolist() != [1]:
        return f"Squeeze of axes {axes}, expected the directions, axis 1"
    layers = [node for node in reversed(found.nodes) if node.op != "Squeeze"]
    for node in layers:
        if node.attributes.get("direction", "forward") not in ("forward", b"forward") or node.attributes.get("layout"):
            return f"{node.label} is not a forward layer of layout 0"
        if any(node.inputs[4:5]) or any(node.inputs[7:]):
            return f"{node.label} has sequence_lens or peepholes"
        if _form(node) != _form(layers[0]):
            return f"{node.label} has other attributes than {layers[0].label}"
    inputs = [found.values["x"]]
    for node in layers:
        inputs += [*node.inputs[1:4], *(node.inputs[k] if k < len(node.inputs) else "" for k in (5, 6))]
    assert len(inputs) == 1 + PER_LAYER * len(layers)
    attributes = {**layers[0].attributes, "cell": layers[0].op, "direction": "forward"}
    return Built(Node("RecurrentStack", tuple(inputs), (), layers[-1].name, "ort_gpu_ep", 1, attributes))


def _form(node: Node) -> object:
    """What layers of a stack have in common."""
    return {k: np.asarray(v).tolist() for k, v in node.attributes.items() if k not in ("direction", "layout")}


for _op in ("LSTM", "GRU"):
    for _depth in DEPTHS:
        fusion(f"{_depth} x {_op}", _Stack(_op, _depth))(_stacked)
