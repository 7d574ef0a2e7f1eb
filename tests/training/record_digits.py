"""Accuracy on scikit-learn's digits, 80 % to train on, 20 epochs, on the GPU: `python -m tests.training.record_digits
[side]`.

Prints a line for each network, and writes tests/training/digits.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.training import digits

RECORDED = Path(__file__).with_name("digits.json")


def main(side: str = "gpu") -> None:
    found: dict[str, Any] = {}
    for name in (*digits.NETWORKS, "mlp, admm"):
        optimizer = digits.pruning() if "admm" in name else None
        accuracy, t = digits.trained(name.split(",")[0], {"placement": side}, optimizer=optimizer)
        found[name] = {"accuracy": round(accuracy, 5), "placement": t.stats()["placement"]} | (
            {"zeros": round(digits.zeros(t), 5)} if optimizer is not None else {}
        )
        print(name, found[name], flush=True)
    RECORDED.write_text(
        json.dumps({"epochs": digits.EPOCHS, "batch": digits.BATCH, "seed": digits.SEED, "networks": found}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
