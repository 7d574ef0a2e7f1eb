"""Sizes that open dimensions must have for a graph's nodes to be possible, found from what rows compare.

A row says what it needs by comparing sizes (a Conv its channels, an Add the two shapes): there is no second list of
such rules. The graph is walked with a symbol for each open dimension, the comparison that led to a decline is noted,
and sizes are searched for which it has the other answer. What remains declined then contradicts something else than a
guess, or something that no search of one size cures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, cast

from ort_gpu_ep.errors import Code
from ort_gpu_ep.ir.formula import Formula
from ort_gpu_ep.ir.graph import Graph
from ort_gpu_ep.ir.symbolic import Size, Terms, Trace
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.lowering import facts_of, walk
from ort_gpu_ep.kernels.registry import Decline, Limits
from ort_gpu_ep.partitioner.sizes import Dimension, Guess, misjudged, stand_in

BY_SIZES = frozenset((Code.RANK, Code.ATTRIBUTE, Code.LIMIT, Code.NOT_CONSTANT, Code.DYNAMIC_SHAPE))
"""Codes of declines that other sizes may cure."""

ROUNDS = 16
"""Walks of a graph: what is behind a node is asked with its true sizes only once it is taken."""

LAST = 6
"""Comparisons of a declined node that are tried, the last one first: most often it is the one that raised."""

NEAR = 1024
"""Sizes that are tried one by one, on each side of the present one."""

FAR = 1 << 26
"""The largest size that is tried."""

DEPTH, TRIES = 8, 64
"""Sizes that are changed, one after another, so that a comparison and all earlier ones have their answers; searches for
that, in all."""


@dataclass(frozen=True)
class Solution:
    """guess: the sizes with which most nodes are possible. depends: ids of nodes that are declined with them -> the
    dimensions that the row has compared before it declined.
    """

    guess: Guess
    depends: Mapping[int, tuple[Dimension, ...]]


class _Asked(Trace):
    """A trace that notes each comparison and learns nothing: all of them can be changed. log: (polynomial, relation,
    answer)."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[Terms, str, bool]] = []

    def answer(self, terms: Terms, relation: str, hint: int) -> bool:
        holds = hint == 0 if relation == "==" else hint < 0
        if any(atoms for atoms, _ in terms):
            self.log.append((terms, relation, holds))
        return holds

    def keep(self, terms: Terms, relation: str, answer: bool) -> None:
        """Nothing is kept."""


@dataclass(frozen=True)
class _Law:
    """A polynomial that is to be in a relation to zero, or not to be. places: of the open dimensions that it is made
    of."""

    value: Callable[[Sequence[int]], int | None]
    relation: str
    answer: bool
    places: tuple[int, ...]

    def holds(self, numbers: Sequence[int]) -> bool:
        value = self.value(numbers)
        return value is not None and (value == 0 if self.relation == "==" else value < 0) == self.answer


@dataclass
class _Walked:
    """What a walk has found. declined: node id -> the comparisons before its decline, oldest first."""

    trace: _Asked
    declined: dict[int, list[tuple[Terms, str, bool]]] = field(default_factory=dict)

    @property
    def left(self) -> tuple[int, int]:
        """Nodes that are declined; of as many, those are nearer to being taken whose rows came further."""
        return len(self.declined), -sum(map(len, self.declined.values()))


class Solver:
    """For one graph. fixed: types of inputs that a run has shown."""

    def __init__(self, graph: Graph, limits: Limits, guess: Guess, fixed: Mapping[str, TensorType]) -> None:
        self._graph, self._limits, self._fixed, self._guess = graph, limits, fixed, guess
        self._wrong, self._laws, self._tried = misjudged(graph), list[_Law](), set[tuple[int, str, tuple[int, ...]]]()
        self._dimensions: list[Dimension] = []
        self._places: dict[Dimension, int] = {}
        self._numbers: list[int] = []
        self._of_name: dict[str, list[int]] = {}
        self._left = 0

    def solve(self, declined: Collection[int]) -> Solution:
        """With the sizes that it has found before, which stay right. declined: ids of the nodes that are declined with
        these."""
        part = _before(self._graph, declined)
        walked = self._walk(part)
        best, numbers = walked, list(self._numbers)
        for _ in range(ROUNDS):
            if not self._improve(walked):
                break
            walked = self._walk(part)
            if walked.left < best.left:
                best, numbers = walked, list(self._numbers)
            if not walked.declined:
                break
        self._numbers[: len(numbers)] = numbers
        # a later walk may have met more dimensions
        by_dimension = dict(zip(self._dimensions, numbers, strict=False))
        depends = {
            key: self._named(self._places_of(best.trace, (terms for terms, _, _ in log)))
            for key, log in best.declined.items()
        }
        return Solution(
            replace(self._guess, sizes={**self._guess.sizes, **by_dimension}),
            {k: laws for k, laws in depends.items() if laws},
        )

    def _improve(self, walked: _Walked) -> bool:
        """Changes sizes so that comparisons have the other answer for which nodes were declined. Whether any was."""
        changed = False
        for key, log in walked.declined.items():
            for terms, relation, answer in reversed(log[-LAST:]):
                law = self._law(walked.trace, terms, relation, not answer)
                if law.holds(self._numbers):  # cured with another node
                    changed = True
                    break
                if (key, relation, law.places) in self._tried:
                    continue
                self._tried.add((key, relation, law.places))
                self._left = TRIES
                numbers = self._repaired(self._numbers, [law, *self._laws], frozenset())
                if numbers is not None:
                    self._numbers, changed = numbers, True
                    self._laws.append(law)
                    break
        return changed

    @property
    def guesses(self) -> bool:
        """Whether the nodes that were asked about read sizes that nobody gave."""
        return bool(self._dimensions)

    # ---- asking

    def _walk(self, graph: Graph) -> _Walked:
        walked = _Walked(trace := _Asked())
        types = {name: tensor for name in graph.inputs if (tensor := self._type(trace, name)) is not None}
        facts, log = facts_of(graph, types), trace.log
        log.clear()
        for node, answer, _ in walk(graph, facts, self._limits, lambda name: self._otherwise(trace, name)):
            if isinstance(answer, Decline) and answer.code in BY_SIZES and log:
                walked.declined[node.id] = list(log)
            log.clear()
        return walked

    def _type(self, trace: Trace, name: str) -> TensorType | None:
        value = self._graph.values.get(name)
        if name in self._fixed or value is None:
            return self._fixed.get(name)
        tensor = stand_in(value, self._guess)
        if tensor is None or value.shape is None:
            return tensor
        shape = [
            size if size == declared else self._symbol(trace, Dimension(name, axis), size, declared)
            for axis, (size, declared) in enumerate(zip(tensor.shape, value.shape, strict=True))
        ]
        return TensorType(tensor.dtype, tuple(shape))

    def _otherwise(self, trace: Trace, name: str) -> TensorType | None:
        return self._type(trace, name) if name not in self._wrong else None

    def _symbol(self, trace: Trace, dimension: Dimension, size: int, declared: Any) -> int:
        place = self._places.get(dimension)
        if place is None:
            place = self._places[dimension] = len(self._dimensions)
            self._dimensions.append(dimension)
            if isinstance(declared, str):
                others = self._of_name.setdefault(declared, [])
                size = self._numbers[others[0]] if others and dimension.value not in self._graph.inputs else size
                others.append(place)
            self._numbers.append(size)
        return trace.symbol(place, self._numbers[place])

    # ---- searching

    def _law(self, trace: _Asked, terms: Terms, relation: str, answer: bool) -> _Law:
        bare = Trace()
        bare.atoms, bare.hints = list(trace.atoms), list(trace.hints)
        formula = Formula(bare, [cast(Any, Size(bare, terms, 0))])

        def value(numbers: Sequence[int]) -> int | None:
            number = formula(numbers)
            return None if number is None else int(number[0])

        return _Law(value, relation, answer, self._places_of(trace, [terms]))

    def _places_of(self, trace: Trace, polynomials: Iterable[Terms]) -> tuple[int, ...]:
        places = dict.fromkeys(place for terms in polynomials for place in trace.symbols_in(terms))
        return tuple(places)

    def _named(self, places: Iterable[int]) -> tuple[Dimension, ...]:
        return tuple(self._dimensions[place] for place in places)

    def _repaired(self, numbers: list[int], laws: Sequence[_Law], locked: frozenset[int]) -> list[int] | None:
        """Sizes for which all the laws hold: each that does not changes some that are not locked."""
        broken = next((law for law in laws if not law.holds(numbers)), None)
        if broken is None:
            return numbers
        for places in self._groups(broken, numbers) if len(locked) < DEPTH else ():
            if locked.isdisjoint(places) and self._left > 0:
                self._left -= 1
                changed = _moved(broken, numbers, places)
                repaired = self._repaired(changed, laws, locked.union(places)) if changed is not None else None
                if repaired is not None:
                    return repaired
        return None

    def _groups(self, law: _Law, numbers: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """What is changed together: those that are alike (an image is square), those of one name, each alone."""
        units = {place: tuple(self._of_name.get(self._name(place), (place,))) for place in law.places}
        alike = tuple(
            dict.fromkeys(p for place in law.places if numbers[place] == numbers[law.places[-1]] for p in units[place])
        )
        yield from dict.fromkeys(
            (alike, *(units[place] for place in reversed(law.places)), *((place,) for place in reversed(law.places)))
        )

    def _name(self, place: int) -> str:
        value, axis = self._dimensions[place]
        name = (self._graph.values[value].shape or ())[axis]
        return name if isinstance(name, str) else ""


def _moved(law: _Law, numbers: Sequence[int], places: tuple[int, ...]) -> list[int] | None:
    """The sizes with another one at these places, for which the law holds: the nearest one, or one that is far away."""
    changed, now = list(numbers), numbers[places[0]]

    def at(size: int) -> list[int]:
        for place in places:
            changed[place] = size
        return changed

    near = chain(range(now, now + NEAR), range(now - 1, max(now - NEAR, 0), -1))
    if any(law.holds(at(size)) for size in near):
        return changed
    low, high = now, now + NEAR
    start = law.value(at(low))
    while high < FAR and start is not None:
        value = law.value(at(high))
        if value is None or (value > 0) != (start > 0) or value == 0:
            break
        high *= 2
    while high - low > 1:  # the value of a size grows with it, or falls
        middle = (low + high) // 2
        value = law.value(at(middle))
        if value is None or start is None:
            return None
        low, high = (middle, high) if (value > 0) == (start > 0) and value != 0 else (low, middle)
    return changed if law.holds(at(high)) else None


def _before(graph: Graph, declined: Collection[int]) -> Graph:
    """The part of a graph that the declined nodes follow from."""
    names, nodes = set[str](), []
    for node in reversed(graph.nodes):
        if node.id in declined or names.intersection(node.writes):
            nodes.append(node)
            names.update(node.reads)
    return graph.with_nodes(tuple(reversed(nodes)))
