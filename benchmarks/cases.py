"""What the benchmarks share: models with inputs, and timing in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime

import models
from models import pretrained
from models.inputs import make_inputs, model_inputs


def load(name: str) -> tuple[Any, dict[str, Any]]:
    """A model (bytes or a path) and inputs for it. name: of a builder or of a pretrained model of models/."""
    if name in models.BUILDERS:
        model = models.build(name)
        return model.SerializeToString(), make_inputs(model_inputs(model))
    entry = pretrained.entry(name)
    return str(pretrained.fetch(name)), make_inputs(entry.inputs)


def names() -> list[str]:
    """Every builder and every pretrained model."""
    return [*models.BUILDERS, *(e.name for e in pretrained.entries())]


def quiet() -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return settings


def waited(session: Any) -> Any:
    """The session when it has its GPU, if it is one of ours: its first run tries the candidates then, and waits for
    that."""
    if hasattr(session, "wait_ready"):
        session.wait_ready()
    return session


def in_blocks(sides: Mapping[str, Callable[[], object]], runs: int, blocks: int = 4) -> dict[str, np.ndarray]:
    """Milliseconds of `runs` steady runs of each side: in blocks, because run by run in turn each side would meet the
    other's threads, which onnxruntime lets spin after a run. The first 0.6 s of a side, in which a GPU raises its
    clock, and 0.3 s of its other blocks do not count: a GPU that rested while a slow side ran is slow to begin. Every
    other round goes backwards."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    for i in range(blocks):
        for side in reversed(list(sides)) if i % 2 else sides:
            time.sleep(0.02)
            begin = time.perf_counter()
            while time.perf_counter() - begin < (0.3 if i else 0.6):
                sides[side]()
            for _ in range(-(-runs // blocks)):
                start = time.perf_counter()
                sides[side]()
                times[side].append((time.perf_counter() - start) * 1e3)
    return {side: np.array(t) for side, t in times.items()}


def in_turn(
    sides: Mapping[str, Callable[[], object]],
    runs: int,
    clock: Callable[[], float] = time.perf_counter,
    warm_s: float = 0.0,
) -> dict[str, np.ndarray]:
    """Milliseconds of each run of each side, by a clock. The sides take turns, every other round backwards: a drift
    hits all of them.

    warm_s: seconds of runs before those that count, besides five of each side.
    """
    for call in sides.values():
        for _ in range(5):
            call()
    until = time.perf_counter() + warm_s
    while time.perf_counter() < until:
        for call in sides.values():
            call()
    times: dict[str, list[float]] = {side: [] for side in sides}
    for i in range(runs):
        for side in reversed(list(sides)) if i % 2 else sides:
            start = clock()
            sides[side]()
            times[side].append((clock() - start) * 1e3)
    return {side: np.array(t) for side, t in times.items()}
