"""Networks with the axes that optimum and torchvision leave open, on the GPU: partitions, nodes on the CPU, pipelines
for each new size.

    python scripts/open_axes.py [--families vit,ssd] [--folder DIR] [--json FILE] [--decisions]

The networks are those of exported_networks.py's OPEN, written by TorchScript as optimum and torchvision's documentation
do it. A row for each: partitions of each graph (the model's and those of If and Loop), nodes that are left to the CPU
with the reason, the largest difference from onnxruntime's CPU as a part of an output's largest number, pipelines that
were compiled for each new size of the inputs, and runs that the CPU answered. --decisions: only what is decided before
any run. Law: right, no run answered by the CPU, and nothing compiled behind the second size. Exit code 1 where it is
broken. Files in DIR are used again. PyTorch, transformers and torchvision are needed to write them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ort_gpu_ep import InferenceSession  # noqa: E402
from ort_gpu_ep.comparison.values import difference  # noqa: E402
from scripts.exporters import SIZES, TOLERANCE, attempt, on_cpu, quiet, random_feeds  # noqa: E402

EXPORTER = "torchscript17"


@dataclass
class Row:
    """One network. partitions: of each graph, bodies first. compiled: pipelines, by size of the inputs, in order."""

    family: str
    partitions: tuple[int, ...] = ()
    gpu: int = 0
    cpu: tuple[str, ...] = ()
    difference: float = 0.0
    compiled: tuple[int, ...] = ()
    fallbacks: int = 0
    error: str = ""

    @property
    def good(self) -> bool:
        return (
            not self.error and not self.fallbacks and self.difference <= TOLERANCE["f32"] and not any(self.compiled[2:])
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--families", default="", help="names, with commas between; all of them by default")
    parser.add_argument("--folder", type=Path, help="where the models are kept; a temporary one by default")
    parser.add_argument("--json", type=Path, help="a file for all numbers")
    parser.add_argument("--decisions", action="store_true", help="nothing is run")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = list(measured(asked.families.split(",") if asked.families else families(), folder, not asked.decisions))
    if asked.json:
        asked.json.write_text(json.dumps([{**asdict(row), "good": row.good} for row in rows], indent=1))
    sys.exit(not all(row.good for row in rows))


def families() -> list[str]:
    from scripts.exported_networks import OPEN

    return list(OPEN)


def measured(names: list[str], folder: Path, runs: bool) -> Iterator[Row]:
    """Prints each row as it is measured."""
    for family in names:
        row = Row(family)
        log = folder / f"{family}.txt"
        row.error, path = attempt(lambda family=family: made(family, folder), log)  # type: ignore[misc]
        if path:
            row.error, _ = attempt(lambda row=row, path=path: measure(row, path, runs), log)  # type: ignore[misc]
        show(row)
        yield row


def made(family: str, folder: Path) -> Path:
    path = folder / f"{family}.{EXPORTER}.onnx"
    if not path.exists():
        from scripts.exported_networks import OPEN, export

        network = export(family, EXPORTER, path, OPEN)
        path.with_suffix(".json").write_text(json.dumps({"axes": network.axes, "sizes": network.sizes}))
    return path


def measure(row: Row, path: Path, runs: bool) -> None:
    told = json.loads(path.with_suffix(".json").read_text())
    session = InferenceSession(str(path), quiet(), provider_options={"placement": "gpu"})
    for sizes in told["sizes"] or ({},) if runs else ():
        feeds = random_feeds(path, told["axes"], {**SIZES, **sizes})
        before = compiled(session)
        got = session.run(None, feeds)
        row.compiled = (*row.compiled, compiled(session) - before)
        for output, ours, theirs in zip(session.get_outputs(), got, on_cpu(path, feeds), strict=True):
            if ours.shape != theirs.shape:
                raise ValueError(f"output {output.name!r} with {sizes}: got {ours.shape}, expected {theirs.shape}")
            if theirs.size and not theirs.any():
                raise ValueError(f"output {output.name!r} with {sizes} is all zeros, which says nothing")
            found = difference(output.name, ours, theirs)
            row.difference = max(row.difference, np.inf if found.misplaced else found.relative)
    decided = session.explain()
    row.partitions = tuple(len(report.partitions) for report in decided.reports)
    row.gpu = decided.count("gpu")
    row.cpu = tuple(
        f"{n.op}: {n.code} {n.reason}" for report in decided.reports for n in report.nodes if n.device == "cpu"
    )
    row.fallbacks = session.stats()["fallbacks"]


def compiled(session: Any) -> int:
    """Pipelines that the session's device has compiled."""
    state = session.state
    device = state.backend.device if state is not None and state.backend is not None else None
    return device.compiled if device is not None else 0


def show(row: Row) -> None:
    print(f"{'  ' if row.good else '* '}{row.family:16}", end="")
    if row.error:
        print(f" {row.error}", flush=True)
        return
    fallbacks = f", {row.fallbacks} fallbacks" if row.fallbacks else ""
    ran = f", difference {row.difference:.1e}, compiled {' '.join(map(str, row.compiled))}" if row.compiled else ""
    print(
        f" partitions {' '.join(map(str, row.partitions))}, {row.gpu:3} nodes on the GPU, {len(row.cpu)} on the CPU",
        end="",
    )
    print(f"{ran}{fallbacks}", flush=True)
    for why, count in Counter(row.cpu).items():
        print(f"      {count} x {why}", flush=True)


if __name__ == "__main__":
    main()
