"""Cost of each node on each side, cost of moving each value, and the total cost of an assignment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field

from ort_gpu_ep.ir.graph import Graph, Node
from ort_gpu_ep.ir.types import Shape
from ort_gpu_ep.kernels.lowering import Answer, Facts, HostValues
from ort_gpu_ep.kernels.profile import GUESSED, Profile
from ort_gpu_ep.kernels.records import BY_FLOPS, work_of
from ort_gpu_ep.kernels.registry import BoundNode, Lowering, tensors_of
from ort_gpu_ep.partitioner.cut import Crossing, NodeCost
from ort_gpu_ep.partitioner.report import Prediction

CPU_FLOPS = 2e11
"""Floating-point operations a second of ONNX Runtime's CPU kernels in dense layers, on 8-16 cores: for nodes that were
not measured."""

CPU_BYTES = 2e10
"""Bytes a second that its elementwise kernels move."""

CPU_NODE_S = 2e-6
"""What ONNX Runtime's executor spends on one node."""

HOST_S = 9e-5
"""What ONNX Runtime and this package take for a run of a partition, beside what the profile's empty run has: on the 16
cores of an H200's host 90 us, for graphs of one kernel to fifty."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What is known before the graph is seen.

    profile: of the adapter. cpu_s: seconds of each node on the CPU by (id, op), from ONNX Runtime's profile of this
    model; empty where it did not run yet. shapes: of the graph's inputs in the run that was profiled. host_s: of a run
    of a partition, beside the profile's. node_shapes: by (id, op), of what each node wrote in that run.
    """

    profile: Profile = GUESSED
    cpu_s: Mapping[tuple[int, str], float] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    host_s: float = HOST_S
    node_shapes: Mapping[tuple[int, str], tuple[Shape, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prices:
    """The costs of one graph. nodes: by id() of the node. crossings: values that the run computes or is given; names,
    nbytes: theirs.

    failed: by id() of the node, what went wrong where one could not be priced; it has no cost on the GPU.
    """

    nodes: Mapping[Hashable, NodeCost]
    crossings: tuple[Crossing, ...]
    nbytes: tuple[int, ...]
    wait_s: float
    failed: Mapping[int, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    host_s: float = HOST_S


def products_of(bound: BoundNode, answer: Lowering) -> float:
    """Floating-point operations in a node's sums of products, whoever computes them; what only our kernels do more is
    left out."""
    works = (work_of(k, tensors_of(k, answer, bound)) for k in answer.kernels)
    return float(sum(work.flops for work in works if work.family in BY_FLOPS))


def price(
    graph: Graph,
    originals: Mapping[int, Node],
    answers: Mapping[int, tuple[Node, Answer, BoundNode | None]],
    facts: Facts,
    costs: Costs,
) -> Prices:
    """Prices of a (fused) graph. originals: the nodes before fusion, by id. answers: by id() of the node."""
    nodes, failed = dict[Hashable, NodeCost](), dict[int, str]()
    for key, (node, answer, bound) in answers.items():
        try:
            nodes[key] = _node_cost(node, originals, answer, bound, costs)
        except (
            Exception
        ) as error:  # of one record: the other nodes are priced all the same, and the caller says which one is not
            nodes[key], failed[key] = (
                NodeCost(_measured_s(node, originals, costs), None),
                f"{type(error).__name__}: {error}",
            )
    names = _movable(graph, answers, facts)
    producer = {name: id(n) for n in graph.nodes for name in n.writes}
    readers: dict[str, dict[Hashable | None, None]] = {}
    for node in graph.nodes:
        for name in node.reads:
            readers.setdefault(name, {})[id(node)] = None
    waits = set(readers)
    for name in graph.outputs:
        readers.setdefault(name, {})[None] = None
    profile, crossings, sizes = costs.profile, [], []
    crossed = tuple(n for n in readers if n in names)
    for name in crossed:
        nbytes = facts.types[name].nbytes
        # a CPU node that reads from the GPU waits for it; the user waits anyway
        wait_s = profile.run_s if name in waits else 0.0
        crossings.append(
            Crossing(
                producer.get(name), tuple(readers[name]), profile.upload_s(nbytes), profile.download_s(nbytes) + wait_s
            )
        )
        sizes.append(nbytes)
    return Prices(nodes, tuple(crossings), tuple(sizes), profile.run_s, failed, crossed, costs.host_s)


def _movable(graph: Graph, answers: Mapping[int, tuple[Node, Answer, BoundNode | None]], facts: Facts) -> set[str]:
    """Values that may cross during a run: neither constants nor what the host computes once per shape."""
    hosted = {name for node, answer, _ in answers.values() if isinstance(answer, HostValues) for name in node.writes}
    constants = {name for name, value in graph.values.items() if value.is_constant}
    return set(facts.types) - hosted - constants


def _measured_s(node: Node, originals: Mapping[int, Node], costs: Costs) -> float:
    """Of the nodes that became this one on the CPU; what the executor spends on it for each that was not measured."""
    return sum(costs.cpu_s.get((member, originals[member].op), CPU_NODE_S) for member in node.members)


def _node_cost(
    node: Node, originals: Mapping[int, Node], answer: Answer, bound: BoundNode | None, costs: Costs
) -> NodeCost:
    cpu_s = _measured_s(node, originals, costs)
    if not isinstance(answer, Lowering) or bound is None:
        return NodeCost(cpu_s, 0.0 if isinstance(answer, HostValues) else None)
    moved = sum(i.type.nbytes for i in bound.given()) + sum(t.nbytes for t in answer.outputs if t is not None)
    if not any((m, originals[m].op) in costs.cpu_s for m in node.members):
        cpu_s += max(products_of(bound, answer) / CPU_FLOPS, moved / CPU_BYTES)
    if answer.deferred:  # what it will dispatch is not known: most such nodes move their input
        return NodeCost(cpu_s, costs.profile.dispatch_s + costs.profile.curve("movement").at(moved))
    return NodeCost(cpu_s, costs.profile.node_s(answer, bound))


def predict(
    candidate: str,
    prices: Prices,
    groups: Collection[Collection[Node]],
    is_there: Callable[[str], bool] = lambda name: False,
) -> Prediction:
    """What a run takes with these groups on the GPU, one after the other with the rest on the CPU.

    is_there: whether whoever gives or wants a value from outside has it on the GPU, too.
    """
    group_of = {id(node): i for i, group in enumerate(groups) for node in group}

    def on_gpu(key: Hashable | None, name: str) -> bool:
        return key in group_of if key is not None else is_there(name)

    cpu_s = sum(cost.cpu_s for key, cost in prices.nodes.items() if key not in group_of)
    gpu_s = sum(cost.gpu_s or 0.0 for key, cost in prices.nodes.items() if key in group_of)
    transfer_s, up, down, waits = 0.0, 0, 0, False
    for crossing, nbytes, name in zip(prices.crossings, prices.nbytes, prices.names, strict=True):
        sides = {on_gpu(reader, name) for reader in crossing.readers}
        if on_gpu(crossing.producer, name):
            if False in sides:
                transfer_s += crossing.download_s
                down += nbytes
                waits = True
        elif True in sides:
            transfer_s += crossing.upload_s
            up += nbytes
    transfer_s += prices.wait_s if waits else 0.0  # the run's last wait; those in between stand in the crossings
    transfer_s += prices.host_s * len(groups)
    return Prediction(candidate, cpu_s + gpu_s + transfer_s, cpu_s, gpu_s, transfer_s, up, down, len(groups))
