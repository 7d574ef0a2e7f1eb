"""Ranks that ONNX Runtime's shape inference does not tell: what a graph says of them, and for the others a guess.

Unknown are the outputs of custom ops, of If whose branches give two ranks, what comes out of sequences, and what
ai.onnx.ml's ops write. A plan is made for the ranks of its run in any case; here they decide what can be claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ort_gpu_ep.ir.graph import Graph, Node
from ort_gpu_ep.ir.types import SymbolicShape, TensorType
from ort_gpu_ep.partitioner.report import Report

UNKNOWN = -1
"""Rank of an output of a body that nobody knows."""

Shapes: TypeAlias = dict[str, SymbolicShape]


@dataclass(frozen=True, slots=True)
class RankGuess:
    """branch: of an If whose branches give two ranks, counted modulo their number. rank: of what nothing is known of;
    None: it stays so."""

    branch: int = 0
    rank: int | None = None


RANKS = (2, 1, 3, 4)
"""Of what nothing is known of, in the order in which they are tried."""


def with_ranks(graph: Graph, bodies: Mapping[int, Sequence[Report]], guess: RankGuess) -> Graph:
    """The graph, whose tensors have a shape. bodies: what was decided on those of its If, Loop and Scan, by id of the
    node."""
    shapes, _ = _inferred(graph, bodies, guess)
    fixed = {name: shapes[name] for name, value in graph.values.items() if value.shape is None and name in shapes}
    if guess.rank is not None:
        missing = (n for n, v in graph.values.items() if v.shape is None and v.dtype is not None and n not in shapes)
        fixed |= dict.fromkeys(missing, (None,) * guess.rank)
    return graph.with_nodes(
        graph.nodes, {name: replace(graph.values[name], shape=shape) for name, shape in fixed.items()}
    )


def as_shown(graph: Graph, types: Mapping[str, TensorType]) -> Graph:
    """The graph, with the ranks that values had in a run."""
    missing = {name: value for name in types if (value := graph.values[name]).shape is None}
    return graph.with_nodes(graph.nodes, {n: replace(v, shape=(None,) * types[n].rank) for n, v in missing.items()})


def guesses(graph: Graph, bodies: Mapping[int, Sequence[Report]]) -> list[RankGuess]:
    """In the order in which they are tried: one where the graph tells all."""
    branches = range(max((len(_choices(node, bodies)) for node in graph.nodes), default=0) or 1)
    options = [RankGuess(branch) for branch in branches]
    told = with_ranks(graph, bodies, options[0])
    open_ = any(v.shape is None and v.dtype is not None for v in told.values.values())
    return options + [RankGuess(0, rank) for rank in RANKS] if open_ else options


def ranks_of(graph: Graph, bodies: Mapping[int, Sequence[Report]], known: Mapping[str, int]) -> tuple[int, ...]:
    """Of the graph's outputs, of a sequence that of its elements. known: by name."""
    shapes, elements = _inferred(graph, bodies, RankGuess())
    told = {**{n: len(s) for n, s in elements.items()}, **{n: len(s) for n, s in shapes.items()}, **known}
    return tuple(told.get(name, UNKNOWN) for name in graph.outputs)


def _inferred(graph: Graph, bodies: Mapping[int, Sequence[Report]], guess: RankGuess) -> tuple[Shapes, Shapes]:
    """Shapes of tensors, and of the elements of sequences and optional values."""
    shapes = {name: value.shape for name, value in graph.values.items() if value.shape is not None}
    elements: Shapes = {}
    for node in graph.nodes:
        for name, shape in zip(node.outputs, _outputs(node, shapes, elements, bodies, guess), strict=False):
            if name and shape is not None:
                value = graph.values.get(name)
                (shapes if value is not None and value.dtype is not None else elements).setdefault(name, shape)
    return shapes, elements


def _outputs(
    node: Node,
    shapes: Shapes,
    elements: Shapes,
    bodies: Mapping[int, Sequence[Report]],
    guess: RankGuess,
) -> Sequence[SymbolicShape | None]:
    if node.op in ("If", "Loop", "Scan"):
        choices = _choices(node, bodies)
        return choices[guess.branch % len(choices)] if choices else ()
    rule = _RULES.get((node.domain, node.op))
    shapes_in = [shapes.get(name, elements.get(name)) for name in node.inputs]
    return rule(node, shapes_in) if rule is not None else ()


def _choices(node: Node, bodies: Mapping[int, Sequence[Report]]) -> list[tuple[SymbolicShape | None, ...]]:
    """Shapes of the outputs of an If, Loop or Scan as its bodies give them; more than one where branches differ in
    rank."""
    choices = []
    for report in bodies.get(node.id, ()):
        ranks = report.ranks[1:] if node.op == "Loop" else report.ranks
        carried = len(ranks) if node.op == "If" else _carried(node)
        shapes: tuple[SymbolicShape | None, ...] = tuple(
            None if rank == UNKNOWN else (None,) * (rank + (k >= carried)) for k, rank in enumerate(ranks)
        )
        choices.append(shapes)
    return list(dict.fromkeys(choices)) if node.op == "If" else choices[:1]


def _carried(node: Node) -> int:
    """How many outputs of a Loop or Scan are its state; the others are what its turns give, one behind another."""
    if node.op == "Loop":
        return max(len(node.inputs) - 2, 0)
    scanned = node.attributes.get("num_scan_inputs")
    return max(len(node.inputs) - (scanned if isinstance(scanned, int) else 0), 0)


# ---- rules: shapes of the inputs (of a sequence: of its elements) -> of the outputs

Given: TypeAlias = Sequence[SymbolicShape | None]
Rule: TypeAlias = Callable[[Node, Given], Given]


def _same(node: Node, given: Given) -> Given:
    return given[:1]


def _open(shape: SymbolicShape | None) -> SymbolicShape | None:
    """Another tensor of that rank."""
    return None if shape is None else (None,) * len(shape)


def _one_of(node: Node, given: Given) -> Given:
    return (next((_open(shape) for shape in given if shape is not None), None),)


def _inserted(node: Node, given: Given) -> Given:
    sequence, element = given[0], given[1] if len(given) > 1 else None
    return (_open(element) if element is not None else sequence,)


def _split(node: Node, given: Given) -> Given:
    shape = given[0]
    if shape is None:
        return (None,)
    drops = len([name for name in node.inputs if name]) < 2 and node.attributes.get("keepdims") == 0
    return ((None,) * (len(shape) - drops),)


def _joined(node: Node, given: Given) -> Given:
    return (None if given[0] is None else (None,) * (len(given[0]) + bool(node.attributes.get("new_axis"))),)


def _rows(*ranks: int) -> Rule:
    """Of each row of a table: a number where the rank is 1, else several."""

    def rule(node: Node, given: Given) -> Given:
        rows = given[0][0] if given and given[0] else None
        return tuple((rows,) + (None,) * (rank - 1) for rank in ranks)

    return rule


def _length(shape: SymbolicShape | None) -> int | None:
    """Of a vector."""
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None


def _sized(at: int) -> Rule:
    """As many dimensions as that input, a shape, has numbers."""

    def rule(node: Node, given: Given) -> Given:
        length = _length(given[at]) if at < len(given) else None
        return (None if length is None else (None,) * length,)

    return rule


def _changed(sign: int) -> Rule:
    """Squeeze and Unsqueeze by as many axes as input 1 has numbers."""

    def rule(node: Node, given: Given) -> Given:
        count = _length(given[1]) if len(given) > 1 else None
        return (None if count is None or given[0] is None else (None,) * max(len(given[0]) + sign * count, 0),)

    return rule


_ML = "ai.onnx.ml"
_RULES: Mapping[tuple[str, str], Rule] = {
    ("", "Reshape"): _sized(1),
    ("", "ConstantOfShape"): _sized(0),
    ("", "Squeeze"): _changed(-1),
    ("", "Unsqueeze"): _changed(1),
    ("", "SequenceConstruct"): _one_of,
    **{("", op): _same for op in ("SequenceAt", "SequenceErase", "Optional", "OptionalGetElement", "Identity")},
    ("", "SequenceInsert"): _inserted,
    ("", "SplitToSequence"): _split,
    ("", "ConcatFromSequence"): _joined,
    **{(_ML, op): _same for op in ("Scaler", "Imputer", "Normalizer", "Binarizer", "LabelEncoder", "CategoryMapper")},
    **{(_ML, op): _rows(1, 2) for op in ("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier")},
    **{(_ML, op): _rows(2) for op in ("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor", "FeatureVectorizer")},
}
