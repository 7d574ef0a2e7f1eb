"""Networks of torchvision and transformers as torch exports them: float16 here beside torch in float16.

    python -m benchmarks.exported [NAME ...] [--sides float16,f16acc] [--runs 24] [--profile 12] [--json FILE]

Needs torch, torchvision and transformers; weights are random. A network is exported in float32, and in float16 after
its module became that, and measured in a process of its own. Whole runs with arrays in and out, in blocks with a warm
clock (cases.in_blocks): `float16` is the float16 model at the default precision, `f16acc` the float32 model with that
precision, `float32` that model as it is. torch runs eagerly, and as a CUDA graph where it can capture one; it calculates
attention by scaled_dot_product_attention. Errors are relative L2 from onnxruntime's CPU in float32. --profile lists the
kernels that take the most.
"""

from __future__ import annotations

import json as json_module
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer
from rich.console import Console

from benchmarks import cases
from ort_gpu_ep import InferenceSession

console = Console(width=160)

Array = np.ndarray[Any, Any]

ENCODERS: Mapping[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "vit_b16": ("ViT", {}, (1, 3, 224, 224)),
    "vit_b16_x8": ("ViT", {}, (8, 3, 224, 224)),
    "dinov2_base": ("Dinov2", {"image_size": 518}, (1, 3, 518, 518)),
    "whisper_small": (
        "Whisper",
        {
            "d_model": 768,
            "encoder_layers": 12,
            "encoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "decoder_layers": 1,
        },
        (1, 80, 3000),
    ),
    "bert_large": (
        "Bert",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        (1, 512),
    ),
    "segformer_b2": ("Segformer", {"hidden_sizes": [64, 128, 320, 512], "depths": [3, 4, 6, 3]}, (1, 3, 512, 512)),
}
"""Name -> class of transformers, its settings, and the input's shape."""

VISION: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "deeplabv3": ("segmentation.deeplabv3_resnet50", (1, 3, 520, 520)),
    "r3d_18": ("video.r3d_18", (1, 3, 16, 112, 112)),
    "convnext_base": ("convnext_base", (1, 3, 224, 224)),
    "swin_t": ("swin_t", (1, 3, 224, 224)),
    "efficientnet_b4": ("efficientnet_b4", (1, 3, 380, 380)),
    "densenet121": ("densenet121", (1, 3, 224, 224)),
    "resnet50_x32": ("resnet50", (32, 3, 224, 224)),
}
"""Name -> function of torchvision.models, and the input's shape."""


def super_resolution() -> Any:
    """RRDB x 4 with 8 blocks (ESRGAN's generator; source: Wang et al., ECCV Workshops 2018)."""
    from torch import cat, nn

    class Dense(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(64 + 32 * i, 32 if i < 4 else 64, 3, 1, 1) for i in range(5))

        def forward(self, x: Any) -> Any:
            parts = [x]
            for layer in self.layers[:4]:
                parts.append(nn.functional.leaky_relu(layer(cat(parts, 1)), 0.2))
            return self.layers[4](cat(parts, 1)) * 0.2 + x

    class Block(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x) * 0.2 + x

    blocks = [Block(nn.Sequential(Dense(), Dense(), Dense())) for _ in range(8)]
    body = nn.Sequential(Block(nn.Sequential(*blocks, nn.Conv2d(64, 64, 3, 1, 1))))
    larger = [[nn.Upsample(scale_factor=2), nn.Conv2d(64, 64, 3, 1, 1), nn.LeakyReLU(0.2)] for _ in range(2)]
    last = [nn.Conv2d(64, 64, 3, 1, 1), nn.LeakyReLU(0.2), nn.Conv2d(64, 3, 3, 1, 1)]
    return nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1), body, *larger[0], *larger[1], *last)


def network(name: str, attention: str) -> tuple[Any, Any]:
    """torch's module in evaluation, with random weights, which gives one tensor; and an input. attention: what
    transformers calculates it by."""
    import torch

    torch.manual_seed(0)
    if name in ENCODERS:
        import transformers

        kind, settings, shape = ENCODERS[name]
        config = getattr(transformers, f"{kind}Config")(attn_implementation=attention, **settings)
        module = getattr(transformers, f"{kind}Model")(config)
        module = module.encoder if kind == "Whisper" else module
    elif name == "rrdb_x4":
        module, shape = super_resolution(), (1, 3, 256, 256)
    else:
        import torchvision  # type: ignore[import-not-found, unused-ignore]

        function, shape = VISION[name]
        keys = {"weights_backbone": None} if "segmentation" in function else {}
        module = torchvision.models
        for part in function.split("."):
            module = getattr(module, part)
        module = module(weights=None, **keys)

    class First(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Any) -> Any:
            y = self.inner(x)
            return y if isinstance(y, torch.Tensor) else y["out"] if "out" in y else y[0]

    x = torch.randint(0, 30000, shape) if len(shape) == 2 else torch.randn(shape)
    return First().eval(), x


def export(name: str, folder: Path) -> None:
    """Into folder/NAME.float32.onnx and folder/NAME.float16.onnx; the input into folder/NAME.npy."""
    import torch

    module, x = network(name, "eager")
    np.save(folder / f"{name}.npy", x.numpy())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for dtype in ("float32", "float16"):
        if dtype == "float16":
            module, x = module.to(device).half(), (x.half() if x.is_floating_point() else x).to(device)
        path = str(folder / f"{name}.{dtype}.onnx")
        with torch.no_grad():
            torch.onnx.export(module, (x,), path, opset_version=17, dynamo=False, input_names=["x"], output_names=["y"])


def torch_sides(name: str) -> dict[str, Callable[[], Array]]:
    """Eagerly and as a CUDA graph, in float16; none where torch has no CUDA."""
    import torch

    if not torch.cuda.is_available():
        return {}
    module, x = network(name, "sdpa")
    module, x = module.cuda().half(), x.half() if x.is_floating_point() else x
    x = x.pin_memory()
    fixed, graph, stream = x.cuda(), torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def eager() -> Array:
        with torch.inference_mode():
            return np.asarray(module(x.cuda()).float().cpu().numpy())

    def captured() -> Array:
        with torch.inference_mode():
            fixed.copy_(x)
            graph.replay()
            return np.asarray(y.float().cpu().numpy())

    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(3):
            module(fixed)
        stream.synchronize()
        try:
            with torch.cuda.graph(graph, stream=stream):
                y = module(fixed)
        except RuntimeError as error:
            print(f"{name}: torch captures no CUDA graph of it: {error}", file=sys.stderr)
            return {"torch float16": eager}
    return {"torch float16": eager, "torch float16, CUDA graph": captured}


def measure(name: str, folder: Path, sides: list[str], runs: int, longest: int) -> dict[str, Any]:
    """By side: milliseconds, error, and for ours what explain() says of matrix units. longest: kernels that are
    listed."""
    x = np.load(folder / f"{name}.npy")
    feeds: dict[str, Array] = {}
    sessions: dict[str, Any] = {}
    for side in sides:
        path = folder / f"{name}.{'float16' if side == 'float16' else 'float32'}.onnx"
        options = {"placement": "gpu", "unit_plans": "wait", "precision": side if side == "f16acc" else "float32"}
        sessions[side] = InferenceSession(path, cases.quiet(), provider_options=options)
        feeds[side] = x.astype(np.float16) if side == "float16" and x.dtype == np.float32 else x
    calls: dict[str, Callable[[], Array]] = {
        side: (lambda s=session, a=feeds[side]: s.run(None, {"x": a})[0]) for side, session in sessions.items()
    }  # type: ignore[misc]
    calls |= torch_sides(name)
    reference = onnxruntime.InferenceSession(folder / f"{name}.float32.onnx", providers=["CPUExecutionProvider"])
    want = reference.run(None, {"x": x})[0].astype(np.float64)
    rows: dict[str, Any] = {}
    for side, times in cases.in_blocks(calls, runs).items():
        got = calls[side]().astype(np.float64)
        rows[side] = {"ms": float(np.median(times)), "error": float(np.linalg.norm(got - want) / np.linalg.norm(want))}
        if side in sessions:
            lines = str(sessions[side].explain()).splitlines()
            rows[side]["units"] = next((line for line in lines if line.startswith("on matrix units")), "")
            if longest:
                rows[side]["kernels"] = kernels(sessions[side], {"x": feeds[side]}, longest)
    return rows


def kernels(session: Any, feeds: Mapping[str, Array], longest: int) -> list[str]:
    """The kernels that take the most of a run, each dispatch in a pass of its own."""
    dispatches = session.profile(feeds, runs=6).dispatches
    kinds = defaultdict(list)
    for dispatch in dispatches:
        kinds[dispatch.kernel, dispatch.shape, str(dispatch.groups)].append(dispatch.us)
    rows = sorted(kinds.items(), key=lambda item: -sum(item[1]))[:longest]
    head = f"{sum(d.us for d in dispatches):,.0f} us in {len(dispatches)} dispatches"
    return [head, *(f"{sum(us):8.1f} us {len(us):4d} x {np.median(us):7.1f} {' '.join(key)}" for key, us in rows)]


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    sides: Annotated[str, typer.Option(help="float16, f16acc, float32")] = "float16",
    runs: Annotated[int, typer.Option(min=1)] = 24,
    profile: Annotated[int, typer.Option(help="kernels to list")] = 0,
    folder: Annotated[Path | None, typer.Option(help="where the exported models are, or go")] = None,
    one: Annotated[bool, typer.Option(hidden=True)] = False,
    json: Annotated[Path | None, typer.Option()] = None,
) -> None:
    names = names or [*ENCODERS, *VISION, "rrdb_x4"]
    if one:
        print(json_module.dumps(measure(names[0], folder or Path(), sides.split(","), runs, profile)))
        return
    with tempfile.TemporaryDirectory() as own:
        place = folder or Path(own)  # gigabytes: they go with the run, unless a folder is asked for
        place.mkdir(parents=True, exist_ok=True)
        missing = [name for name in names if not (place / f"{name}.npy").exists()]
        with ProcessPoolExecutor(min(8, len(missing) or 1)) as pool:
            list(pool.map(export, missing, [place] * len(missing)))
        results = {}
        for name in names:
            arguments = [name, "--one", "--folder", str(place), "--sides", sides, "--runs", str(runs)]
            command = [sys.executable, "-m", "benchmarks.exported", *arguments, "--profile", str(profile)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                console.print(f"{name}: failed, see above")
                continue
            results[name] = rows = json_module.loads(done.stdout.splitlines()[-1])
            for side, row in rows.items():
                peer = rows.get("torch float16", row)["ms"] / row["ms"]
                console.print(f"{name}, {side}: {row['ms']:.2f} ms, {peer:.2f} x torch, error {row['error']:.1e}")
                for line in [row.get("units", ""), *row.get("kernels", [])]:
                    if line:
                        console.print("   ", line, markup=False)
            if json is not None:
                json.write_text(json_module.dumps(results, indent=1))


if __name__ == "__main__":
    typer.run(main)
