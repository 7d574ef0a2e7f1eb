"""Evaluates a model in float64, node by node, to decide which of two float32 results is closer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ort_gpu_ep.comparison.models import Array, alone
from ort_gpu_ep.errors import ModelError

Run = Callable[[onnx.ModelProto, Mapping[str, Array]], list[Any]]

_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
_SHAPES_ONLY = {"Constant", "ConstantOfShape"}
"""Ops that calculate nothing: their float32 results are exact."""


class Float64:
    """Evaluates models in float64. plain: runs a model on onnxruntime's CPU provider, raising what that does.

    A node goes to onnxruntime with float64 inputs, where it has such a kernel, else to onnx's reference implementation.
    in_float32: nodes of the last run that neither can do in float64, by name; these were calculated in float32.
    """

    def __init__(self, plain: Run) -> None:
        self._plain = plain
        self.in_float32: list[str] = []

    def run(self, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Any]:
        """The outputs, rounded to the model's own types. Raises ModelError for a node that nothing evaluates."""
        self.in_float32 = []
        whole = inliner.inline_local_functions(model) if model.functions else model
        types = _declared(whole)
        values: dict[str, Any] = {i.name: _wide(numpy_helper.to_array(i)) for i in whole.graph.initializer}
        values |= {name: _wide(np.asarray(array)) for name, array in feeds.items()}
        for node in whole.graph.node:
            values |= self._evaluated(whole, node, values, types)
        return [_rounded(values[o.name], types.get(o.name)) for o in whole.graph.output]

    def _evaluated(
        self,
        model: onnx.ModelProto,
        node: onnx.NodeProto,
        values: Mapping[str, Any],
        types: Mapping[str, int],
    ) -> dict[str, Any]:
        names = [name for name in node.output if name]
        wide = _in_float64(node)
        feeds = {
            name: _as_allowed(values[name], types.get(name), model, node, k)
            for k, name in enumerate(node.input)
            if name
        }
        got = self._tried(model, wide, {**values, **feeds})
        if got is None:
            got = self._tried(
                model, node, {**values, **{n: _rounded(values[n], types.get(n)) for n in node.input if n}}
            )
            if got is None:
                raise ModelError(
                    f"{node.op_type} {node.name or names[0]}: neither onnxruntime nor onnx's reference evaluates it"
                )
        calculated = node.op_type not in _SHAPES_ONLY and any(_is_float(values[name]) for name in node.input if name)
        if calculated and any(_is_float(a) and np.asarray(a).dtype != np.float64 for a in got):
            self.in_float32.append(node.name or names[0])
        return dict(zip(names, map(_wide, got), strict=True))

    def _tried(self, model: onnx.ModelProto, node: onnx.NodeProto, values: Mapping[str, Any]) -> list[Any] | None:
        """The outputs of one node; None where it can't be evaluated with values of these types."""
        # without the model's constants: they are among the values
        bare = onnx.ModelProto(ir_version=model.ir_version)
        bare.opset_import.extend(model.opset_import)
        part, feeds = alone(bare, [node], values)
        for run in (self._plain, _by_reference):
            try:
                return run(part, feeds)
            except (
                Exception
            ):  # both have many types of their own for "no such kernel"; the caller says which node it was
                continue
        return None


def _erf(x: Array) -> Array:
    """onnx's own rounds to float32."""
    array: Array = np.vectorize(math.erf, otypes=[x.dtype])(x)
    return array


class Erf(OpRun):
    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (_erf(x),)


class Gelu(OpRun):
    op_domain = ""

    def _run(self, x: Array, approximate: str = "none") -> tuple[Array]:
        if approximate == "tanh":
            return (0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),)
        return (0.5 * x * (1 + _erf(x / np.sqrt(2))),)


class GlobalMaxPool(OpRun):
    """onnx's own takes the maximum over two axes, whichever rank x has."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class MatMulNBits(OpRun):
    """onnxruntime's CPU has it for float32, and does not read zero points where a g_idx is given (1.27 to 1.32)."""

    op_domain = "com.microsoft"

    def _run(
        self,
        a: Array,
        b: Array,
        scales: Array,
        zero_points: Array | None = None,
        g_idx: Array | None = None,
        bias: Array | None = None,
        *,
        K: int,
        N: int,
        bits: int = 4,
        block_size: int,
        **_: Any,
    ) -> tuple[Array]:
        blocks = -(-K // block_size)
        codes = _codes(b.reshape(N, -1), bits)[:, : blocks * block_size]
        if zero_points is None:
            zeros = np.full((N, blocks), float(1 << bits - 1))
        elif zero_points.dtype == np.uint8:
            zeros = _codes(zero_points.reshape(N, -1), bits)[:, :blocks]
        else:
            zeros = zero_points.reshape(N, blocks)
        block = np.arange(codes.shape[1]) // block_size if g_idx is None else np.asarray(g_idx)
        codes = codes[:, : len(block)]
        weight = ((codes - zeros[:, block]) * scales.reshape(N, blocks)[:, block])[:, :K]
        return (a @ weight.astype(a.dtype).T + (0 if bias is None else bias),)


def _codes(packed: Array, bits: int) -> Array:
    """Rows of bytes as rows of numbers, the lowest bits first."""
    planes = np.unpackbits(packed, axis=1, bitorder="little")
    return planes[:, : planes.shape[1] // bits * bits].reshape(len(packed), -1, bits) @ (1.0 * (1 << np.arange(bits)))


_OWN = (Erf, Gelu, GlobalMaxPool, MatMulNBits)


def _by_reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Any]:
    return list(ReferenceEvaluator(model, new_ops=[*_OWN]).run(None, dict(feeds)))


def _declared(model: onnx.ModelProto) -> dict[str, int]:
    """Element type of each value, as far as onnx infers it."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # of models that onnx's inference refuses, or that are too large for it; their own types are left
        graph = model.graph
    types = {i.name: i.data_type for i in graph.initializer}
    return types | {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and (value.dtype.kind == "f" or value.dtype.name == "bfloat16")


def _wide(value: Any) -> Any:
    return np.asarray(value, np.float64) if _is_float(value) else value


def _rounded(value: Any, declared: int | None) -> Any:
    """In the type that the model has for it; float32 where that is not known."""
    return value.astype(helper.tensor_dtype_to_np_dtype(declared or TensorProto.FLOAT)) if _is_float(value) else value


def _as_allowed(value: Any, declared: int | None, model: onnx.ModelProto, node: onnx.NodeProto, index: int) -> Any:
    """A value in float64, or in the model's own type where the op's input takes no float64, as Resize's scales."""
    if not _is_float(value) or (node.domain, node.op_type) in ((own.op_domain, own.__name__) for own in _OWN):
        return value
    version = next((o.version for o in model.opset_import if o.domain in (node.domain, node.domain or "ai.onnx")), 1)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return _rounded(value, declared)
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    return value if "tensor(double)" in formal.types else _rounded(value, declared)


def _in_float64(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node with float64 in place of smaller floats, in its bodies too."""
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    for attribute in wide.attribute:
        if node.op_type in ("Cast", "Constant", "ConstantOfShape") or attribute.type != onnx.AttributeProto.TENSOR:
            _widen(attribute)
    return wide


def _widen(attribute: onnx.AttributeProto) -> None:
    if attribute.name in ("to", "dtype") and attribute.i in _FLOATS:
        attribute.i = TensorProto.DOUBLE
    if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in _FLOATS:
        attribute.t.CopyFrom(numpy_helper.from_array(_wide(numpy_helper.to_array(attribute.t))))
    for graph in (
        (attribute.g, *attribute.graphs)
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
        else ()
    ):
        _widen_graph(graph)


def _widen_graph(graph: onnx.GraphProto) -> None:
    for initializer in graph.initializer:
        if initializer.data_type in _FLOATS:
            initializer.CopyFrom(numpy_helper.from_array(_wide(numpy_helper.to_array(initializer)), initializer.name))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in _FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    nodes: Sequence[onnx.NodeProto] = [_in_float64(node) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
