"""The partitioner: fuse, claim, place, group, and check each group on its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import Code, InternalError
from ort_gpu_ep.ir.graph import Graph, Node
from ort_gpu_ep.ir.symbolic import hint, mapped, plain
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels import host
from ort_gpu_ep.kernels.halves import halved_nbytes, left_whole
from ort_gpu_ep.kernels.lowering import Answer, Facts, HostValues, facts_of, walk
from ort_gpu_ep.kernels.registry import BoundNode, Decline, Limits, Lowering, spec_of
from ort_gpu_ep.kernels.target import Target
from ort_gpu_ep.ops.pruned import packed_nbytes
from ort_gpu_ep.partitioner import bodies, ranks, sizes
from ort_gpu_ep.partitioner.absorption import packed_weights
from ort_gpu_ep.partitioner.costs import Costs, Prices, predict, price
from ort_gpu_ep.partitioner.cut import cheapest_on_gpu
from ort_gpu_ep.partitioner.damage import complaints, with_damage
from ort_gpu_ep.partitioner.grouping import boundary, convex_groups
from ort_gpu_ep.partitioner.passes import fuse
from ort_gpu_ep.partitioner.report import NodeReport, Partitioning, PartitionReport, Prediction, Report
from ort_gpu_ep.partitioner.sizes import Guess
from ort_gpu_ep.partitioner.solving import BY_SIZES, ROUNDS, Solution, Solver

T = TypeVar("T")


@dataclass
class _State:
    """One attempt with one guess. graph: fused; source: before that. declined: by id of the (fused) node. events: what
    went wrong, in sentences. guessed: nodes are declined for what was guessed.
    """

    graph: Graph
    source: Graph
    facts: Facts
    answers: dict[int, tuple[Node, Answer, BoundNode | None]]
    declined: dict[int, Decline]
    events: list[str] = field(default_factory=list)
    guessed: bool = False

    def taken(self, node: Node) -> bool:
        return id(node) not in self.declined


def partition(
    graph: Graph,
    config: Config,
    limits: Limits,
    software: bool,
    costs: Costs | None = None,
    inner: Mapping[int, Sequence[Report]] | None = None,
    resident: bool = False,
) -> Partitioning:
    """Decides for every node of a graph.

    software: the adapter is the CPU in disguise; placement=auto then takes nothing, unless the adapter was asked for by
    name. costs: what placement=auto decides by, and bodies of Loop and Scan. inner: what was decided on the bodies of
    its own If, Loop and Scan, by id of the node. resident: whether the session's values stay on the device, and so If,
    Loop and Scan can be ours.
    """
    costs, inner = costs or Costs(), inner or {}
    if config.placement == "cpu":
        return nothing(graph, config, Decline(Code.COST, "placement=cpu"))
    if config.placement == "auto" and software and not config.adapter:
        return nothing(
            graph, config, Decline(Code.COST, "placement=auto: the adapter is software, the CPU itself is faster")
        )
    graph = with_damage(graph)
    state = _best_attempt(graph, config, limits, costs, inner)
    state.events += complaints(graph)
    _decline_all(
        state,
        bodies.deciding(state.graph),
        Code.HOST,
        "it gives the loop's condition: on the GPU, each turn would wait for it",
    )
    ours = resident and bodies.can_be_ours(graph)
    measured, choice = sum((node.id, node.op) in costs.cpu_s for node in graph.nodes), None
    if config.placement == "auto":
        state, groups, predictions = _cheapest(graph, state, config, limits, costs)
    else:
        groups, predictions = _settle(state, config, limits), ()
        if graph.parent is not None:
            groups, choice = _body(graph, state, groups, config, costs, inner, ours)
            predictions, measured = choice.predictions, 0
    report = replace(
        _report(graph, state, groups, config, limits),
        predictions=predictions,
        measured=measured,
        able=ours,
        resident=choice is not None and choice.resident,
        guessed=state.guessed,
        ranks=ranks.ranks_of(graph, inner, {name: tensor.rank for name, tensor in state.facts.types.items()}),
    )
    return Partitioning(
        tuple(tuple(i for node in g for i in node.members) for g in groups), bodies.seen(report, graph.nodes, inner)
    )


def _body(
    graph: Graph,
    state: _State,
    groups: list[list[Node]],
    config: Config,
    costs: Costs,
    inner: Mapping[int, Sequence[Report]],
    ours: bool,
) -> tuple[list[list[Node]], bodies.Choice]:
    """What is left of the groups of a body, and why."""
    prices = price(state.graph, {n.id: n for n in graph.nodes}, state.answers, state.facts, replace(costs, cpu_s={}))
    choice = bodies.choose(state.graph, *bodies.with_inner(prices, state.graph, groups, inner), ours, config.strict)
    if not choice.on_cpu:
        return groups, choice
    _decline_all(state, [node for group in groups for node in group], Code.COST, choice.why)
    return [], choice


def nothing(graph: Graph, config: Config, decline: Decline) -> Partitioning:
    """All on the CPU, for one reason."""
    nodes = tuple(NodeReport(n.id, n.label, n.op, "cpu", decline.code, decline.reason) for n in graph.nodes)
    return Partitioning((), Report(graph.name, graph.nested, nodes, (), config.placement))


def _best_attempt(
    graph: Graph, config: Config, limits: Limits, costs: Costs, inner: Mapping[int, Sequence[Report]]
) -> _State:
    """The guess with which most nodes are claimed, of ranks that the graph does not tell, and of sizes. Other sizes are
    looked at with the best ranks only: each look walks the graph some ten times."""
    types = sizes.given_types(graph, costs.shapes, costs.node_shapes) if not graph.nested else {}
    graph, best, ranked = ranks.as_shown(graph, types), None, False
    rest: Iterator[_State] = iter(())
    for guess in ranks.guesses(graph, inner):
        states = _by_sizes(ranks.with_ranks(graph, inner, guess), config, limits, types)
        state = next(states)
        if best is None or len(state.declined) < len(best.declined):
            best, rest, ranked = state, states, guess.rank is not None
        if not _declined_by_guess(best):
            break
    assert best is not None
    for state in rest if _declined_by_guess(best) else ():
        best = state if len(state.declined) < len(best.declined) else best
        if not _declined_by_guess(best):
            break
    best.guessed |= ranked and bool(_declined_by_guess(best))
    return best


def _by_sizes(graph: Graph, config: Config, limits: Limits, given: Mapping[str, TensorType]) -> Iterator[_State]:
    """With what a run has shown there is one guess; else one after another, but those that decline the same nodes as one
    before. The graph says which sizes it needs."""
    looked_at = list[set[int]]()
    for size in sizes.CANDIDATES[:1] if given or sizes.is_static(graph, graph.inputs) else sizes.CANDIDATES:
        guess = Guess(size)
        state = _attempt(graph, config, limits, given, guess)
        declined = _declined_by_guess(state)
        if declined not in looked_at:
            looked_at.append(declined)
            yield _solved(state, graph, config, limits, given, guess)


def _solved(
    state: _State, graph: Graph, config: Config, limits: Limits, given: Mapping[str, TensorType], guess: Guess
) -> _State:
    """The attempt with a guess, or with what it becomes where the graph needs other sizes. Reasons say where they
    follow from it."""
    best, solution, solver = state, Solution(guess, {}), Solver(graph, limits, guess, given)
    for _ in range(ROUNDS):
        if not (declined := _declined_by_guess(state)):  # what follows a node may be declined once that one is not
            return state
        before, solution = solution, solver.solve(declined)
        if solution.guess == before.guess:
            break
        state = _attempt(graph, config, limits, given, solution.guess)
        best = state if len(state.declined) < len(best.declined) else best
    best.guessed = solver.guesses and bool(_declined_by_guess(best))
    return _with_guesses(best, graph, solution)


def _at_most(value: T, facts: Facts) -> T:
    """With the most that there can be of what a run counts: nothing else is a size of a run here. Where no node before
    counts, the facts have no trace."""
    return value if facts.trace is None else cast(T, mapped(value, hint))


def _declined_by_guess(state: _State) -> set[int]:
    """Ids of the nodes that other sizes or ranks might cure."""
    values = state.graph.values
    return {
        member
        for node, answer, _ in state.answers.values()
        if isinstance(answer, Decline)
        and answer.code in BY_SIZES
        and all(name not in values or values[name].dtype is not None for name in node.reads)
        for member in node.members
    }


def _attempt(graph: Graph, config: Config, limits: Limits, given: Mapping[str, TensorType], guess: Guess) -> _State:
    inputs = {**sizes.input_types(graph, guess), **{name: given[name] for name in graph.inputs if name in given}}
    wrong = sizes.misjudged(graph)

    def otherwise(name: str) -> TensorType | None:
        """What declined nodes write: what a run has shown, or ONNX Runtime's shape inference says, where it is
        right."""
        if name in given:
            return given[name]
        return sizes.stand_in(graph.values[name], guess) if name in graph.values and name not in wrong else None

    fused = fuse(graph, inputs, limits, otherwise) if config.fusion else graph
    facts = facts_of(fused, inputs)
    answers = {
        id(node): (node, _at_most(answer, facts), _at_most(bound, facts))
        for node, answer, bound in walk(fused, facts, limits, otherwise)
    }
    if facts.trace is not None:
        facts.types = {name: _at_most(tensor, facts) for name, tensor in facts.types.items()}
    declined = {key: answer for key, (_, answer, _) in answers.items() if isinstance(answer, Decline)}
    return _State(fused, graph, facts, answers, declined)


def _with_guesses(state: _State, graph: Graph, solution: Solution) -> _State:
    """With what reasons follow from, where that is a guess."""
    for key, decline in list(state.declined.items()):
        members = state.answers[key][0].members
        dimensions = next((solution.depends[member] for member in members if member in solution.depends), ())
        if dimensions:
            state.declined[key] = replace(
                decline, reason=f"{decline.reason}; {sizes.guessed(graph, solution.guess, dimensions)}"
            )
    return state


def _cheapest(
    graph: Graph,
    state: _State,
    config: Config,
    limits: Limits,
    costs: Costs,
) -> tuple[_State, list[list[Node]], tuple[Prediction, ...]]:
    """The assignment with the least predicted time of three: everything on the CPU, everything that can on the GPU, the
    minimum cut."""
    prices = price(state.graph, {n.id: n for n in graph.nodes}, state.answers, state.facts, costs)
    for key, error in prices.failed.items():
        label = state.answers[key][0].label
        if config.strict:
            raise InternalError(f"{label}: its time can't be predicted: {error}")
        state.declined.setdefault(key, Decline(Code.COST, f"its time can't be predicted: {error}"))
        state.events.append(f"{label} stays on the CPU, its time can't be predicted: {error}")
    every = _copy(state, {})
    every_group = _settle(every, config, limits)
    on_gpu = cheapest_on_gpu(prices.nodes, prices.crossings)
    kept = {
        key: Decline(Code.COST, "predicted to be faster here: the cheapest cut leaves it on the CPU")
        for key, (_, answer, _) in state.answers.items()
        if isinstance(answer, Lowering) and key not in on_gpu
    }
    cut = _copy(state, kept)
    cut_groups = _without_losers(cut, _settle(cut, config, limits), prices)
    options = [(predict("gpu", prices, every_group), every, every_group), (predict("cpu", prices, ()), state, [])]
    if cut_groups and {id(n) for g in cut_groups for n in g} != {id(n) for g in every_group for n in g}:
        options.append((predict("cut", prices, cut_groups), cut, cut_groups))
    options.sort(key=lambda option: option[0].total_s)
    best, chosen, groups = options[0]
    if best.candidate == "cpu":
        chosen = _copy(state, {})
        why = f"the whole is predicted to take {best} and {options[1][0]}"
        _decline_all(
            chosen,
            [node for node, answer, _ in state.answers.values() if not isinstance(answer, Decline)],
            Code.COST,
            why,
        )
    return chosen, groups, tuple(prediction for prediction, _, _ in options)


def _copy(state: _State, declined: Mapping[int, Decline]) -> _State:
    return replace(state, answers=dict(state.answers), declined={**declined, **state.declined})


def _without_losers(state: _State, groups: list[list[Node]], prices: Prices) -> list[list[Node]]:
    """Drops groups whose copies and waits cost more than they gain: grouping may have split what the cut took for one
    piece."""
    best = predict("cut", prices, groups).total_s
    for group in sorted(groups, key=len):
        rest = [g for g in groups if g is not group]
        total_s = predict("cut", prices, rest).total_s
        if total_s < best:
            _decline_all(
                state,
                group,
                Code.COST,
                f"its group of {len(group)} is predicted to cost more in transfers than it gains",
            )
            groups, best = rest, total_s
    return groups


def _settle(state: _State, config: Config, limits: Limits) -> list[list[Node]]:
    """Groups until every one stands on its own: a node may need a value that the host knew only outside its group."""
    while True:
        groups = convex_groups(state.graph.nodes, state.taken, state.facts.breaks)
        before = len(state.declined)
        for group in groups:
            _check_group(state, group, config, limits)
        if len(state.declined) == before:
            return groups


def _check_group(state: _State, group: list[Node], config: Config, limits: Limits) -> None:
    graph = state.graph
    names, outputs = boundary(group, graph.nodes, graph.outputs)
    constants = {n for n in names if graph.values.get(n) is not None and graph.values[n].is_constant}
    inputs = {n: state.facts.types[n] for n in names if n not in constants and n in state.facts.types}
    alone = Graph(graph.name, tuple(inputs), tuple(outputs), tuple(group), graph.values, graph.nested)
    facts = facts_of(alone, inputs)
    answers = list(walk(alone, facts, limits, state.facts.types.get))
    for node, answer, _ in answers:
        if isinstance(answer, Decline):
            state.declined[id(node)] = answer
        state.answers[id(node)] = (node, _at_most(answer, facts), state.answers[id(node)][2])
    if not any(id(node) in state.declined for node in group):
        _decline_open(state, alone, answers, inputs, limits)
    for name in (*inputs, *outputs):
        if name not in state.facts.types:
            _decline_all(
                state,
                group,
                Code.DYNAMIC_SHAPE,
                f"type or rank of {name!r}, which crosses the group's border, is unknown",
            )
            return
    lowered = [a for _, a, _ in answers if isinstance(a, Lowering)]
    if not lowered or (config.placement == "auto" and not any(a.kernels for a in lowered)):
        _decline_all(state, group, Code.COST, "no node near it needs a kernel: the GPU would have nothing to compute")


def _decline_open(
    state: _State,
    alone: Graph,
    found: Sequence[tuple[Node, Answer, BoundNode | None]],
    inputs: Mapping[str, TensorType],
    limits: Limits,
) -> None:
    """Declines what only one size lets the host compute: with the sizes of a run it is a kernel, and so is what reads
    it."""
    opened = sizes.opened(alone, inputs)
    varying, names = set[str](), set[str]()
    for node, answer, _ in found if opened is not None else ():
        if isinstance(answer, HostValues) and _reads_content(alone, node):
            varying |= set(node.writes)
        if varying & {*node.reads, *node.writes}:
            names |= set(node.writes)
            varying |= set(node.writes) if isinstance(answer, HostValues) and not host.is_shape_only(node) else set()
    if opened is None or not names:
        return
    nodes = []
    for node in reversed(alone.nodes):
        if names & set(node.writes):
            nodes.append(node)
            names |= set(node.reads)
    asked = alone.with_nodes(tuple(reversed(nodes)))
    declined = _declines(asked, opened, limits, state)
    # a plan then leaves them as they were
    if fused := [node for node in asked.nodes if id(node) in declined and len(node.members) > 1]:
        members = {i: node for node in fused for i in node.members}
        single = [node for node in state.source.nodes if node.id in members]
        parted = asked.with_nodes(
            tuple(
                n
                for node in asked.nodes
                for n in ([s for s in single if members[s.id] is node] if any(node is f for f in fused) else [node])
            )
        )
        still = _declines(parted, opened, limits, state)
        declined = {id(members.get(n.id, n)): still[id(n)] for n in parted.nodes if id(n) in still}
    for key, decline in declined.items():
        state.declined[key] = replace(decline, reason=plain(decline.reason))


def _declines(graph: Graph, inputs: Mapping[str, TensorType], limits: Limits, state: _State) -> dict[int, Decline]:
    """By id of the node."""
    answers = walk(graph, facts_of(graph, inputs), limits, state.facts.types.get)
    return {id(node): answer for node, answer, _ in answers if isinstance(answer, Decline)}


def _reads_content(graph: Graph, node: Node) -> bool:
    """Whether the shape of what a node writes follows from the content of an input that a run brings."""
    if host.is_shape_only(node):
        return False
    spec = spec_of(node)
    bindings = spec.inputs if spec is not None else ()
    read = [
        name
        for k, name in enumerate(node.inputs)
        if name and not (bindings and bindings[min(k, len(bindings) - 1)].bound)
    ]
    return any(name not in graph.values or not graph.values[name].is_constant for name in read)


def _decline_all(state: _State, group: Sequence[Node], code: Code, reason: str) -> None:
    for node in group:
        state.declined.setdefault(id(node), Decline(code, reason))


def _report(graph: Graph, state: _State, groups: list[list[Node]], config: Config, limits: Limits) -> Report:
    group_of = {id(node): k for k, group in enumerate(groups) for node in group}
    reports: dict[int, NodeReport] = {}
    originals = {n.id: n for n in graph.nodes}
    for node in state.graph.nodes:
        for member in node.members:
            reports[member] = _node_report(originals[member], node, state, group_of)
    exact = sizes.is_static(graph, graph.inputs)
    partitions = tuple(_partition_report(k, group, state, exact, limits) for k, group in enumerate(groups))
    return Report(
        graph.name,
        graph.nested,
        tuple(reports[n.id] for n in graph.nodes if n.id in reports),
        partitions,
        config.placement,
        events=tuple(state.events),
    )


def _node_report(node: Node, fused: Node, state: _State, group_of: Mapping[int, int]) -> NodeReport:
    decline = state.declined.get(id(fused))
    values, types = state.graph.values, state.facts.types
    report = NodeReport(
        node.id,
        node.label,
        node.op,
        "cpu",
        reads=tuple(name for name in node.reads if name not in values or not values[name].is_constant),
        writes=tuple(node.writes),
        nbytes=sum(types[name].nbytes for name in node.writes if name in types),
    )
    if decline is not None:
        return replace(report, code=decline.code, reason=decline.reason)
    into = fused.label if len(fused.members) > 1 and fused.label != node.label else ""
    answer = state.answers[id(fused)][1]
    device = "host" if isinstance(answer, HostValues) else "gpu"
    return replace(report, device=device, partition=group_of[id(fused)], fused_into=into)


def _partition_report(index: int, group: list[Node], state: _State, exact: bool, limits: Limits) -> PartitionReport:
    graph = state.graph
    names, outputs = boundary(group, graph.nodes, graph.outputs)
    weights = [n for n in names if n in graph.values and graph.values[n].is_constant]
    inputs = [n for n in names if n not in weights]

    def total(values: list[str]) -> int:
        return sum(state.facts.types[n].nbytes for n in values if n in state.facts.types)

    bounds = [replace(b, target=Target(limits)) for n in group if (b := state.answers[id(n)][2]) is not None]
    lowered = [a for n in group if isinstance(a := state.answers[id(n)][1], Lowering)]
    alone = Graph(graph.name, tuple(inputs), tuple(outputs), tuple(group), graph.values, graph.nested)
    packed = packed_weights(alone, state.facts, limits)
    pruned = [packed_nbytes(a) for a in lowered]
    return PartitionReport(
        index,
        sum(len(n.members) for n in group),
        sum(len(a.per_run) for a in lowered),
        tuple(inputs),
        tuple(outputs),
        total(inputs),
        total(outputs),
        total(weights),
        exact,
        packed.packed_nbytes + sum(to for to, _ in pruned),
        packed.dense_nbytes + sum(of for _, of in pruned),
        packed.unpacked,
        sum(map(halved_nbytes, lowered)),
        tuple(
            dict.fromkeys(
                name for bound in bounds if (spec := spec_of(bound.node)) for name in left_whole(bound, spec.weights)
            )
        ),
    )
