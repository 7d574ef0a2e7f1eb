"""The process of benchmarks/compilers.py that one driver is loaded in. It tells the adapter in a line of JSON; then,
for each line that it reads, {"file": a text's file, "trusted": without checks}, what became of it. The layer writes to
$STATISTICS_LAYER_FILE.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.layer import make_pipeline
from ort_gpu_ep.device import adapter
from ort_gpu_ep.kernels.target import Limits
from ort_gpu_ep.webgpu.library import GPUError

LIMITS = tuple(
    f.name for f in fields(Limits) if f.name.startswith(("max_", "offset_")) or f.name in ("features", "subgroup_size")
)
"""That an adapter tells."""


def main() -> None:
    statistics = Path(os.environ["STATISTICS_LAYER_FILE"])
    info, raw = adapter.choose("")
    limits = adapter.limits_of(raw)
    told: dict[str, Any] = {name: getattr(limits, name) for name in LIMITS} | {"features": sorted(limits.features)}
    say({"adapter": info.name, "kind": info.type, "driver": info.driver, "compiler": info.compiler, "limits": told})
    device = adapter.request_device(info, raw)
    for line in sys.stdin:
        work, start = json.loads(line), time.perf_counter()
        statistics.write_text("")
        row: dict[str, Any] = {}
        try:
            make_pipeline(device, Path(work["file"]).read_text("utf-8"), work["trusted"])
        except GPUError as error:
            row["error"] = str(error).strip()[:600]
        row["seconds"] = round(time.perf_counter() - start, 3)
        row["pipelines"] = [json.loads(each) for each in statistics.read_text().splitlines()]
        say(row)


def say(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
