"""ort-gpu-ep calibrate: measured times of runs, transfers and kernels, which placement=auto predicts with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ort_gpu_ep.calibration import profile_of, with_roofs
from ort_gpu_ep.cli import shared
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.files import whole
from ort_gpu_ep.health.open_adapter import open_gpu
from ort_gpu_ep.kernels.profile import GUESSED, Curve, Profile
from ort_gpu_ep.kernels.records import BY_FLOPS


@shared.reports_errors
def calibrate(
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, even if there is a stored result.")] = False,
    plot: Annotated[
        Path | None, shared.file_to_write("--plot", "Draw transfer time over size.", shared.PICTURES)
    ] = None,
    option: shared.OptionOption = None,
    json: shared.JsonOption = False,
) -> None:
    """Show how long runs, transfers and kernels take on the adapter. Measured the first time, then stored."""
    config = resolve(shared.pairs(option, "--option"))
    if plot is not None:
        _drawing()  # fails before anything is measured
    gpu = open_gpu(config)
    profile = _profile(gpu, config, fresh)
    if plot is not None:
        draw(profile, plot)
    if json:
        shared.print_json({**profile.as_dict(), "guessed": profile is GUESSED})
    else:
        _print(profile, gpu)
        if plot is not None:
            shared.out.print(f"written: {plot}", soft_wrap=True)


def _profile(gpu: Gpu, config: Config, fresh: bool) -> Profile:
    with shared.progress("measuring") as tell:
        profile_of(gpu, config, fresh, tell)
        tell("roofs", 1.0)
        return with_roofs(gpu, config)


def _print(profile: Profile, gpu: Gpu) -> None:
    shared.out.print(f"{gpu.info.name} ({gpu.info.backend}, {gpu.info.driver})")
    if profile is GUESSED:
        shared.out.print("not measured (the log says why): these are assumptions", style="yellow")
    shared.out.print(f"an empty run {_time(profile.run_s)}, one more small kernel {_time(profile.dispatch_s)}")
    if profile.has_roofs:
        roofs = profile.roofs
        shared.out.print(
            f"at most {_amount(roofs.flops_per_s, 'flop')}/s, {_amount(roofs.nbytes_per_s, 'B')}/s, and of "
            f"workgroup memory "
            f"{_amount(roofs.workgroup_nbytes_per_s, 'B')}/s; "
            f"a read that waits for the one before {roofs.wait_s * 1e9:.0f} ns, a barrier "
            f"{roofs.barrier_s * 1e9:.0f} ns"
        )
    table = Table("size", "upload", "rate", "readback", "rate", title="transfers, in addition to an empty run")
    for nbytes in sorted({a for curve in (profile.upload, profile.download) for a, _ in curve.points}):
        cells = [cell for curve in (profile.upload, profile.download) for cell in _cells(curve, nbytes, "B/s")]
        table.add_row(_amount(nbytes, "B"), *cells)
    shared.out.print(table)
    table = Table("family", "work", "time", "rate", title="kernels, without their dispatch")
    for family, curve in profile.families.items():
        unit = "flop" if family in BY_FLOPS else "B"
        for i, (amount, _) in enumerate(curve.points):
            name = f"{family}, a step" if family.startswith("recurrent") else family
            table.add_row("" if i else name, _amount(amount, unit), *_cells(curve, amount, f"{unit}/s"))
    shared.out.print(table)


def _cells(curve: Curve, amount: float, unit: str) -> tuple[str, str]:
    """Time and rate; no rate where the time is below what a difference of two medians can tell."""
    seconds = curve.at(amount)
    return ("< 1 µs", "") if seconds < 1e-6 else (_time(seconds), _amount(amount / seconds, unit))


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def _amount(number: float, unit: str) -> str:
    """With the decimal prefix that fits."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def _drawing() -> Any:
    """matplotlib's figure class. Raises: ConfigError, where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"--plot needs matplotlib, which can't be imported ({error}): pip install matplotlib"
        ) from error
    return Figure


def draw(profile: Profile, path: Path) -> None:
    """Transfer time over size, both directions, logarithmic. Raises: ConfigError, OSError."""
    figure = _drawing()(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for curve, name, marker in ((profile.upload, "upload", "o"), (profile.download, "readback", "s")):
        axes.plot([a for a, _ in curve.points], [s * 1e3 for _, s in curve.points], marker=marker, label=name)
    axes.axhline(profile.run_s * 1e3, color="gray", linestyle="--", label="an empty run")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="bytes",
        ylabel="ms in addition to an empty run",
        title=f"Transfers: {profile.adapter}",
    )
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="best")
    with whole(path) as part:
        figure.savefig(part, dpi=150)
