"""Networks that learn scikit-learn's digits, and how well they do after some epochs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

import models
from models import datasets
from models.builder import Net
from ort_gpu_ep.training import Adam, Admm, Optimizer, Trainer

BATCH, EPOCHS, SEED = 32, 20, 0


def mlp() -> onnx.ModelProto:
    """64 - 128 - 64 - 10."""
    net = Net("digits_mlp", SEED)
    x = net.flatten(net.input("image", ["N", 1, 8, 8], channels=1), 64)
    for width in (128, 64):
        x = net.relu(net.gemm(x, width))
    return net.softmax_output(net.gemm(x, 10), "N")


def cnn() -> onnx.ModelProto:
    """Two convolutions with max-pooling, then one dense layer."""
    net = Net("digits_cnn", SEED)
    x = net.input("image", ["N", 1, 8, 8], channels=1)
    for maps in (16, 32):
        x = net.max_pool(net.relu(net.conv(x, maps, 3, pad=1)), 2, 2)
    return net.softmax_output(net.gemm(net.flatten(x, 4), 10), "N")


def lstm() -> onnx.ModelProto:
    """Two LSTM layers of 32 over the rows."""
    return models.build("har_lstm", batch="N", steps=8, features=8, classes=10)


NETWORKS = {"mlp": mlp, "cnn": cnn, "lstm": lstm}
GOALS = {"mlp": 0.95, "cnn": 0.95, "lstm": 0.85}
RATES = {"mlp": 1e-3, "cnn": 2e-3, "lstm": 2e-3}


def pruning(epochs: int = EPOCHS) -> Optimizer:
    """90 % zeros: half of the last layer, more of the others. Half of the epochs towards few weights, the other half
    with those left."""
    steps = -(-1438 // BATCH)
    sparsity = {"Gemm_2.weight": 0.5, "Gemm*.weight": 0.9165}
    return Admm(Adam(2e-3), sparsity, every=steps, prune_at=epochs // 2 * steps, rho=0.005)


def trained(
    name: str, options: dict[str, Any], epochs: int = EPOCHS, optimizer: Optimizer | None = None
) -> tuple[float, Trainer]:
    """(accuracy on the test part, trainer) after so many epochs on the other 80 %."""
    train, test = datasets.digits().split(0.2, SEED)
    if name == "lstm":
        train, test = (datasets.Samples(np.ascontiguousarray(s.x[:, 0]), s.y) for s in (train, test))
    t = Trainer(
        NETWORKS[name](), loss="cross_entropy", optimizer=optimizer or Adam(RATES[name]), seed=SEED, options=options
    )
    t.fit(train.x, train.y, epochs=epochs, batch=BATCH)
    return t.evaluate(test.x, test.y)["accuracy"], t


def zeros(t: Trainer) -> float:
    """The part of the pruned weights' elements that is 0."""
    weights = [w for n, w in t.parameters().items() if n.endswith(".weight")]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.size for w in weights)
