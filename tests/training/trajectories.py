"""Networks, batches and optimizers whose losses over 100 steps are compared with torch's in float64
(torch_losses.json)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import models
from ort_gpu_ep.training import SGD, Adam, Optimizer, Trainer

RECORDED = Path(__file__).with_name("torch_losses.json")
"""What record_torch.py wrote: for each case losses of torch in float64 and float32, and the digest of what they were
made with."""

BATCH, STEPS = 32, 100
FLOOR, FACTOR, CPU_EXTRA = 1e-5, 3.0, 1e-4


@dataclass(frozen=True)
class Network:
    """A model for batches of BATCH. trainable: patterns of what is trained, None for all."""

    model: str
    sizes: dict[str, Any] = field(default_factory=dict)
    classes: int = 10
    trainable: tuple[str, ...] | None = None

    def build(self) -> onnx.ModelProto:
        return models.build(self.model, batch=BATCH, **self.sizes)


NETWORKS = {
    "mlp": Network("mlp_784", classes=16),
    "lenet5": Network("lenet5"),
    "lstm": Network("har_lstm", classes=6),
    "mobilenet_v2 head": Network("mobilenet_v2", {"size": 32, "classes": 10}, trainable=("Gemm.*",)),
}
OPTIMIZERS: dict[str, Optimizer] = {"sgd": SGD(0.05), "adam": Adam(1e-3)}


def batches(model: onnx.ModelProto, classes: int, steps: int = STEPS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Noise, of which a random projection that stays the same tells the class."""
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(23)
    teacher = rng.normal(size=(int(np.prod(shape[1:])), classes))
    for _ in range(steps):
        x = rng.normal(size=shape).astype("f")
        yield x, (x.reshape(shape[0], -1) @ teacher).argmax(1)


def losses(network: str, optimizer: str, options: dict[str, Any], steps: int = STEPS) -> np.ndarray:
    """Of a Trainer, read ten at a time."""
    net = NETWORKS[network]
    model = net.build()
    trainer = Trainer(
        model, loss="cross_entropy", optimizer=OPTIMIZERS[optimizer], trainable=net.trainable, options=options
    )
    held, found = [], list[float]()
    for x, y in batches(model, net.classes, steps):
        held.append(trainer.step(x, y))
        if len(held) == 10:
            float(held[-1])
            found, held = found + [float(loss) for loss in held], []
    return np.array(found + [float(loss) for loss in held])


def digest(network: str) -> str:
    """Of the first weights and batches: another one means that the record is of something else."""
    net, found = NETWORKS[network], hashlib.sha256()
    model = net.build()
    for t in model.graph.initializer:
        found.update(numpy_helper.to_array(t).tobytes())
    for x, y in batches(model, net.classes, 2):
        found.update(np.round(x, 4).tobytes() + y.tobytes())
    return found.hexdigest()[:16]


def allowed(network: str, optimizer: str, steps: int = STEPS) -> tuple[np.ndarray, float]:
    """Torch's losses in float64, and how far others may be from them: max(1e-5, 3 x the distance of torch's in
    float32)."""
    record = json.loads(RECORDED.read_text())["cases"][f"{network}, {optimizer}"]
    assert record["digest"] == digest(network), (
        f"{network}: weights or batches changed; run tests/training/record_torch.py again"
    )
    wide, narrow = (np.array(record[kind][:steps]) for kind in ("float64", "float32"))
    return wide, max(FLOOR, FACTOR * float(abs(wide - narrow).max()))
