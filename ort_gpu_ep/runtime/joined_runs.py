"""Joins concurrent runs of several threads with equal sizes into one submission.

Threads join the open group and write their inputs. It is submitted when the GPU has no other one, or, while another one
is under way, when it has half of all runs: the GPU then always has one to do and one to come. Every thread waits for
its own results.

The steps of the runs in a group take turns: the first of each run, the second of each, and so on. A barrier waits for
all that was begun, so runs one behind another wait for each other at every step; in turn, one barrier serves a step of
all of them. That takes a buffer for each value of each run, and in front of a step an empty dispatch that binds what
all of them read there (scheduler/barriers.py).

Nothing says that together is faster on an adapter: it is measured, runs one by one first and then together, and the
faster way stays.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ort_gpu_ep.device.buffers import POOL_AGE_S
from ort_gpu_ep.device.pipelines import bind_group_layout
from ort_gpu_ep.errors import DeviceError, InternalError, OutOfDeviceMemoryError
from ort_gpu_ep.runtime.commands import Command, Part, encode, in_rows
from ort_gpu_ep.runtime.context import PlanContext, UnwantedError
from ort_gpu_ep.runtime.ends import nbytes_of
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.runtime.recording import HostRun
from ort_gpu_ep.runtime.upgrade import Upgrade
from ort_gpu_ep.scheduler.barriers import unsettled
from ort_gpu_ep.scheduler.plan import Plan
from ort_gpu_ep.scheduler.template import Filled, Template
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import GPUError

MAX_GROUPS = 2
"""Groups of one set of sizes: one that the GPU works at, and one behind it."""

MAX_RUNS = 4
"""Runs in a group at most: of ResNet-50 on an H200, two take 572 us each, four 486, eight 437; one alone 786."""

MAX_NBYTES = 1 << 30
"""Device memory that the buffers of all runs of one set of sizes take; a group has fewer runs where they do not fit."""

CONTENDED = MAX_GROUPS + 1
"""Runs under way at the same time from which on they are submitted together: fewer keep a GPU busy by themselves."""

RECENT = 8
"""Submissions that say how many threads there are."""

WINDOW = 128
"""Runs over which it is measured how fast runs of several threads are, one by one and together."""

TRIAL = 32
"""Runs together before they are measured: the first ones make bind groups."""

_EMPTY = "@compute @workgroup_size(1) fn main() {}"


class GroupedRun(HostRun):
    """One run of those that are submitted together. It has no commands of its own to record ahead. ready: its inputs
    are written."""

    __slots__ = ("group", "ready")
    joined = True

    def __init__(self, group: RunGroup, prepared: Prepared, filled: Filled) -> None:
        super().__init__(prepared, filled)
        self.group, self.ready = group, False

    def steps(self) -> list[tuple[Command, ...]]:
        """Of each step, what it records. Under the context's lock. Raises DeviceError."""
        prepared, inputs, outputs = self.prepared, self.ends.inputs, self.ends.outputs
        return prepared.commands(prepared.current(self.filled), prepared.bind(inputs, outputs), inputs, outputs)

    def submit(self, afresh: bool = False) -> int | None:
        """The submission's index, once there is one. None where there will be none, and nothing was done; afresh there
        is none."""
        return None if afresh else self.group.coalescer.submitted(self)

    def arrive(self) -> None:
        self.group.coalescer.done(self.group)

    def leave(self, whole: bool) -> None:
        if self.ends.large is not None and not whole:
            self.ends.large.give_up()  # the others may submit what names it
        self.group.coalescer.leave(self, whole)


class RunGroup:
    """Runs that are submitted together. What is said of one submission is under the lock of its coalescer.

    sets: a plan for each run, in which each value has a buffer of its own. runs: as many as there may be. taken, ready,
    left: how many have begun, have written their inputs, are over. submission: its index once there is one. error: why
    there is none. done: the GPU is done. broken: a run ended halfway, so that nothing here is used again.
    """

    def __init__(self, label: str, sets: Sequence[Prepared], filled: Filled) -> None:
        """Raises DeviceError, and has freed all but `sets`. Under the context's lock."""
        self._label, self._gpu = label, sets[0].gpu
        self._unsettled = unsettled(sets[0].template.plan.steps)
        self._recorded: dict[int, list[Part]] = {}
        self.runs: list[GroupedRun] = []
        self.coalescer: Coalescer
        try:
            for prepared in sets:
                prepared.keep_slots()  # few of them may be used for long, and all are recorded below
                self.runs.append(GroupedRun(self, prepared, filled))
            self._commands = [run.steps() for run in self.runs]
        except BaseException:
            for run in self.runs:
                run.ends.free()
            raise
        self.broken = False
        self.reset()

    def reset(self) -> None:
        """For the next submission."""
        self.taken = self.ready = self.left = 0
        self.submission: int | None = None
        self.error: Exception | None = None
        self.closed = self.done = False
        for run in self.runs:
            run.ready = False

    def submit(self) -> int:
        """Submits those that are taken. Returns the submission's index. Under the context's lock. Raises
        DeviceError."""
        gpu, runs = self._gpu, self.runs[: self.taken]
        parts = [*(upload for run in runs for upload in run.ends.before), *self._parts(self.taken)]
        commands = encode(
            gpu,
            self,
            self._label,
            parts,
            [copy for run in runs for copy in run.ends.behind],
            lambda: f"{self.taken} runs together of\n{runs[0].prepared.template.plan}\n",
        )
        return gpu.run(commands, [mapping for run in runs for mapping in run.ends.mappings])

    def _parts(self, count: int) -> list[Part]:
        """What so many runs record, step by step in turn."""
        parts = self._recorded.get(count)
        if parts is None:
            in_turn = [
                [*self._gates(index, count), *(command for some in commands for command in some)]
                for index, commands in enumerate(zip(*self._commands[:count], strict=True))
            ]
            parts = self._recorded[count] = in_rows(in_turn, False)
        return parts

    def _gates(self, index: int, count: int) -> list[Command]:
        """The empty dispatch in front of a step, which binds what all of the runs wait for there; several where one
        can't bind so much.

        A run alone needs none: its step binds all of it.
        """
        places = self._unsettled[index] if count > 1 else ()
        bound = [
            run.prepared.place(place, run.ends.inputs, run.ends.outputs)
            for run in self.runs[:count]
            for place in places
        ]
        most, gates = self._gpu.limits.max_buffers_per_stage, list[Command]()
        for first in range(0, len(bound), most):
            some = [(buffer.native, offset, 4) for buffer, offset in bound[first : first + most]]
            layout = bind_group_layout(self._gpu, (), False, len(some))
            try:
                group = self._gpu.device.create_bind_group("gate", layout, some)
                gates.append(
                    (self._gpu.pipeline(("gate", len(some)), partial(self._gate, layout)), group, (0, 0, 0), None, 1)
                )
            except GPUError as error:
                raise self._gpu.failure(error, f"{self._label}: what {count} runs wait for together") from error
        return gates

    def _gate(self, layout: Any) -> Any:
        device = self._gpu.device
        return device.create_compute_pipeline(
            "gate", device.create_pipeline_layout(layout), native.trusted_module(device, "gate", _EMPTY)
        )

    def free(self) -> None:
        """Gives its memory back; what the GPU has begun goes on. Under the context's lock, or where nothing else uses
        it."""
        for run in self.runs:
            run.ends.free(self.broken)
            run.prepared.close()
        self.runs, self._commands = [], []
        self._recorded.clear()


class Coalescer:
    """The groups of one set of sizes. Thread-safe; the lock is held by nobody who waits for the GPU or submits.

    submit: submits a group and gives its submission's index; None where the plan is gone. inside: runs that are in a
    group. free: groups that have none. under_way: groups that the GPU has. used_s: when the last run was over
    (monotonic clock).
    """

    def __init__(self, submit: Callable[[RunGroup], int | None], groups: list[RunGroup]) -> None:
        self._submit, self._changed = submit, threading.Condition(threading.Lock())
        self.free, self._all = list(groups), len(groups)
        self._open: RunGroup | None = None
        self.under_way = self.inside = 0
        self._recent: deque[int] = deque(maxlen=RECENT)
        self.closed, self.used_s = False, time.monotonic()
        for group in groups:
            group.coalescer = self

    def join(self) -> GroupedRun | None:
        """What a run has in the open group, waited for where all is taken. None where there is no group any more."""
        with self._changed:
            while not self.closed and self._all:
                if self._open is None and self.free:
                    self._open = self.free.pop()
                group = self._open
                if group is not None and group.taken < len(group.runs):
                    run = group.runs[group.taken]
                    group.taken += 1
                    self.inside += 1
                    return run
                self._changed.wait()
        return None

    def submitted(self, run: GroupedRun) -> int | None:
        """The submission's index, once the run's group has one; the run's inputs are written.

        None where there will be none, and nothing was done. Raises DeviceError.
        """
        group = run.group
        with self._changed:
            run.ready = True
            group.ready += 1
            while group.submission is None and group.error is None and not group.closed:
                if self._may_submit(group):
                    self._send(group)
                else:
                    self._changed.wait()
            if isinstance(group.error, DeviceError):
                raise type(group.error)(*group.error.args) from group.error  # one of its own for each thread
            if group.error is not None:
                raise group.error
            return group.submission

    def _may_submit(self, group: RunGroup) -> bool:
        if group is not self._open or group.ready < group.taken:
            return False
        enough = min(-(-max(*self._recent, self.inside, 0) // MAX_GROUPS), len(group.runs))
        return self.under_way == 0 or (self.under_way < MAX_GROUPS and group.taken >= enough)

    def _send(self, group: RunGroup) -> None:
        """Under the lock, which is given up meanwhile. What fails is kept for all in it."""
        self._open = None
        self._recent.append(self.inside)
        self.under_way += 1
        self._changed.release()
        submission, error = None, None
        try:
            submission = self._submit(group)
        except Exception as failed:
            error = failed
        finally:
            self._changed.acquire()
            group.submission, group.error, group.closed = submission, error, submission is None
            if submission is None:
                self.under_way -= 1
            group.broken |= error is not None
            self._changed.notify_all()

    def done(self, group: RunGroup) -> None:
        """The results are there: the next group may submit."""
        with self._changed:
            if not group.done:
                group.done = True
                self.under_way -= 1
                self._changed.notify_all()

    def leave(self, run: GroupedRun, whole: bool) -> None:
        """Its run is over. whole: it came to an end."""
        group = run.group
        with self._changed:
            group.ready += not run.ready
            run.ready = True
            group.left += 1
            group.broken |= not whole
            self.inside -= 1
            self.used_s = time.monotonic()
            if group.left == group.taken:
                self._reuse(group)
            self._changed.notify_all()

    def _reuse(self, group: RunGroup) -> None:
        if group.submission is not None and not group.done:
            self.under_way -= 1
        if group is self._open:
            self._open = None
        if group.broken or self.closed:
            self._all -= 1
            group.free()
        else:
            group.reset()
            self.free.append(group)

    def close(self) -> None:
        """Frees the groups, those of runs under way when they end. Who waits for a place or a submission gets none."""
        with self._changed:
            self.closed = True
            idle = self.free
            if self._open is not None:
                self._open.closed = True
            self.free, self._open = [], None
            self._all -= len(idle)
            self._changed.notify_all()
        for group in idle:
            group.free()


class Pace:
    """Seconds a run takes where several threads have one under way all the time. clock: tells the time in seconds."""

    def __init__(self, skip: int = 0, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._skip, self._begin_s, self._runs = clock, skip, 0.0, 0
        self.seconds: float | None = None

    def note(self) -> None:
        """Another run begins, with others under way."""
        if self.seconds is not None:
            return
        if self._skip:
            self._skip -= 1
            return
        now = self._clock()
        self._begin_s = self._begin_s if self._runs else now
        if self._runs >= WINDOW:
            self.seconds = (now - self._begin_s) / WINDOW
        self._runs += 1

    def forget(self) -> None:
        """A run was alone: what was measured so far is not of several threads."""
        self._runs = 0


class Contention:
    """Whether runs of a plan with one set of sizes are submitted together, since CONTENDED runs of it were under way.
    Thread-safe.

    coalescer: what submits runs together, None while they go one by one. why: why they always will, empty while that is
    open.
    """

    def __init__(self, prepared: Prepared, filled: Filled, measured: bool) -> None:
        self._prepared, self._filled, self._lock = prepared, filled, threading.Lock()
        self.coalescer: Coalescer | None = None
        self.why = ""
        self.apart, self.together = Pace(), Pace(TRIAL)
        self._measured, self._asked, self._closed = measured, False, False

    @staticmethod
    def of(prepared: Prepared, filled: Filled, under_way: int = CONTENDED) -> Contention | None:
        """None where so few are under way at the same time, or runs are never submitted together."""
        option = prepared.context.config.join_runs
        if (
            under_way < CONTENDED
            or option == "0"
            or prepared.template.varies
            or (option == "auto" and prepared.gpu.info.is_software)
        ):
            return None
        return Contention(prepared, filled, option == "auto")

    def run(self, under_way: int) -> GroupedRun | None:
        """What a run that begins has in a group, None where it goes by itself. under_way: runs that do."""
        together = self.coalescer
        others = under_way + (together.inside if together is not None else 0)
        if others < CONTENDED - 1 or self.why or self._prepared.gpu.timer is not None:
            if not others:
                self._alone(together)
            return None
        if together is None:
            if self._measured:
                self.apart.note()
            if not self._measured or self.apart.seconds is not None:
                self._ask()
            return None
        if self._measured:
            self.together.note()
            if self.together.seconds is not None:
                self._judge(self.together.seconds)
        return together.join()

    def _alone(self, together: Coalescer | None) -> None:
        """A run begins with no other under way. What runs together need is freed as a buffer is that waits for its next
        use."""
        self.apart.forget()
        self.together.forget()
        if together is not None and time.monotonic() - together.used_s > POOL_AGE_S:
            self._stop()

    def _judge(self, seconds: float) -> None:
        self._measured = False
        if self.apart.seconds is not None and seconds > self.apart.seconds:
            self.why = f"together they take {seconds * 1e6:.0f} us each, one by one {self.apart.seconds * 1e6:.0f}"
            self._stop()

    def _ask(self) -> None:
        with self._lock:
            if self._asked or self._closed:
                return
            self._asked = True
        Together(self, self._prepared, self._filled).begin()

    def is_gone(self) -> bool:
        """Whether there will be no further run."""
        return self._closed or self._prepared.closed

    def begin(self, groups: list[RunGroup]) -> None:
        """From now on runs go together."""
        coalescer: Coalescer | None = Coalescer(self._submit, groups)
        with self._lock:
            if not self._closed:
                self.coalescer, coalescer = coalescer, None
        if coalescer is not None:
            coalescer.close()

    def _submit(self, group: RunGroup) -> int | None:
        """Submits a group. None where the plan is gone. Raises DeviceError."""
        with self._prepared.context.lock:
            if self._prepared.closed or self._closed:
                return None
            self._prepared.used()
            return group.submit()

    def _stop(self) -> None:
        """Frees what runs together need; they may be wanted again."""
        with self._lock:
            together, self.coalescer, self._asked = self.coalescer, None, False
        if together is not None:
            together.close()

    def close(self) -> None:
        """There will be no further run."""
        with self._lock:
            self._closed = True
        self._stop()


class Together(Upgrade):
    """The plan of runs that are submitted together, with a buffer for each value: as many times as there are such
    runs."""

    failed = "runs of several threads are not submitted together"

    def __init__(self, contention: Contention, prepared: Prepared, filled: Filled) -> None:
        super().__init__(prepared.context, filled.inputs, {}, constant=True, apart=True)
        self._contention, self._base = contention, prepared.template.plan

    def check_wanted(self) -> None:
        super().check_wanted()
        if self._contention.is_gone():
            raise UnwantedError

    def check_plan(self, plan: Plan, filled: Filled) -> None:
        """It reads what the plan itself reads, which keeps that on the device."""
        if not (set(plan.prologue) <= set(self._base.prologue) and set(plan.weights) <= set(self._base.weights)):
            raise InternalError(
                f"program {self.context.graph.name}: another plan of the same sizes reads other weights"
            )

    def install(self, template: Template, filled: Filled, compiled: list[Any]) -> None:
        groups = list[RunGroup]()
        try:
            for _ in range(MAX_GROUPS):
                with self.context.lock:
                    self.check_wanted()
                    groups.append(_group(self.context, template, compiled, filled))
        except BaseException:
            for group in groups:
                group.free()
            raise
        self._contention.begin(groups)

    def over(self, seconds: float, why: str, is_wanted: bool) -> None:
        self._contention.why = why or self._contention.why


def _group(context: PlanContext, template: Template, compiled: list[Any], filled: Filled) -> RunGroup:
    """Under the context's lock. Raises DeviceError."""
    nbytes = template.plan.slot_nbytes + nbytes_of(context.gpu, filled.inputs, filled.outputs)
    runs = min(MAX_RUNS, MAX_NBYTES // (MAX_GROUPS * nbytes))
    if runs < 2:
        raise OutOfDeviceMemoryError(
            f"{context.graph.name}: values of one run take {nbytes >> 20} MiB; two groups of two may have "
            f"{MAX_NBYTES >> 20}"
        )
    sets = list[Prepared]()
    try:
        for _ in range(runs):
            sets.append(Prepared(template, context, compiled))
        return RunGroup(context.graph.name, sets, filled)
    except BaseException:
        for prepared in sets:
            prepared.close()
        raise
