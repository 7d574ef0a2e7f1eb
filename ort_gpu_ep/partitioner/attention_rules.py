"""Rules for attention as exporters write it: products, scale, mask, softmax, and the transpositions of heads around
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, Signature

import numpy as np

from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.ir.types import FLOATS, TensorType, names
from ort_gpu_ep.kernels.lowering import Facts
from ort_gpu_ep.partitioner.fusions import Built, fusion
from ort_gpu_ep.partitioner.patterns import Call, Match

HEADS_BEHIND = (0, 2, 1, 3)


class _Exported:
    """The pattern: softmax(x keys [/ or * scale] [+ mask]) values, where the keys are transposed already. guarded: NaN
    behind the softmax become 0. transposed: the heads are at the end.
    """

    def __init__(self, scaled: str, masked: bool, guarded: bool, transposed: bool) -> None:
        self.scaled, self.masked, self.guarded, self.transposed = scaled, masked, guarded, transposed
        self.__signature__ = _signature(
            "x", "keys", "values", *(["scale"] if scaled else []), *(["mask"] if masked else [])
        )

    def __call__(self, op, x, keys, values, *rest) -> Call:  # type: ignore[no-untyped-def]
        operands = list(rest)
        scores = op.MatMul(x, keys)
        if self.scaled:
            scores = getattr(op, self.scaled)(scores, operands.pop(0))
        if self.masked:
            scores = op.Add(scores, operands.pop(0))
        powers = op.Softmax(scores)
        if self.guarded:
            powers = op.Where(op.IsNaN(powers), 0.0, powers)
        y: Call = op.MatMul(powers, values)
        return op.Transpose(y, perm=HEADS_BEHIND) if self.transposed else y

    @property
    def name(self) -> str:
        parts = (
            "attention",
            {"": "", "Mul": "scaled", "Div": "divided"}[self.scaled],
            "masked" if self.masked else "",
            "guarded" if self.guarded else "",
            "transposed" if self.transposed else "",
        )
        return ", ".join(part for part in parts if part)


class _OfOnnx:
    """The pattern: ONNX's Attention, perhaps with the heads transposed behind it."""

    def __init__(self, masked: bool, transposed: bool) -> None:
        self.masked, self.transposed = masked, transposed
        self.__signature__ = _signature("x", "keys", "values", *(["mask"] if masked else []))

    def __call__(self, op, *inputs) -> Call:  # type: ignore[no-untyped-def]
        y: Call = op.Attention(*inputs)
        return op.Transpose(y, perm=HEADS_BEHIND) if self.transposed else y

    @property
    def name(self) -> str:
        return ", ".join(
            part
            for part in ("Attention", "masked" if self.masked else "", "transposed" if self.transposed else "")
            if part
        )


def _signature(*variables: str) -> Signature:
    return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("op", *variables)])


def _exported(found: Match, facts: Facts) -> Built | str:
    """One node of q, k and v as they are before their heads are transposed."""
    types = {v: facts.types.get(found.values[v]) for v in ("x", "keys", "values")}
    if any(t is None or t.dtype not in FLOATS or t.rank not in (3, 4) for t in types.values()):
        return f"{types}, expected {names(FLOATS)} of rank 3 or 4"
    rank = types["x"].rank  # type: ignore[union-attr]
    if any(t.rank != rank for t in types.values()):  # type: ignore[union-attr]
        return f"{types}, expected one rank"
    softmax = found.node("Softmax")
    axis = softmax.attributes.get("axis", -1 if softmax.version >= 13 else 1)
    if axis not in (-1, rank - 1):
        return f"Softmax along axis {axis}, expected the last"
    factor = _number(facts, found.values["scale"]) if "scale" in found.values else 1.0
    if factor is None:
        return "the scale is not a constant number"
    if any(n.op == "Div" for n in found.nodes):
        factor = 1.0 / factor
    return _built(found, facts, softmax.name, factor, empty=2 if any(n.op == "IsNaN" for n in found.nodes) else 0)


def _of_onnx(found: Match, facts: Facts) -> Built | str:
    """The same of ONNX's op, which reads and writes [batch, heads, position, element]."""
    node = found.node("Attention")
    types = [facts.types.get(name) for name in node.reads]
    operands = ("x", "keys", "values", *(["mask"] if "mask" in found.values else []))
    if tuple(name for name in node.inputs if name) != tuple(found.values[v] for v in operands) or len(node.writes) > 1:
        return "a cache, or a score as output"
    if any(t is None for t in types) or any(t.rank != 4 for t in types[:3]) or node.attributes.get("softcap"):  # type: ignore[union-attr]
        return f"{types}, expected rank 4, without softcap"
    if 0 in types[0].shape:  # type: ignore[union-attr]
        return "an empty tensor"
    if len(types) > 3 and types[3].shape[-1] != types[1].shape[2]:  # type: ignore[union-attr]
        return f"mask {types[3]} for keys {types[1]}"
    scale = node.attributes.get("scale")
    factor = int(types[0].shape[3]) ** -0.5 if scale is None else float(scale)  # type: ignore[union-attr, arg-type]
    built = _built(found, facts, node.name, factor, empty=1, causal=int(bool(node.attributes.get("is_causal"))))
    plain = (0, 1, 2, 3)
    if all(built.node.attributes[f"{name}_perm"] == plain for name in "qkvy"):
        return "nothing is transposed"
    return built


def _built(found: Match, facts: Facts, name: str, factor: float, **attributes: int) -> Built:
    """The node. What its inputs were made of becomes part of the match, where nothing else reads it."""
    rank = facts.types[found.values["x"]].rank
    plain = tuple(range(rank))
    turned = (*plain[:-2], rank - 1, rank - 2) if found.nodes[-1].op != "Attention" else plain
    q = _sources(found, facts, _Source(found.values["x"], plain), scaled=True, repeated=False)[-1]
    keys = _sources(found, facts, _Source(found.values["keys"], turned), scaled=True, repeated=True)
    values = _sources(found, facts, _Source(found.values["values"], plain), scaled=False, repeated=True)
    k, v = next(
        ((k, v) for k in reversed(keys) for v in reversed(values) if k.heads(facts) == v.heads(facts)),
        (keys[0], values[0]),
    )
    for source in (q, k, v):
        source.take(found)
    order = HEADS_BEHIND if found.nodes[0].op == "Transpose" else plain
    inputs = (q.name, k.name, v.name, *([found.values["mask"]] if "mask" in found.values else []))
    return Built(
        Node(
            "Attention",
            inputs,
            (),
            name,
            "ort_gpu_ep",
            1,
            {
                "scale": factor * q.factor * k.factor,
                "q_perm": q.perm,
                "k_perm": k.perm,
                "v_perm": v.perm,
                "y_perm": order,
                **attributes,
            },
        )
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """What a value is made of: `name`, transposed by `perm`, times `factor`, each head repeated as often as it takes.
    steps: nodes of each step from there to the value, the last first.
    """

    name: str
    perm: tuple[int, ...]
    factor: float = 1.0
    steps: tuple[tuple[Node, ...], ...] = ()

    def heads(self, facts: Facts) -> int:
        return facts.types[self.name].shape[self.perm[1]] if len(self.perm) == 4 else 1

    def take(self, found: Match) -> None:
        """Adds the nodes that nothing outside the match reads."""
        consumers, inside = found.graph.consumers(), {id(n) for n in found.nodes}
        for step in self.steps:
            inner, written = inside | {id(n) for n in step}, [name for node in step for name in node.writes]
            if any(
                name in found.graph.outputs or any(id(c) not in inner for c in consumers.get(name, ()))
                for name in written
            ):
                return
            found.nodes.extend(n for n in step if id(n) not in inside)
            inside = inner


def _sources(found: Match, facts: Facts, start: _Source, scaled: bool, repeated: bool) -> list[_Source]:
    """The value itself, and what it is made of, step by step back; only those where elements lie together, if any does.
    scaled, repeated: whether these steps count.
    """
    producers, steps = found.graph.producers(), [start]
    while (source := _before(producers, facts, steps[-1], scaled, repeated)) is not None:
        steps.append(source)
    return [source for source in steps if source.perm[-1] == len(source.perm) - 1] or [start]


def _before(producers: dict[str, Node], facts: Facts, source: _Source, scaled: bool, repeated: bool) -> _Source | None:
    chain = tuple(_chain(producers, source.name, 3))
    if not chain:
        return None
    node, ops = chain[0], tuple(n.op for n in chain)
    if node.op == "Transpose":
        perm = node.attributes.get("perm")
        own = tuple(int(p) for p in perm) if perm else tuple(range(len(source.perm) - 1, -1, -1))  # type: ignore[union-attr]
        return replace(
            source, name=node.inputs[0], perm=tuple(own[axis] for axis in source.perm), steps=(*source.steps, (node,))
        )
    if scaled and node.op in ("Mul", "Div"):
        return _unscaled(facts, source, node)
    before = chain[-1].inputs[0]
    if ops == ("Reshape", "Transpose", "Reshape") and _is_swap(facts, source.name, chain[1], before):
        swapped = tuple((0, 1, 3, 2)[axis] for axis in source.perm)
        return replace(source, name=before, perm=swapped, steps=(*source.steps, chain))
    if (
        repeated
        and ops == ("Reshape", "Expand", "Unsqueeze")
        and source.perm[1] == 1
        and _is_repeat(facts, source.name, chain, before)
    ):
        return replace(source, name=before, steps=(*source.steps, chain))
    return None


def _chain(producers: dict[str, Node], name: str, most: int) -> Iterator[Node]:
    """The node that makes a value, the one that makes its first input, and so on."""
    for _ in range(most):
        node = producers.get(name)
        # RandomNormal has none
        if node is None or node.domain or node.epilogue or len(node.writes) != 1 or not node.inputs:
            return
        yield node
        name = node.inputs[0]


def _unscaled(facts: Facts, source: _Source, node: Node) -> _Source | None:
    """Before a multiplication or division by a number that is known."""
    for value, other in ((0, 1), (1, 0))[: 1 if node.op == "Div" else 2]:
        number, tensor = _number(facts, node.inputs[other]), facts.types.get(node.inputs[value])
        if number is not None and tensor is not None and _alike(tensor, facts.types.get(source.name)):
            factor = 1.0 / number if node.op == "Div" else number
            return replace(
                source, name=node.inputs[value], factor=source.factor * factor, steps=(*source.steps, (node,))
            )
    return None


def _number(facts: Facts, name: str) -> float | None:
    """A finite number other than 0 that is known before the run."""
    array = facts.known.get(name)
    if array is None or array.size != 1 or is_symbolic(array.reshape(-1)[0]):
        return None
    number = float(array.reshape(-1)[0])
    return number if np.isfinite(number) and number else None


def _is_swap(facts: Facts, name: str, transposed: Node, before: str) -> bool:
    """Whether images of rank 3 were transposed in place of those of rank 4 that stand before and behind it."""
    source_type, result_type, images = (facts.types.get(n) for n in (before, name, transposed.inputs[0]))
    if source_type is None or result_type is None or images is None or source_type.rank != 4 or images.rank != 3:
        return False
    b, h, s, d = source_type.shape
    return tuple(transposed.attributes.get("perm") or ()) == (0, 2, 1) and (  # type: ignore[arg-type]
        _sized(result_type, b, h, d, s) and _sized(images, b * h, s, d)
    )


def _is_repeat(facts: Facts, name: str, chain: Sequence[Node], before: str) -> bool:
    """Whether each head was repeated, as many stand for those of several queries. Copies of all heads behind one
    another are another order, with the same sizes where there are as many copies as heads: the axis that was inserted
    tells.
    """
    _, expanded, inserted = chain
    source_type, result_type, wide, apart = (
        facts.types.get(n) for n in (before, name, expanded.outputs[0], inserted.outputs[0])
    )
    if (
        source_type is None
        or result_type is None
        or wide is None
        or apart is None
        or source_type.rank != 4
        or wide.rank != 5
    ):
        return False
    b, h, s, d = source_type.shape
    return (
        _axes(facts, inserted) in ((2,), (-3,))
        and _sized(apart, b, h, 1, s, d)
        and (_sized(wide, b, h, wide.shape[2], s, d) and _sized(result_type, b, h * wide.shape[2], s, d))
    )


def _axes(facts: Facts, node: Node) -> tuple[int, ...]:
    """The axes of an Unsqueeze; none where they are not known before the run."""
    numbers = node.attributes.get("axes")
    axes = facts.known.get(node.inputs[1]) if numbers is None and len(node.inputs) > 1 else numbers
    if axes is None or any(map(is_symbolic, axes)):  # type: ignore[arg-type]
        return ()
    return tuple(int(axis) for axis in axes)  # type: ignore[union-attr]


def _alike(one: TensorType, other: TensorType | None) -> bool:
    return other is not None and _sized(other, *one.shape)


def _sized(tensor: TensorType, *shape: int) -> bool:
    return tensor.rank == len(shape) and all(a == b for a, b in zip(tensor.shape, shape, strict=True))


def _add_rules() -> None:
    both: Sequence[bool] = (True, False)
    for transposed in both:
        for masked in both:
            of_onnx = _OfOnnx(masked, transposed)
            fusion(of_onnx.name, of_onnx)(_of_onnx)
            for guarded in both:
                for scaled in ("Mul", "Div", ""):
                    rule = _Exported(scaled, masked, guarded, transposed)
                    fusion(rule.name, rule)(_exported)


_add_rules()
