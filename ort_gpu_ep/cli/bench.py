"""ort-gpu-ep bench: latency of whole runs, and where the time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnxruntime
import typer
from rich.progress import track
from rich.table import Table

from ort_gpu_ep.cli import shared, under_load
from ort_gpu_ep.cli.plot import plot_load, pyplot
from ort_gpu_ep.device import Gpu


@shared.reports_errors
def bench(
    model: shared.ModelArgument,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Counted runs of each side.")] = 50,
    against: Annotated[Literal["cpu"] | None, typer.Option("--against", help="Compare with onnxruntime's CPU provider.")] = None,
    inputs: shared.InputOption = None,
    dims: shared.SizeOption = None,
    shapes: shared.ShapeOption = None,
    option: shared.OptionOption = None,
    seed: shared.SeedOption = 0,
    load: Annotated[list[under_load.Level] | None, typer.Option(
        "--load", help="Measure CPU, GPU and auto while another process keeps the GPU busy for 25, 60 or 95 % of the time.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="With --load: a picture, latency against GPU load.")] = None,
    json: shared.JsonOption = False,
) -> None:
    """Median and p95 of whole runs (numpy in, numpy out), split into host, upload, GPU and readback."""
    given = shared.pairs(inputs, "--input"), shared.pairs(dims, "--dim"), shared.pairs(shapes, "--shape"), seed
    if load or plot:
        _under_load(model, given, shared.pairs(option, "--option"), load or [under_load.Level.ALL], runs, plot, json)
        return
    start = time.perf_counter()
    session = shared.open_session(model, shared.pairs(option, "--option"))
    shared.check_gpu(session)
    values = shared.feeds(session, *given)
    result = _compare(model, session, values, runs, against, start, quiet=json)
    if json:
        shared.print_json(result)
    else:
        _print(result)


def _under_load(
    model: Path, given: tuple[Any, ...], options: dict[str, str], wanted: Sequence[str], runs: int,
    plot: Path | None, json: bool,
) -> None:
    """The other measurement: each candidate idle and under load. given: what feeds() takes."""
    if plot is not None:
        pyplot()              # before minutes of measuring
    candidates = under_load.sessions(str(model), options)
    values = shared.feeds(candidates["cpu"], *given)
    info, sampler = under_load.sampler_of(options)
    levels = [level for level in under_load.LEVELS if level == under_load.IDLE or level in wanted or "all" in wanted]
    rows = under_load.measure(candidates, values, info, sampler, levels, runs, tell=lambda level: shared.err.print(f"measuring: {level}"))
    if plot is not None:
        plot_load(plot, f"{model.stem} on {info.name}", rows)
    if json:
        shared.print_json({"model": str(model), "adapter": info.as_dict(), "notes": sampler.notes, "rows": [r.as_dict() for r in rows]})
    else:
        shared.out.print(load_table(str(model), rows))
        for note in sampler.notes:
            shared.out.print(f"load: {note}", highlight=False)


def load_table(model: str, rows: Sequence[under_load.Row]) -> Table:
    """p50, p95, p99 of each candidate under each load."""
    table = Table("load", "GPU read", "CPU read", "candidate", "p50", "p95", "p99", "ran", title=f"{model}, ms; load by {rows[-1].source}")
    for row in rows:
        first = row.candidate == rows[0].candidate
        read = "?" if row.gpu_load is None else f"{row.gpu_load:.0%}"
        ran = ", ".join(f"{candidate} {part:.0%}" for candidate, part in row.chosen.items())
        table.add_row(row.level if first else "", read if first else "", f"{row.cpu_load:.0%}" if first else "", row.candidate,
                      *(_digits(row.quantile(part)) for part in (0.5, 0.95, 0.99)), ran, end_section=row.candidate == rows[-1].candidate)
    return table


def _digits(ms: float) -> str:
    """Microseconds while they mean something; seconds-long runs would not fit the table with them."""
    return f"{ms:.3f}" if ms < 100.0 else f"{ms:.0f}"


def _compare(
    model: Path, session: Any, values: dict[str, Any], runs: int, against: str | None, start: float, quiet: bool
) -> dict[str, Any]:
    """Measures both sides. start: when loading began."""
    want = session.run(None, values)
    first_ms = (time.perf_counter() - start) * 1e3
    sides: dict[str, Callable[[], Any]] = {"this": lambda: session.run(None, values)}
    if against == "cpu":
        cpu = onnxruntime.InferenceSession(str(model), shared.quiet(), providers=["CPUExecutionProvider"])
        sides["cpu"] = lambda: cpu.run(None, values)
    gpu = _gpu(session)              # after the first run: with placement=auto that one has chosen
    if gpu is not None:
        gpu.start_timing()
    try:
        measured = _measure(sides, runs, gpu, quiet)
    finally:
        if gpu is not None:
            gpu.stop_timing()
    result: dict[str, Any] = {"model": str(model), "runs": runs, "first_ms": first_ms, **{k: _summary(v) for k, v in measured.items()}}
    if against == "cpu":
        result["speedup"] = result["cpu"]["median_ms"] / result["this"]["median_ms"]
        result["relative_l2"] = _difference(want, sides["cpu"]())
    return result


def _gpu(session: Any) -> Gpu | None:
    """The device that the session's nodes use, None if all of them run on the CPU or in a worker."""
    state = session._state
    return state.gpu if state is not None and state.partitions else None


def _measure(sides: dict[str, Callable[[], Any]], runs: int, gpu: Gpu | None, quiet: bool) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of each run and part. The sides take turns, so that a drift of the machine hits all of them."""
    for _ in range(min(5, runs)):
        for call in sides.values():
            call()
    measured: dict[str, dict[str, list[float]]] = {name: {} for name in sides}
    for _ in track(range(runs), "running", console=shared.err, disable=quiet, transient=True):
        for name, call in sides.items():
            before = (gpu.stats.upload_s, gpu.stats.download_s) if gpu else (0.0, 0.0)
            start = time.perf_counter()
            call()
            total = time.perf_counter() - start
            parts = {"total": total}
            if gpu is not None and name == "this":
                upload, download = gpu.stats.upload_s - before[0], gpu.stats.download_s - before[1]
                on_gpu = gpu.timer.read_s() if gpu.timer else 0.0
                parts |= {"host": total - upload - download, "upload": upload, "gpu": on_gpu, "readback": max(download - on_gpu, 0.0)}
            for part, seconds in parts.items():
                measured[name].setdefault(part, []).append(seconds * 1e3)
    return measured


def _summary(parts: dict[str, list[float]]) -> dict[str, float]:
    total = parts["total"]
    summary = {"median_ms": float(np.median(total)), "p95_ms": float(np.percentile(total, 95))}
    return summary | {f"{k}_ms": float(np.median(v)) for k, v in parts.items() if k != "total"}


def _difference(got: list[Any], want: list[Any]) -> float:
    """Largest relative L2 distance of a floating-point output."""
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        if isinstance(w, np.ndarray) and w.dtype.kind == "f":
            distance = np.linalg.norm(g.astype(np.float64) - w) / (np.linalg.norm(w.astype(np.float64)) + 1e-30)
            worst = max(worst, float(distance))
    return worst


def _print(result: dict[str, Any]) -> None:
    columns = ("median_ms", "p95_ms", "host_ms", "upload_ms", "gpu_ms", "readback_ms")
    table = Table("", *(c.removesuffix("_ms") for c in columns), title=f"{result['model']}, {result['runs']} runs, ms")
    for side in ("this", "cpu"):
        if side in result:
            table.add_row(side, *(f"{result[side][c]:.3f}" if c in result[side] else "" for c in columns))
    shared.out.print(table)
    shared.out.print(f"first run, loading included: {result['first_ms']:.0f} ms", highlight=False)
    if "speedup" in result:
        shared.out.print(f"{result['speedup']:.2f} x the CPU's speed; relative L2 difference {result['relative_l2']:.1e}", highlight=False)
