"""`placement=auto` against both sides: plain ONNX Runtime on the CPU, and `placement=gpu`. Medians of runs in blocks
that take turns.

    python -m benchmarks.placement [NAME ...] [--runs 50] [--seconds 1] [--limit 140] [--option NAME=VALUE] [--json
      FILE] [--markdown]
    python -m benchmarks.placement squeezenet1_1 resnet50 encoder --rest-ms 200

Names are builders and pretrained models of models/ (default: all of them; with --rest-ms those three). With --rest-ms a
run comes after each pause, and of each side the first ten don't count. The law: auto takes at most 1.05 x the better
side + 50 us.
"""

from __future__ import annotations

import json as json_module
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import cases, sides
from benchmarks.sides import SIDES, Row

console, progress = sides.console(), Console(stderr=True)

RESTED = ("squeezenet1_1", "resnet50", "encoder")
UNCOUNTED = 10


def measure(name: str, runs: int, seconds: float, rest_ms: float, options: dict[str, str]) -> Row:
    """What the three take, and what auto chose."""
    model, feeds = cases.load(name)
    sessions = sides.open_sides(model, options)
    first = {side: sides.timed_ms(session, feeds) for side, session in sessions.items()}
    if rest_ms:
        times = {
            side: sides.paused_ms(session, feeds, runs, rest_ms * 1e-3, UNCOUNTED) for side, session in sessions.items()
        }
    else:
        once_s = sum(sides.timed_ms(session, feeds) for session in sessions.values()) * 1e-3
        times = {
            side: list(t)
            for side, t in cases.in_blocks(
                {s: lambda session=session: session.run(None, feeds) for s, session in sessions.items()},
                max(4, min(runs, int(3 * seconds / once_s))),
            ).items()
        }
    chosen, source = sides.chosen_by(sessions["auto"], feeds)
    return Row(name, {side: float(np.median(t)) for side, t in times.items()}, first, chosen, source)


def show(rows: list[Row], markdown: bool, title: str) -> None:
    columns = ("model", "CPU", "GPU", "auto", "chosen", "auto / better", "first run")
    lines = [
        (
            row.name,
            *(f"{row.median_ms[side]:.3f}" for side in SIDES),
            f"{row.chosen} ({row.source})",
            f"{row.over:.3f}" + ("" if row.lawful else " (!)"),
            f"{row.first_ms['auto']:.0f}",
        )
        for row in rows
    ]
    if markdown:
        print("\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ("---",) * len(columns), *lines)))
    else:
        table = Table(*columns, title=title)
        for cells in lines:
            table.add_row(*cells)
        console.print(table)
    console.print(sides.summary(rows))


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    runs: Annotated[int | None, typer.Option(help="Counted runs of each side; 50, with --rest-ms 15.")] = None,
    seconds: Annotated[float, typer.Option(help="For the counted runs of a side.")] = 1.0,
    rest_ms: Annotated[float, typer.Option(help="Pause before each run; 0: none.")] = 0.0,
    limit: Annotated[float, typer.Option(help="Seconds after which no other model is begun; 0: no limit.")] = 140.0,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, an option of this package.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the rows there.")] = None,
    markdown: Annotated[bool, typer.Option(help="Print the table as Markdown.")] = False,
) -> None:
    options, begin, rows = dict(text.split("=", 1) for text in option or ()), time.monotonic(), list[Row]()
    wanted, failed = names or (list(RESTED) if rest_ms else cases.names()), dict[str, str]()
    longest_s = 0.0
    for i, name in enumerate(wanted):
        spent_s = time.monotonic() - begin
        if limit and rows and spent_s + longest_s > limit:
            progress.print(f"{limit:g} s are over; not measured: {', '.join(wanted[i:])}")
            break
        progress.print(f"{spent_s:.0f} s: {name}")
        try:
            rows.append(measure(name, runs or (15 if rest_ms else 50), seconds, rest_ms, options))
        except Exception as error:  # a model that can't be fetched or run leaves the others
            failed[name] = f"{type(error).__name__}: {str(error)[:200]}"
            progress.print(f"{name}: {failed[name]}")
        longest_s = max(longest_s, time.monotonic() - begin - spent_s)
    show(rows, markdown, f"a run every {rest_ms:g} ms" if rest_ms else "back to back")
    if json is not None:
        found: dict[str, Any] = {
            "rest_ms": rest_ms,
            "options": options,
            "failed": failed,
            "rows": [row.as_dict() for row in rows],
        }
        json.write_text(json_module.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
