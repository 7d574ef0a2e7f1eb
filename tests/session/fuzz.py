"""Runs the models of `fuzz_models` on ONNX Runtime's CPU and with ours, in child processes, and says where ours is
different.

`python -m tests.session.fuzz --first 0 --count 5000` (and with `--quantized` those of `quantized_graphs`, with
`--sizes` those of `size_graphs`, which may leave no run to the CPU; with `--counts` those of `count_graphs`) prints the
seed of each defect: a crash, a hang, an error or an answer that ONNX Runtime's CPU does not give, beyond rounding and
what `fuzz_allowed` lists. `--seed 17` runs one, in this process, and shows its model.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime

import ort_gpu_ep
from tests.ops.single_node import exact_sums
from tests.session.count_graphs import count_model
from tests.session.fuzz_allowed import allowed, told_by_run
from tests.session.fuzz_models import FuzzModel, fuzz_model, node_tests
from tests.session.quantized_graphs import quantized_model
from tests.session.random_graphs import Array, quiet
from tests.session.size_graphs import size_model

OPTIONS: tuple[dict[str, str], ...] = ({}, {"fusion": "0"}, {"checked_shaders": "0"}, {"checked_shaders": "1"})
MEMORY_NBYTES = 6 << 30
"""What a child may allocate: a model that asks for more gets an exception, in place of the machine's other
processes."""

HANG_S, START_S = 120.0, 600.0
"""Without a line from a child for so long it is taken for hanging; the first one comes when the models are made that
all start as."""

TIMES_OF_ITS_OWN = 5.0
"""Of what onnxruntime alone took for a model, ours gets so many times more: onnxruntime reads a model again where it
could not make a session."""

ROUNDING = {"float32": 3e-4, "float16": 2e-2, "float64": 3e-4}
"""Of the largest element."""

STEPS, OFTEN, OF_MEANS = 2, 0.1, 0.7
"""Of a quantized model: by how much rounding to the other side of a half may move a byte, and for which part; means
of few bytes often lie there."""

UNOPTIMISED = "halves as onnxruntime rounds them without its optimisations"
"""Of a quantized model: these round means and sums of bytes at other places than its nodes do, and later nodes enlarge
what is apart."""


@dataclass(frozen=True)
class Answer:
    """Of one run: its outputs, or the type and the text of the exception."""

    outputs: list[Any] = field(default_factory=list)
    error: str = ""
    message: str = ""

    def __str__(self) -> str:
        return (
            f"{self.error}: {self.message}"[:300]
            if self.error
            else f"{[(a.dtype.name, a.shape) for a in self.outputs if isinstance(a, np.ndarray)]}"
        )


def answers(model: FuzzModel, make: Any) -> tuple[list[Answer], Any]:
    """What a session gives in each run; one answer where it can't be made. And the session."""
    try:
        session = make(model.model)
    except Exception as error:
        return [_refusal(error)], None
    found = []
    for feeds in model.runs:
        try:
            found.append(Answer(session.run(None, feeds)))
        except Exception as error:
            found.append(_refusal(error))
    return found, session


def _refusal(error: Exception) -> Answer:
    return Answer([], type(error).__name__, str(error).replace("\n", " "))


def settings() -> Any:
    made = exact_sums(quiet())
    made.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # as ours has it
    made.intra_op_num_threads = 1  # small models: threads that spin would take the other cores for nothing
    return made


def cpu_session(model: bytes) -> Any:
    return onnxruntime.InferenceSession(model, settings(), providers=["CPUExecutionProvider"])


def plain_session(model: bytes) -> Any:
    """onnxruntime's CPU, node by node as the file says."""
    options = settings()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def defects(model: FuzzModel, want: Sequence[Answer], got: Sequence[Answer]) -> list[str]:
    """Where ours is different: an exception, a shape, an element."""
    if want[0].error and all(g.error for g in got):
        # refused when it is made, or when it runs: what steers a shape may be needed to see what is wrong
        return []
    if len(got) != len(want):
        return [f"{'; '.join(map(str, got))} instead of {'; '.join(map(str, want))}"]
    found = []
    for number, (g, w) in enumerate(zip(got, want, strict=True)):
        if g.error or w.error:
            what = [] if g.error and w.error else [f"{g} instead of {w}"]
        else:
            what = [
                p
                for a, b in zip(g.outputs, w.outputs, strict=True)
                if (p := different(a, b)) and not (model.step and _steps(model, a, b))
            ]
        found += [f"run {number}: {w}" for w in what]
    return found


def different(got: Any, want: Any) -> str:
    """How an output is different; empty where it is not, beyond rounding."""
    if not isinstance(want, np.ndarray) or want.dtype == object:
        return "" if str(got) == str(want) else f"{got} instead of {want}"[:200]
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if want.dtype.name not in ROUNDING:
        wrong = got != want
        return _first(wrong, got, want) if wrong.any() else ""
    with np.errstate(all="ignore"):
        finite = np.isfinite(want)
        unit = max(float(np.abs(want[finite].astype("f8")).max(initial=0.0)), 1e-3)
        near = np.abs(got.astype("f8") - want.astype("f8")) <= ROUNDING[want.dtype.name] * unit
        wrong = ~(near | (got == want) | (np.isnan(got) & np.isnan(want)))
    return _first(wrong, got, want) if wrong.any() else ""


def _steps(model: FuzzModel, got: Any, want: Any) -> bool:
    """Whether few elements of the same shape differ, and by few steps of a byte."""
    if (
        not isinstance(want, np.ndarray)
        or got.shape != want.shape
        or got.dtype != want.dtype
        or want.dtype.name not in ("uint8", "int8", "float32")
    ):
        return False
    often = OF_MEANS if any("Average" in op or op in ("ReduceMean", "Resize") for op in model.nodes) else OFTEN
    apart = np.abs(got.astype("f8") - want.astype("f8"))
    step = model.step if want.dtype.kind == "f" else 1.0
    return bool((apart <= STEPS * step * 1.01).all() and np.count_nonzero(apart > step * 0.1) <= 1 + often * want.size)


def _first(wrong: Array, got: Array, want: Array) -> str:
    at = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong)))
    return (
        f"{np.count_nonzero(wrong)} of {got.size} {want.dtype} differ, {np.atleast_1d(got)[at]} instead of "
        f"{np.atleast_1d(want)[at]} at {at}"
    )


# ---- a child


def child(seeds: Sequence[int], make: Any = fuzz_model) -> None:
    """A line before each half of a model, and one with what came of it."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_NBYTES, MEMORY_NBYTES))
    faulthandler.enable()
    warnings.simplefilter("ignore")
    if make is fuzz_model:
        node_tests()
    _say(seed=seeds[0], at="onnxruntime")
    for seed in seeds:
        model = make(seed)
        _say(seed=seed, at="onnxruntime")
        start = time.monotonic()
        want, session = answers(model, cpu_session)
        del session
        _say(seed=seed, at="ours", took_s=time.monotonic() - start)
        _say(seed=seed, **outcome(seed, model, want))
        gc.collect()


def outcome(seed: int, model: FuzzModel, want: Sequence[Answer]) -> dict[str, Any]:
    """found: defects. known: differences of the documented list. nodes: how many ran on the GPU."""
    options = {"placement": "gpu", **OPTIONS[seed % len(OPTIONS)]}
    got, session = answers(model, lambda m: ort_gpu_ep.InferenceSession(m, settings(), provider_options=options))
    on_gpu = sum(n.device == "gpu" for r in session.explain().reports for n in r.nodes) if session is not None else 0
    found, known = defects(model, want, got), []
    if found and model.step and not defects(model, answers(model, plain_session)[0], got):
        found, known = [], [UNOPTIMISED]
    fallbacks = session.stats()["fallbacks"] if session is not None else 0
    if found and not on_gpu and not any(g.error for g in got) and len(got) == len(want):
        found = []  # all of it is onnxruntime's: it gives some values as it found them in memory
    if fallbacks and model.base == "sizes":
        found += [f"run 0: an event: {session.explain().events[:1]}"]
    named = [(d, allowed(model, d)) for d in found]
    return {
        "found": [d for d, why in named if not why],
        "known": known + [why for _, why in named if why],
        "on_gpu": on_gpu,
        "unclaimed": not_run(session) if not any(w.error for w in want) else [],
        "refused": bool(want[0].error) and len(want) == 1,
        "raised": sum(bool(w.error) for w in want),
        "fallbacks": fallbacks,
    }


def not_run(session: Any) -> list[str]:
    """Why the CPU answered for nodes that count as the GPU's, though the claim could know."""
    state = session.state if session is not None else None
    said = [event.message for event in state.events if event.kind in ("fallback", "error")] if state is not None else []
    return [message for message in said if not told_by_run(message)]


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


# ---- the parent


@dataclass
class Tally:
    """What a number of models showed. unclaimed: seeds of those that were claimed for the GPU and ran on the CPU,
    though onnxruntime raises nothing. own: seeds at which onnxruntime itself crashed or hung.
    """

    models: int = 0
    wrong: list[int] = field(default_factory=list)
    unclaimed: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    known: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, seed: int, line: dict[str, Any]) -> None:
        self.models += 1
        self.known.update(line["known"])
        self.counts.update(
            refused=line["refused"],
            raised=bool(line["raised"]),
            on_gpu=bool(line["on_gpu"]),
            fallbacks=bool(line["fallbacks"]),
        )
        if line["unclaimed"]:
            self.unclaimed.append(seed)
            print(f"{seed}: claimed and not run: {line['unclaimed'][0][:300]}", flush=True)
        if line["found"]:
            self.wrong.append(seed)
            print(f"{seed}: {'; '.join(line['found'])[:700]}", flush=True)

    def ended(self, seed: int, at: str, how: str) -> None:
        """A child is gone."""
        self.models += 1
        if at == "onnxruntime":
            self.own.append(seed)
            print(f"{seed}: onnxruntime itself {how}", flush=True)
        else:
            self.wrong.append(seed)
            print(f"{seed}: {how}", flush=True)


def run(seeds: Sequence[int], hang_s: float = HANG_S, *more: str) -> Tally:
    """All seeds, in as many children as it takes. more: options of theirs."""
    tally, left = Tally(), list(seeds)
    while left:
        seed = at = None
        how = "no answer"
        for line in _lines(left, hang_s, *more):
            if isinstance(line, str):
                how = line
                break
            seed, at = line["seed"], line.get("at")
            if at is None:
                tally.add(seed, line)
                left.remove(seed)
        if left:
            first = seed if seed is not None and at is not None else left[0]
            tally.ended(first, at or "ours", how)
            left.remove(first)
    return tally


def _lines(seeds: Sequence[int], hang_s: float, *more: str) -> Iterator[dict[str, Any] | str]:
    """What a child says, and how it ended, if not by itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.session.fuzz", *more, "--child", *map(str, seeds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )
    said: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    readers = [
        threading.Thread(target=_read, args=(process.stdout, said.put), daemon=True),
        threading.Thread(target=_read, args=(process.stderr, errors.append), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        timeout_s = START_S
        while (line := said.get(timeout=timeout_s)) is not None:
            if line.startswith("{"):
                found = json.loads(line)
                timeout_s = patience_s(found, hang_s)
                yield found
    except queue.Empty:
        yield f"hangs: no line for {timeout_s:.0f} s"
        return
    finally:
        if not _ends(process):
            process.kill()
        process.wait()
        for reader, stream in zip(readers, (process.stdout, process.stderr), strict=True):
            reader.join()
            stream.close()  # type: ignore[union-attr]
    if process.returncode:
        how = signal.Signals(-process.returncode).name if process.returncode < 0 else f"exit code {process.returncode}"
        yield f"crashed: {how}: {''.join(e for e in errors if e)[-1500:]}"


def patience_s(line: dict[str, Any], hang_s: float) -> float:
    """How long the line behind this one may take."""
    return hang_s + TIMES_OF_ITS_OWN * float(line.get("took_s", 0.0))


def _read(stream: Any, take: Any) -> None:
    for line in stream:
        take(line)
    take(None)


def _ends(process: Any) -> bool:
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        return False
    return True


def show(seed: int, make: Any = fuzz_model) -> None:
    """One model, here, in words."""
    warnings.simplefilter("ignore")
    model = make(seed)
    print(f"seed {seed}: {model.base}; {'; '.join(model.changes)}; content {model.content}")
    print(onnx.printer.to_text(onnx.load_from_string(model.model))[:3000])
    print([{n: (a.dtype.name, a.shape) for n, a in feeds.items()} for feeds in model.runs])
    want = answers(model, cpu_session)[0]
    print("onnxruntime:", *want, sep="\n  ")
    print(outcome(seed, model, want))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, help="this one only, with its model")
    parser.add_argument("--quantized", action="store_true", help="models of quantized_graphs")
    parser.add_argument("--sizes", action="store_true", help="models of size_graphs")
    parser.add_argument("--counts", action="store_true", help="models of count_graphs")
    parser.add_argument("--child", type=int, nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    make = (
        quantized_model
        if asked.quantized
        else size_model
        if asked.sizes
        else count_model
        if asked.counts
        else fuzz_model
    )
    more = [f"--{kind}" for kind in ("quantized", "sizes", "counts") if vars(asked)[kind]]
    if asked.child:
        child(asked.child, make)
    elif asked.seed is not None:
        show(asked.seed, make)
    else:
        start = time.time()
        tally = run(range(asked.first, asked.first + asked.count), HANG_S, *more)
        print(
            f"seeds {asked.first} to {asked.first + asked.count - 1}, onnxruntime {onnxruntime.__version__}, onnx "
            f"{onnx.__version__}, "
            f"numpy {np.__version__}: {tally.models} models, {len(tally.wrong)} wrong {tally.wrong}, "
            f"{len(tally.unclaimed)} claimed and not run {tally.unclaimed}, onnxruntime itself ended at {tally.own}, "
            f"{time.time() - start:.0f} s"
        )
        print(dict(tally.counts), *sorted(tally.known.items()), sep="\n")
        sys.exit(bool(tally.wrong or tally.unclaimed))


if __name__ == "__main__":
    main()
