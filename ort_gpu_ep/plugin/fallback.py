"""A partition on ONNX Runtime's CPU provider, for runs that the GPU can't do.

The model is put together from our Graph when it is first needed; until then its large constants wait on disk.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from ort_gpu_ep import private
from ort_gpu_ep.errors import GpuEpError, InternalError, ModelError
from ort_gpu_ep.ir.types import FLOAT32, SUB_BYTE, TensorType, packed
from ort_gpu_ep.kernels.host import MAX_CONSTANT_NBYTES
from ort_gpu_ep.plugin.ort_sessions import exact_products, ort_session
from ort_gpu_ep.plugin.verification import JUDGED_NBYTES
from ort_gpu_ep.plugin.weight_file import WeightFile
from ort_gpu_ep.providers import CPU_PROVIDER, EP_NAME

if TYPE_CHECKING:
    import onnx

    from ort_gpu_ep.config import Config
    from ort_gpu_ep.ir.graph import Array, Attribute, Graph, Node, Value
    from ort_gpu_ep.partitioner.report import Report
    from ort_gpu_ep.plugin.own_weights import OwnWeights
    from ort_gpu_ep.runtime.backend import FilePlace

_MIN_IR_VERSION = 10

_SUB_BYTE = frozenset(t.name for t in SUB_BYTE)

NO_KERNEL = (private.Fail, private.NotImplemented)
"""What onnxruntime raises for a model that it has no kernel for; of some operators ours have forms that its CPU
provider lacks."""


class NoProviderError(GpuEpError, private.NotImplemented):  # type: ignore[misc]  # which onnxruntime has no types for
    """No provider of a session takes a node of its model."""


_NOBODYS = re.compile(r"implementation for (\w+)\(|Provider type for (\w+) node")
"""What onnxruntime says of an op that no provider has taken, before it looked for kernels and after."""


def taken_by_nobody(error: Exception, reports: Iterable[Report]) -> str:
    """Why a session could not be made where neither our provider nor another takes a node; empty where it was another
    reason."""
    match = _NOBODYS.search(str(error))
    op = (match[1] or match[2]) if match else ""
    nodes = [n for report in reports for n in report.nodes if op and n.op == op and n.device == "cpu"]
    if not nodes:
        return ""
    said = "; ".join(f"{n.name}: {n.code}: {n.reason}" for n in nodes[:3]) + (
        f"; and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    )
    return (
        f"no provider of this session takes {op}: onnxruntime's others have no kernel for it, and {EP_NAME} "
        f"declined {said}. Try the "
        f"model as it was before an optimiser wrote {op}, or add a provider that has it"
    )


_POOLS = frozenset({"AveragePool", "MaxPool"})

BLOCKED = "NchwcTransformer"
"""onnxruntime's optimiser that has its CPU convolve and pool float32 images in blocks of channels."""


def may_empty_images(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Whether one of these nodes pools images of which a run may leave nothing: where onnxruntime pools them in blocks
    of channels, its process ends (SIGFPE).
    """
    return any(
        node.op in _POOLS and not _is_filled(graph.values[node.writes[0]]) for node in nodes if node.domain == ""
    )


def _is_filled(images: Value) -> bool:
    """Whether images have elements, whatever the run, or are none of float32. No images at all do no harm."""
    is_float = images.dtype is None or images.dtype is FLOAT32
    return not is_float or (
        images.shape is not None and all(isinstance(size, int) and size > 0 for size in images.shape[2:])
    )


class Fallback:
    """The CPU version of one partition. Thread-safe.

    graph: read at Compile; its constants are taken now. opsets: of the model. notify: is told what a user should know.
    own: the model's files, where large constants may stay that are there already.
    """

    def __init__(
        self,
        graph: Graph,
        opsets: Mapping[str, int],
        config: Config,
        notify: Callable[[str], object],
        own: OwnWeights | None = None,
    ) -> None:
        self._graph, self._opsets = graph, dict(opsets)
        self._kept: dict[str, Array] = {}
        self._large: tuple[str, ...] = ()
        self._own = own
        self._owned: dict[str, FilePlace] = {}
        self._file: WeightFile | None = None
        self._session: Any = None
        self._missing: str | None = None
        self._lock = threading.Lock()
        self._take_constants(config.cache_path, notify)

    def missing(self) -> str:
        """Why the CPU provider has no kernel for these nodes; empty where it has."""
        if self._missing is None:
            try:
                self._built()
                self._missing = ""
            except NO_KERNEL as error:
                self._missing = f"{type(error).__name__}: {error}"
        return self._missing

    def run(self, inputs: Sequence[tuple[TensorType, Array]]) -> list[Any]:
        """The outputs as OrtValues on the CPU. inputs: in the order of graph.inputs, each with its flat bytes."""
        if not self._graph.outputs:  # nobody reads what it computes
            return []
        session = self._built()
        feeds = {}
        for name, (tensor, data) in zip(self._graph.inputs, inputs, strict=True):
            feeds[name] = _ort_value(data.view(tensor.dtype.numpy).reshape(tensor.shape), tensor.dtype.onnx)
        return list(session.run_with_ort_values(list(self._graph.outputs), feeds))

    def graph_with_constants(self) -> Graph:
        """The partition's graph, with the constants that it reads: a program can be made of it. Raises ValueError, once
        closed."""
        values = dict(self._graph.values)
        for name, array in (self._kept | self._stored()).items():
            values[name] = replace(values[name], load=partial(_given, array))
        return self._graph.with_nodes(self._graph.nodes, values)

    def model(self) -> onnx.ModelProto:
        """The partition as a model that holds its constants. Raises ModelError where they are more than JUDGED_NBYTES;
        as `_stored`."""
        constants = {**self._kept, **self._stored()}
        nbytes = sum(a.nbytes for a in constants.values())
        if nbytes > JUDGED_NBYTES:
            raise ModelError(f"it holds {nbytes >> 20} MiB")
        return self._model({}, constants)

    def close(self) -> None:
        """Deletes the constants on disk."""
        with self._lock:
            self._session = self._own = None
            if self._file is not None:
                self._file.remove()

    def constants(self) -> dict[str, Array | FilePlace]:
        """What the partition's nodes read: small ones, and where on disk the large ones are until `close`."""
        places = {name: self._file.places[name] for name in self._large} if self._file is not None else {}
        return {**self._kept, **self._owned, **places}

    def _stored(self) -> dict[str, Array]:
        """The large constants. Raises ValueError, once closed; OSError where the model's own file has them, and was
        overwritten."""
        if self._owned and self._own is None:
            raise ValueError("the model's files were closed with their session")
        owned = {name: self._own.load(place) for name, place in self._owned.items()} if self._own is not None else {}
        return owned | ({name: self._file.load(name) for name in self._large} if self._file is not None else {})

    def _take_constants(self, cache_path: str, notify: Callable[[str], object]) -> None:
        read = {name for node in self._graph.nodes for name in node.reads} | set(self._graph.outputs)
        constants = {n: v.load for n, v in self._graph.values.items() if v.load is not None and n in read}
        arrays = {name: load() for name, load in constants.items()}
        large = {n: a for n, a in arrays.items() if a.nbytes > MAX_CONSTANT_NBYTES}
        self._kept = {n: np.array(a) for n, a in arrays.items() if n not in large}
        for name in list(large) if self._own is not None else ():
            place = self._own.place(name, large[name]) if self._own is not None else None
            if place is not None:
                self._owned[name] = place
                del large[name]
        if not large:
            return
        try:
            self._file = WeightFile(cache_path, sum(a.nbytes for a in large.values()))
            for name, array in large.items():
                self._file.add(name, array)
            self._file.close_writing()
        except OSError as error:
            notify(f"weights for the CPU fallback stay in memory: {error}")
            if self._file is not None:
                self._file.remove()
            self._file = None
            self._kept |= {n: np.array(a) for n, a in large.items()}
        self._large = tuple(large) if self._file is not None else ()

    def _built(self) -> Any:
        with self._lock:
            if self._session is None:
                options = onnxruntime.SessionOptions()
                options.log_severity_level = 3
                exact_products(options)
                options.enable_cpu_mem_arena = False  # an arena keeps the largest run's tensors, twice over
                stored = self._stored()
                # no OrtValue is made of the others
                external = {n: a for n, a in stored.items() if a.dtype.name not in _SUB_BYTE}
                if external:
                    values = [_ort_value(a, self._onnx_type(n)) for n, a in external.items()]
                    options.add_external_initializers(list(external), values)
                model = self._model(external, {**self._kept, **{n: a for n, a in stored.items() if n not in external}})
                without = [BLOCKED] if may_empty_images(self._graph, self._graph.nodes) else []
                self._session = ort_session(
                    model.SerializeToString(), options, providers=[CPU_PROVIDER], disabled_optimizers=without
                )
            return self._session

    def _onnx_type(self, name: str) -> int:
        dtype = self._graph.values[name].dtype
        if dtype is None:
            raise InternalError(
                f"value {name!r} at the border of partition {self._graph.name} is not a tensor of a known type"
            )
        return dtype.onnx

    def _model(self, external: Mapping[str, Array], inside: Mapping[str, Array]) -> onnx.ModelProto:
        import onnx

        from ort_gpu_ep.weights.functions import DOMAIN, functions

        graph = onnx.helper.make_graph(
            [_node_proto(n) for n in self._graph.nodes],
            self._graph.name or "partition",
            [self._info(n) for n in self._graph.inputs],
            [self._info(n) for n in self._graph.outputs],
            [self._initializer(n, a) for n, a in inside.items()],
        )
        for name, array in external.items():
            tensor = graph.initializer.add(name=name, data_type=self._onnx_type(name), dims=array.shape)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="given by add_external_initializers")
        used = {n.domain for n in self._graph.nodes} | {""}
        opsets = [onnx.helper.make_opsetid(d, v) for d, v in self._opsets.items() if d in used]
        decoders = functions((n.op for n in self._graph.nodes if n.domain == DOMAIN), self._opsets.get("", 0))
        return onnx.helper.make_model(graph, opset_imports=opsets, functions=decoders, ir_version=_MIN_IR_VERSION)

    def _info(self, name: str) -> onnx.ValueInfoProto:
        import onnx

        return onnx.helper.make_tensor_value_info(name, self._onnx_type(name), self._graph.values[name].shape)

    def _initializer(self, name: str, array: Array) -> onnx.TensorProto:
        import onnx

        return onnx.helper.make_tensor(name, self._onnx_type(name), array.shape, packed(array).tobytes(), raw=True)


def _given(array: Array) -> Array:
    return array


def _ort_value(array: Array, onnx_type: int) -> Any:
    """An OrtValue over the array's memory."""
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        np.ascontiguousarray(array).reshape(array.shape), onnx_type
    )


def _node_proto(node: Node) -> onnx.NodeProto:
    import onnx

    proto = onnx.helper.make_node(node.op, node.inputs, node.outputs, node.name, domain=node.domain)
    schema = _attribute_types(node)
    for name, value in node.attributes.items():
        if value is not None:
            proto.attribute.append(_attribute_proto(name, value, schema.get(name)))
    return proto


def _attribute_types(node: Node) -> dict[str, int]:
    """Attribute -> AttributeProto.AttributeType, from the op's schema: an empty list does not say what it is a list
    of."""
    import onnx

    try:
        schema = onnx.defs.get_schema(node.op, max(node.version, 1), node.domain)
    except onnx.defs.SchemaError:
        return {}
    return {name: attribute.type.value for name, attribute in schema.attributes.items()}  # type: ignore[attr-defined]


def _attribute_proto(name: str, value: Attribute, kind: int | None) -> onnx.AttributeProto:
    import onnx

    if isinstance(value, np.ndarray):
        return onnx.helper.make_attribute(name, onnx.numpy_helper.from_array(value))
    return onnx.helper.make_attribute(name, list(value) if isinstance(value, tuple) else value, attr_type=kind)
