"""ort-gpu-ep bisect: which node it comes from that the GPU's values are not the CPU's."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import onnx
import typer

from ort_gpu_ep.cli import shared
from ort_gpu_ep.cli.compare import BEYOND, ToleranceOption
from ort_gpu_ep.comparison.bisection import Bisection, Finding, Run
from ort_gpu_ep.comparison.bisection import bisect as search
from ort_gpu_ep.comparison.models import save, save_case


@shared.reports_errors
def bisect(
    model: shared.ModelArgument,
    tolerance: ToleranceOption = None,
    save_to: Annotated[Path, shared.folder_to_write("--save", "Folder for the small models that show a difference.")] = Path("bisect"),
    inputs: shared.InputOption = None,
    dims: shared.SizeOption = None,
    shapes: shared.ShapeOption = None,
    option: shared.OptionOption = None,
    seed: shared.SeedOption = 0,
    json: shared.JsonOption = False,
) -> None:
    """Find the node at which MODEL's values on the GPU leave the CPU's, and write a model that shows it. Exit code 1 if there is."""
    options = {"placement": "gpu", **shared.pairs(option, "--option")}
    session = shared.open_session(model, options)
    shared.check_gpu(session)
    values = shared.feeds(session, inputs, dims, shapes, seed)
    del session
    with tempfile.TemporaryDirectory() as scratch, shared.progress("bisecting", quiet=json) as tell:
        gpu, cpu = _runs(Path(scratch), options)
        found = search(onnx.load(model), values, gpu, cpu, tolerance, tell)
    written = {} if found.within else _save(found, save_to)
    if json:
        shared.print_json({"model": str(model), "within": found.within, "tolerance": tolerance, "fused": found.fused,
                           "outputs": [d.as_dict() for d in found.outputs], "first": found.first.as_dict() if found.first else None,
                           "worst": found.worst.as_dict() if found.worst else None, "written": written})
    else:
        _print(found, written, shared.pairs(option, "--option"))
    if not found.within:
        raise typer.Exit(BEYOND)


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


def _print(found: Bisection, written: Mapping[str, list[str]], options: Mapping[str, str]) -> None:
    for d in found.outputs:
        _say(f"output {d}")
    if found.first is not None:
        _say(f"first beyond tolerance: {_text(found.first)}")
        if found.fused:
            _say("  only where no value between is looked at: it comes from nodes that are fused; try fusion=0")
    else:
        _say("no node's values are beyond tolerance")
    if found.worst is not None:
        _say(f"worst by itself: {_text(found.worst)}")
    extra = "".join(f" -o {name}={value}" for name, value in options.items())
    for folder, given in written.items():
        _say(f"written: ort-gpu-ep compare {folder}/model.onnx{''.join(f' --input {pair}' for pair in given)}{extra}")


def _text(finding: Finding) -> str:
    how = "alone" if finding.nodes == 1 else f"with {finding.nodes - 1} before it"
    own = "" if finding.own is None else f"\n  {how}, given the CPU's inputs: {finding.own}"
    return f"{finding.op} {finding.name}\n  in the model: {finding.accumulated}{own}"


def _say(text: str) -> None:
    shared.out.print(text, highlight=False, markup=False)
