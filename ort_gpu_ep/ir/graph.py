"""A read-only graph: the form of a model that the partitioner and the scheduler read.

It is filled from an OrtGraph (plugin/reader.py) or from an ONNX model (`from_onnx`: tests and tools).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.ir import contrib
from ort_gpu_ep.ir.types import BY_ONNX, FLOAT32, DType, SymbolicShape, TensorType

Array: TypeAlias = np.ndarray[Any, Any]
Attribute: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Array | None


MIN_COUNTED, MIN_COUNTED_FILTERS = 1 << 16, 1 << 12
"""Elements of a matrix whose zeros are counted: a smaller one is read in the time of a dispatch, whatever it holds.
Filters are read once for each pixel.
"""
LARGEST_HALF = float(np.finfo(np.float16).max)
"""The largest number of float16."""
COUNTED_SAMPLE = 4096
"""A matrix with fewer than half zeros among so many of its elements has no count of its own."""


@dataclass(frozen=True, slots=True)
class Nonzeros:
    """How many elements of a matrix are not zero: all, and the most that one row and one column have."""

    total: int
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Value:
    """An edge of the graph.

    dtype: None for what is not a tensor or has an element type that this package does not know.
    shape: None if even the rank is unknown; a dimension is an int, a symbol's name, or None.
    load: for a constant, gives its array (a view that may be valid only while ONNX Runtime's callback lasts).
    nonzeros, fits_half: what `nonzeros_of` and `fits_half` say of a constant that can't be loaded any more.
    """

    name: str
    dtype: DType | None = None
    shape: SymbolicShape | None = None
    load: Callable[[], Array] | None = field(default=None, compare=False, repr=False)
    nonzeros: Nonzeros | None = field(default=None, compare=False, repr=False)
    fits_half: bool | None = field(default=None, compare=False, repr=False)

    @property
    def is_constant(self) -> bool:
        return self.load is not None


_counted: WeakKeyDictionary[Callable[[], Array], Nonzeros] = WeakKeyDictionary()
_fitting: WeakKeyDictionary[Callable[[], Array], bool] = WeakKeyDictionary()


def nonzeros_of(value: Value) -> Nonzeros | None:
    """Of a constant float32 matrix, or filters as the rows of one, that are large enough; None for any other value;
    counted once."""
    if value.nonzeros is not None or value.load is None or not _is_counted(value):
        return value.nonzeros
    count = _counted.get(value.load)
    if count is None:
        count = _counted[value.load] = count_nonzeros(np.reshape(array := value.load(), (len(array), -1)))
    return count


def fits_half(value: Value) -> bool:
    """Whether float16 has a number near each of a float32 constant: none is infinite, NaN, or beyond the largest.
    Looked at once."""
    if value.fits_half is not None or value.load is None or value.dtype is not FLOAT32:
        return bool(value.fits_half)
    fits = _fitting.get(value.load)
    if fits is None:
        array = value.load()
        fits = _fitting[value.load] = bool(
            array.min(initial=0.0) >= -LARGEST_HALF and array.max(initial=0.0) <= LARGEST_HALF
        )
    return fits


def _is_counted(value: Value) -> bool:
    sizes = [d for d in value.shape or () if isinstance(d, int)]
    is_known = value.dtype is FLOAT32 and 2 <= len(sizes) == len(value.shape or ())
    return is_known and math.prod(sizes) >= (MIN_COUNTED if len(sizes) == 2 else MIN_COUNTED_FILTERS)


def count_nonzeros(matrix: Array) -> Nonzeros:
    """NaN is none. A matrix that is not sparse by a sample counts as full: to look at all of each weight takes long."""
    sample = matrix.reshape(-1)[:: max(1, matrix.size // COUNTED_SAMPLE)]
    if 2 * np.count_nonzero(sample) > sample.size:
        return Nonzeros(matrix.size, matrix.shape[1], matrix.shape[0])
    there = matrix != 0
    return Nonzeros(int(there.sum()), int(there.sum(axis=1).max()), int(there.sum(axis=0).max()))


BESIDE = "beside"
"""Among the arguments of steps, and a variable of the shader."""


@dataclass(frozen=True, slots=True)
class Step:
    """One elementwise operation inside a fused node.

    expression: WGSL over x, y, z, ... (the arguments in order). arguments: "v" is what the kernel computed, BESIDE what
    one that computes two values computed beside it, "s<k>" the result of step
        k, "e<k>" operand k of the node.
    dtype: of the result. op: the ONNX op it stands for. divides: its expression calls `divided_by_zero()` where an
    integer is.
    """

    op: str
    expression: str
    arguments: tuple[str, ...]
    dtype: DType
    divides: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Where a tensor lies in a larger one: its rows, of `size` elements each, from `start` on in rows of `row`
    elements.

    value, type: of the larger one.
    """

    value: str
    type: TensorType
    size: int
    row: int
    start: int


@dataclass(frozen=True, slots=True)
class Node:
    """The use of an op.

    inputs: names, "" for an optional input that is left out. outputs likewise.
    implicit: names that its subgraphs read from outside. has_subgraph: If, Loop, Scan.
    version: the opset version that introduced this form of the op ("since version").
    epilogue: elementwise steps, made by fusion, that the kernel applies to each element of its one output; `operands`
        names the other values that these steps read.
    into: where its one output is written, as a part of another value; made by the pass that places parts.
    channels_last: its images are stored [N, spatial..., C], and their types say so; made by the layout pass alone.
    id: ONNX Runtime's node index, or the position in an ONNX file. A fused node has the ids it came from in `sources`.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    name: str = ""
    domain: str = ""
    version: int = 0
    attributes: Mapping[str, Attribute] = field(default_factory=dict, compare=False)
    implicit: tuple[str, ...] = ()
    has_subgraph: bool = False
    id: int = -1
    sources: tuple[int, ...] = ()
    epilogue: tuple[Step, ...] = ()
    operands: tuple[str, ...] = ()
    channels_last: bool = False
    into: Part | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """All values it needs, implicit ones too."""
        return tuple(n for n in (*self.inputs, *self.operands, *self.implicit) if n)

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(n for n in self.outputs if n)

    @property
    def label(self) -> str:
        """What a person recognises it by."""
        return self.name or f"{self.op}->{next(iter(self.writes), '?')}"

    @property
    def members(self) -> tuple[int, ...]:
        """Ids of the original nodes that this one stands for."""
        return self.sources or (self.id,)


@dataclass(frozen=True, slots=True)
class Parent:
    """The If, Loop or Scan that a graph is a body of: op, version, attributes and outputs of its node."""

    op: str
    writes: tuple[str, ...]
    version: int = field(default=0, compare=False)
    attributes: Mapping[str, Attribute] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in topological order, and every value they name.

    inputs, outputs: names; for a graph inside If, Loop or Scan, values from outside count as inputs, behind its own.
    parent: of such a graph, where ONNX Runtime says so.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value] = field(repr=False)
    nested: bool = False
    parent: Parent | None = None

    def constant(self, name: str) -> Array | None:
        """The array of a constant, None for anything else."""
        value = self.values.get(name)
        return value.load() if value and value.load else None

    def producers(self) -> dict[str, Node]:
        return {output: node for node in self.nodes for output in node.writes}

    def consumers(self) -> dict[str, list[Node]]:
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                readers.setdefault(name, []).append(node)
        return readers

    def with_nodes(self, nodes: tuple[Node, ...], values: Mapping[str, Value] | None = None) -> Graph:
        return replace(self, nodes=nodes, values={**self.values, **(values or {})})


def from_onnx(model: Any) -> Graph:
    """A Graph of an ONNX ModelProto's top level, with ONNX's shape inference applied. Constant nodes become constants.

    Raises: ModelError, where the model names an op that its opset does not have.
    """
    import onnx

    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    proto, opsets = model.graph, {o.domain: o.version for o in model.opset_import}
    values: dict[str, Value] = {}
    for info in (*proto.value_info, *proto.input, *proto.output):
        tensor = info.type.tensor_type
        shape = None
        if tensor.HasField("shape"):
            shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
        values[info.name] = Value(info.name, BY_ONNX.get(tensor.elem_type), shape)
    for initializer in proto.initializer:
        values[initializer.name] = _constant(initializer.name, onnx.numpy_helper.to_array(initializer))
    nodes = []
    for i, node in enumerate(proto.node):
        attributes = {a.name: _attribute(onnx.helper.get_attribute_value(a)) for a in node.attribute}
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            raw = next(iter(attributes.values()))
            array = raw if isinstance(raw, np.ndarray) else np.asarray(raw, np.float32 if _floats(raw) else None)
            values[node.output[0]] = _constant(node.output[0], array)
            continue
        domain = "" if node.domain == "ai.onnx" else node.domain
        nodes.append(
            Node(
                node.op_type,
                tuple(node.input),
                tuple(node.output),
                node.name,
                domain,
                _since_version(node.op_type, domain, opsets),
                attributes,
                _captured(node),
                any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute),
                i,
            )
        )
        for name in (*node.input, *node.output):
            if name:
                values.setdefault(name, Value(name))
    constants = {n for n, v in values.items() if v.is_constant}
    inputs = tuple(i.name for i in proto.input if i.name not in constants)
    return Graph(proto.name, inputs, tuple(o.name for o in proto.output), tuple(nodes), values)


def _constant(name: str, array: Array) -> Value:
    return Value(name, BY_ONNX.get(_onnx_type(array)), tuple(array.shape), lambda: array)


def _onnx_type(array: Array) -> int:
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def _floats(raw: object) -> bool:
    return isinstance(raw, float) or (isinstance(raw, tuple) and bool(raw) and isinstance(raw[0], float))


def _since_version(op: str, domain: str, opsets: Mapping[str, int]) -> int:
    import onnx

    try:
        return int(
            onnx.defs.get_schema(
                op, opsets.get(domain, opsets.get("ai.onnx", 1) if not domain else 1), domain
            ).since_version
        )
    except onnx.defs.SchemaError as error:
        if domain or (domain, op) in contrib.schemas():
            return opsets.get(domain, 1) if domain else 1
        raise ModelError(
            f"model: node {op!r} is not in opset {opsets}: expected an op of that opset; check opset_import"
        ) from error


def _attribute(raw: Any) -> Attribute:
    import onnx

    if isinstance(raw, onnx.TensorProto):
        return onnx.numpy_helper.to_array(raw)
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "replace")
    if isinstance(raw, int | float):
        return raw
    items = list(raw) if not isinstance(raw, onnx.GraphProto | onnx.TypeProto | onnx.SparseTensorProto) else []
    if not items or not isinstance(items[0], int | float | bytes):
        return () if isinstance(raw, list) or not items else None
    return tuple(i.decode("utf-8", "replace") if isinstance(i, bytes) else i for i in items)


def _captured(node: Any) -> tuple[str, ...]:
    """Names that the subgraphs of a node read from outside."""
    names: dict[str, None] = {}
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
            local = {i.name for i in graph.input} | {i.name for i in graph.initializer}
            for inner in graph.node:
                for name in (*inner.input, *_captured(inner)):
                    if name and name not in local:
                        names[name] = None
                local.update(inner.output)
            names.update((o.name, None) for o in graph.output if o.name not in local)
    return tuple(names)
