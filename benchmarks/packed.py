"""Compressed networks on a GPU beside their dense forms, ONNX Runtime's CPU and, where it is installed, its WebGPU EP.

    python -m benchmarks.packed [PATTERN] [--runs 40] [--size 2048] [--json FILE]

Medians in ms of whole runs, arrays in and out, in blocks of runs of one side. mlp: 8 blocks of products, [1, SIZE] by 4
SIZE and back, by int4; resnet50: int8 with calibration data; encoder: int8 without, so its products quantise what comes
in; minilm_int8: as it was published, 32 tokens. activations: bytes of device memory that intermediate values share.
"""

from __future__ import annotations

import json as json_module
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from onnx import helper, numpy_helper
from rich.console import Console

import models
from benchmarks import cases
from benchmarks.compression import error, written
from benchmarks.peers import providers
from benchmarks.shapes import fed
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep import InferenceSession

console = Console(width=120)
TOKENS = 32


def mlp(size: int, blocks: int = 8) -> onnx.ModelProto:
    rng, nodes, weights, value = np.random.default_rng(0), list[onnx.NodeProto](), list[onnx.TensorProto](), "x"
    for k in range(blocks):
        for part, (rows, columns) in enumerate(((size, 4 * size), (4 * size, size))):
            name, out = f"w{k}_{part}", f"h{k}_{part}"
            weights.append(numpy_helper.from_array(rng.standard_normal((rows, columns), np.float32) * rows**-0.5, name))
            nodes.append(helper.make_node("MatMul", [value, name], [out]))
            if not part:
                nodes.append(helper.make_node("Relu", [out], [out + "r"]))
                out += "r"
            value = out
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", 1, [1, size])],
        [helper.make_tensor_value_info("y", 1, [1, size])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(name: str, model: onnx.ModelProto, method: str, feeds: dict[str, Any], runs: int) -> dict[str, Any]:
    """By side: block_ms, error (relative L2 of what the CPU gives for the same file), activations."""
    with tempfile.TemporaryDirectory() as folder:
        dense, packed = Path(folder) / "dense.onnx", Path(folder) / "packed.onnx"
        onnx.save(model, dense)
        written(dense, packed, name, method, feeds)
        files = {
            "float32": ("ours_gpu", dense),
            method: ("ours_gpu", packed),
            f"{method}, ORT CPU": ("ort_cpu", packed),
            f"{method}, ORT WebGPU": ("ort_webgpu", packed),
        }
        make = dict(providers())
        return timed(
            {side: make[by](str(file)) for side, (by, file) in files.items() if by in make},
            feeds,
            runs,
            f"{method}, ORT CPU",
        )


def timed(sessions: dict[str, Any], feeds: dict[str, Any], runs: int, reference: str) -> dict[str, Any]:
    want, row = sessions[reference].run(None, feeds), dict[str, Any]()
    for side, session in sessions.items():
        row[side] = {"error": error(session.run(None, feeds), want)}
        if isinstance(session, InferenceSession):
            row[side]["activations"] = sum(part.activation_nbytes for part in session.explain().memory)
    for side, times in cases.in_blocks(
        {side: lambda s=s: s.run(None, feeds) for side, s in sessions.items()}, runs
    ).items():
        row[side]["block_ms"] = float(np.median(times))
    return row


def published(runs: int) -> dict[str, Any]:
    model, feeds = cases.load("minilm_int8")
    make = dict(providers())
    return timed(
        {"int8": make["ours_gpu"](model), "int8, ORT CPU": make["ort_cpu"](model)},
        fed(feeds, TOKENS),
        runs,
        "int8, ORT CPU",
    )


def main(
    pattern: Annotated[str, typer.Argument(help="Regular expression that a case's name matches.")] = "",
    runs: Annotated[int, typer.Option(min=1)] = 40,
    size: Annotated[int, typer.Option(help="Width of the MLP.")] = 2048,
    json: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Measure each network."""

    def of(name: str, method: str) -> dict[str, Any]:
        built = models.build(name)
        return measure(name, built, method, make_inputs(model_inputs(built)), runs)

    wide = {"x": np.random.default_rng(1).standard_normal((1, size), np.float32)}
    known: dict[str, Callable[[], dict[str, Any]]] = {
        "mlp": lambda: measure("mlp", mlp(size), "int4", wide, runs),
        "resnet50": lambda: of("resnet50", "static"),
        "encoder": lambda: of("encoder", "int8"),
        "minilm_int8": lambda: published(runs),
    }
    results = {}
    for name, one in known.items():
        if re.search(pattern, name):
            results[name] = row = one()
            for side, found in row.items():
                said = "".join(f", {key} {value:,}" for key, value in found.items() if key == "activations")
                console.print(
                    f"{name}, {side}: {found['block_ms']:.3f} ms, error {found['error']:.1e}{said}", highlight=False
                )
            if json is not None:  # after each: nothing is lost where the time is over
                json.write_text(json_module.dumps(results, indent=1))


if __name__ == "__main__":
    typer.run(main)
