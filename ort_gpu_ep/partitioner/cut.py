"""The cheapest assignment of nodes to CPU and GPU, as a minimum cut.

Source: Stone, Multiprocessor scheduling with the aid of network flow algorithms, IEEE TSE 3(1), 1977. A vertex per value and direction
makes a value pay once however many readers it has; a value with one reader needs none.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

PICOSECONDS = 1e12
"""Capacities are whole picoseconds: sums of floats could make a flow algorithm miss equality."""

_CPU, _GPU = "cpu", "gpu"


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Seconds on each side. gpu_s is None where the node can't run on the GPU."""

    cpu_s: float
    gpu_s: float | None


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that may have to move. producer and readers are keys of nodes; None is the user, who is on the CPU's side."""

    producer: Hashable | None
    readers: tuple[Hashable | None, ...]
    upload_s: float
    download_s: float


def cheapest_on_gpu(nodes: Mapping[Hashable, NodeCost], crossings: Sequence[Crossing]) -> set[Hashable]:
    """Keys of the nodes that run on the GPU in an assignment of least total seconds (nodes and transfers)."""
    import networkx as nx  # here: it takes 0.1 s, and a session whose nodes all go to the GPU needs no cut
    from networkx.algorithms.flow import preflow_push

    network = nx.DiGraph()
    network.add_nodes_from([_CPU, _GPU])
    vertex: dict[Hashable, Hashable] = {key: _CPU if cost.gpu_s is None else ("node", key) for key, cost in nodes.items()}
    for key, cost in nodes.items():
        if cost.gpu_s is not None:
            _add(network, vertex[key], _GPU, cost.cpu_s)
            _add(network, _CPU, vertex[key], cost.gpu_s)
    for index, crossing in enumerate(crossings):
        producer = _CPU if crossing.producer is None else vertex[crossing.producer]
        readers: set[Hashable] = {_CPU if key is None else vertex[key] for key in crossing.readers} - {producer}
        _add_crossing(network, index, producer, readers, crossing)
    _, (_, on_gpu) = nx.minimum_cut(network, _CPU, _GPU, flow_func=preflow_push)
    return {key for key in nodes if vertex[key] in on_gpu}


def _add(network: nx.DiGraph, start: Hashable, end: Hashable, seconds: float) -> None:
    """Adds to the capacity between two vertices: several values may join the same pair."""
    if start != end and seconds > 0:
        edge = network.get_edge_data(start, end)
        network.add_edge(start, end, capacity=round(seconds * PICOSECONDS) + (edge["capacity"] if edge else 0))


def _add_crossing(network: nx.DiGraph, index: int, producer: Hashable, readers: set[Hashable], crossing: Crossing) -> None:
    """What is cut if the producer is on the CPU and a reader on the GPU (upload), or the other way round (download)."""
    if len(readers) == 1:
        (reader,) = readers
        _add(network, producer, reader, crossing.upload_s)
        _add(network, reader, producer, crossing.download_s)
    elif readers:
        up, down = ("up", index), ("down", index)
        _add(network, producer, up, crossing.upload_s)
        _add(network, down, producer, crossing.download_s)
        for reader in readers:
            network.add_edge(up, reader)      # no capacity: infinite
            network.add_edge(reader, down)
