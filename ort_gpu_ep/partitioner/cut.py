"""The cheapest assignment of nodes to two sides (CPU and GPU, say), where values between the sides cost, as a minimum
cut.

Source: Stone, Multiprocessor scheduling with the aid of network flow algorithms, IEEE TSE 3(1), 1977. A vertex per
value and direction makes a value pay once however many readers it has; a value with one reader needs none. The flow is
Dinic's (Soviet Math. Doklady 11, 1970).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

PICOSECONDS = 1e12
"""Capacities are whole picoseconds: sums of floats could make a flow algorithm miss equality."""

_ANY = 1 << 60
"""Capacity of what must not be cut: two weeks."""

_FIRST, _SECOND = 0, 1  # vertices: source and sink


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Seconds on each side. gpu_s is None where the node can't run on the GPU."""

    cpu_s: float
    gpu_s: float | None


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that may have to move. producer and readers are keys of nodes; None is the user, who is on the CPU's
    side."""

    producer: Hashable | None
    readers: tuple[Hashable | None, ...]
    upload_s: float
    download_s: float


@dataclass(frozen=True, slots=True)
class Move:
    """A value between the sides. producer, readers: keys of nodes; None is whoever is on the first side in any case.

    there, back: seconds to bring it to the second side, and to the first: once, however many readers are there.
    """

    producer: Hashable | None
    readers: tuple[Hashable | None, ...]
    there: float
    back: float


def cheapest_on_gpu(nodes: Mapping[Hashable, NodeCost], crossings: Sequence[Crossing]) -> set[Hashable]:
    """Keys of the nodes that run on the GPU in an assignment of least total seconds (nodes and transfers)."""
    costs = {key: (cost.cpu_s, math.inf if cost.gpu_s is None else cost.gpu_s) for key, cost in nodes.items()}
    moves = [Move(c.producer, c.readers, c.upload_s, c.download_s) for c in crossings]
    return set(nodes) - first_side(costs, moves)


def first_side(
    nodes: Mapping[Hashable, tuple[float, float]], moves: Sequence[Move], most: bool = False
) -> set[Hashable]:
    """Keys of the nodes on the first side in an assignment of least total seconds; of equal ones that with the fewest
    there (or the most).

    nodes: seconds on the first and on the second side, infinite where it can't be.
    """
    network = _Network(2)
    vertex = {key: network.vertex() for key in nodes}
    for key, (first, second) in nodes.items():
        network.add(vertex[key], _SECOND, first)
        network.add(_FIRST, vertex[key], second)
    for move in moves:
        producer = _FIRST if move.producer is None else vertex[move.producer]
        readers = {_FIRST if key is None else vertex[key] for key in move.readers} - {producer}
        _add_move(network, producer, readers, move)
    reached = network.reached_when_full(_FIRST, _SECOND)
    if most:
        others = network.reaching(_SECOND)
        return {key for key in nodes if vertex[key] not in others}
    return {key for key in nodes if vertex[key] in reached}


def _add_move(network: _Network, producer: int, readers: set[int], move: Move) -> None:
    """What is cut if the producer is on the first side and a reader on the second (there), or the other way round
    (back)."""
    if len(readers) == 1:
        (reader,) = readers
        network.add(producer, reader, move.there)
        network.add(reader, producer, move.back)
    elif readers:
        there, back = network.vertex(), network.vertex()
        network.add(producer, there, move.there)
        network.add(back, producer, move.back)
        for reader in readers:
            network.add(there, reader, math.inf)
            network.add(reader, back, math.inf)


class _Network:
    """A flow network. Edge k and its reverse k ^ 1 stand next to each other."""

    def __init__(self, vertices: int) -> None:
        self.out: list[list[int]] = [[] for _ in range(vertices)]
        self.to: list[int] = []
        self.room: list[int] = []

    def vertex(self) -> int:
        self.out.append([])
        return len(self.out) - 1

    def add(self, start: int, end: int, seconds: float) -> None:
        capacity = _ANY if math.isinf(seconds) else round(seconds * PICOSECONDS)
        if start != end and capacity > 0:
            for vertex, target, room in ((start, end, capacity), (end, start, 0)):
                self.out[vertex].append(len(self.to))
                self.to.append(target)
                self.room.append(room)

    def reached_when_full(self, source: int, sink: int) -> set[int]:
        """The vertices that the source still reaches when no more can flow to the sink."""
        while True:
            distance = self._distances(source)
            if sink not in distance:
                return set(distance)
            self._fill(source, sink, distance)

    def reaching(self, sink: int) -> set[int]:
        """The vertices that still reach the sink."""
        reached, queue = {sink}, [sink]
        for vertex in queue:
            for edge in self.out[vertex]:
                if self.room[edge ^ 1] and self.to[edge] not in reached:
                    reached.add(self.to[edge])
                    queue.append(self.to[edge])
        return reached

    def _distances(self, source: int) -> dict[int, int]:
        """Edges from the source to each vertex that it reaches."""
        distances, queue = {source: 0}, [source]
        for vertex in queue:
            for edge in self.out[vertex]:
                if self.room[edge] and self.to[edge] not in distances:
                    distances[self.to[edge]] = distances[vertex] + 1
                    queue.append(self.to[edge])
        return distances

    def _fill(self, source: int, sink: int, distance: Mapping[int, int]) -> None:
        """Sends what can flow along shortest paths."""
        tried = dict.fromkeys(distance, 0)
        path: list[int] = []
        while True:
            vertex = self.to[path[-1]] if path else source
            if vertex == sink:
                amount = min(self.room[edge] for edge in path)
                for edge in path:
                    self.room[edge] -= amount
                    self.room[edge ^ 1] += amount
                path = path[: next(k for k, edge in enumerate(path) if not self.room[edge])]
                continue
            step = self._step(vertex, distance, tried)
            if step is not None:
                path.append(step)
            elif path:
                tried[self.to[path.pop() ^ 1]] += 1
            else:
                return

    def _step(self, vertex: int, distance: Mapping[int, int], tried: dict[int, int]) -> int | None:
        """The next edge from a vertex that leads further, of those that were not found useless."""
        edges = self.out[vertex]
        while tried[vertex] < len(edges):
            edge = edges[tried[vertex]]
            if self.room[edge] and distance.get(self.to[edge]) == distance[vertex] + 1:
                return edge
            tried[vertex] += 1
        return None
