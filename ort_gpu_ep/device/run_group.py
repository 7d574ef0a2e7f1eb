"""Buffers and recordings for runs that are submitted together.

Their steps take turns: the first of each run, the second of each, and so on. A barrier waits for all that was begun, so runs one behind
another wait for each other at every step; in turn, one barrier serves a step of all of them. That takes a buffer for each value of each
run, and in front of a step an empty dispatch that binds what all of them read there (scheduler/barriers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from ort_gpu_ep.device import native
from ort_gpu_ep.device.buffers import Buffer
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.in_flight import InFlight
from ort_gpu_ep.device.index_check import Words
from ort_gpu_ep.device.library import GPUError
from ort_gpu_ep.device.pipelines import bind_group_layout
from ort_gpu_ep.device.recording import Command, Part, encode, in_rows
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.scheduler.barriers import unsettled
from ort_gpu_ep.scheduler.plan import Place
from ort_gpu_ep.scheduler.template import Filled, Template

_EMPTY = "@compute @workgroup_size(1) fn main() {}"


class Apart(Protocol):
    """A plan on the device in which each value has a buffer of its own, see prepared.py."""

    gpu: Gpu
    words: Words | None
    template: Template

    def current(self, filled: Filled) -> Any:
        """Makes slots, parameters and constants those of a set of sizes."""

    def bind(self, inputs: list[Tensor], outputs: list[Tensor]) -> list[Any]:
        """The bind group of each step."""

    def commands(self, shape: Any, groups: list[Any], inputs: list[Tensor], outputs: list[Tensor]) -> list[Command]:
        """Of each step, what it records."""

    def place(self, place: Place, inputs: list[Tensor], outputs: list[Tensor]) -> tuple[Buffer, int]:
        """The buffer of a place, and the offset in it."""

    def close(self) -> None:
        """Frees its buffers."""


class GroupedRun(InFlight):
    """What one run has to itself of those that are submitted together. ready: its inputs are written."""

    __slots__ = ("group", "prepared", "ready")

    def __init__(self, group: RunGroup, prepared: Apart, filled: Filled) -> None:
        super().__init__(prepared, filled)
        self.group, self.prepared, self.ready = group, prepared, False

    def commands(self, filled: Filled) -> list[Command]:
        """Of each step, what it records. Under the program's lock. Raises DeviceError."""
        prepared, inputs, outputs = self.prepared, self.inputs, self.outputs
        return prepared.commands(prepared.current(filled), prepared.bind(inputs, outputs), inputs, outputs)

    def submitted(self) -> int | None:
        """The submission's index, once there is one. None where there will be none, and nothing was done. Raises DeviceError."""
        return self.group.coalescer.submitted(self)

    def done(self) -> None:
        """The results are there."""
        self.group.coalescer.done(self.group)

    def leave(self, whole: bool) -> None:
        """Its run is over. whole: it came to an end."""
        if self.large is not None and not whole:
            self.large.give_up()        # the others may submit what names it
        self.group.coalescer.leave(self, whole)


class Coalescing(Protocol):
    """Decides when a group is submitted, see coalescing.py."""

    def submitted(self, run: GroupedRun) -> int | None:
        """See GroupedRun."""

    def done(self, group: RunGroup) -> None:
        """See GroupedRun."""

    def leave(self, run: GroupedRun, whole: bool) -> None:
        """See GroupedRun."""


class RunGroup:
    """Runs that are submitted together. What is said of one submission is under the lock of its coalescer.

    runs: as many as there may be. taken, ready, left: how many have begun, have written their inputs, are over. submission: its index once
    there is one. error: why there is none. done: the GPU is done. broken: a run ended halfway, so that nothing here is used again.
    """

    def __init__(self, label: str, sets: Sequence[Apart], filled: Filled) -> None:
        """Raises DeviceError, and has freed all but `sets`. Under the program's lock."""
        self._label, self._gpu = label, sets[0].gpu
        self._unsettled = unsettled(sets[0].template.plan.steps)
        self._recorded: dict[int, list[Part]] = {}
        self.runs: list[GroupedRun] = []
        self.coalescer: Coalescing
        try:
            for prepared in sets:
                self.runs.append(GroupedRun(self, prepared, filled))
            self._commands = [run.commands(filled) for run in self.runs]
        except BaseException:
            for run in self.runs:
                run.free(self._gpu)
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
        """Submits those that are taken. Returns the submission's index. Under the program's lock. Raises DeviceError."""
        gpu, runs = self._gpu, self.runs[:self.taken]
        parts = [*(upload for run in runs for upload in run.uploads), *self._parts(self.taken)]
        commands = encode(gpu, self, self._label, parts, [copy for run in runs for copy in run.copies],
                          lambda: f"{self.taken} runs together of\n{runs[0].prepared.template.plan}\n")
        return gpu.run(commands, [mapping for run in runs for mapping in run.mappings])

    def _parts(self, count: int) -> list[Part]:
        """What so many runs record, step by step in turn."""
        found = self._recorded.get(count)
        if found is None:
            in_turn = [[*self._gates(index, count), *commands]
                       for index, commands in enumerate(zip(*self._commands[:count], strict=True))]
            found = self._recorded[count] = in_rows(in_turn, False)
        return found

    def _gates(self, index: int, count: int) -> list[Command]:
        """The empty dispatch in front of a step, which binds what all of the runs wait for there; several where one can't bind so much.

        A run alone needs none: its step binds all of it.
        """
        places = self._unsettled[index] if count > 1 else ()
        bound = [run.prepared.place(place, run.inputs, run.outputs) for run in self.runs[:count] for place in places]
        most, gates = self._gpu.limits.max_buffers_per_stage, list[Command]()
        for first in range(0, len(bound), most):
            some = [(buffer.native, offset, 4) for buffer, offset in bound[first:first + most]]
            layout = bind_group_layout(self._gpu, (), False, len(some))
            try:
                group = self._gpu.device.create_bind_group("gate", layout, some)
                gates.append((self._gpu.pipeline(("gate", len(some)), partial(self._gate, layout)), group, (0, 0, 0), None))
            except GPUError as error:
                raise self._gpu.failure(error, f"{self._label}: what {count} runs wait for together") from error
        return gates

    def _gate(self, layout: Any) -> Any:
        device = self._gpu.device
        return device.create_compute_pipeline(
            "gate", device.create_pipeline_layout(layout), native.trusted_module(device, "gate", _EMPTY))

    def free(self) -> None:
        """Gives its memory back; what the GPU has begun goes on. Under the program's lock, or where nothing else uses it."""
        for run in self.runs:
            run.free(self._gpu, self.broken)
            run.prepared.close()
        self.runs, self._commands = [], []
        self._recorded.clear()
