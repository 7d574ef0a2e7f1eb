"""ort-gpu-ep tune: measures which kernels are fastest for a model; lists and deletes stored results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ort_gpu_ep.cli import shared
from ort_gpu_ep.cli.inputs import feeds as inputs_of
from ort_gpu_ep.config import Config, resolve
from ort_gpu_ep.device.adapter import choose
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.health.enumeration import look
from ort_gpu_ep.health.open_adapter import tuning_key
from ort_gpu_ep.kernels import tuned
from ort_gpu_ep.kernels.tuned import Measured
from ort_gpu_ep.tuning.measure import BUDGET_S, TuneResult


@shared.reports_errors
def tune(
    model: Annotated[Path | None, typer.Argument(help="An ONNX file.", show_default=False)] = None,
    budget_s: Annotated[
        float, typer.Option("--budget", min=0.0, help="Seconds for the runs; creating sessions comes on top.")
    ] = BUDGET_S,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, even if there are stored results.")] = False,
    show: Annotated[
        bool, typer.Option("--list", help="List the stored results of the adapter, and measure nothing.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete the stored results of the adapter, and measure nothing.")
    ] = False,
    inputs: shared.InputOption = None,
    dims: shared.SizeOption = None,
    shapes: shared.ShapeOption = None,
    option: shared.OptionOption = None,
    seed: shared.SeedOption = 0,
    json: shared.JsonOption = False,
) -> None:
    """Measure which kernels are the fastest for MODEL on this adapter, and store the result for later sessions."""
    options = shared.pairs(option, "--option")
    if show or forget:
        _known(resolve(options), forget, json)
        return
    if model is None:
        raise ConfigError("tune needs a MODEL, --list or --forget")
    session = shared.open_session(model, {"placement": "gpu", **options})
    shared.check_gpu(session)
    values = inputs_of(session.get_inputs(), model, inputs, dims, shapes, seed)
    with shared.progress("tuning", quiet=json) as tell:
        tuned = session.tune(values, budget_s, fresh, tell)
    if json:
        shared.print_json({"model": str(model), **tuned.as_dict()})
    else:
        _print(tuned)


def _known(config: Config, forget: bool, json: bool) -> None:
    look(config)
    info, _ = choose(config.adapter)
    key = tuning_key(info)
    table = tuned.read(config.cache_path, key)
    if forget:
        there = tuned.forget(config.cache_path, key)
    if json:
        rows = [{"key": name, "form": choice.form, "ns": dict(choice.ns)} for name, choice in table.choices.items()]
        shared.print_json(
            {"adapter": info.name, "choices": rows, "models": len(table.models), "forgotten": forget and there}
        )
        return
    if forget:
        _say(f"{info.name}: {f'{len(table.choices)} choices forgotten' if there else 'nothing was known'}")
        return
    _say(f"{info.name}: {len(table.choices)} choices are known, {len(table.models)} models were tuned by tune=1")
    for name, choice in table.choices.items():
        _say(_line(name, choice, ""))


def _print(found: TuneResult) -> None:
    _say(
        f"{found.adapter}: {found.changed} of {len(found.choices)} choices changed, "
        f"{found.saved_ns / 1e3:.1f} us of a run saved; {found.candidates} candidates, {found.runs} runs each, "
        f"{found.seconds:.1f} s"
    )
    for note in found.notes:
        _say(f"note: {note}")
    for key in sorted(found.choices, key=lambda k: -max(found.choices[k].ns.values())):
        _say(_line(key, found.choices[key], found.estimated[key]))


def _line(key: str, found: Measured, estimated: str) -> str:
    """The choice, what it takes, and what the estimated form would."""
    text = f"  {key}: {found.form}"
    if found.form in found.ns:
        text += f" {found.ns[found.form] / 1e3:.1f} us"
    if estimated and estimated != found.form:
        text += f" (estimated {estimated}: {found.ns[estimated] / 1e3:.1f} us)"
    return text


def _say(text: str) -> None:
    shared.out.print(text)
