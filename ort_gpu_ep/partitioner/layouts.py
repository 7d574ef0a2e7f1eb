"""Which nodes work channel-last, and where values are converted: at the fewest places, by cost.

A label per node (plain, or its images stored [N, spatial..., C]); what a row can do it says itself
(`registry.ChannelsLast`). The labels are a minimum cut over what nodes gain and what a conversion takes, once a value
however many readers it has. A conversion is an ordinary Transpose, a view where the bytes stay in order (one
pixel, or one channel); constants are permuted on the host.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ort_gpu_ep.errors import UnsupportedNodeError
from ort_gpu_ep.ir.graph import Array, Graph, Node, Value
from ort_gpu_ep.ir.symbolic import hints, is_symbolic
from ort_gpu_ep.ir.types import BY_NAME, INT64, DType, Shape, TensorType
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.cost_parameters import Figures
from ort_gpu_ep.kernels.lowering import Facts, bind
from ort_gpu_ep.kernels.registry import BoundNode, ChannelsLast, Decline, Limits, spec_of
from ort_gpu_ep.kernels.target import Target
from ort_gpu_ep.ops.channels_last import to_channels_last, to_plain
from ort_gpu_ep.ops.transposition import moving_ns, transposed
from ort_gpu_ep.partitioner.cut import Move, first_side

CHANNELS_LAST = "@channels_last"
"""What the name of a value ends in that is stored so; without it, the name is that of the same value in plain."""

NANOSECOND = 1e-9

VIEW_NS = 1.0
"""A conversion that only renames the dimensions: nothing in a run, so that it just isn't placed without need."""


@dataclass(frozen=True, slots=True)
class _Option:
    """A node that can work channel-last. reads: names that it would read so; writes: that it would write so.

    constants: names of constants that it would read permuted.
    """

    node: Node
    form: ChannelsLast
    reads: frozenset[str]
    writes: frozenset[str]
    constants: frozenset[str]


def choose_layouts(graph: Graph, facts: Facts, limits: Limits) -> tuple[Graph, Facts]:
    """The graph with its layouts, and facts of its values, those that are stored channel-last among them."""
    options = {id(node): option for node in graph.nodes if (option := _option(node, facts, limits)) is not None}
    ranks = {option.form.rank for option in options.values() if option.form.gain_ns > 0}
    options = {key: option for key, option in options.items() if option.form.rank in ranks}
    while any(option.form.gain_ns > 0 for option in options.values()):
        chosen = _cheapest(graph, facts, options, limits.figures)
        rewriter = _Rewriter(graph, facts, limits, {key: options[key] for key in chosen})
        rewritten = rewriter.run()
        if not rewriter.refused:
            return rewritten, rewriter.facts
        for key in rewriter.refused:
            del options[key]
    return graph, facts


def conversion_ns(tensor: TensorType, figures: Figures) -> float:
    """What it takes to bring a value into the other layout: as long as the way back."""
    shape = hints(tensor.shape)
    view = shape[1] == 1 or math.prod(shape[2:]) == 1
    return VIEW_NS if view else _moving_ns(shape, tensor.dtype, figures)


@lru_cache(1024)
def _moving_ns(shape: Shape, dtype: DType, figures: Figures) -> float:
    return moving_ns(transposed(shape, to_channels_last(len(shape))), dtype, figures)


def _option(node: Node, facts: Facts, limits: Limits) -> _Option | None:
    """How a node would work channel-last, None where it can't, or the host computes it."""
    spec = spec_of(node)
    bound = bind(node, facts)
    if (
        spec is None
        or spec.channels_last is None
        or isinstance(bound, Decline)
        or all(name in facts.known for name in node.writes)
    ):
        return None
    try:
        form = spec.channels_last(replace(bound, target=Target(limits)))
    except UnsupportedNodeError:
        return None
    writes = frozenset(node.writes) if form and form.writes else frozenset[str]()
    if form is None or any(name not in facts.types or facts.types[name].rank != form.rank for name in writes):
        return None
    reads, constants = set[str](), set[str]()
    for name in _read_so(node, form):
        how = _how_read(name, facts, form.rank)
        if how is None:
            return None
        if how:
            (constants if how == "constant" else reads).add(name)
    return _Option(node, form, frozenset(reads), writes, frozenset(constants)) if reads or writes else None


def _read_so(node: Node, form: ChannelsLast) -> Iterator[str]:
    """The inputs that a node reads channel-last, and the operands of its fused steps: these are as its output is."""
    yield from (node.inputs[k] for k in form.inputs)
    if form.writes:
        yield from node.operands


def _how_read(name: str, facts: Facts, rank: int) -> str | None:
    """`constant`: permuted on the host. `value`: in the layout that it has, or converted. Empty: as it is. None: not at
    all."""
    tensor = facts.types.get(name)
    if tensor is None or tensor.rank > rank or tensor.dtype.bits < 8:
        return None
    if not any(map(is_symbolic, tensor.shape)) and tensor.size == 1:
        return ""
    if name in facts.known:
        return "constant"
    return "value" if tensor.rank == rank else None


def _cheapest(graph: Graph, facts: Facts, options: Mapping[int, _Option], figures: Figures) -> set[int]:
    """The nodes that work channel-last in the cheapest labelling."""
    costs: dict[Hashable, tuple[float, float]] = {
        key: (max(o.form.gain_ns, 0.0) * NANOSECOND, max(-o.form.gain_ns, 0.0) * NANOSECOND)
        for key, o in options.items()
    }
    producers: dict[str, int] = {name: key for key, option in options.items() for name in option.writes}
    readers: dict[str, set[int | None]] = {name: {None} for name in graph.outputs}
    for node in graph.nodes:
        option = options.get(id(node))
        so = option.reads if option else frozenset[str]()
        for name in so:
            readers.setdefault(name, set()).add(id(node))
        for name in _read_in_plain(node, option):
            readers.setdefault(name, set()).add(None)
    moves = []
    for name, keys in readers.items():
        tensor, producer = facts.types.get(name), producers.get(name)
        if tensor is not None and name not in facts.known and keys | {producer} != {None}:
            seconds = conversion_ns(tensor, figures) * NANOSECOND
            moves.append(Move(producer, tuple(keys), seconds, seconds))
    return set(options) - {key for key in first_side(costs, moves, most=True) if isinstance(key, int)}


def _read_in_plain(node: Node, option: _Option | None) -> set[str]:
    """What a node needs in plain whatever its label is."""
    if option is None:
        return set(node.reads)
    so = set(_read_so(node, option.form))
    others = {name for k, name in enumerate(node.inputs) if name and k not in option.form.inputs}
    return others | {name for name in node.reads if name not in so}


class _Rewriter:
    """Makes the graph of a labelling. refused: nodes whose row declines what was made of them."""

    def __init__(self, graph: Graph, facts: Facts, limits: Limits, chosen: Mapping[int, _Option]) -> None:
        self.graph, self.limits, self.chosen = graph, limits, chosen
        self.facts = replace(facts, types=dict(facts.types), known=dict(facts.known), constants=set(facts.constants))
        self.refused: set[int] = set()
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {}
        self.present = {*graph.inputs, *facts.known, *(n for n, v in graph.values.items() if v.is_constant)}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            option = self.chosen.get(id(node))
            rewritten = self._channels_last(node, option) if option else node
            for name in rewritten.reads:
                self._provide(name)
            if option and isinstance(self._claimed(rewritten), Decline):
                self.refused.add(id(node))
            self.nodes.append(rewritten)
            self.present |= set(rewritten.writes)
        for name in self.graph.outputs:
            self._provide(name)
        return self.graph.with_nodes(tuple(self.nodes), self.values)

    def _claimed(self, node: Node) -> object:
        bound = bind(node, self.facts)
        return claim(bound, self.limits) if isinstance(bound, BoundNode) else bound

    def _channels_last(self, node: Node, option: _Option) -> Node:
        form = option.form
        inputs = [self._stored(name, option) if k in form.inputs else name for k, name in enumerate(node.inputs)]
        inputs += [""] * (max(form.constants, default=-1) + 1 - len(inputs))
        for position, array in form.constants.items():
            dtype = self._type_of_sizes(node, position) if array.dtype == object else None
            inputs[position] = self._constant(f"{node.writes[0]}.{position}", array, dtype)
        operands = tuple(self._stored(name, option) if form.writes else name for name in node.operands)
        outputs = tuple(self._written(name) if name in option.writes else name for name in node.outputs)
        return replace(
            node,
            name=node.label,
            inputs=tuple(inputs),
            outputs=outputs,
            operands=operands,
            attributes={**node.attributes, **form.attributes},
            channels_last=True,
        )

    def _type_of_sizes(self, node: Node, position: int) -> DType:
        """Of an input that holds sizes of the run, or of what stands for an attribute."""
        name = node.inputs[position] if position < len(node.inputs) else ""
        return self.facts.types[name].dtype if name else INT64

    def _stored(self, name: str, option: _Option) -> str:
        """The value as the node reads it."""
        if name in option.reads:
            return self._written(name)
        if name not in option.constants:
            return name
        tensor, array, rank = self.facts.types[name], self.facts.known[name], option.form.rank
        ranked = array.reshape((1,) * (rank - tensor.rank) + tuple(array.shape))
        own = name if tensor.rank == rank else f"{name}.of_rank_{rank}"  # nodes of several ranks may read it
        return self._constant(own, ranked.transpose(to_channels_last(rank)), tensor.dtype)

    def _written(self, name: str) -> str:
        """The name of a value stored channel-last; its type is noted."""
        tensor = self.facts.types[name]
        self.facts.types[name + CHANNELS_LAST] = TensorType(
            tensor.dtype, tuple(tensor.shape[k] for k in to_channels_last(tensor.rank))
        )
        return name + CHANNELS_LAST

    def _constant(self, name: str, array: Array, dtype: DType | None) -> str:
        name, array = name + CHANNELS_LAST, np.ascontiguousarray(array)
        if name not in self.present:
            kind = dtype or BY_NAME[array.dtype.name]
            self.values[name] = Value(name, kind, tuple(array.shape), lambda: array)
            self.facts.types[name], self.facts.known[name] = TensorType(kind, tuple(array.shape)), array
            self.facts.constants.add(name)
            self.present.add(name)
        return name

    def _provide(self, name: str) -> None:
        """Converts a value, before its first reader, that is there in the other layout only."""
        other = name.removesuffix(CHANNELS_LAST) if name.endswith(CHANNELS_LAST) else name + CHANNELS_LAST
        if name not in self.present and other in self.present:
            self.nodes.append(conversion(other, name, self.facts.types[other].rank))
            self.present.add(name)


def conversion(source: str, target: str, rank: int) -> Node:
    """The node that brings a value into another layout."""
    to_last = target.endswith(CHANNELS_LAST)
    perm = to_channels_last(rank) if to_last else to_plain(rank)
    label = f"{source.removesuffix(CHANNELS_LAST)}/{'channels_last' if to_last else 'plain'}"
    return Node("Transpose", (source,), (target,), label, "", 13, {"perm": perm})


def is_conversion(node: Node) -> bool:
    """Whether the pass has placed it."""
    names: Iterable[str] = (*node.inputs, *node.outputs)
    return node.op == "Transpose" and len({name.removesuffix(CHANNELS_LAST) for name in names}) == 1
