"""What ends workers, devices and programs, again and again, at moments by seed: answers stay right, the GPU comes back,
nothing stays behind.

`python -m tests.session.drills --kills 500 --losses 200 --ends 200 --openings 1000` prints a table (`--json`: data); it
ends with 1 where anything is wrong. Times are reported, and nothing depends on them: what never comes true within
PATIENCE_S is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil

import ort_gpu_ep
from ort_gpu_ep.device.adapter import choose
from ort_gpu_ep.health import verdicts
from ort_gpu_ep.shim import build
from ort_gpu_ep.webgpu import loader_paths, objects, waiting
from tests.patience import PATIENCE_S, until
from tests.unit.graphs import model_of

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parents[2]
ISOLATED = {"placement": "gpu", "isolation": "process", "load": "off"}


def mlp(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    constants = {"w": rng.standard_normal((16, 300)).astype("f"), "v": rng.standard_normal((300, 8)).astype("f") / 9}
    text = "(float[N, 16] x) => (float[N, 8] y) { h = MatMul(x, w) r = Relu(h) s = MatMul(r, v) y = Softmax(s) }"
    return bytes(model_of(text, constants).SerializeToString())


def comes(condition: Callable[[], bool]) -> bool:
    """Whether it does, within PATIENCE_S."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := condition()) and time.monotonic() < end_s:
        time.sleep(0.002)
    return found


# ---- what is left


def held() -> dict[str, int]:
    """What this process holds, after what C libraries keep for later was given back."""
    gc.collect()
    gc.collect()  # what the first one freed was the last reference to a device, which is a cycle
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).malloc_trim(0)
    process = psutil.Process()
    return {
        "MiB": process.memory_info().rss >> 20,
        "threads": process.num_threads() - len(waiting._idle),
        "devices": objects.live()["Device"],
        "files": process.num_handles() if sys.platform == "win32" else process.num_fds(),
        "processes": len(process.children()),
    }


def settled(before: Sequence[psutil.Process]) -> dict[str, int]:
    """What this process holds when nothing works for a session any more. before: processes that are none of the
    drill's."""
    until(
        lambda: not any(t.name == "ort_gpu_ep-background" for t in threading.enumerate()),
        "the background's thread is done",
    )

    def others() -> str:
        return ", ".join(str(p) for p in psutil.Process().children(recursive=True) if p not in before)

    until(lambda: not others(), lambda: f"no process is left: {others()}")
    return held()


AT_MOST_MORE = {"MiB": 16, "threads": 4, "devices": 0, "files": 0, "processes": 0}
"""What may be there at the end that was not at the first moment: threads that begin when something is first used."""


def moments(count: int) -> list[int]:
    """When it is looked at what this process holds: the first time after a fifth."""
    return sorted({max(count * part // 10, 1) for part in (2, 5, 8, 10)})


def grown(seen: Mapping[int, Mapping[str, int]]) -> list[str]:
    """What there is more of at the last moment than at the first."""
    first, last = seen[min(seen)], seen[max(seen)]
    return [f"more {name}: {seen}" for name, most in AT_MOST_MORE.items() if last[name] - first[name] > most]


# ---- workers that are killed


class Session:
    """One on a worker, and what onnxruntime's CPU answers."""

    def __init__(self, seed: int, cache: Path) -> None:
        model = mlp(seed)
        self.x = np.random.default_rng(seed).standard_normal((1 + seed % 7, 16)).astype("f")
        self.want = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": self.x})[0]
        self.session = ort_gpu_ep.InferenceSession(model, provider_options={**ISOLATED, "cache_dir": str(cache)})
        self.wrong = 0

    def is_on_gpu(self) -> bool:
        """Whether a run, whose answer is looked at, was the GPU's."""
        before = self._on_gpu()
        got = self.session.run(None, {"x": self.x})[0]
        self.wrong += not np.allclose(got, self.want, rtol=2e-5, atol=2e-5)
        return self._on_gpu() > before

    def _on_gpu(self) -> int:
        stats = self.session.stats()
        return int(stats.get("runs", 0)) - int(stats["fallbacks"])

    def back_s(self, killed: threading.Event) -> float:
        """Runs until one that began after the kill is the GPU's; seconds since, inf where that never comes."""
        start_s: float | None = None
        while True:
            start_s = time.monotonic() if start_s is None and killed.is_set() else start_s
            on_gpu = self.is_on_gpu()
            if start_s is not None and on_gpu:
                return time.monotonic() - start_s
            if start_s is not None and time.monotonic() - start_s > PATIENCE_S:
                return float("inf")
            time.sleep(0.005)


def workers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        try:
            if "ort_gpu_ep.isolation.worker" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


@dataclass
class Kills:
    """Three sessions that share a worker, which is killed: between runs, during them, while one of the sessions is
    made, while the first one is made, and again while the next worker starts.

    took_s: until all sessions were back, of each drill. held: at four moments, without sessions.
    """

    seed: int
    folder: Path
    took_s: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.numbers = iter(range(1000 * self.seed, 1000 * self.seed + 10**9))
        self.sessions = list[Session]()

    def opened(self) -> Session:
        return Session(next(self.numbers), self.folder)

    def kill(self, how: str, after_s: list[float], done: threading.Event) -> None:
        """One worker after the other, each so long after it was seen; not before there is one."""
        try:
            for pause_s in after_s:
                comes(lambda: bool(workers()))
                time.sleep(pause_s)
                comes(lambda: self._strike(how))
        finally:
            done.set()

    def _strike(self, how: str) -> bool:
        """Whether there was a worker, which is killed now."""
        for process in workers():
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                process.kill()
                self.kills[how] += 1
                return True
        return False

    def drill(self, number: int) -> None:
        rng = np.random.default_rng([self.seed, number])
        how = ("runs", "creation", "first creation", "restart")[int(rng.integers(4))]
        after_s = [float(s) for s in rng.uniform(0, 0.8, int(rng.integers(2, 5)) if how == "restart" else 1)]
        killed = threading.Event()
        killer = threading.Thread(target=self.kill, args=(how, after_s, killed))
        if how == "first creation":
            self.sessions.clear()
            gc.collect()
        killer.start()
        if how == "creation":
            self.sessions[int(rng.integers(3))] = self.opened()
        elif how == "first creation":
            self.sessions[:] = [self.opened() for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            took_s = list(pool.map(lambda s: s.back_s(killed), self.sessions))
        killer.join()
        self.took_s.setdefault(how, []).append(max(took_s))
        wrong = sum(s.wrong for s in self.sessions)
        if wrong or max(took_s) == float("inf"):
            self.wrong.append(f"kill {number} ({how}, after {after_s}): {wrong} wrong answers, back after {took_s} s")
            self.sessions[:] = [self.opened() for _ in range(3)]

    def run(self, count: int) -> dict[str, Any]:
        drills, seen, before = itertools.count(), dict[int, dict[str, int]](), psutil.Process().children(recursive=True)
        choose("")  # loads the driver's library, which a session does here only when it looks at adapters again
        for moment in moments(count):
            self.sessions[:] = [self.opened() for _ in range(3)]
            while self.kills.total() < moment:
                print(f"kill {self.kills.total()}", file=sys.stderr, flush=True)
                self.drill(next(drills))
            self.sessions.clear()
            gc.collect()
            seen[moment] = settled(before)
        return {
            "kills": dict(self.kills),
            "median_s": {how: round(float(np.median(took_s)), 2) for how, took_s in self.took_s.items()},
            "longest_s": {how: round(max(took_s), 2) for how, took_s in self.took_s.items()},
            "above_10_s": {how: sum(s > 10 for s in took_s) for how, took_s in self.took_s.items()},
            "held": seen,
            "wrong": self.wrong + grown(seen),
        }


def kills(count: int, seed: int, folder: Path) -> dict[str, Any]:
    return Kills(seed, folder / "kills").run(count)


# ---- devices that are lost


def bound_run(session: Any, x: Array) -> Array:
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    found: Array = binding.copy_outputs_to_cpu()[0]
    return found


WAYS: tuple[Callable[[Any, Array], Array], ...] = (
    lambda session, x: session.run(None, {"x": x})[0],
    bound_run,
    lambda session, x: session.run_with_ort_values(None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)})[0].numpy(),
)


def losses(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """One session loses its device again and again, and has a new one each time. held: at four moments."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.integers(2, 6, count))
    model = mlp(seed)
    cpu = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    options = {
        "placement": "gpu",
        "faults": ",".join(f"lost@{k}" for k in at) + ";seed=1",
        "cache_dir": str(folder / "losses"),
    }
    session = ort_gpu_ep.InferenceSession(model, provider_options=options)
    seen, wrong = dict[int, dict[str, int]](), 0
    while (renewals := session.stats()["renewals"]) < count:
        x = rng.standard_normal((int(rng.integers(1, 9)), 16)).astype("f")
        way = WAYS[int(rng.integers(len(WAYS)))]
        wrong += not np.allclose(way(session, x), cpu.run(None, {"x": x})[0], rtol=2e-5, atol=2e-5)
        session.state.gpu.circuit.reset()  # the pause before it is tried again is tests/resilience's
        until(lambda: not session.state.renewing.locked(), "a new device")
        if renewals in moments(count) and renewals not in seen:
            seen[renewals] = held()
    seen[count] = held()
    return {"losses": count, "held": seen, "wrong": [f"{wrong} wrong answers"] * bool(wrong) + grown(seen)}


# ---- programs that end while the GPU is tried in the background

PROGRAM = """
    import os, resource, signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)        # a shell starts what runs in the background without
    import numpy as np
    import psutil
    import ort_gpu_ep as ort

    def run():
        for got, expected in zip(session.run(None, {"x": x}), want):
            if not np.allclose(got, expected, rtol=2e-5, atol=2e-5):
                print("a wrong answer", file=sys.stderr, flush=True)
                os._exit(99)

    x = np.ones((5, 16), "f")
    session = ort.InferenceSession(sys.argv[1], provider_options={"adapter": "0", "cache_dir": sys.argv[2], "load": "off"})
    want = session.run(None, {"x": x})
    begin_s, until_s = time.monotonic(), float(sys.argv[3])
    while time.monotonic() - begin_s < until_s:
        run()
    below = psutil.Process().children(recursive=True)
    print([p.pid for p in below], flush=True)
"""

NO_ROOM = """
    for pid in [os.getpid()] + [p.pid for p in below]:
        try:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        except ProcessLookupError:
            pass
    for _ in range(300):
        run()
        time.sleep(0.005)
"""
"""Every write to a file fails from now on, as on a full disk."""

ENDS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "its last line": ("", (0,)),
    "exit": ("\n    sys.exit(3)", (3,)),
    "an exception": ("\n    raise RuntimeError('planted')", (1,)),
    "os._exit": ("\n    os._exit(4)", (4,)),
    "kill -9": ("\n    os.kill(os.getpid(), 9)", (-9,)),
    # 1: CPython forgets it where a thread imports then
    "Ctrl-C": ("\n    signal.raise_signal(signal.SIGINT); time.sleep(5)", (-2, 1)),
    "fork": (
        "\n    child = os.fork()\n    run()\n    assert session.ready() or child\n    os._exit(0) if child == 0 else "
        "sys.exit(os.waitpid(child, 0)[1])",
        (0,),
    ),
    "a full disk": (NO_ROOM, (0,)),
    "a driver that crashes": ("\n    for _ in range(300):\n        run()\n        time.sleep(0.005)", (0,)),
}
"""What the program does at last, and the exit codes that this may have."""

CRASHES = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *crash(void *none) {
    usleep(atoi(getenv("CRASH_AFTER_US")));
    *(volatile int *)0 = 1;
    return none;
}

static int finds_out(int pid) {
    char path[64], line[65536] = "";
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    FILE *file = fopen(path, "r");
    size_t count = file ? fread(line, 1, sizeof line - 1, file) : 0;
    for (size_t k = 0; k < count; k++)
        if (!line[k]) line[k] = ' ';
    if (file) fclose(file);
    return strstr(line, "ort_gpu_ep.session.scout") != NULL;
}

__attribute__((constructor)) static void at_load(void) {
    pthread_t thread;
    if (finds_out(getpid()) || finds_out(getppid())) pthread_create(&thread, NULL, crash, NULL);
}
"""
"""A driver that ends the process that finds out, or one of its helpers, a while after it was loaded; not the program,
nor its first look."""


def crashing_driver(folder: Path) -> Path:
    """Its manifest."""
    source, made, manifest = folder / "crashes.c", folder / "libcrashes.so", folder / "crashes.json"
    source.write_text(CRASHES)
    for command in build._compilers(None):
        if not subprocess.run(
            [*command, "-shared", "-fPIC", "-Wl,-z,nodelete", "-o", str(made), str(source)], capture_output=True
        ).returncode:
            manifest.write_text(
                json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": str(made), "api_version": "1.3.0"}})
            )
            return manifest
    raise AssertionError("no C compiler works")


def is_left(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def end_of_a_program(
    name: str, until_s: float, folder: Path, cache: Path, model: bytes, **variables: str
) -> tuple[list[str], float]:
    """What is wrong with a program that ends so, that long after its first run, and how long it took to end."""
    code, codes = ENDS[name]
    temporary, before = folder / "temporary", markers(cache)
    temporary.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model)
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM + code))
    command = [sys.executable, str(folder / "program.py"), str(folder / "model.onnx"), str(cache), str(until_s)]
    if name == "a driver that crashes":
        paths = os.pathsep.join(map(str, [crashing_driver(folder), *loader_paths.manifests(os.environ)]))
        variables = {
            "VK_DRIVER_FILES": paths,
            "VK_ICD_FILENAMES": paths,
            "CRASH_AFTER_US": str(int(until_s * 5e5)),
            **variables,
        }
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), **variables},
    ) as program:
        assert program.stdout is not None
        pids = json.loads(program.stdout.readline() or "[]")
        start_s = time.monotonic()
        try:
            said = program.communicate(timeout=PATIENCE_S * 3)[1]
        except subprocess.TimeoutExpired:
            program.kill()
            said = "it does not end"
        took_s = time.monotonic() - start_s
    found = (
        [f"exit code {program.returncode}: {said[-600:]}"] if program.returncode not in codes or "Fatal" in said else []
    )
    if not comes(lambda: not any(map(is_left, pids))):
        found.append(f"processes are left: {[psutil.Process(p).cmdline() for p in pids if is_left(p)]}")
    if not comes(lambda: not any(temporary.glob("ort_gpu_ep*"))):
        found.append(f"files are left: {list(temporary.rglob('*'))}")
    unclean = name in ("kill -9", "os._exit", "a driver that crashes")  # it may have had the adapter open itself
    left = [] if unclean else [marker for marker in markers(cache) if marker not in before]
    return found + [f"{name}: {marker} is left" for marker in left], took_s


def markers(cache: Path) -> list[str]:
    """Of programs that have the adapter open, or had it when they were killed: until another one opens it."""
    return [p.name for p in (cache / "health").glob("*.open")]


def condemned(cache: Path) -> list[str]:
    """What is out of use by the verdicts of a cache."""
    found = [p.stem for p in (cache / "health").glob("*.json") if not p.name.startswith("drivers-")]
    known = [verdict for key in found if (verdict := verdicts.read(str(cache), key)) is not None]
    return [f"condemned: {verdict.disabled}" for verdict in known if verdict.health != verdicts.HEALTHY]


def on_the_gpu(cache: Path, model: bytes) -> list[str]:
    """What keeps a new program from the GPU; it tells that with strict=1."""
    code = (
        "import sys, numpy as np, ort_gpu_ep as ort\n"
        "s = ort.InferenceSession(sys.stdin.buffer.read(), provider_options={'placement': 'gpu', 'strict': '1', "
        "'cache_dir': sys.argv[1]})\n"
        "s.run(None, {'x': np.ones((2, 16), 'f')}); assert s.explain().count('gpu'), s.explain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(cache)], input=model, capture_output=True, cwd=ROOT, timeout=PATIENCE_S * 5
    )
    return [f"not on the GPU afterwards: {done.stderr.decode()[-600:]}"] * bool(done.returncode)


def ends(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Each kind of end in turn. Half of the programs have a cache that knows the adapter, the others none."""
    known, model = folder / "known", mlp(seed)
    wrong, longest_s, kinds = on_the_gpu(known, model), 0.0, Counter[str]()
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        name = list(ENDS)[number % len(ENDS)]
        until_s = float(rng.choice([rng.uniform(0, 0.5), rng.uniform(0.5, 3), rng.uniform(3, 8)]))
        own = folder / f"end-{number}"
        own.mkdir()
        crashes = name == "a driver that crashes"
        cache = known if number % 2 and not crashes else own / "cache"
        print(f"end {number}: {name}, {until_s:.2f} s", file=sys.stderr, flush=True)
        found, took_s = end_of_a_program(name, until_s, own, cache, model)
        found += [] if crashes else condemned(cache)
        wrong += [f"end {number} ({name}, {until_s:.2f} s): {what}" for what in found]
        kinds[name] += 1
        longest_s = max(longest_s, took_s)
    wrong += on_the_gpu(known, model) + [
        f"{marker} is left by a program that opened the adapter" for marker in markers(known)
    ]
    return {"ends": dict(kinds), "longest_s": round(longest_s, 2), "wrong": wrong}


# ---- sessions that are closed while the GPU is tried in the background


def openings(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Sessions of placement=auto, closed at a moment by seed: before, while and after another process finds out, or the
    GPU is opened.

    A third of them have caches in which all is known, the others begin with none. stages: what each waited for when it
    was closed.
    """
    model, x, wrong = mlp(seed), np.ones((5, 16), "f"), 0
    want = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    known, stages, seen = folder / "known", Counter[str](), dict[int, dict[str, int]]()
    options, before = {"adapter": "0", "load": "off"}, psutil.Process().children(recursive=True)
    first = ort_gpu_ep.InferenceSession(model, provider_options={**options, "cache_dir": str(known)})
    first.run(None, {"x": x})
    assert first.wait_ready(PATIENCE_S * 3), "the first session does not settle"
    del first
    for number in range(1, count + 1):
        rng = np.random.default_rng([seed, number])
        cache = known if number % 3 == 0 else folder / f"openings-{number}"
        until_s = time.monotonic() + float(
            rng.choice([0.0, rng.uniform(0, 0.1), rng.uniform(0, 1.5)], p=[0.2, 0.4, 0.4])
        )
        session = ort_gpu_ep.InferenceSession(model, provider_options={**options, "cache_dir": str(cache)})
        while True:
            wrong += not np.allclose(session.run(None, {"x": x})[0], want, rtol=2e-5, atol=2e-5)
            if time.monotonic() >= until_s:
                break
        stages[session.stats().get("waits_for") or "nothing"] += 1
        del session
        shutil.rmtree(cache, ignore_errors=True) if cache is not known else None
        if number in moments(count):
            print(f"opening {number}", file=sys.stderr, flush=True)
            seen[number] = settled(before)
    return {
        "openings": count,
        "stages": dict(stages),
        "held": seen,
        "wrong": [f"{wrong} wrong answers"] * bool(wrong) + grown(seen),
    }


DRILLS: Mapping[str, Callable[[int, int, Path], dict[str, Any]]] = {
    "kills": kills,
    "losses": losses,
    "ends": ends,
    "openings": openings,
}


def show(found: Mapping[str, Mapping[str, Any]]) -> None:
    for name, result in found.items():
        print(name)
        for what, value in result.items():
            for line in [f"{k}: {v}" for k, v in value.items()] if isinstance(value, dict) else [str(value)]:
                print(f"  {what:12} {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in DRILLS:
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("ort_gpu_ep").setLevel(logging.CRITICAL)  # of what is done on purpose
    onnxruntime.set_default_logger_severity(4)
    with tempfile.TemporaryDirectory() as folder:
        found = {
            name: drill(count, asked.seed, Path(folder))
            for name, drill in DRILLS.items()
            if (count := getattr(asked, name))
        }
    print(json.dumps(found, indent=1)) if asked.json else show(found)
    sys.exit(any(result["wrong"] for result in found.values()))


if __name__ == "__main__":
    main()
