"""Concrete stand-ins for symbolic shapes, so that rows can be asked before any input is seen.

A claim made with a stand-in is an expectation, not a promise: the plan of each real shape asks the rows again, and a
partition that is declined then runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ort_gpu_ep.graph import Graph, Value
from ort_gpu_ep.types import Shape, TensorType

CANDIDATES = (64, 224, 640)
"""Sizes tried for unknown dimensions, in this order: sequences and tiles, images, documents. The first dimension is the batch."""

_BATCH = 1
"""Broadcasts against the stand-in of a batch that an exporter has put elsewhere (a recurrent state is [layers, batch, units])."""


class Assumption(NamedTuple):
    """What unknown dimensions are taken for. size: of all but the first. wide: names that have it as the first dimension, too."""

    size: int
    wide: frozenset[str] = frozenset()


def assumptions(graph: Graph) -> list[Assumption]:
    """In the order in which they are tried. The last one is for products of a [M, K] by b [K, N]: a name stands for one size."""
    found = [Assumption(size) for size in CANDIDATES]
    shapes = [shape for n in graph.inputs if n in graph.values and (shape := graph.values[n].shape) is not None]
    first = {shape[0] for shape in shapes if len(shape) > 1}
    wide = frozenset(d for shape in shapes for d in (shape[1:] if len(shape) > 1 else shape) if isinstance(d, str) and d in first)
    return [*found, Assumption(CANDIDATES[0], wide)] if wide else found


def stand_in(value: Value, assumption: Assumption) -> TensorType | None:
    """The value's type with every unknown dimension replaced: the first one by 1, others by `size`. None where the rank is unknown."""
    if value.dtype is None or value.shape is None:
        return None
    shape = []
    for axis, dim in enumerate(value.shape):
        known = isinstance(dim, int) and dim >= 0
        is_batch = axis == 0 and len(value.shape) > 1 and dim not in assumption.wide
        shape.append(int(dim) if known else _BATCH if is_batch else assumption.size)    # type: ignore[arg-type]
    return TensorType(value.dtype, tuple(shape))


def is_static(graph: Graph, names: Iterable[str]) -> bool:
    """Whether every named value has a fully known shape."""
    shapes = (graph.values[n].shape for n in names if n in graph.values)
    return all(s is not None and all(isinstance(d, int) and d >= 0 for d in s) for s in shapes)


def input_types(graph: Graph, assumption: Assumption) -> Mapping[str, TensorType]:
    """A stand-in type for each graph input whose rank is known."""
    found = {n: stand_in(graph.values[n], assumption) for n in graph.inputs if n in graph.values}
    return {n: t for n, t in found.items() if t is not None}


def given_types(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, TensorType]:
    """The types of the graph inputs whose shapes a run has shown."""
    found = {}
    for name, shape in shapes.items():
        value = graph.values.get(name)
        if name in graph.inputs and value is not None and value.dtype is not None:
            found[name] = TensorType(value.dtype, shape)
    return found
