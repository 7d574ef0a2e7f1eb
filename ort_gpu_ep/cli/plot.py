"""Pictures of measurements (extra `plot`: matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.load.generator import DUTY

if TYPE_CHECKING:
    from ort_gpu_ep.cli.under_load import Row
    from ort_gpu_ep.profiling.result import RunProfile

MARKS = {"cpu": ("o", "CPU (plain ONNX Runtime)"), "gpu": ("s", "GPU (placement=gpu)"), "auto": ("x", "auto")}


def pyplot() -> Any:
    """matplotlib, drawing to files only. Raises ConfigError, where it is not installed."""
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'ort-gpu-ep[plot]'") from error


def plot_load(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Median latency of each candidate against the GPU load that the source read, with a bar up to p95.

    Where the load was not read, the duty cycle of the load generator stands for it, and the axis says so.
    """
    drawing = pyplot()
    figure, axes = drawing.subplots(figsize=(6.4, 4.2))
    known = all(row.gpu_load is not None for row in rows)
    for candidate, (mark, label) in MARKS.items():
        mine = [row for row in rows if row.candidate == candidate]
        points = sorted((row.gpu_load if known and row.gpu_load is not None else DUTY.get(row.level, 0.0),
                         row.quantile(0.5), row.quantile(0.95)) for row in mine)
        if points:
            x, middle, high = zip(*points, strict=True)
            above = [h - m for h, m in zip(high, middle, strict=True)]
            axes.errorbar([100 * v for v in x], middle, yerr=[[0.0] * len(above), above], marker=mark, label=label, capsize=3,
                          linestyle="--" if candidate == "auto" else "-")
    axes.set_xlim(-3, 103)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel(f"GPU load by others, %{'' if known else ' (as made; no source)'}")
    axes.set_ylabel("latency of a run, ms: median, bar to p95")
    axes.set_title(title)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(loc="best")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    drawing.close(figure)


def plot_profile(path: Path, profile: RunProfile) -> None:
    """A roofline: each dispatch's rate over its operations per byte, as large as its time, below what the adapter can do."""
    drawing = pyplot()
    figure, axes = drawing.subplots(figsize=(7.2, 4.8))
    placed = [d for d in profile.dispatches if d.flops and d.nbytes]
    for family in profile.families:
        mine = [d for d in placed if d.family == family.name]
        if mine:
            sizes = [20 + 2000 * d.us / max(profile.kernels_us, 1e-9) for d in mine]
            axes.scatter([d.flops / d.nbytes for d in mine], [d.gflops for d in mine], sizes, alpha=0.6,
                         label=f"{family.name}, {family.us:.0f} us")
    roofs = profile.roofs
    if roofs.gflops and roofs.gbytes:
        ridge = roofs.gflops / roofs.gbytes
        ends = [d.flops / d.nbytes for d in placed] or [ridge]
        low, high = min(*ends, ridge) / 2, max(*ends, ridge) * 2
        axes.plot([low, ridge, high], [low * roofs.gbytes, roofs.gflops, roofs.gflops], color="gray",
                  label=f"measured roofs: {roofs.gflops:,.0f} GFLOP/s, {roofs.gbytes:,.0f} GB/s")
    axes.set(xscale="log", yscale="log", xlabel="floating-point operations per byte", ylabel="GFLOP/s",
             title=f"{profile.model} on {profile.adapter}")
    axes.grid(visible=True, which="major", alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    drawing.close(figure)
