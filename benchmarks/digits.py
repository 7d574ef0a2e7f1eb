"""What compression costs in accuracy: three nets on scikit-learn's digits, a third of the images held out.

    python -m benchmarks.digits [--json FILE]

Nobody trains a network here: features are seeded random ones (a hidden layer, convolutions, an LSTM over rows), the
head is a ridge classifier on them, and both together are one ONNX model. 400 of the other images, without their labels,
are the calibration data.
"""

from __future__ import annotations

import json as json_module
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from onnx import helper, numpy_helper
from rich.console import Console
from rich.table import Table

from ort_gpu_ep.compression import compress
from ort_gpu_ep.compression.samples import session_of

LIMITS: Mapping[str, float] = {"int8": 0.7, "int4": 0.7, "codebook5": 0.7, "prune80": 1.5, "prune90": 4.5}
"""Points of accuracy that a method may lose. Pruning with SAMPLES calibration images; without them prune80 loses 5 to
23."""
BLIND = ("prune80, blind",)
SAMPLES = 400
ALPHA: Mapping[str, float] = {"MLP": 60.0, "convolutional": 40.0, "LSTM": 60.0}
"""Of the ridge regression that a head is, by the variance of the features: what small changes leave alone generalises,
too."""

console = Console()


@dataclass(frozen=True)
class Digits:
    """Images [n, 64] of 0 to 1, and labels; `held` are not used for training."""

    images: Any
    labels: Any
    held_images: Any
    held_labels: Any


def digits() -> Digits:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    found = load_digits()
    split = train_test_split(found.data / 16.0, found.target, test_size=1 / 3, random_state=0, stratify=found.target)
    images, held_images = (a.astype(np.float32) for a in split[:2])
    return Digits(images, split[2], held_images, split[3])


def _uniform(rng: np.random.Generator, *shape: int, fan_in: int, gain: float = 1.0) -> Any:
    limit = gain * np.sqrt(3.0 / fan_in)
    return rng.uniform(-limit, limit, shape).astype(np.float32)


def mlp() -> tuple[list[Any], dict[str, Any], list[int]]:
    """64 -> 512 features."""
    rng = np.random.default_rng(1)
    held = {"w": _uniform(rng, 512, 64, fan_in=64, gain=2.0), "b": _uniform(rng, 512, fan_in=12)}
    return (
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], "hidden", transB=1),
            helper.make_node("Relu", ["h"], ["features"]),
        ],
        held,
        [64],
    )


def convolutional() -> tuple[list[Any], dict[str, Any], list[int]]:
    """1 x 8 x 8 -> 16 x 8 x 8 -> 16 x 4 x 4 -> 64 x 4 x 4 = 1,024 features."""
    rng = np.random.default_rng(2)
    held = {"w": _uniform(rng, 16, 1, 3, 3, fan_in=9, gain=2.0), "v": _uniform(rng, 64, 16, 3, 3, fan_in=144, gain=1.5)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["e", "v"], ["f"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["f"], ["g"]),
        helper.make_node("Flatten", ["g"], ["features"]),
    ]
    return nodes, held, [1, 8, 8]


def recurrent() -> tuple[list[Any], dict[str, Any], list[int]]:
    """8 rows of 8 pixels -> an LSTM of 96 units -> all of its states, 768 features."""
    rng, units = np.random.default_rng(3), 96
    held = {
        "w": _uniform(rng, 1, 4 * units, 8, fan_in=8, gain=2.0),
        "r": _uniform(rng, 1, 4 * units, units, fan_in=units),
    }
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["t", "w", "r"], ["s"], "lstm", hidden_size=units),
        helper.make_node("Transpose", ["s"], ["u"], perm=[2, 0, 1, 3]),
        helper.make_node("Flatten", ["u"], ["features"]),
    ]
    return nodes, held, [8, 8]


NETS: Mapping[str, Callable[[], tuple[list[Any], dict[str, Any], list[int]]]] = {
    "MLP": mlp,
    "convolutional": convolutional,
    "LSTM": recurrent,
}


def trained(name: str, data: Digits) -> tuple[onnx.ModelProto, list[int]]:
    """A net of NETS with its head, and the shape of an image as it takes it."""
    from sklearn.linear_model import RidgeClassifier

    nodes, held, shape = NETS[name]()
    features = session_of(_model(nodes, held, shape, "features")).run(None, {"x": data.images.reshape(-1, *shape)})[0]
    head = RidgeClassifier(ALPHA[name] * float(features.var())).fit(features, data.labels)
    held |= {"head": head.coef_.astype(np.float32), "bias": head.intercept_.astype(np.float32)}
    nodes.append(helper.make_node("Gemm", ["features", "head", "bias"], ["y"], "head", transB=1))
    return _model(nodes, held, shape, "y"), shape


def _model(nodes: list[Any], held: Mapping[str, Any], shape: list[int], output: str) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", 1, ["n", *shape])],
        [helper.make_tensor_value_info(output, 1, ["n", None])],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def accuracy(model: onnx.ModelProto, shape: list[int], data: Digits) -> float:
    """Of the held out images, in percent, by ONNX Runtime's CPU."""
    scores = session_of(model).run(None, {"x": data.held_images.reshape(-1, *shape)})[0]
    return float((scores.argmax(1) == data.held_labels).mean() * 100)


def measured(name: str, methods: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    """(method, accuracy as float32, accuracy with it) of a net; a method of BLIND gets no calibration data."""
    data = digits()
    model, shape = trained(name, data)
    dense = accuracy(model, shape, data)
    samples = {"x": data.images[:SAMPLES].reshape(-1, *shape)}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "net.onnx"
        onnx.save(model, source)
        for method in methods:
            out = Path(folder) / f"{method}.onnx"
            pruned = method not in BLIND and method.startswith("prune")
            compress(source, out, method.split(",")[0], calibrate=samples if pruned else None)
            yield method, dense, accuracy(onnx.load(out), shape, data)


def main(json: Annotated[Path | None, typer.Option(help="Write the figures here, too.")] = None) -> None:
    """Measure each net with each method."""
    table = Table("net", "method", "accuracy", "lost", "allowed")
    rows = [(name, *row) for name in NETS for row in measured(name, (*LIMITS, *BLIND))]
    for name, method, dense, found in rows:
        table.add_row(
            name, method, f"{found:.1f} %", f"{dense - found:.2f}", f"{LIMITS[method]}" if method in LIMITS else ""
        )
    console.print(table)
    if json is not None:
        json.write_text(
            json_module.dumps(
                [dict(zip(("net", "method", "dense", "accuracy"), row, strict=True)) for row in rows], indent=1
            )
        )


if __name__ == "__main__":
    typer.run(main)
