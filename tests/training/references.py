"""A multi-layer perceptron and its training in numpy, float64: what trajectories are compared with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, np.ndarray]


def mlp(widths: tuple[int, ...] = (6, 8, 3), softmax: bool = False, seed: int = 3) -> onnx.ModelProto:
    """Gemm and Tanh layers, x [N, first] -> y [N, last]; weights w0, b0, w1, ..."""
    rng, nodes, arrays, x = np.random.default_rng(seed), [], {}, "x"
    for k, (i, o) in enumerate(pairwise(widths)):
        arrays |= {f"w{k}": rng.normal(size=(o, i)) / np.sqrt(i), f"b{k}": rng.normal(size=o) * 0.1}
        last = k == len(widths) - 2
        nodes.append(
            helper.make_node(
                "Gemm", [x, f"w{k}", f"b{k}"], ["y" if last and not softmax else f"z{k}"], name=f"gemm{k}", transB=1
            )
        )
        if not last:
            nodes.append(helper.make_node("Tanh", [f"z{k}"], [f"h{k}"], name=f"tanh{k}"))
        x = f"h{k}"
    if softmax:
        nodes.append(helper.make_node("Softmax", [f"z{len(widths) - 2}"], ["y"], name="softmax", axis=-1))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", widths[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", widths[-1]])],
        [numpy_helper.from_array(a.astype("f"), n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(model: onnx.ModelProto) -> Arrays:
    return {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}


def gradients(p: Arrays, x: np.ndarray, labels: np.ndarray, sample_weight: np.ndarray) -> tuple[float, Arrays]:
    """Cross-entropy of the perceptron and its gradient."""
    layers, acts = len(p) // 2, [x.astype(np.float64)]
    for k in range(layers):
        z = acts[-1] @ p[f"w{k}"].T + p[f"b{k}"]
        acts.append(np.tanh(z) if k < layers - 1 else z)
    z = acts[-1] - acts[-1].max(1, keepdims=True)
    soft = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-(np.log(soft[rows, labels]) * sample_weight).sum())
    d = soft.copy()
    d[rows, labels] -= 1
    d *= sample_weight[:, None]
    found = {}
    for k in reversed(range(layers)):
        found |= {f"w{k}": d.T @ acts[k], f"b{k}": d.sum(0)}
        d = d @ p[f"w{k}"] * (1 - acts[k] ** 2)
    return loss, found


Update = Callable[[Arrays, Arrays, int], Arrays]


def sgd(rate: float, momentum: float = 0.0, nesterov: bool = False, decay: float = 0.0) -> Update:
    v: Arrays = {}

    def update(p: Arrays, g: Arrays, t: int) -> Arrays:
        new = {}
        for n in p:
            grad = g[n] + decay * p[n]
            v[n] = momentum * v.get(n, 0.0) + grad
            new[n] = p[n] - rate * (grad + momentum * v[n] if nesterov else v[n])
        return new

    return update


def adam(
    rate: float, decay: float = 0.0, decoupled: bool = False, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> Update:
    m: Arrays = {}
    v: Arrays = {}

    def update(p: Arrays, g: Arrays, t: int) -> Arrays:
        new = {}
        for n in p:
            grad = g[n] if decoupled else g[n] + decay * p[n]
            m[n] = b1 * m.get(n, 0.0) + (1 - b1) * grad
            v[n] = b2 * v.get(n, 0.0) + (1 - b2) * grad**2
            step = rate * (m[n] / (1 - b1 ** (t + 1))) / (np.sqrt(v[n] / (1 - b2 ** (t + 1))) + eps)
            new[n] = p[n] * (1 - rate * decay if decoupled else 1) - step
        return new

    return update


def clipping(update: Update, norm: float) -> Update:
    def clipped(p: Arrays, g: Arrays, t: int) -> Arrays:
        total = np.sqrt(sum((a**2).sum() for a in g.values()))
        return update(p, {n: a * min(1.0, norm / (total + 1e-6)) for n, a in g.items()}, t)

    return clipped


def trajectory(
    model: onnx.ModelProto, batches: list[tuple[np.ndarray, np.ndarray]], update: Update
) -> tuple[list[float], Arrays]:
    """Losses of each batch in turn, and the weights at the end."""
    p, losses = weights(model), []
    for t, (x, labels) in enumerate(batches):
        loss, g = gradients(p, x, labels, np.full(len(x), 1 / len(x)))
        losses.append(loss)
        p = update(p, g, t)
    return losses, p
