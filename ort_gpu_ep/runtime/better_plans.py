"""Upgrades of a program's plans: for fixed sizes that come often, and to kernels on matrix units, which take seconds to
compile.

A plan for fixed sizes takes less time on the device than a general one, which stays for all other sizes. A plan on
matrix units takes the place of one without them, between two runs, for all sizes that this had; then what that had on
the device is freed. Where matrix units fail, the plan without stays, and so do all later ones of the program.
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

from ort_gpu_ep.config import MEMORY_NBYTES
from ort_gpu_ep.device.allowance import RUNS
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import OutOfDeviceMemoryError, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.ir.types import MAX_TOLD, TensorType
from ort_gpu_ep.kernels import questions, target
from ort_gpu_ep.kernels.registry import UnknownValueError
from ort_gpu_ep.kernels.target import SUBGROUP_MATRIX
from ort_gpu_ep.runtime.context import SHARE, PlanContext, UnwantedError
from ort_gpu_ep.runtime.plans import Key, Plans
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.runtime.upgrade import Upgrade
from ort_gpu_ep.scheduler.plan import Dispatch, Plan
from ort_gpu_ep.scheduler.template import Filled, Specialization, Template

log = logging.getLogger("ort_gpu_ep")

MAX_SPECIALIZED = 3
"""Plans for fixed sizes that a program keeps; the least recently used goes first, and its sizes are the general plan's
again."""

MAX_NBYTES = MEMORY_NBYTES // SHARE
"""Device memory that one may take besides what the program has: activations, and weights in an order of its own. The
same part of memory_limit_mb, where that is more."""

PATIENCE_S = 0.1
"""So long a plan waits for its pipelines on matrix units: a driver that has compiled them before needs a few
milliseconds for each, and a second plan would cost more."""


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """A plan on matrix units that was not there for the first run of its sizes.

    inputs: types of that run. pending: it is being made. seconds: what making it took. why: what failed; empty where
    nothing did.
    """

    inputs: tuple[str, ...]
    pending: bool = True
    seconds: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"{', '.join(self.inputs)}: no matrix units are used: {self.why}"
        return f"{', '.join(self.inputs)}: " + (
            "kernels on matrix units are being compiled beside the runs, which go by kernels without them until then"
            if self.pending
            else f"kernels on matrix units were compiled beside the first runs in {self.seconds:.1f} s"
        )


class BetterPlans:
    """Those of one program. The context's lock is held, but where a method says otherwise.

    values_of: the content of inputs that a set of types counts with.
    """

    def __init__(self, context: PlanContext, plans: Plans, values_of: Callable[[Key], Mapping[int, Array]]) -> None:
        self.context, self.plans, self.values_of = context, plans, values_of
        self._wanted = set[Key]()
        self._changed, self._pending = threading.Condition(threading.Lock()), 0
        self._records: list[UnitPlan] = []

    def specialize(self, key: Key) -> None:
        """Has a plan made for the sizes of a key alone, unless that failed before."""
        if key not in self.plans.records and key not in self._wanted:
            self._wanted.add(key)
            ForFixedSizes(self, key).begin()

    def specialized(self, key: Key, record: Specialization | None) -> None:
        """That plan is there, or could not be made. record: None where it was given up: it may be wanted again."""
        records = self.plans.records
        self._wanted.discard(key)
        if record is None:
            return
        records[key] = record
        for old in [k for k, r in records.items() if r.why][:-MAX_TOLD]:
            del records[old]

    def on_units(
        self, template: Template, types: tuple[TensorType, ...], values: Mapping[int, Array]
    ) -> OnUnits | None:
        """A plan's pipelines on matrix units are compiled from now on: what runs have meanwhile goes by its `instead`,
        and it is begun with that. None where the pipelines are there at once, or there is no way without them.
        """
        upgrade = OnUnits(self, template, types, values)
        return upgrade if upgrade.takes_long() else None

    @property
    def unit_plans(self) -> tuple[UnitPlan, ...]:
        """Needs no lock."""
        with self._changed:
            return tuple(self._records)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until no plan on matrix units is being made; whether that is so. Without the lock."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending, timeout_s)

    def note(self, old: UnitPlan | None, new: UnitPlan | None) -> None:
        """A record of a plan on matrix units takes another one's place. Needs no lock."""
        with self._changed:
            self._pending += (new is not None and new.pending) - (old is not None and old.pending)
            kept = [r for r in self._records if r is not old]
            self._records = [*kept, *([] if new is None else [new])][-MAX_TOLD:]
            self._changed.notify_all()


class BetterPlan(Upgrade):
    """A plan of the program's, warmed up before runs have it. first: the plan that goes when this one is there, None
    where none does."""

    def __init__(
        self,
        owner: BetterPlans,
        types: tuple[TensorType, ...],
        values: Mapping[int, Array],
        **plan: bool,
    ) -> None:
        super().__init__(owner.context, types, values, **plan)
        self.owner = owner
        self.first: Prepared | None = None

    def install(self, template: Template, filled: Filled, compiled: list[Any]) -> None:
        context, plans = self.context, self.owner.plans
        with context.lock:
            self.check_wanted()
            prepared = self.added(template, compiled)
        try:
            self._warm_up(prepared, filled)
            with context.lock:
                self._check_open(prepared)
                self.switch(prepared, filled)
        except BaseException:
            with context.lock:
                if not prepared.closed:
                    plans.drop(prepared)
            raise

    def _check_open(self, prepared: Prepared) -> None:
        self.check_wanted()
        if prepared.closed:  # other plans needed its place
            raise UnwantedError

    def added(self, template: Template, compiled: list[Any]) -> Prepared:
        """On the device. With the lock. Raises DeviceError, ShaderError."""
        raise NotImplementedError

    def switch(self, prepared: Prepared, filled: Filled) -> None:
        """The next run goes by it. With the lock. Raises DeviceError."""
        raise NotImplementedError

    def _warm_up(self, prepared: Prepared, filled: Filled) -> None:
        """Has the driver compile what it leaves to the first dispatch, one step after another."""
        context, gpu, tensors = self.context, self.context.gpu, list[Tensor]()
        try:
            for kind in (*filled.inputs, *filled.outputs):
                tensors.append(Tensor(gpu.allocate(kind.nbytes, RUNS), 0, kind))
            inputs, outputs = tensors[: len(filled.inputs)], tensors[len(filled.inputs) :]
            for step in range(len(context.steps(prepared.template.plan))):
                with context.lock:
                    self._check_open(prepared)
                    prepared.warm_up(step, prepared.sized(filled), inputs, outputs)
                gpu.finish()
            prepared.is_warm = True
        finally:
            for scratch in tensors:
                gpu.free(scratch.buffer)


class ForFixedSizes(BetterPlan):
    """Sizes that come often get a plan as a model has it that fixes them."""

    def __init__(self, owner: BetterPlans, key: Key) -> None:
        super().__init__(owner, key[0], owner.values_of(key), constant=True)
        self._key = key
        self._shown = tuple(map(str, key[0]))
        self.failed = f"{owner.context.graph.name} for {', '.join(self._shown)} is not specialised"

    def check_plan(self, plan: Plan, filled: Filled) -> None:
        most = max(MAX_NBYTES, self.context.gpu.memory_limit_nbytes // SHARE)
        nbytes = sum(filled.slots) + self.context.missing_nbytes(plan)
        if nbytes > most:
            raise OutOfDeviceMemoryError(
                f"it takes {nbytes >> 20} MiB of device memory besides; up to {most >> 20} MiB are given, "
                f"a {SHARE}th of memory_limit_mb where that is more"
            )

    def added(self, template: Template, compiled: list[Any]) -> Prepared:
        return self.owner.plans.add(template, compiled)

    def switch(self, prepared: Prepared, filled: Filled) -> None:
        plans = self.owner.plans
        plans.switch(self._key, prepared, filled)
        plans.drop_oldest(plans.specialized, MAX_SPECIALIZED)

    def over(self, seconds: float, why: str, is_wanted: bool) -> None:
        with self.context.lock:
            self.owner.specialized(self._key, Specialization(self._shown, seconds, why) if is_wanted else None)


class OnUnits(BetterPlan):
    """instead: the plan without matrix units, for the runs until then. pipelines: of its kernels on units."""

    instead: Template

    def __init__(
        self,
        owner: BetterPlans,
        template: Template,
        types: tuple[TensorType, ...],
        values: Mapping[int, Array],
    ) -> None:
        super().__init__(owner, types, values)
        self.template, self._pipelines, self._begin_s = template, list[Future[Any]](), time.perf_counter()
        self._record = UnitPlan(tuple(map(str, types)))
        self.failed = f"{owner.context.graph.name} for {', '.join(self._record.inputs)}: no matrix units are used"

    def takes_long(self) -> bool:
        """Begins to compile its kernels on matrix units; whether runs need another plan meanwhile, and there is one.
        With the lock."""
        assert self.template is not None, "it has been planned"
        context, steps = self.context, self._on_units(self.template.plan)
        if not steps or target.FORCING or questions.are_apart():
            return False
        try:
            self._pipelines = self._compiling(steps)
        except RuntimeError:  # no thread begins any more at exit
            return False
        done, open_ones = wait(self._pipelines, PATIENCE_S, FIRST_EXCEPTION)
        if not open_ones and not any(future.exception() for future in done):
            return False
        try:
            self.instead = context.template(self.types, self.values, units=False)
        except (UnsupportedNodeError, UnknownValueError) as error:
            log.info("%s: runs wait for kernels on matrix units: no plan without them: %s", context.graph.name, error)
            return False
        return True

    def follow(self, first: Prepared) -> None:
        """Has the plan take the place of the one that runs have meanwhile, when it is there. With the lock."""
        self.first = first
        self.owner.note(None, self._record)
        self.begin()

    def _on_units(self, plan: Plan) -> list[Dispatch]:
        """A plan's steps on matrix units, one of each text."""
        steps = (*self.context.steps(plan), *self.context.prologue.missing(plan))
        slow = [step for step in steps if isinstance(step, Dispatch) and SUBGROUP_MATRIX in step.kernel.features]
        return list({(self.context.text(step), len(step.awaited)): step for step in slow}.values())

    def _compiling(self, steps: Sequence[Dispatch]) -> list[Future[Any]]:
        """The pipelines of steps, on threads of their own; one core is left for the runs. Raises RuntimeError where no
        thread begins.

        Not a ThreadPoolExecutor's: Python waits at exit for all that one was given, before background.ending() can be
        seen.
        """
        futures = [Future[Any]() for _ in steps]
        left = deque(zip(steps, futures, strict=True))

        def work() -> None:
            while left:
                try:
                    step, future = left.popleft()
                except IndexError:  # another thread has taken it
                    return
                try:
                    self.context.check_wanted()
                    future.set_result(self.context.pipeline(step))
                except BaseException as error:  # for whoever asks for the result
                    future.set_exception(error)

        for _ in range(min(len(steps), max(1, (os.cpu_count() or 1) - 1))):
            threading.Thread(target=work, name="ort_gpu_ep-units").start()
        return futures

    def check_wanted(self) -> None:
        super().check_wanted()
        if self.first is None or self.first.closed:  # its sizes get a new plan, which finds these pipelines
            raise UnwantedError

    def _make(self) -> None:
        for future in self._pipelines:  # those that take long; all others follow
            future.result()
        super()._make()

    def install(self, template: Template, filled: Filled, compiled: list[Any]) -> None:
        try:
            super().install(template, filled, compiled)
        except OutOfDeviceMemoryError:  # beside the first one: it goes before
            with self.context.lock:
                self.check_wanted()
                keys, first = self._keys(), self.first
                assert first is not None, "`follow` has said"
                self.owner.plans.drop(first)
                self.context.gpu.trim()
                self._take(self.added(template, compiled), keys)

    def added(self, template: Template, compiled: list[Any]) -> Prepared:
        return self.owner.plans.add(template)  # which finds them, and notes them for later processes

    def switch(self, prepared: Prepared, filled: Filled) -> None:
        self._take(prepared, self._keys())
        assert self.first is not None, "`follow` has said"
        self.owner.plans.drop(self.first)
        self.context.release_packed(self.owner.plans.all)

    def _keys(self) -> list[Key]:
        """The sizes that go by the first plan."""
        return [key for key, (owner, _) in self.owner.plans.found.items() if owner is self.first]

    def _take(self, prepared: Prepared, keys: Sequence[Key]) -> None:
        """The next run of each of these sizes goes by the new plan, where that holds for them."""
        for key in keys:
            filled = prepared.template.fill(key[0], self.owner.values_of(key))
            if filled is not None:
                self.owner.plans.found[key] = prepared, filled

    def over(self, seconds: float, why: str, is_wanted: bool) -> None:
        if why and is_wanted:
            with self.context.lock:
                self.context.without_units = True
        done = replace(self._record, pending=False, seconds=time.perf_counter() - self._begin_s, why=why)
        self.owner.note(self._record, done if is_wanted else None)
