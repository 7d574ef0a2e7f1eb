"""Recurrent layers, a sequence in one dispatch: recurrent.wgsl and recurrent_held.wgsl, with what packs their weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ort_gpu_ep.graph import Attribute
from ort_gpu_ep.health.probe import Trial, compare, probe
from ort_gpu_ep.ops import recurrent_held
from ort_gpu_ep.ops.recurrent_held import GENERAL, PACKING, PRODUCT, SHADER, WHOLE
from ort_gpu_ep.ops.recurrent_layer import Cell, Sizes
from ort_gpu_ep.questions import apart
from ort_gpu_ep.registry import BoundNode
from ort_gpu_ep.target import Choice


@contextmanager
def in_form(form: str) -> Iterator[None]:
    """Every layer that is lowered meanwhile gets this form, where it may (a worker probes in one thread)."""
    usual = recurrent_held.form_of

    def chosen(node: BoundNode, cell: Cell, sizes: Sizes, layers: int = 1) -> Choice:
        choice = usual(node, cell, sizes, layers)
        return replace(choice, form=form) if form in choice.forms else choice

    recurrent_held.form_of = chosen
    try:
        with apart():
            yield
    finally:
        recurrent_held.form_of = usual


def _layer(trial: Trial, op: str, gates: int, hidden: int, **attributes: Attribute) -> None:
    x, w, r = trial.normal(5, 2, 3), trial.normal(1, gates * hidden, 3), trial.normal(1, gates * hidden, hidden) / hidden
    given = [x, w, r, trial.normal(1, 2 * gates * hidden)]
    compare(trial, op, 14, given, None, 2, 1e-4, hidden_size=hidden, **attributes)


@probe("recurrent layers", "kernels", disables=("recurrent.wgsl", "recurrent_weights.wgsl"))
def layers(trial: Trial) -> str:
    """Hidden sizes below, at and above the number of lanes a slice has."""
    sizes = (1, 33, 130)
    with in_form(GENERAL):
        for _ in range(trial.rounds):
            for hidden in sizes:
                for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
                    _layer(trial, op, gates, hidden)
    return f"3 ops, {len(sizes)} sizes"


@probe("recurrent layers in registers", "kernels", disables=(SHADER, PACKING), trusts=True)
def held(trial: Trial) -> str:
    """Units that fill a subgroup and that don't, vectors with and without a rest, the input's share from the kernel or from a product."""
    sizes = (1, 8, 33)
    for form in (WHOLE, PRODUCT):
        with in_form(form):
            for _ in range(trial.rounds):
                for hidden in sizes:
                    _layer(trial, "LSTM", 4, hidden)
                    _layer(trial, "GRU", 3, hidden, linear_before_reset=1)
    return f"2 ops, 2 forms, {len(sizes)} sizes"
