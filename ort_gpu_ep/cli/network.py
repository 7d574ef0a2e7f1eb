"""What `explain --html` draws: a box a kernel with the nodes that it does, in blocks by name, and what crosses between
host and device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ort_gpu_ep.ir.graph import Attribute, Graph, Node, Value
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.plugin.explain import Explanation, NodeReport, Report, kind_of
from ort_gpu_ep.providers import CPU_PROVIDER
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.terminal import printable

DEEPEST, LONGEST, FLAT, RUN = 12, 120, 48, 32
"""Blocks in one another; characters of an attribute's value; boxes without a name's block that stand in one list, and
how many each block of a longer list has.
"""

LAYOUTS = ("/plain", "/channels_last")
"""What the labels of dispatches that convert an image's layout end in, behind the name of a value."""

INPUT, OUTPUT = "input", "output"
"""In place of a device: boxes for what a run brings and for what it gives."""

Tree: TypeAlias = "int | list[Any]"
"""Number of a box, or a block: its name, and what is in it."""


@dataclass
class Box:
    """Nodes that one node's kernels do, or one node elsewhere; an input or output of the network.

    graph: its number. nodes: theirs, the one that names the box first. kernels: its dispatches. reads, writes: numbers
    of values. us: of its dispatches or of the node on the CPU, where runs were profiled. bodies: numbers of graphs
    inside of it.
    """

    graph: int
    name: str
    side: str
    nodes: list[int] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    us: float | None = None
    bodies: list[int] = field(default_factory=list)


@dataclass
class Edge:
    """A value on its way. writer: number of a box, -1 for none. nbytes: 0 where that is not known. up, down: it is
    copied to the device, or from it.
    """

    name: str
    type: str
    nbytes: int
    writer: int = -1
    readers: list[int] = field(default_factory=list)
    up: bool = False
    down: bool = False


class Network:
    """The boxes of an Explanation in an order in which they can run, those of the model's own graph first."""

    def __init__(self, explained: Explanation) -> None:
        self.explained = explained
        graphs = (
            explained.graphs if len(explained.graphs) == len(explained.reports) else (None,) * len(explained.reports)
        )
        # the model's own graph first
        pairs = sorted(zip(explained.reports, graphs, strict=True), key=lambda pair: pair[0].nested)
        self.reports: list[Report] = [report for report, _ in pairs]
        self.nodes: list[tuple[NodeReport, Node | None]] = []
        self.boxes: list[Box] = []
        self.edges: list[Edge] = []
        self.parents: dict[int, int] = {}
        self._sources: list[Graph | None] = [graph for _, graph in pairs]
        self._edge_of: list[dict[str, int]] = [{} for _ in pairs]
        self._box_of_node: dict[int, int] = {}
        for k in range(len(self.reports)):
            self._add_boxes(k)
        self._find_parents()
        for k in sorted(range(len(self.reports)), key=self._depth):  # a body reads what the graphs around it write
            self._add_edges(k)
        self._cross()
        self._add_kernels()

    def _add_boxes(self, k: int) -> None:
        """Those of a graph; one with several nodes stands where the last of them is, behind all that it reads."""
        report, source = self.reports[k], self._sources[k]
        by_id = {node.id: node for node in source.nodes} if source is not None else {}
        boxes = [Box(k, node.name, node.device) for node in report.nodes if not node.fused_into]
        heads = iter(range(len(boxes)))
        last = [0] * len(boxes)
        of_name = dict[tuple[int, str], int]()
        for where, node in enumerate(node for node in report.nodes if not node.fused_into):
            of_name.setdefault((node.partition, node.name), where)
        for place, node in enumerate(report.nodes):
            if not node.fused_into:
                where = next(heads)
                boxes[where].nodes.insert(0, len(self.nodes))
            else:
                where = of_name.setdefault((node.partition, node.fused_into), len(boxes))
                if where == len(boxes):
                    boxes.append(Box(k, node.fused_into, node.device))
                    last.append(0)
                boxes[where].nodes.append(len(self.nodes))
            last[where] = place
            self.nodes.append((node, by_id.get(node.id)))
        names = source.inputs if source is not None and not report.nested else ()
        self.boxes += [Box(k, name, INPUT) for name in names if name]
        for _, box in sorted(zip(last, boxes, strict=True), key=lambda item: item[0]):
            self._box_of_node.update(dict.fromkeys(box.nodes, len(self.boxes)))
            self.boxes.append(box)
        names = source.outputs if source is not None and not report.nested else ()
        self.boxes += [Box(k, name, OUTPUT) for name in names]

    def _find_parents(self) -> None:
        """Puts each body into the box of its If, Loop or Scan, which its graph names by what it writes."""
        writers = {
            node.writes if node is not None else report.writes: number
            for number, (report, node) in enumerate(self.nodes)
        }
        for k, source in enumerate(self._sources):
            parent = writers.get(source.parent.writes) if source is not None and source.parent is not None else None
            if parent is not None:
                box = self._box_of_node[parent]
                self.parents[k] = box
                self.boxes[box].bodies.append(k)

    def _depth(self, k: int) -> int:
        depth = 0
        while k in self.parents and depth <= len(self.reports):
            k, depth = self.boxes[self.parents[k]].graph, depth + 1
        return depth

    def _outer(self, k: int) -> int | None:
        """The graph around a body."""
        return self.boxes[self.parents[k]].graph if k in self.parents else None

    def _edge(self, k: int, name: str) -> int:
        """Number of a value that a node of a graph reads, which a graph around it may write."""
        at: int | None = k
        while at is not None:
            if name in self._edge_of[at]:
                return self._edge_of[at][name]
            at = self._outer(at)
        return self._new_edge(k, name)

    def _new_edge(self, k: int, name: str) -> int:
        source = self._sources[k]
        value = (source.values.get(name) if source is not None else None) or Value(name)
        self._edge_of[k][name] = len(self.edges)
        self.edges.append(Edge(name, _type_text(value), _nbytes(value)))
        return self._edge_of[k][name]

    def _add_edges(self, k: int) -> None:
        own = [(number, box) for number, box in enumerate(self.boxes) if box.graph == k]
        for number, box in own:
            if box.side == INPUT:
                self._write(number, self._new_edge(k, box.name))
            for report, node in (self.nodes[n] for n in box.nodes):
                writes = node.writes if node is not None else report.writes
                for name in writes:
                    edge = self._new_edge(k, name)
                    if not self.edges[edge].nbytes and len(writes) == 1:
                        self.edges[edge].nbytes = report.nbytes
                    self._write(number, edge)
        for number, box in own:
            names = [box.name] if box.side == OUTPUT else [name for n in box.nodes for name in self.reads_of(n)]
            for edge in dict.fromkeys(self._edge(k, name) for name in names):
                if self.edges[edge].writer != number:
                    box.reads.append(edge)
                    self.edges[edge].readers.append(number)

    def _write(self, box: int, edge: int) -> None:
        self.edges[edge].writer = box
        self.boxes[box].writes.append(edge)

    def reads_of(self, number: int) -> list[str]:
        """Names of what a node reads, constants apart, and what its bodies read from outside."""
        report, node = self.nodes[number]
        if node is None:
            return list(report.reads)
        source = self._sources[self.boxes[self._box_of_node[number]].graph]
        return [
            name
            for name in node.reads
            if source is None or name not in source.values or not source.values[name].is_constant
        ]

    def constants_of(self, number: int) -> list[tuple[str, str]]:
        """Names and types of the constants that a node reads."""
        _, node = self.nodes[number]
        source = self._sources[self.boxes[self._box_of_node[number]].graph]
        read = (
            [source.values[name] for name in node.reads if name in source.values]
            if node is not None and source is not None
            else []
        )
        return [(value.name, _type_text(value)) for value in read if value.is_constant]

    def _cross(self) -> None:
        """A value goes up where the device reads what the host has, down where the host reads what the device wrote.
        What the host computes once, for a plan, is a part of the plan.
        """
        for edge in self.edges:
            writer = self.boxes[edge.writer] if edge.writer >= 0 else None
            for reader in (self.boxes[number] for number in edge.readers):
                around = self.parents.get(reader.graph)
                side = writer.side if writer is not None else self.boxes[around].side if around is not None else INPUT
                edge.up |= reader.side == "gpu" and side in ("cpu", INPUT)
                edge.down |= side == "gpu" and reader.side in ("cpu", OUTPUT)
        for k, source in enumerate(self._sources):  # what a body gives is where its If, Loop or Scan is
            if source is not None and k in self.parents and self.boxes[self.parents[k]].side != "gpu":
                for edge in (self.edges[self._edge_of[k][name]] for name in source.outputs if name in self._edge_of[k]):
                    edge.down |= edge.writer >= 0 and self.boxes[edge.writer].side == "gpu"

    def _add_kernels(self) -> None:
        """The latest plan of each partition, and what its dispatches took."""
        profile: dict[str, Any] = self.explained.profile.as_dict() if self.explained.profile is not None else {}
        times = dict[str, float]()
        for timed in profile.get("dispatches", []):
            times[timed["label"]] = times.get(timed["label"], 0.0) + timed["us"]
        boxes: list[dict[str, int]] = [{} for _ in self.reports]
        for number, box in enumerate(self.boxes):
            if box.side in ("gpu", "host"):
                boxes[box.graph].setdefault(box.name, number)
        names: dict[str, list[int]] = {}
        for k, report in enumerate(self.reports):
            for part in report.partitions:
                names.setdefault(f"partition {part.index}{f' of {report.graph}' if report.nested else ''}", []).append(
                    k
                )
        latest = dict[tuple[str, ...], tuple[str, tuple[Dispatch, ...]]]()
        for memory, plan in zip(self.explained.memory, self.explained.plans, strict=False):
            steps = tuple(step for step in plan.steps if isinstance(step, Dispatch))
            latest[(memory.partition, *sorted({step.label.rpartition("/")[0] for step in steps}))] = (
                memory.partition,
                steps,
            )
        for partition, steps in latest.values():
            for step in steps:
                of = step.label.rpartition("/")[0]
                among = names.get(partition, [0])  # names of bodies repeat
                k = next((k for k in among if of in boxes[k]), among[0])
                form = step.kernel.choice.form if step.kernel.choice is not None else ""
                self._add_kernel(
                    k, boxes[k], step.label, step.kernel.shader.removesuffix(".wgsl"), form, times.pop(step.label, None)
                )
        for label, us in times.items():  # of a plan that is gone
            self._add_kernel(0, boxes[0], label, "", "", us)
        of_nodes = {node["name"]: node["us"] for node in profile.get("nodes", []) if node["provider"] == CPU_PROVIDER}
        for box in self.boxes:
            measured = [kernel["us"] for kernel in box.kernels if "us" in kernel]
            box.us = sum(measured) if measured else of_nodes.get(box.name) if box.side == "cpu" else None

    def _add_kernel(self, k: int, boxes: dict[str, int], label: str, shader: str, form: str, us: float | None) -> None:
        name, _, what = label.rpartition("/")
        number, layout = boxes.get(name), next((end for end in LAYOUTS if name.endswith(end)), "")
        if number is None and layout and (edge := self._edge_of[k].get(name.removesuffix(layout))) is not None:
            what, number = f"{what} to {layout[1:]}", self.edges[edge].writer
        if number is None or self.boxes[number].side == INPUT or number < 0:
            number = boxes[name] = len(self.boxes)
            self.boxes.append(Box(k, name, "gpu"))
        kernel = {"name": printable(what), "shader": shader, "form": form}
        self.boxes[number].kernels.append(kernel if us is None else {**kernel, "us": us})

    def tree(self, k: int) -> list[Tree]:
        """The boxes of a graph in blocks by the parts of their names, as exporters write them; each block where its
        first box is."""
        root: list[Any] = [""]
        blocks: dict[tuple[str, ...], list[Any]] = {(): root}
        for number, box in enumerate(self.boxes):
            if box.graph != k:
                continue
            path = () if box.side in (INPUT, OUTPUT) else tuple(filter(None, box.name.split("/")))[:-1][:DEEPEST]
            for depth in range(1, len(path) + 1):
                if path[:depth] not in blocks:
                    blocks[path[:depth]] = [path[depth - 1]]
                    blocks[path[: depth - 1]].append(blocks[path[:depth]])
            blocks[path].append(number)
        return [*_in_runs([_joined(child) for child in root[1:]])]

    def reasons(self) -> list[dict[str, Any]]:
        """Why nodes are on the CPU: by code, those with most nodes first; sentences that differ only in names are
        one."""
        kinds: dict[str, dict[str, Any]] = {}
        for number, (report, _) in enumerate(self.nodes):
            if report.device == "cpu":
                reason = kinds.setdefault(
                    kind_of(report), {"code": report.code or "-", "text": printable(report.reason), "nodes": []}
                )
                reason["nodes"].append(number)
        counts = dict[str, int]()
        for reason in kinds.values():
            counts[reason["code"]] = counts.get(reason["code"], 0) + len(reason["nodes"])
        return sorted(kinds.values(), key=lambda r: (-counts[r["code"]], r["code"], -len(r["nodes"])))

    def as_dict(self) -> dict[str, Any]:
        """For the page: lists of what has a number, with texts that are safe to show; what is empty is left out."""
        own = [k for k, report in enumerate(self.reports) if not report.nested]
        return {
            "trees": [self.tree(k) for k in range(len(self.reports))],
            "graphs": [printable(report.graph) for report in self.reports],
            "roots": [*own, *(k for k in range(len(self.reports)) if k not in own and k not in self.parents)],
            "boxes": [
                _without_empty(
                    {
                        "name": printable(box.name),
                        "side": box.side,
                        "nodes": box.nodes,
                        "kernels": box.kernels,
                        "reads": box.reads,
                        "writes": box.writes,
                        "us": box.us,
                        "bodies": box.bodies,
                    }
                )
                for box in self.boxes
            ],
            "nodes": [
                _without_empty(
                    {
                        "name": printable(report.name),
                        "op": printable(report.op),
                        "device": report.device,
                        "code": report.code,
                        "why": printable(report.reason),
                        "partition": report.partition,
                        "attributes": [[printable(name), printable(text)] for name, text in _attributes(node)],
                        "constants": [[printable(name), text] for name, text in self.constants_of(number)],
                    }
                )
                for number, (report, node) in enumerate(self.nodes)
            ],
            "values": [
                _without_empty(
                    {
                        "name": printable(edge.name),
                        "type": printable(edge.type),
                        "nbytes": edge.nbytes,
                        "writer": edge.writer,
                        "readers": edge.readers,
                        "up": edge.up,
                        "down": edge.down,
                    }
                )
                for edge in self.edges
            ],
            "reasons": self.reasons(),
        }


def _without_empty(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in row.items()
        if value is not None and value is not False and value != "" and value != []
    }


def _joined(block: Tree) -> Tree:
    """A block with one block in it is one with both names; a block of one box is that box."""
    if isinstance(block, int):
        return block
    name, *children = block
    children = [_joined(child) for child in children]
    if len(children) > 1:
        return [name, *_in_runs(children)]
    (only,) = children
    return only if isinstance(only, int) else [f"{name}/{only[0]}", *only[1:]]


def _in_runs(children: Sequence[Tree]) -> Iterator[Tree]:
    """Many boxes side by side, of names without parts, in blocks without a name."""
    if sum(isinstance(child, int) for child in children) <= FLAT:
        yield from children
        return
    run: list[Any] = []
    for child in children:
        if not isinstance(child, int) or len(run) == RUN:
            yield from _as_block(run)
            run = []
        if isinstance(child, int):
            run.append(child)
        else:
            yield child
    yield from _as_block(run)


def _as_block(run: list[Any]) -> Iterable[Tree]:
    return [["", *run]] if len(run) > 1 else run


def _type_text(value: Value) -> str:
    """Element type and shape, as far as the graph tells."""
    sizes = "..." if value.shape is None else ", ".join("?" if dim is None else str(dim) for dim in value.shape)
    return f"{value.dtype}[{sizes}]" if value.dtype is not None else ""


def _nbytes(value: Value) -> int:
    """Of a tensor whose sizes the graph tells; else 0."""
    sizes = tuple(dim for dim in value.shape or () if isinstance(dim, int))
    if value.dtype is None or value.shape is None or len(sizes) < len(value.shape):
        return 0
    return TensorType(value.dtype, sizes).nbytes


def _attributes(node: Node | None) -> list[tuple[str, str]]:
    """Names and values, without subgraphs."""
    return (
        [(name, _text(value)) for name, value in node.attributes.items() if value is not None]
        if node is not None
        else []
    )


def _text(value: Attribute) -> str:
    """Of a tensor its type and shape, and one number's value."""
    if isinstance(value, np.ndarray):
        text = f"{value.dtype}{list(value.shape)}" + (f" = {value.reshape(-1)[0]}" if value.size == 1 else "")
    else:
        text = f"[{', '.join(map(_one, value[:LONGEST]))}]" if isinstance(value, tuple) else _one(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def _one(value: int | float | str | None) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)
