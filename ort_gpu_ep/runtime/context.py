"""State that all plans of a program share: its graph, its options, its weights on the device, and what is computed once
from these."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import numpy as np

from ort_gpu_ep.config import Config
from ort_gpu_ep.device.allowance import DENSE, REORDERED, WEIGHTS
from ort_gpu_ep.device.background import ending
from ort_gpu_ep.device.buffers import Buffer
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.device.pipelines import Composer, Layout, pipeline
from ort_gpu_ep.device.staging import may_round
from ort_gpu_ep.errors import InternalError
from ort_gpu_ep.ir.graph import Array, Graph, Value, fits_half, nonzeros_of
from ort_gpu_ep.ir.types import TensorType, dtype_of, packed
from ort_gpu_ep.kernels import host
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.kernels.target import HALVED, without_units
from ort_gpu_ep.runtime import known_plans
from ort_gpu_ep.runtime.artefact import Artefact, Pipeline
from ort_gpu_ep.runtime.binding import bind_group, bound_of
from ort_gpu_ep.runtime.commands import enqueue_alone
from ort_gpu_ep.scheduler import Plan
from ort_gpu_ep.scheduler.plan import Copy, Dispatch, Kind, Place
from ort_gpu_ep.scheduler.planner import Rewrite
from ort_gpu_ep.scheduler.template import Template, make_template
from ort_gpu_ep.webgpu.blobs import Blobs

DENSE_SHARE, MAX_DENSE_NBYTES = 4, 1 << 30
"""Dense copies of packed weights take one part in so many of memory_limit_mb; without one so much of a device, by all
programs together: how much an adapter has, WebGPU does not tell."""

MAX_WAITING_NBYTES = 16 << 20
"""Of weights, so much is staged before it is waited for, or freed before it goes back to the driver: both take memory
beside them."""

RECENT_RUNS = 32
"""Runs of a program that count as its last ones: whether they needed a plan of their own, which plans they used."""

SHARE = 16
"""What a program keeps for speed alone may take one part in so many of the device's memory."""


class UnwantedError(Exception):
    """Nobody wants the plan any more: the program or the process has ended, or the device is lost."""


class Prologue:
    """Results that a program computes once from its weights: weights in the order in which a kernel reads them. These
    are the buffers that dispatches of prologues have written. Not thread-safe: its program's lock is held.

    weight: gives a weight's buffer. What only other dispatches of a prologue read is freed behind them. dense_nbytes:
    of what was computed, device memory of what is dense of weights that are stored packed; any thread may read it.
    read: told of weights that have been read.
    """

    def __init__(
        self,
        gpu: Gpu,
        checked: str,
        weight: Callable[[str], Buffer],
        composer: Composer,
        read: Callable[[Iterable[str]], object],
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
        (written,) = self._run(step, WEIGHTS).values()
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
                    buffers[tensor.place] = self.gpu.allocate(
                        tensor.type.nbytes, DENSE if tensor.place in self._dense else use
                    )
            group = bind_group(
                self.gpu,
                bound,
                lambda p: (
                    buffers[p] if p in buffers else self._weight(p.name) if p.kind is Kind.WEIGHT else self.buffer(p),
                    0,
                ),
            )
            enqueue_alone(self.gpu, step.label, (pipe, group, step.groups, None, 1))
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


class PlanContext:
    """The graph, the weights and the options of one program; its plans, and the runs of these, are given it. It knows
    none of them.

    lock: held for whatever changes a plan or enqueues its runs, and for every method here, unless it says otherwise.
    replaced: weights that are only there as the prologue packed them, each with the dispatch that gives it back. uses:
    numbers for runs in order, by which the plan is found that was used least recently. made_plan: whether each of the
    last runs needed a plan of its own. keeps_dense: whether a dense copy of a packed weight may stay. bound: runs with
    values of their own, which no plan may be taken from. plans: those on the device. artefact: what is known of the
    model, None where nothing is kept. without_units: its kernels on matrix units have failed, so there are no more.
    """

    def __init__(
        self,
        graph: Graph,
        config: Config,
        gpu: Gpu,
        rewrite: Rewrite | None,
        composer: Composer,
        artefact: Artefact | None = None,
    ) -> None:
        self.lock = threading.Lock()
        self.config, self.gpu, self.rewrite, self.composer, self._artefact = config, gpu, rewrite, composer, artefact
        self._weights: dict[str, Buffer] = {}
        self.replaced: dict[str, Dispatch] = {}
        self.prologue = Prologue(gpu, config.checked_shaders, self.weight, composer, self._have_been_read)
        # of a plan that is made: weights that need not stay once they are packed
        self._going: dict[str, Dispatch] = {}
        self._staged_nbytes = 0
        self.uses = itertools.count()
        self.made_plan: deque[bool] = deque(maxlen=RECENT_RUNS)
        self.closed = self.without_units = False
        self.keeps_dense, self.bound, self.plans = config.weights != "packed", WeakSet[Any](), set[Any]()
        self.uploads = self.uploaded_nbytes = 0  # of constants, now and when a plan is made
        self.graph = self._take_constants(graph)

    @property
    def is_wanted(self) -> bool:
        """Whether plans are made: neither the program nor the process has ended, and the device is there. Needs no
        lock."""
        return not (self.closed or self.gpu.lost or ending())

    def check_wanted(self) -> None:
        """Raises UnwantedError where they are not. Needs no lock."""
        if not self.is_wanted:
            raise UnwantedError

    @property
    def limits(self) -> Limits:
        """What its plans are made for: the adapter, as the options want it."""
        limits = self.gpu.limits.of(self.config)
        limits = without_units(limits) if self.without_units else limits
        return limits if limits.keeps_dense == self.keeps_dense else replace(limits, keeps_dense=self.keeps_dense)

    def template(
        self,
        types: tuple[TensorType, ...],
        values: Mapping[int, Array] | None = None,
        constant: bool = False,
        apart: bool = False,
        units: bool = True,
    ) -> Template:
        """A plan for these input types, see make_template. units: it may use matrix units. Needs no lock."""
        limits = self.limits if units else without_units(self.limits)
        template = self._template(types, limits, values or {}, constant, apart)
        if template.plan.dense and not self._may_stay(template.plan):
            self.keeps_dense &= not units  # one without them is there for a while only
            return self._template(types, replace(limits, keeps_dense=False), values or {}, constant, apart)
        return template

    def _template(
        self,
        types: tuple[TensorType, ...],
        limits: Limits,
        values: Mapping[int, Array],
        constant: bool,
        apart: bool,
    ) -> Template:
        def make() -> Template:
            return make_template(self.graph, types, limits, self.rewrite, values, constant=constant, apart=apart)

        if self._artefact is None:
            return make()
        about = self.rewrite is not None, constant, apart
        return known_plans.template(self._artefact, self.graph, types, limits, values, about, make)

    def _may_stay(self, plan: Plan) -> bool:
        """Whether a plan's dense copies of packed weights may stay on the device, beside those of other programs. Not
        in a model that changes a state in place: nearly all of its runs are steps of one token, which read packed
        weights; the copies are eight times as large.
        """
        if self.config.weights == "fast":
            return True
        if plan.in_place:
            return False
        limits = [n for n in (self.gpu.memory_limit_nbytes, self.config.memory_limit_mb << 20) if n]
        most = min(limits) // DENSE_SHARE if limits else MAX_DENSE_NBYTES
        return plan.dense_nbytes + self.gpu.dense_nbytes(apart_from=self) <= most

    def give_back(self) -> None:
        """Frees dense copies of packed weights, which there will be no more of. The plans that read them are gone, or
        go next."""
        self.keeps_dense = False
        self.prologue.free_dense()

    def steps(self, plan: Plan) -> list[Dispatch | Copy]:
        """What runs of a plan may record: its steps, and behind them those of `halved` where runs may bring inputs in
        float16."""
        return [*plan.steps, *(step for _, step in plan.halved if may_round(self.gpu, plan.inputs))]

    def pipeline(self, step: Any) -> Any:
        """The pipeline of a step of a plan, None for a copy. Needs no lock. Raises ShaderError."""
        return (
            pipeline(self.gpu, step, self.config.checked_shaders, self.composer) if isinstance(step, Dispatch) else None
        )

    def text(self, step: Dispatch) -> str:
        """Its WGSL. Needs no lock."""
        return self.composer(step.kernel, step.bindings, self.gpu.limits)

    def note(self, step: Dispatch, source: str, bound: Layout) -> Blobs | None:
        """A plan has this pipeline: a later process compiles it ahead. Returns what is kept of it. Any thread; needs no
        lock."""
        if self._artefact is None:
            return None
        return self._artefact.note(Pipeline(step.kernel.shader, source, step.label, bound))

    def noted(self) -> None:
        """All pipelines of a plan were noted."""
        if self._artefact is not None:
            self._artefact.save()

    # ---- constants

    def _take_constants(self, graph: Graph) -> Graph:
        """Large constants go to the device, small ones are copied; the graph that remains refers to neither ONNX
        Runtime nor a file."""
        values: dict[str, Value] = {}
        read = {n for node in graph.nodes for n in node.reads} | set(graph.outputs)
        for name, value in graph.values.items():
            if value.load is None:
                continue
            array = value.load()
            if TensorType(dtype_of(array), array.shape).nbytes <= host.MAX_CONSTANT_NBYTES:
                kept = np.array(array)
                values[name] = Value(name, value.dtype, value.shape, _giver(kept))
            else:
                if name in read:
                    self._weights[name] = self._upload(array)
                fits = self.config.precision in HALVED and fits_half(value)
                values[name] = Value(name, value.dtype, value.shape, _refuser(name), nonzeros_of(value), fits)
        return graph.with_nodes(graph.nodes, values)

    def _upload(self, array: Array) -> Buffer:
        data = packed(array)
        buffer = self.gpu.allocate(data.nbytes, WEIGHTS)
        self.upload(buffer, data.ctypes.data, data.nbytes)
        return buffer

    def upload(self, buffer: Buffer, address: int, nbytes: int) -> None:
        """Copies a constant to the device, and counts it. Raises DeviceError."""
        self.gpu.upload(buffer, 0, address, nbytes)
        self._staged_nbytes += nbytes
        if self._staged_nbytes > MAX_WAITING_NBYTES:
            self._staged_nbytes = 0
            self.gpu.finish()
        if nbytes:
            self.uploads += 1
            self.uploaded_nbytes += nbytes

    def _small(self, name: str) -> Array:
        array = self.graph.constant(name)
        if array is None:
            raise InternalError(f"program {self.graph.name}: weight {name!r} is not a constant of its graph")
        return array

    # ---- weights on the device

    @property
    def weight_nbytes(self) -> int:
        """Device memory of the weights, and of what is computed from them once."""
        return sum(b.nbytes for b in self._weights.values()) + self.prologue.nbytes

    def weight(self, name: str) -> Buffer:
        """A weight's buffer; what was freed is made again of what it was packed into. Raises DeviceError,
        ShaderError."""
        if name in self.replaced:
            self._weights[name] = self.prologue.restored(self.replaced[name])
            del self.replaced[name]
        return self._weights[name]

    def provide(self, names: Iterable[str]) -> None:
        """Uploads those weights of a plan that are not on the device yet. Raises DeviceError."""
        for name in names:
            if name not in self._weights and name not in self.replaced:
                self._weights[name] = self._upload(self._small(name))

    def missing_nbytes(self, plan: Plan) -> int:
        """Device memory of weights that a plan wants in an order in which they are not there."""
        restored = (self.replaced[name].tensors[-1].type.nbytes for name in plan.weights if name in self.replaced)
        return self.prologue.missing_nbytes(plan) + sum(restored)

    def release_packed(self, plans: Sequence[Plan]) -> None:
        """Frees weights that no run of these plans reads and that could be had back from what the prologue made of
        them."""
        self._going = self._replaceable(plans)
        self._have_been_read(list(self._going))
        self._going = {}

    def going(self, plans: Sequence[Plan]) -> None:
        """The last of these plans is made next: such weights are freed as soon as its prologue has read them, each on
        its own."""
        self._going = self._replaceable(plans)

    def _replaceable(self, plans: Sequence[Plan]) -> dict[str, Dispatch]:
        places = {
            place
            for plan in plans
            for step in plan.steps
            for place in ([t.place for t in step.tensors] if isinstance(step, Dispatch) else [step.source])
        }
        inverses = {step.tensors[-1].place: step for plan in reversed(plans) for step in reversed(plan.inverses)}
        return {place.name: step for place, step in inverses.items() if place not in places}

    def _have_been_read(self, names: Iterable[str]) -> None:
        """No step of a prologue reads these weights any more. What was freed goes back to the driver, which takes
        memory in blocks."""
        for name in names:
            if name in self._going and name in self._weights:
                self.gpu.free(self._weights.pop(name))
                self.replaced[name] = self._going[name]
        if self._going and self.gpu.stats.pooled_nbytes > MAX_WAITING_NBYTES:
            self.gpu.finish()
            self.gpu.trim()

    def keep(self, plans: Sequence[Plan]) -> None:
        """These plans are all that is left: frees what the prologue made for others. Raises DeviceError."""
        inverses = {step for plan in plans for step in plan.inverses}
        for name in [name for name, step in self.replaced.items() if step not in inverses]:
            self.weight(name)
        self.prologue.keep(plans)

    def close(self) -> None:
        """Frees the weights. The plans are closed before."""
        self.closed = True
        self.prologue.close()
        for buffer in self._weights.values():
            self.gpu.free(buffer)
        self._weights.clear()


def _giver(array: Array) -> Callable[[], Array]:
    return lambda: array


def _refuser(name: str) -> Callable[[], Array]:
    def refuse() -> Array:
        raise InternalError(f"constant {name!r} is on the device; a builder asked for its value")

    return refuse
