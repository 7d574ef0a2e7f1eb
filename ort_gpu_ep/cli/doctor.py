"""ort-gpu-ep doctor: which adapters there are, what they offer, and a first self-test."""

from __future__ import annotations

import sys

import typer
from rich.table import Table

from ort_gpu_ep.cli import shared
from ort_gpu_ep.config import resolve
from ort_gpu_ep.device import Gpu, adapters
from ort_gpu_ep.health.selftest import Probe, selftest


@shared.reports_errors
def doctor(option: shared.OptionOption = None, json: shared.JsonOption = False) -> None:
    """List adapters, driver, features and limits, and test the one a session would get. Exit code 0 healthy, 1 not, 2 no adapter."""
    found = adapters()
    if not json:
        _print_adapters()
    if not found:
        if json:
            shared.print_json({"adapters": [], "healthy": False, "versions": _versions()})
        else:
            shared.out.print("no adapter: install a GPU driver, or Mesa's software driver (Debian, Ubuntu: mesa-vulkan-drivers)")
        raise typer.Exit(2)
    gpu = Gpu.open(resolve(shared.pairs(option, "--option")))
    probes = selftest(gpu)
    healthy = all(p.passed for p in probes)
    if json:
        shared.print_json({
            "versions": _versions(), "adapters": [a.as_dict() for a in found], "chosen": gpu.info.as_dict(),
            "features": sorted(gpu.limits.features), "limits": _limits(gpu), "probes": [p.as_dict() for p in probes], "healthy": healthy})
    else:
        _print_device(gpu, probes)
    if not healthy:
        raise typer.Exit(1)


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"python": sys.version.split()[0], **{p: version(p) for p in ("onnxruntime", "onnx", "wgpu", "numpy")}}


def _limits(gpu: Gpu) -> dict[str, int]:
    names = ("max_binding_nbytes", "max_buffer_nbytes", "max_buffers_per_stage", "max_workgroup_nbytes", "max_invocations",
             "max_groups_per_dimension", "offset_alignment")
    return {n: getattr(gpu.limits, n) for n in names}


def _print_adapters() -> None:
    shared.out.print(", ".join(f"{k} {v}" for k, v in _versions().items()), highlight=False)
    table = Table("#", "adapter", "type", "backend", "driver")
    for info in adapters():
        kind = f"{info.type} (runs on the CPU)" if info.is_software else info.type
        table.add_row(str(info.index), info.name, kind, info.backend, info.driver)
    shared.out.print(table)


def _print_device(gpu: Gpu, probes: list[Probe]) -> None:
    shared.out.print(f"chosen: {gpu.info.name}; features: {', '.join(sorted(gpu.limits.features)) or 'none'}", highlight=False)
    shared.out.print("limits: " + ", ".join(f"{k} {v:,}" for k, v in _limits(gpu).items()), highlight=False)
    table = Table("probe", "result", "ms", "what was seen")
    for probe in probes:
        table.add_row(probe.name, "[green]pass[/green]" if probe.passed else "[red]FAIL[/red]", f"{probe.time_ms:.1f}", probe.seen)
    shared.out.print(table)
