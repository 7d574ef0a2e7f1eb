"""Draws docs/peers.svg, the README's picture, from docs/peers.json: latency beside other providers, and the error.

usage: python scripts/draw_peers.py
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

DOCS = Path(__file__).resolve().parents[1] / "docs"
SIDES = {"cpu_ms": "ONNX Runtime, CPU", "webgpu_ms": "ONNX Runtime, WebGPU plugin", "auto_ms": "this package"}


def main() -> None:
    matplotlib.rcParams.update({"svg.hashsalt": "peers", "svg.fonttype": "none"})
    data = json.loads((DOCS / "peers.json").read_text("utf-8"))
    rows = data["rows"]
    figure, (times, errors) = pyplot.subplots(1, 2, figsize=(9, 3.6), width_ratios=(3, 1), sharey=True)
    for k, (key, label) in enumerate(SIDES.items()):
        bars = times.barh([i + 0.27 * (k - 1) for i in range(len(rows))], [row[key] for row in rows], 0.25, label=label)
        times.bar_label(bars, fmt="%.2f", fontsize="x-small", padding=2)
    times.set_yticks(range(len(rows)), [row["model"] for row in rows])
    times.invert_yaxis()
    times.set(xscale="log", xlabel=f"ms a run, batch 1, float32, {data['adapter']} (less is better)", xlim=(0.1, 30))
    times.xaxis.set_major_formatter("{x:g}")
    times.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    errors.barh(range(len(rows)), [row["relative_l2"] for row in rows], 0.5, color="tab:green")
    errors.set(xscale="log", xlabel="relative L2 error", xlim=(1e-8, 1e-5))
    figure.tight_layout()
    figure.savefig(DOCS / "peers.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
