"""ort-gpu-ep profile: where the time of a run goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ort_gpu_ep.cli import shared
from ort_gpu_ep.cli.explain import write_pages
from ort_gpu_ep.cli.inputs import feeds as inputs_of
from ort_gpu_ep.cli.plot import plot_profile, pyplot
from ort_gpu_ep.profiling.trace import write_trace


@shared.reports_errors
def profile(
    model: shared.ModelArgument,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Measured runs.")] = 21,
    top: Annotated[int, typer.Option("--top", min=0, help="Number of dispatches to list, the longest first.")] = 20,
    trace: Annotated[
        Path | None, shared.file_to_write("--trace", "Write a trace of one run for ui.perfetto.dev.", (".json",))
    ] = None,
    plot: Annotated[
        Path | None, shared.file_to_write("--plot", "Draw a roofline plot of the dispatches.", shared.PICTURES)
    ] = None,
    html: Annotated[
        Path | None, shared.file_to_write("--html", "Write the page of `explain --html`, timed.", (".html", ".htm"))
    ] = None,
    node_data: Annotated[
        Path | None,
        shared.file_to_write(
            "--node-data", "Write what each kernel takes, to open in model-explorer beside the model.", (".json",)
        ),
    ] = None,
    inputs: shared.InputOption = None,
    dims: shared.SizeOption = None,
    shapes: shared.ShapeOption = None,
    option: shared.OptionOption = None,
    seed: shared.SeedOption = 0,
    json: shared.JsonOption = False,
) -> None:
    """Time each dispatch of MODEL on the GPU, compare it with the limits of the adapter, and show what the host
    does."""
    if plot is not None:
        pyplot()  # before anything is measured
    session = shared.open_session(model, {"placement": "gpu", **shared.pairs(option, "--option")})
    shared.check_gpu(session)
    values = inputs_of(session.get_inputs(), model, inputs, dims, shapes, seed)
    with shared.progress("profiling", quiet=json) as tell:
        report = session.profile(values, runs, tell)
    if trace is not None:
        write_trace(report, trace)
    if plot is not None:
        plot_profile(plot, report)
    if html is not None or node_data is not None:
        write_pages(model.stem, replace(session.explain(), profile=report), html, node_data)
    if json:
        shared.print_json(report.as_dict())
        return
    for line in report.lines(top):
        shared.out.print(line, soft_wrap=True)
    for path in (trace, plot, html, node_data):
        if path is not None:
            shared.out.print(f"written: {path}", soft_wrap=True)
