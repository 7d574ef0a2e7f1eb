"""Losses of 100 steps of torch on its CPU, in float64 and float32: what tests/training/test_trajectories.py compares
ours with.

    python -m tests.training.record_torch [--ours] [CASE ...]

Needs torch (2.13 made the record). Writes tests/training/torch_losses.json. --ours: trains the same with this package,
all 100 steps on the GPU and on ONNX Runtime's CPU, and adds how far they are from torch's in float64.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from benchmarks.torch_peer import TorchStep
from ort_gpu_ep.training import SGD
from tests.training import trajectories as tr


def losses(torch: Any, network: str, optimizer: str, dtype: Any) -> list[float]:
    """Of 100 steps of torch."""
    net, ours = tr.NETWORKS[network], tr.OPTIMIZERS[optimizer]
    model, rate = net.build(), float(ours.rate)  # type: ignore[attr-defined]
    kind = torch.optim.SGD if isinstance(ours, SGD) else torch.optim.Adam
    step = TorchStep(torch, model, lambda parameters: kind(parameters, lr=rate), dtype=dtype, trainable=net.trainable)
    return [float(step.step(*step.batch(x, y))) for x, y in tr.batches(model, net.classes)]


def main(arguments: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    record = json.loads(tr.RECORDED.read_text()) if tr.RECORDED.exists() else {"cases": {}}
    record["torch"] = torch.__version__
    wanted = [a for a in arguments if not a.startswith("--")]
    for case in wanted or [f"{n}, {o}" for n in tr.NETWORKS for o in tr.OPTIMIZERS]:
        network, optimizer = case.split(", ")
        found = record["cases"].setdefault(case, {})
        if found.get("digest") != tr.digest(network) or "--again" in arguments:
            found.update(
                {"digest": tr.digest(network)}
                | {
                    kind: [float(f"{v:.10g}") for v in losses(torch, network, optimizer, getattr(torch, kind))]
                    for kind in ("float64", "float32")
                }
            )
            tr.RECORDED.write_text(json.dumps(record, indent=1) + "\n")
        if "--ours" in arguments:
            found["distance"] = {
                "torch float32": float(np.abs(np.subtract(found["float64"], found["float32"])).max())
            } | {
                side: float(np.abs(tr.losses(network, optimizer, {"placement": side}) - found["float64"]).max())
                for side in ("gpu", "cpu")
            }
            tr.RECORDED.write_text(json.dumps(record, indent=1) + "\n")
        print(case, found.get("distance", "recorded"), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
