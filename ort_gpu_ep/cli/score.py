"""ort-gpu-ep score: a model over a data set, on every adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ort_gpu_ep.cli import shared
from ort_gpu_ep.scoring import Report
from ort_gpu_ep.scoring import score as score_rows
from ort_gpu_ep.scoring.report import Progress


@shared.reports_errors
def score(
    model: shared.ModelArgument,
    data: Annotated[
        list[str],
        typer.Argument(help="Parquet, Arrow, CSV, .npy or .npz files, patterns, or folders.", show_default=False),
    ],
    out: Annotated[
        Path,
        shared.folder_to_write("--out", "A folder for the parts, or FILE.parquet.", (".parquet",), show_default=False),
    ],
    adapters: Annotated[
        str, typer.Option("--adapters", help="all, or 0,1 (0,0: two workers), all,cpu, auto (CPU if it helps).")
    ] = "all",
    batch: Annotated[str, typer.Option("--batch", help="Rows in a run, or auto.")] = "auto",
    columns: Annotated[
        list[str] | None, typer.Option("--columns", help="INPUT=COLUMN, INPUT=C1,C2 or INPUT=PATTERN*; repeat.")
    ] = None,
    key: Annotated[list[str] | None, typer.Option("--key", help="A column to keep in the output; repeat.")] = None,
    outputs: Annotated[
        list[str] | None, typer.Option("--output", help="An output of the model (default all); repeat.")
    ] = None,
    preprocess: Annotated[
        Path | None, typer.Option("--preprocess", help="JSON file: how images become inputs.")
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first row that can't be scored.")] = False,
    shard_rows: Annotated[
        int, typer.Option("--shard-rows", min=0, help="Rows in a shard of the output (0: by their size).")
    ] = 0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds for a batch; then its worker is replaced.")
    ] = 300.0,
    ray: Annotated[str | None, typer.Option("--ray", help="Use a Ray cluster: HOST:PORT, auto or local.")] = None,
    option: shared.OptionOption = None,
    json: shared.JsonOption = False,
) -> None:
    """Run MODEL over all rows of DATA on every adapter; write the outputs in order. The same command continues a killed
    run."""
    with _shown(quiet=json) as show:
        report = score_rows(
            model,
            data,
            out,
            adapters=adapters,
            batch=batch,
            columns=shared.pairs(columns, "--columns"),
            key=key,
            outputs=outputs,
            preprocess=preprocess,
            fail_fast=fail_fast,
            options=shared.pairs(option, "--option"),
            shard_rows=shard_rows,
            timeout_s=timeout,
            ray=ray,
            progress=show,
        )
    if json:
        shared.print_json(report.as_dict())
    else:
        _print(report)


@contextmanager
def _shown(quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Rows, rate, time left and what each adapter does, on a terminal's error stream."""
    if quiet or not shared.err.is_terminal:
        yield None
        return
    with Live(
        Text("reading the data, making sessions, measuring the batch"), console=shared.err, transient=True
    ) as live:
        yield lambda at: live.update(_picture(at))


def _picture(at: Progress) -> Group:
    left = "" if at.eta_s is None else f", {at.eta_s:,.0f} s left"
    adapters = Table.grid(padding=(0, 2))
    for entry in at.adapters:
        ends = f"replaced {len(entry['replaced'])} times" if entry["replaced"] else ""
        adapters.add_row(entry["name"], f"{entry['rows_per_s']:,.0f} rows/s", f"{entry['busy']:.0%} busy", ends)
    rows = Text(f"{at.done:,} of {at.rows:,} rows, {at.rows_per_s:,.0f} rows/s{left}")
    return Group(ProgressBar(at.rows, at.done, width=40), rows, adapters)


def _print(report: Report) -> None:
    done = report.scored + report.refused
    rate = f"{report.rows_per_s:,.0f} rows/s, after {report.start_s:,.1f} s of preparation"
    shared.out.print(f"{done:,} rows in {report.seconds:,.1f} s: {rate}")
    if report.batch:
        shared.out.print(f"batch: {report.batch}")
    table = Table("adapter", "batch", "rows", "rows/s", "busy", "workers replaced")
    for entry in report.adapters:
        table.add_row(
            entry["name"],
            str(entry["batch"]),
            f"{entry['rows']:,}",
            f"{entry['rows_per_s']:,.0f}",
            f"{entry['busy']:.0%}",
            str(len(entry["replaced"])),
        )
    if report.adapters:
        shared.out.print(table)
    lines = [f"{entry['name']}: {why}" for entry in report.adapters for why in entry["replaced"]]
    if report.refused:
        lines += [f"{report.refused:,} rows have an error instead of outputs; the first: {report.first_error}"]
    for line in [*lines, *report.notes, f"written to {report.output}"]:
        shared.out.print(line)
