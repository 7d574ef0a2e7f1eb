"""Writes the graph of a training step; types of all values are known at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import InferenceError, infer_node_outputs

from ort_gpu_ep.errors import InternalError, TrainingError
from ort_gpu_ep.ir.graph import Array

DOMAIN = "ort_gpu_ep.training"
"""Of the model-local functions of a step."""

CONTENT_ELEMENTS = 4096
"""Up to which the content of a constant is calculated with: shapes and what they come from are smaller."""

SHARED_NBYTES = 1 << 20
"""Up to which equal constants are found to be one."""

_LIKE_THE_FIRST = ("GroupNormalization",)
"""Ops that ONNX has no inference for."""

Shape: TypeAlias = tuple[int, ...]


def _operators(op_type: str) -> tuple[Callable[[Value, Operand], Value], Callable[[Value, float], Value]]:
    """What `value op other` and `number op value` write."""
    return (
        lambda self, other: self.writer.op(op_type, self, self.writer.like(other, self)),
        lambda self, other: self.writer.op(op_type, self.writer.like(other, self), self),
    )


@dataclass(eq=False)
class Value:
    """An edge of the graph. dtype, shape: None where ONNX can't tell. content: of a small constant.

    tracked: it depends on something trainable. + - * / and unary minus write nodes; numbers become constants of this
    type.
    """

    writer: Writer = field(repr=False)
    name: str
    dtype: np.dtype[Any] | None
    shape_or_none: Shape | None
    content: Array | None = None
    tracked: bool = False

    @property
    def shape(self) -> Shape:
        """Raises TrainingError where the model does not fix it."""
        if self.shape_or_none is None:
            raise TrainingError(
                f"value {self.name!r}: its shape is unknown before the run{self.writer.origin(self.name)}, and "
                f"a gradient "
                "needs it; train a model whose shapes follow from its inputs', or an output before that (output=)"
            )
        return self.shape_or_none

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype is not None and self.dtype.kind == "f"

    __add__, __radd__ = _operators("Add")
    __sub__, __rsub__ = _operators("Sub")
    __mul__, __rmul__ = _operators("Mul")
    __truediv__, __rtruediv__ = _operators("Div")

    def __neg__(self) -> Value:
        return self.writer.op("Neg", self)


Operand: TypeAlias = Value | float | int


class Writer:
    """A graph being written, of one opset of ONNX (13 or newer: axes of ReduceSum and Squeeze are inputs).

    scope: begins the names of what is written. folding: whether contents of nodes are found; a model's own shapes
    depend on them.
    """

    def __init__(self, opset: int, ir_version: int) -> None:
        self.opset, self.ir_version = opset, max(ir_version, 8)  # 8: functions of the model's own
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.inputs: dict[str, Value] = {}
        self.values: dict[str, Value] = {}
        self.functions: dict[str, onnx.FunctionProto] = {}
        self._known: dict[tuple[str, Shape, bytes], Value] = {}
        self._count = 0
        self.scope = ""
        self.folding = True

    # ---- values

    def name(self, label: str) -> str:
        """A name that no value has yet."""
        while True:
            self._count += 1
            unique = f"{self.scope}{label}_{self._count}"
            if unique not in self.values:
                return unique

    def _value(
        self, name: str, dtype: Any, shape: Shape | None, content: Array | None = None, tracked: bool = False
    ) -> Value:
        if name in self.values:
            raise InternalError(f"value {name!r} is written twice")
        self.values[name] = Value(self, name, None if dtype is None else np.dtype(dtype), shape, content, tracked)
        return self.values[name]

    def input(self, name: str, dtype: Any, shape: Sequence[int], tracked: bool = False) -> Value:
        """An input of the graph."""
        self.inputs[name] = self._value(name, dtype, tuple(shape), tracked=tracked)
        return self.inputs[name]

    def freeze(self, name: str, array: Array) -> None:
        """Makes an input a constant after all."""
        self.inputs.pop(name)
        self.constants[name] = array

    def constant(self, array: Any, name: str = "") -> Value:
        """A stored constant; equal ones without a name are one, unless they are large."""
        array = np.asarray(array)
        small = array.size <= CONTENT_ELEMENTS
        shared = array.nbytes <= SHARED_NBYTES and not name
        key = (array.dtype.str, array.shape, array.tobytes()) if shared else ("", (), b"")
        if key in self._known:
            return self._known[key]
        value = self._value(name or self.name("constant"), array.dtype, array.shape, array if small else None)
        self.constants[value.name] = array
        if shared:
            self._known[key] = value
        return value

    def ints(self, *numbers: int) -> Value:
        """A constant int64 vector."""
        return self.constant(np.array(numbers, np.int64))

    def like(self, operand: Operand, other: Value) -> Value:
        """A number as a scalar of another value's element type; a value as it is."""
        return operand if isinstance(operand, Value) else self.constant(np.asarray(operand, other.dtype))

    # ---- nodes

    def op(self, op_type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """Writes a node with one output."""
        return self.ops(op_type, 1, *inputs, **attributes)[0]

    def ops(self, op_type: str, outputs: int, *inputs: Value | None, **attributes: Any) -> list[Value]:
        """Writes a node with so many outputs."""
        names = [self.name(op_type) for _ in range(outputs)]
        values = self.add(
            helper.make_node(op_type, ["" if i is None else i.name for i in inputs], names, name=names[0], **attributes)
        )
        return [v for v in values if v is not None]

    def add(self, node: onnx.NodeProto) -> list[Value | None]:
        """Writes a node whose inputs are there; returns its outputs, None for those left out."""
        self.nodes.append(node)
        inputs = [self.values.get(name) if name else None for name in node.input]
        types = _inferred(node, inputs, self.opset, self.ir_version)
        content = self._content(node, inputs)
        tracked = any(v is not None and v.tracked for v in inputs)
        outputs: list[Value | None] = []
        for i, name in enumerate(node.output):
            dtype, shape = types.get(name, (None, None))
            array = content[i] if i < len(content) else None
            outputs.append(self._value(name, dtype, shape, array, tracked) if name else None)
        return outputs

    def origin(self, name: str) -> str:
        """For a message: the node because of which a value's shape is not known."""
        makers = {out: node for node in self.nodes for out in node.output if out}
        while (node := makers.get(name)) is not None:
            unknown = [n for n in node.input if n and n in self.values and self.values[n].shape_or_none is None]
            if not unknown:
                return f" (because of node {node.name or node.output[0]!r}, {node.op_type})"
            name = unknown[0]
        return ""

    def add_output(self, node: onnx.NodeProto, index: int, dtype: Any, shape: Shape) -> Value:
        """Asks a node for an optional output that it was not asked for."""
        while len(node.output) <= index:
            node.output.append("")
        if not node.output[index]:
            node.output[index] = self.name(f"{node.op_type}_{index}")
            self._value(node.output[index], dtype, shape)
        return self.values[node.output[index]]

    def call(
        self, function: onnx.FunctionProto, types: Sequence[tuple[Any, Shape]], *inputs: Value, **attributes: Any
    ) -> list[Value]:
        """Writes a node that a function of the model computes. types: element type and shape of each output."""
        self.functions[function.name] = function
        names = [self.name(function.name) for _ in types]
        self.nodes.append(
            helper.make_node(function.name, [i.name for i in inputs], names, name=names[0], domain=DOMAIN, **attributes)
        )
        return [self._value(name, dtype, shape) for name, (dtype, shape) in zip(names, types, strict=True)]

    def named(self, value: Value, name: str) -> Value:
        """The same value under a name of its own, as an output needs it."""
        return self._renamed(value, name) or self._identity(value, name)

    def _renamed(self, value: Value, name: str) -> Value | None:
        """Gives the value's own node output another name, unless it was read already or is none."""
        if any(value.name in n.input for n in self.nodes):
            return None
        for node in reversed(self.nodes):
            if value.name in node.output:
                node.output[list(node.output).index(value.name)] = name
                self.values.pop(value.name)
                return self._value(name, value.dtype, value.shape_or_none, value.content, value.tracked)
        return None

    def _identity(self, value: Value, name: str) -> Value:
        copy = self.add(helper.make_node("Identity", [value.name], [name], name=name))[0]
        assert copy is not None
        return copy

    def _content(self, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> Sequence[Array | None]:
        """What a node gives, if that is small and follows from constants or shapes."""
        first = inputs[0] if inputs else None
        if node.op_type in ("Shape", "Size") and first is not None and first.shape_or_none is not None:
            if node.op_type == "Size":
                return [np.array(np.prod(first.shape, dtype=np.int64))]
            span = {a.name: a.i for a in node.attribute}
            return [np.array(first.shape, np.int64)[slice(span.get("start", 0), span.get("end"))]]
        operands = [v for v in inputs if v is not None]
        plain = self.folding and not node.domain and not any(a.HasField("g") for a in node.attribute)
        if not plain or not operands or any(v.content is None for v in operands):
            return []
        feeds = {v.name: v.content for v in operands}
        try:
            results = ReferenceEvaluator(_alone(node, operands, self.opset, self.ir_version)).run(None, feeds)
        except (
            Exception
        ):  # what the reference can't evaluate is not known before the run, which is said where it matters
            return []
        arrays = [np.asarray(a) for a in results]
        return [a if a.size <= CONTENT_ELEMENTS else None for a in arrays]

    # ---- helpers whose form depends on the opset, or that need no node

    def reduce(self, op_type: str, x: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        """A reduction over axes; x itself where there are none (all ops that are used so give x then)."""
        if not axes:
            return x
        if op_type == "ReduceSum" or self.opset >= 18:
            return self.op(op_type, x, self.ints(*axes), keepdims=int(keepdims))
        return self.op(op_type, x, axes=list(axes), keepdims=int(keepdims))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """x with another shape of as many elements."""
        return x if tuple(shape) == x.shape_or_none else self.op("Reshape", x, self.ints(*shape))

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """x with its axes in another order."""
        return x if list(perm) == list(range(len(perm))) else self.op("Transpose", x, perm=list(perm))

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """x broadcast to a shape."""
        return x if tuple(shape) == x.shape_or_none else self.op("Expand", x, self.ints(*shape))

    def reduce_to(self, x: Value, shape: Sequence[int]) -> Value:
        """The sum of x over what a value of `shape` was broadcast along."""
        lead = x.rank - len(shape)
        axes = [i for i, size in enumerate(x.shape) if i < lead or (shape[i - lead] == 1 and size != 1)]
        return self.reshape(self.reduce("ReduceSum", x, axes), shape)

    def slice(self, x: Value, axis: int, start: int, stop: int) -> Value:
        """x[start:stop] along an axis."""
        if (start, stop) == (0, x.shape[axis]):
            return x
        return self.op("Slice", x, self.ints(start), self.ints(stop), self.ints(axis), self.ints(1))

    def pad(self, x: Value, before: Sequence[int], after: Sequence[int]) -> Value:
        """x with zeros around."""
        return x if not any((*before, *after)) else self.op("Pad", x, self.ints(*before, *after))

    def zeros(self, shape: Sequence[int], dtype: Any) -> Value:
        """Zeros, made by the graph."""
        return self.expand(self.constant(np.zeros([1] * len(shape), dtype)), shape)

    def along(self, x: Value, axis: int, matrix: Array) -> Value:
        """y with y[..., i, ...] = sum over j of x[..., j, ...] matrix[j, i], along an axis."""
        stored = self.constant(np.ascontiguousarray(matrix, x.dtype))
        if axis == x.rank - 1:
            return self.op("MatMul", x, stored)
        if axis == x.rank - 2:
            return self.op("MatMul", self.constant(np.ascontiguousarray(matrix.T, x.dtype)), x)
        perm = [i for i in range(x.rank) if i != axis] + [axis]
        return self.transpose(self.op("MatMul", self.transpose(x, perm), stored), [int(i) for i in np.argsort(perm)])

    # ---- the model

    def model(self, name: str, outputs: Iterable[Value]) -> onnx.ModelProto:
        """The model with what these outputs need. Inputs that nothing reads are left out: bound device values would be
        copied back."""
        outputs = list(outputs)
        needed, nodes = {v.name for v in outputs}, list[onnx.NodeProto]()
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(_read(node))
                nodes.append(node)
        graph = helper.make_graph(
            nodes[::-1],
            name,
            [_info(v) for v in self.inputs.values() if v.name in needed],
            [_info(v) for v in outputs],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items() if n in needed],
        )
        used = {n.op_type for n in nodes if n.domain == DOMAIN}
        used_functions = [f for f in self.functions.values() if f.name in used]
        imports = [helper.make_opsetid("", self.opset), *([helper.make_opsetid(DOMAIN, 1)] if used_functions else [])]
        return helper.make_model(
            graph, functions=used_functions, opset_imports=imports, ir_version=self.ir_version, producer_name=DOMAIN
        )


def _read(node: onnx.NodeProto) -> set[str]:
    """Names that a node reads, also in its subgraphs."""
    inner = {name for a in node.attribute if a.HasField("g") for n in a.g.node for name in _read(n)}
    return {name for name in node.input if name} | inner


def _info(value: Value) -> onnx.ValueInfoProto:
    if value.dtype is None:
        raise InternalError(f"value {value.name!r} of a step's border has no type")
    return helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape_or_none)


def _type_proto(value: Value) -> onnx.TypeProto:
    assert value.dtype is not None
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape_or_none)


def _alone(node: onnx.NodeProto, inputs: Sequence[Value], opset: int, ir_version: int) -> onnx.ModelProto:
    """A model of one node."""
    graph = helper.make_graph(
        [node],
        "node",
        [_info(v) for v in {v.name: v for v in inputs}.values()],
        [onnx.ValueInfoProto(name=n) for n in node.output if n],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


@cache
def schema_of(op_type: str, opset: int, domain: str = "") -> Any:
    """ONNX's schema of an op in an opset, None where it has none."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def _inferred(
    node: onnx.NodeProto,
    inputs: Sequence[Value | None],
    opset: int,
    ir_version: int,
) -> dict[str, tuple[np.dtype[Any], Shape | None]]:
    """Element type and shape of each output by ONNX's inference. Raises TrainingError for a node that contradicts its
    op."""
    schema = schema_of(node.op_type, opset, node.domain)
    read = [v for v in inputs if v is not None]
    if (
        schema is None
        or any(v.dtype is None for v in read)
        or any(name and v is None for name, v in zip(node.input, inputs, strict=True))
    ):
        return {}
    try:
        if node.op_type in _LIKE_THE_FIRST and read[0].dtype is not None:
            return {name: (read[0].dtype, read[0].shape_or_none) for name in node.output if name}
        data = {v.name: numpy_helper.from_array(v.content, v.name) for v in read if v.content is not None}
        types = infer_node_outputs(
            schema,
            node,
            {v.name: _type_proto(v) for v in read},
            data,
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=ir_version,
        )
    except (InferenceError, ValueError) as error:
        shapes = ", ".join(f"{v.name} {v.shape_or_none}" for v in read)
        raise TrainingError(
            f"node {node.name or node.output[0]!r} ({node.op_type}) does not take its inputs {shapes}: {error}; "
            "check the sizes given for the model's inputs"
        ) from error
    return {
        name: _parsed(kind)
        for name, kind in types.items()
        if kind.HasField("tensor_type") and kind.tensor_type.elem_type
    }


def _parsed(kind: onnx.TypeProto) -> tuple[np.dtype[Any], Shape | None]:
    tensor = kind.tensor_type
    dims = tensor.shape.dim
    is_known = tensor.HasField("shape") and all(d.HasField("dim_value") for d in dims)
    return helper.tensor_dtype_to_np_dtype(tensor.elem_type), tuple(d.dim_value for d in dims) if is_known else None
