"""Results that a program computes once from its weights: weights in the order in which a kernel reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ort_gpu_ep.device.binding import bind_group, bound_of
from ort_gpu_ep.device.buffers import Buffer
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.library import GPUError
from ort_gpu_ep.device.pipelines import Composer, pipeline
from ort_gpu_ep.device.recording import lone_dispatch
from ort_gpu_ep.scheduler.plan import Dispatch, Kind, Place, Plan


class Prologue:
    """The buffers that dispatches of prologues have written. Not thread-safe: its program's lock is held.

    weight: gives a weight's buffer.
    """

    def __init__(self, gpu: Gpu, checked: str, weight: Callable[[str], Buffer], composer: Composer) -> None:
        self.gpu, self._checked, self._weight, self._composer = gpu, checked, weight, composer
        self._made: dict[Dispatch, dict[Place, Buffer]] = {}

    @property
    def nbytes(self) -> int:
        """Device memory of what was computed."""
        return sum(buffer.nbytes for made in self._made.values() for buffer in made.values())

    def missing(self, steps: Sequence[Dispatch]) -> list[Dispatch]:
        """Those that did not run yet."""
        return [step for step in steps if step not in self._made]

    def missing_nbytes(self, steps: Sequence[Dispatch]) -> int:
        """Device memory of what these dispatches write and is not there."""
        return sum(t.type.nbytes for step in self.missing(steps) for t in step.tensors if t.written)

    def buffer(self, place: Place) -> Buffer:
        """What was written there."""
        return next(made[place] for made in self._made.values() if place in made)

    def restored(self, step: Dispatch) -> Buffer:
        """What an inverse writes, in a buffer that is the caller's. Raises DeviceError, ShaderError."""
        written, = self._run(step).values()
        return written

    def buffers(self, steps: Sequence[Dispatch]) -> dict[Place, Buffer]:
        """What these dispatches write; those that did not run yet are enqueued. Raises DeviceError, ShaderError."""
        found: dict[Place, Buffer] = {}
        for step in self.missing(steps):
            self._made[step] = self._run(step)
        for step in steps:
            found |= self._made[step]
        return found

    def _run(self, step: Dispatch) -> dict[Place, Buffer]:
        pipe, bound = pipeline(self.gpu, step, self._checked, self._composer), bound_of(self.gpu, step)
        made: dict[Place, Buffer] = {}
        try:
            for tensor in step.tensors:
                if tensor.written:
                    made[tensor.place] = self.gpu.allocate(tensor.type.nbytes)
            group = bind_group(self.gpu, bound, lambda p: (
                made[p] if p in made else self._weight(p.name) if p.kind is Kind.WEIGHT else self.buffer(p), 0))
            try:
                commands = lone_dispatch(self.gpu, step.label, (pipe, group, step.groups, None))
            except GPUError as error:
                raise self.gpu.failure(error, f"{step.label}: a recording of the prologue") from error
            self.gpu.enqueue(commands)
        except Exception:
            for buffer in made.values():
                self.gpu.free(buffer)
            raise
        return made

    def keep(self, plans: Iterable[Plan]) -> None:
        """Frees what none of these plans reads."""
        wanted = {step for plan in plans for step in plan.prologue}
        for step in [s for s in self._made if s not in wanted]:
            for buffer in self._made.pop(step).values():
                self.gpu.free(buffer)

    def close(self) -> None:
        self.keep(())
