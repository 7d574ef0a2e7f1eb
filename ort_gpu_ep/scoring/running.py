"""Runs a session on rows: in batches of the model's size, around rows that it refuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ort_gpu_ep.errors import DeviceError, GpuEpError, OutOfDeviceMemoryError, ScoringError
from ort_gpu_ep.scoring.columns import Array
from ort_gpu_ep.scoring.model import Model, Value

Run = Callable[[Mapping[str, Array]], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Scored:
    """arrays: outputs [m, ...] of the m rows that the model took. errors: by row, why it refused the others."""

    arrays: dict[str, Array]
    errors: dict[int, str]


class Busy:
    """The time in which at least one run was under way, of all threads together."""

    def __init__(self) -> None:
        self._lock, self._runs, self._since_s, self._total_s = threading.Lock(), 0, 0.0, 0.0

    @contextmanager
    def run(self) -> Iterator[None]:
        with self._lock:
            self._runs += 1
            self._since_s = time.perf_counter() if self._runs == 1 else self._since_s
        try:
            yield
        finally:
            with self._lock:
                self._runs -= 1
                self._total_s += time.perf_counter() - self._since_s if self._runs == 0 else 0.0

    @property
    def total_s(self) -> float:
        with self._lock:
            return self._total_s + (time.perf_counter() - self._since_s if self._runs else 0.0)


def open_session(path: str | bytes, adapter: str, options: Mapping[str, Any]) -> Any:
    """A session on one adapter, or on the CPU (`cpu`): what the GPU can't do is an error, never silently the CPU's
    work."""
    import onnxruntime

    from ort_gpu_ep.session.session import InferenceSession

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # several processes share the cores
    own = {"placement": "cpu"} if adapter == "cpu" else {"placement": "gpu", "adapter": adapter, "strict": "1"}
    return InferenceSession(path, settings, provider_options={**own, **options})


def score_rows(run: Run, model: Model, feeds: Mapping[str, Array]) -> Scored:
    """All rows that the model takes. A batch that it refuses is halved until the rows are found.

    Raises DeviceError, if it is the device that can't; ScoringError, for outputs without a row for each row.
    """
    count = len(next(iter(feeds.values())))
    pieces, errors = list[list[Array]](), dict[int, str]()
    step = model.batch or count
    for start in range(0, count, step):
        part = {name: a[start : start + step] for name, a in feeds.items()}
        for place, half in _halved(run, model, part, start):
            if isinstance(half, str):
                errors[place] = half
            else:
                pieces.append(half)
    arrays = {value.name: _joined([p[k] for p in pieces]) for k, value in enumerate(model.outputs)} if pieces else {}
    return Scored(arrays, errors)


def _joined(parts: list[Array]) -> Array:
    """Rows of different sizes stay apart only until here: their parts can't be one array."""
    if len({p.shape[1:] for p in parts}) > 1:
        raise ScoringError("an output's rows have different sizes within one batch; score with --batch 1")
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _halved(run: Run, model: Model, feeds: dict[str, Array], start: int) -> Iterator[tuple[int, list[Array] | str]]:
    """(first row, outputs) or (row, why it was refused), in order."""
    count = len(next(iter(feeds.values())))
    try:
        yield start, _run(run, model, feeds, count)
        return
    except OutOfDeviceMemoryError:
        if count == 1:
            raise
    except (DeviceError, ScoringError):
        raise
    except Exception as error:
        if not is_refusal(error):
            raise
        if count == 1:
            yield start, f"{type(error).__name__}: {error}"[:1000]
            return
    middle = count // 2
    for part, place in ((slice(None, middle), start), (slice(middle, None), start + middle)):
        yield from _halved(run, model, {name: a[part] for name, a in feeds.items()}, place)


def is_refusal(error: Exception) -> bool:
    """Whether it is the rows that the model does not take."""
    return type(error).__module__.startswith("onnxruntime") or (
        isinstance(error, ValueError) and not isinstance(error, GpuEpError)
    )


def _run(run: Run, model: Model, feeds: dict[str, Array], count: int) -> list[Array]:
    """A run of these rows, filled up with the last one to the model's batch."""
    missing = (model.batch or count) - count
    if missing:
        feeds = {name: np.concatenate([a, np.repeat(a[-1:], missing, 0)]) for name, a in feeds.items()}
    arrays = list(run(feeds))
    _check(model.outputs, {v.name: np.asarray(f) for v, f in zip(model.outputs, arrays, strict=True)}, count + missing)
    return [f[:count] for f in arrays] if missing else arrays


def _check(outputs: Sequence[Value], arrays: Mapping[str, Array], rows: int) -> None:
    """Raises ScoringError for an output without a row for each row that went in, or of another shape than the model
    states."""
    for value in outputs:
        got = arrays[value.name].shape
        if not got or got[0] != rows:
            raise ScoringError(
                f"output {value.name!r} has the shape {list(got)} for {rows} rows, expected one row for each: "
                f"leave it out "
                "(--outputs names those that are wanted)"
            )
        if value.count is not None and got[1:] != value.inner:
            raise ScoringError(
                f"output {value.name!r} has rows of {list(got[1:])}, the model's file says {list(value.inner)}"
            )
