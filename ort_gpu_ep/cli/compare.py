"""ort-gpu-ep compare: the outputs of a model on the GPU, beside the CPU's."""

from __future__ import annotations

from typing import Annotated

import typer

from ort_gpu_ep.cli import shared
from ort_gpu_ep.comparison.values import differences

BEYOND = 1
"""Exit code where a difference is beyond tolerance."""

ToleranceOption = Annotated[float | None, typer.Option(
    "--tolerance", min=0.0, help="Largest difference of floats, as a part of their largest magnitude (default 1e-4; 2e-2 for float16).")]


@shared.reports_errors
def compare(
    model: shared.ModelArgument,
    tolerance: ToleranceOption = None,
    inputs: shared.InputOption = None,
    dims: shared.SizeOption = None,
    shapes: shared.ShapeOption = None,
    option: shared.OptionOption = None,
    seed: shared.SeedOption = 0,
    json: shared.JsonOption = False,
) -> None:
    """Compare MODEL's outputs on the GPU with onnxruntime's CPU provider. Exit code 0 within tolerance, 1 beyond."""
    session = shared.open_session(model, {"placement": "gpu", **shared.pairs(option, "--option")})
    shared.check_gpu(session)
    values = shared.feeds(session, inputs, dims, shapes, seed)
    names = [o.name for o in session.get_outputs()]
    with shared.waiting("running on both"):
        plain = shared.cpu_session(model)
        found = differences(names, session.run(None, values), plain.run(None, values))
    within = all(d.within(tolerance) for d in found)
    counts = {device: session.explain().count(device) for device in ("gpu", "host", "cpu")}
    if json:
        rows = [{**d.as_dict(), "within": d.within(tolerance)} for d in found]
        shared.print_json({"model": str(model), "within": within, "tolerance": tolerance, "nodes": counts, "outputs": rows})
    else:
        _say(f"{model}: {counts['gpu']} nodes on the GPU, {counts['cpu']} on the CPU")
        for d in found:
            _say(f"{'ok   ' if d.within(tolerance) else 'WRONG'} {d}")
        if not within:
            _say(f"`ort-gpu-ep bisect {model}` with the same inputs finds the node.")
    if not within:
        raise typer.Exit(BEYOND)


def _say(text: str) -> None:
    shared.out.print(text, highlight=False, markup=False)
