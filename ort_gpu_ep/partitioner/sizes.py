"""Concrete stand-ins for symbolic shapes, so that rows can be asked before any input is seen.

The plan of a run asks the rows again, with sizes that stand for any number (symbolic.py). So does the claim, once it
has its groups: what is declined then goes to the CPU as a node, and not, in each run, as a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ort_gpu_ep.ir.graph import Graph, Value
from ort_gpu_ep.ir.symbolic import Trace
from ort_gpu_ep.ir.types import Shape, SymbolicShape, TensorType

CANDIDATES = (64, 224, 640, 8)
"""Sizes tried for unknown dimensions, in this order: sequences and tiles, images, documents, few tokens. The first one
is the batch."""

_BATCH = 1
"""Broadcasts against the stand-in of a batch that an exporter has put elsewhere (a recurrent state is [layers, batch,
units])."""


MOST_TOLD = 3
"""Dimensions that a reason names."""


class Dimension(NamedTuple):
    """An axis of a value."""

    value: str
    axis: int


@dataclass(frozen=True)
class Guess:
    """What unknown dimensions are taken for. size: of all but the first. sizes: of those of which more is known
    (solving.py)."""

    size: int
    sizes: Mapping[Dimension, int] = field(default_factory=dict)


def stand_in(value: Value, guess: Guess) -> TensorType | None:
    """The value's type with every unknown dimension replaced: the first one by 1, others by `size`. None where the rank
    is unknown."""
    if value.dtype is None or value.shape is None:
        return None
    shape = []
    for axis, dim in enumerate(value.shape):
        is_known = isinstance(dim, int) and dim >= 0
        size = _BATCH if axis == 0 and len(value.shape) > 1 else guess.size
        shape.append(int(dim) if is_known else guess.sizes.get(Dimension(value.name, axis), size))  # type: ignore[arg-type]
    return TensorType(value.dtype, tuple(shape))


def guessed(graph: Graph, guess: Guess, dimensions: Sequence[Dimension]) -> str:
    """That a reason follows from sizes that nobody gave, and what would give them."""
    told, names = [], dict[str, None]()
    for value, axis in dimensions[:MOST_TOLD]:
        declared = (graph.values[value].shape or ())[axis]
        tensor = stand_in(graph.values[value], guess)
        size = tensor.shape[axis] if tensor is not None else guess.size
        told.append(f"{declared if isinstance(declared, str) else f'axis {axis}'} of {value!r} = {size}")
        if isinstance(declared, str) and value in graph.inputs and not graph.nested:
            names[declared] = None
    cure = (
        f": give it with {' '.join(f'--dim {name}=SIZE' for name in names)} (add_free_dimension_override_by_name)"
        if names
        else ""
    )
    more = "" if len(dimensions) <= MOST_TOLD else ", ..."
    return f"this follows from a guessed size ({', '.join(told)}{more}){cure}"


def misjudged(graph: Graph) -> frozenset[str]:
    """Values to which ONNX Runtime's shape inference gives a wrong shape: the output of a PRelu whose slope is larger
    than its input (ONNX forbids it, ONNX Runtime computes it), and all that follows from it.
    """
    names = set[str]()
    for node in graph.nodes:
        shapes = [value.shape for name in node.inputs if (value := graph.values.get(name)) is not None]
        starts = node.op == "PRelu" and not node.domain and len(shapes) == 2 and _is_larger(shapes[1], shapes[0])
        if starts or names.intersection(node.reads):
            names |= {*node.writes}
    return frozenset(names)


def _is_larger(slope: SymbolicShape | None, x: SymbolicShape | None) -> bool:
    """Whether it is known that the two, broadcast, have another shape than x."""
    if slope is None or x is None:
        return False
    pairs = zip(reversed(slope), reversed(x), strict=False)
    return len(slope) > len(x) or any(there == 1 and isinstance(size, int) and size > 1 for size, there in pairs)


def is_static(graph: Graph, names: Iterable[str]) -> bool:
    """Whether every named value has a fully known shape."""
    shapes = (graph.values[n].shape for n in names if n in graph.values)
    return all(s is not None and all(isinstance(d, int) and d >= 0 for d in s) for s in shapes)


def input_types(graph: Graph, guess: Guess) -> Mapping[str, TensorType]:
    """A stand-in type for each graph input whose rank is known."""
    types = {n: stand_in(graph.values[n], guess) for n in graph.inputs if n in graph.values}
    return {n: t for n, t in types.items() if t is not None}


def opened(graph: Graph, inputs: Mapping[str, TensorType]) -> dict[str, TensorType] | None:
    """The types with a Size for each dimension that the graph leaves open, as a run has them; None where there is
    none."""
    trace, types, place = Trace(), dict[str, TensorType](), 0
    for name, tensor in inputs.items():
        declared = graph.values[name].shape if name in graph.values else None
        shape = list(tensor.shape)
        for axis, size in enumerate(tensor.shape):
            if declared is None or axis >= len(declared) or declared[axis] != size:
                shape[axis] = trace.symbol(place, size)
                place += 1
        types[name] = TensorType(tensor.dtype, tuple(shape))
    return types if place else None


def given_types(
    graph: Graph,
    shapes: Mapping[str, Shape],
    node_shapes: Mapping[tuple[int, str], Sequence[Shape]],
) -> dict[str, TensorType]:
    """The types of the values whose shapes a run has shown: of inputs by name, of others by the node that writes them
    (see Costs)."""
    shown = {name: shape for name, shape in shapes.items() if name in graph.inputs}
    for node in graph.nodes:
        known_shapes = node_shapes.get((node.id, node.op), ())
        if len(known_shapes) == len(node.writes):  # else one is no tensor, and which is which is not known
            shown |= dict(zip(node.writes, known_shapes, strict=True))
    types = {
        name: value.dtype for name in shown if (value := graph.values.get(name)) is not None and value.dtype is not None
    }
    return {name: TensorType(dtype, tuple(shown[name])) for name, dtype in types.items()}
