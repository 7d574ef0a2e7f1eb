"""Plans with kernels on matrix units, whose pipelines take seconds to compile: made in the background, while a plan without them serves the
runs.

A run never waits for them. When they are there, the plan with them takes the place of the other one between two runs, and what that had on
the device is freed. Where they fail, the plan without stays, and so do all later ones of the program.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, replace
from typing import Any

from ort_gpu_ep.device import background
from ort_gpu_ep.errors import OutOfDeviceMemoryError, UnsupportedNodeError, forget_frames
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels import questions, target
from ort_gpu_ep.kernels.registry import UnknownValueError
from ort_gpu_ep.kernels.target import SUBGROUP_MATRIX
from ort_gpu_ep.runtime.context import PlanContext, UnwantedError
from ort_gpu_ep.runtime.plans import Key, Plans
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.scheduler.plan import Dispatch, Plan
from ort_gpu_ep.scheduler.template import Template

log = logging.getLogger("ort_gpu_ep")

PATIENCE_S = 0.1
"""So long a plan waits for its pipelines on matrix units: a driver that has compiled them before needs a few milliseconds for each, and a
second plan would cost more."""

MAX_RECORDS = 8
"""Plans that a program tells of, the latest ones."""


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """A plan on matrix units that was not there for the first run of its sizes.

    inputs: types of that run. pending: it is being made. seconds: what making it took. why: what failed; empty where nothing did.
    """

    inputs: tuple[str, ...]
    pending: bool = True
    seconds: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"{', '.join(self.inputs)}: no matrix units are used: {self.why}"
        return f"{', '.join(self.inputs)}: " + (
            "kernels on matrix units are being compiled beside the runs, which go by kernels without them until then" if self.pending else
            f"kernels on matrix units were compiled beside the first runs in {self.seconds:.1f} s")


@dataclass(eq=False)
class Making:
    """A plan that is being made. template: of it. instead: of the one that runs have meanwhile. pipelines: of its kernels on units."""

    template: Template
    instead: Template
    types: tuple[TensorType, ...]
    pipelines: list[Future[Any]]
    begin_s: float


class UnitPlans:
    """Those of one program. The context's lock is held, but where a method says otherwise.

    later: whether any is made in the background. values_of: the content of inputs that a set of types counts with.
    """

    def __init__(self, context: PlanContext, plans: Plans, later: bool, values_of: Callable[[Key], Mapping[int, Array]]) -> None:
        self._context, self._plans, self._later, self._values_of = context, plans, later, values_of
        self._changed, self._pending = threading.Condition(threading.Lock()), 0
        self._records: list[UnitPlan] = []

    @property
    def records(self) -> tuple[UnitPlan, ...]:
        """Needs no lock."""
        with self._changed:
            return tuple(self._records)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until none is being made; whether that is so. Without the lock."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout_s)

    def begin(self, template: Template, types: tuple[TensorType, ...], values: Mapping[int, Array]) -> Making | None:
        """Has a plan's pipelines on matrix units compiled. None where they are there at once, or there is no way without them."""
        begin_s, steps = time.perf_counter(), self._slow(template.plan) if self._later else []
        if not steps or target.FORCING or questions.are_apart():
            return None
        try:
            making = self._begun(steps)
        except RuntimeError:        # no thread begins any more at exit
            return None
        done, open_ones = wait(making, PATIENCE_S, FIRST_EXCEPTION)
        if not open_ones and not any(future.exception() for future in done):
            return None
        try:
            return Making(template, self._context.template(types, values, units=False), types, making, begin_s)
        except (UnsupportedNodeError, UnknownValueError) as error:
            log.info("%s: runs wait for kernels on matrix units: no plan without them: %s", self._context.graph.name, error)
            return None

    def follow(self, making: Making, first: Prepared) -> None:
        """Has the plan take the place of the one that runs have meanwhile, when it is there."""
        record = UnitPlan(tuple(map(str, making.types)))
        with self._changed:
            self._pending += 1
            self._records = [*self._records, record][-MAX_RECORDS:]
        background.background.add(lambda: self._finish(making, first, record))

    def _slow(self, plan: Plan) -> list[Dispatch]:
        """Its steps on matrix units, one of each text."""
        steps = (*self._context.steps(plan), *self._context.prologue.missing(plan))
        slow = [step for step in steps if isinstance(step, Dispatch) and SUBGROUP_MATRIX in step.kernel.features]
        return list({(self._context.text(step), len(step.awaited)): step for step in slow}.values())

    def _begun(self, steps: Sequence[Dispatch]) -> list[Future[Any]]:
        """The pipelines of steps, on threads of their own; one core is left for the runs. Raises RuntimeError where no thread begins.

        Not a ThreadPoolExecutor's: Python waits at exit for all that one was given, before background.ending() can be seen.
        """
        futures = [Future[Any]() for _ in steps]
        left = deque(zip(steps, futures, strict=True))

        def work() -> None:
            while left:
                try:
                    step, future = left.popleft()
                except IndexError:      # another thread has taken it
                    return
                try:
                    self._context.check_wanted()
                    future.set_result(self._context.pipeline(step))
                except BaseException as error:      # for whoever asks for the result
                    future.set_exception(error)

        for _ in range(min(len(steps), max(1, (os.cpu_count() or 1) - 1))):
            threading.Thread(target=work, name="ort_gpu_ep-units").start()
        return futures

    def _finish(self, making: Making, first: Prepared, record: UnitPlan) -> None:
        """On the thread of background.py, without the lock."""
        context, why, is_wanted = self._context, "", True
        try:
            kept = self._pipelines(making)
            with context.lock:
                context.check_wanted()
                if not first.closed:        # else its sizes get a new plan, which finds these pipelines
                    self._switch(making.template, first)
            del kept
        except UnwantedError:
            is_wanted = False
        except Exception as error:      # the plan without goes on
            forget_frames(error)
            is_wanted = context.is_wanted
            why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        seconds = time.perf_counter() - making.begin_s
        if why and is_wanted:
            log.warning("%s for %s: no matrix units are used: %s", context.graph.name, ", ".join(record.inputs), why)
            with context.lock:
                context.without_units = True
        with self._changed:
            done = [replace(record, pending=False, seconds=seconds, why=why)] if is_wanted else []
            self._records = [new for old in self._records for new in (done if old is record else [old])]
            self._pending -= 1
            self._changed.notify_all()

    def _pipelines(self, making: Making) -> list[Any]:
        """All that the plan needs, those on units first. Without the lock."""
        pipelines = [future.result() for future in making.pipelines]
        context, plan = self._context, making.template.plan
        with context.lock:
            context.check_wanted()
            replaced = [context.replaced[name] for name in plan.weights if name in context.replaced]
        for step in (*context.steps(plan), *plan.prologue, *replaced):
            context.check_wanted()
            pipelines.append(context.pipeline(step))
        return pipelines

    def _switch(self, template: Template, first: Prepared) -> None:
        """The next run of each of the first plan's sizes goes by the new one, where that holds for them. Raises DeviceError."""
        context, plans = self._context, self._plans
        keys = [key for key, (owner, _) in plans.found.items() if owner is first]
        try:
            prepared = plans.add(template)
        except OutOfDeviceMemoryError:      # beside the first one
            plans.drop(first)
            context.gpu.trim()
            prepared = plans.add(template)
        for key in keys:
            filled = template.fill(key[0], self._values_of(key))
            if filled is not None:
                plans.found[key] = prepared, filled
        if not first.closed:
            plans.drop(first)
        context.release_packed(plans.all)
