"""What the partitioner decided and why: plain data, and the tables that show it."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Where one node of the model went. device: gpu, host (computed once per shape, when a plan is made) or cpu."""

    id: int
    name: str
    op: str
    device: str
    code: str = ""
    reason: str = ""
    partition: int = -1
    fused_into: str = ""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One group of nodes that runs as a unit. Sizes in bytes, for the model's static shapes or their stand-ins (`exact`)."""

    index: int
    nodes: int
    dispatches: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_nbytes: int
    output_nbytes: int
    weight_nbytes: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The decision for one graph (the model's main graph, or a body of If, Loop or Scan)."""

    graph: str
    nested: bool
    nodes: tuple[NodeReport, ...]
    partitions: tuple[PartitionReport, ...]
    placement: str

    def count(self, device: str) -> int:
        return sum(n.device == device for n in self.nodes)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)
