"""The partitioner's decisions and reasons: plain data, and the tables that show it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ort_gpu_ep.codec import Codec


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Where one node of the model went. device: gpu, host (computed once per shape, when a plan is made) or cpu.

    fused_into: the name of another node, whose kernel does this one too. reads, writes: names of values, constants
    apart. nbytes: of what it writes, for the model's shapes or their stand-ins; 0 where that is not known.
    """

    id: int
    name: str
    op: str
    device: str
    code: str = ""
    reason: str = ""
    partition: int = -1
    fused_into: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One group of nodes that runs as a unit. Sizes in bytes, for the model's static shapes or their stand-ins
    (`exact`).

    packed_nbytes: of weights that kernels read packed, of the weights; dense_nbytes: what these would take as float32.
    unpacked: nodes whose packed weight no other kernel reads: one writes it out in each run, or where it `stays_dense`,
    once. halved_nbytes: of weights in float16 (the option `precision`); whole: names of those that stay float32 because
    of numbers beyond float16's.
    """

    index: int
    nodes: int
    dispatches: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_nbytes: int
    output_nbytes: int
    weight_nbytes: int
    exact: bool
    packed_nbytes: int = 0
    dense_nbytes: int = 0
    unpacked: tuple[str, ...] = ()
    halved_nbytes: int = 0
    whole: tuple[str, ...] = ()
    stays_dense: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a run is expected to take with one assignment of the nodes, in seconds and bytes.

    candidate: `cpu` (all nodes), `gpu` (every node that has a kernel) or `cut` (the cheapest assignment); of a body
    also `resident`: as `gpu`, where its If, Loop or Scan has all values on the GPU, too. total_s = cpu_s (nodes there)
    + gpu_s (nodes there) + transfer_s (copies, waits, and what a run of a partition takes on the host).
    """

    candidate: str
    total_s: float
    cpu_s: float
    gpu_s: float
    transfer_s: float
    upload_nbytes: int
    download_nbytes: int
    partitions: int

    def __str__(self) -> str:
        return (
            f"{self.candidate} {self.total_s * 1e3:.3f} ms (CPU {self.cpu_s * 1e3:.3f}, GPU {self.gpu_s * 1e3:.3f}, "
            f"transfers {self.transfer_s * 1e3:.3f})"
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The decision for one graph (the model's main graph, or a body of If, Loop or Scan).

    predictions: of the assignments that were considered, the cheapest first, the runner-up second; empty unless
    placement=auto, or of a body of If, Loop or Scan: a turn. resident: what a turn of the body leaves is to stay on the
    GPU, because its If, Loop or Scan is ours, too. able: that it can be. measured: how many nodes' CPU seconds come
    from a profile of this model rather than from constants. events: what went wrong while it was decided, a sentence
    each. ranks: of the graph's outputs, of a sequence that of its elements, as far as they are known (ranks.py).
    guessed: nodes are on the CPU for a size or a rank that nobody gave.
    """

    graph: str
    nested: bool
    nodes: tuple[NodeReport, ...]
    partitions: tuple[PartitionReport, ...]
    placement: str
    predictions: tuple[Prediction, ...] = ()
    measured: int = 0
    events: tuple[str, ...] = ()
    resident: bool = False
    able: bool = False
    ranks: tuple[int, ...] = ()
    guessed: bool = False

    def count(self, device: str) -> int:
        return sum(n.device == device for n in self.nodes)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Partitioning:
    """groups: ids of the nodes of each group, to be fused by ONNX Runtime. report: why."""

    groups: tuple[tuple[int, ...], ...]
    report: Report


CODEC = Codec(Partitioning, {})
"""Of a Partitioning in a file."""
