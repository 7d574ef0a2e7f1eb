"""Optimizers: the update, and the numbers that the host computes for each step in float64.

A bias correction computed in float32 is off by 5e-5 at first: 1 - 0.999^t cancels. So it comes with the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training.functions import function
from ort_gpu_ep.training.schedules import Rate, as_schedule
from ort_gpu_ep.training.writer import Value, Writer


class Optimizer:
    """What an update computes.

    scalars: names of the numbers that a step brings. clip: gradients are scaled so that their norm over all parameters
    is at most this; None: they are not.
    """

    @property
    def scalars(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def clip(self) -> float | None:
        raise NotImplementedError

    def numbers(self, step: int) -> Array:
        """The scalars of an update, counted from 0: float32 [len(scalars)]."""
        raise NotImplementedError

    def used_slots(self) -> tuple[str, ...]:
        """Names of the state that each parameter has: zeros at first."""
        return ()

    def held(self, name: str) -> dict[str, float]:
        """What a parameter has besides, which steps only read: names, and the number that all elements are at first."""
        return {}

    def chosen(self, names: Sequence[str]) -> Optimizer:
        """The optimizer for these parameters. Raises TrainingError, if it is for others."""
        return self

    def split(self, hyper: Value) -> tuple[Value, ...]:
        """The scalars [len(scalars)] in parts, as `update` takes them: made once for all parameters."""
        return (hyper,)

    def update(
        self, p: Value, grad: Value, state: Sequence[Value], held: Sequence[Value], hyper: tuple[Value, ...]
    ) -> list[Value]:
        """The new parameter, then its new state. hyper: as `split` gives it."""
        raise NotImplementedError

    def due(self, step: int) -> bool:
        """Whether an update begins with what `renewed` gives."""
        return False

    def renewed(self, step: int, carried: Mapping[str, Array]) -> dict[str, Array]:
        """What is carried, as an update is to begin with it."""
        return dict(carried)


@dataclass(frozen=True)
class Rated(Optimizer):
    """An optimizer with a learning rate. slots: names of the state that each parameter has."""

    rate: Rate
    clip: float | None = field(default=None, kw_only=True)
    slots: ClassVar[tuple[str, ...]] = ()
    scalars: ClassVar[tuple[str, ...]] = ("rate",)

    def __post_init__(self) -> None:
        as_schedule(self.rate)
        if self.clip is not None and not self.clip > 0:
            raise TrainingError(f"clip: got {self.clip}, expected a norm above 0")

    def numbers(self, step: int) -> Array:
        return np.array([self._number(name, step) for name in self.scalars], np.float64).astype(np.float32)

    def _number(self, name: str, step: int) -> float:
        return as_schedule(self.rate)(step)

    def used_slots(self) -> tuple[str, ...]:
        return self.slots

    def __str__(self) -> str:
        rest = [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in vars(self).items() if k != "rate"]
        return f"{type(self).__name__}({as_schedule(self.rate)}, {', '.join(rest)})"


@dataclass(frozen=True)
class SGD(Rated):
    """v = momentum v + g, p = p - rate v; nesterov: p = p - rate (g + momentum v). weight_decay adds its part of p to
    g."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    slots: ClassVar[tuple[str, ...]] = ("momentum",)

    def used_slots(self) -> tuple[str, ...]:
        return self.slots if self.momentum else ()

    def update(
        self, p: Value, grad: Value, state: Sequence[Value], held: Sequence[Value], hyper: tuple[Value, ...]
    ) -> list[Value]:
        if not self.momentum:
            grad = grad + p * self.weight_decay if self.weight_decay else grad
            return [p - grad * (hyper[0] if p.rank else p.writer.reshape(hyper[0], ()))]
        direct, along = (1.0, self.momentum) if self.nesterov else (0.0, 1.0)
        types = [(p.dtype, p.shape)] * 2
        return p.writer.call(
            function("MomentumUpdate", p.writer.opset),
            types,
            p,
            grad,
            *state,
            *hyper,
            momentum=float(self.momentum),
            decay=float(self.weight_decay),
            direct=direct,
            along=float(along),
        )


@dataclass(frozen=True)
class Adam(Rated):
    """m and v are running means of g and g^2: p = p - rate m' / (sqrt(v') + epsilon), both corrected for their start at
    0.

    Source: Kingma and Ba, Adam, 2014, arXiv:1412.6980, algorithm 1. weight_decay adds its part of p to g.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    slots: ClassVar[tuple[str, ...]] = ("mean", "square")
    scalars: ClassVar[tuple[str, ...]] = ("rate", "root", "kept")

    def _number(self, name: str, step: int) -> float:
        """rate: rate / (1 - b1^t); root: 1 / sqrt(1 - b2^t), with t counted from 1; kept: what p is multiplied by."""
        b1, b2 = self.betas
        if name == "kept":
            return 1.0
        if name == "rate":
            return as_schedule(self.rate)(step) / (1.0 - b1 ** (step + 1))
        return float((1.0 - b2 ** (step + 1)) ** -0.5)

    def update(
        self, p: Value, grad: Value, state: Sequence[Value], held: Sequence[Value], hyper: tuple[Value, ...]
    ) -> list[Value]:
        b1, b2 = self.betas
        types = [(p.dtype, p.shape)] * 3
        return p.writer.call(
            function("AdamUpdate", p.writer.opset),
            types,
            p,
            self._decayed(p, grad),
            *state,
            *hyper,
            beta1=b1,
            beta2=b2,
            rest1=1.0 - b1,
            rest2=1.0 - b2,
            epsilon=self.epsilon,
        )

    def _decayed(self, p: Value, grad: Value) -> Value:
        return grad + p * self.weight_decay if self.weight_decay else grad


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay takes rate * weight_decay of p itself, past the means.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2017, arXiv:1711.05101, algorithm 2.
    """

    weight_decay: float = 0.01

    def _number(self, name: str, step: int) -> float:
        return 1.0 - as_schedule(self.rate)(step) * self.weight_decay if name == "kept" else super()._number(name, step)

    def _decayed(self, p: Value, grad: Value) -> Value:
        return grad


def clipped(writer: Writer, grads: Mapping[str, Value], norm: float) -> dict[str, Value]:
    """Gradients times min(1, norm / their norm over all of them)."""
    squares = [writer.op("ReduceSumSquare", g, keepdims=0) for g in grads.values()]
    total = writer.op("Sqrt", sum(squares[1:], squares[0]))
    factor = writer.op("Min", writer.like(1.0, total), writer.like(norm, total) / (total + 1e-6))
    return {name: g * factor for name, g in grads.items()}


OPTIMIZERS = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
"""By the names that the command takes."""


def check_optimizer(optimizer: object) -> None:
    """Raises TrainingError for what is none."""
    if not isinstance(optimizer, Optimizer):
        names = ", ".join(kind.__name__ for kind in OPTIMIZERS.values())
        raise TrainingError(f"optimizer: got {optimizer!r}, expected one as Adam(1e-3), of {names}")
