"""Plans compiled for fixed sizes that occur often, made in the background while the general plan serves all runs.

Such a plan takes less time on the device and holds for one set of sizes, as that of a model which fixes them does. Planning, compiling and
the driver's part of it happen on the thread of background.py; a run never waits for them, and the next one after them uses the plan.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from ort_gpu_ep.device import background
from ort_gpu_ep.device.allowance import RUNS
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import OutOfDeviceMemoryError, forget_frames
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.runtime.context import PlanContext, UnwantedError
from ort_gpu_ep.runtime.plans import Key, Plans
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.scheduler.plan import Plan
from ort_gpu_ep.scheduler.template import Filled, Specialization

log = logging.getLogger("ort_gpu_ep")

MAX_SPECIALIZED = 3
"""Such plans that a program keeps; the least recently used goes first, and its sizes are the general plan's again."""

MAX_NBYTES = 256 << 20
"""Device memory that one may take besides what the program has: activations, and weights in an order of its own. See SHARE."""

SHARE = 16
"""One may take one part in so many of memory_limit_mb instead, where that is more: how much an adapter has, WebGPU does not tell."""

_MAX_FAILED = 8
"""Sets of sizes that a program remembers as not to be tried again."""


class Specializer:
    """Makes the specialised plans of one program. The context's lock is held, but where a method says otherwise."""

    def __init__(self, context: PlanContext, plans: Plans) -> None:
        self._context, self._plans, self._gpu = context, plans, context.gpu
        self._wanted: set[Key] = set()

    def want(self, key: Key, types: tuple[TensorType, ...], values: Mapping[int, Array]) -> None:
        """Has a plan made for these sizes, unless that failed before."""
        if key not in self._plans.records and key not in self._wanted:
            self._wanted.add(key)
            background.background.add(lambda: self._specialize(key, types, values))

    def _specialize(self, key: Key, types: tuple[TensorType, ...], values: Mapping[int, Array]) -> None:
        """On the thread of background.py, without the lock."""
        context, records, begin_s, why = self._context, self._plans.records, time.perf_counter(), ""
        shown = tuple(map(str, types))
        try:
            self._make(key, types, values)
        except UnwantedError:
            return
        except Exception as error:      # the general plan goes on serving these sizes
            why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            forget_frames(error)
            log.warning("%s for %s is not specialised: %s", context.graph.name, ", ".join(shown), why)
        with context.lock:
            self._wanted.discard(key)
            records[key] = Specialization(shown, time.perf_counter() - begin_s, why)
            failed = [k for k, record in records.items() if record.why]
            for old in failed[:-_MAX_FAILED]:
                del records[old]

    def _make(self, key: Key, types: tuple[TensorType, ...], values: Mapping[int, Array]) -> None:
        """Plans, compiles, warms up, and then lets runs of these sizes have it. Without the lock."""
        context, plans = self._context, self._plans
        with context.lock:
            self._context.check_wanted()
            replaced = dict(context.replaced)
        template = context.template(types, values, constant=True)
        filled = template.fill(types, values)
        assert filled is not None, "a template holds for the sizes that it was made for"
        with context.lock:
            self._check_room(template.plan, filled)      # before the pipelines, which may take a minute of a core
        more = [*template.plan.prologue, *(replaced[name] for name in template.plan.weights if name in replaced)]
        steps = context.steps(template.plan)
        compiled = self._compiled([*steps, *more])
        with context.lock:
            self._context.check_wanted()
            prepared = plans.add(template, compiled[:len(steps)])
        try:
            self._warm_up(prepared, filled)
            with context.lock:
                self._context.check_wanted()
                plans.switch(key, prepared, filled)
                plans.drop_oldest(plans.specialized, MAX_SPECIALIZED)
        except BaseException:
            with context.lock:
                if prepared in plans.specialized:
                    plans.drop(prepared)
            raise

    def _compiled(self, steps: list[Any]) -> list[Any]:
        """The pipelines of steps, one after another: the cores are for whoever waits for a run. Without the lock."""
        pipelines = []
        for step in steps:
            self._context.check_wanted()
            pipelines.append(self._context.pipeline(step))
        return pipelines

    def _check_room(self, plan: Plan, filled: Filled) -> None:
        nbytes, most = sum(filled.slots) + self._context.missing_nbytes(plan), max(MAX_NBYTES, self._gpu.memory_limit_nbytes // SHARE)
        if nbytes > most:
            raise OutOfDeviceMemoryError(
                f"it takes {nbytes >> 20} MiB of device memory besides; up to {most >> 20} MiB are given, "
                f"a {SHARE}th of memory_limit_mb where that is more")

    def _warm_up(self, prepared: Prepared, filled: Filled) -> None:
        """Has the driver compile what it leaves to the first dispatch, one step after another. Without the lock."""
        context, gpu, types = self._context, self._gpu, (*filled.inputs, *filled.outputs)
        tensors = list[Tensor]()
        try:
            for tensor in types:
                tensors.append(Tensor(gpu.allocate(tensor.nbytes, RUNS), 0, tensor))
            inputs, outputs = tensors[:len(filled.inputs)], tensors[len(filled.inputs):]
            for step in range(len(context.steps(prepared.template.plan))):
                with context.lock:
                    self._context.check_wanted()
                    prepared.current(filled)
                    prepared.warm_up(step, inputs, outputs)
                gpu.finish()
        finally:
            for scratch in tensors:
                gpu.free(scratch.buffer)
