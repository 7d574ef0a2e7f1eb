"""Rules for attention as exporters write it: products, scale, mask, softmax, and the transpositions of heads around them."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, Signature

import numpy as np

from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.ir.types import FLOATS, names
from ort_gpu_ep.kernels.lowering import Facts
from ort_gpu_ep.partitioner.fusions import Built, fusion
from ort_gpu_ep.partitioner.patterns import Call, Match


class _Attention:
    """The pattern: softmax(x keys^T [/ or * scale] [+ mask]) values, perhaps with the heads transposed behind it."""

    def __init__(self, scaled: str, masked: bool, transposed: bool) -> None:
        self.scaled, self.masked, self.transposed = scaled, masked, transposed
        names = ["op", "x", "keys", "values", *(["scale"] if scaled else []), *(["mask"] if masked else [])]
        self.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])

    def __call__(self, op, x, keys, values, *rest) -> Call:  # type: ignore[no-untyped-def]
        given = list(rest)
        scores = op.MatMul(x, op.Transpose(keys))
        if self.scaled:
            scores = getattr(op, self.scaled)(scores, given.pop(0))
        if self.masked:
            scores = op.Add(scores, given.pop(0))
        y: Call = op.MatMul(op.Softmax(scores), values)
        return op.Transpose(y, perm=(0, 2, 1, 3)) if self.transposed else y

    @property
    def name(self) -> str:
        parts = ("attention", {"": "", "Mul": "scaled", "Div": "divided"}[self.scaled], "masked" if self.masked else "",
                 "transposed" if self.transposed else "")
        return ", ".join(part for part in parts if part)


def _attention(found: Match, facts: Facts) -> Built | str:
    """One node of q, k and v as they are before their heads are transposed."""
    types = {v: facts.types.get(found.values[v]) for v in ("x", "keys", "values")}
    if any(t is None or t.dtype not in FLOATS or t.rank not in (3, 4) for t in types.values()):
        return f"{types}, expected {names(FLOATS)} of rank 3 or 4"
    rank = types["x"].rank      # type: ignore[union-attr]
    if any(t.rank != rank for t in types.values()):     # type: ignore[union-attr]
        return f"{types}, expected one rank"
    softmax = found.node("Softmax")
    axis = softmax.attributes.get("axis", -1 if softmax.version >= 13 else 1)
    if axis not in (-1, rank - 1):
        return f"Softmax along axis {axis}, expected the last"
    scale = found.constant("scale") if "scale" in found.values else np.ones(1, np.float32)
    if scale is None or scale.size != 1 or not np.isfinite(scale).all() or not scale.all():
        return "the scale is not a constant number"
    divided = any(n.op == "Div" for n in found.nodes)
    factor = 1.0 / float(scale.reshape(-1)[0]) if divided else float(scale.reshape(-1)[0])
    attributes: dict[str, object] = {"scale": factor, "y_perm": tuple(range(rank))}
    if found.nodes[0].op == "Transpose":
        attributes["y_perm"] = (0, 2, 1, 3)
    inputs, plain = list[str](), tuple(range(rank))
    transposed = [n for n in found.nodes if n.op == "MatMul"][-1].inputs[1]
    for value, name in ((found.values["x"], "q"), (transposed, "k"), (found.values["values"], "v")):
        order = (*plain[:-2], rank - 1, rank - 2) if name == "k" else plain
        value, attributes[f"{name}_perm"] = _source(found, value, order)
        inputs.append(value)
    if "mask" in found.values:
        inputs.append(found.values["mask"])
    return Built(Node("Attention", tuple(inputs), (), softmax.name, "ort_gpu_ep", 1, attributes))   # type: ignore[arg-type]


def _source(found: Match, value: str, order: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """What the value is a transposition of, if elements lie together there, and the permutation that leads from there to `order` of it.

    Transpositions that nothing else reads become part of the match.
    """
    producers, consumers = found.graph.producers(), found.graph.consumers()
    perm, passed, best = tuple(order), list[Node](), 0
    names, perms = [value], [perm]
    while (node := producers.get(names[-1])) is not None and node.op == "Transpose" and not node.domain and not node.epilogue:
        given = node.attributes.get("perm")
        own = tuple(int(p) for p in given) if given else tuple(range(len(perm) - 1, -1, -1))     # type: ignore[union-attr]
        perm = tuple(own[axis] for axis in perm)
        passed.append(node)
        names.append(node.inputs[0])
        perms.append(perm)
    last = len(perm) - 1
    best = max((k for k, p in enumerate(perms) if p[-1] == last), default=0)
    inside = {id(n) for n in found.nodes}
    for node in passed[:best]:
        output = node.outputs[0]
        if output in found.graph.outputs or any(id(c) not in inside for c in consumers.get(output, ())):
            break
        if id(node) not in inside:
            found.nodes.append(node)
            inside.add(id(node))
    return names[best], perms[best]


for _transposed in (True, False):
    for _masked in (True, False):
        for _scaled in ("Mul", "Div", ""):
            _rule = _Attention(_scaled, _masked, _transposed)
            fusion(_rule.name, _rule)(_attention)
