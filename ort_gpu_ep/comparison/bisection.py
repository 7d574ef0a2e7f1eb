"""Finds the first node whose GPU values diverge from the CPU's (or float64's), and the node with the largest own
error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from ort_gpu_ep.comparison.models import Array, alone, exposing, reads_of, up_to, values_of
from ort_gpu_ep.comparison.values import Difference, difference, differences

TOGETHER = 200
"""Values that are looked at in one run: all of a large model would not fit into memory."""

SUSPECTS = 8
"""Nodes that are tried alone for the worst one: those behind which the error grows the most."""

MOST_NODES = 12
"""Of a part of the model that shows a difference which no single node shows: kernels of fused nodes."""

Run = Callable[[onnx.ModelProto, Mapping[str, Array]], list[Any]]
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """A node.

    accumulated: difference of its values in the whole model. own: given the CPU's inputs. nodes: of the part that was
    run for `own`: more than one where it takes those before it. model, feeds: that part.
    """

    name: str
    op: str
    accumulated: Difference
    own: Difference | None = None
    nodes: int = 1
    model: onnx.ModelProto | None = None
    feeds: Mapping[str, Array] | None = None

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "node": self.name,
            "op": self.op,
            "accumulated": self.accumulated.as_dict(),
            "own": self.own.as_dict() if self.own is not None else None,
            "nodes": self.nodes,
        }


@dataclass(frozen=True, slots=True)
class Bisection:
    """outputs: of the whole model. first: where the values leave the CPU's by more than allowed, None where nowhere.
    worst: by own error.

    fused: the difference is only there where the values between are not looked at, so it comes from kernels of several
    nodes.
    """

    outputs: tuple[Difference, ...]
    first: Finding | None
    worst: Finding | None
    fused: bool
    tolerance: float | None

    @property
    def within(self) -> bool:
        return all(d.within(self.tolerance) for d in self.outputs) and self.first is None


def bisect(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    gpu: Run,
    cpu: Run,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> Bisection:
    """gpu, cpu: run a model on inputs, all its outputs in order. tolerance: as Difference.within takes it. Raises what
    they raise."""
    return _Search(model, feeds, gpu, cpu, tolerance, progress or (lambda what, part: None)).run()


class _Search:
    """One bisection. want: the CPU's value of every name."""

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Mapping[str, Array],
        gpu: Run,
        cpu: Run,
        tolerance: float | None,
        say: Progress,
    ) -> None:
        self.model, self.feeds, self.gpu, self.cpu, self.tolerance, self.say = model, feeds, gpu, cpu, tolerance, say
        self.nodes = list(model.graph.node)
        self.want: dict[str, Any] = dict(feeds)
        self.found: dict[str, Difference] = {}

    def run(self) -> Bisection:
        names = [o.name for o in self.model.graph.output]
        self.say("the whole model", 0.0)
        outputs = differences(names, self.gpu(self.model, self.feeds), self.cpu(self.model, self.feeds))
        self._look()
        first, fused = next((n for n in self.nodes if self._is_off(n)), None), False
        if first is None and not all(d.within(self.tolerance) for d in outputs):
            self.say("prefixes", 0.6)
            first, fused = self._by_prefix(), True
        self.say("single nodes", 0.8)
        leads = self._finding(first) if first is not None else None
        worst = self._worst()
        self.say("done", 1.0)
        return Bisection(tuple(outputs), leads, worst, fused, self.tolerance)

    def _look(self) -> None:
        """Every value of both sides."""
        names = values_of(self.model)
        for begin in range(0, len(names), TOGETHER):
            self.say("values", 0.1 + 0.5 * begin / len(names))
            part = names[begin : begin + TOGETHER]
            model = exposing(self.model, part)
            want = self.cpu(model, self.feeds)
            self.want |= dict(zip(part, want, strict=True))
            self.found |= {d.name: d for d in differences(part, self.gpu(model, self.feeds), want)}

    def _is_off(self, node: onnx.NodeProto) -> bool:
        return any(name in self.found and not self.found[name].within(self.tolerance) for name in node.output)

    def _by_prefix(self) -> Any:
        """Where no value is looked at but the last: by halves, taking it that what is off stays off."""
        low, high = 0, len(self.nodes) - 1
        while low < high:
            middle = (low + high) // 2
            names = [name for name in self.nodes[middle].output if name in self.found]
            got = self.gpu(up_to(self.model, names), self.feeds) if names else []
            errors = differences(names, got, [self.want[name] for name in names])
            if all(d.within(self.tolerance) for d in errors):
                low = middle + 1
            else:
                high = middle
        return self.nodes[low]

    def _finding(self, node: onnx.NodeProto) -> Finding:
        """With the smallest part before it, itself included, that shows more than is allowed."""
        finding = Finding(node.name or node.output[0], node.op_type, self._worst_of(node))
        single: Finding | None = None
        for count in range(1, MOST_NODES + 1):
            tried = self._tried(finding, self._before(node, count))
            single = single or tried
            if tried is None or (tried.own is not None and not tried.own.within(self.tolerance)):
                return tried or single or finding
        return single or finding

    def _tried(self, finding: Finding, nodes: Sequence[onnx.NodeProto]) -> Finding | None:
        """None where a value that these nodes read is no array."""
        try:
            model, feeds = alone(self.model, nodes, {k: v for k, v in self.want.items() if isinstance(v, np.ndarray)})
        except KeyError:
            return None
        names = [o.name for o in model.graph.output if isinstance(self.want.get(o.name), np.ndarray)]
        got = dict(zip([o.name for o in model.graph.output], self.gpu(model, feeds), strict=True))
        own = [difference(name, got[name], self.want[name]) for name in names]
        return replace(finding, own=max(own, key=_size), nodes=len(nodes), model=model, feeds=feeds) if own else None

    def _before(self, node: onnx.NodeProto, count: int) -> list[onnx.NodeProto]:
        """A node and the ones before it that it needs most nearly, in order."""
        chosen, names = [node], reads_of(node)
        for other in reversed(self.nodes[: self.nodes.index(node)]):
            if len(chosen) == count:
                break
            if names & set(other.output):
                chosen.append(other)
                names |= reads_of(other)
        return chosen[::-1]

    def _worst_of(self, node: onnx.NodeProto) -> Difference:
        there = [self.found[name] for name in node.output if name in self.found]
        return max(there, key=_size) if there else difference("", np.empty(0), np.empty(0))

    def _worst(self) -> Finding | None:
        """The node with the largest error of its own among those behind which the error grows the most."""

        def growth(node: onnx.NodeProto) -> float:
            before = max((_size(self.found[name]) for name in reads_of(node) if name in self.found), default=0.0)
            return _size(self._worst_of(node)) - before

        suspects = sorted(self.nodes, key=growth, reverse=True)[:SUSPECTS]
        tried = [self._tried(Finding(n.name or n.output[0], n.op_type, self._worst_of(n)), [n]) for n in suspects]
        findings = [t for t in tried if t is not None and t.own is not None]
        return max(findings, key=lambda t: _size(t.own) if t.own is not None else 0.0, default=None)


def _size(found: Difference) -> float:
    """By which differences are ordered."""
    return float("inf") if found.misplaced else found.relative
