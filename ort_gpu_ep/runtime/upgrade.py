"""A better plan for runs that have one: planned, compiled and set up beside them, on the thread of background.py.

No run waits for it. What it is for says which plan it is, what it may take, and how runs come to have it:
better_plans.py for sizes that come often and for matrix units, joined_runs.py for runs of several threads. Where it
fails, runs go on by what they have. It is given up where nobody wants it any more: the program or the process ends, or
the device is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from ort_gpu_ep.device import background
from ort_gpu_ep.errors import forget_frames
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.runtime.context import PlanContext, UnwantedError
from ort_gpu_ep.scheduler.plan import Plan
from ort_gpu_ep.scheduler.template import Filled, Template

log = logging.getLogger("ort_gpu_ep")


class Upgrade:
    """One of them. types, values: of the runs that it is wanted for. plan: how it is planned, as PlanContext.template
    has it.

    failed: what the log says in front of the reason where it fails. The methods are called on the thread of
    background.py, without the context's lock but where one says otherwise.
    """

    failed = ""

    def __init__(
        self, context: PlanContext, types: tuple[TensorType, ...], values: Mapping[int, Array], **plan: bool
    ) -> None:
        self.context, self.types, self.values, self._plan = context, types, values, plan
        self.template: Template | None = None  # None until it is planned

    def begin(self) -> None:
        """Has it made. Any thread."""
        background.background.add(self.make)

    def make(self) -> None:
        """Plans, compiles and sets it up. Raises nothing."""
        begin_s, why, is_wanted = time.perf_counter(), "", True
        try:
            self._make()
        except UnwantedError:
            is_wanted = False
        except Exception as error:  # runs go on by what they have
            forget_frames(error)
            why, is_wanted = f"{type(error).__name__}: {str(error).splitlines()[0]}", self.context.is_wanted
            if is_wanted:
                log.warning("%s: %s", self.failed, why)
        self.over(time.perf_counter() - begin_s, why, is_wanted)

    def _make(self) -> None:
        context = self.context
        with context.lock:
            self.check_wanted()
        template = self.template = self.template or context.template(self.types, self.values, **self._plan)
        filled = template.fill(self.types, self.values)
        assert filled is not None, "a template holds for the sizes that it was made for"
        with context.lock:
            self.check_wanted()
            self.check_plan(template.plan, filled)  # before the pipelines, which may take a minute of a core
            replaced = [context.replaced[name] for name in template.plan.weights if name in context.replaced]
            once = [*context.prologue.missing(template.plan), *replaced]
        steps = context.steps(template.plan)
        pipelines = [self._pipeline(step) for step in (*steps, *once)]
        self.install(template, filled, pipelines[: len(steps)])

    def _pipeline(self, step: Any) -> Any:
        """One after another: the cores are for whoever waits for a run."""
        self.check_wanted()
        return self.context.pipeline(step)

    def check_wanted(self) -> None:
        """Raises UnwantedError where nobody wants it any more. With the lock or without."""
        self.context.check_wanted()

    def check_plan(self, plan: Plan, filled: Filled) -> None:
        """Raises what speaks against this plan: memory that it takes, say. With the lock."""

    def install(self, template: Template, filled: Filled, compiled: list[Any]) -> None:
        """Lets runs have it. compiled: the pipelines of the plan's steps, see PlanContext.steps."""
        raise NotImplementedError

    def over(self, seconds: float, why: str, is_wanted: bool) -> None:
        """Called in any case, behind all else. why: it failed."""
