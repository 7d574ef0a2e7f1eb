"""The partitioner as a session asks it: what an earlier process decided on the same graph is read, and no row is
loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ort_gpu_ep import partitioner
from ort_gpu_ep.config import NO_PLAN, OPTIONS, Config
from ort_gpu_ep.ir.digest import digest, graph_digest, is_large
from ort_gpu_ep.ir.graph import Array, Graph, Value, fits_half, nonzeros_of
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.host import MAX_CONSTANT_NBYTES
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.kernels.target import HALVED
from ort_gpu_ep.partitioner.report import CODEC, Partitioning, Report
from ort_gpu_ep.processes.interrupts import load
from ort_gpu_ep.runtime.artefact import Artefact
from ort_gpu_ep.runtime.known_plans import answer, said

if TYPE_CHECKING:
    from ort_gpu_ep.partitioner import Costs


def load_partitioner() -> None:
    """With all rows, which fill the registry. A callback of onnxruntime's may call it."""
    load("ort_gpu_ep.partitioner.decide")


def partition(
    artefact: Artefact | None,
    graph: Graph,
    config: Config,
    limits: Limits,
    software: bool,
    costs: Costs | None,
    inner: Mapping[int, Sequence[Report]],
    resident: bool,
) -> Partitioning:
    """As the partitioner decides, see there."""
    halves, contents = limits.precision in HALVED, dict[str, str]()

    def decided() -> Partitioning:
        load_partitioner()
        return partitioner.partition(
            _watched(graph, halves, contents), config, limits, software, costs, inner, resident
        )

    if artefact is None:
        return decided()

    def asked() -> str:
        options = {o.name: getattr(config, o.name) for o in OPTIONS if o.name not in NO_PLAN}
        return digest(
            "partitioning",
            graph.name,
            graph_digest(graph, MAX_CONSTANT_NBYTES, halves),
            options,
            *said(limits),
            software,
            costs,
            dict(inner),
            resident,
        )

    def read(data: Mapping[str, Any]) -> Partitioning:
        for name, content in data["contents"].items():
            load = graph.values[name].load
            if load is None or digest(load()) != content:
                raise ValueError(f"the content of {name!r} is another one")
        return _checked(CODEC.decode(Partitioning, data["rows"]), graph)

    partitioning = answer(
        artefact, asked, read, lambda found: {"contents": contents, "rows": CODEC.encode(found)}, decided
    )
    if config.placement == "auto" and [p.candidate for p in partitioning.report.predictions[:1]] == ["gpu"]:
        # what the session will be made with that runs the winner; most often another process makes it
        partition(artefact, graph, replace(config, placement="gpu"), limits, software, None, inner, resident)
    return partitioning


def rewrite(
    graph: Graph, inputs: Mapping[str, TensorType], limits: Limits, *, known: Mapping[str, Array] | None = None
) -> Graph:
    """The partitioner's, which is loaded when it is first wanted."""
    load_partitioner()
    return partitioner.rewrite(graph, inputs, limits, known=known)


def _watched(graph: Graph, halves: bool, contents: dict[str, str]) -> Graph:
    """The graph, whose large constants tell `contents` that they were read: by name, a hash. What `graph_digest` knows
    needs no reading."""

    def watched(value: Value) -> Value:
        def read() -> Array:
            array = value.load() if value.load is not None else None
            assert array is not None, "a constant"
            contents[value.name] = digest(array)
            return array

        return replace(value, load=read, nonzeros=nonzeros_of(value), fits_half=fits_half(value) if halves else None)

    large = {name: watched(v) for name, v in graph.values.items() if v.is_constant and is_large(v, MAX_CONSTANT_NBYTES)}
    return graph.with_nodes(graph.nodes, large) if large else graph


def _checked(found: Partitioning, graph: Graph) -> Partitioning:
    """Raises ValueError for groups of nodes that are not the graph's, or in two of them."""
    ids, grouped = {node.id for node in graph.nodes}, [i for group in found.groups for i in group]
    if len({*grouped}) < len(grouped) or not ids.issuperset(grouped) or not all(found.groups):
        raise ValueError(f"groups {str(found.groups)[:60]} are not of nodes of the graph")
    if found.report.graph != graph.name or not ids.issuperset(n.id for n in found.report.nodes):
        raise ValueError(f"the report is on another graph, {found.report.graph[:60]!r}")
    return found
