"""`placement=auto` against both sides: plain ONNX Runtime on the CPU, and `placement=gpu`. Medians of runs in blocks that take turns.

    python -m benchmarks.placement [NAME ...] [--runs 50] [--seconds 3] [--option NAME=VALUE] [--json FILE] [--markdown]

Names are builders and pretrained models of models/ (default: all of them). The law: auto takes at most 1.05 x the better side + 50 us.
"""

from __future__ import annotations

import json as json_module
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import cases
from ort_gpu_ep import InferenceSession

console = Console()

LAW_FACTOR, LAW_MS = 1.05, 0.05


def measure(name: str, runs: int, seconds: float, options: dict[str, str]) -> dict[str, Any]:
    """Median milliseconds of the three, and what auto chose."""
    model, feeds = cases.load(name)
    plain = onnxruntime.InferenceSession(model, cases.quiet(), providers=["CPUExecutionProvider"])
    gpu = InferenceSession(model, cases.quiet(), provider_options={**options, "placement": "gpu"})
    start = time.perf_counter()
    auto = InferenceSession(model, cases.quiet(), provider_options=options)
    auto.run(None, feeds)
    first_s = time.perf_counter() - start
    sides = {"cpu": plain, "gpu": gpu, "auto": auto}
    begin = time.perf_counter()
    for session in sides.values():
        session.run(None, feeds)
    once_s = time.perf_counter() - begin
    times = cases.in_blocks({s: lambda session=session: session.run(None, feeds) for s, session in sides.items()},
                            max(4, min(runs, int(seconds / once_s))))
    row: dict[str, Any] = {"model": name, **{f"{side}_ms": float(np.median(t)) for side, t in times.items()}, "first_s": first_s}
    decisions = auto.explain().decisions
    row["chosen"] = decisions[-1][1].candidate if decisions else "cpu"
    row["source"] = decisions[-1][1].source if decisions else "software"
    row["predicted_ms"] = {k: v * 1e3 for k, v in decisions[-1][1].predicted_s.items()} if decisions else {}
    row["runs"] = len(times["auto"])
    better = min(row["cpu_ms"], row["gpu_ms"])
    row["over"] = row["auto_ms"] / better
    row["lawful"] = row["auto_ms"] <= LAW_FACTOR * better + LAW_MS
    return row


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    runs: Annotated[int, typer.Option()] = 50,
    seconds: Annotated[float, typer.Option(help="For the counted runs of a model.")] = 3.0,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, an option of this package.")] = None,
    json: Annotated[Path | None, typer.Option()] = None,
    markdown: Annotated[bool, typer.Option(help="Print the table as Markdown.")] = False,
) -> None:
    options = dict(text.split("=", 1) for text in option or ())
    rows = [measure(n, runs, seconds, options)
            for n in track(names or cases.names(), "measuring", console=Console(stderr=True), transient=True)]
    columns = ("model", "CPU", "GPU", "auto", "chosen", "auto / better")
    table = Table(*columns)
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---|" * (len(columns) - 1)]
    for row in rows:
        cells = [row["model"], *(f"{row[f'{s}_ms']:.3f}" for s in ("cpu", "gpu", "auto")), f"{row['chosen']} ({row['source']})",
                 f"{row['over']:.3f}" + ("" if row["lawful"] else " (!)")]
        table.add_row(*cells)
        lines.append(f"| {' | '.join(cells)} |")
    if markdown:
        print("\n".join(lines))
    else:
        console.print(table)
    bad = [row["model"] for row in rows if not row["lawful"]]
    console.print(f"ms; within 5 % + 50 us of the better side: {len(rows) - len(bad)} of {len(rows)}")
    if bad:
        console.print(f"not: {', '.join(bad)}")
    if json is not None:
        json.write_text(json_module.dumps(rows, indent=1))


if __name__ == "__main__":
    typer.run(main)
