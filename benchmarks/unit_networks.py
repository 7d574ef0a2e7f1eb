"""Networks on matrix units: each precision beside float32, and torch CUDA where torch is installed.

    python -m benchmarks.unit_networks [NAME ...] [--sides tf32,f16acc,int8] [--runs 24] [--json FILE]

With the extra `dawn`; ORT_GPU_EP_WEBGPU=wgpu shows what it is without. Whole runs with placement=gpu, arrays in and
out, in blocks with a warm clock (cases.in_blocks). `float16` is the model in float16; `int8` quantizes the network
before by random images (benchmarks.compression). Errors are relative L2 from onnxruntime's CPU. torch runs the same
nodes, as a CUDA graph with arrays copied in and out: float32 without TF32, with TF32, and in float16.
"""

from __future__ import annotations

import json as json_module
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from onnx import numpy_helper
from rich.console import Console

import models
from benchmarks import cases
from benchmarks.torch_peer import Forward
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.compression import compress
from ort_gpu_ep.compression.folding import without_batch_normalization

console = Console(width=160)

NETWORKS: Mapping[str, tuple[str, dict[str, Any], float]] = {
    "resnet50": ("resnet50", {"batch": 32}, 32),
    "encoder": ("encoder", {"batch": 32}, 32 * 128),
    "bert_base": ("encoder", {"batch": 32, "layers": 12, "width": 768}, 32 * 128),
    "bert_large": ("encoder", {"tokens": 512, "layers": 24, "width": 1024, "heads": 16}, 512),
    "vit_b16": ("encoder", {"batch": 8, "tokens": 197, "layers": 12, "width": 768}, 8),
}
"""Name -> builder, its parameters, and images or tokens of a run. vit_b16: its encoder, of 16 x 16 pixels a token,
without the patches."""

PEERS: Mapping[str, str] = {
    "float32": "torch float32",
    "tf32": "torch tf32",
    "f16acc": "torch float16",
    "float16": "torch float16",
}
"""Side -> what torch does in that precision; of sides whose speed is given as a multiple of torch's."""

Array = np.ndarray[Any, Any]


def int8_of(builder: str, parameters: Mapping[str, Any], feeds: Mapping[str, Array]) -> onnx.ModelProto:
    """The network quantized by four of the images, for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "model.onnx"), Path(folder, "small.onnx")
        onnx.save(models.build(builder, **{**parameters, "batch": "N"}), source)
        compress(source, target, "int8", calibrate={name: array[:4] for name, array in feeds.items()})
        small = onnx.load(target)
    for value in (*small.graph.input, *small.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = parameters["batch"]
    del small.graph.value_info[:]
    return small


def float16_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network with all numbers in float16, BatchNormalization folded into convolutions before."""
    half = without_batch_normalization(model)
    held = [a.t for node in half.graph.node for a in node.attribute if a.HasField("t")]
    for tensor in (*half.graph.initializer, *held):
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*half.graph.input, *half.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    del half.graph.value_info[:]
    return half


def sessions(models_of: Mapping[str, onnx.ModelProto], wanted: list[str], adapter: str) -> dict[str, Any]:
    """By side. models_of: the model as it is (float32), and those that are made of it, by side."""
    found = {}
    for side in ("float32", *wanted):
        options = {
            "placement": "gpu",
            "unit_plans": "wait",
            "precision": side if side in ("tf32", "f16acc", "f16") else "float32",
        }
        options |= {"adapter": adapter} if adapter else {}
        data = models_of.get(side, models_of["float32"]).SerializeToString()
        found[side] = InferenceSession(data, cases.quiet(), provider_options=options)
    return found


def torch_sides(model: onnx.ModelProto, x: Array) -> dict[str, Callable[[], Array]]:
    """By side; none where torch has no CUDA."""
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    return {
        f"torch {name}": Forward(torch, model, dtype, name == "tf32").captured(x)
        for name, dtype in (("float32", torch.float32), ("tf32", torch.float32), ("float16", torch.float16))
    }


def measure(name: str, wanted: list[str], runs: int, adapter: str, peers: bool) -> dict[str, Any]:
    """Milliseconds, images or tokens a second, and error by side; which forms the products have."""
    builder, parameters, count = NETWORKS[name]
    model = models.build(builder, **parameters)
    feeds = make_inputs(model_inputs(model))
    made_of = {"float32": model, **({"int8": int8_of(builder, parameters, feeds)} if "int8" in wanted else {})}
    made = sessions(made_of | ({"float16": float16_of(model)} if "float16" in wanted else {}), wanted, adapter)
    halves = {name: array.astype(np.float16) if array.dtype == np.float32 else array for name, array in feeds.items()}
    calls: dict[str, Callable[[], Array]] = {
        side: (lambda s=s, f=halves if side == "float16" else feeds: s.run(None, f)[0]) for side, s in made.items()
    }  # type: ignore[misc]
    if peers:
        calls |= torch_sides(model, next(iter(feeds.values())))
    want = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[
        0
    ]
    rows: dict[str, Any] = {}
    for side, times in cases.in_blocks(calls, runs).items():
        got, ms = calls[side]().astype(np.float64), float(np.median(times))
        rows[side] = {
            "ms": ms,
            "per_s": count / ms * 1e3,
            "error": float(np.linalg.norm(got - want) / np.linalg.norm(want)),
        }
        if side in made:
            lines = str(made[side].explain()).splitlines()
            rows[side]["units"] = next((line for line in lines if line.startswith("on matrix units")), "")
    for row in rows.values():
        row["times"] = rows["float32"]["ms"] / row["ms"]
    return rows


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    sides: Annotated[
        str, typer.Option(help="Besides float32: tf32, f16acc, f16, float16 (the model), int8.")
    ] = "tf32,f16acc",
    runs: Annotated[int, typer.Option(min=1)] = 24,
    adapter: Annotated[str, typer.Option()] = "",
    peers: Annotated[bool, typer.Option(help="torch, too.")] = True,
    json: Annotated[Path | None, typer.Option()] = None,
) -> None:
    results = {}
    for name in names or NETWORKS:
        results[name] = rows = measure(name, sides.split(","), runs, adapter, peers)
        for side, row in rows.items():
            peer = rows.get(PEERS.get(side, ""))
            row["of_peer"] = peer["ms"] / row["ms"] if peer else None
            beside = f", {row['of_peer']:.2f} x {PEERS[side]}" if peer else ""
            console.print(
                f"{name}, {side}: {row['ms']:.2f} ms, {row['per_s']:,.0f} a second, {row['times']:.2f} x "
                f"float32{beside}, "
                f"error {row['error']:.1e} {row.get('units', '')}"
            )
        if json is not None:
            json.write_text(json_module.dumps(results, indent=1))


if __name__ == "__main__":
    typer.run(main)
