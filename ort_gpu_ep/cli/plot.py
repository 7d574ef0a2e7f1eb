"""Pictures of measurements, by matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.drills.generator import DUTY
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.files import whole

if TYPE_CHECKING:
    from ort_gpu_ep.cli.throughput import Throughput
    from ort_gpu_ep.cli.under_load import Row
    from ort_gpu_ep.compression import Report
    from ort_gpu_ep.profiling.result import RunProfile
    from ort_gpu_ep.training.trainer import Epoch

MARKS = {"cpu": ("o", "CPU (plain ONNX Runtime)"), "gpu": ("s", "GPU (placement=gpu)"), "auto": ("x", "auto")}


def pyplot() -> Any:
    """matplotlib, drawing to files only. Raises ConfigError, where it is not installed."""
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install matplotlib") from error


@contextmanager
def _axes(path: Path, grid: str = "major", legend: bool = False) -> Iterator[Any]:
    """Axes to draw on; the block's end writes the file. grid: at which ticks. legend: where matplotlib finds room."""
    drawing = pyplot()
    figure, axes = drawing.subplots(figsize=(6.4, 4.2))
    yield axes
    axes.grid(visible=True, which=grid, alpha=0.3)
    if legend:
        axes.legend(loc="best")
    figure.tight_layout()
    with whole(path) as part:
        figure.savefig(part, dpi=150)
    drawing.close(figure)


def _log(axis: Any) -> None:
    """Numbers at 1, 2 and 5 of each decade, or at five places of a smaller range: matplotlib's own minor labels overlap
    there."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(10, (1, 2, 5)) if high > 6 * low else MaxNLocator(5))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def plot_load(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Median latency of each candidate against the GPU load that the source read, with a bar up to p95.

    Where the load was not read, the duty cycle of the load generator stands for it, and the axis says so.
    """
    with _axes(path, "both", legend=True) as axes:
        complete = all(row.gpu_load is not None for row in rows)
        for candidate, (mark, label) in MARKS.items():
            mine = [row for row in rows if row.candidate == candidate]
            points = sorted(
                (
                    row.gpu_load if complete and row.gpu_load is not None else DUTY.get(row.level, 0.0),
                    row.quantile(0.5),
                    row.quantile(0.95),
                )
                for row in mine
            )
            if points:
                x, middle, high = zip(*points, strict=True)
                above = [h - m for h, m in zip(high, middle, strict=True)]
                axes.errorbar(
                    [100 * v for v in x],
                    middle,
                    yerr=[[0.0] * len(above), above],
                    marker=mark,
                    label=label,
                    capsize=3,
                    linestyle="--" if candidate == "auto" else "-",
                )
        axes.set_xlim(-3, 103)
        axes.set_yscale("log")
        _log(axes.yaxis)
        axes.set_xlabel(f"GPU load by others, %{'' if complete else ' (as made; no source)'}")
        axes.set_ylabel("latency of a run, ms: median, bar to p95")
        axes.set_title(title)


def plot_profile(path: Path, profile: RunProfile) -> None:
    """A roofline: each dispatch's rate over its operations per byte, as large as its time, below what the adapter can
    do."""
    with _axes(path) as axes:
        placed = [d for d in profile.dispatches if d.flops and d.nbytes]
        for family in profile.families:
            mine = [d for d in placed if d.family == family.name]
            if mine:
                sizes = [20 + 2000 * d.us / max(profile.kernels_us, 1e-9) for d in mine]
                axes.scatter(
                    [d.flops / d.nbytes for d in mine],
                    [d.gflops for d in mine],
                    sizes,
                    alpha=0.6,
                    label=f"{family.name}, {family.us:.0f} us",
                )
        roofs = profile.roofs
        if roofs.gflops and roofs.gbytes:
            ridge = roofs.gflops / roofs.gbytes
            ends = [d.flops / d.nbytes for d in placed] or [ridge]
            low, high = min(*ends, ridge) / 2, max(*ends, ridge) * 2
            axes.plot(
                [low, ridge, high],
                [low * roofs.gbytes, roofs.gflops, roofs.gflops],
                color="gray",
                label=f"measured limits: {roofs.gflops:,.0f} GFLOP/s, {roofs.gbytes:,.0f} GB/s",
            )
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="floating-point operations per byte",
            ylabel="GFLOP/s",
            title=f"{profile.model} on {profile.adapter}",
        )
        if axes.get_legend_handles_labels()[0]:
            legend = axes.legend(loc="best", fontsize="small")
            for handle in legend.legend_handles:
                if hasattr(handle, "set_sizes"):  # a family's circle, not as large as its longest dispatch
                    handle.set_sizes([40])


def plot_methods(path: Path, title: str, reports: Mapping[str, Report]) -> None:
    """File size against accuracy (without labels: against predictions that stay the same, or the outputs' error), a
    point a method."""
    with _axes(path) as axes:
        first = next(iter(reports.values()))
        points = {name: (report.file_nbytes[1] / 1e6, *_quality(report)) for name, report in reports.items()}
        if first.accuracy is not None:
            points["uncompressed"] = (first.file_nbytes[0] / 1e6, 100 * first.accuracy[0], _ACCURACY)
        for k, (name, (size, value, _)) in enumerate(sorted(points.items(), key=lambda item: item[1])):
            axes.plot(
                [size],
                [value],
                "s" if name == "uncompressed" else "o",
                color="gray" if name == "uncompressed" else None,
            )
            above = k % 2 == 0  # neighbours in size have their names on different sides
            axes.annotate(
                name,
                (size, value),
                textcoords="offset points",
                xytext=(0, 8 if above else -15),
                ha="center",
                fontsize="small",
            )
        label = next(iter(points.values()))[2]
        count = first.compared.samples if first.compared is not None else 0
        axes.set(xlabel="file, MB", ylabel=f"{label}, {count:,} samples {first.on}", title=title)
        axes.margins(0.15, 0.2)
        if label == _ERROR:
            axes.set_yscale("log")


_ACCURACY, _AGREEMENT, _ERROR = "right predictions, %", "unchanged predictions, %", "relative error of outputs"


def _quality(report: Report) -> tuple[float, str]:
    """How good a compressed model is, and by which measure."""
    if report.accuracy is not None:
        return 100 * report.accuracy[1], _ACCURACY
    if report.agreement is not None:
        return 100 * report.agreement, _AGREEMENT
    return report.output_error or 0.0, _ERROR


def plot_times(path: Path, title: str, sides: Mapping[str, Sequence[float]]) -> None:
    """How the latencies of each side are distributed: the part of the runs below a time, with the median marked. sides:
    ms of runs."""
    with _axes(path, "both", legend=True) as axes:
        for name, times in sides.items():
            ordered = sorted(times)
            parts = [100 * (k + 1) / len(ordered) for k in range(len(ordered))]
            middle = ordered[(len(ordered) - 1) // 2]
            (line,) = axes.step(ordered, parts, where="post", label=f"{name}: median {middle:.3g} ms")
            axes.plot([middle], [50], "o", color=line.get_color())
        axes.set_xscale("log")
        _log(axes.xaxis)
        axes.set(xlabel="latency of a run, ms", ylabel="runs that are as fast, %", title=title, ylim=(0, 102))


def plot_throughput(path: Path, title: str, rows: Sequence[Throughput]) -> None:
    """Median latency against the batch (against the threads, where one batch was measured), a line a side."""
    by_threads = len({row.batch for row in rows}) == 1 and len({row.threads for row in rows}) > 1
    lines: dict[str, list[Throughput]] = {}
    for row in rows:
        lines.setdefault(
            row.side if by_threads else f"{row.side}, {row.threads} thread{'s' if row.threads > 1 else ''}", []
        ).append(row)
    with _axes(path, "both", legend=True) as axes:
        for name, mine in lines.items():
            ordered = sorted(mine, key=lambda row: row.threads if by_threads else row.batch)
            x = [row.threads if by_threads else row.batch for row in ordered]
            axes.plot(x, [row.median_ms for row in ordered], marker="o", label=name)
        places = sorted({row.threads if by_threads else row.batch for row in rows})
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [str(place) for place in places])
        axes.set_xticks([], minor=True)
        axes.set_yscale("log")
        axes.margins(0.1, 0.15)
        _log(axes.yaxis)
        axes.set(xlabel="threads" if by_threads else "batch", ylabel="latency of a run, ms: median", title=title)


def plot_training(path: Path, title: str, epochs: Sequence[Epoch]) -> None:
    """The loss of each step and the mean of each epoch, over epochs; accuracy on an axis of its own."""
    with _axes(path) as axes:
        steps = [
            (epoch.number - 1 + (k + 1) / len(epoch.losses), loss)
            for epoch in epochs
            for k, loss in enumerate(epoch.losses)
        ]
        axes.plot(*zip(*steps, strict=True), color="lightgray", label="loss of a step")
        numbers = [epoch.number for epoch in epochs]
        other = None
        for name in epochs[-1].results:
            values = [epoch.results[name] for epoch in epochs]
            if "accuracy" in name:
                other = other or axes.twinx()
                other.plot(
                    numbers,
                    [100 * value for value in values],
                    "s--",
                    color="tab:green",
                    label=f"{name.replace('_', ' ')}, %",
                )
            else:
                axes.plot(numbers, values, "o-", label=f"{name.replace('_', ' ')} of an epoch")
        axes.set(xlabel="epoch", ylabel="loss", title=title)
        axes.set_ylim(bottom=0 if min(min(e.losses) for e in epochs) >= 0 else None)
        if other is not None:
            other.set(ylabel="accuracy, %")
        lines = [line for part in (axes, other) if part is not None for line in part.get_legend_handles_labels()[0]]
        axes.legend(
            lines, [line.get_label() for line in lines], loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2
        )
