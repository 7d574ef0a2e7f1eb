"""Reads ONNX Runtime's OrtGraph into this package's Graph.

ONNX Runtime's graph, nodes and constants die with the callback they are passed to: everything is copied, except
constants, whose `load` gives a view that is valid until the Reader is closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.ir.external import open_location
from ort_gpu_ep.ir.graph import Array, Attribute, Graph, Node, Parent, Value
from ort_gpu_ep.ir.types import BY_ORT, DType, Shape, SymbolicShape, TensorType, unpacked
from ort_gpu_ep.plugin.abi import NULL, address_of, api, ffi, get, get_list, get_text, pointer_to, tensor_of, text_of

_ATTRIBUTE_NBYTES = 64
"""Of an attribute: most are a few numbers."""

_INT, _INTS, _FLOAT, _FLOATS, _STRING, _STRINGS, _TENSOR = 1, 2, 3, 4, 5, 6, 8


def array_at(address: int, shape: Shape, dtype: DType) -> Array:
    """A view of host memory as an array; a copy where elements share bytes."""
    nbytes = TensorType(dtype, shape).nbytes
    if nbytes == 0:
        return np.empty(shape, dtype.numpy)
    return _array_of(np.frombuffer(ffi.buffer(pointer_to(address), nbytes), np.uint8), shape, dtype)


def _array_of(content: npt.NDArray[np.uint8], shape: Shape, dtype: DType) -> Array:
    """As `array_at`, of bytes."""
    if dtype.bits < 8:
        return unpacked(content, TensorType(dtype, shape))
    return content.view(dtype.numpy).reshape(shape)


class Reader:
    """Reads one OrtGraph. A context manager: constants can't be loaded after it has ended.

    is_given: whether an initializer's value comes from elsewhere; its value is nothing that this package knows, then.
    """

    def __init__(self, pointer: Any, is_given: Callable[[str], bool] = lambda name: False) -> None:
        self.pointer, self._is_given = pointer, is_given
        self.given: set[str] = set()  # initializers of which it is true
        self.nodes: dict[int, Any] = {}  # ONNX Runtime's node id -> OrtNode*
        self._values: dict[str, Value] = {}
        self._names: dict[int, str] = {}
        self._open = True

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False

    def graph(self, inputs: Iterable[str] | None = None, outputs: Iterable[str] | None = None) -> Graph:
        """The graph. inputs, outputs: their order, where the graph's own does not count (a fused node's does)."""
        g = self.pointer
        formal = [self._name(p) for p in get_list(api.Graph_GetNumInputs, api.Graph_GetInputs, g)]
        formal_outputs = [self._name(p) for p in get_list(api.Graph_GetNumOutputs, api.Graph_GetOutputs, g)]
        nodes = tuple(self._node(p) for p in get_list(api.Graph_GetNumNodes, api.Graph_GetNodes, g))
        parent = self._parent(get(api.Graph_GetParentNode, g))
        written = {name for node in nodes for name in node.writes}
        outside = [name for node in nodes for name in node.reads if name not in written]
        names = [
            n
            for n in dict.fromkeys((*(formal if inputs is None else inputs), *outside))
            if not self._values[n].is_constant
        ]
        results = tuple(formal_outputs if outputs is None else outputs)
        return Graph(
            get_text(api.Graph_GetName, g), tuple(names), results, nodes, self._values, parent is not None, parent
        )

    @staticmethod
    def _parent(node: Any) -> Parent | None:
        if node == NULL:
            return None
        writes = (
            get_text(api.GetValueInfoName, p)
            for p in get_list(api.Node_GetNumOutputs, api.Node_GetOutputs, node)
            if p != NULL
        )
        op, version = get_text(api.Node_GetOperatorType, node), get(api.Node_GetSinceVersion, node, "int*")
        return Parent(op, tuple(name for name in writes if name), version, _attributes(node))

    def opsets(self) -> dict[str, int]:
        """Domain -> opset version; the ONNX domain is ""."""
        n = get(api.Graph_GetNumOperatorSets, self.pointer, "size_t*")
        domains, versions = ffi.new("char*[]", max(n, 1)), ffi.new("int64_t[]", max(n, 1))
        api.Graph_GetOperatorSets(self.pointer, domains, versions, n)
        return {_domain(text_of(domains[i])): int(versions[i]) for i in range(n)}

    def model_path(self) -> str:
        """The model's file, "" where it came from memory."""
        return _path(get(api.Graph_GetModelPath, self.pointer))

    def names(self, count: Any, fill: Any, handle: Any) -> tuple[str, ...]:
        """The names in a list of OrtValueInfo; "" for one left out. Learns their types."""
        return tuple(self._name(p) for p in get_list(count, fill, handle))

    def _name(self, info: Any) -> str:
        if info == NULL:
            return ""
        key = int(ffi.cast("uintptr_t", info))
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = get_text(api.GetValueInfoName, info)
            if name and name not in self._values:
                self._values[name] = self._value(name, info)
        return name

    def _value(self, name: str, info: Any) -> Value:
        dtype, shape = _type_of(info)
        constant = dtype is not None and bool(get(api.ValueInfo_IsConstantInitializer, info, "bool*"))
        if constant and self._is_given(name):
            self.given.add(name)
            return Value(name)
        return Value(name, dtype, shape, (lambda: self._load(name, info)) if constant else None)

    def _load(self, name: str, info: Any) -> Array:
        if not self._open:
            raise InternalError(
                f"constant {name!r} was read after ONNX Runtime's callback had ended; expected it to be read "
                f"in Program()"
            )
        outer = get(api.ValueInfo_IsFromOuterScope, info, "bool*")
        external = get(api.ValueInfo_GetExternalInitializerInfo, info) if outer else NULL
        if external != NULL:
            array = self._external(external, info)
        else:
            value = get(api.ValueInfo_GetInitializerValue, info)
            if value == NULL:
                raise InternalError(f"onnxruntime calls {name!r} a constant but gives no value for it")
            array = _tensor_array(value)
        array.flags.writeable = False
        return array

    def _external(self, external: Any, info: Any) -> Array:
        """What a body reads of its outer graph, from the file: onnxruntime looks for it in the body alone, and fails."""
        try:
            location = _path(api.ExternalInitializerInfo_GetFilePath(external))
            offset = int(api.ExternalInitializerInfo_GetFileOffset(external))
            nbytes = int(api.ExternalInitializerInfo_GetByteSize(external))
        finally:
            api.ReleaseExternalInitializerInfo(external)
        model, (dtype, shape) = self.model_path(), _type_of(info)
        sizes = tuple(size for size in shape or () if isinstance(size, int))
        if dtype is None or shape is None or len(sizes) < len(shape):
            raise InternalError(f"onnxruntime gives no type for external data in {location!r}")
        if not nbytes:
            return np.empty(sizes, dtype.numpy)
        with open_location(location, os.path.dirname(os.path.abspath(model)) if model else os.getcwd(), model) as file:
            return _array_of(np.memmap(file, np.uint8, "r", offset, (nbytes,)), sizes, dtype)

    def _node(self, p: Any) -> Node:
        identity = int(get(api.Node_GetId, p, "size_t*"))
        self.nodes[identity] = p
        return Node(
            op=get_text(api.Node_GetOperatorType, p),
            inputs=self.names(api.Node_GetNumInputs, api.Node_GetInputs, p),
            outputs=self.names(api.Node_GetNumOutputs, api.Node_GetOutputs, p),
            name=get_text(api.Node_GetName, p),
            domain=_domain(get_text(api.Node_GetDomain, p)),
            version=get(api.Node_GetSinceVersion, p, "int*"),
            attributes=_attributes(p),
            implicit=self.names(api.Node_GetNumImplicitInputs, api.Node_GetImplicitInputs, p),
            has_subgraph=get(api.Node_GetNumSubgraphs, p, "size_t*") > 0,
            id=identity,
        )


def _path(pointer: Any) -> str:
    """A path that onnxruntime gives, "" where it gives none."""
    if pointer == NULL:
        return ""
    path = ffi.string(ffi.cast("wchar_t*" if os.name == "nt" else "char*", pointer))
    return path if isinstance(path, str) else os.fsdecode(path)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _type_of(info: Any) -> tuple[DType | None, SymbolicShape | None]:
    kind = get(api.GetValueInfoTypeInfo, info)
    tensor = get(api.CastTypeInfoToTensorInfo, kind) if kind else NULL
    if not tensor:
        return None, None
    dtype = BY_ORT.get(get(api.GetTensorElementType, tensor, "int*"))
    if not api.TensorTypeAndShape_HasShape(tensor):
        return dtype, None
    rank = get(api.GetDimensionsCount, tensor, "size_t*")
    sizes, symbols = ffi.new("int64_t[]", rank + 1), ffi.new("char*[]", rank + 1)
    api.GetDimensions(tensor, sizes, rank)
    api.GetSymbolicDimensions(tensor, symbols, rank)
    return dtype, tuple(int(sizes[i]) if sizes[i] >= 0 else text_of(symbols[i]) or None for i in range(rank))


def _tensor_array(value: Any) -> Array:
    address, shape, kind = tensor_of(address_of(value))
    return array_at(address, shape, BY_ORT[kind])


def _attributes(node: Any) -> dict[str, Attribute]:
    return {
        get_text(api.OpAttr_GetName, a): _attribute(a)
        for a in get_list(api.Node_GetNumAttributes, api.Node_GetAttributes, node)
    }


def _attribute(attribute: Any) -> Attribute:
    try:
        kind = get(api.OpAttr_GetType, attribute, "int*")
    except InternalError:  # a type that the C API has no name for (a TypeProto, a sparse tensor)
        return None
    if kind == _TENSOR:
        return _tensor_attribute(attribute)
    if kind not in (_INT, _INTS, _FLOAT, _FLOATS, _STRING, _STRINGS):
        return None
    nbytes, data = ffi.new("size_t*"), ffi.new("char[]", _ATTRIBUTE_NBYTES)
    try:
        api.ReadOpAttr(attribute, kind, data, _ATTRIBUTE_NBYTES, nbytes)
    except InternalError:  # too few: it has told how many it takes
        data = ffi.new("char[]", nbytes[0])
        api.ReadOpAttr(attribute, kind, data, nbytes[0], nbytes)
    raw = bytes(ffi.buffer(data, nbytes[0]))
    if kind == _STRING:
        return raw.decode("utf-8", "replace").rstrip("\0")
    if kind == _STRINGS:
        return tuple(text.decode("utf-8", "replace") for text in raw.removesuffix(b"\0").split(b"\0")) if raw else ()
    items = np.frombuffer(raw, np.int64 if kind in (_INT, _INTS) else np.float32).tolist()
    return items[0] if kind in (_INT, _FLOAT) else tuple(items)


def _tensor_attribute(attribute: Any) -> Attribute:
    value = get(api.OpAttr_GetTensorAttributeAsOrtValue, attribute)
    try:
        return _tensor_array(value).copy() if tensor_of(address_of(value))[2] in BY_ORT else None
    finally:
        api.ReleaseValue(value)
