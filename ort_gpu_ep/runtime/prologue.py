"""Results that a program computes once from its weights: weights in the order in which a kernel reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ort_gpu_ep.device.allowance import DENSE, REORDERED, WEIGHTS
from ort_gpu_ep.device.buffers import Buffer
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.pipelines import Composer, pipeline
from ort_gpu_ep.runtime.binding import bind_group, bound_of
from ort_gpu_ep.runtime.commands import lone_dispatch
from ort_gpu_ep.scheduler.plan import Dispatch, Kind, Place, Plan
from ort_gpu_ep.webgpu.library import GPUError


class Prologue:
    """The buffers that dispatches of prologues have written. Not thread-safe: its program's lock is held.

    weight: gives a weight's buffer. What only other dispatches of a prologue read is freed behind them. dense_nbytes: of what was computed,
    device memory of what is dense of weights that are stored packed; any thread may read it. read: told of weights that have been read.
    """

    def __init__(
        self, gpu: Gpu, checked: str, weight: Callable[[str], Buffer], composer: Composer, read: Callable[[Iterable[str]], object],
    ) -> None:
        self.gpu, self._checked, self._weight, self._composer, self._read = gpu, checked, weight, composer, read
        self._made: dict[Dispatch, dict[Place, Buffer]] = {}
        self._dense, self.dense_nbytes = set[Place](), 0

    @property
    def nbytes(self) -> int:
        """Device memory of what was computed."""
        return sum(buffer.nbytes for buffers in self._made.values() for buffer in buffers.values())

    def missing(self, plan: Plan) -> list[Dispatch]:
        """Those that are to be run for a plan, in order."""
        places, steps = set(plan.kept_places), list[Dispatch]()
        for step in reversed(plan.prologue):
            if step not in self._made and any(t.written and t.place in places for t in step.tensors):
                steps.append(step)
                places |= {t.place for t in step.tensors if not t.written}
        return steps[::-1]

    def missing_nbytes(self, plan: Plan) -> int:
        """Device memory that these take: what they leave, and the most that is freed behind one of them."""
        sizes = {t.place: t.type.nbytes for step in self.missing(plan) for t in step.tensors if t.written}
        kept = plan.kept_places
        freed = [n for place, n in sizes.items() if place not in kept]
        return sum(n for place, n in sizes.items() if place in kept) + max(freed, default=0)

    def buffer(self, place: Place) -> Buffer:
        """What was written there."""
        return next(buffers[place] for buffers in self._made.values() if place in buffers)

    def restored(self, step: Dispatch) -> Buffer:
        """What an inverse writes, in a buffer that is the caller's. Raises DeviceError, ShaderError."""
        written, = self._run(step, WEIGHTS).values()
        return written

    def buffers(self, plan: Plan) -> dict[Place, Buffer]:
        """What a plan reads of its prologue; what did not run yet is enqueued. Raises DeviceError, ShaderError."""
        self._dense |= set(plan.dense)
        kept, missing = plan.kept_places, self.missing(plan)
        writers = {t.place: step for step in missing for t in step.tensors if t.written}
        unread = Counter(name for step in missing for name in _weights_of(step))
        for step in missing:
            if any(t.written and t.place in kept for t in step.tensors):
                unread.subtract(name for writer in self._make(step, writers, kept) for name in _weights_of(writer))
                self._read([name for name in _weights_of(step) if not unread[name]])
        return {place: buffer for step in plan.prologue for place, buffer in self._made.get(step, {}).items()}

    def _make(self, step: Dispatch, writers: Mapping[Place, Dispatch], kept: frozenset[Place]) -> list[Dispatch]:
        """Runs a step behind those that it reads from, and frees what it alone reads of them. Gives all that ran."""
        before, ran = [writers[t.place] for t in step.tensors if not t.written and t.place in writers], list[Dispatch]()
        for other in before:
            if other not in self._made:
                ran += self._make(other, writers, kept)
        if step not in self._made:
            ran.append(step)
            buffers = self._made[step] = self._run(step)
            self.dense_nbytes += self._dense_of(buffers)
        for other in before:
            if other in self._made and not kept.intersection(self._made[other]):
                self._free(other)
        return ran

    def _run(self, step: Dispatch, use: str = REORDERED) -> dict[Place, Buffer]:
        pipe, bound = pipeline(self.gpu, step, self._checked, self._composer), bound_of(self.gpu, step)
        buffers: dict[Place, Buffer] = {}
        try:
            for tensor in step.tensors:
                if tensor.written:
                    buffers[tensor.place] = self.gpu.allocate(tensor.type.nbytes, DENSE if tensor.place in self._dense else use)
            group = bind_group(self.gpu, bound, lambda p: (
                buffers[p] if p in buffers else self._weight(p.name) if p.kind is Kind.WEIGHT else self.buffer(p), 0))
            try:
                commands = lone_dispatch(self.gpu, step.label, (pipe, group, step.groups, None, 1))
            except GPUError as error:
                raise self.gpu.failure(error, f"{step.label}: a recording of the prologue") from error
            self.gpu.enqueue(commands)
        except Exception:
            for buffer in buffers.values():
                self.gpu.free(buffer)
            raise
        return buffers

    def keep(self, plans: Iterable[Plan]) -> None:
        """Frees what none of these plans reads."""
        steps = {step for plan in plans for step in plan.prologue}
        for step in [s for s in self._made if s not in steps]:
            self._free(step)

    def free_dense(self) -> None:
        """Frees what is dense of weights that are stored packed: there is no further run of a plan that reads it."""
        for step in [step for step, buffers in self._made.items() if self._dense.intersection(buffers)]:
            self._free(step)

    def _free(self, step: Dispatch) -> None:
        buffers = self._made.pop(step)
        self.dense_nbytes -= self._dense_of(buffers)
        for buffer in buffers.values():
            self.gpu.free(buffer)

    def _dense_of(self, made: Mapping[Place, Buffer]) -> int:
        return sum(buffer.nbytes for place, buffer in made.items() if place in self._dense)

    def close(self) -> None:
        self.keep(())


def _weights_of(step: Dispatch) -> set[str]:
    """Those that a step reads."""
    return {t.place.name for t in step.tensors if not t.written and t.place.kind is Kind.WEIGHT}
