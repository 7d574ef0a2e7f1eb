"""Runs small graphs on an adapter, as sessions do, and makes a Profile of the times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.calibration.workloads import WORKLOADS, Workload, chain, random
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, Program, Tensor
from ort_gpu_ep.errors import Code, OutOfDeviceMemoryError, UnsupportedNodeError
from ort_gpu_ep.graph import Array, Graph
from ort_gpu_ep.lowering import facts_of, walk
from ort_gpu_ep.partitioner.costs import flops_of
from ort_gpu_ep.profile import BY_FLOPS, Curve, Profile
from ort_gpu_ep.registry import Lowering
from ort_gpu_ep.types import TensorType, dtype_of

READBACK_NBYTES = 256
"""What every measured run reads back, so that each waits for the GPU in the same way."""

SIZES_NBYTES = tuple(4 << 10 << 2 * i for i in range(7))
"""Of the transfers: 4 KiB to 16 MiB, four times as much each."""

CHAIN = (4, 64)
"""Lengths of the chains whose difference gives the time of a dispatch."""

LONG_S = 20e-3
"""A family stops growing where the next size is expected to take longer: an adapter shows its throughput well before."""

RUNS = 30
"""Of the empty run."""

REPEATS = 7
"""Of any other measurement that takes LONG_S / REPEATS or less; fewer of longer ones."""

RESERVE = 0.25
"""Part of the budget that is left when a family is begun: its kernels have to be compiled first, which can't be interrupted
(lavapipe: 0.1 s to 0.7 s a graph)."""

Progress = Callable[[str, float], None]


@dataclass
class Bench:
    """One adapter being measured since start_s, on time.perf_counter's clock. progress: as of `measure`."""

    gpu: Gpu
    start_s: float
    budget_s: float
    progress: Progress | None = None

    @property
    def spent(self) -> float:
        """Part of the budget that is gone."""
        return (time.perf_counter() - self.start_s) / self.budget_s

    def say(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what, min(1.0, self.spent))


class Job:
    """A graph ready to run on random inputs, which lie on the adapter."""

    def __init__(self, gpu: Gpu, graph: Graph) -> None:
        self.gpu, self._taken = gpu, list[Tensor]()
        self.program = Program(graph, Config(), gpu)
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
        self.program.run(self.inputs, lambda index, shape: self.outputs[index])

    def close(self) -> None:
        for tensor in self._taken:
            self.gpu.free(tensor.buffer)
        self.program.close()


def _shape(graph: Graph, name: str) -> tuple[int, ...]:
    return tuple(d for d in graph.values[name].shape or () if isinstance(d, int))


def read(gpu: Gpu, tensor: Tensor, nbytes: int) -> None:
    target = np.empty(min(nbytes, tensor.type.nbytes), np.uint8)
    gpu.download(tensor.buffer, tensor.offset_bytes, target.ctypes.data, target.nbytes)


def seconds(action: Callable[[], object], runs: int = REPEATS) -> float:
    """Median of the action's time, after one for nothing. Of a long action: fewer runs."""
    first_s = _once(action)
    count = max(1, min(runs, int(LONG_S / first_s))) if runs == REPEATS else runs
    return median(_once(action) for _ in range(count))


def _once(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(gpu: Gpu, budget_s: float = 3.0, progress: Progress | None = None) -> Profile:
    """The profile of an adapter. Takes budget_s at most, but for a shader that compiles slowly; what is left out then has a sibling.

    progress: is called with what comes next and the part of the budget that is spent. Raises: DeviceError, ShaderError.
    """
    bench = Bench(gpu, time.perf_counter(), budget_s, progress)
    bench.say("empty runs and dispatches")
    short, long = (Job(gpu, chain(n)) for n in CHAIN)
    try:
        run_s = seconds(short.run, RUNS)
        dispatch_s = max((seconds(long.run) - run_s) / (CHAIN[1] - CHAIN[0]), 1e-7)
        run_s = max(run_s - CHAIN[0] * dispatch_s, 1e-6)
        upload, download = _transfers(bench, short, run_s + CHAIN[0] * dispatch_s)
    finally:
        short.close()
        long.close()
    families = _families(bench, run_s, dispatch_s)
    gpu.trim()
    bench.say("done")
    return Profile(gpu.info.name, run_s, dispatch_s, upload, download, families)


def _transfers(bench: Bench, empty: Job, empty_s: float) -> tuple[Curve, Curve]:
    """What an upload before a run, and a larger readback after it, add to it."""
    gpu, up, down = bench.gpu, list[tuple[float, float]](), list[tuple[float, float]]()
    for nbytes in SIZES_NBYTES:
        bench.say(f"transfers of {nbytes >> 10} KiB")
        array = random((nbytes // 4,))
        buffer = gpu.allocate(nbytes)

        def upload(at: int = array.ctypes.data, nbytes: int = nbytes, buffer: object = buffer) -> None:
            gpu.upload(buffer, 0, at, nbytes)  # type: ignore[arg-type]
            empty.run()

        def download(at: int = array.ctypes.data, nbytes: int = nbytes, buffer: object = buffer) -> None:
            empty.start()
            gpu.download(buffer, 0, at, nbytes)  # type: ignore[arg-type]

        up.append((nbytes, seconds(upload) - empty_s))
        down.append((nbytes, seconds(download) - empty_s))
        gpu.free(buffer)
    return Curve.through(up, 1e-7), Curve.through(down, 1e-7)


def _families(bench: Bench, run_s: float, dispatch_s: float) -> dict[str, Curve]:
    """Every family at its smallest size, then all that are still quick at the next one, and so on while there is time."""
    points: dict[str, list[tuple[float, float]]] = {}
    growing = [(workload, 0, 0.0) for workload in WORKLOADS]
    while growing:
        workload, index, expected_s = growing.pop(0)
        left_s = bench.budget_s * (1 - bench.spent)
        if left_s < (expected_s or RESERVE * bench.budget_s):
            continue
        size, start_s = workload.sizes[index], time.perf_counter()
        bench.say(f"{workload.family}, size {size}")
        try:
            amount, kernels, took_s = _once_at(bench.gpu, workload, size)
        except (UnsupportedNodeError, OutOfDeviceMemoryError):     # a kernel out of use, a small adapter: what there is does
            continue
        points.setdefault(workload.family, []).append((amount, took_s - run_s - dispatch_s * kernels))
        if index + 1 < len(workload.sizes):
            growth = (workload.sizes[index + 1] / size) ** workload.power
            if (took_s - run_s) * growth < LONG_S:
                growing.append((workload, index + 1, 1.5 * (time.perf_counter() - start_s) + LONG_S))
    return {family: Curve.through(measured) for family, measured in points.items()}


def _once_at(gpu: Gpu, workload: Workload, size: int) -> tuple[float, int, float]:
    """The amount of work, the dispatches and the median seconds of one graph."""
    graph = workload.graph(size)
    amount, kernels = _work(gpu, graph, workload.family)
    job = Job(gpu, graph)
    try:
        return amount, kernels, seconds(job.run)
    finally:
        job.close()


def _work(gpu: Gpu, graph: Graph, family: str) -> tuple[float, int]:
    """The amount that a node's prediction goes by, and its dispatches."""
    inputs = {name: TensorType(graph.values[name].dtype, _shape(graph, name)) for name in graph.inputs}  # type: ignore[arg-type]
    _, answer, bound = next(walk(graph, facts_of(graph, inputs), gpu.limits))
    if not isinstance(answer, Lowering) or bound is None:
        raise UnsupportedNodeError(Code.OP, f"{graph.name} is not taken: {answer}")
    if family in BY_FLOPS:
        return flops_of(bound, answer), len(answer.kernels)
    return sum(i.type.nbytes for i in bound.given()) + sum(t.nbytes for t in answer.outputs if t is not None), len(answer.kernels)
