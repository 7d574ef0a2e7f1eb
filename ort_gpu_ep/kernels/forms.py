"""Forms: the ways to do one piece of work, each with its estimate and what makes its kernels; and the place that takes
one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels import target as targets
from ort_gpu_ep.kernels.built import Lowering
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.target import Choice, Forcing, Target

Build: TypeAlias = Callable[[Choice, TensorType], Lowering]
"""Makes the kernels of a form that was taken, whose result has that type. Raises UnsupportedNodeError."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way to do a piece of work. ns: what it is estimated to take. build: its kernels."""

    ns: float
    build: Build


Forms: TypeAlias = dict[str, Form]
"""By name. What one kind of kernel offers for a piece of work; several kinds together are the union of theirs."""


def best_ns(forms: Forms) -> float:
    """The smallest estimate; infinite where there is no form."""
    return min((form.ns for form in forms.values()), default=float("inf"))


def taken(target: Target, key: str, forms: Forms) -> Choice:
    """The form that the target takes. key: what there is to choose for, as Choice has it."""
    return target.choose(key, {name: form.ns for name, form in forms.items()})


def lower(target: Target, key: str, forms: Forms, out: TensorType) -> Lowering:
    """The kernels of the form that the target takes. Raises UnsupportedNodeError."""
    choice = taken(target, key, forms)
    return forms[choice.form].build(choice, out)


def elsewhere(ns: float, reason: str) -> Form:
    """A form that is no kernel of this node: where it is taken, the node is declined, and what comes instead takes so
    long."""

    def build(choice: Choice, out: TensorType) -> Lowering:
        raise UnsupportedNodeError(Code.COST, reason)

    return Form(ns, build)


@contextmanager
def forced(*names: str) -> Iterator[dict[str, Choice]]:
    """Every choice that is made meanwhile, in this process, takes the first of these forms that is one of its own;
    others are as usual.

    Gives the choices that were made so far, by key.
    """
    before, targets.FORCING = targets.FORCING, Forcing(names, {})
    try:
        with apart():
            yield targets.FORCING.made
    finally:
        targets.FORCING = before
