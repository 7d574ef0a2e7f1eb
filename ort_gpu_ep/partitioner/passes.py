"""What is done to a graph before its nodes become kernels: a list of passes, each with what it requires and what it
ensures.

They run on concrete types: those up to `FUSION` for the claim, with stand-ins, and all of them for each plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import ort_gpu_ep.ops
import ort_gpu_ep.partitioner.attention_rules
import ort_gpu_ep.partitioner.recurrent_rules  # noqa: F401  adds its rules
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.ir.symbolic import CountError
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.lowering import Answer, Facts, facts_of, walk
from ort_gpu_ep.kernels.registry import BoundNode, Limits
from ort_gpu_ep.partitioner.absorption import ACTIVATIONS, LAYERS, PRODUCTS, Consumers, absorb
from ort_gpu_ep.partitioner.attention_inputs import simplify_attention
from ort_gpu_ep.partitioner.between_products import keep_bytes
from ort_gpu_ep.partitioner.casts import without_round_trips
from ort_gpu_ep.partitioner.fusion import Chains
from ort_gpu_ep.partitioner.fusions import apply_rules
from ort_gpu_ep.partitioner.integers import quantize_products
from ort_gpu_ep.partitioner.layouts import choose_layouts
from ort_gpu_ep.partitioner.parts import place_parts
from ort_gpu_ep.partitioner.shared_inputs import join_products
from ort_gpu_ep.partitioner.standard import standard
from ort_gpu_ep.partitioner.widths import widen


@dataclass
class Work:
    """A graph on its way through the passes, and what is known of it.

    inputs, known, otherwise: as `facts_of` and `walk` take them. facts: of every value, by its name. answers: by id()
    of a node that has not been changed since. planned: the graph is a partition, whose plan is made.
    """

    graph: Graph
    inputs: Mapping[str, TensorType]
    limits: Limits
    known: Mapping[str, Array] | None = None
    otherwise: Callable[[str], TensorType | None] = lambda name: None
    facts: Facts = field(default_factory=lambda: Facts({}, {}))
    answers: Mapping[int, tuple[Answer, BoundNode | None]] = field(default_factory=dict)
    planned: bool = False


def _ask(work: Work) -> Graph:
    work.facts = facts_of(work.graph, work.inputs, work.known)
    work.answers = {id(n): (a, b) for n, a, b in walk(work.graph, work.facts, work.limits, work.otherwise)}
    return work.graph


def _plain(rewrite: Callable[[Graph, Facts, Limits], Graph]) -> Callable[[Work], Graph]:
    return lambda work: rewrite(work.graph, work.facts, work.limits)


def _absorb(consumers: Consumers) -> Callable[[Work], Graph]:
    return lambda work: absorb(work.graph, work.facts, work.limits, consumers, shared=work.planned)


def _chains(work: Work) -> Graph:
    return Chains(work.graph, work.facts, work.limits, work.answers).run()


def _widths(work: Work) -> Graph:
    graph = widen(work.graph, work.facts, work.limits, work.answers)
    if graph is work.graph:
        return graph
    work.graph = graph
    _ask(work)
    return _chains(work)  # conversions that it took


def _products(work: Work) -> Graph:
    return join_products(work.graph, work.facts, work.limits, work.answers)


def _layouts(work: Work) -> Graph:
    graph, work.facts = choose_layouts(work.graph, work.facts, work.limits)
    return graph


STANDARD = "what models write in two forms has one"
ASKED = "every row has been asked, and the types of values are known"
PRODUCTS_QUANTIZED = "no product of dequantized bytes is left whose result becomes bytes again"
BYTES_KEPT = "nothing between bytes and bytes that has an op of bytes is left to floats"
DECODERS_ABSORBED = "no decoder of a constant is left that the one product behind it could read packed"
LAYERS_ABSORBED = "no decoder of a constant is left that the recurrent layers behind it could read packed"
ACTIVATIONS_READ = "no decoder of a run's bytes is left that the one reduction behind it could do itself"
ROUND_TRIPS_GONE = "no float16 becomes float32 and float16 again, with nothing or a softmax between"
PATTERNS_FUSED = "no pattern of a fusion rule is left that its row would take"
CHAINS_FUSED = "no elementwise node is left that its producer could do"
SUMS_WIDE = (
    "nothing that float16 does not reach to is stored in it between a reduction and what is elementwise, if it "
    "may be float32"
)
PRODUCTS_JOINED = "no two products of the same few vectors are left that one dispatch could do"
ATTENTION_SIMPLIFIED = "no attention has a bias that the products before it could add, or a mask that another has, too"
LAYOUTS_CHOSEN = "every value is stored as its readers read it"
PARTS_PLACED = "what is joined in place is written there, and read by nobody else"


@dataclass(frozen=True, slots=True)
class Pass:
    """A step from a graph to a graph. requires, ensures: properties, in words; what was ensured holds from then on."""

    name: str
    run: Callable[[Work], Graph]
    requires: frozenset[str] = frozenset()
    ensures: frozenset[str] = frozenset()


FUSION: Sequence[Pass] = (
    Pass("standard", lambda work: standard(work.graph), ensures=frozenset({STANDARD})),
    Pass("ask", _ask, requires=frozenset({STANDARD}), ensures=frozenset({ASKED})),
    Pass(
        "integers",
        _plain(quantize_products),
        requires=frozenset({ASKED, STANDARD}),
        ensures=frozenset({PRODUCTS_QUANTIZED}),
    ),
    Pass("bytes", _plain(keep_bytes), requires=frozenset({ASKED, PRODUCTS_QUANTIZED}), ensures=frozenset({BYTES_KEPT})),
    Pass(
        "absorb",
        _absorb(PRODUCTS),
        requires=frozenset({ASKED, PRODUCTS_QUANTIZED}),
        ensures=frozenset({DECODERS_ABSORBED}),
    ),
    Pass("casts", _plain(without_round_trips), requires=frozenset({ASKED}), ensures=frozenset({ROUND_TRIPS_GONE})),
    Pass(
        "patterns",
        _plain(apply_rules),
        requires=frozenset({ASKED, ROUND_TRIPS_GONE}),
        ensures=frozenset({PATTERNS_FUSED}),
    ),
    Pass("layers", _absorb(LAYERS), requires=frozenset({ASKED, PATTERNS_FUSED}), ensures=frozenset({LAYERS_ABSORBED})),
    Pass(
        "activations",
        _absorb(ACTIVATIONS),
        requires=frozenset({ASKED, PATTERNS_FUSED}),
        ensures=frozenset({ACTIVATIONS_READ}),
    ),
    Pass("chains", _chains, requires=frozenset({ASKED, PATTERNS_FUSED}), ensures=frozenset({CHAINS_FUSED})),
)

PASSES: Sequence[Pass] = (
    *FUSION,
    Pass("widths", _widths, requires=frozenset({ASKED, CHAINS_FUSED}), ensures=frozenset({SUMS_WIDE})),
    Pass("products", _products, requires=frozenset({ASKED, CHAINS_FUSED}), ensures=frozenset({PRODUCTS_JOINED})),
    Pass(
        "attention",
        _plain(simplify_attention),
        requires=frozenset({ASKED, PRODUCTS_JOINED}),
        ensures=frozenset({ATTENTION_SIMPLIFIED}),
    ),
    Pass("layouts", _layouts, requires=frozenset({ASKED, CHAINS_FUSED}), ensures=frozenset({LAYOUTS_CHOSEN})),
    Pass("parts", _plain(place_parts), requires=frozenset({ASKED, LAYOUTS_CHOSEN}), ensures=frozenset({PARTS_PLACED})),
)


def run(passes: Sequence[Pass], work: Work) -> Graph:
    """The graph after some passes. One that has to know more of a count (ir/symbolic.py) than its bound leaves the
    graph as it is."""
    for step in passes:
        with suppress(CountError):
            work.graph = step.run(work)
    return work.graph


def fuse(
    graph: Graph,
    inputs: Mapping[str, TensorType],
    limits: Limits,
    otherwise: Callable[[str], TensorType | None] = lambda name: None,
    known: Mapping[str, Array] | None = None,
) -> Graph:
    """The graph with fused nodes in place of the nodes they stand for (`Node.members` tells which). known: as in
    `facts_of`."""
    return run(FUSION, Work(graph, inputs, limits, known, otherwise))


def rewrite(
    graph: Graph, inputs: Mapping[str, TensorType], limits: Limits, *, known: Mapping[str, Array] | None = None
) -> Graph:
    """The graph that a plan is made of: fused, each value in a layout."""
    return run(PASSES, Work(graph, inputs, limits, known, planned=True))
