"""ort-gpu-ep bench: latency of whole runs, and where the time goes."""

from __future__ import annotations

import json as json_module
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import track
from rich.table import Table

from ort_gpu_ep.cli import decoding, peers, shared, throughput, under_load
from ort_gpu_ep.cli.inputs import feeds as inputs_of
from ort_gpu_ep.cli.plot import plot_load, plot_throughput, plot_times, pyplot
from ort_gpu_ep.cli.share import markdown, rows_of
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import ConfigError

Peer = StrEnum("Peer", ["CPU", "WEBGPU", "CUDA"])
"""What `--against` may say."""


@shared.reports_errors
def bench(
    model: shared.ModelArgument,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Measured runs of each provider.")] = 50,
    against: Annotated[
        Peer | None, typer.Option("--against", help="Compare with another provider of ONNX Runtime.")
    ] = None,
    batch: Annotated[str, typer.Option("--batch", help="Measure rows/s for these batch sizes: 1,8,32.")] = "",
    decode: Annotated[
        int, typer.Option("--decode", min=0, help="Measure a language model: generate this many tokens.")
    ] = 0,
    context: Annotated[
        int, typer.Option("--context", min=1, help="With --decode: length of the prompt in tokens.")
    ] = 512,
    threads: Annotated[str, typer.Option("--threads", help="Measure rows/s for these numbers of threads: 1,2,4.")] = "",
    inputs: shared.InputOption = None,
    dims: shared.SizeOption = None,
    shapes: shared.ShapeOption = None,
    option: shared.OptionOption = None,
    seed: shared.SeedOption = 0,
    load: Annotated[
        list[under_load.Level] | None,
        typer.Option(
            "--load",
            help="Measure CPU, GPU and auto while another process keeps the GPU busy for 25, 60 or 95 % of the time.",
        ),
    ] = None,
    plot: Annotated[Path | None, shared.file_to_write("--plot", "Draw the measurements.", shared.PICTURES)] = None,
    before: Annotated[
        Path | None, typer.Option("--before", help="Output of an earlier `bench --json`, to compare with.")
    ] = None,
    share: Annotated[bool, typer.Option("--share", help="Print markdown, to paste elsewhere: no folders.")] = False,
    json: shared.JsonOption = False,
) -> None:
    """Measure the latency of MODEL (median and p95 of whole runs), split into host, upload, GPU and readback."""
    _check_together(load=load, decode=decode, batch=batch, threads=threads, against=against, before=before)
    if share and (load or json):
        raise ConfigError(f"--share does not go with {'--load' if load else '--json'}: give one of them")
    asked = inputs, dims, shapes, seed
    earlier = _earlier(before) if before is not None else {}
    if plot is not None:  # these fail before anything is measured
        pyplot()
    if against is not None and not decode:
        peers.check(against)
    if load:
        _under_load(model, asked, shared.pairs(option, "--option"), load, runs, plot, json)
        return
    start, options = time.perf_counter(), shared.pairs(option, "--option")
    if decode:
        _decoding(model, options, context, decode, against, plot, share, json)
        return
    session = shared.open_session(model, options)
    shared.check_gpu(session)
    if batch:
        _check_sizes(session, shared.pairs(dims, "--dim"))
    values = inputs_of(session.get_inputs(), model, *asked)
    if batch or threads:
        sizes, counts = (throughput.numbers(text, flag) for text, flag in ((batch, "--batch"), (threads, "--threads")))
        _throughput(model, session, options, values, sizes, counts or [1], runs, against, plot, share, json)
        return
    result = _compare(model, session, options, values, runs, against, start, quiet=json) | earlier
    if earlier:
        result["change"] = result["before"]["median_ms"] / result["this"]["median_ms"]
    _draw(
        plot_times,
        plot,
        f"{model.stem} on {result['adapter']}",
        {side: result[side]["times_ms"] for side in SIDES if side in result},
    )
    if json:
        shared.print_json(result)
    elif share:
        rows, what = rows_of(values)
        _share(
            model,
            options,
            result,
            ["", "median ms", "p95 ms", f"{what}/s"],
            [
                [
                    side,
                    f"{result[side]['median_ms']:.3f}",
                    f"{result[side]['p95_ms']:.3f}",
                    f"{rows / result[side]['median_ms'] * 1e3:,.0f}",
                ]
                for side in SIDES
                if side in result
            ],
            f" --runs {runs}{f' --against {against}' if against else ''}",
        )
    else:
        _print(result)


def _share(
    model: Path,
    options: Mapping[str, str],
    facts: dict[str, Any],
    columns: list[str],
    rows: list[list[str]],
    flags: str,
) -> None:
    """flags: of the command that measured it, but for options."""
    set_so = "".join(
        f" -o {name}={'...' if '/' in value or os.sep in value else value}" for name, value in options.items()
    )
    typer.echo(
        markdown(
            model.name,
            f"ort-gpu-ep bench {model.name}{flags}{set_so}",
            facts,
            columns,
            [["ort-gpu-ep" if cell == "this" else cell for cell in row] for row in rows],
        )
    )


SIDES = ("this", "before", *Peer)


def _draw(draw: Callable[..., object], path: Path | None, title: str, measured: object) -> None:
    """Draws what was measured, where a picture is wanted, and says so on stderr."""
    if path is not None:
        draw(path, title, measured)
        shared.err.print(f"written: {path}", soft_wrap=True)


def _ratio(speed: float, other: str) -> str:
    """The larger number of speed and time, so that its digits say something."""
    return f"{speed:.2f} x the speed of {other}" if speed >= 1.0 else f"{1 / speed:.2f} x the time of {other}"


def _check_together(**given: Any) -> None:
    """Raises ConfigError for options that measure different things. given: by their names, true where they were
    given."""
    there = [name for name, value in given.items() if value]
    together = [name for name in there if name != "against"]
    for alone, others in (
        ("load", there),
        ("decode", together),
        ("before", [name for name in there if name in ("batch", "threads")]),
    ):
        rest = [f"--{name}" for name in others if name != alone]
        if alone in there and rest:
            raise ConfigError(
                f"--{alone} does not go with {' and '.join(rest)}: they measure different things; give one of them"
            )


def _check_sizes(session: Any, sizes: Iterable[str]) -> None:
    """Raises ConfigError for a size that --batch sets."""
    for value in session.get_inputs():
        if value.shape and value.shape[0] in sizes:
            raise ConfigError(
                f"--batch and --dim {value.shape[0]}: both set the first size of {value.name}; give one of them"
            )


def _earlier(path: Path) -> dict[str, Any]:
    """What an earlier `bench --json` measured of our side. Raises ConfigError for another file."""
    try:
        earlier = json_module.loads(path.read_text("utf-8"))["this"]
        return {"before": {**earlier, "times_ms": [float(ms) for ms in earlier["times_ms"]]}}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--before {path}: expected what `ort-gpu-ep bench MODEL --json` printed, one model without "
            f"--batch, --threads "
            "and --load"
        ) from error


def _under_load(
    model: Path,
    given: tuple[Any, ...],
    options: dict[str, str],
    wanted: Sequence[str],
    runs: int,
    plot: Path | None,
    json: bool,
) -> None:
    """The other measurement: each candidate idle and under load. given: what feeds() takes."""
    candidates = under_load.sessions(str(model), options)
    values = inputs_of(candidates["cpu"].get_inputs(), model, *given)
    info, sampler = under_load.sampler_of(options)
    levels = [level for level in under_load.LEVELS if level == under_load.IDLE or level in wanted or "all" in wanted]
    rows = under_load.measure(
        candidates, values, info, sampler, levels, runs, tell=lambda level: shared.err.print(f"measuring: {level}")
    )
    _draw(plot_load, plot, f"{model.stem} on {info.name}", rows)
    if json:
        shared.print_json(
            {
                "model": str(model),
                "adapter": info.as_dict(),
                "notes": sampler.notes,
                "rows": [r.as_dict() for r in rows],
            }
        )
    else:
        shared.out.print(load_table(str(model), rows))
        for note in sampler.notes:
            shared.out.print(f"load: {note}")


def load_table(model: str, rows: Sequence[under_load.Row]) -> Table:
    """p50, p95, p99 of each candidate under each load."""
    table = Table(
        "load",
        "GPU read",
        "CPU read",
        "candidate",
        "p50",
        "p95",
        "p99",
        "ran",
        title=f"{model}, ms; load by {rows[-1].source}",
    )
    for row in rows:
        first = row.candidate == rows[0].candidate
        read = "?" if row.gpu_load is None else f"{row.gpu_load:.0%}"
        ran = ", ".join(f"{candidate} {part:.0%}" for candidate, part in row.chosen.items())
        table.add_row(
            row.level if first else "",
            read if first else "",
            f"{row.cpu_load:.0%}" if first else "",
            row.candidate,
            *(_digits(row.quantile(part)) for part in (0.5, 0.95, 0.99)),
            ran,
            end_section=row.candidate == rows[-1].candidate,
        )
    return table


def _decoding(
    model: Path,
    options: dict[str, str],
    context: int,
    tokens: int,
    against: str | None,
    plot: Path | None,
    share: bool,
    json: bool,
) -> None:
    """Tokens a second of a language model's prompt and of what it generates. Raises ConfigError for another peer than
    the CPU."""
    if against not in (None, Peer.CPU):
        raise ConfigError(f"--decode compares with --against cpu alone; got {against}")
    with shared.progress("measuring", quiet=json) as tell:
        measured, facts = decoding.measure(model, options, context, tokens, against is not None, tell)
    _draw(plot_times, plot, f"{model.stem}: a token behind {context}", {row.side: row.token_ms for row in measured})
    if json:
        shared.print_json(
            {
                "model": str(model),
                "context": context,
                "tokens": tokens,
                **facts,
                "rows": [asdict(row) for row in measured],
            }
        )
        return
    if share:
        _share(
            model,
            options,
            facts,
            ["", "prompt tokens/s", "tokens/s", "ms a token"],
            [
                [row.side, f"{row.prompt_per_s:,.0f}", f"{row.token_per_s:,.1f}", _digits(1e3 / row.token_per_s)]
                for row in measured
            ],
            f" --decode {tokens} --context {context}{f' --against {against}' if against else ''}",
        )
        return
    table = Table(
        "side",
        "opens s",
        "first s",
        "prompt/s",
        "tokens/s",
        "ms a token",
        title=f"{model.name}, behind {context} tokens",
    )
    for row in measured:
        table.add_row(
            row.side,
            f"{row.opening_s:.2f}",
            f"{row.first_prompt_s:.2f}",
            f"{row.prompt_per_s:,.0f}",
            f"{row.token_per_s:,.1f}",
            _digits(1e3 / row.token_per_s),
        )
    shared.out.print(table)


def _digits(ms: float) -> str:
    """Microseconds while they mean something; seconds-long runs would not fit the table with them."""
    return f"{ms:.3f}" if ms < 100.0 else f"{ms:.0f}"


def _other(model: Path, against: str | None, facts: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The session to compare with, by name, and what is to be said: the CPU is not compared with itself."""
    if against is None:
        return {}, []
    if against == "cpu" and not facts["nodes"]["gpu"]:
        return {}, [
            f"placement={facts['placement']} leaves every node on the CPU, so there is nothing to compare: give -o "
            f"placement=gpu"
        ]
    return {str(against): peers.peer(against, str(model))}, []


def _throughput(
    model: Path,
    session: Any,
    options: dict[str, str],
    values: dict[str, Any],
    sizes: list[int],
    threads: list[int],
    runs: int,
    against: str | None,
    plot: Path | None,
    share: bool,
    json: bool,
) -> None:
    feeds = {size: throughput.batched(session, values, size) for size in sizes} or {1: values}
    session.run(None, next(iter(feeds.values())))
    facts = peers.about(session, options)
    other, notes = _other(model, against, facts)
    with shared.progress("measuring", quiet=json) as tell:
        rows = [
            row for count in threads for row in throughput.measure({"this": session, **other}, feeds, count, runs, tell)
        ]
    _draw(plot_throughput, plot, f"{model.stem} on {facts['adapter']}", rows)
    if json:
        shared.print_json({"model": str(model), **facts, "notes": notes, "rows": [asdict(r) for r in rows]})
        return
    if share:
        lists = "".join(
            f" --{flag} {','.join(map(str, numbers))}"
            for flag, numbers in (("batch", sizes), ("threads", threads))
            if numbers
        )
        _share(
            model,
            options,
            facts,
            ["batch", "threads", "", "median ms", f"{rows_of(values)[1]}/s"],
            [[str(row.batch), str(row.threads), row.side, _digits(row.median_ms), f"{row.per_s:,.0f}"] for row in rows],
            f" --runs {runs}{lists}{f' --against {against}' if against else ''}",
        )
        return
    table = Table("batch", "threads", "side", "median ms", "rows/s", title=f"{model.name}, {runs} runs a thread")
    for row in rows:
        table.add_row(str(row.batch), str(row.threads), row.side, _digits(row.median_ms), f"{row.per_s:,.0f}")
    shared.out.print(table)
    for line in (*peers.about_lines(facts), *notes):
        shared.out.print(line)


def _compare(
    model: Path,
    session: Any,
    options: dict[str, str],
    values: dict[str, Any],
    runs: int,
    against: str | None,
    start: float,
    quiet: bool,
) -> dict[str, Any]:
    """Measures both sides. start: when loading began."""
    want = session.run(None, values)
    first_ms = (time.perf_counter() - start) * 1e3
    facts = peers.about(session, options)
    other, notes = _other(model, against, facts)
    sides: dict[str, Callable[[], Any]] = {"this": lambda: session.run(None, values)}
    sides |= {name: partial(plain.run, None, values) for name, plain in other.items()}
    gpu = _gpu(session)  # after the first run: with placement=auto that one has chosen
    if gpu is not None:
        from ort_gpu_ep.device.timing import start_timing  # loads wgpu-native

        start_timing(gpu)
    try:
        measured = _measure(sides, runs, gpu, quiet)
    finally:
        if gpu is not None:
            gpu.stop_timing()
    result: dict[str, Any] = {
        "model": str(model),
        "runs": runs,
        "first_ms": first_ms,
        **facts,
        "notes": notes,
        **{k: _summary(v) for k, v in measured.items()},
    }
    for name in other:
        result["against"] = name
        result["speedup"] = result[name]["median_ms"] / result["this"]["median_ms"]
        result["relative_l2"] = _difference(want, sides[name]())
    return result


def _gpu(session: Any) -> Gpu | None:
    """The device that the session's nodes use, None if all of them run on the CPU or in a worker."""
    state = session.state
    return state.gpu if state is not None and state.partitions else None


def _measure(
    sides: dict[str, Callable[[], Any]], runs: int, gpu: Gpu | None, quiet: bool
) -> dict[str, dict[str, list[float]]]:
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
                parts |= {
                    "host": total - upload - download,
                    "upload": upload,
                    "gpu": on_gpu,
                    "readback": max(download - on_gpu, 0.0),
                }
            for part, seconds in parts.items():
                measured[name].setdefault(part, []).append(seconds * 1e3)
    return measured


def _summary(parts: dict[str, list[float]]) -> dict[str, Any]:
    total = parts["total"]
    summary: dict[str, Any] = {
        "times_ms": total,
        "median_ms": float(np.median(total)),
        "p95_ms": float(np.percentile(total, 95)),
    }
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
    table = Table(
        "", *(c.removesuffix("_ms") for c in columns), title=f"{Path(result['model']).name}, {result['runs']} runs, ms"
    )
    for side in SIDES:
        if side in result:
            table.add_row(side, *(f"{result[side][c]:.3f}" if c in result[side] else "" for c in columns))
    shared.out.print(table)
    shared.out.print(f"first run, loading included: {result['first_ms']:.0f} ms")
    if "change" in result:
        shared.out.print(_ratio(result["change"], "before"))
    if "speedup" in result:
        shared.out.print(
            f"{_ratio(result['speedup'], result['against'])}; relative L2 difference {result['relative_l2']:.1e}"
        )
    for line in (*peers.about_lines(result), *result["notes"]):
        shared.out.print(line)
