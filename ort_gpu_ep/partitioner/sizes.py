"""Concrete stand-ins for symbolic shapes, so that rows can be asked before any input is seen.

A claim made with a stand-in is an expectation, not a promise: the plan of each real shape asks the rows again, and a
partition that is declined then runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ort_gpu_ep.graph import Graph, Value
from ort_gpu_ep.types import Shape, TensorType

CANDIDATES = (64, 224, 640)
"""Sizes tried for unknown dimensions, in this order: sequences and tiles, images, documents. The first dimension is the batch."""

_BATCH = 1
"""Broadcasts against the stand-in of a batch that an exporter has put elsewhere (a recurrent state is [layers, batch, units])."""


def stand_in(value: Value, size: int) -> TensorType | None:
    """The value's type with every unknown dimension replaced: the first one by 1, others by `size`. None where the rank is unknown."""
    if value.dtype is None or value.shape is None:
        return None
    shape = []
    for axis, dim in enumerate(value.shape):
        known = isinstance(dim, int) and dim >= 0
        shape.append(int(dim) if known else _BATCH if axis == 0 and len(value.shape) > 1 else size)  # type: ignore[arg-type]
    return TensorType(value.dtype, tuple(shape))


def is_static(graph: Graph, names: Iterable[str]) -> bool:
    """Whether every named value has a fully known shape."""
    shapes = (graph.values[n].shape for n in names if n in graph.values)
    return all(s is not None and all(isinstance(d, int) and d >= 0 for d in s) for s in shapes)


def input_types(graph: Graph, size: int) -> Mapping[str, TensorType]:
    """A stand-in type for each graph input whose rank is known."""
    found = {n: stand_in(graph.values[n], size) for n in graph.inputs if n in graph.values}
    return {n: t for n, t in found.items() if t is not None}


def given_types(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, TensorType]:
    """The types of the graph inputs whose shapes a run has shown."""
    found = {}
    for name, shape in shapes.items():
        value = graph.values.get(name)
        if name in graph.inputs and value is not None and value.dtype is not None:
            found[name] = TensorType(value.dtype, shape)
    return found
