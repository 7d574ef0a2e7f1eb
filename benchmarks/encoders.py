"""An encoder as its exporter wrote it beside what onnxruntime.transformers.optimizer makes of it, in float32 and
float16.

    python -m benchmarks.encoders [--lengths 16,128] [--batch 1] [--runs 40] [--json FILE]

The network is that of tests/encoder.py (two layers, 64 elements). The law: an optimised network takes no longer than
the plain one, and float16 no longer than float32. Medians of runs in turn, placement=gpu; dispatches beside them, which
do not depend on the clock.
"""

from __future__ import annotations

import json as json_module
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from onnxruntime.transformers.float16 import convert_float_to_float16
from rich.table import Table

from benchmarks import cases, sides
from ort_gpu_ep import InferenceSession
from tests.encoder import Encoder, feeds, optimised

console = sides.console()


def networks(folder: Path) -> dict[str, onnx.ModelProto]:
    """The plain network and what the optimiser makes of it, each in both types."""
    path = str(folder / "encoder.onnx")
    made = {"plain, float32": Encoder().model(), "plain, float16": convert_float_to_float16(Encoder().model())}
    for attention in ("Attention", "MultiHeadAttention"):
        for dtype in ("float32", "float16"):
            made[f"{attention}, {dtype}"] = optimised(
                Encoder().model(), path, dtype == "float16", attention == "MultiHeadAttention"
            )
    return made


def measure(sessions: dict[str, Any], batch: int, length: int, runs: int) -> list[dict[str, Any]]:
    """A row for each network."""
    given = feeds(batch, length)
    times = cases.in_turn(
        {name: lambda s=session: s.run(None, given) for name, session in sessions.items()}, runs, warm_s=1.0
    )
    plain = float(np.median(times["plain, float32"]))
    return [
        {
            "network": name,
            "batch": batch,
            "length": length,
            "ms": float(np.median(t)),
            "of_plain": float(np.median(t)) / plain,
            "dispatches": max(m.dispatches for m in sessions[name].explain().memory),
        }
        for name, t in times.items()
    ]


def main(
    lengths: Annotated[str, typer.Option(help="tokens of a row")] = "16,128",
    batch: int = 1,
    runs: int = 40,
    json: Annotated[Path | None, typer.Option(help="a file for all numbers")] = None,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = networks(Path(folder))
    options = {"placement": "gpu", "strict": "1"}
    sessions = {
        name: InferenceSession(m.SerializeToString(), cases.quiet(), provider_options=options)
        for name, m in made.items()
    }
    rows = [row for length in lengths.split(",") for row in measure(sessions, batch, int(length), runs)]
    table = Table("network", "batch", "length", "ms", "of plain float32", "dispatches")
    for row in rows:
        size = (str(row["batch"]), str(row["length"]))
        table.add_row(row["network"], *size, f"{row['ms']:.3f}", f"{row['of_plain']:.2f}", str(row["dispatches"]))
    console.print(table)
    if json is not None:
        json.write_text(json_module.dumps(rows, indent=1))


if __name__ == "__main__":
    typer.run(main)
