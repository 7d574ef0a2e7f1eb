"""What Python does around the GPU, counted: calls and modules of opening a model, planning and running it. No GPU is
needed.

    python -m benchmarks.host_calls show [NAME ...]         this folder: counts, milliseconds, memory
    python -m benchmarks.host_calls update                  writes host_calls.json, what later commits are compared with
    python -m benchmarks.host_calls check                   exit code 1 where this folder calls more than that
    python -m benchmarks.host_calls compare OLD [NEW]       two commits, or folders with the package

opening new: a session with placement=gpu in a new process that finds nothing of the model on disk, opening known: what
it left there. planning: the plan of the model's graph. first run: of such a session. run, binding: with arrays, and
with an IO binding of arrays and a value on the device. verdict: the adapter, of which it is known whether it can be
trusted. token: one that a small decoder generates. step: one of training lenet5, with its loss. Of many alike it is the
one with the fewest calls. calls: of Python functions in the package, on the thread that runs, but while it waits for
the GPU (no generator, comprehension or lambda: Python versions differ in these); all: of any Python or C function
there. ms: without counting. kept: memory blocks that are there afterwards. peak KiB: of Python's memory on the way.
Counts repeat from process to process; milliseconds are of this machine. Rows of ops are calls of opening: who adds some
updates the file.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TypeAlias

import typer

RECORDED = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).resolve().parents[1]
MODELS = ("mlp_16x3", "lenet5", "har_lstm")
WALKS = {"adapter": ("verdict",), "decoder": ("token",), "trainer": ("step",)}
"""What is counted besides models, and its phases."""
NAMES = (*WALKS, *MODELS)
NEW, PHASES = "opening new", ("opening known", "planning", "first run", "run", "binding")
"""Of a model."""
RUNS, WARM_RUNS = 100, 40
LENGTH = 256
"""Of the decoder's caches: the first token and RUNS others by WARM_RUNS fit."""
MORE = 1.05
"""Times as many calls as recorded are not told: where a thread finds work done already, it calls less."""
WAITS = os.path.join("webgpu", "waiting.py")
"""What is called from there depends on how long the GPU takes: it is not counted."""

Counted: TypeAlias = dict[str, float]
Measured: TypeAlias = dict[str, Counted]
"""Of one model: phase -> what was counted."""


class Counter:
    """Calls on this thread, while it is installed."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.calls = self.all = self.waiting = 0
        self.modules = set[str]()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.endswith(WAITS):
            self.waiting += 1 if event == "call" else -1
        if event not in ("call", "c_call") or self.waiting:
            return
        self.all += 1
        if event == "call" and code.co_filename.startswith(self.package) and not code.co_name.startswith("<"):
            self.calls += 1
            self.modules.add(code.co_filename)

    def count(self, action: Callable[[], object]) -> None:
        sys.setprofile(self)
        try:
            action()
        finally:
            sys.setprofile(None)


def counted(name: str) -> Measured:
    """Counts of the phases, in this process."""
    import ort_gpu_ep

    package = str(Path(ort_gpu_ep.__file__).parent)
    found = {}
    for phase, times, action in _phases(name):
        counters = [Counter(package) for _ in range(times)]
        for counter in counters:
            counter.count(action)
        found[phase] = {
            "calls": min(c.calls for c in counters),
            "all": min(c.all for c in counters),
            "modules": len(set[str]().union(*(c.modules for c in counters))),
        }
    return found


def timed(name: str) -> Measured:
    """Milliseconds and memory of the phases, in this process."""
    found = {}
    for phase, times, action in _phases(name):
        gc.collect()
        blocks, start = sys.getallocatedblocks(), time.perf_counter()
        for _ in range(times):
            action()
        ms = (time.perf_counter() - start) * 1e3 / times
        gc.collect()
        found[phase] = {"ms": ms, "kept": (sys.getallocatedblocks() - blocks) / times}
    return found


def traced(name: str) -> Measured:
    """The most that Python's memory grew by on the way, in this process."""
    found = {}
    tracemalloc.start()
    for phase, times, action in _phases(name):
        gc.collect()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(times):
            action()
        found[phase] = {"peak KiB": (tracemalloc.get_traced_memory()[1] - before) / 1024}
    return found


MODES: Mapping[str, Callable[[str], Measured]] = {"counted": counted, "timed": timed, "traced": traced}


def _phases(name: str) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """(phase, how often, what to do). What comes between two phases is nobody's."""
    return {"adapter": _adapter, "decoder": _decoder, "trainer": _trainer}.get(name, lambda: _model(name))()


def _adapter() -> Iterator[tuple[str, int, Callable[[], object]]]:
    from ort_gpu_ep.config import resolve
    from ort_gpu_ep.health.open_adapter import open_gpu

    config = resolve({"placement": "gpu"})
    yield "verdict", 1, lambda: open_gpu(config)


def _decoder() -> Iterator[tuple[str, int, Callable[[], object]]]:
    import numpy as np

    from models.language import language_model
    from ort_gpu_ep.generation import Generator

    tokens = Generator(language_model(), max_length=LENGTH).generate(
        np.arange(1, 4), max_new_tokens=RUNS + 2 * WARM_RUNS
    )
    for _ in range(WARM_RUNS):
        next(tokens)
    yield "token", RUNS, lambda: next(tokens)


def _trainer() -> Iterator[tuple[str, int, Callable[[], object]]]:
    import numpy as np

    import models
    from ort_gpu_ep.training import SGD, Trainer

    trainer = Trainer(
        models.build("lenet5").SerializeToString(),
        loss="cross_entropy",
        optimizer=SGD(0.01),
        options={"placement": "gpu"},
    )
    random = np.random.default_rng(0)
    batch = random.standard_normal((1, 1, 32, 32), np.float32), random.integers(0, 10, 1)
    for _ in range(WARM_RUNS):
        trainer.step(*batch)
    yield "step", RUNS, lambda: float(trainer.step(*batch))


def _model(name: str) -> Iterator[tuple[str, int, Callable[[], object]]]:
    import onnx
    from onnxruntime import OrtValue

    from benchmarks import cases

    model, feeds = cases.load(name)
    made: list[Any] = []

    def open_session() -> None:
        from ort_gpu_ep import InferenceSession

        made.append(InferenceSession(model, cases.quiet(), provider_options={"placement": "gpu"}))

    yield "opening known", 1, open_session
    from ort_gpu_ep.ir.graph import from_onnx
    from ort_gpu_ep.ir.types import TensorType, dtype_of
    from ort_gpu_ep.kernels.target import DEFAULT_LIMITS
    from ort_gpu_ep.partitioner import rewrite
    from ort_gpu_ep.scheduler.template import make_template

    graph = from_onnx(onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model))
    types = [TensorType(dtype_of(feeds[n]), feeds[n].shape) for n in graph.inputs]
    yield "planning", 1, lambda: make_template(graph, types, DEFAULT_LIMITS, rewrite)
    session = made[0]
    yield "first run", 1, lambda: session.run(None, feeds)
    for _ in range(WARM_RUNS):
        session.run(None, feeds)
    yield "run", RUNS, lambda: session.run(None, feeds)
    binding, output = session.io_binding(), session.get_outputs()[0]
    for input_name, array in feeds.items():
        binding.bind_cpu_input(input_name, array)
    binding.bind_ortvalue_output(
        output.name, OrtValue.ortvalue_from_numpy(session.run([output.name], feeds)[0], "gpu", 0)
    )
    for _ in range(WARM_RUNS):
        session.run_with_iobinding(binding)
    yield "binding", RUNS, lambda: session.run_with_iobinding(binding)


def measured(names: tuple[str, ...], folder: Path = ROOT, modes: tuple[str, ...] = tuple(MODES)) -> dict[str, Measured]:
    """Of each model, each way in a new process. Raises CalledProcessError."""
    found: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
            "ORT_GPU_EP_CACHE_DIR": cache,
            "PYTHONHASHSEED": "0",
        }

        def one_way(mode: str, name: str) -> Measured:
            done = subprocess.run(
                [sys.executable, __file__, "one", mode, name],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            return dict(json.loads(done.stdout.splitlines()[-1]))

        one_way("timed", "adapter")  # leaves the verdict, which is no model's
        for name in names:
            first = one_way("counted", name)
            merged: Measured = {NEW: first["opening known"]} if name not in WALKS else {}
            for mode in modes:
                for phase, values in one_way(mode, name).items():
                    merged.setdefault(phase, {}).update(values)
            found[name] = merged
    return found


def increases(old: Mapping[str, Measured], new: Mapping[str, Measured], apart_from: tuple[str, ...] = ()) -> list[str]:
    """Phases that call more than MORE times as much as before, in sentences. apart_from: phases that may."""
    return [
        f"{name}, {phase}: {old[name][phase]['calls']:g} calls before, {values['calls']:g} now"
        for name, phases in new.items()
        for phase, values in phases.items()
        if phase not in apart_from and phase in old.get(name, ()) and values["calls"] > MORE * old[name][phase]["calls"]
    ]


def _table(found: Mapping[str, Measured]) -> None:
    columns = ("calls", "all", "modules", "ms", "kept", "peak KiB")
    print(f"{'':26}" + "".join(f"{c:>12}" for c in columns))
    for name, phases in found.items():
        for phase, values in phases.items():
            print(f"{name + ', ' + phase:26}" + "".join(f"{values.get(c, float('nan')):12,.1f}" for c in columns))


app = typer.Typer(help=__doc__, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
Names = Annotated[list[str] | None, typer.Argument(help="Builders of models/, adapter, decoder, trainer.")]


@app.command()
def show(names: Names = None) -> None:
    """What this folder does."""
    _table(measured(tuple(names or NAMES)))


@app.command()
def update() -> None:
    """Writes host_calls.json."""
    found = measured(NAMES, modes=("counted",))
    kept = {
        n: {phase: {k: v for k, v in values.items() if k in ("calls", "modules")} for phase, values in phases.items()}
        for n, phases in found.items()
    }
    RECORDED.write_text(json.dumps(kept, indent=1) + "\n")
    _table(found)


@app.command()
def check() -> None:
    """Whether this folder calls more than host_calls.json says."""
    found = measured(NAMES, modes=("counted",))
    _table(found)
    more = increases(json.loads(RECORDED.read_text()), found)
    print("\n".join(more) or "no more calls than recorded")
    raise typer.Exit(1 if more else 0)


@app.command()
def compare(
    old: Annotated[str, typer.Argument(help="A commit, or a folder with the package.")],
    new: Annotated[str, typer.Argument(help="Likewise; this folder by default.")] = str(ROOT),
    names: Annotated[str, typer.Option(help="Builders of models/.")] = ",".join(NAMES),
) -> None:
    """Two versions beside each other."""
    from benchmarks.compare import folder_of

    with tempfile.TemporaryDirectory() as temporary:
        folders = [folder_of(version, Path(temporary, side)) for version, side in ((old, "old"), (new, "new"))]
        sides = [measured(tuple(names.split(",")), folder) for folder in folders]
    for side, found in zip((old, new), sides, strict=True):
        print(f"\n{side}")
        _table(found)
    print("\n" + ("\n".join(increases(*sides)) or "no more calls than before"))


@app.command(hidden=True)
def one(mode: str, name: str) -> None:
    """One model, one way, as JSON."""
    print(json.dumps(MODES[mode](name)))


if __name__ == "__main__":
    app()
