"""OrtEp: one session's execution provider."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ort_gpu_ep import partitioner
from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import Code, ConfigError, InternalError, forget_frames
from ort_gpu_ep.files import fingerprint
from ort_gpu_ep.heap import give_back
from ort_gpu_ep.ir.digest import digest
from ort_gpu_ep.ir.graph import Graph, Parent
from ort_gpu_ep.kernels.profile import GUESSED
from ort_gpu_ep.kernels.registry import Decline, Limits
from ort_gpu_ep.partitioner.report import Partitioning, Report
from ort_gpu_ep.plugin import slots
from ort_gpu_ep.plugin.abi import NULL, api, ffi
from ort_gpu_ep.plugin.compute import Partition
from ort_gpu_ep.plugin.fallback import BLOCKED, Fallback, may_empty_images
from ort_gpu_ep.plugin.given import GivenInitializers
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.plugin.own_weights import OwnWeights
from ort_gpu_ep.plugin.partitioning import load_partitioner, partition, rewrite
from ort_gpu_ep.plugin.plain import NOT_COMPILED
from ort_gpu_ep.plugin.profiler import Profiler
from ort_gpu_ep.plugin.reader import Reader
from ort_gpu_ep.plugin.state import SessionState
from ort_gpu_ep.plugin.tables import Table, owner_of
from ort_gpu_ep.plugin.transfer import Allocator
from ort_gpu_ep.runtime.artefact import Artefact, key_of, opened
from ort_gpu_ep.runtime.backend import Executable

if TYPE_CHECKING:
    from ort_gpu_ep.partitioner import Costs


_NO_RESOURCE, _TOTAL_BYTES = 0, 1
"""OrtResourceCountKind."""


class Shared(NamedTuple):
    """What all providers of a factory have, as C has it: their name, the registry of their kernels, the OrtMemoryInfo
    of host memory."""

    c_name: Any
    registry: Any
    host: Any


class Provider(Table):
    """The EP of one session. given: initializers that its options bring: nodes that read them stay on the CPU, because
    ONNX Runtime passes the model's own values to a provider with memory of its own. to_be_written: the session is to
    write a compiled model. forbidden: why it may not compile anything, empty where it may.
    """

    SLOTS = slots.EP
    partition_type: ClassVar[type[Partition]] = Partition

    def __init__(
        self,
        shared: Shared,
        state: SessionState,
        given: GivenInitializers,
        to_be_written: bool = False,
        forbidden: str = "",
    ) -> None:
        super().__init__()
        self.shared, self.state, self.given, self.to_be_written, self.forbidden = (
            shared,
            state,
            given,
            to_be_written,
            forbidden,
        )
        self._bodies: dict[Parent, dict[str, Report]] = {}
        self._own: OwnWeights | None = None
        if state.backend is None or state.backend.device is not None:
            self.pointer.slot[slots.EP["GetDefaultMemoryDevice"].number] = NULL

    @property
    def config(self) -> Config:
        if self.state.config is None:
            raise InternalError("an execution provider without a config")
        return self.state.config

    def get_name(self) -> Any:
        return self.shared.c_name

    def get_capability(self, graph: Any, support: Any) -> None:
        """Offers the partitioner's groups. ONNX Runtime swallows an error here and uses the CPU: it is recorded."""
        with self.state.recording("GetCapability"), Reader(graph, self.given.has) as reader:
            self.state.model_path = self.state.model_path or reader.model_path()
            whole = reader.graph()
            artefact = self._artefact(whole)
            partitioning = self._partitioning(whole, artefact)
            self.state.report(partitioning.report, whole)
            if reader.given:
                self.state.record(
                    "notice",
                    "placement",
                    f"nodes that read {', '.join(sorted(reader.given))} stay on the CPU: "
                    "SessionOptions.add_initializer gives other values than the model's",
                )
            ours = {i for group in partitioning.groups for i in group} if self.state.backend is not None else set[int]()
            if may_empty_images(whole, [node for node in whole.nodes if node.id not in ours]):
                self.state.unwanted_optimizers.add(BLOCKED)
            for event in partitioning.report.events:
                self.state.record("warning", "placement", event)
            options = ffi.new("FusionOptions*")
            options.version, options.drop_constant_initializers = api.version, True
            for group in partitioning.groups if self.state.backend is not None else ():
                check_border(whole, group)
                nodes = ffi.new("void*[]", [reader.nodes[i] for i in group])
                api.EpGraphSupportInfo_AddNodesToFuse(support, nodes, len(group), options)
            for node in whole.nodes:
                if (bodies := self._inner(whole).get(node.id)) and partitioner.is_ours(bodies):
                    api.EpGraphSupportInfo_AddSingleNode(support, reader.nodes[node.id])
            if whole.parent is not None:
                # asked again, it is in partitions
                self._bodies.setdefault(whole.parent, {}).setdefault(whole.name, partitioning.report)
            elif artefact is not None:
                artefact.save()

    def _inner(self, graph: Graph) -> dict[int, list[Report]]:
        """What was decided on the bodies of a graph's If, Loop and Scan, by id of the node."""
        inner = {n.id: self._bodies.get(Parent(n.op, n.writes)) for n in graph.nodes if n.has_subgraph}
        return {key: list(reports.values()) for key, reports in inner.items() if reports is not None}

    def _artefact(self, graph: Graph) -> Artefact | None:
        """What is known of the session's model. graph: the first one of it that ONNX Runtime shows."""
        state = self.state
        if state.artefact is None and state.backend is not None and state.asked is not None:
            model = state.fingerprint or (fingerprint(state.model_path) if state.model_path else "")
            model = model or digest(graph.name, graph.inputs, graph.outputs, [node.op for node in graph.nodes])
            state.artefact = opened(state.asked.cache_path, key_of(model, state.backend.key, state.asked))
        return state.artefact

    def _partitioning(self, graph: Graph, artefact: Artefact | None) -> Partitioning:
        """What goes where; where that can't be told, the report says why."""
        if self.forbidden:
            return self._nothing(graph, Decline(Code.LIMIT, self.forbidden))
        gpu = self.state.backend.adapter if self.state.backend is not None else None
        if gpu is None and self.config.placement != "cpu":
            why = "; ".join(map(str, self.state.errors)) or "no GPU was opened"
            return self._nothing(graph, Decline(Code.DRIVER, why))
        limits, software = (
            (gpu.limits.of(self.config), gpu.info.type == "software") if gpu is not None else (Limits(), True)
        )
        try:
            resident = self.state.backend is not None and self.state.backend.device is not None
            costs, inner = self._costs(graph, software), self._inner(graph)
            return partition(artefact, graph, self.config, limits, software, costs, inner, resident)
        except Exception as error:
            why = f"the partitioner fails: {type(error).__name__}: {error}"
            self.state.report(self._nothing(graph, Decline(Code.ERROR, why)).report, graph)
            raise

    def _nothing(self, graph: Graph, why: Decline) -> Partitioning:
        load_partitioner()
        return partitioner.nothing(graph, self.config, why)

    def _costs(self, graph: Graph, software: bool) -> Costs | None:
        """What placement=auto decides by: what was given, else the adapter's profile; not for a software adapter that
        nobody asked for.

        For a body of Loop or Scan, the profile if it is known: nothing is measured for it.
        """
        backend, auto = self.state.backend, self.config.placement == "auto"
        if self.state.costs is None and backend is not None and auto and (bool(self.config.adapter) or not software):
            self.state.costs = partitioner.Costs(backend.profile(self.config))
        assumed = self.state.costs is None or self.state.costs.profile is GUESSED
        if backend is not None and not auto and graph.parent is not None and assumed:
            return partitioner.Costs(backend.profile(self.config, measured=False))
        return self.state.costs

    def compile(self, graphs: Any, fused: Any, count: int, infos: Any, context_nodes: Any) -> None:
        with self.state.recording("Compile"):
            if self.to_be_written:
                raise ConfigError(NOT_COMPILED)
            for i in range(count):
                partition = self._compile(graphs[i], fused[i])
                self.state.partitions.append(partition)
                infos[i] = partition.pointer

    def _compile(self, pointer: Any, fused: Any) -> Partition:
        with Reader(pointer) as reader:
            names = reader.names(api.Node_GetNumInputs, api.Node_GetInputs, fused)
            outputs = reader.names(api.Node_GetNumOutputs, api.Node_GetOutputs, fused)
            graph = reader.graph(names, outputs)
            missing = [name for name in graph.inputs if name not in names]
            if missing:
                raise InternalError(
                    f"partition {graph.name} reads {missing}, which ONNX Runtime will not pass; it passes {list(names)}"
                )
            positions = tuple(names.index(name) for name in graph.inputs)
            notify = partial(self.state.record, "warning", graph.name)
            program, backend, fallback = None, self.state.backend, None
            if not self.config.strict or self.config.verify or (backend is not None and backend.rereads_constants):
                fallback = Fallback(graph, reader.opsets(), self.config, notify, self._own_weights())
            try:
                program = self._program(graph, fallback)
            except Exception as error:
                if self.config.strict:
                    raise
                self.state.record("fallback", graph.name, error)
                forget_frames(error)
            return self.partition_type(self.state, graph, positions, program, fallback)

    def _own_weights(self) -> OwnWeights | None:
        """The model's files; None where a worker gets weights by the names of files, which somebody may replace."""
        if self.state.backend is not None and self.state.backend.rereads_constants:
            return None
        if self._own is None:
            self._own = OwnWeights(self.state.model_path)
        return self._own

    def _program(self, graph: Graph, fallback: Fallback | None) -> Executable:
        if self.state.backend is None:
            raise InternalError(f"partition {graph.name} was claimed without a GPU")
        constants = fallback.constants() if fallback is not None else {}
        if not self.config.fusion:
            load_partitioner()  # else `rewrite` does
        program = self.state.backend.compile(
            graph, self.config, rewrite if self.config.fusion else None, constants, self.state.artefact
        )
        if program.problem:
            self.state.record("fallback", graph.name, program.problem)
        return program

    def release_node_compute_infos(self, infos: Any, count: int) -> None:
        for i in range(count):
            owner = owner_of(infos[i])
            owner.drop()
            if isinstance(owner, Partition):
                owner.close()

    def create_allocator(self, memory_info: Any, out: Any) -> None:
        out[0] = Allocator(memory_info, self.state).pointer

    def get_kernel_registry(self, out: Any) -> None:
        out[0] = self.shared.registry

    def get_default_memory_device(self, out: Any) -> None:
        """Host memory, where a worker has the GPU; the slot is empty otherwise."""
        out[0] = api.MemoryInfo_GetMemoryDevice(self.shared.host)

    def is_concurrent_run_supported(self, out: Any) -> None:
        ffi.cast("bool*", out)[0] = True

    def sync(self) -> None:
        """Waits until the device has done what was asked of it, for all sessions."""
        gpu = self.state.gpu
        if gpu is not None and not gpu.lost and not memory.forked:
            with self.state.allowance, self.state.recording("Sync"):
                gpu.finish()

    def create_profiler(self, out: Any) -> None:
        """None where the GPU is a worker's: its runs are not timed."""
        gpu = self.state.gpu
        out[0] = Profiler(self.state, gpu).pointer if gpu is not None else NULL

    def get_available_resource(self, out: Any) -> None:
        """Bytes of device memory that memory_limit_mb leaves. Without a limit nobody knows: WebGPU does not tell how
        much there is."""
        allowance = self.state.backend.allowance if self.state.backend is not None else None
        limited = allowance is not None and allowance.memory_nbytes > 0
        ffi.cast("uint32_t*", out)[0] = _TOTAL_BYTES if limited else _NO_RESOURCE
        if allowance is not None and limited:
            ffi.cast("uint64_t*", out)[1] = max(allowance.memory_nbytes - allowance.held_nbytes, 0)

    def on_session_initialization_end(self) -> None:
        self.state.ready = True
        give_back(sum(p.program.uploaded_nbytes for p in self.state.partitions if p.program is not None))


def check_border(graph: Graph, group: tuple[int, ...]) -> None:
    """Raises InternalError, if a value that a group takes or gives is not a tensor of a known element type."""
    inside = [node for node in graph.nodes if node.id in set(group)]
    for node in inside:
        for name in (*node.reads, *node.writes):
            if graph.values[name].dtype is None:
                raise InternalError(f"{node.label} was claimed, but {name!r} is not a tensor of a known element type")
