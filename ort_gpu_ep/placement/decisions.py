"""What was decided for a model, its input shapes and a device; kept on disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnxruntime
import psutil

from ort_gpu_ep import store
from ort_gpu_ep.types import Shape

Signature: TypeAlias = tuple[tuple[str, Shape], ...]
"""Names and shapes of a run's inputs."""

FORMAT = 2
MAX_SIGNATURES = 256
"""Shapes that are remembered for one model, on disk and by a session; the oldest go first."""

_OPTIONS = ("graph_optimization_level", "intra_op_num_threads", "inter_op_num_threads", "execution_mode")


@dataclass(frozen=True, slots=True)
class Decision:
    """Which candidate runs, and why.

    measured_s: median seconds of each candidate that was run. predicted_s: what the partitioner expected.
    source: `measured` (in this session), `partial` (the same, but a candidate failed: not kept for later sessions), `cached` (measured
    by an earlier session), `floor` (the CPU is done before the GPU could have answered),
    `nearest` (measured for other shapes of this model) or `predicted` (not run).
    """

    candidate: str
    source: str
    why: str
    measured_s: Mapping[str, float] = field(default_factory=dict)
    predicted_s: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        text = f"{self.candidate}, {self.source}: {self.why}"
        for name in sorted({*self.measured_s, *self.predicted_s}):
            found = [f"{table[name] * 1e3:.3f} ms {word}" for word, table in
                     (("measured", self.measured_s), ("predicted", self.predicted_s)) if name in table]
            text += f"; {name} {', '.join(found)}"
        return text


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """What a cut was made by: seconds of each node on the CPU, by (id, op), in a run with these input shapes."""

    cpu_s: Mapping[tuple[int, str], float]
    shapes: Mapping[str, Shape]


class Decisions:
    """The decisions for one model on one device. times: those of the cut, if one was chosen."""

    def __init__(self, cache_path: str, key: str) -> None:
        self._path = Path(cache_path) / "decisions" / f"{key}.json"
        self._known, self.times = store.read(self._path, FORMAT, _parse) or (dict[str, Decision](), None)

    def get(self, signature: Signature) -> Decision | None:
        return self._known.get(str(signature))

    @property
    def latest(self) -> Decision | None:
        """The last one that was made, for any shapes."""
        return next(reversed(self._known.values()), None)

    def put(self, signature: Signature, decision: Decision, times: NodeTimes | None = None) -> None:
        """times: of the nodes, where the decision is a cut: a later session makes the same one of them."""
        self.times = times or self.times
        self._known.pop(str(signature), None)
        self._known[str(signature)] = decision
        while len(self._known) > MAX_SIGNATURES:
            self._known.pop(next(iter(self._known)))
        told = None if self.times is None else {"cpu_s": [[*key, s] for key, s in self.times.cpu_s.items()], "shapes": self.times.shapes}
        store.write(self._path, FORMAT, {"shapes": {text: asdict(d) for text, d in self._known.items()}, "times": told})


def _parse(data: dict[str, Any]) -> tuple[dict[str, Decision], NodeTimes | None]:
    known = {text: Decision(**{**found, "source": "cached"}) for text, found in data["shapes"].items()}
    if data["times"] is None:
        return known, None
    cpu_s = {(int(number), str(op)): float(seconds) for number, op, seconds in data["times"]["cpu_s"]}
    return known, NodeTimes(cpu_s, {name: tuple(map(int, shape)) for name, shape in data["times"]["shapes"].items()})


def signature(feeds: Mapping[str, Any]) -> Signature:
    """Of the inputs of a run; what has no shape (a sequence, a map) counts by its name."""
    return tuple((name, _shape(value)) for name, value in feeds.items())


def _shape(value: Any) -> Shape:
    shape = getattr(value, "shape", ())
    return tuple(shape() if callable(shape) else shape)     # a method of OrtValue, an attribute of arrays


def key_of(model: str | bytes, device: str, settings: Any, options: Mapping[str, str]) -> str:
    """Names a model on a device: its content, what runs it, and with which settings. Raises OSError for a file that can't be read.

    Content in files of its own (external data) counts by its size and time of change.
    """
    digest = hashlib.blake2b(digest_size=16)
    data = Path(model).read_bytes() if isinstance(model, str) else model
    digest.update(data)
    if isinstance(model, str) and b"location" in data:
        for name in _external_files(data):
            digest.update(_stamp(Path(model).parent / name))
    given = settings if settings is not None else onnxruntime.SessionOptions()
    facts = [device, onnxruntime.__version__, os.cpu_count(), psutil.cpu_count(logical=False), sorted(options.items())]
    facts += [str(getattr(given, name)) for name in _OPTIONS]
    digest.update(json.dumps(facts).encode())
    return digest.hexdigest()


def _external_files(data: bytes) -> Sequence[str]:
    model = onnx.ModelProto.FromString(data)
    return sorted({e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"})


def _stamp(path: Path) -> bytes:
    found = path.stat()
    return f"{path.name} {found.st_size} {found.st_mtime_ns}".encode()
