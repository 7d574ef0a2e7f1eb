"""Measures runs of a session: whole, by the host's phases, and each dispatch by the GPU's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from ort_gpu_ep.calibration import with_roofs
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.adapter import order_among_equals
from ort_gpu_ep.device.pipelines import is_checked
from ort_gpu_ep.device.timing import WAKE_S, Stopwatch
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.kernels.records import record_of, work_of
from ort_gpu_ep.load.clocks import read_clocks
from ort_gpu_ep.profiling.result import PHASES, Roofs, RunProfile, TimedDispatch
from ort_gpu_ep.scheduler.plan import Dispatch, Plan

BLOCKS = 3
"""Whole runs, runs with a timed pass and runs with timed dispatches take turns, so often each: a drift hits all of
them."""

WARM_RUNS = 3

Progress = Callable[[str, float], None]


@dataclass
class _Taken:
    """Microseconds of runs. phases: one mapping a run. dispatches: (partition, step) -> (begin, duration) of each
    run."""

    whole: list[float] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)
    dispatches: dict[tuple[int, int], list[tuple[float, float]]] = field(default_factory=dict)
    order: list[tuple[Any, int]] = field(default_factory=list)


def profile_runs(
    run: Callable[[], object],
    partitions: Sequence[Any],
    gpu: Gpu | None,
    config: Config,
    model: str,
    runs: int = 20,
    progress: Progress | None = None,
) -> RunProfile:
    """What `run` takes, which runs a session's partitions on a device of this process.

    partitions: plugin.compute.Partition each. runs: counted of each kind. progress: is called with what comes next and
    the part done. Raises ConfigError where nothing of it is on such a device; what `run` raises.
    """
    ours = [p for p in partitions if p.program is not None]
    if gpu is None or not ours:
        raise ConfigError(
            f"{model}: nothing of it runs on a GPU of this process, so there is nothing to profile. Use "
            f"placement=gpu and isolation=none; "
            "explain() says why a node is on the CPU."
        )
    say = progress or (lambda what, part: None)
    say("the adapter", 0.0)
    roofs, order = with_roofs(gpu, config).roofs, order_among_equals(gpu.info)
    say("warming up", 0.1)
    _warm(run, gpu)
    clocks = [_clocks(gpu, order)]
    taken = _Taken()
    timed = "timestamp-query" in gpu.limits.features
    watches = [Stopwatch(gpu, each) for each in (False, True)] if timed else []
    for block in range(BLOCKS):
        say("running", 0.2 + 0.8 * block / BLOCKS)
        _block(run, gpu, ours, watches, -(-runs // BLOCKS), taken)
    clocks.append(_clocks(gpu, order))
    return RunProfile(
        model,
        gpu.info.name,
        f"{gpu.info.backend}, {gpu.info.driver}",
        len(taken.whole),
        median(taken.whole),
        _phases(taken),
        median(taken.passes) if taken.passes else 0.0,
        _dispatches(taken, [p.program.context for p in ours]),
        Roofs(roofs.flops_per_s / 1e9, roofs.nbytes_per_s / 1e9),
        (clocks[0], clocks[1]),
        all(
            is_checked(gpu, p.program.config.checked_shaders, s.kernel.shader)
            for p in ours
            for plan in p.program.plans
            for s in plan.steps
            if isinstance(s, Dispatch)
        ),
        _notes(gpu, timed),
    )


def _phases(taken: _Taken) -> dict[str, float]:
    """Means over the middle third of the runs by length: their sum is such a run's."""
    order = sorted(range(len(taken.whole)), key=lambda k: taken.whole[k])
    middle = order[len(order) // 3 : len(order) - len(order) // 3]
    return {name: fmean(taken.phases[k][name] for k in middle) for name in PHASES}


def _notes(gpu: Gpu, timed: bool) -> tuple[str, ...]:
    if not timed:
        return ("the adapter has no timestamps: no dispatch is timed",)
    return (
        ("llvmpipe takes a timestamp late now and then: the shortest dispatches are uncertain",)
        if gpu.info.is_software
        else ()
    )


def _clocks(gpu: Gpu, order: int) -> str:
    clocks = read_clocks(gpu.info, order)
    return str(clocks) if clocks is not None else ""


def _warm(run: Callable[[], object], gpu: Gpu) -> None:
    """Until everything is compiled and recorded, and a GPU has raised its clock."""
    start, done = time.perf_counter(), 0
    while done < WARM_RUNS or (not gpu.info.is_software and time.perf_counter() - start < WAKE_S):
        run()
        done += 1


def _block(
    run: Callable[[], object],
    gpu: Gpu,
    partitions: Sequence[Any],
    watches: Sequence[Stopwatch],
    runs: int,
    taken: _Taken,
) -> None:
    """Some runs of each kind. The first one of a kind does not count: what was recorded ahead was for another."""
    for watch in (None, *watches):
        before, gpu.timer = gpu.timer, watch
        try:
            run()
            for _ in range(runs):
                if watch is None:
                    _whole(run, gpu, partitions, taken)
                else:
                    run()
                    _read(watch, taken)
        finally:
            gpu.timer = before
            gpu.flush()  # a recording that names the timestamps' buffers


def _read(watch: Stopwatch, taken: _Taken) -> None:
    times = watch.read()
    if not watch.each:
        taken.passes.append(sum(end - begin for _, _, begin, end in times) / 1e3)
        return
    for owner, step, begin, end in times:
        key = (id(owner), step)
        if key not in taken.dispatches:
            taken.order.append((owner, step))
        taken.dispatches.setdefault(key, []).append(((begin - times[0][2]) / 1e3, (end - begin) / 1e3))


def _whole(run: Callable[[], object], gpu: Gpu, partitions: Sequence[Any], taken: _Taken) -> None:
    """One run and its phases, by what the device counts and by when our part begins and ends."""
    stats, spans = gpu.stats, list[tuple[float, tuple[float, ...], float, tuple[float, ...]]]()

    def read() -> tuple[float, ...]:
        return stats.upload_s, stats.submit_s, stats.wait_s, stats.download_s

    def watched(perform: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            start, before = time.perf_counter(), read()
            try:
                perform(*arguments)
            finally:
                spans.append((start, before, time.perf_counter(), read()))

        return call

    for partition in partitions:
        partition.perform = watched(partition.perform)
    try:
        start, first = time.perf_counter(), read()
        run()
        end, last = time.perf_counter(), read()
    finally:
        for partition in partitions:
            del partition.perform
    upload, submit, wait, download = (b - a for a, b in zip(first, last, strict=True))
    # submission and wait are parts of a download
    inside = sum(b - a - (n[0] - m[0]) - (n[3] - m[3]) for a, m, b, n in spans)
    phases = {
        "before": spans[0][0] - start - (spans[0][1][0] - first[0]) if spans else 0.0,
        "upload": upload,
        "prepare": max(inside, 0.0),
        "submit": submit,
        "wait": wait,
        "copy_out": max(download - wait - submit, 0.0),
    }
    phases["after"] = max(end - start - sum(phases.values()), 0.0)
    taken.whole.append((end - start) * 1e6)
    taken.phases.append({name: seconds * 1e6 for name, seconds in phases.items()})


def _dispatches(taken: _Taken, contexts: Sequence[Any]) -> tuple[TimedDispatch, ...]:
    """Medians, with what each does, in the order of time."""
    plans: dict[int, Plan] = {}
    dispatches = []
    for owner, step in taken.order:
        if id(owner) not in plans:
            plans[id(owner)] = owner.last_plan()
        plan = plans[id(owner)]
        times = taken.dispatches[id(owner), step]
        dispatch = plan.steps[step]
        assert isinstance(dispatch, Dispatch)
        dispatches.append(
            _timed(dispatch, contexts.index(owner.context), median(b for b, _ in times), median(d for _, d in times))
        )
    return tuple(sorted(dispatches, key=lambda d: d.begin_us))


def _timed(dispatch: Dispatch, partition: int, begin_us: float, us: float) -> TimedDispatch:
    work = work_of(dispatch.kernel, dispatch.bindings)
    written = next((t.type.shape for t in dispatch.tensors if t.written), ())
    return TimedDispatch(
        dispatch.label,
        dispatch.kernel.shader.removesuffix(".wgsl"),
        record_of(dispatch.kernel.shader).family,
        "x".join(map(str, written)),
        dispatch.groups,
        partition,
        begin_us,
        us,
        work.flops,
        work.nbytes,
    )
