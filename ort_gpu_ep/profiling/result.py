"""The result of a profile as data: text, JSON, comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap

from ort_gpu_ep.providers import CPU_PROVIDER
from ort_gpu_ep.terminal import printable

PHASES = {
    "before": "ONNX Runtime and Python, until our part begins",
    "upload": "inputs to the device",
    "prepare": "the plan's numbers, buffers, recording",
    "submit": "to the driver",
    "wait": "for the GPU",
    "copy_out": "outputs to the host",
    "after": "ONNX Runtime and Python, and nodes on the CPU",
}
"""Of a run, in its order; those of several partitions are added up."""


WIDTH = 80
"""Columns of a terminal."""


@dataclass(frozen=True, slots=True)
class TimedDispatch:
    """One dispatch of a run; times are medians over runs.

    begin_us: since the first dispatch of the run began. flops, nbytes: what it does (kernels.work_of); flops is 0 where
    bytes alone tell. shape: of its output. partition: its number.
    """

    label: str
    kernel: str
    family: str
    shape: str
    groups: tuple[int, int, int]
    partition: int
    begin_us: float
    us: float
    flops: int
    nbytes: int

    @property
    def gflops(self) -> float:
        """Floating-point operations a nanosecond."""
        return self.flops / self.us / 1e3 if self.us > 0 else 0.0

    @property
    def gbytes(self) -> float:
        """Bytes a nanosecond, as if each tensor were moved once."""
        return self.nbytes / self.us / 1e3 if self.us > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Roofs:
    """The most that the adapter does, measured: floating-point operations and bytes a nanosecond; 0 where that is not
    known."""

    gflops: float
    gbytes: float

    def share(self, dispatch: TimedDispatch) -> tuple[float, str]:
        """The larger part of a roof that a dispatch reaches, and which: `flops` or `bytes`; (0, "") without roofs.

        More than 1 means that caches held what it reads.
        """
        parts = [(dispatch.gflops / self.gflops, "flops")] if self.gflops else []
        parts += [(dispatch.gbytes / self.gbytes, "bytes")] if self.gbytes else []
        return max(parts, default=(0.0, ""))


@dataclass(frozen=True, slots=True)
class TimedNode:
    """A node of one run in ONNX Runtime's order, or one of our partitions, which has no op and no provider.

    begin_us: since the run began. provider: of the kernel; copies between CPU and GPU are nodes of ours with an op such
    as MemcpyToHost.
    """

    name: str
    op: str
    provider: str
    begin_us: float
    us: float

    @property
    def is_on_cpu(self) -> bool:
        return self.provider == CPU_PROVIDER


@dataclass(frozen=True, slots=True)
class Family:
    """All dispatches of one family of kernels."""

    name: str
    dispatches: int
    us: float
    flops: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class RunProfile:
    """What runs took. All times are medians, in microseconds.

    run_us: a whole run, nothing timed on the GPU. phases_us: by PHASES, means of the runs whose length is in the middle
    third. gpu_us: from the beginning of each pass to its end, with no timestamps between dispatches; 0 where the
    adapter has none. dispatches: in the order of time. runs: how many were counted. clocks: before and after, as text;
    empty where nothing tells them. checked: all shaders have bounds checks. nodes: of one more run, under ONNX
    Runtime's profiler; empty where no node is on the CPU.
    """

    model: str
    adapter: str
    driver: str
    runs: int
    run_us: float
    phases_us: dict[str, float]
    gpu_us: float
    dispatches: tuple[TimedDispatch, ...]
    roofs: Roofs
    clocks: tuple[str, str]
    checked: bool
    notes: tuple[str, ...] = ()
    nodes: tuple[TimedNode, ...] = ()

    @property
    def kernels_us(self) -> float:
        """All dispatches together."""
        return sum(d.us for d in self.dispatches)

    @property
    def gaps_us(self) -> float:
        """What the GPU takes between dispatches: its time less theirs, at least 0."""
        return max(self.gpu_us - self.kernels_us, 0.0)

    @property
    def overlap_us(self) -> float:
        """What dispatches take alone, but not in a run: one begins while the one before it ends; at least 0."""
        return max(self.kernels_us - self.gpu_us, 0.0)

    @property
    def families(self) -> tuple[Family, ...]:
        """Totals by family, the longest first."""
        names = dict.fromkeys(d.family for d in self.dispatches)
        families = [_family(name, [d for d in self.dispatches if d.family == name]) for name in names]
        return tuple(sorted(families, key=lambda f: -f.us))

    @property
    def costliest(self) -> tuple[TimedDispatch, ...]:
        """The dispatches, the longest first."""
        return tuple(sorted(self.dispatches, key=lambda d: -d.us))

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        rows = []
        for dispatch in self.dispatches:
            share, of = self.roofs.share(dispatch)
            rows.append(
                {
                    **asdict(dispatch),
                    "gflops": dispatch.gflops,
                    "gbytes": dispatch.gbytes,
                    "roof_share": share,
                    "roof": of,
                }
            )
        return {
            "model": self.model,
            "adapter": self.adapter,
            "driver": self.driver,
            "runs": self.runs,
            "checked_shaders": self.checked,
            "clocks": list(self.clocks),
            "roofs": asdict(self.roofs),
            "run_us": self.run_us,
            "phases_us": self.phases_us,
            "gpu_us": self.gpu_us,
            "kernels_us": self.kernels_us,
            "gaps_us": self.gaps_us,
            "overlap_us": self.overlap_us,
            "families": [asdict(f) for f in self.families],
            "dispatches": rows,
            "notes": list(self.notes),
            "nodes": [asdict(n) for n in self.nodes],
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, top: int = 20) -> list[str]:
        """For a terminal of 80 columns: the run, its phases, families, and the `top` longest dispatches."""
        return [printable(line) for line in self._lines(top)]

    def _lines(self, top: int) -> list[str]:
        checks = f"shaders {'with' if self.checked else 'without'} bounds checks"
        lines = [
            f"{self.model}: {_us(self.run_us)} a run, median of {self.runs}; {len(self.dispatches)} "
            f"dispatches, {checks}",
            f"adapter: {self.adapter}, {self.driver}",
        ]
        lines += [f"clocks: {text} {when}" for text, when in zip(self.clocks, ("before", "after"), strict=True) if text]
        if self.roofs.gflops or self.roofs.gbytes:
            lines.append(
                f"limits, measured: {_short_number(self.roofs.gflops)} GFLOP/s (f), "
                f"{_short_number(self.roofs.gbytes)} GB/s (b)"
            )
        lines = [
            part
            for line in (*lines, *(f"note: {note}" for note in self.notes))
            for part in wrap(line, WIDTH, subsequent_indent="  ")
        ]
        lines += ["", "host, us"] + [f"  {name:8} {self.phases_us[name]:9.1f}  {what}" for name, what in PHASES.items()]
        lines += self._on_cpu(top)
        if not self.dispatches:
            return lines
        between = f"overlap {_us(self.overlap_us)}" if self.overlap_us else f"gaps {_us(self.gaps_us)}"
        lines += [
            "",
            f"GPU {_us(self.gpu_us)}: dispatches alone {_us(self.kernels_us)}, {between}",
            f"  {'family':12} {'dispatches':>10} {'us':>9} {'part':>5} {'GFLOP/s':>9} {'GB/s':>7}",
        ]
        lines += [
            f"  {f.name:12} {f.dispatches:10} {f.us:9.1f} {_part(f.us, self.kernels_us)} {_rate(f.flops, f.us):>9} "
            f"{_rate(f.nbytes, f.us):>7}"
            for f in self.families
        ]
        shown = self.costliest[:top]
        lines += ["", f"  {'us':>8} {'part':>5} {'GFLOP/s':>7} {'GB/s':>5} {'limit':>6} {'kernel':11} output, node"]
        lines += [self._line(d) for d in shown]
        if len(shown) < len(self.dispatches):
            rest = self.kernels_us - sum(d.us for d in shown)
            lines.append(f"  {rest:8.1f} {_part(rest, self.kernels_us)}  the other {len(self.dispatches) - len(shown)}")
        return lines

    def _on_cpu(self, top: int) -> list[str]:
        """The nodes on the CPU, the longest first."""
        nodes = sorted((n for n in self.nodes if n.is_on_cpu), key=lambda n: -n.us)
        if not nodes:
            return []
        lines = ["", f"nodes on the CPU, by onnxruntime's profiler: {len(nodes)}, {_us(sum(n.us for n in nodes))}"]
        lines += [f"  {n.us:8.1f} {_short(n.op, 20):20} {_short(printable(n.name), WIDTH - 32)}" for n in nodes[:top]]
        if len(nodes) > top:
            lines.append(f"  {sum(n.us for n in nodes[top:]):8.1f} the other {len(nodes) - top}")
        return lines

    def _line(self, d: TimedDispatch) -> str:
        share, of = self.roofs.share(d)
        roof = f"{share:.0%} {of[0]}" if of else ""
        line = (
            f"  {d.us:8.1f} {_part(d.us, self.kernels_us)} {_rate(d.flops, d.us):>7} "
            f"{_rate(d.nbytes, d.us):>5} {roof:>6} "
            f"{d.kernel[:11]:11} {d.shape}"
        )
        return f"{line} {_short(printable(d.label.rpartition('/')[0] or d.label), WIDTH - 1 - len(line))}".rstrip()


def _short(name: str, room: int) -> str:
    """A name in so many columns: its middle is left out, since blocks are told by the beginning and layers by the
    end."""
    if len(name) <= room:
        return name
    if room < 3:
        return ""
    end = (room - 1) * 2 // 3
    return f"{name[: room - 1 - end]}…{name[-end:]}"


def _family(name: str, members: Sequence[TimedDispatch]) -> Family:
    return Family(
        name, len(members), sum(d.us for d in members), sum(d.flops for d in members), sum(d.nbytes for d in members)
    )


def _short_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _us(us: float) -> str:
    return f"{us / 1e3:.3f} ms" if us >= 1000 else f"{us:.1f} us"


def _part(us: float, total: float) -> str:
    return f"{us / total if total else 0.0:5.1%}" if us < 0.9995 * total else " 100%"


def _rate(amount: int, us: float) -> str:
    rate = amount / us / 1e3 if us > 0 else 0.0
    return "" if not rate else f"{rate:,.0f}" if rate >= 9.95 else f"{rate:.2g}"
