"""Every provider that this machine offers, side by side: same model, same inputs, same process, in turn.

    python -m benchmarks.peers [NAME ...] [--runs 100] [--json FILE]

Names are builders and pretrained models of models/. "in turn": providers take turns run by run, so each run finds the
caches of the CPU and the GPU's clock as another provider left them. "in blocks": in blocks of runs of their own, as in
a program that uses one of them. Providers: ORT CPU (the reference), ours with placement=auto and placement=gpu, ORT's
WebGPU plugin (package onnxruntime-ep-webgpu), ORT CUDA with and without TF32 where it is installed.
"""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import cases
from ort_gpu_ep import InferenceSession

console = Console()
WARM_S = 1.0
"""Of runs that do not count, before those that do: a GPU raises its clock only at work."""
DEFAULT = ("resnet50", "inception_v3", "mobilenet_v2", "squeezenet1_1", "alexnet", "encoder", "har_lstm")

Make = Callable[[Any], Any]


def providers() -> Iterator[tuple[str, Make]]:
    """(name, function of the model that makes a session) of each provider."""

    def plain(*wanted: Any) -> Make:
        return lambda model: onnxruntime.InferenceSession(model, cases.quiet(), providers=list(wanted))

    yield "ort_cpu", plain("CPUExecutionProvider")
    for placement in ("auto", "gpu"):
        yield (
            f"ours_{placement}",
            lambda model, p=placement: cases.waited(
                InferenceSession(model, cases.quiet(), provider_options={"placement": p})
            ),
        )
    webgpu = _webgpu()
    if webgpu is not None:
        yield "ort_webgpu", webgpu
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        yield "cuda_fp32", plain(("CUDAExecutionProvider", {"use_tf32": "0"}))
        yield "cuda_tf32", plain(("CUDAExecutionProvider", {"use_tf32": "1"}))


def _webgpu() -> Make | None:
    """ONNX Runtime's WebGPU plugin, if its package is installed and it finds a device."""
    try:
        import onnxruntime_ep_webgpu as package
    except ImportError:
        return None
    name = package.get_ep_name()
    if not any(d.ep_name == name for d in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library("webgpu_peer", package.get_library_path())
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == name]
    if not devices:
        return None

    def make(model: Any) -> Any:
        settings = cases.quiet()
        settings.add_provider_for_devices(devices[:1], {})
        return onnxruntime.InferenceSession(model, settings)

    return make


def relative_l2(got: list[Any], want: list[Any]) -> float:
    """Largest relative L2 distance of an output; infinity where integers differ."""
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        if w.dtype.kind == "f":
            distance = np.linalg.norm(g.astype(np.float64) - w) / (np.linalg.norm(w.astype(np.float64)) + 1e-30)
            worst = max(worst, float(distance))
        elif not np.array_equal(g, w):
            worst = float("inf")
    return worst


def measure(name: str, runs: int) -> dict[str, dict[str, Any]]:
    """Per provider: block_ms (median of runs in blocks), median_ms and p95_ms (of runs in turn), first_ms (session and
    first run), error (relative L2 against ORT CPU), or failed.
    """
    model, feeds = cases.load(name)
    row: dict[str, dict[str, Any]] = {}
    sides: dict[str, Callable[[], object]] = {}
    want: list[Any] | None = None
    for provider, make in providers():
        try:
            start = time.perf_counter()
            session = make(model)
            got = session.run(None, feeds)
            want = want or got
            row[provider] = {"first_ms": (time.perf_counter() - start) * 1e3, "error": relative_l2(got, want)}
            sides[provider] = lambda s=session: s.run(None, feeds)
        except Exception as error:  # a peer that fails is a result, too
            row[provider] = {"failed": f"{type(error).__name__}: {str(error)[:120]}"}
    for provider, times in cases.in_turn(sides, runs, warm_s=WARM_S).items():
        row[provider] |= {"median_ms": float(np.median(times)), "p95_ms": float(np.percentile(times, 95))}
    for provider, times in cases.in_blocks(sides, runs).items():
        row[provider]["block_ms"] = float(np.median(times))
    return row


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    runs: Annotated[int, typer.Option()] = 100,
    json: Annotated[Path | None, typer.Option()] = None,
) -> None:
    results = {}
    for name in names or DEFAULT:
        results[name] = row = measure(name, runs)
        table = Table("provider", "in blocks, ms", "in turn", "p95", "first", "error", title=name)
        for provider, r in row.items():
            if "failed" in r:
                table.add_row(provider, r["failed"])
            else:
                times = (f"{r[k]:.3f}" for k in ("block_ms", "median_ms", "p95_ms"))
                table.add_row(provider, *times, f"{r['first_ms']:.0f}", f"{r['error']:.1e}")
        console.print(table)
        if json is not None:  # after each: nothing is lost where the time is over
            json.write_text(json_module.dumps(results, indent=1))


if __name__ == "__main__":
    typer.run(main)
