"""What must hold of a graph after every pass, and what each property means that a pass ensures: as rules.

Each rule gives a sentence for whatever breaks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ort_gpu_ep.ir.graph import Graph, Node
from ort_gpu_ep.ir.symbolic import hints
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.lowering import Facts, facts_of, walk
from ort_gpu_ep.kernels.registry import Decline
from ort_gpu_ep.ops.channels_last import to_channels_last
from ort_gpu_ep.ops.joining import IN_PLACE
from ort_gpu_ep.partitioner.absorption import ACTIVATIONS, LAYERS, PRODUCTS, Consumers, absorb
from ort_gpu_ep.partitioner.attention_inputs import simplify_attention
from ort_gpu_ep.partitioner.between_products import keep_bytes
from ort_gpu_ep.partitioner.casts import without_round_trips
from ort_gpu_ep.partitioner.fusion import Chains
from ort_gpu_ep.partitioner.fusions import apply_rules
from ort_gpu_ep.partitioner.integers import quantize_products
from ort_gpu_ep.partitioner.layouts import CHANNELS_LAST, is_conversion
from ort_gpu_ep.partitioner.passes import (
    ACTIVATIONS_READ,
    ASKED,
    ATTENTION_SIMPLIFIED,
    BYTES_KEPT,
    CHAINS_FUSED,
    DECODERS_ABSORBED,
    LAYERS_ABSORBED,
    LAYOUTS_CHOSEN,
    PARTS_PLACED,
    PATTERNS_FUSED,
    PRODUCTS_JOINED,
    PRODUCTS_QUANTIZED,
    ROUND_TRIPS_GONE,
    STANDARD,
    SUMS_WIDE,
    Work,
)
from ort_gpu_ep.partitioner.shared_inputs import join_products
from ort_gpu_ep.partitioner.standard import standard
from ort_gpu_ep.partitioner.widths import widen


def violations(work: Work) -> list[str]:
    """What is wrong with the graph, whatever passes it has been through."""
    return [*_order(work), *_types(work)]


def _order(work: Work) -> Iterator[str]:
    """Every value is written once, and before it is read."""
    graph = work.graph
    there = {*graph.inputs, *(name for name, value in graph.values.items() if value.is_constant)}
    for node in graph.nodes:
        for name in node.reads:
            if name not in there:
                yield f"{node.label} reads {name!r}, which nothing has written"
        for name in node.writes:
            if name in there:
                yield f"{node.label} writes {name!r}, which is there already"
            there.add(name)
    for name in graph.outputs:
        if name not in there:
            yield f"output {name!r} is written by nothing"


def _types(work: Work) -> Iterator[str]:
    """Every value still has the type that it had when the rows were asked, channel-last or not, and no row declines
    what it took before."""
    if not work.facts.types:
        return
    facts = facts_of(work.graph, work.inputs, work.known)
    for node, answer, _ in walk(work.graph, facts, work.limits, work.otherwise):
        if isinstance(answer, Decline) and not _declined_before(work, node):
            yield f"{node.label} is declined: {answer.reason}"
    for name, tensor in facts.types.items():
        expected = _expected(work.facts, name)
        if expected is not None and (tensor.dtype, hints(tensor.shape)) != (expected.dtype, hints(expected.shape)):
            yield f"{name!r} is {tensor}, expected {expected}"


def _declined_before(work: Work, node: Node) -> bool:
    answer, _ = work.answers.get(id(node), (None, None))
    return isinstance(answer, Decline)


def _expected(facts: Facts, name: str) -> TensorType | None:
    plain = facts.types.get(name.removesuffix(CHANNELS_LAST))
    if plain is None or not name.endswith(CHANNELS_LAST):
        return plain if not name.endswith(CHANNELS_LAST) else None
    return TensorType(plain.dtype, tuple(plain.shape[k] for k in to_channels_last(plain.rank)))


def _asked(work: Work) -> Iterator[str]:
    for node in work.graph.nodes:
        if id(node) not in work.answers:
            yield f"{node.label} was not asked"


def _again(rewrite: Callable[[Work], Graph], what: str) -> Callable[[Work], Iterator[str]]:
    """A pass that has nothing left to do: tried once more, it takes no node away. what: happens then, for the
    sentence."""

    def rule(work: Work) -> Iterator[str]:
        again = rewrite(work)
        if len(again.nodes) != len(work.graph.nodes):
            yield f"{len(work.graph.nodes)} nodes become {len(again.nodes)} when {what} once more"

    return rule


def _standard(work: Work) -> Iterator[str]:
    if standard(work.graph) is not work.graph:
        yield "a node is not in the form that the other passes know"


def _absorbed(consumers: Consumers) -> Callable[[Work], Iterator[str]]:
    return _again(lambda work: absorb(work.graph, work.facts, work.limits, consumers), "decoders are absorbed")


def _no_attention(work: Work) -> Iterator[str]:
    if simplify_attention(work.graph, work.facts, work.limits).nodes != work.graph.nodes:
        yield "nodes change when attention is simplified once more"


def _layouts(work: Work) -> Iterator[str]:
    """No channel-last value reaches a node that knows nothing of it, nor the outside; none is converted twice, or
    without need."""
    graph = work.graph
    for name in (*graph.inputs, *graph.outputs):
        if name.endswith(CHANNELS_LAST):
            yield f"{name!r} is an input or output of the graph"
    read = {name for node in graph.nodes for name in node.reads} | set(graph.outputs)
    for node in graph.nodes:
        last = [name for name in (*node.reads, *node.writes) if name.endswith(CHANNELS_LAST)]
        if last and not node.channels_last and not is_conversion(node):
            yield f"{node.label} is plain, but has {last[0]!r}"
        if node.channels_last and not last:
            yield f"{node.label} is channel-last, but none of its values is"
        if is_conversion(node) and node.writes[0] not in read:
            yield f"{node.label} converts what nobody reads"


def _parts(work: Work) -> Iterator[str]:
    """A Concat in place has all its inputs written into it, side by side, and is the only one that reads them."""
    parts = {node.outputs[0]: node.into for node in work.graph.nodes if node.into is not None}
    for node in work.graph.nodes:
        end, joined = 0, bool(node.attributes.get(IN_PLACE))
        for name in node.reads:
            part = parts.pop(name, None)
            if (part is not None) != joined or (part and (part.value, part.start) != (node.outputs[0], end)):
                yield f"{node.label} reads {name!r}, which is {part}"
            end += part.size if part else 0
    yield from (f"{name!r} is a part of what nothing joins" for name in parts)


PROPERTIES: Mapping[str, Callable[[Work], Iterator[str]]] = {
    STANDARD: _standard,
    ASKED: _asked,
    PRODUCTS_QUANTIZED: _again(
        lambda work: quantize_products(work.graph, work.facts, work.limits), "products of bytes are fused"
    ),
    BYTES_KEPT: _again(
        lambda work: keep_bytes(work.graph, work.facts, work.limits), "what stands between products is fused"
    ),
    DECODERS_ABSORBED: _absorbed(PRODUCTS),
    LAYERS_ABSORBED: _absorbed(LAYERS),
    ACTIVATIONS_READ: _absorbed(ACTIVATIONS),
    ROUND_TRIPS_GONE: _again(
        lambda work: without_round_trips(work.graph, work.facts, work.limits),
        "conversions there and back are taken away",
    ),
    PATTERNS_FUSED: _again(lambda work: apply_rules(work.graph, work.facts, work.limits), "the rules are tried"),
    CHAINS_FUSED: _again(
        lambda work: Chains(work.graph, work.facts, work.limits, work.answers).run(), "chains are fused"
    ),
    SUMS_WIDE: _again(
        lambda work: widen(work.graph, work.facts, work.limits, work.answers), "sums in float16 are looked for"
    ),
    PRODUCTS_JOINED: _again(
        lambda work: join_products(work.graph, work.facts, work.limits, work.answers),
        "products of one input are joined",
    ),
    ATTENTION_SIMPLIFIED: _no_attention,
    LAYOUTS_CHOSEN: _layouts,
    PARTS_PLACED: _parts,
}
"""Each property that a pass requires or ensures, as a rule."""
