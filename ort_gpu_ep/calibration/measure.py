"""Runs small graphs on an adapter, as sessions do, and makes a device profile of the times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from ort_gpu_ep.calibration.workloads import WORKLOADS, Workload, chain, random
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Buffer, Gpu, Tensor
from ort_gpu_ep.device.timing import WAKE_S, Timer
from ort_gpu_ep.errors import Code, OutOfDeviceMemoryError, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.ir.types import TensorType, dtype_of
from ort_gpu_ep.kernels.lowering import facts_of, walk
from ort_gpu_ep.kernels.profile import GUESSED, SIBLING, Curve, Profile
from ort_gpu_ep.kernels.records import BY_FLOPS, Work, work_of
from ort_gpu_ep.kernels.registry import Limits, Lowering, tensors_of
from ort_gpu_ep.processes.interrupts import load
from ort_gpu_ep.runtime.program import Program

ROWS = "ort_gpu_ep.ops"
"""Fills the registry: not for a process that reads a profile."""

READBACK_NBYTES = 256
"""What every measured run reads back, so that each waits for the GPU in the same way."""

SIZES_NBYTES = tuple(4 << 10 << 2 * i for i in range(7))
"""Of the transfers: 4 KiB to 16 MiB, four times as much each."""

FEW_SIZES_NBYTES = SIZES_NBYTES[:5:2]
"""Of a profile without families: 4 KiB, 64 KiB and 1 MiB, a few milliseconds altogether. Sessions wait for it."""

CHAIN = 64
"""Length of the chain that is compared with one dispatch."""

LONG_S = 20e-3
"""A family stops growing where the next size is expected to take longer: an adapter shows its throughput well
before."""

RUNS = 30
"""Of the empty run, before anything else; it is measured again beside everything else."""

REPEATS, LEAST_REPEATS = 7, 3
"""Of any other measurement that takes LONG_S / REPEATS or less; of longer ones."""

RESERVE = 0.25
"""Part of the budget that is left when a family is begun: its kernels have to be compiled first, which can't be
interrupted (lavapipe: 0.1 s to 0.7 s a graph)."""

Progress = Callable[[str, float], None]


class Bench:
    """One adapter being measured since start_s, on time.perf_counter's clock. progress: as of `measure`.

    empty: a run of one dispatch on 64 numbers. It takes its turn beside everything that is measured, so that what
    others do to the machine meanwhile hits both; empties_s: its times.
    """

    def __init__(self, gpu: Gpu, budget_s: float, progress: Progress | None) -> None:
        self.gpu, self.budget_s, self.progress, self.start_s = gpu, budget_s, progress, time.perf_counter()
        self.say("empty runs and dispatches")
        self.empty = Job(gpu, chain(1))
        self.empty.run()
        self.empties_s = [_time(self.empty.run) for _ in range(RUNS)]
        self.timer = Timer(gpu) if "timestamp-query" in gpu.limits.features else None

    @property
    def spent(self) -> float:
        """Part of the budget that is gone."""
        return (time.perf_counter() - self.start_s) / self.budget_s

    def say(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what, min(1.0, self.spent))

    def added_s(self, action: Callable[[], object]) -> float:
        """What an action takes longer than the empty run: the least of each, in turns. What disturbs a run only makes
        it longer.

        The first time does not count (some drivers compile then), the second says how often there is time for.
        """
        action()
        empties_s, taken_s = [_time(self.empty.run)], [_time(action)]
        for _ in range(max(LEAST_REPEATS, min(REPEATS, int(LONG_S / taken_s[0]))) - 1):
            if self.spent > 1:
                break
            empties_s.append(_time(self.empty.run))
            taken_s.append(_time(action))
        self.empties_s += empties_s
        return min(taken_s) - min(empties_s)

    def work_s(self, job: Job) -> float:
        """What a job's kernels take longer than the empty run's: by the GPU's clock, where it can be read and believed.

        By the host's clock, kernels seem to take nothing until they outlast what the driver does meanwhile (some 30 us
        on an H200).
        """
        ours, empty = self._gpu_s(job), self._gpu_s(self.empty)
        return self.added_s(job.run) if ours is None or empty is None else ours - empty

    def _gpu_s(self, job: Job) -> float | None:
        """The least GPU seconds of a few runs; None where there are no timestamps, or some that can't be."""
        if self.timer is None:
            return None
        self.gpu.timer, times = self.timer, list[float]()
        try:
            job.run()  # what was recorded ahead has no timestamps
            for done in range(REPEATS):
                if done >= LEAST_REPEATS and (self.spent > 1 or sum(times) > LONG_S):
                    break
                waited_s = _time(job.run)
                times.append(self.timer.read_s())
                if not 0 < times[-1] <= waited_s:
                    return None
        finally:
            self.gpu.timer = None
        return min(times)


class Job:
    """A graph ready to run on random inputs, which lie on the adapter."""

    def __init__(self, gpu: Gpu, graph: Graph) -> None:
        self.gpu, self._taken = gpu, list[Tensor]()
        load(ROWS)
        self.program = Program(graph, Config(weights="packed"), gpu)
        try:
            self.inputs = [self._tensor(random(_shape(graph, name))) for name in graph.inputs]
            self.plan = self.program.plan([t.type for t in self.inputs])
            self.outputs = [self._tensor(np.empty(t.shape, t.dtype.numpy), fill=False) for t in self.plan.outputs]
        except BaseException:
            self.close()
            raise

    def _tensor(self, array: Array, fill: bool = True) -> Tensor:
        tensor = Tensor(self.gpu.allocate(array.nbytes), 0, TensorType(dtype_of(array), array.shape))
        self._taken.append(tensor)
        if fill:
            self.gpu.upload(tensor.buffer, 0, array.ctypes.data, array.nbytes)
        return tensor

    def run(self) -> None:
        """One run, waited for."""
        self.start()
        read(self.gpu, self.outputs[0], READBACK_NBYTES)

    def start(self) -> None:
        self.program.run(self.inputs, lambda index, shape, over=None: self.outputs[index])

    def close(self) -> None:
        for tensor in self._taken:
            self.gpu.free(tensor.buffer)
        self.program.close()


def _shape(graph: Graph, name: str) -> tuple[int, ...]:
    return tuple(d for d in graph.values[name].shape or () if isinstance(d, int))


def read(gpu: Gpu, tensor: Tensor, nbytes: int) -> None:
    target = np.empty(min(nbytes, tensor.type.nbytes), np.uint8)
    gpu.download(tensor.buffer, tensor.offset_bytes, target.ctypes.data, target.nbytes)


def _time(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(
    gpu: Gpu,
    budget_s: float = 3.0,
    progress: Progress | None = None,
    whole: bool = True,
    wake_s: float = WAKE_S,
) -> Profile:
    """The profile of an adapter. Takes budget_s at most, but for shaders that compile slowly; what is left out then has
    a sibling.

    progress: is called with what comes next and the part of the budget that is spent. whole: with families of kernels,
    which take most of the time, and all sizes of transfers. wake_s: how long a GPU works first. Raises: DeviceError,
    ShaderError; UnsupportedNodeError where even elementwise kernels are out of use.
    """
    timer, gpu.timer = gpu.timer, None  # timestamps of somebody's benchmark would cost each run
    try:
        bench = Bench(gpu, budget_s, progress)
        try:
            return _profile(bench, whole, wake_s)
        finally:
            bench.empty.close()
    finally:
        gpu.timer = timer
        gpu.trim()


def _profile(bench: Bench, whole: bool, wake_s: float) -> Profile:
    long = Job(bench.gpu, chain(CHAIN))
    try:
        start = time.perf_counter()
        while not bench.gpu.info.is_software and time.perf_counter() - start < wake_s:
            long.run()
        dispatch_s = max(bench.work_s(long) / (CHAIN - 1), 1e-7)
    finally:
        long.close()
    upload, download = _transfers(bench, SIZES_NBYTES if whole else FEW_SIZES_NBYTES)
    families = _families(bench, dispatch_s) if whole else {}
    bench.say("done")
    return Profile(
        bench.gpu.info.name, max(median(bench.empties_s) - dispatch_s, 1e-6), dispatch_s, upload, download, families
    )


def _transfers(bench: Bench, sizes_nbytes: Sequence[int]) -> tuple[Curve, Curve]:
    """What an upload before a run, and a larger readback after it, add to it."""
    gpu, empty, up, down = bench.gpu, bench.empty, list[tuple[float, float]](), list[tuple[float, float]]()
    for nbytes in sizes_nbytes:
        bench.say(f"transfers of {nbytes >> 10} KiB")
        array, buffer = random((nbytes // 4,)), gpu.allocate(nbytes)

        def upload(array: Array = array, buffer: Buffer = buffer) -> None:
            gpu.upload(buffer, 0, array.ctypes.data, array.nbytes)
            empty.run()

        def download(array: Array = array, buffer: Buffer = buffer) -> None:
            empty.start()
            gpu.download(buffer, 0, array.ctypes.data, array.nbytes)

        up.append((nbytes, bench.added_s(upload)))
        down.append((nbytes, bench.added_s(download)))
        gpu.free(buffer)
    return Curve.through(up, 1e-7), Curve.through(down, 1e-7)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a workload's graph took. works: of its kernels, some of which may be of other families. seconds: of all,
    without dispatches."""

    family: str
    works: tuple[Work, ...]
    seconds: float

    def point(self, known: Profile | None = None) -> tuple[float, float]:
        """(amount, seconds) of a step of the family's own kernels: less what the others take by `known`, at most half
        of it."""
        own = [w for w in self.works if w.family == self.family]
        others_s = sum(known.work_s(w) for w in self.works if w.family != self.family) if known else 0.0
        amount = sum(w.flops if self.family in BY_FLOPS else w.nbytes for w in own)
        return amount / own[0].steps, max(self.seconds - others_s, self.seconds / 2) / own[0].steps


def _families(bench: Bench, dispatch_s: float) -> dict[str, Curve]:
    """Every family at its smallest size, then all that are still quick at the next one, and so on while there is time.

    Those that no sibling can stand in for are measured however long the first kernels took to compile.
    """
    samples: list[Sample] = []
    longest_s = RESERVE * bench.budget_s
    growing = [(workload, 0, 0.0) for workload in WORKLOADS]
    while growing:
        workload, index, expected_s = growing.pop(0)
        left_s = bench.budget_s * (1 - bench.spent)
        if left_s < (expected_s or longest_s) and (index or workload.family in SIBLING):
            continue
        size, start_s = workload.sizes[index], time.perf_counter()
        bench.say(f"{workload.family}, size {size}")
        try:
            works, added_s = _measured(bench, workload, size)
        except (
            UnsupportedNodeError,
            OutOfDeviceMemoryError,
        ):  # a kernel out of use or declined, a small adapter: what there is does
            continue
        spent_s = time.perf_counter() - start_s
        longest_s = max(longest_s, spent_s)  # a machine that is busy compiles slowly
        more = sum(w.dispatches for w in works) - 1  # than an empty run has
        samples.append(Sample(workload.family, works, added_s - dispatch_s * more))
        if index + 1 < len(workload.sizes):
            growth = (workload.sizes[index + 1] / size) ** workload.power
            if added_s * growth < LONG_S:
                growing.append((workload, index + 1, 2 * spent_s + LEAST_REPEATS * LONG_S))
    return curves(samples)


def curves(samples: Sequence[Sample]) -> dict[str, Curve]:
    """The curve of each family; where a workload needs other kernels, too, the first curves of theirs say what they
    take of it."""
    families = dict.fromkeys(sample.family for sample in samples)
    first = {f: Curve.through(s.point() for s in samples if s.family == f) for f in families}
    assumed = replace(GUESSED, families=first)
    return {f: Curve.through(s.point(assumed) for s in samples if s.family == f) for f in families}


def _measured(bench: Bench, workload: Workload, size: int) -> tuple[tuple[Work, ...], float]:
    """The work of the kernels of one graph, and the seconds that it adds to an empty run."""
    graph = workload.graph(size)
    works = works_of(graph, bench.gpu.limits)
    if all(work.family != workload.family for work in works):
        raise UnsupportedNodeError(
            Code.LIMIT, f"{graph.name} of size {size} takes no kernel of the family {workload.family} here"
        )
    job = Job(bench.gpu, graph)
    try:
        return works, bench.work_s(job)
    finally:
        job.close()


def works_of(graph: Graph, limits: Limits) -> tuple[Work, ...]:
    """The work of each kernel that a run of a graph of one node dispatches. Raises UnsupportedNodeError where it is not
    taken."""
    load(ROWS)
    inputs = {name: TensorType(graph.values[name].dtype, _shape(graph, name)) for name in graph.inputs}  # type: ignore[arg-type]
    _, answer, bound = next(walk(graph, facts_of(graph, inputs), limits))
    if not isinstance(answer, Lowering) or bound is None:
        raise UnsupportedNodeError(Code.OP, f"{graph.name} is not taken: {answer}")
    return tuple(work_of(k, tensors_of(k, answer, bound)) for k in answer.per_run)
