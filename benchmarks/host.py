"""What a run takes besides the GPU: whole runs beside the same upload, submission, wait and copy with nothing around
them, and threads.

    python -m benchmarks.host [NAME ...] [--runs 100] [--threads 1,2,4,8] [--join] [--group-size 4] [--groups 2]
      [--adapter A]
        [--json FILE]
    python -m benchmarks.host --between MODEL

floor: of the model's own recording, made beforehand: inputs written, one submission, the mapping polled for, the
outputs copied out. over: placement=gpu above that. auto: a session that chooses for itself, and what it chose. Threads:
runs per second of one session that all of them use, and of a session each; with --join also of one whose runs are
submitted together (join_runs=1, so many groups of so many runs), and how many submissions a run that took. --between: a
run after other work on the CPU, and its parts: upload, submission, the wait, and the rest (Python, onnxruntime, copying
out).
"""

from __future__ import annotations

import json as json_module
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import cases
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.runtime import joined_runs
from ort_gpu_ep.runtime.ends import Ends
from ort_gpu_ep.runtime.joined_runs import CONTENDED
from ort_gpu_ep.runtime.recording import Recording
from ort_gpu_ep.utilization import AWAKE_S
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import ffi, lib
from ort_gpu_ep.webgpu.objects import COPY_DST, MAP_READ

console = Console()
DEFAULT = ("resnet50", "inception_v3", "mobilenet_v2", "squeezenet1_1", "alexnet", "encoder", "har_lstm")
THREADS_S = 1.0
THREADS_MODEL = "resnet50"
MAKING_S = 20.0
"""What it may take until runs are submitted together."""

_arrived: list[int] = [0]


@ffi.callback("WGPUBufferMapCallback")  # type: ignore[untyped-decorator]  # cffi has none
def _on_arrival(status: int, message: Any, first: Any, second: Any) -> None:
    _arrived[0] = status


class Floor:
    """The raw form of a session's run: its one partition's recording over buffers of its own."""

    def __init__(self, session: Any, feeds: dict[str, Any]) -> None:
        (partition,) = session._state.partitions
        self.prepared, self.gpu = partition.program.compiled.general[-1], partition.program.gpu
        self.shape = self.prepared._current
        filled = self.shape.filled
        self.arrays = [np.ascontiguousarray(feeds[name]) for name in partition.graph.inputs]
        self.inputs = [Tensor(self.gpu.allocate(t.nbytes), 0, t) for t in filled.inputs]
        self.outputs = [Tensor(self.gpu.allocate(t.nbytes), 0, t) for t in filled.outputs]
        self.results = [np.empty(t.shape, t.dtype.numpy) for t in filled.outputs]
        self.size = sum(-(-t.nbytes // 256) * 256 for t in filled.outputs)
        self.staging = self.gpu.create(self.size, MAP_READ | COPY_DST)
        self.recording = Recording(self.prepared, Ends(self.inputs, self.outputs))
        self.dispatches = self.prepared.template.plan.dispatches
        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode, info.callback = lib.WGPUCallbackMode_AllowProcessEvents, _on_arrival
        self.info = info

    def _recorded(self) -> list[Any]:
        with self.prepared.context.lock:
            commands, _ = self.recording.commands(self.shape)
        encoder, place = self.gpu.device.create_command_encoder("readback"), 0
        for tensor in self.outputs:
            native.copy_buffer(
                encoder, tensor.buffer.native, 0, self.staging.native, place, (tensor.type.nbytes + 3) & ~3
            )
            place += -(-tensor.type.nbytes // 256) * 256
        return [*commands, native.finish(encoder)]

    def seconds(self) -> float:
        """Of one run, the recording not counted."""
        commands, device = self._recorded(), self.gpu.device
        _arrived[0] = 0
        start = time.perf_counter()
        for array, tensor in zip(self.arrays, self.inputs, strict=True):
            lib.wgpuQueueWriteBuffer(
                device.queue, tensor.buffer.native, 0, ffi.from_buffer(array), (array.nbytes + 3) & ~3
            )
        native.submit(device, commands)
        lib.wgpuBufferMapAsync(self.staging.native, lib.WGPUMapMode_Read, 0, self.size, self.info[0])
        while not _arrived[0]:
            lib.wgpuDevicePoll(device.handle, False, ffi.NULL)
        mapped, place = ffi.cast("char *", lib.wgpuBufferGetConstMappedRange(self.staging.native, 0, self.size)), 0
        for result in self.results:
            ffi.memmove(ffi.from_buffer(result), mapped + place, result.nbytes)
            place += -(-result.nbytes // 256) * 256
        taken = time.perf_counter() - start
        lib.wgpuBufferUnmap(self.staging.native)
        return taken


def steady(call: Callable[[], float], runs: int, warm_s: float) -> float:
    """Milliseconds: the median of what `call` says of so many calls, after some time of them."""
    until = time.perf_counter() + warm_s
    while time.perf_counter() < until:
        call()
    return float(np.median([call() for _ in range(runs)])) * 1e3


def timed(session: Any, feeds: dict[str, Any]) -> Callable[[], float]:
    def call() -> float:
        start = time.perf_counter()
        session.run(None, feeds)
        return time.perf_counter() - start

    return call


def measure(name: str, runs: int, adapter: str) -> dict[str, Any]:
    model, feeds = cases.load(name)
    options = {"adapter": adapter} if adapter else {}
    gpu = InferenceSession(model, cases.quiet(), provider_options={"placement": "gpu", **options})
    auto = cases.waited(InferenceSession(model, cases.quiet(), provider_options=options))
    whole, chosen = timed(gpu, feeds), timed(auto, feeds)
    for _ in range(3):
        whole()
        chosen()
    floor = Floor(gpu, feeds)
    sides = {"gpu": whole, "floor": floor.seconds, "auto": chosen}
    found: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(3):  # in blocks, so that a drift of clocks hits all sides
        # what auto knows of the GPU is of gpu's runs, too
        for side, warm_s in (("floor", 0.2), ("gpu", 0.2), ("auto", AWAKE_S)):
            found[side].append(steady(sides[side], runs // 3, warm_s))
    want = gpu.run(None, feeds)
    error = max(
        float(np.max(np.abs(a - b), initial=0.0))
        for a, b in zip(floor.results, want, strict=True)
        if a.dtype.kind == "f"
    )
    by_candidate = auto.stats().get("runs_by_candidate", {})
    row = {side: float(np.median(values)) for side, values in found.items()}
    return {
        **row,
        "over": row["gpu"] - row["floor"],
        "chose": max(by_candidate, key=by_candidate.get, default="?"),
        "dispatches": floor.dispatches,
        "error": error,
    }


def rate(sessions: list[Any], feeds: dict[str, Any], threads: int) -> float:
    """Runs per second of so many threads, each with the session of its number."""
    counts, begin, over = [0] * threads, threading.Barrier(threads + 1), threading.Event()

    def work(k: int) -> None:
        session = sessions[k % len(sessions)]
        session.run(None, feeds)
        begin.wait()
        while not over.is_set():
            session.run(None, feeds)
            counts[k] += 1

    workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for worker in workers:
        worker.start()
    begin.wait()
    start = time.perf_counter()
    time.sleep(THREADS_S)
    over.set()
    taken = time.perf_counter() - start
    done = sum(counts)
    for worker in workers:
        worker.join()
    return done / taken


def joined(
    model: str, feeds: dict[str, Any], counts: list[int], options: dict[str, str]
) -> tuple[dict[int, float], dict[int, float]]:
    """Runs per second by threads where they are submitted together, and submissions a run."""
    session = InferenceSession(model, cases.quiet(), provider_options={**options, "join_runs": "1"})
    for _ in range(4):
        session.run(None, feeds)
    # they notice that there are several, and make what they need beside them
    rate([session], feeds, CONTENDED + 1)
    until = time.perf_counter() + MAKING_S
    while time.perf_counter() < until and not any(_joint(session)):
        rate([session], feeds, CONTENDED + 1)
    stats, rates, submits = session._state.gpu.stats, dict[int, float](), dict[int, float]()
    for count in counts:
        rate([session], feeds, count)
        before, session_before = stats.submits, session.stats()["runs"]
        rates[count] = rate([session], feeds, count)
        submits[count] = (stats.submits - before) / max(1, session.stats()["runs"] - session_before)
    return rates, submits


def _joint(session: Any) -> list[bool]:
    """Of each set of inputs, whether its runs are submitted together."""
    forms = session.direct.partition.forms.values() if session.direct is not None else []
    contentions = [form.steady.contention for form in forms]
    return [contention is not None and contention.coalescer is not None for contention in contentions]


def threads_of(name: str, counts: list[int], adapter: str, join: bool) -> dict[str, dict[int, float]]:
    model, feeds = cases.load(name)
    options = {"placement": "gpu", "join_runs": "0", **({"adapter": adapter} if adapter else {})}
    sessions = [InferenceSession(model, cases.quiet(), provider_options=options) for _ in range(max(counts))]
    for session in sessions:
        for _ in range(4):
            session.run(None, feeds)
    ways = {"one session": sessions[:1], "a session each": sessions}
    found = {way: {n: rate(used, feeds, n) for n in counts} for way, used in ways.items()}
    if join:
        found["one session, joined"], found["submissions a run"] = joined(model, feeds, counts, options)
    return found


BEFORE, COUNTED = 20, 70
"""Runs after other work of one kind: those that only get used to it, and those that count."""


def between(name: str, adapter: str) -> dict[str, dict[str, float]]:
    """Milliseconds of a run, by the work that came between it and the one before: the median of the whole, the means of
    its parts."""
    model, feeds = cases.load(name)
    options = {"placement": "gpu", **({"adapter": adapter} if adapter else {})}
    session: Any = InferenceSession(model, cases.quiet(), provider_options=options)
    calm = cases.quiet()
    calm.add_session_config_entry("session.intra_op.allow_spinning", "0")
    spinning, resting = (
        onnxruntime.InferenceSession(model, s, providers=["CPUExecutionProvider"]) for s in (cases.quiet(), calm)
    )
    values = np.zeros(8 << 20)
    kinds: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "a rest of 1 ms": lambda: time.sleep(1e-3),
        "a rest of 10 ms": lambda: time.sleep(1e-2),
        "64 MB of memory": lambda: np.add(values, 1.0, out=values),
        "the model on ORT's CPU": lambda: spinning.run(None, feeds),
        "the same without spinning": lambda: resting.run(None, feeds),
    }
    until = time.perf_counter() + 2 * AWAKE_S
    while time.perf_counter() < until:
        session.run(None, feeds)
    stats, found = session._state.gpu.stats, dict[str, dict[str, float]]()
    for kind, work in kinds.items():
        took, before = list[float](), (0.0, 0.0, 0.0)
        for k in range(BEFORE + COUNTED):
            work()
            before = (stats.upload_s, stats.submit_s, stats.wait_s) if k == BEFORE else before
            begin = time.perf_counter()
            session.run(None, feeds)
            took.append((time.perf_counter() - begin) * 1e3)
        parts = [
            (now - then) * 1e3 / COUNTED
            for now, then in zip((stats.upload_s, stats.submit_s, stats.wait_s), before, strict=True)
        ]
        found[kind] = {
            "run": float(np.median(took[BEFORE:])),
            **dict(zip(("upload", "submit", "wait"), parts, strict=True)),
            "rest": float(np.mean(took[BEFORE:])) - sum(parts),
        }
        said = ", ".join(f"{part} {ms:.3f}" for part, ms in found[kind].items())
        console.print(f"{name} after {kind}: {said}", highlight=False, soft_wrap=True)
    return found


def main(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    runs: Annotated[int, typer.Option()] = 99,
    threads: Annotated[str, typer.Option(help="How many at a time, for the rates; empty: none.")] = "1,2,4,8",
    threads_model: Annotated[str, typer.Option()] = THREADS_MODEL,
    join: Annotated[bool, typer.Option(help="Also with runs of several threads submitted together.")] = False,
    group_size: Annotated[int, typer.Option(help="Runs in one submission at most.")] = joined_runs.MAX_RUNS,
    groups: Annotated[int, typer.Option(help="Submissions under way.")] = joined_runs.MAX_GROUPS,
    models: Annotated[bool, typer.Option(help="No: threads only.")] = True,
    adapter: Annotated[str, typer.Option()] = "",
    json: Annotated[Path | None, typer.Option()] = None,
    after_work: Annotated[
        str, typer.Option("--between", metavar="MODEL", help="Runs of this model after other work instead.")
    ] = "",
) -> None:
    if after_work:
        _write(json, {after_work: between(after_work, adapter)})
        return
    joined_runs.MAX_RUNS, joined_runs.MAX_GROUPS = group_size, groups
    results: dict[str, Any] = {}
    table = Table("ms", "dispatches", "floor", "gpu", "over", "auto", "auto chose", "difference")
    for name in (names or DEFAULT) if models else ():
        row = results[name] = measure(name, runs, adapter)
        table.add_row(
            name,
            str(row["dispatches"]),
            *(f"{row[k]:.3f}" for k in ("floor", "gpu", "over", "auto")),
            row["chose"],
            f"{row['error']:.1e}",
        )
        _write(json, results)
    console.print(table)
    if threads:
        rates = results["threads"] = threads_of(threads_model, [int(n) for n in threads.split(",")], adapter, join)
        for way, found in rates.items():
            console.print(f"{threads_model}, {way}: " + ", ".join(f"{n} threads {r:.4g}" for n, r in found.items()))
    _write(json, results)


def _write(path: Path | None, results: dict[str, Any]) -> None:
    """After each model: nothing is lost where the time is over."""
    if path is not None:
        path.write_text(json_module.dumps(results, indent=1))


if __name__ == "__main__":
    typer.run(main)
