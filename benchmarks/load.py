"""Latency of CPU, GPU and auto while another process keeps the GPU busy: LSTMs of 1 to 3 layers of 32 to 256, and
ResNet-50.

    python -m benchmarks.load --out DIR [--json] [--only PATTERN] [--runs 50] [--level low ...] [-o NAME=VALUE ...]

Writes a picture for each model (latency against GPU load) into DIR, and with --json all rows into DIR/load.json.
"""

from __future__ import annotations

import json as json_module
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import models
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep.cli import under_load
from ort_gpu_ep.cli.bench import load_table
from ort_gpu_ep.cli.plot import plot_load, pyplot
from ort_gpu_ep.cli.shared import OptionOption, pairs, reports_errors

CASES = {
    **{
        f"lstm_{layers}x{hidden}": ("har_lstm", {"hidden": hidden, "layers": layers})
        for layers in (1, 2, 3)
        for hidden in (32, 64, 128, 256)
    },
    "resnet50": ("resnet50", {}),
}
"""name -> builder and parameters. The family is that of MobiRNN (models/sequence.py), whose authors saw the GPU lose
under load."""

console, progress = Console(), Console(stderr=True)


@reports_errors
def main(
    out: Annotated[Path, typer.Option("--out", help="A folder for pictures and data; made if needed.")],
    json: Annotated[bool, typer.Option("--json", help="Write DIR/load.json.")] = False,
    only: Annotated[str, typer.Option("--only", help="Regular expression that a model's name matches.")] = "",
    runs: Annotated[
        int, typer.Option("--runs", min=1, help="Counted runs of each candidate under each load, at least.")
    ] = 50,
    level: Annotated[
        list[under_load.Level] | None, typer.Option("--level", help="Loads besides idle; default: all.")
    ] = None,
    option: OptionOption = None,
) -> None:
    pyplot()
    out.mkdir(parents=True, exist_ok=True)
    options, wanted = pairs(option, "--option"), level or [under_load.Level.ALL]
    info, sampler = under_load.sampler_of(options)
    levels = [name for name in under_load.LEVELS if name == under_load.IDLE or name in wanted or "all" in wanted]
    results = []
    for name, (builder, parameters) in CASES.items():
        if not re.search(only, name):
            continue
        model = models.build(builder, **parameters)
        sides = under_load.sessions(model.SerializeToString(), options)
        feeds = make_inputs(model_inputs(model))
        rows = under_load.measure(
            sides, feeds, info, sampler, levels, runs, tell=lambda at, name=name: progress.print(f"{name}: {at}")
        )
        console.print(load_table(name, rows))
        plot_load(out / f"{name}.png", f"{name} on {info.name}", rows)
        results.append({"model": name, "rows": [row.as_dict() for row in rows]})
        if json:  # after each model: a long run that is stopped has something to show
            (out / "load.json").write_text(
                json_module.dumps({"adapter": info.as_dict(), "notes": sampler.notes, "results": results}, indent=1)
            )


if __name__ == "__main__":
    typer.run(main)
