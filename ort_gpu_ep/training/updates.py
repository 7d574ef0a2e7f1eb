"""The end of a step: the optimizer's update, and the state that is carried to the next step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training.optimizers import Optimizer, clipped
from ort_gpu_ep.training.writer import Value, Writer

if TYPE_CHECKING:
    from ort_gpu_ep.training.forward import Forward

HYPER = "training.hyper"
"""The input with the optimizer's numbers, and with those of Accumulation behind them."""

PARTS = 2


@dataclass(frozen=True)
class Accumulation:
    """`steps` steps that make one update, with the mean of their gradients.

    Each adds its gradient to what is carried; all compute the update, and the last one takes it. keep, last: 0 or 1,
    float32 [1].
    """

    steps: int
    keep: Value
    last: Value

    def added(self, grads: Mapping[str, Value], states: Mapping[str, Value]) -> dict[str, Value]:
        """The gradients so far: only this step's, where it is the first one."""
        return {name: states[name] * _like(self.keep, g) + g * (1.0 / self.steps) for name, g in grads.items()}

    def taken(self, old: Value, new: Value) -> Value:
        return old.writer.op("Where", _like(self.last, old), new, old)


@dataclass
class Updates:
    """carried: as it is at first; outputs: the new values, NAME.new; held: names of what has none."""

    carried: dict[str, Array] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)
    held: list[str] = field(default_factory=list)

    def begin(self, writer: Writer, name: str, array: Array) -> Value:
        """Something carried, as an input."""
        self.carried[name] = array
        return writer.input(name, array.dtype, array.shape)

    def end(self, name: str, value: Value) -> None:
        """What becomes of it."""
        self.outputs.append(value.writer.named(value, f"{name}.new"))


def numbers(optimizer: Optimizer, accumulate: int, step: int) -> Array:
    """What a step, counted from 0, is given as HYPER."""
    array = optimizer.numbers(step // accumulate)
    if accumulate == 1:
        return array
    part = step % accumulate
    return np.append(array, [np.float32(part > 0), np.float32(part == accumulate - 1)])


def updates(forward: Forward, grads: Mapping[str, Value], optimizer: Optimizer, accumulate: int) -> Updates:
    """Writes the update of each parameter."""
    writer, result, optimizer = forward.writer, Updates(), optimizer.chosen(list(grads))
    count = len(optimizer.scalars)
    hyper = writer.input(HYPER, np.float32, (count + (PARTS if accumulate > 1 else 0),))
    several: Accumulation | None = None
    if accumulate > 1:
        keep, last = (writer.slice(hyper, 0, k, k + 1) for k in (count, count + 1))
        several = Accumulation(accumulate, keep, writer.op("Cast", last, to=9))
        sums = {n: result.begin(writer, f"{n}.gradient", np.zeros_like(forward.parameters[n])) for n in grads}
        grads = several.added(grads, sums)
    taken = clipped(writer, grads, optimizer.clip) if optimizer.clip is not None else grads
    scalars = optimizer.split(writer.slice(hyper, 0, 0, count))
    for name, grad in taken.items():
        _update(forward, result, optimizer, several, name, grad, scalars)
        if several is not None:
            result.end(f"{name}.gradient", grads[name])
    for name, new in forward.updated.items():
        result.carried[name] = forward.buffers[name]
        result.end(name, new)
    return result


def _update(
    forward: Forward,
    found: Updates,
    optimizer: Optimizer,
    several: Accumulation | None,
    name: str,
    grad: Value,
    scalars: tuple[Value, ...],
) -> None:
    """Of one parameter and its state."""
    writer, parameter, first = forward.writer, forward.writer.values[name], forward.parameters[name]
    found.carried[name] = first
    slots = [f"{name}.{slot}" for slot in optimizer.used_slots()]
    states = [found.begin(writer, n, np.zeros_like(first)) for n in slots]
    fixed = {f"{name}.{slot}": np.full_like(first, number) for slot, number in optimizer.held(name).items()}
    state = [found.begin(writer, n, array) for n, array in fixed.items()]
    found.held += fixed
    news = optimizer.update(parameter, grad, states, state, scalars)
    for n, old, new in zip((name, *slots), (parameter, *states), news, strict=True):
        found.end(n, new if several is None else several.taken(old, new))


def _like(scalar: Value, other: Value) -> Value:
    """A vector of one element as it broadcasts to another value without giving it a rank."""
    return scalar if other.rank else scalar.writer.reshape(scalar, ())
