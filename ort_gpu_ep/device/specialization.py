"""Plans of their own for sizes that come again and again: with these sizes as constants, made while the general plan serves all runs.

Such a plan takes less time on the device and holds for one set of sizes, as that of a model which fixes them does. Planning, compiling and
the driver's part of it happen on the thread of background.py; a run never waits for them, and the next one after them uses the plan.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from ort_gpu_ep.device import background
from ort_gpu_ep.device.pipelines import pipeline
from ort_gpu_ep.device.prepared import Owner as PlanOwner
from ort_gpu_ep.device.prepared import Prepared
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import OutOfDeviceMemoryError, forget_frames
from ort_gpu_ep.graph import Array
from ort_gpu_ep.registry import Limits
from ort_gpu_ep.scheduler.plan import Dispatch, Plan
from ort_gpu_ep.scheduler.planner import Rewrite
from ort_gpu_ep.scheduler.template import Filled, Specialization, Template, make_template
from ort_gpu_ep.types import TensorType

Key: TypeAlias = tuple[tuple[TensorType, ...], tuple[bytes, ...]]
"""What the numbers of a plan follow from: the types of the inputs, and the content of those that decide on shapes."""

log = logging.getLogger("ort_gpu_ep")

MAX_SPECIALIZED = 3
"""Such plans that a program keeps; the least recently used goes first, and its sizes are the general plan's again."""

MAX_NBYTES = 256 << 20
"""Device memory that one may take besides what the program has: activations, and weights in an order of its own. See SHARE."""

SHARE = 16
"""One may take one part in so many of memory_limit_mb instead, where that is more: how much an adapter has, WebGPU does not tell."""

_MAX_FAILED = 8
"""Sets of sizes that a program remembers as not to be tried again."""


class Owner(PlanOwner, Protocol):
    """A program, see program.py. Under its lock, but for `closed`."""

    closed: bool
    rewrite: Rewrite | None
    replaced: dict[str, Dispatch]

    @property
    def limits(self) -> Limits:
        """What its plans are made for."""

    def missing_nbytes(self, plan: Plan) -> int:
        """Device memory of weights that a plan wants in an order in which they are not there."""

    def prepared(self, template: Template, compiled: list[Any] | None = None) -> Prepared:
        """Makes a plan one of this program's."""

    def switch(self, key: Key, prepared: Prepared, filled: Filled) -> None:
        """Runs of these sizes have this plan from now on."""

    def drop(self, prepared: Prepared) -> None:
        """Frees a plan."""


class _CancelledError(Exception):
    """Nobody wants the plan any more."""


class Specializer:
    """The specialised plans of one program. Its lock is held, but where a method says otherwise.

    plans: in use or being warmed up, the most recently used last. records: by the key that the program has for a set of sizes.
    """

    def __init__(self, program: Owner) -> None:
        self._program, self._gpu = program, program.gpu
        self.plans = list[Prepared]()
        self.records: dict[Key, Specialization] = {}
        self._wanted: set[Key] = set()

    def want(self, key: Key, types: tuple[TensorType, ...], values: Mapping[int, Array]) -> None:
        """Has a plan made for these sizes, unless that failed before."""
        if key not in self.records and key not in self._wanted:
            self._wanted.add(key)
            background.background.add(lambda: self._specialize(key, types, values))

    def _specialize(self, key: Key, types: tuple[TensorType, ...], values: Mapping[int, Array]) -> None:
        """On the thread of background.py, without the lock."""
        program, begin_s, why = self._program, time.perf_counter(), ""
        shown = tuple(map(str, types))
        try:
            self._make(key, types, values)
        except _CancelledError:
            return
        except Exception as error:      # the general plan goes on serving these sizes
            why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            forget_frames(error)
            log.warning("%s for %s is not specialised: %s", program.graph.name, ", ".join(shown), why)
        with program.lock:
            self._wanted.discard(key)
            self.records[key] = Specialization(shown, time.perf_counter() - begin_s, why)
            failed = [k for k, record in self.records.items() if record.why]
            for old in failed[:-_MAX_FAILED]:
                del self.records[old]

    def _make(self, key: Key, types: tuple[TensorType, ...], values: Mapping[int, Array]) -> None:
        """Plans, compiles, warms up, and then lets runs of these sizes have it. Without the lock."""
        program = self._program
        with program.lock:
            self._go_on()
            replaced = dict(program.replaced)
        template = make_template(program.graph, types, program.limits, program.rewrite, values, constant=True)
        filled = template.fill(types, values)
        assert filled is not None, "a template holds for the sizes that it was made for"
        with program.lock:
            self._check_room(template.plan, filled)      # before the pipelines, which may take a minute of a core
        more = [*template.plan.prologue, *(replaced[name] for name in template.plan.weights if name in replaced)]
        compiled = self._compiled([*template.plan.steps, *more])
        with program.lock:
            self._go_on()
            prepared = program.prepared(template, compiled[:len(template.plan.steps)])
        try:
            self._warm_up(prepared, filled)
            with program.lock:
                self._go_on()
                program.switch(key, prepared, filled)
                if len(self.plans) > MAX_SPECIALIZED:
                    program.drop(self.plans[0])
        except BaseException:
            with program.lock:
                if prepared in self.plans:
                    program.drop(prepared)
            raise

    def _go_on(self) -> None:
        """Raises _CancelledError, where the program or the process has ended or the device is lost."""
        if self._program.closed or self._gpu.lost or background.ending():
            raise _CancelledError

    def _compiled(self, steps: list[Any]) -> list[Any]:
        """The pipelines of steps, one after another: the cores are for whoever waits for a run. Without the lock."""
        found = []
        for step in steps:
            self._go_on()
            is_dispatch = isinstance(step, Dispatch)
            found.append(pipeline(self._gpu, step, self._program.config.checked_shaders, self._program.composer) if is_dispatch else None)
        return found

    def _check_room(self, plan: Plan, filled: Filled) -> None:
        nbytes, most = sum(filled.slots) + self._program.missing_nbytes(plan), max(MAX_NBYTES, self._gpu.memory_limit_nbytes // SHARE)
        if nbytes > most:
            raise OutOfDeviceMemoryError(
                f"it takes {nbytes >> 20} MiB of device memory besides; up to {most >> 20} MiB are given, "
                f"a {SHARE}th of memory_limit_mb where that is more")

    def _warm_up(self, prepared: Prepared, filled: Filled) -> None:
        """Has the driver compile what it leaves to the first dispatch, one step after another. Without the lock."""
        program, gpu, types = self._program, self._gpu, (*filled.inputs, *filled.outputs)
        tensors = list[Tensor]()
        try:
            for tensor in types:
                tensors.append(Tensor(gpu.allocate(tensor.nbytes), 0, tensor))
            inputs, outputs = tensors[:len(filled.inputs)], tensors[len(filled.inputs):]
            for step in range(len(prepared.template.plan.steps)):
                with program.lock:
                    self._go_on()
                    prepared.current(filled)
                    prepared.warm_up(step, inputs, outputs)
                gpu.finish()
        finally:
            for made in tensors:
                gpu.free(made.buffer)
