"""What inputs of some megabytes take to get to the device: written by the queue, or in place into memory that the
driver has mapped.

    python -m benchmarks.upload [--mb 1,4,20] [--runs 60] [--json FILE]

Whole runs that give the first of each 1024 numbers, so that there is little else to do, by sessions that take turns;
medians, and of them the host's part of the upload. Each goes the way that it is told, whatever the size and the adapter
(runtime/staging.py chooses otherwise).
"""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import numpy as np
import typer
from onnx import parser
from rich.table import Table

from benchmarks import cases, sides
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.device import copying, staging
from ort_gpu_ep.plugin.direct import RUNS_BEFORE

COLUMNS = 1024
MODEL = f"""<ir_version: 9, opset_import: ["" : 18]> column (float[N, {COLUMNS}] x) => (float[N, 1] y)
<int64[1] begin = {{0}}, int64[1] end = {{1}}, int64[1] axis = {{1}}> {{ y = Slice(x, begin, end, axis) }}"""

console = sides.console()


class Side:
    """A session whose runs go one way. upload_ms: the host's part of each run's upload. Mapped where there are threads
    that copy."""

    def __init__(self, x: np.ndarray, threads: int) -> None:
        self._session = InferenceSession(
            parser.parse_model(MODEL).SerializeToString(),
            cases.quiet(),
            provider_options={"placement": "gpu", "strict": 1},
        )
        self.gpu, self._feeds, self.upload_ms = self._session._state.gpu, {"x": x}, list[float]()
        with (
            mock.patch.object(staging, "large_nbytes", lambda gpu, nbytes: nbytes if threads else 0),
            mock.patch.object(copying, "usable_threads", return_value=threads),
        ):  # as memory is made that further runs use
            for _ in range(RUNS_BEFORE + 1):
                (y,) = self._session.run(None, self._feeds)
        np.testing.assert_array_equal(y, x[:, :1])

    def run(self) -> None:
        before = self.gpu.stats.upload_s
        self._session.run(None, self._feeds)
        self.upload_ms.append((self.gpu.stats.upload_s - before) * 1e3)


def measure(mb: float, runs: int) -> dict[str, Any]:
    """One size: ms of whole runs, and of the host's part of their uploads, by side."""
    x = np.random.default_rng(1).standard_normal((max(round(mb * 1e6 / 4 / COLUMNS), 1), COLUMNS)).astype("f")
    most = copying.usable_threads()
    found = {
        "queue": Side(x, 0),
        "mapped": Side(x, 1),
        **({f"mapped, {most} threads": Side(x, most)} if most > 1 else {}),
    }
    times = cases.in_turn({name: side.run for name, side in found.items()}, runs, warm_s=sides.WAKE_S)
    gpu = found["queue"].gpu
    return {
        "mb": x.nbytes / 1e6,
        "adapter": gpu.info.name,
        "chosen": "mapped" if staging.large_nbytes(gpu, x.nbytes) else "queue",
        "sides": {
            name: {"run_ms": float(np.median(times[name])), "upload_ms": float(np.median(side.upload_ms[-runs:]))}
            for name, side in found.items()
        },
    }


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("MB", *(f"{side}, ms (upload)" for side in rows[0]["sides"]), "chosen", title=rows[0]["adapter"])
    for row in rows:
        table.add_row(
            f"{row['mb']:.1f}",
            *(f"{s['run_ms']:.3f} ({s['upload_ms']:.3f})" for s in row["sides"].values()),
            row["chosen"],
        )
    console.print(table)


def main(
    mb: Annotated[str, typer.Option(help="Sizes of the input in megabytes.")] = "1,4,20",
    runs: Annotated[int, typer.Option(min=1, help="Runs of each side that count.")] = 60,
    json: Annotated[Path | None, typer.Option(help="Also write what was found there.")] = None,
) -> None:
    """Measures uploads."""
    rows = [measure(float(size), runs) for size in mb.split(",")]
    show(rows)
    if json is not None:
        json.write_text(json_module.dumps(rows, indent=1))


if __name__ == "__main__":
    typer.run(main)
