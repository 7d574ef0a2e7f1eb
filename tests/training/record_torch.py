"""Losses of 100 steps of torch on its CPU, in float64 and float32: what tests/training/test_trajectories.py compares ours with.

    python -m tests.training.record_torch [--ours] [CASE ...]

Needs torch (2.13 made the record). Writes tests/training/torch_losses.json. --ours: trains the same with this package, all 100 steps on the
GPU and on ONNX Runtime's CPU, and adds how far they are from torch's in float64.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ort_gpu_ep.training import SGD
from tests.training import trajectories as tr

Attributes = dict[str, Any]


def lstm(torch: Any, x: Any, w: Any, r: Any, b: Any) -> Any:
    """ONNX's LSTM of one direction, step by step: x [T, B, I] -> [T, 1, B, H]. Gates i, o, f, c."""
    hidden = r.shape[-1]
    bias = b[0][:4 * hidden] + b[0][4 * hidden:]
    from_x = x @ w[0].T + bias
    h = c = torch.zeros(x.shape[1], hidden, dtype=x.dtype)
    states = []
    for step in from_x:
        i, o, f, g = (step + h @ r[0].T).split(hidden, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states)[:, None]


def ops(torch: Any) -> dict[str, Callable[..., Any]]:
    """The ops of the networks, as functions of their inputs and attributes."""
    f = torch.nn.functional
    return {
        "Gemm": lambda a, x, w, b: x @ (w.T if a.get("transB") else w) + b,
        "Relu": lambda a, x: f.relu(x), "Tanh": lambda a, x: torch.tanh(x), "Add": lambda a, x, y: x + y,
        "Clip": lambda a, x, low, high: torch.clamp(x, low, high),
        "Conv": lambda a, x, w, b=None: f.conv2d(x, w, b, a["strides"], a["pads"][:2], a["dilations"], a["group"]),
        "BatchNormalization": lambda a, x, s, b, m, v: f.batch_norm(x, m, v, s, b, False, 0.0, a.get("epsilon", 1e-5)),
        "AveragePool": lambda a, x: f.avg_pool2d(x, a["kernel_shape"], a["strides"]),
        "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdim=True), "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
        "Transpose": lambda a, x: x.permute(a["perm"]), "Squeeze": lambda a, x, axes: x.squeeze(int(axes[0])),
        "Gather": lambda a, x, i: x.select(a["axis"], int(i) % x.shape[a["axis"]]),
        "LSTM": lambda a, x, w, r, b: lstm(torch, x, w, r, b), "Softmax": lambda a, x: x,      # the loss takes what is before it
    }


def losses(torch: Any, network: str, optimizer: str, dtype: Any) -> list[float]:
    """Of 100 steps of torch."""
    net, table = tr.NETWORKS[network], ops(torch)
    model = net.build()
    chosen = set(net.trainable or ())
    values, parameters = dict[str, Any](), []
    for t in model.graph.initializer:
        array = torch.tensor(numpy_helper.to_array(t))
        wanted = array.is_floating_point() and (t.name.startswith("Gemm.") if chosen else "running" not in t.name)
        values[t.name] = array.to(dtype) if array.is_floating_point() else array
        if wanted:
            parameters.append(values[t.name].requires_grad_())
    ours, found = tr.OPTIMIZERS[optimizer], []
    rate = float(ours.rate)     # type: ignore[arg-type]
    update = (torch.optim.SGD if isinstance(ours, SGD) else torch.optim.Adam)(parameters, lr=rate)
    for x, y in tr.batches(model, net.classes):
        here = {**values, model.graph.input[0].name: torch.tensor(x, dtype=dtype)}
        loss = torch.nn.functional.cross_entropy(forward(torch, model, table, here), torch.tensor(y))
        update.zero_grad()
        loss.backward()
        update.step()
        found.append(float(loss.detach()))
    return found


def forward(torch: Any, model: onnx.ModelProto, table: dict[str, Callable[..., Any]], values: dict[str, Any]) -> Any:
    """The model's output; values: its input and weights by name."""
    for node in model.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant":
            stored = numpy_helper.to_array(attributes["value"])
            values[node.output[0]] = torch.tensor(stored if stored.ndim else stored.item())
        else:
            values[node.output[0]] = table[node.op_type](attributes, *(values[n] for n in node.input if n))
    return values[model.graph.output[0].name]


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
            found.update({"digest": tr.digest(network)} | {
                kind: [float(f"{v:.10g}") for v in losses(torch, network, optimizer, getattr(torch, kind))] for kind in ("float64", "float32")})
            tr.RECORDED.write_text(json.dumps(record, indent=1) + "\n")
        if "--ours" in arguments:
            found["distance"] = {"torch float32": float(np.abs(np.subtract(found["float64"], found["float32"])).max())} | {
                side: float(np.abs(tr.losses(network, optimizer, {"placement": side}) - found["float64"]).max()) for side in ("gpu", "cpu")}
            tr.RECORDED.write_text(json.dumps(record, indent=1) + "\n")
        print(case, found.get("distance", "recorded"), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
