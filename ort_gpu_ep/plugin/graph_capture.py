"""Graph capture: runs that ONNX Runtime asks for again, by a number, are the provider's alone.

A run's number is the `gpu_graph_id` of its RunOptions, 0 without one. Before a run, ONNX Runtime asks whether that number
is captured. If so, it asks for a replay, and neither copies nor allots nor looks at anything itself. If not, it makes the
run and asks once more; where the answer is no again, it makes the run anew, a few times, and then gives up.

So a run is captured with its first time, if all that it read and wrote lies on the device, in blocks that the program had
before. Any other is answered with yes when it is over, and with no before the next one: ONNX Runtime makes each of them.
A replay is a run of what is bound (bound.py), recorded ahead.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.errors import ConfigError, DeviceError
from ort_gpu_ep.plugin.abi import api, c_text, text_of
from ort_gpu_ep.plugin.bound import BoundRun, Turns
from ort_gpu_ep.plugin.compute import Partition, Run
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.plugin.provider import Provider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ort_gpu_ep.device.index_check import Word
    from ort_gpu_ep.ir.types import Shape, TensorType
    from ort_gpu_ep.plugin.memory import Block

_NUMBER = c_text("gpu_graph_id")


class _Now(threading.local):
    """What a thread is at. number: of the run that it begins or has ended, None once ONNX Runtime has asked about it, and
    for one that is not to be captured. blocks: how many there were before. is_over: the partition has done its part, on
    the GPU or on the CPU. run: through ONNX Runtime, by the GPU. is_replay: it was one."""

    number: int | None = None
    blocks = 0
    is_over = is_replay = False
    run: CapturingRun | None = None


class CapturingRun(Run):
    """A run through ONNX Runtime that notes where its outputs are."""

    partition: CapturingPartition

    def __init__(self, partition: CapturingPartition, context: int) -> None:
        super().__init__(partition, context)
        self._targets: dict[int, tuple[int, TensorType]] = {}

    def output(self, index: int, shape: Shape) -> tuple[int, TensorType]:
        place = self._targets[index] = super().output(index, shape)
        return place

    def deliver(self, word: Word | None) -> None:
        super().deliver(word)
        self.partition.now.run = self

    def graph(self, blocks_before: int) -> CapturedGraph | None:
        """The same run, to be made again; None where a value is not on the device, or not the program's own.
        blocks_before: how many there were before it."""
        targets = [self._targets[k] for k in sorted(self._targets)]
        values = [*self._places, *targets]
        blocks = [memory.block_of(address) if kind.nbytes else None for address, kind in values]
        if not all(block is not None and block.number < blocks_before for block in blocks):
            return None
        runs = BoundRun(self.partition, [*self._places], [*targets], set(), True)
        return CapturedGraph(self.partition, runs, [block for block in blocks if block is not None])


class CapturingPartition(Partition):
    """now: of this thread."""

    run_type = CapturingRun

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.now = _Now()

    def compute(self, compute_state: int, context: int) -> None:
        super().compute(compute_state, context)
        self.now.is_over = True


class CapturedGraph:
    """Replays of a run. blocks: of what it reads and writes."""

    def __init__(self, partition: Partition, runs: BoundRun, blocks: Sequence[Block]) -> None:
        self._partition, self._turns, self._blocks, self._version = partition, Turns([runs]), blocks, memory.version
        self._lock = threading.Lock()

    def stands(self) -> bool:
        """Whether all of its memory is still there, and the GPU may be used."""
        if self._version != memory.version:
            self._version = memory.version
            if any(memory.block_of(block.start) is not block for block in self._blocks):
                return False
        return not self._partition.avoids_the_gpu()

    def replay(self) -> bool:
        """One run, of one thread at a time. False where nothing was done. Raises what the partition does."""
        with self._lock:
            return self._turns.run(0)


class CapturingProvider(Provider):
    """The EP of a session with the option graph_capture."""

    partition_type = CapturingPartition

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._graphs: dict[int, CapturedGraph] = {}

    def get_capability(self, graph: Any, support: Any) -> None:
        super().get_capability(graph, support)
        report = self.state.reports[-1]
        if not report.nested and not any(node.device == "gpu" for each in self.state.reports for node in each.nodes):
            self.state.record("notice", "graph capture", "graph_capture=1 has no effect: no node is on the GPU")

    def compile(self, graphs: Any, fused: Any, count: int, infos: Any, context_nodes: Any) -> None:
        with self.state.recording("Compile"):
            if why := self._refusal():
                raise ConfigError(why)
        super().compile(graphs, fused, count, infos, context_nodes)

    def _refusal(self) -> str:
        """Why a replay would not be all of a run; empty where it would."""
        report, graph = self.state.reports[-1], self.state.graphs[-1]
        elsewhere = [node for node in report.nodes if node.device == "cpu"]
        if elsewhere:
            some = "; ".join(f"{n.name} ({n.op}): {n.reason}" for n in elsewhere[:3])
            why = f"{len(elsewhere)} of {len(report.nodes)} nodes stay on the CPU: {some}"
        elif len(report.partitions) != 1:
            why = f"the GPU's nodes make {len(report.partitions)} partitions, expected one"
        elif others := sorted(set(graph.outputs) - set(report.partitions[0].outputs)):
            why = f"no node gives the output {others[0]!r}"
        else:
            return ""
        return (
            f"graph_capture=1 needs the whole model on the GPU, but {why}. Leave out graph_capture; with placement=auto, "
            "try placement=gpu."
        )

    def is_graph_capture_enabled(self) -> bool:
        """Not where the CPU has the whole model: the session goes on without."""
        return not self.state.reports or bool(self.state.partitions)

    def on_run_start(self, options: Any) -> None:
        if self.state.partitions:
            number, now = int(text_of(api.GetRunConfigEntry(options, _NUMBER)) or 0), self._now()
            now.number, now.blocks = None if number == -1 else number, memory.blocks
            now.is_over, now.is_replay, now.run = False, False, None

    def is_graph_captured(self, number: int) -> bool:
        now = self._now()
        if number == now.number and now.is_over:
            run, now.number, now.run = now.run, None, None
            graph = run.graph(now.blocks) if run is not None else None
            if graph is not None:
                self._graphs[number] = graph
            return True
        graph = self._graphs.get(number)
        if graph is not None and not graph.stands():
            self._graphs.pop(number, None)
            graph = None
        return graph is not None

    def replay_graph(self, number: int) -> None:
        graph = self._graphs.get(number)
        if graph is None or not graph.replay():
            self._graphs.pop(number, None)
            raise DeviceError(
                f"graph {number} can't be replayed: the GPU is not to be used now, or an output has other sizes than the "
                "value that was bound when the graph was captured. The next run is made anew; with gpu_graph_id=-1 "
                "none is captured."
            )
        now = self._now()
        now.number, now.is_over, now.is_replay = number, True, True

    def sync(self) -> None:
        """Behind a replay, ONNX Runtime asks for it by itself: who reads what the replay gives waits then."""
        gpu, now = self.state.gpu, self._now() if self.state.partitions else None
        if now is not None and now.number is not None and now.is_replay and gpu is not None:
            gpu.flush()
        else:
            super().sync()

    def release_captured_graph(self, number: int) -> None:
        self._graphs.pop(number, None)

    def _now(self) -> _Now:
        (partition,) = self.state.partitions
        assert isinstance(partition, CapturingPartition), "of `partition_type`"
        return partition.now
