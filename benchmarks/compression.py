"""What compressing the builders' networks gives: size of the file, memory of the weights, errors, times beside the
dense model's.

    python -m benchmarks.compression [--models resnet50,tcn] [--methods codebook5,int8] [--runs 16] [--json FILE]
      [--weights auto,packed]
    python -m benchmarks.compression --beside-float32 [--models ...] [--methods prune90,int8] [--runs 16] [--weights
      auto,packed]
        [--folder DIR] [--files-only]

`alexnet` has the published densities: products pruned to 9, 9 and 25 %, 15 values for what is left, convolutions by
5-bit codebooks (method `published`). Weights are random, so errors against the dense model say what rounding does to a
layer's numbers, not to accuracy (that is benchmarks.digits). `static` is int8 with calibration data: random inputs
here. "gpu - file": our results against ONNX Runtime's CPU of the same file, relative L2. `--weights`: a row for each
choice of that option. Times: medians of whole runs in blocks of one side, with `placement` of cpu, gpu and auto.
`--beside-float32`: with placement=gpu alone, each choice of `--weights` in turn with the float32 network, which is
opened once: this takes a quarter of the time, and a drift of the machine hits both sides of the ratio. Compressing
takes longer than measuring: `--files-only` leaves the files in `--folder`, where another call finds them (a process for
each network is quickest).
"""

from __future__ import annotations

import json as json_module
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from rich.console import Console
from rich.table import Table

import models
from benchmarks import cases
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.compression import compress

console = Console(width=160)
NETWORKS = "alexnet,squeezenet1_1,unet,shufflenet,googlenet,mobilenet_v1,mobilenet_v2,inception_v3,resnet50,tcn"
METHODS = "codebook5,int8,int4,prune80,static"
SAMPLES = 4


def written(model: Path, out: Path, name: str, method: str, feeds: Mapping[str, Any]) -> None:
    """Compresses a model."""
    if method == "published":
        first, second, last = (
            n.name for n in onnx.load(model, load_external_data=False).graph.node if n.op_type == "Gemm"
        )
        compress(model, out, "codebook5", layers=[(first, "prune91"), (second, "prune91"), (last, "prune75")])
    elif method == "static":
        rng = np.random.default_rng(1)
        samples = {
            n: rng.standard_normal((SAMPLES * a.shape[0], *a.shape[1:])).astype(a.dtype) for n, a in feeds.items()
        }
        compress(model, out, "int8", calibrate=samples)
    else:
        compress(model, out, method)


def measured(model: Path, dense: Path, feeds: Mapping[str, Any], runs: int, weights: str) -> dict[str, Any]:
    """Errors and times of a file, and of the dense model where that is another."""
    options: dict[str, dict[str, Any]] = {
        "cpu": {"placement": "cpu"},
        "gpu": {"placement": "gpu", "strict": 1, "weights": weights},
    }
    options |= {"auto": {"placement": "auto", "weights": weights}} if runs else {}
    sides = {
        side: cases.waited(InferenceSession(str(model), cases.quiet(), provider_options=given))
        for side, given in options.items()
    }
    by_side = {side: session.run(None, feeds) for side, session in sides.items()}
    dense_cpu = InferenceSession(str(dense), cases.quiet(), provider_options={"placement": "cpu"}).run(None, feeds)
    programs = [p.program for p in sides["gpu"]._state.partitions]
    found = {
        "file": model.stat().st_size,
        "weights": sum(p.weight_nbytes for p in programs),
        "uploaded": sum(p.uploaded_nbytes for p in programs),
        "dense": sum(p.plans[-1].dense_nbytes for p in programs),
        "dispatches": sum(p.plans[-1].dispatches for p in programs),
        "dense_error": error(by_side["cpu"], dense_cpu),
        "gpu_error": error(by_side["gpu"], by_side["cpu"]),
    }
    if runs:
        calls: Mapping[str, Callable[[], object]] = {
            side: partial(session.run, None, feeds) for side, session in sides.items()
        }
        found |= {
            f"{side}_ms": float(np.median(times)) for side, times in cases.in_blocks(calls, runs, blocks=2).items()
        }
    return found


def beside(dense: Any, file: Path, feeds: Mapping[str, Any], runs: int, choices: list[str]) -> dict[str, Any]:
    """ms of the float32 session and of a file with each choice of the option `weights`, in blocks that take turns;
    dense MB, errors.

    gpu_us: the GPU's part by its own clock, which hosts and their noise leave alone.
    """
    given = {choice: {"placement": "gpu", "strict": 1, "weights": choice} for choice in choices}
    sides: dict[str, Any] = {
        c: InferenceSession(str(file), cases.quiet(), provider_options=options) for c, options in given.items()
    }
    on_cpu = InferenceSession(str(file), cases.quiet(), provider_options={"placement": "cpu"}).run(None, feeds)
    found: dict[str, Any] = {
        f"{choice}_error": error(session.run(None, feeds), on_cpu) for choice, session in sides.items()
    }
    calls: dict[str, Callable[[], object]] = {"float32": partial(dense.run, None, feeds)}
    calls |= {side: partial(session.run, None, feeds) for side, session in sides.items()}
    found |= {f"{side}_ms": float(np.median(times)) for side, times in cases.in_blocks(calls, runs, blocks=2).items()}
    found |= {
        f"{side}_gpu_us": session.profile(feeds, runs=9).gpu_us for side, session in {"float32": dense, **sides}.items()
    }
    for choice, session in sides.items():
        found[f"{choice}_ratio"] = found[f"{choice}_ms"] / found["float32_ms"]
        programs = [p.program for p in session._state.partitions]
        found[f"{choice}_dense_MB"] = sum(p.plans[-1].dense_nbytes for p in programs) / 1e6
        found[f"{choice}_dispatches"] = sum(p.plans[-1].dispatches for p in programs)
    return found


def error(got: list[Any], wanted: list[Any]) -> float:
    """The largest relative L2 error of an output."""
    pairs = [(a.astype("d"), b.astype("d")) for a, b in zip(got, wanted, strict=True)]
    return max(float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)) for a, b in pairs)


def main(
    names: Annotated[str, typer.Option("--models", help="Builders, by commas.")] = NETWORKS,
    methods: Annotated[str, typer.Option(help="Methods, by commas; also `published` and `static`.")] = METHODS,
    runs: Annotated[int, typer.Option(help="Timed runs of each side; 0: no times.")] = 16,
    weights: Annotated[str, typer.Option(help="Choices of the option `weights`, by commas.")] = "auto",
    json: Annotated[Path | None, typer.Option(help="Write the figures here, too.")] = None,
    beside_float32: Annotated[
        bool, typer.Option("--beside-float32", help="On the GPU alone, in turn with the float32 network.")
    ] = False,
    keep: Annotated[
        Path | None, typer.Option("--folder", help="Where --beside-float32 keeps files and finds them again.")
    ] = None,
    files_only: Annotated[bool, typer.Option("--files-only", help="Compress, and measure nothing.")] = False,
) -> None:
    """Measure each model as it is, and by each method."""
    if beside_float32:
        with tempfile.TemporaryDirectory() as own:
            for name in names.split(","):
                files = made(name, methods.split(","), keep or Path(own))
                if not files_only:
                    pairs(name, files, runs, weights.split(","), json)
        return
    table = Table(
        "model",
        "method",
        "weights",
        "file MB",
        "weights MB",
        "dense MB",
        "uploaded MB",
        "dispatches",
        "file - dense",
        "gpu - file",
        "cpu ms",
        "gpu ms",
        "auto ms",
    )
    rows: list[dict[str, Any]] = []
    for name in names.split(","):
        with tempfile.TemporaryDirectory() as folder:
            built, dense = models.build(name), Path(folder) / "dense.onnx"
            onnx.save(built, dense)
            feeds = make_inputs(model_inputs(built))
            chosen = [
                "float32",
                *methods.split(","),
                *(["published"] if name == "alexnet" and "published" not in methods else []),
            ]
            for method in chosen:
                file = dense
                if method != "float32":
                    file = Path(folder) / f"{method}.onnx"
                    written(dense, file, name, method, feeds)
                for choice in weights.split(",") if method != "float32" else ("packed",):
                    row = {
                        "model": name,
                        "method": method,
                        "choice": choice,
                        **measured(file, dense, feeds, runs, choice),
                    }
                    rows.append(row)
                    console.print(_line(row), highlight=False)
                    table.add_row(
                        name,
                        method,
                        choice,
                        *(f"{row[k] / 1e6:.2f}" for k in ("file", "weights", "dense", "uploaded")),
                        str(row["dispatches"]),
                        *(f"{row[k]:.1e}" for k in ("dense_error", "gpu_error")),
                        *(f"{row[k]:.2f}" for k in ("cpu_ms", "gpu_ms", "auto_ms") if k in row),
                    )
                    if json is not None:  # after each: nothing is lost where the time is over
                        json.write_text(json_module.dumps(rows, indent=1))
    console.print(table)


def made(name: str, methods: list[str], folder: Path) -> dict[str, Path]:
    """The files of a network by method, float32 first; those that are there already stay."""
    files = {method: folder / f"{name}-{method}.onnx" for method in ("float32", *methods)}
    folder.mkdir(parents=True, exist_ok=True)
    for method, file in files.items():
        if not file.exists():
            unfinished = file.with_suffix(".part")
            if method == "float32":
                onnx.save(models.build(name), unfinished)
            else:
                written(
                    files["float32"], unfinished, name, method, make_inputs(model_inputs(onnx.load(files["float32"])))
                )
            unfinished.rename(file)
    return files


def pairs(name: str, files: Mapping[str, Path], runs: int, choices: list[str], json: Path | None) -> None:
    """A line for each method as soon as it is measured."""
    feeds = make_inputs(model_inputs(onnx.load(files["float32"])))
    session = InferenceSession(str(files["float32"]), cases.quiet(), provider_options={"placement": "gpu", "strict": 1})
    session.run(None, feeds)
    for method, file in list(files.items())[1:]:
        row = {"model": name, "method": method, **beside(session, file, feeds, runs, choices)}
        console.print(_line(row), highlight=False, soft_wrap=True)
        if json is not None:
            with json.open("a") as lines:
                lines.write(json_module.dumps(row) + "\n")


def _line(row: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items())


if __name__ == "__main__":
    typer.run(main)
