"""Concrete stand-ins for symbolic shapes, so that rows can be asked before any input is seen.

The plan of a run asks the rows again, with sizes that stand for any number (symbolic.py). So does the claim, once it has its groups:
what is declined then goes to the CPU as a node, and not, in each run, as a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ort_gpu_ep.ir.graph import Graph, Value
from ort_gpu_ep.ir.symbolic import Trace
from ort_gpu_ep.ir.types import Shape, SymbolicShape, TensorType

CANDIDATES = (64, 224, 640, 8)
"""Sizes tried for unknown dimensions, in this order: sequences and tiles, images, documents, few tokens. The first one is the batch."""

_BATCH = 1
"""Broadcasts against the stand-in of a batch that an exporter has put elsewhere (a recurrent state is [layers, batch, units])."""

_PASTS = (3, 4)
"""Inputs of GroupQueryAttention: keys and values before this step."""


class Assumption(NamedTuple):
    """What unknown dimensions are taken for. size: of all but the first. wide: names that have it as the first dimension, too. sums: a name
    such as `past + 1` or `total_length` stands for a sum: of a mask over the tokens of a cache and those behind it.
    """

    size: int
    wide: frozenset[str] = frozenset()
    sums: bool = False


def assumptions(graph: Graph) -> list[Assumption]:
    """In the order in which they are tried. `wide` is for products of a [M, K] by b [K, N]: a name stands for one size."""
    found = [Assumption(size) for size in CANDIDATES]
    shapes = [shape for n in graph.inputs if n in graph.values and (shape := graph.values[n].shape) is not None]
    first = {shape[0] for shape in shapes if len(shape) > 1}
    wide = frozenset(d for shape in shapes for d in (shape[1:] if len(shape) > 1 else shape) if isinstance(d, str) and d in first)
    found += [Assumption(CANDIDATES[0], wide)] if wide else []
    summed = any(isinstance(d, str) and _summed(d, CANDIDATES[0]) != CANDIDATES[0] for shape in shapes for d in shape)
    kinds = dict.fromkeys((frozenset[str](), wide)) if summed else ()
    return [*found, *(Assumption(CANDIDATES[0], kind, True) for kind in kinds)]


def _summed(name: str, size: int) -> int:
    """What a dimension of that name is, where each length has that size."""
    terms = [term.strip() for term in name.split("+")]
    if len(terms) > 1:
        return sum(int(term) if term.isdigit() else size for term in terms)
    return 2 * size if name.startswith("total") else size


def stand_in(value: Value, assumption: Assumption) -> TensorType | None:
    """The value's type with every unknown dimension replaced: the first one by 1, others by `size`. None where the rank is unknown."""
    if value.dtype is None or value.shape is None:
        return None
    shape = []
    for axis, dim in enumerate(value.shape):
        known = isinstance(dim, int) and dim >= 0
        is_batch = axis == 0 and len(value.shape) > 1 and dim not in assumption.wide
        size = _summed(dim, assumption.size) if assumption.sums and isinstance(dim, str) else assumption.size
        shape.append(int(dim) if known else _BATCH if is_batch else size)    # type: ignore[arg-type]
    return TensorType(value.dtype, tuple(shape))


def misjudged(graph: Graph) -> frozenset[str]:
    """Values to which ONNX Runtime's shape inference gives a wrong shape: the output of a PRelu whose slope is larger than its input (ONNX
    forbids it, ONNX Runtime computes it), and all that follows from it.
    """
    found = set[str]()
    for node in graph.nodes:
        shapes = [value.shape for name in node.inputs if (value := graph.values.get(name)) is not None]
        starts = node.op == "PRelu" and not node.domain and len(shapes) == 2 and _is_larger(shapes[1], shapes[0])
        if starts or found.intersection(node.reads):
            found |= {*node.writes}
    return frozenset(found)


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


def input_types(graph: Graph, assumption: Assumption) -> Mapping[str, TensorType]:
    """A stand-in type for each graph input whose rank is known."""
    found = {n: stand_in(graph.values[n], assumption) for n in graph.inputs if n in graph.values}
    told = _heads_of_caches(graph)
    return {n: replace(t, shape=(*t.shape[:-1], told[n])) if n in told else t for n, t in found.items() if t is not None}


def _heads_of_caches(graph: Graph) -> dict[str, int]:
    """Elements of a head, by the names of caches that leave them open, as onnxruntime-genai's builder does. The queries' width tells."""
    found = dict[str, int]()
    for node in graph.nodes:
        if node.op != "GroupQueryAttention" or len(node.inputs) <= _PASTS[-1] or node.inputs[0] not in graph.values:
            continue
        width = (graph.values[node.inputs[0]].shape or (None,))[-1]
        heads, groups = (node.attributes.get(name) for name in ("num_heads", "kv_num_heads"))
        shares = 0 if not isinstance(heads, int) or not isinstance(groups, int) else heads if node.inputs[1] else heads + 2 * groups
        if isinstance(width, int) and width > 0 and shares > 0:
            caches = [node.inputs[at] for at in _PASTS if node.inputs[at] in graph.values]
            found |= {name: width // shares for name in caches if not isinstance((graph.values[name].shape or (1,))[-1], int)}
    return found


def opened(graph: Graph, inputs: Mapping[str, TensorType]) -> dict[str, TensorType] | None:
    """The types with a Size for each dimension that the graph leaves open, as a run has them; None where there is none."""
    trace, found, place = Trace(), dict[str, TensorType](), 0
    for name, tensor in inputs.items():
        declared = graph.values[name].shape if name in graph.values else None
        shape = list(tensor.shape)
        for axis, size in enumerate(tensor.shape):
            if declared is None or axis >= len(declared) or declared[axis] != size:
                shape[axis] = trace.symbol(place, size)
                place += 1
        found[name] = TensorType(tensor.dtype, tuple(shape))
    return found if place else None


def given_types(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, TensorType]:
    """The types of the graph inputs whose shapes a run has shown."""
    found = {}
    for name, shape in shapes.items():
        value = graph.values.get(name)
        if name in graph.inputs and value is not None and value.dtype is not None:
            found[name] = TensorType(value.dtype, shape)
    return found
