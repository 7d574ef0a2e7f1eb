"""The one way in which runs of a plan are recorded ahead: what a recording is for, how long it holds, who keeps it."""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar

from ort_gpu_ep.device.index_check import NBYTES, Word
from ort_gpu_ep.runtime.commands import BufferCopy, Part, encode
from ort_gpu_ep.runtime.ends import Ends, HostEnds
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.scheduler.template import Filled

State: TypeAlias = tuple[Any, int, Any]
"""What a recording holds for: the timer that notes it, the version of the plan's buffers, and the sizes
(Prepared.current)."""


AnyEnds = TypeVar("AnyEnds", bound=Ends, covariant=True)


class Recording(Generic[AnyEnds]):
    """Runs of a plan with the same ends: their commands, and command buffers for the next run, recorded while the GPU
    is at work.

    Whoever keeps the ends keeps the recording. Its state is compared before each use, so nothing has to tell it when it
    is out of date. checked: that the plan may have these ends. next: the recording of the run that came after this one,
    for who has several (runs.py).
    """

    __slots__ = ("__weakref__", "_ahead", "_destroyed", "_parts", "checked", "ends", "next", "prepared")

    def __init__(self, prepared: Prepared, ends: AnyEnds) -> None:
        self.prepared, self.ends, self.checked = prepared, ends, False
        self.next: Recording[Ends] | None = None
        self._destroyed = -1  # how many buffers the device had given back when the ends were there
        self._parts: tuple[State, list[Part]] | None = None
        self._ahead: tuple[State, tuple[list[Any], Word | None]] | None = None

    def commands(self, shape: Any) -> tuple[list[Any], Word | None]:
        """The command buffers of a run of these sizes, recorded ahead if that still holds, and its own word if it has
        one.

        Under the context's lock. Raises DeviceError.
        """
        prepared, ends = self.prepared, self.ends
        state = prepared.gpu.timer, prepared.version, shape
        ahead, self._ahead, self._destroyed = self._ahead, None, prepared.gpu.destroyed
        if ahead is not None and ahead[0] == state:
            return ahead[1]
        if self._parts is None or self._parts[0] != state:
            groups = prepared.bind(ends.inputs, ends.outputs)
            self._parts = state, [*ends.before, *prepared.parts(shape, groups, ends.inputs, ends.outputs)]
        return self._encoded(self._parts[1])

    def enqueue(self, shape: Any) -> Word | None:
        """Enqueues one run. Returns its word, which is to be read with its results. Under the context's lock. Raises
        DeviceError."""
        commands, word = self.commands(shape)
        self.prepared.gpu.execute(commands)
        return word

    def record_ahead(self) -> bool:
        """Records the next run, if it goes as the last one. Whether that was to be done. Raises DeviceError.

        A run whose outputs stay on the device takes a word, and any thread that waits may come here: the lock is taken,
        or nothing done. Other recordings belong to the thread whose run it is.
        """
        lock = self.prepared.context.lock if self.ends.stay else None
        if self._parts is None or self._ahead is not None or (lock is not None and not lock.acquire(blocking=False)):
            return False
        try:
            (timer, version, _), gpu = self._parts[0], self.prepared.gpu
            if timer is not gpu.timer or version != self.prepared.version:  # a closed plan has another one
                return False
            if (self._destroyed != gpu.destroyed or not self.ends.inputs) and not self.ends.are_there():
                return False
            self._ahead = self._parts[0], self._encoded(self._parts[1])
            return True
        finally:
            if lock is not None:
                lock.release()

    def _encoded(self, parts: list[Part]) -> tuple[list[Any], Word | None]:
        prepared, ends = self.prepared, self.ends
        words, behind, word = prepared.words if ends.stay else None, ends.behind, None
        if words is not None:
            word, shared = words.own(), words.shared.buffer.native
            parts = [BufferCopy(word.buffer.native, 0, shared, 0, NBYTES), *parts]
            behind = [BufferCopy(shared, 0, word.buffer.native, word.offset_bytes, NBYTES)]
        return encode(
            prepared.gpu,
            prepared,
            prepared.context.graph.name,
            parts,
            behind,
            lambda: f"a recording of\n{prepared.template.plan}\n",
        ), word


class HostRun(Recording[HostEnds]):
    """A run with host memory, which is submitted by itself. joined: with others instead (joined_runs.py), which have a
    say in each step.

    Raises DeviceError where the device has no room for it.
    """

    __slots__ = ("filled",)
    joined = False

    def __init__(self, prepared: Prepared, filled: Filled) -> None:
        super().__init__(prepared, HostEnds(prepared.gpu, filled, prepared.words, prepared.rounded(filled)))
        self.filled = filled

    def submit(self, afresh: bool = False) -> int | None:
        """Submits it and asks for its outputs; its inputs are written. Gives the submission's index, None where the
        plan is gone meanwhile.

        afresh: with the word cleared and no other run of the plan in between: what is noted in it then is this run's
        own.
        """
        prepared, ends = self.prepared, self.ends
        with prepared.context.lock:
            if prepared.closed:
                return None
            prepared.used()
            commands, _ = self.commands(prepared.current(self.filled))
            if afresh and ends.words is not None:
                ends.words.clear()
            if afresh and ends.large is not None:
                ends.large.keep()
            return prepared.gpu.run(commands, ends.mappings)

    def arrive(self) -> None:
        """The results of a joined run are there."""

    def leave(self, whole: bool) -> None:
        """A joined run is over. whole: it came to an end."""
