"""What ever new input shapes take: by side and size, and the memory and time of many.

    python -m benchmarks.shapes [--model minilm_int8] [--sizes 16,128,64] [--runs 30] [--rest-ms 0] [--limit 140]
      [--json FILE]
    python -m benchmarks.shapes --memory [--model minilm_int8] [--lengths 64] [--kept N] [--json FILE]

The first form runs each length with plain ONNX Runtime on the CPU, with placement=gpu and with placement=auto: the
first runs one by one, then the median of steady ones ("again"). The laws: from the third run on auto takes at most 1.05
x the better side + 50 us; from the second length on the first run with a new one takes at most 10 ms more than again,
and none compiles a pipeline. With --rest-ms a run comes after each pause, and of each side the first ten don't count.

With --memory each length comes once, then each again, on the GPU: what was compiled, and the memory of this process.
--kept: pipelines that are kept without use (device/gpu.py).
"""

from __future__ import annotations

import ctypes
import gc
import json as json_module
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import cases, sides
from benchmarks.sides import SIDES, Row
from ort_gpu_ep import InferenceSession

console, progress = sides.console(), Console(stderr=True)

FIRST_LENGTH = 8
SIZES = {"ppocr4_rec": (320, 160, 240, 480, 640, 96, 128, 800, 400, 1000, 560, 200, 720)}
"""Widths of text lines, in pixels; 13 of them, as all that follows."""

LENGTHS = (64, 16, 128, 24, 96, 8, 48, 32, 256, 80, 40, 112, 20)
"""Lengths of sentences, in tokens."""

UNCOUNTED = 10

NEW_MS = 10.0
"""What the first run with a new length may take beyond a later one."""


def fed(feeds: dict[str, Any], length: int) -> dict[str, Any]:
    """The same inputs with another last axis, repeated or cut."""
    return {name: np.resize(array, (*array.shape[:-1], length)) for name, array in feeds.items()}


def measure(
    sessions: dict[str, Any], feeds: dict[str, Any], length: int, runs: int, seconds: float, rest_s: float
) -> Row:
    """What each side takes for a length: its first runs, then steady ones."""
    given, first, times = fed(feeds, length), dict[str, float](), dict[str, list[float]]()
    for side in SIDES:  # the GPU is awake when auto's turn comes
        session = sessions[side]
        first[side] = sides.timed_ms(session, given)
        if side == "auto":
            first |= {f"auto_{i}": sides.timed_ms(session, given) for i in (2, 3)}
        if rest_s:
            times[side] = sides.paused_ms(session, given, runs, rest_s, UNCOUNTED)
        else:
            times[side] = sides.steady_ms(session, given, -(-runs // 2), seconds / 2, sides.wake_s(side))
    for side in reversed(SIDES) if not rest_s else ():  # so that a drift of the machine hits all of them
        times[side] += sides.steady_ms(sessions[side], given, runs // 2, seconds / 2, sides.wake_s(side))
    chosen, source = sides.chosen_by(sessions["auto"], given)
    return Row(str(length), {side: float(np.median(t)) for side, t in times.items()}, first, chosen, source)


def new_lengths(rows: list[Row], compiled: list[int]) -> str:
    """What the first run with a new length takes beyond later ones, from the second length on. compiled: pipelines so
    far, by row."""
    lines = []
    for side in ("gpu", "auto"):
        more = [row.first_ms[side] - row.median_ms[side] for row in rows[1:]] or [0.0]
        lines.append(
            f"{side}: a new length takes {np.median(more):.1f} ms more than again, at most {max(more):.1f}"
            f"{' (!)' if max(more) > NEW_MS else ''}"
        )
    later = compiled[-1] - compiled[1] if len(compiled) > 1 else 0
    return "\n".join([*lines, f"pipelines compiled after the second length: {later}{' (!)' if later else ''}"])


def by_side(
    model: str, wanted: tuple[int, ...], runs: int, rest_ms: float, limit: float, options: dict[str, str]
) -> dict[str, Any]:
    """A table of sizes, as it grows on stderr and as data."""
    path, feeds = cases.load(model)
    begin, rows, longest_s = time.monotonic(), list[Row](), 0.0
    sessions, compiled = sides.open_sides(path, options), list[int]()
    for i, length in enumerate(wanted):
        spent_s = time.monotonic() - begin
        if limit and rows and spent_s + longest_s > limit:
            progress.print(f"{limit:g} s are over; not measured: {wanted[i:]}")
            break
        progress.print(f"{spent_s:.0f} s: {length}")
        rows.append(measure(sessions, feeds, length, runs, 0.5, rest_ms * 1e-3))
        compiled.append(sessions["gpu"]._state.gpu.compiled)
        longest_s = max(longest_s, time.monotonic() - begin - spent_s)
    table = Table(
        "length",
        "CPU",
        "GPU",
        "auto",
        "chosen",
        "auto / better",
        "first GPU",
        "auto",
        "2nd",
        "3rd",
        title=f"{model}, {f'a run every {rest_ms:g} ms' if rest_ms else 'back to back'}",
    )
    for row in rows:
        table.add_row(
            row.name,
            *(f"{row.median_ms[side]:.3f}" for side in SIDES),
            f"{row.chosen} ({row.source})",
            f"{row.over:.3f}" + ("" if row.lawful else " (!)"),
            f"{row.first_ms['gpu']:.1f}",
            *(f"{row.first_ms[n]:.1f}" for n in ("auto", "auto_2", "auto_3")),
        )
    console.print(table)
    console.print(sides.summary(rows))
    console.print(new_lengths(rows, compiled))
    return {
        "model": model,
        "rest_ms": rest_ms,
        "options": options,
        "rows": [row.as_dict() for row in rows],
        "compiled": compiled,
    }


def resident_mib() -> int:
    gc.collect()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).malloc_trim(0)  # what the C library keeps for later is nobody's
    return int(psutil.Process().memory_info().rss >> 20)


def memory(model: str, lengths: int, kept: int | None) -> dict[str, Any]:
    """Memory of this process and time over many lengths, with placement=gpu."""
    path, feeds = cases.load(model)
    session = InferenceSession(path, cases.quiet(), provider_options={"placement": "gpu"})
    session.run(None, fed(feeds, FIRST_LENGTH - 1))
    gpu = session._state.gpu  # type: ignore[union-attr]
    assert gpu is not None
    if kept is not None:
        gpu.pipelines.kept = kept
    passes: list[dict[str, Any]] = []
    for what in ("new", "again"):
        before, made = resident_mib(), gpu.compiled
        times = [
            sides.timed_ms(session, fed(feeds, FIRST_LENGTH + i)) for i in track(range(lengths), what, console=progress)
        ]
        passes.append(
            {
                "lengths": what,
                "pipelines_compiled": gpu.compiled - made,
                "first_run_ms": float(np.median(times)),
                "before_mib": before,
                "after_mib": resident_mib(),
            }
        )
    table = Table(title=f"{model}, {lengths} lengths, {gpu.pipelines.kept} pipelines kept, {gpu.info.name}")
    for name in passes[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in passes:
        table.add_row(*(f"{v:.1f}" if isinstance(v, float) else str(v) for v in row.values()))
    console.print(table)
    return {"model": model, "adapter": gpu.info.name, "lengths": lengths, "kept": gpu.pipelines.kept, "passes": passes}


def main(
    model: Annotated[str, typer.Option(help="One whose inputs have their length as last axis.")] = "minilm_int8",
    sizes: Annotated[str, typer.Option(help="Lengths, with commas between; default: 13 that fit the model.")] = "",
    runs: Annotated[
        int | None, typer.Option(help="Counted runs of each side and length; 30, with --rest-ms 10.")
    ] = None,
    rest_ms: Annotated[float, typer.Option(help="Pause before each run; 0: none.")] = 0.0,
    limit: Annotated[float, typer.Option(help="Seconds after which no other length is begun; 0: no limit.")] = 140.0,
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, an option of this package.")] = None,
    memory_: Annotated[
        bool, typer.Option("--memory", help="Memory and time of many lengths, with placement=gpu.")
    ] = False,
    lengths: Annotated[int, typer.Option(help="How many, with --memory.")] = 64,
    kept: Annotated[int | None, typer.Option(help="Pipelines that are kept without use, with --memory.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write what was found there.")] = None,
) -> None:
    """Measures a model over lengths."""
    if memory_:
        found = memory(model, lengths, kept)
    else:
        wanted = tuple(map(int, sizes.split(","))) if sizes else SIZES.get(model, LENGTHS)
        options = dict(text.split("=", 1) for text in option or ())
        found = by_side(model, wanted, runs or (10 if rest_ms else 30), rest_ms, limit, options)
    if json is not None:
        json.write_text(json_module.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
