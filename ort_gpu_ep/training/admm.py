"""Pruning while training: ADMM draws weights to where most of them are 0, then those that are left are trained alone.

Source: Zhang et al., A Systematic DNN Weight Pruning Framework using Alternating Direction Method of Multipliers, 2018,
arXiv:1804.03294.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training.optimizers import Optimizer
from ort_gpu_ep.training.source import matching
from ort_gpu_ep.training.writer import Value

GOAL, DUAL, MASK = "goal", "dual", "mask"


@dataclass(frozen=True)
class Admm(Optimizer):
    """Another optimizer, with weights pruned on the way.

    sparsity: patterns of weights, and the part of the elements of each that becomes 0; of several that match the first
    counts. The loss has rho / 2 |W - Z + U|^2 added: Z, the goal, is W + U with its smallest elements 0; U, the dual,
    sums up how far W is from it. Both are renewed after each `every` updates, on the host. From update `prune_at` on
    the smallest elements of W are 0 and stay so.
    """

    optimizer: Optimizer
    sparsity: Mapping[str, float]
    every: int
    prune_at: int
    rho: float = 0.01

    def __post_init__(self) -> None:
        for pattern, part in self.sparsity.items():
            if not 0 < part < 1:
                raise TrainingError(
                    f"Admm: {pattern!r}: got {part}, expected the part of the elements that becomes 0, between 0 and 1"
                )
        if not self.sparsity or self.every < 1 or self.prune_at < 0 or not self.rho > 0:
            raise TrainingError(
                f"Admm: got {len(self.sparsity)} patterns, every={self.every}, prune_at={self.prune_at}, "
                f"rho={self.rho}; "
                "expected at least 1 pattern, at least 1, at least 0, more than 0"
            )

    @property
    def scalars(self) -> tuple[str, ...]:
        return (*self.optimizer.scalars, "rho")

    @property
    def clip(self) -> float | None:
        return self.optimizer.clip

    def numbers(self, step: int) -> Array:
        return np.append(self.optimizer.numbers(step), np.float32(self.rho if step < self.prune_at else 0.0))

    def used_slots(self) -> tuple[str, ...]:
        return self.optimizer.used_slots()

    def chosen(self, names: Sequence[str]) -> Admm:
        """The same with the parameters' names for the patterns."""
        parts = {
            n: part
            for pattern, part in reversed(list(self.sparsity.items()))
            for n in matching("Admm", [pattern], names)
        }
        return replace(self, sparsity=parts)

    def held(self, name: str) -> dict[str, float]:
        return {GOAL: 0.0, DUAL: 0.0, MASK: 1.0} if name in self.sparsity else {}

    def split(self, hyper: Value) -> tuple[Value, ...]:
        count = len(self.optimizer.scalars)
        return (
            *self.optimizer.split(hyper.writer.slice(hyper, 0, 0, count)),
            hyper.writer.slice(hyper, 0, count, count + 1),
        )

    def update(
        self, p: Value, grad: Value, state: Sequence[Value], held: Sequence[Value], hyper: tuple[Value, ...]
    ) -> list[Value]:
        *own, rho = hyper
        if not held:
            return self.optimizer.update(p, grad, state, (), tuple(own))
        goal, dual, mask = held
        new, *states = self.optimizer.update(p, grad + (p - goal + dual) * rho, state, (), tuple(own))
        return [new * mask, *states]

    def due(self, step: int) -> bool:
        return step == self.prune_at or (step < self.prune_at and step % self.every == 0)

    def renewed(self, step: int, carried: Mapping[str, Array]) -> dict[str, Array]:
        state = dict(carried)
        for name, part in self.chosen(
            [n.removesuffix("." + MASK) for n in carried if n.endswith("." + MASK)]
        ).sparsity.items():
            weight = carried[name]
            goal, dual, mask = (f"{name}.{slot}" for slot in (GOAL, DUAL, MASK))
            if step == self.prune_at:
                state[mask] = kept(weight, part)
                state[name] = weight * state[mask]
            else:
                target = weight + carried[dual]
                state[goal] = target * kept(target, part)
                state[dual] = target - state[goal]
        return state

    def __str__(self) -> str:
        parts = ", ".join(f"{pattern}: {part:g}" for pattern, part in self.sparsity.items())
        return f"Admm({self.optimizer}, {{{parts}}}, every={self.every}, prune_at={self.prune_at}, rho={self.rho:g})"


def kept(array: Array, part: float) -> Array:
    """1 where an element is kept, 0 for this part of them, those of the smallest magnitude."""
    mask = np.ones(array.size, np.float32)
    mask[np.argsort(np.abs(array), axis=None, kind="stable")[: round(part * array.size)]] = 0.0
    return mask.reshape(array.shape)
