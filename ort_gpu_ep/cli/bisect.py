"""ort-gpu-ep bisect: find the first node whose GPU output diverges from the CPU's and from float64."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import onnx
import typer

from ort_gpu_ep.cli import shared
from ort_gpu_ep.cli.compare import BEYOND, ToleranceOption
from ort_gpu_ep.cli.inputs import feeds as inputs_of
from ort_gpu_ep.comparison.bisection import Bisection, Finding, Run
from ort_gpu_ep.comparison.bisection import bisect as search
from ort_gpu_ep.comparison.float64 import Float64
from ort_gpu_ep.comparison.models import save, save_case
from ort_gpu_ep.comparison.values import Difference, differences
from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.ir import external
from ort_gpu_ep.plugin.verification import cpu_run


@shared.reports_errors
def bisect(
    model: shared.ModelArgument,
    tolerance: ToleranceOption = None,
    save_to: Annotated[
        Path, shared.folder_to_write("--save", "Folder for the small models that show a difference.")
    ] = Path("bisect"),
    inputs: shared.InputOption = None,
    dims: shared.SizeOption = None,
    shapes: shared.ShapeOption = None,
    option: shared.OptionOption = None,
    seed: shared.SeedOption = 0,
    json: shared.JsonOption = False,
) -> None:
    """Find the node at which MODEL's values on GPU and CPU begin to differ, and write a small model of it. Exit code 1
    if found."""
    options = {"placement": "gpu", **shared.pairs(option, "--option")}
    session = shared.open_session(model, options)
    shared.check_gpu(session)
    values = inputs_of(session.get_inputs(), model, inputs, dims, shapes, seed)
    del session
    with tempfile.TemporaryDirectory() as scratch, shared.progress("bisecting", quiet=json) as tell:
        gpu, cpu = _runs(Path(scratch), options)
        loaded, third = external.load(model), Third()
        finding = search(loaded, values, gpu, cpu, tolerance, tell)
        if not finding.within:
            finding, third = _by_float64(finding, lambda run: search(loaded, values, gpu, run, tolerance, tell), cpu)
    within = finding.within or third.excused
    written = {} if within else _save(finding, save_to)
    if json:
        shared.print_json(
            {
                "model": str(model),
                "within": within,
                "against": third.against,
                "tolerance": tolerance,
                "fused": finding.fused,
                "outputs": [d.as_dict() for d in finding.outputs],
                "first": finding.first.as_dict() if finding.first else None,
                "worst": finding.worst.as_dict() if finding.worst else None,
                "written": written,
                "cpu_from_float64": {name: d.as_dict() for name, d in third.cpu.items()},
                "note": third.note,
            }
        )
    else:
        _print(finding, third, written, shared.pairs(option, "--option"))
    if not within:
        raise typer.Exit(BEYOND)


@dataclass(frozen=True)
class Third:
    """What float64 says of nodes at which GPU and CPU differ.

    against: what the GPU's values were compared with in the end. cpu: of the first node and the worst one, alone, how
    far the CPU is from float64. excused: the GPU is no farther than that from float64 at either. note: why there is no
    third opinion.
    """

    against: str = "the CPU"
    cpu: Mapping[str, Difference] = field(default_factory=dict)
    excused: bool = False
    note: str = ""


def _by_float64(found: Bisection, again: Callable[[Run], Bisection], cpu: Run) -> tuple[Bisection, Third]:
    """The search again, with float64 in the CPU's place. again: makes it with another run."""
    exact = Float64(cpu_run)
    try:
        better = again(exact.run)
    except ModelError as error:
        return found, Third(note=f"no third opinion: {error}")
    distances, excused = {}, []
    for finding in (better.first, better.worst):
        if finding is None or finding.model is None or finding.feeds is None or finding.own is None:
            excused.append(finding is None)
            continue
        names = [o.name for o in finding.model.graph.output]
        apart = differences(names, cpu(finding.model, finding.feeds), exact.run(finding.model, finding.feeds))
        distances[finding.name] = theirs = max(apart, key=lambda d: (d.misplaced, d.relative))
        excused.append((finding.own.misplaced, finding.own.relative) <= (theirs.misplaced, theirs.relative))
    return better, Third("float64", distances, all(excused))


def _runs(scratch: Path, options: Mapping[str, str]) -> tuple[Run, Run]:
    """Runs of a model on the GPU and on the CPU, by way of a file, since models may be larger than a message."""
    path = scratch / "model.onnx"

    def gpu(part: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
        save(part, path)
        return list(shared.open_session(path, options, tell=False).run(None, dict(feeds)))

    def cpu(part: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
        save(part, path)
        return list(shared.cpu_session(path).run(None, dict(feeds)))

    return gpu, cpu


def _save(found: Bisection, folder: Path) -> dict[str, list[str]]:
    """Folder -> inputs of the part of the first node, and of the worst where that is another one."""
    written = {}
    for name, finding in (("first", found.first), ("worst", found.worst)):
        again = name == "worst" and found.first is not None and finding is not None and finding.name == found.first.name
        if finding is not None and finding.model is not None and finding.feeds is not None and not again:
            written[str(folder / name)] = save_case(finding.model, finding.feeds, folder / name)
    return written


def _print(found: Bisection, third: Third, written: Mapping[str, list[str]], options: Mapping[str, str]) -> None:
    if third.against == "float64":
        _say("GPU and CPU differ beyond tolerance; from here on the GPU is compared with float64")
    for d in found.outputs:
        _say(f"output {d}")
    if found.first is not None:
        _say(f"first beyond tolerance: {found.first.op} {found.first.name}", *_values(found.first, third))
        if found.fused:
            _say("  only where no value between is looked at: it comes from nodes that are fused; try fusion=0")
    else:
        _say("no node's values are beyond tolerance")
    if found.worst is not None:
        _say(f"worst by itself: {found.worst.op} {found.worst.name}", *_values(found.worst, third))
    if third.excused and not found.within:
        _say("the GPU is no farther from float64 than the CPU is at these nodes: float32 can't do better here")
    if third.note:
        _say(third.note)
    extra = "".join(f" -o {name}={value}" for name, value in options.items())
    for folder, feeds in written.items():
        _say(f"written: ort-gpu-ep compare {folder}/model.onnx{''.join(f' --input {pair}' for pair in feeds)}{extra}")


def _values(finding: Finding, third: Third) -> list[str]:
    how = "alone" if finding.nodes == 1 else f"with {finding.nodes - 1} before it"
    own = [] if finding.own is None else [f"  {how}, given the inputs of {third.against}: {finding.own}"]
    cpu = third.cpu.get(finding.name)
    theirs = [] if cpu is None else [f"  the CPU {how}, from float64: relative {cpu.relative:.2g}"]
    return [f"  in the model: {finding.accumulated}", *own, *theirs]


def _say(*lines: str) -> None:
    shared.out.print(*lines, sep="\n")
