"""A step's session, whose parameters and state stay in the memory of its device.

Two sets of values take turns: what a step reads is there until it has succeeded. Losses go round through LOSSES places,
and so do feeds: steps then meet the same buffers again, so that no bind group is made and the next steps are recorded
while the host waits. Batches of a data set that is on the device have a slot for each of these places (gathered.py).

Steps are submitted together while the GPU is at work on earlier ones: a submission takes the host longer than the rest
of a step.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import OrtValue

from ort_gpu_ep.config import resolve
from ort_gpu_ep.errors import DeviceError
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.plugin import VENDOR_ID
from ort_gpu_ep.session.bound_runs import Runs, state_of
from ort_gpu_ep.session.session import InferenceSession
from ort_gpu_ep.training.data import Batch, DataSet, equal_weights
from ort_gpu_ep.training.feeding import Coming, Feed, coming
from ort_gpu_ep.training.gathered import Gathered, gathering, too_large
from ort_gpu_ep.training.step import LOSS, WEIGHT, TrainingStep

NEW = ".new"

LOSSES = 10
"""Steps after which the place of a loss is written again: an even number, as two sets of values take turns."""

SUBMISSION_S = 0.02
"""What steps that are submitted together take at most: drivers end work that takes seconds, and others wait for it."""

PAIR = 2
"""Short steps that are submitted together also where the GPU has nothing to do."""


def open_session(model: bytes, options: Mapping[str, Any]) -> InferenceSession:
    """A session of a step. On the GPU it is strict: the state is there, so a failing step is run again from a snapshot,
    not on the CPU; and no plan takes another's place after some steps: a step gives the same bits each time.
    """
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return InferenceSession(model, settings, provider_options={"strict": 1, "specialize": "off", **options})


def runs_whole(session: InferenceSession) -> bool:
    """Whether every node is on the GPU, in one partition."""
    state = state_of(session)
    return state is not None and len(state.partitions) == 1 and all(n.device == "gpu" for n in state.reports[-1].nodes)


def device_failure(session: InferenceSession, error: Exception) -> DeviceError | None:
    """What a device did, if that is why onnxruntime, or a copy, raised this."""
    if isinstance(error, DeviceError):
        return error
    state = state_of(session)
    cause = state.cause_of(error) if state is not None else None
    if isinstance(cause, DeviceError):
        return cause
    lost = state is not None and state.gpu is not None and state.gpu.lost
    return DeviceError(f"{lost} ({error})") if lost else None


class Resident:
    """A step on a device. Its state is `carried` at first, and changes with each run."""

    def __init__(self, step: TrainingStep, options: Mapping[str, Any], carried: Mapping[str, Array]) -> None:
        self.step, self._options = step, options
        self.session = open_session(step.model.SerializeToString(), options)
        self.on_gpu = state_of(self.session) is not None
        # what a worker's GPU holds, each step gets from the host
        here = self.on_gpu and resolve(options).isolation == "none"
        self.device = ("gpu", 0, VENDOR_ID) if here else ("cpu", 0)
        self._held = {n: self._value(carried[n]) for n in step.held}
        changing = {n: a for n, a in carried.items() if n not in self._held}
        self._sets = [
            {n: self._value(a) for n, a in changing.items()},
            {n: self._value(np.zeros_like(a)) for n, a in changing.items()},
        ]
        first = {n: np.zeros(shape, dtype) for n, (dtype, shape) in step.feeds.items()}
        first[WEIGHT] = equal_weights(len(first[WEIGHT]), len(first[WEIGHT]))
        self._feeds = {
            n: Feed(a, LOSSES, partial(self._own, self.session), here and self.on_gpu) for n, a in first.items()
        }
        self._losses = [self._own(self.session, np.zeros((), np.float32)) for _ in range(LOSSES)]
        self._runs = self._of_places([{} for _ in range(LOSSES)])
        self._gathered: Gathered | None = None
        self._gathering: Runs | None = None
        self._copied: Counter[str] = Counter()
        self._place = self._enqueued = self._submits = 0
        state = state_of(self.session)
        self._gpu = state.gpu if state is not None else None
        self._together, self._since, self._taken = 1, 0.0, 0
        self.run_s: list[float] = []

    def _value(self, array: Array) -> Any:
        """An array's content as a value on the device, which other sessions can read, too: those of an evaluation."""
        return OrtValue.ortvalue_from_numpy(np.array(array, order="C"), *self.device)

    def _own(self, session: InferenceSession, array: Array) -> Any:
        """A value on the device; since onnxruntime 1.30 of this session: what is copied there counts in its stats."""
        make = getattr(session, "create_ortvalue_from_shape_and_type", OrtValue.ortvalue_from_shape_and_type)
        value = make(array.shape, array.dtype.type, *self.device)
        value.update_inplace(array)
        return value

    @property
    def now(self) -> int:
        """The set of values that the next step reads."""
        return self._place % 2

    def _of_places(self, gathered: Sequence[Mapping[str, Any]]) -> Runs:
        """What the steps of each place read and write. gathered: feeds that have other slots than the rest."""
        values = []
        for place, slots in enumerate(gathered):
            now, new = self._sets[place % 2], self._sets[1 - place % 2]
            feeds = {n: feed.value(place) for n, feed in self._feeds.items()}
            values.append(
                (
                    {**feeds, **slots, **now, **self._held},
                    {**{n + NEW: v for n, v in new.items()}, LOSS: self._losses[place]},
                )
            )
        return Runs(self.session, values)

    def no_room(self, sizes: Mapping[str, int]) -> str:
        """Why a data set of arrays of these bytes can't be kept here; "" if it can."""
        state = state_of(self.session)
        if state is None or state.gpu is None:
            return "the GPU is in a worker process"
        batch = sum(math.prod(shape) * dtype.itemsize for n, (dtype, shape) in self.step.feeds.items() if n in sizes)
        return too_large(
            sizes, LOSSES * batch, resolve(self._options).memory_limit_mb << 20, state.gpu.limits.max_binding_nbytes
        )

    def hold(self, source: DataSet) -> str:
        """Keeps a data set on the device, in the place of the one before. Returns why that fails, "" if it does not."""
        if self._gathered is not None and self._gathered.source is source:
            return ""
        self._copied, self._gathered = self._copied + self._copies(), None
        batch = self.step.feeds[WEIGHT][1][0]
        session = open_session(gathering(source, batch, LOSSES).SerializeToString(), self._options)
        if not runs_whole(session):
            return "the adapter does not take the nodes that gather a batch"
        gathered = Gathered(source, batch, LOSSES, session, self._value, self._own)
        self._gathered, self._gathering = gathered, self._of_places(gathered.slots)
        return ""

    def run(self, batch: Batch) -> Any:
        """One step; returns the loss, where it is until LOSSES steps later. If it raises, the state is the one before
        it."""
        start, place = time.perf_counter(), self._place
        feeds, runs = self._brought(batch)
        waiting = self._waiting()
        for name, array in feeds.items():
            self._feeds[name].fill(place, array, waiting)
        runs.run(place)
        self._place = (place + 1) % LOSSES
        self._enqueued, self._taken = self._waiting() + 1, self._taken + 1
        if self._gpu is not None and (self._enqueued >= self._together or self._enqueued % PAIR == 0):
            self._gpu.submit_soon(self._enqueued >= self._together)
        self.run_s.append(time.perf_counter() - start)
        del self.run_s[:-100]
        return self._losses[place]

    def _waiting(self) -> int:
        """Steps that may not have been submitted yet."""
        submits = self._gpu.stats.submits if self._gpu is not None else 0
        if submits != self._submits:
            self._submits, self._enqueued = submits, 0
        return self._enqueued

    def _brought(self, batch: Batch) -> tuple[dict[str, Array], Runs]:
        """What the host has to bring for a step, and the runs that take the rest from where it is."""
        if (
            batch.rows is None
            or self._gathered is None
            or self._gathering is None
            or batch.rows.source is not self._gathered.source
        ):
            return batch.whole(), self._runs
        self._gathered.fetch(self._place, batch.rows)
        return batch.feeds, self._gathering

    def stats(self) -> dict[str, Any]:
        """The counts of the step's session, with the copies of those that gathered batches."""
        stats = self.session.stats()
        return {**stats, **{n: stats[n] + count for n, count in (self._copied + self._copies()).items()}}

    def _copies(self) -> Counter[str]:
        """Of the session that gathers batches now."""
        counts = self._gathered.session.stats() if self._gathered is not None else {}
        return Counter({n: count for n, count in counts.items() if "_to_" in n})

    @property
    def values(self) -> dict[str, Any]:
        """What is carried, on the device."""
        return {**self._sets[self.now], **self._held}

    def numbers(self, losses: Sequence[Any]) -> list[float]:
        """Losses that `run` gave, or `coming` of them, on the host; together they wait for the device once."""
        numbers = [float(v) if isinstance(v, Coming) else float(v.numpy().reshape(())) for v in coming(losses)]
        now = time.perf_counter()
        if self._taken:
            most = SUBMISSION_S * self._taken / max(now - self._since, 1e-9) if self._since else 1
            self._together = int(min(max(most, 1), LOSSES))
        self._since, self._taken = now, 0
        return numbers

    def read(self) -> dict[str, Array]:
        """What is carried, on the host."""
        return {name: np.array(value.numpy()) for name, value in self.values.items()}

    def write(self, carried: Mapping[str, Array]) -> None:
        """Sets what is carried."""
        values = self.values
        for name, array in carried.items():
            values[name].update_inplace(np.ascontiguousarray(array).reshape(array.shape))
