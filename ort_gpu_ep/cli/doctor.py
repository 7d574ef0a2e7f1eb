"""ort-gpu-ep doctor: which adapters there are, what they offer, and whether they can be trusted."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ort_gpu_ep.cli import shared
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device import AdapterInfo
from ort_gpu_ep.device.info import pick
from ort_gpu_ep.health import bundle, tested, verdicts
from ort_gpu_ep.health.enumeration import look_again
from ort_gpu_ep.health.examination import Device, Outcome, examine
from ort_gpu_ep.health.probe import PROBES
from ort_gpu_ep.health.quirks import Quirk, fitting, reasons
from ort_gpu_ep.health.quirks import known as known_quirks
from ort_gpu_ep.health.verdicts import DEGRADED, HEALTHY, UNUSABLE, Verdict
from ort_gpu_ep.webgpu import choice, dxc
from ort_gpu_ep.webgpu.missing import no_adapter

EXIT_CODES = {HEALTHY: 0, DEGRADED: 1, UNUSABLE: 2}
COLORS = {"PASS": "green", "UNSUPPORTED": "yellow", "NOT_RUN": "yellow"}


@shared.reports_errors
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Only the probes that the first session would run.")] = False,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            min=1,
            help="Repetitions of each probe with new random inputs; default: 2, on a software adapter 1.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        shared.file_to_write(
            "--report",
            "A .zip for a bug report, or a .json table of tested adapters, which gets a line: no names, no folders.",
            (".zip", ".json"),
        ),
    ] = None,
    option: shared.OptionOption = None,
    text: Annotated[
        bool, typer.Option("--text", help="Print ten lines to paste into an issue: no names, no folders.")
    ] = False,
    json: shared.JsonOption = False,
) -> None:
    """Test the adapter and its driver, in separate processes. Exit code 0 healthy, 1 degraded, 2 unusable or no
    adapter."""
    import ort_gpu_ep.health.probes  # noqa: F401  fills the table

    config = resolve(shared.pairs(option, "--option"))
    quirks = known_quirks(config)
    infos, trouble = _adapters(config)
    if not infos:
        nothing = {"adapters": [], "healthy": False, "health": UNUSABLE, "versions": _versions(), "reason": trouble}
        if json:
            shared.print_json(nothing)
        elif text:
            _print_text(nothing)
        else:
            shared.out.print(shared.lines(trouble), soft_wrap=True)
        raise typer.Exit(2)
    chosen, device = pick(infos, config.adapter), Device()
    if not json and not text:
        _print_adapters(infos)
    outcomes = _examine(chosen, quick, 1 if quick else rounds or (1 if chosen.is_software else 2), device)
    verdict = verdicts.verdict_of(outcomes, "quick" if quick else "full")
    _remember(config, chosen, verdict, outcomes)
    whole = verdicts.with_quirks(verdict, reasons(quirks, chosen))
    faults = fitting(quirks, chosen)
    data = _data(infos, chosen, device, outcomes, whole, faults)
    if report is not None and report.suffix.lower() == ".zip":
        bundle.write(report, data)
    elif report is not None:
        tested.append(report, tested.entry(chosen, "doctor", Counter(o.status for o in outcomes)))
    if json:
        shared.print_json(data)
    elif text:
        _print_text(data)
    else:
        _print(chosen, device, outcomes, whole, faults)
    unfinished = any(o.status == "NOT_RUN" for o in outcomes)
    raise typer.Exit(max(EXIT_CODES[whole.health], 1 if unfinished else 0))


def _print_text(data: dict[str, Any]) -> None:
    for line in bundle.summary(data):
        shared.out.print(line, soft_wrap=True)


def _adapters(config: Config) -> tuple[list[AdapterInfo], str]:
    """The adapters, looked for in another process, which sessions then rely on; if there are none, why."""
    sight = look_again(config.cache_path)
    return list(sight.adapters), (sight.message if sight.trouble else "") or (
        "" if sight.adapters else no_adapter(os.environ)
    )


def _examine(chosen: AdapterInfo, quick: bool, rounds: int, device: Device) -> list[Outcome]:
    from ort_gpu_ep.health.open_adapter import quick_probes  # knows the library, which is chosen by now

    names = [p.name for p in (quick_probes(chosen) if quick else PROBES.values())]
    outcomes = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=shared.err, transient=True, disable=not shared.err.is_terminal) as progress:
        task = progress.add_task("probing", total=len(names))
        for outcome in examine(chosen.index, names, rounds, device):
            outcomes.append(outcome)
            progress.update(task, advance=1, description=f"{outcome.group}: {outcome.name}")
    return sorted(outcomes, key=lambda o: names.index(o.name))


def _remember(config: Config, chosen: AdapterInfo, verdict: Verdict, outcomes: list[Outcome]) -> None:
    """What was found holds for every session from now on, until driver, wgpu or shaders change. A quick look spares a
    session its own."""
    if any(o.status == "NOT_RUN" for o in outcomes):
        return
    key = verdicts.key_of(chosen)
    cached = verdicts.read(config.cache_path, key) if verdict.depth == "quick" else None
    if cached is None:
        verdicts.write(config.cache_path, key, verdict)
    elif cached.depth == "quick" or verdict.disabled:  # else there is a full verdict, which knows more
        verdicts.write(config.cache_path, key, verdicts.added(verdict, cached))


def _data(
    found: list[AdapterInfo],
    chosen: AdapterInfo,
    device: Device,
    outcomes: list[Outcome],
    verdict: Verdict,
    known: list[Quirk],
) -> dict[str, Any]:
    return {
        "versions": _versions(),
        "adapters": [a.as_dict() for a in found],
        "chosen": chosen.as_dict(),
        "features": list(device.features),
        "limits": device.limits,
        "lacks": dxc.lost(chosen.backend),
        "probes": [o.as_dict() for o in outcomes],
        "health": verdict.health,
        "healthy": verdict.health == HEALTHY,
        "disabled": [{"what": what, "why": why} for what, why in verdict.disabled],
        "workarounds": [{"what": name, "value": value, "why": q.why} for q in known for name, value in q.workarounds]
        + [{"what": name, "value": 1, "why": why} for name, why in verdict.cures],
        "known_faults": [
            {
                "what": q.what,
                "bug": q.bug,
                "disables": list(q.disables),
                "workarounds": dict(q.workarounds),
                "probe": q.probe,
                "update": q.update,
            }
            for q in known
        ],
    }


def _versions() -> dict[str, str]:
    """Of modules, not of packages: onnxruntime's has another name for each build of it."""
    from importlib.metadata import version

    import onnxruntime

    lines = {
        "ort-gpu-ep": sys.modules["ort_gpu_ep"].__version__,
        "python": sys.version.split()[0],
        "onnxruntime": onnxruntime.__version__,
        **{p: version(p) for p in ("onnx", "wgpu", "numpy")},
    }
    return lines | {"webgpu": str(choice.for_good())}


def _print_adapters(found: list[AdapterInfo]) -> None:
    shared.out.print(", ".join(f"{k} {v}" for k, v in _versions().items()))
    table = Table("#", "adapter", "type", "backend", "driver", "PCI address or UUID")
    for info in found:
        kind = f"{info.type} (runs on the CPU)" if info.is_software else info.type
        table.add_row(str(info.index), info.name, kind, info.backend, info.driver, info.pci or info.uuid)
    shared.out.print(table)


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.0f} MiB"


def _print(chosen: AdapterInfo, device: Device, outcomes: list[Outcome], verdict: Verdict, known: list[Quirk]) -> None:
    shared.out.print(f"chosen: {chosen.name}; features: {', '.join(device.features) or 'none'}")
    if lost := dxc.lost(chosen.backend):
        shared.out.print(lost)
    limit = device.limits
    shared.out.print(
        f"limits: {_mib(limit['max_buffer_nbytes'])} a buffer, {_mib(limit['max_binding_nbytes'])} a binding, "
        f"{limit['max_buffers_per_stage']} buffers a kernel; {limit['max_invocations']:,} threads and "
        f"{limit['max_workgroup_nbytes'] >> 10} KiB of shared memory a workgroup"
    )
    table = Table("group", "probe", "result", "ms", "what was seen")
    for o in outcomes:
        color = COLORS.get(o.status, "red")
        table.add_row(o.group, o.name, Text(o.status, color), f"{o.time_ms:.0f}", shared.lines(o.seen))
    shared.out.print(table)
    shared.out.print(f"{verdict.health}", style="bold")
    shared.out.print(tested.about(chosen))
    for what, why in verdict.disabled:
        shared.out.print(f"not used from now on: {what}: {why}")
    for name, why in verdict.cures:
        shared.out.print(
            shared.lines(f"workaround from now on: {name}: {why} (please open an issue with doctor --report FILE.zip)")
        )
    for quirk in known:
        shared.out.print(shared.lines(str(quirk)))
