"""Stored decisions for a model, its input shapes and a device."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import onnxruntime

from ort_gpu_ep import store
from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.types import MAX_SHAPES, Shape
from ort_gpu_ep.placement import NAMES
from ort_gpu_ep.placement.decider import KINDS
from ort_gpu_ep.placement.estimate import KEPT, Size
from ort_gpu_ep.placement.rhythm import BUSY, RESTS
from ort_gpu_ep.placement.source import Source, settings_lock
from ort_gpu_ep.processes import known as processes

Signature: TypeAlias = tuple[tuple[str, Shape], ...]
"""Names and shapes of a run's inputs."""

Row: TypeAlias = tuple[str, str, Size, float, int]
"""Candidate, kind of run (decider.KINDS), size of the inputs, median seconds, runs."""


_SPEED = ("checked_shaders", "precision", "fusion", "memory_limit_mb", "quirks", "faults")
"""Options that change what a candidate takes."""

_OPTIONS = ("graph_optimization_level", "intra_op_num_threads", "inter_op_num_threads", "execution_mode")


@dataclass(frozen=True, slots=True)
class Decision:
    """Which candidate runs, and why.

    source: `measured` (in this session), `partial` (the same, but a candidate failed: not kept for later sessions),
    `cached` (measured by an earlier session), `floor` (the CPU is done before the GPU could have answered) or
    `predicted` (at least one candidate has not run with these inputs). measured_s: median seconds of each that has, and
    runs: how many of its runs count. predicted_s: of the others, by the partitioner or from other sizes. rest: how long
    the GPU rests between runs, a class of rhythm.py, for which all of that holds. work: see estimate.Size.
    """

    candidate: str
    source: str
    why: str
    measured_s: Mapping[str, float] = field(default_factory=dict)
    predicted_s: Mapping[str, float] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    rest: str = BUSY
    work: float = 1.0

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        pauses = f", with {RESTS[self.rest]}" if self.rest != BUSY else ""
        text = f"{self.candidate}, {self.source}{pauses}: {self.why}"
        for name in sorted({*self.measured_s, *self.predicted_s}):
            parts = []
            if name in self.measured_s:
                parts.append(
                    f"{self.measured_s[name] * 1e3:.3f} ms measured"
                    + (f" ({self.runs[name]} runs)" if name in self.runs else "")
                )
            if name in self.predicted_s:
                parts.append(f"{self.predicted_s[name] * 1e3:.3f} ms predicted")
            text += f"; {name} {', '.join(parts)}"
        return text


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """What a cut was made by: seconds of each node on the CPU, by (id, op), in a run with these input shapes."""

    cpu_s: Mapping[tuple[int, str], float]
    shapes: Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class Learnt:
    """What the sessions of one model know. candidate: that of the latest decision. rows: what runs took. floors: sizes
    for which the CPU is done before a GPU could have answered. grows: see estimate.Times, by candidate. times: of a
    cut, if one was made."""

    candidate: str
    rows: tuple[Row, ...]
    floors: tuple[Size, ...] = ()
    grows: Mapping[str, float] = field(default_factory=dict)
    times: NodeTimes | None = None


class Decisions:
    """What was learnt for one model on one device, on disk. found: by earlier sessions."""

    def __init__(self, cache_path: str, key: str) -> None:
        self._path = Path(cache_path) / "decisions" / f"{key}.json"
        self.found = store.read(self._path, _parse)

    def save(self, learnt: Learnt) -> None:
        """In place of what was there, except for sizes that only another session has met."""
        there = store.read(self._path, _parse)
        learnt = _joined(learnt, there) if there is not None else learnt
        sizes = list(dict.fromkeys([*(row[2] for row in learnt.rows), *learnt.floors]))
        place = {size: i for i, size in enumerate(sizes)}
        rows: dict[str, dict[str, list[list[float]]]] = {}
        for name, kind, size, seconds, runs in learnt.rows:
            rows.setdefault(name, {}).setdefault(kind, []).append([place[size], float(f"{seconds:.4g}"), runs])
        times = learnt.times
        store.write(
            self._path,
            {
                "candidate": learnt.candidate,
                "sizes": [[size.key, size.work] for size in sizes],
                "runs": rows,
                "floors": [place[size] for size in learnt.floors],
                "grows": learnt.grows,
                "times": times and {"cpu_s": [[*key, s] for key, s in times.cpu_s.items()], "shapes": times.shapes},
            },
        )


def _joined(learnt: Learnt, there: Learnt) -> Learnt:
    """What was learnt, and of other sizes what is there, as far as a session remembers them."""
    keys = {(name, kind, size.key) for name, kind, size, _, _ in learnt.rows}
    room = Counter((name, kind) for name, kind, *_ in learnt.rows)
    others = []
    for row in there.rows:
        if (row[0], row[1], row[2].key) not in keys and room[row[0], row[1]] < KEPT:
            room[row[0], row[1]] += 1
            others.append(row)
    floors = dict.fromkeys([*learnt.floors, *there.floors])
    return replace(
        learnt, rows=(*learnt.rows, *others), floors=tuple(floors)[:MAX_SHAPES], times=learnt.times or there.times
    )


def _parse(data: dict[str, Any]) -> Learnt:
    sizes = [
        Size(tuple((str(name), tuple(map(int, shape))) for name, shape in key), _positive(work))
        for key, work in data["sizes"]
    ]
    rows = tuple(
        (_one_of(NAMES, name), _one_of(KINDS, kind), _at(sizes, i), _positive(seconds), int(runs))
        for name, kinds in data["runs"].items()
        for kind, by_kind in kinds.items()
        for i, seconds, runs in by_kind
    )
    times = data["times"]
    if times is not None:
        cpu_s = {(int(number), str(op)): float(seconds) for number, op, seconds in times["cpu_s"]}
        times = NodeTimes(cpu_s, {name: tuple(map(int, shape)) for name, shape in times["shapes"].items()})
    return Learnt(
        _one_of(NAMES, data["candidate"]),
        rows,
        tuple(_at(sizes, i) for i in data["floors"]),
        {_one_of(NAMES, name): float(part) for name, part in data["grows"].items()},
        times,
    )


def _at(sizes: Sequence[Size], index: Any) -> Size:
    if not 0 <= int(index) < len(sizes):
        raise ValueError(f"size {index} of {len(sizes)}")
    return sizes[int(index)]


def _positive(value: Any) -> float:
    if not (math.isfinite(float(value)) and float(value) > 0.0):
        raise ValueError(f"{value}, expected a positive number")
    return float(value)


def _one_of(known: Sequence[str], text: Any) -> str:
    if text not in known:
        raise ValueError(f"{text!r}, expected one of {', '.join(known)}")
    return str(text)


def signature(feeds: Mapping[str, Any]) -> Signature:
    """Of the inputs of a run; what has no shape (a sequence, a map) counts by its name."""
    return tuple((name, _shape(value)) for name, value in feeds.items())


def work_of(given: Signature) -> float:
    """What times are taken to grow with: the number of elements of all inputs, at least 1."""
    return max(float(sum(math.prod(shape) for _, shape in given)), 1.0)


def _shape(value: Any) -> Shape:
    shape = getattr(value, "shape", ())
    return tuple(shape() if callable(shape) else shape)  # a method of OrtValue, an attribute of arrays


def speed_options(config: Config) -> dict[str, str]:
    """The options that decisions are kept by."""
    return {name: str(getattr(config, name)) for name in _SPEED}


def key_of(
    model: str | bytes, device: str, settings: Any, options: Mapping[str, str], digest: bytes | None = None
) -> str:
    """Names a model on a device: its content, what runs it, and with which settings. Raises OSError for a file that
    can't be read.

    digest: of its content, where it is known (Source.digest).
    """
    own = settings if settings is not None else onnxruntime.SessionOptions()
    facts = [device, onnxruntime.__version__, os.cpu_count(), processes.physical_cores(), sorted(options.items())]
    with settings_lock:
        facts += [str(getattr(own, name)) for name in _OPTIONS]
    return hashlib.blake2b((digest or Source(model).digest()) + json.dumps(facts).encode(), digest_size=16).hexdigest()
