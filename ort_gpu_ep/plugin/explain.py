"""The result of `session.explain()`: the decision for every node, as data and as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from ort_gpu_ep.device.allowance import DeviceMemory
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Graph
from ort_gpu_ep.ir.types import MAX_TOLD
from ort_gpu_ep.kernels.built import Kernel
from ort_gpu_ep.partitioner.report import NodeReport as NodeReport  # commands name both by this module
from ort_gpu_ep.partitioner.report import PartitionReport
from ort_gpu_ep.partitioner.report import Report as Report
from ort_gpu_ep.plugin.partitioning import load_partitioner
from ort_gpu_ep.providers import EP_NAME
from ort_gpu_ep.scheduler import Plan, make_plan
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.template import Specialization
from ort_gpu_ep.terminal import printable
from ort_gpu_ep.webgpu import choice

if TYPE_CHECKING:
    from ort_gpu_ep.plugin import SessionState
    from ort_gpu_ep.runtime.backend import Executable
    from ort_gpu_ep.runtime.better_plans import UnitPlan


ON = {"gpu": "on the GPU", "host": "on the host (once per shape)", "cpu": "on the CPU"}
"""Where a node runs, in words."""

GROUPS: dict[str, Callable[[NodeReport], str]] = {
    "op": lambda node: node.op,
    "reason": lambda node: f"{node.code}: {node.reason}" if node.code else ON[node.device],
    "block": lambda node: "/".join(node.name.strip("/").split("/")[:-1][:2]) or "-",
}
"""What nodes can be grouped by: their op, why they are where they are, or the first two parts of their name, as
exporters write blocks."""


class Decision(Protocol):
    """What placement=auto has chosen, see placement.decisions.Decision."""

    @property
    def candidate(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def rest(self) -> str: ...
    @property
    def work(self) -> float: ...

    def as_dict(self) -> dict[str, object]:
        """All of it, as JSON has it."""


class Profiled(Protocol):
    """What runs took, see profiling.result.RunProfile."""

    def as_dict(self) -> dict[str, object]:
        """All of it, as JSON has it."""


@dataclass(frozen=True)
class Memory:
    """Device memory of one partition for one set of input shapes, in bytes.

    barriers: dispatches that wait for all before them. activations: what its intermediate values share. unshared: what
    they would take with a buffer each. weights: constants. exact: the shapes are the model's own or those of a run;
    else they are stand-ins for dynamic dimensions. channels_last: nodes whose images are stored so. conversions:
    dispatches for the sake of layouts. dense_nbytes: of the weights, what is dense beside their packed form (the option
    `weights`).
    """

    partition: str
    shapes: tuple[str, ...]
    dispatches: int
    barriers: int
    activation_nbytes: int
    unshared_nbytes: int
    weight_nbytes: int
    exact: bool = True
    channels_last: int = 0
    conversions: int = 0
    dense_nbytes: int = 0

    @property
    def ratio(self) -> float:
        """Activations as a part of the unshared sum."""
        return self.activation_nbytes / self.unshared_nbytes if self.unshared_nbytes else 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that have something in common: how many are on each device."""

    name: str
    gpu: int
    host: int
    cpu: int

    @property
    def nodes(self) -> int:
        return self.gpu + self.host + self.cpu


@dataclass(frozen=True)
class Explanation:
    """The decision of the partitioner and what came of it. `str()` gives a text that fits a terminal.

    decisions: with placement=auto, what was chosen for which input shapes, by what was measured. profile: where it was
    asked for. specialized: of partitions, by name, the sizes that have a plan of their own, or could not get one.
    device_memory: what the session holds now; None where it has no device in this process. unit_plans: of partitions,
    by name, plans on matrix units that are, or were, made beside the runs. graphs: what each of the reports is on,
    without the content of constants; none of a session that was measured to be faster on the CPU. library: which one
    drives the GPU and why, where Dawn is installed or was asked for.
    """

    adapter: str
    reports: tuple[Report, ...]
    memory: tuple[Memory, ...]
    events: tuple[str, ...]
    plans: tuple[Plan, ...] = field(default=(), repr=False)
    decisions: tuple[tuple[str, Decision], ...] = ()
    profile: Profiled | None = None
    specialized: tuple[tuple[str, Specialization], ...] = ()
    unit_plans: tuple[tuple[str, UnitPlan], ...] = ()
    device_memory: DeviceMemory | None = None
    graphs: tuple[Graph, ...] = field(default=(), repr=False)
    library: str = ""

    def as_dict(self) -> dict[str, object]:
        """For `--json`: plain lists, numbers and strings."""
        return {
            "adapter": self.adapter,
            **({"library": self.library} if self.library else {}),
            "graphs": [r.as_dict() for r in self.reports],
            "memory": [{**asdict(m), "ratio": m.ratio} for m in self.memory],
            "device_memory": {**asdict(d), "session_nbytes": d.session_nbytes}
            if (d := self.device_memory) is not None
            else None,
            "events": list(self.events),
            "specialized": [{"partition": partition, **asdict(item)} for partition, item in self.specialized],
            "unit_plans": [{"partition": partition, **asdict(item)} for partition, item in self.unit_plans],
            "decisions": [{"inputs": shapes, **decision.as_dict()} for shapes, decision in self.decisions],
            **({"profile": self.profile.as_dict()} if self.profile is not None else {}),
        }

    def predicted_by(self, reports: Iterable[Report]) -> Explanation:
        """With the predictions of other reports on the same graphs: a session that takes all nodes weighs nothing
        itself."""
        pairs = zip(self.reports, reports, strict=False)
        return replace(
            self,
            reports=tuple(replace(r, predictions=p.predictions, measured=p.measured) for r, p in pairs) or self.reports,
        )

    def count(self, device: str) -> int:
        """Nodes on `gpu`, `host` (shape arithmetic, done when a plan is made) or `cpu`."""
        return sum(r.count(device) for r in self.reports)

    def kernels_of(self, name: str) -> dict[str, Kernel]:
        """What the runs that are planned dispatch for a node, by label: that of its kernels, or of the node that it was
        fused into."""
        hosts = {
            node.fused_into or node.name for report in self.reports for node in report.nodes if node.name == name
        } | {name}
        steps = (step for plan in self.plans for step in plan.steps if isinstance(step, Dispatch))
        return {step.label: step.kernel for step in steps if step.label.rpartition("/")[0] in hosts}

    def grouped(self, by: str) -> tuple[Group, ...]:
        """The nodes of all graphs by one of GROUPS, the most on the CPU first, then the largest. Raises KeyError for
        another one."""
        counts: dict[str, Counter[str]] = {}
        for node in (n for r in self.reports for n in r.nodes):
            counts.setdefault(GROUPS[by](node), Counter())[node.device] += 1
        groups = [Group(name, count["gpu"], count["host"], count["cpu"]) for name, count in counts.items()]
        return tuple(sorted(groups, key=lambda g: (-g.cpu, -g.nodes, g.name)))

    def _repr_html_(self) -> str:
        """For notebooks and `explain --html`: the summary, then a table a grouping, then one of all nodes, folded."""
        parts = [f"<pre>{escape(str(self))}</pre>"]
        for by in GROUPS:
            rows = [(g.name, str(g.gpu), str(g.host), str(g.cpu)) for g in self.grouped(by)]
            parts.append(_folded(f"by {by}", (by, "GPU", "host", "CPU"), rows))
        nodes = [(n.name, n.op, n.device, why_of(n)) for r in self.reports for n in r.nodes]
        parts.append(_folded(f"all {len(nodes)} nodes", ("node", "op", "device", "why"), nodes))
        return f"<div>{''.join(parts)}</div>"

    def __str__(self) -> str:
        counted = ", ".join(f"{self.count(device)} {where}" for device, where in ON.items())
        unseen = "none was shown to this provider; all are on onnxruntime's own"
        lines = [f"adapter: {self.adapter}", *([f"library: {self.library}"] if self.library else [])]
        lines.append(f"nodes: {counted if self.reports else unseen}")
        lines += _decision_lines(self.decisions)
        bodies = [report for report in self.reports if report.nested]
        for report in (
            self.reports if len(bodies) <= MAX_TOLD else (report for report in self.reports if not report.nested)
        ):
            lines += _report_lines(report)
        if len(bodies) > MAX_TOLD:
            parts = [part for report in bodies for part in report.partitions]
            lines.append(f"{len(bodies)} graphs inside of If, Loop and Scan:")
            lines += [
                *([_sum_line(parts)] if parts else []),
                *_cpu_lines(node for report in bodies for node in report.nodes),
            ]
        lines += _memory_lines(self.memory)
        lines += _device_memory_lines(self.device_memory) if self.device_memory is not None else []
        lines += _matrix_unit_lines(self.plans)
        lines += [f"{partition} for {item}" for partition, item in self.specialized if not item.why]
        lines += [f"{partition} for {item}" for partition, item in self.unit_plans if not item.why]
        lines += [f"event: {e}" for e in self.events]
        profiled = f"\n\n{self.profile}" if self.profile is not None else ""
        return "\n".join(map(printable, lines)) + profiled


def _matrix_unit_lines(plans: Iterable[Plan]) -> list[str]:
    """Which products use matrix units, each with its error bound (docs/precision.md)."""
    lines: dict[str, str] = {}
    for step in (step for plan in plans for step in plan.steps):
        if isinstance(step, Dispatch) and step.kernel.shader == "matrix_product.wgsl":
            consts = dict(step.kernel.consts)
            rounded = "" if consts["W_PLAIN"] else "2^-10 + "
            lines[step.label] = f"  {step.label}: within ({rounded}{consts['K']} * 2^-24) of the sum of |x w|"
        elif isinstance(step, Dispatch) and step.kernel.shader == "unit_vectors.wgsl":
            k = dict(step.kernel.consts)["K"]
            lines[step.label] = f"  {step.label}: within (2^-11 + {k} * 2^-24) of the sum of |x w|"
        elif isinstance(step, Dispatch) and step.kernel.shader == "attention_units.wgsl":
            consts = dict(step.kernel.consts)
            rounded = "" if consts["HALVES"] else "2^-10 + "
            lines[step.label] = (
                f"  {step.label}: scores within ({rounded}{consts['D']} * 2^-24) of scale * sum of |q k|, weighted "
                f"values within (2^-10 + {consts['SK']} * 2^-23) of their magnitudes"
            )
        elif isinstance(step, Dispatch) and step.kernel.shader == "byte_units.wgsl":
            lines[step.label] = f"  {step.label}: exact sums of bytes"
    shown = list(lines.values())
    rest = [f"  and {len(shown) - MAX_TOLD} more"] if len(shown) > MAX_TOLD else []
    return [f"on matrix units: {_counted(len(shown), 'product')}", *shown[:MAX_TOLD], *rest] if shown else []


def _memory_lines(found: Sequence[Memory]) -> list[str]:
    """Two a partition and set of shapes; of many the sums."""
    if len(found) > MAX_TOLD:
        activations, weights = (sum(getattr(m, what) for m in found) for what in ("activation_nbytes", "weight_nbytes"))
        return [f"memory of {len(found)} plans: {_size(activations)} of activations, {_size(weights)} of weights"]
    lines = []
    for memory in found:
        about = "" if memory.exact else "about "
        shared = f" ({_size(memory.unshared_nbytes)} if none shared its buffer)" if memory.ratio < 1.0 else ""
        lines.append(
            f"memory of {memory.partition} for {about}{', '.join(memory.shapes)}: {_size(memory.activation_nbytes)} "
            f"of activations"
            f"{shared}, {_size(memory.weight_nbytes)} of weights"
        )
        steps = f"{_counted(memory.dispatches, 'dispatch', 'es')}, {_counted(memory.barriers, 'barrier')} between them"
        lines.append(f"  {steps}{_layout(memory)}")
        if memory.dense_nbytes:
            lines.append(
                f"  of the weights {_size(memory.dense_nbytes)} are dense copies; without them (weights=packed) the "
                f"others are "
                f"{_size(max(0, memory.weight_nbytes - memory.dense_nbytes))} and are written out in each run"
            )
    return lines


def _device_memory_lines(found: DeviceMemory) -> list[str]:
    """What the session has device memory for, a line each, and what the process has besides."""
    limit = (
        f"memory_limit_mb allows {_size(found.limit_nbytes)}" if found.limit_nbytes else "memory_limit_mb sets no limit"
    )
    lines = [
        f"device memory of this session: {_size(found.session_nbytes) if found.session_nbytes else 'none yet'}; {limit}"
    ]
    lines += [f"  {use}: {_size(nbytes)}" for use, nbytes in found.session.items() if nbytes]
    if not found.process_nbytes:
        return lines
    lines.append(
        f"device memory of this process: {_size(found.process_nbytes)}, at most {_size(found.most_nbytes)}; of it "
        f"{_size(found.staging_nbytes)} for transfers, {_size(found.waiting_nbytes)} freed and kept for the next use"
    )
    return lines


def _counted(count: int, what: str, plural: str = "s") -> str:
    return f"{count} {what}{'' if count == 1 else plural}"


def why_of(node: NodeReport) -> str:
    """Why it is where it is, as far as there is something to say."""
    return f"{node.code}: {node.reason}" if node.code else f"fused into {node.fused_into}" if node.fused_into else ""


def _folded(title: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<details><summary>{escape(title)}</summary><table><tr>{head}</tr>{body}</table></details>"


def _decision_lines(decisions: Sequence[tuple[str, Decision]]) -> list[str]:
    """One a decision, the latest last; of many, neighbours in size that were decided alike share one, and the latest
    has its own."""
    if len(decisions) <= MAX_TOLD:
        return [f"placement for {shapes}: {decision}" for shapes, decision in decisions]
    lines = []
    by_size = sorted(decisions, key=lambda item: item[1].work)
    for (candidate, source, rest), group in groupby(
        by_size, key=lambda item: (item[1].candidate, item[1].source, item[1].rest)
    ):
        names = [shapes for shapes, _ in group]
        lines.append(f"placement for {len(names)} sizes from {names[0]} to {names[-1]}: {candidate}, {source}, {rest}")
    shapes, latest = decisions[-1]
    return [*lines, f"placement for {shapes}: {latest}"]


def _report_lines(report: Report) -> list[str]:
    lines = [f"graph {report.graph or 'main'}{' (body)' if report.nested else ''}, placement={report.placement}:"]
    if len(report.partitions) > MAX_TOLD:
        lines.append(_sum_line(report.partitions))
    for part in report.partitions if len(report.partitions) <= MAX_TOLD else ():
        about = "" if part.exact else "about "
        lines.append(
            f"  partition {part.index}: {_counted(part.nodes, 'node')} in "
            f"{_counted(part.dispatches, 'dispatch', 'es')}, "
            f"{about}{_size(part.input_nbytes)} in, "
            f"{about}{_size(part.output_nbytes)} out"
        )
        if part.packed_nbytes:
            lines.append(f"    weights read packed: {_size(part.packed_nbytes)}, as float32 {_size(part.dense_nbytes)}")
        if part.unpacked:
            how = "written out once, and dense on the device" if part.stays_dense else "written out in each run"
            lines.append(f"    {how}, because no kernel reads them packed, or not as fast: {', '.join(part.unpacked)}")
        if part.halved_nbytes:
            lines.append(f"    weights in float16: {_size(part.halved_nbytes)}")
        if part.whole:
            lines.append(
                f"    weights that stay float32, because float16 does not reach to their numbers: "
                f"{', '.join(part.whole)}"
            )
    if report.predictions:
        what = (
            f"{report.measured} of {len(report.nodes)} nodes measured on the CPU"
            if report.measured
            else "the CPU's costs assumed"
        )
        lines.append(f"  predicted ({what}):")
        for prediction in report.predictions:
            lines.append(
                f"    {prediction}, {prediction.partitions} partitions, {_size(prediction.upload_nbytes)} up, "
                f"{_size(prediction.download_nbytes)} down"
            )
    return [*lines, *_cpu_lines(report.nodes)]


def _sum_line(parts: Sequence[PartitionReport]) -> str:
    """What many partitions are together."""
    nodes, dispatches = sum(part.nodes for part in parts), sum(part.dispatches for part in parts)
    read, written = sum(part.input_nbytes for part in parts), sum(part.output_nbytes for part in parts)
    return (
        f"  {_counted(len(parts), 'partition')}: {_counted(nodes, 'node')} in "
        f"{_counted(dispatches, 'dispatch', 'es')}, "
        f"{_size(read)} in, {_size(written)} out"
    )


def _cpu_lines(nodes: Iterable[NodeReport]) -> list[str]:
    """One a reason why nodes are on the CPU, the most frequent first."""
    lines = list[str]()
    reasons, first = dict[str, Counter[str]](), dict[str, str]()  # by what is the same but for names of values
    for n in nodes:
        if n.device == "cpu":
            kind = kind_of(n)
            first.setdefault(kind, f"{n.code}: {n.reason}")
            reasons.setdefault(kind, Counter())[n.op] += 1
    for reason, ops in sorted(reasons.items(), key=lambda item: -item[1].total()):
        shown = ", ".join(f"{count} {op}" for op, count in ops.most_common(MAX_TOLD))
        more = f", {len(ops) - MAX_TOLD} more ops" if len(ops) > MAX_TOLD else ""
        lines.append(f"  on the CPU: {shown}{more}: {first[reason]}")
    return lines


def kind_of(node: NodeReport) -> str:
    """Its reason, the same for nodes whose reasons differ only in their op and in the values they name."""
    return re.sub("'[^']*'", "''", f"{node.code}: {node.reason}").replace(f" of {node.op} ", " of it ")


def _layout(memory: Memory) -> str:
    if not memory.channels_last:
        return ""
    converted = _counted(memory.conversions, "conversion") if memory.conversions else "no conversions"
    return f", {_counted(memory.channels_last, 'node')} in channels-last layout with {converted}"


def _size(nbytes: int) -> str:
    for unit, scale in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if nbytes >= 1 << scale:
            return f"{nbytes / (1 << scale):.1f} {unit}"
    return f"{nbytes} B"


def on_cpu(adapter: str, reports: Iterable[Report], reason: str, events: Iterable[str] = ()) -> Explanation:
    """Of a session that was measured to be faster on the CPU than with what the partitioner would have taken
    (`reports`)."""
    moved = []
    for report in reports:
        nodes = tuple(
            n
            if n.device == "cpu"
            else replace(n, device="cpu", code=Code.COST, reason=reason, partition=-1, fused_into="")
            for n in report.nodes
        )
        moved.append(replace(report, nodes=nodes, partitions=()))
    return Explanation(adapter, tuple(moved), (), tuple(events))


def events_of(state: SessionState) -> tuple[str, ...]:
    """A line for each, those last that happened beside the runs."""
    names = state.labels()
    lines = (
        *(f"{e.kind} in {e.where}: {e.message}" for e in list(state.events)),
        *(f"warning in {partition}: {item}" for partition, item in specialized(state) if item.why),
        *(f"warning in {partition}: {plan}" for partition, plan in unit_plans(state) if plan.why),
    )
    return tuple(_renamed(line, names) for line in lines)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for name, label in names.items():
        text = text.replace(name, label)
    return text


def specialized(state: SessionState) -> tuple[tuple[str, Specialization], ...]:
    """Of each partition, by name, the sizes that have a plan of their own, or could not get one."""
    names = state.labels()
    return tuple(
        (names.get(p.graph.name, p.graph.name), item)
        for p in state.partitions
        if p.program is not None
        for item in p.program.specialized
    )


def unit_plans(state: SessionState) -> tuple[tuple[str, UnitPlan], ...]:
    """Of each partition, by name, plans on matrix units that were not there for the first run of their sizes."""
    names = state.labels()
    return tuple(
        (names.get(p.graph.name, p.graph.name), plan)
        for p in state.partitions
        if p.program is not None
        for plan in p.program.unit_plans
    )


def explanation(state: SessionState | None) -> Explanation:
    """From what the plugin recorded; a session without our provider runs on the CPU."""
    if state is None:
        return Explanation("none (the session does not use this provider)", (), (), ())
    memory, plans = [], []
    names, reports = state.labels(), list(as_run(state))
    for partition in state.partitions:
        program = partition.program
        if program is None:
            continue
        built = program.plans
        expected = None if built else _expected_plan(program)
        for plan in built or ([expected] if expected else ()):
            plans.append(plan)
            memory.append(
                Memory(
                    names.get(partition.graph.name, partition.graph.name),
                    tuple(map(str, plan.inputs)),
                    plan.dispatches,
                    len(plan.barriers),
                    plan.slot_nbytes,
                    plan.intermediate_nbytes,
                    program.weight_nbytes or _stated_weights(reports, partition.graph.outputs),
                    bool(built),
                    plan.channels_last,
                    plan.conversions,
                    plan.dense_nbytes,
                )
            )
        last = (*built, expected)[-1 if expected else len(built) - 1] if built or expected else None
        if last is not None:
            reports = [_as_planned(report, partition.graph.outputs, last) for report in reports]
    return Explanation(
        adapter_of(state),
        tuple(reports),
        tuple(memory),
        events_of(state),
        tuple(plans),
        specialized=specialized(state),
        unit_plans=unit_plans(state),
        device_memory=device_memory_of(state),
        graphs=tuple(state.graphs),
        library=library_of(),
    )


def device_memory_of(state: SessionState) -> DeviceMemory | None:
    """What a session holds on the device of this process."""
    backend = state.backend
    if backend is None or backend.device is None or backend.allowance is None:
        return None
    return backend.device.memory_of(backend.allowance)


def as_run(state: SessionState) -> tuple[Report, ...]:
    """What was decided, with those nodes on the CPU that the CPU has answered for in the last run."""
    because = {name: p.cpu_because for p in state.partitions if p.cpu_because for name in p.graph.outputs}
    reports = tuple(map(_without_ours, state.reports))
    if not because and not state.cpu_because:
        return reports
    return tuple(replace(report, nodes=tuple(_fallen_back(report, because, state.cpu_because))) for report in reports)


def _without_ours(report: Report) -> Report:
    """Without nodes that ONNX Runtime has made of our partitions: asked about again, they are no part of the model."""
    return replace(report, nodes=tuple(n for n in report.nodes if not n.op.startswith(f"{EP_NAME}_")))


def _fallen_back(report: Report, because: Mapping[str, str], whole: str) -> Iterator[NodeReport]:
    """because: why, by outputs of partitions. whole: why all of the model; empty if it is not."""
    why = {
        part.index: next((because[name] for name in part.outputs if name in because), whole)
        for part in report.partitions
    }
    for node in report.nodes:
        reason = why.get(node.partition, whole) if node.device == "gpu" else ""
        yield (
            replace(node, device="cpu", code=Code.ERROR, reason=f"the CPU answered the last run: {reason}")
            if reason
            else node
        )


def _stated_weights(reports: Iterable[Report], outputs: Sequence[str]) -> int:
    """Of a partition that has not run yet, and so has none on the device."""
    return sum(
        part.weight_nbytes for report in reports for part in report.partitions if set(part.outputs) & set(outputs)
    )


def _as_planned(report: Report, outputs: Sequence[str], plan: Plan) -> Report:
    """With what a partition's plan has: fusions that only a plan can make have come since the report, and weights that
    may stay dense."""
    parts = tuple(
        replace(p, dispatches=plan.dispatches, stays_dense=bool(plan.dense)) if set(p.outputs) & set(outputs) else p
        for p in report.partitions
    )
    return replace(report, partitions=parts)


def adapter_of(state: SessionState) -> str:
    """The adapter's name, type and backend."""
    if state.backend is None:
        return "none"
    info = state.backend.adapter.info
    return f"{info.name} ({info.type}, {info.backend})"


def library_of() -> str:
    """Explanation.library, of this process."""
    chosen = choice.settled()
    return str(chosen) if chosen is not None and (chosen.kind == choice.DAWN or choice.has_dawn()) else ""


def _expected_plan(program: Executable) -> Plan | None:
    """The plan of a partition with dynamic shapes that has not run yet, for stand-in sizes; nothing is compiled. None
    if none fits."""
    load_partitioner()
    from ort_gpu_ep.partitioner import sizes

    graph = program.graph
    for size in sizes.CANDIDATES:
        inputs = sizes.input_types(graph, sizes.Guess(size))
        if len(inputs) < len(graph.inputs):
            return None
        try:
            return make_plan(graph, inputs, program.gpu.limits.of(program.config), program.rewrite)
        except UnsupportedNodeError:  # another size may fit
            continue
    return None
