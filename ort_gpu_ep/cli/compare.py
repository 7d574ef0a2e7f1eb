"""ort-gpu-ep compare: a model's outputs on two providers, and how far each is from float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ort_gpu_ep.cli import peers, shared
from ort_gpu_ep.cli.inputs import feeds as inputs_of
from ort_gpu_ep.comparison.float64 import Float64
from ort_gpu_ep.comparison.values import Judgement, judged
from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.ir import external
from ort_gpu_ep.plugin.verification import cpu_run

BEYOND = 1
"""Exit code where a difference is beyond tolerance."""

ToleranceOption = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        min=0.0,
        help="Allowed difference of floats, relative to the largest magnitude (default 1e-4; 2e-2 for float16).",
    ),
]


Side = StrEnum("Side", ["GPU", "CPU", "WEBGPU", "CUDA", "FLOAT64"])
"""What `--between` may say."""

BetweenOption = Annotated[
    tuple[Side, Side],
    typer.Option("--between", help="Two of gpu, cpu, webgpu, cuda and float64; the second is the reference."),
]


@shared.reports_errors
def compare(
    model: shared.ModelArgument,
    between: BetweenOption = (Side.GPU, Side.CPU),
    tolerance: ToleranceOption = None,
    inputs: shared.InputOption = None,
    dims: shared.SizeOption = None,
    shapes: shared.ShapeOption = None,
    option: shared.OptionOption = None,
    seed: shared.SeedOption = 0,
    json: shared.JsonOption = False,
) -> None:
    """Compare MODEL's outputs on two providers; if they differ, float64 decides. Exit code 0 if the first is right,
    else 1."""
    plain = shared.cpu_session(model)
    values = inputs_of(plain.get_inputs(), model, inputs, dims, shapes, seed)
    names = [o.name for o in plain.get_outputs()]
    runs = {side: _run(side, model, shared.pairs(option, "--option")) for side in dict.fromkeys(between)}
    with shared.waiting(f"running {between[0]} and {between[1]}"):
        first, second = (runs[side](values) for side in between)
        judgement = judged(names, first, second)
    note = ""
    if Side.FLOAT64 not in between and not all(d.within(tolerance) for d in judgement):
        with shared.waiting("evaluating the model in float64"):
            judgement, note = third_opinion(model, values, names, first, second)
    within = all(d.within(tolerance) for d in judgement)
    if json:
        rows = [{**d.as_dict(), "within": d.within(tolerance)} for d in judgement]
        shared.print_json(
            {
                "model": str(model),
                "between": list(between),
                "within": within,
                "tolerance": tolerance,
                "note": note,
                "nodes": _counts(runs),
                "outputs": rows,
            }
        )
    else:
        _print(model, between, judgement, tolerance, _counts(runs), note)
    if not within:
        raise typer.Exit(BEYOND)


class _Ours:
    """The GPU's side."""

    def __init__(self, model: Path, options: Mapping[str, str]) -> None:
        self.session = shared.open_session(model, {"placement": "gpu", **options})
        shared.check_gpu(self.session)

    def __call__(self, values: Mapping[str, Any]) -> list[Any]:
        return list(self.session.run(None, dict(values)))


def _run(side: Side, model: Path, options: Mapping[str, str]) -> Callable[[Mapping[str, Any]], list[Any]]:
    """What runs a model on that side. Raises ConfigError where its provider is not installed."""
    if side is Side.GPU:
        return _Ours(model, options)
    if side is Side.FLOAT64:
        return partial(Float64(cpu_run).run, external.load(model))
    return partial(peers.peer(side, str(model)).run, None)


def third_opinion(
    model: Path,
    values: Mapping[str, Any],
    names: Sequence[str],
    first: Sequence[Any],
    second: Sequence[Any],
) -> tuple[list[Judgement], str]:
    """The outputs of two sides beside those of float64, and what is to be said of these."""
    evaluator = Float64(cpu_run)
    try:
        exact = evaluator.run(external.load(model), values)
    except ModelError as error:
        return judged(names, first, second), f"no third opinion: {error}"
    left = evaluator.in_float32
    note = (
        f"{len(left)} nodes have no float64 form and were evaluated in float32, the first is {left[0]}" if left else ""
    )
    return judged(names, first, second, exact), note


def _counts(runs: Mapping[Side, Any]) -> dict[str, int]:
    """Where the nodes of our session are; empty without one."""
    ours = runs.get(Side.GPU)
    return (
        {device: ours.session.explain().count(device) for device in ("gpu", "host", "cpu")} if ours is not None else {}
    )


def _print(
    model: Path,
    between: Sequence[Side],
    found: Sequence[Judgement],
    tolerance: float | None,
    counts: Mapping[str, int],
    note: str,
) -> None:
    nodes = f": {counts['gpu']} nodes on the GPU, {counts['cpu']} on the CPU" if counts else ""
    shared.out.print(f"{model}, {between[0]} compared with {between[1]}{nodes}")
    for d in found:
        shared.out.print(f"{'ok   ' if d.within(tolerance) else 'WRONG'} {d.between}")
        if d.first is not None and d.second is not None:
            shared.out.print(
                f"      from float64, relative: {between[0]} {d.first.relative:.2g}, {between[1]} "
                f"{d.second.relative:.2g}"
            )
    if note:
        shared.out.print(note)
    if not all(d.within(tolerance) for d in found) and Side.GPU in between:
        shared.out.print(f"`ort-gpu-ep bisect {model}` with the same inputs finds the node.")
