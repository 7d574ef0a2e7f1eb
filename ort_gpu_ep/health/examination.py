"""Runs probes of one adapter in worker processes: what crashes or hangs is one outcome, and the next worker goes on behind it."""

from __future__ import annotations

import json
import math
import queue
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ort_gpu_ep.child import command, ending, environment, starved_s
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.health.probe import PROBES, Probe, Status
from ort_gpu_ep.health.worker import DONE

START_S = 30.0
"""A worker that has not begun its first probe by then hangs while it opens the device."""

BEGIN_S = 60.0
"""For Python to start and to import what it needs, before a worker touches a driver: 0.3 s on an idle machine."""

STARVED = 0.02
"""A worker that has waited for a core for less than this part of its limit had enough of the machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a probe. seen: for people. disables: what can't be trusted now.

    unchecked: its shaders passed without bounds checks.
    """

    name: str
    group: str
    status: Status
    seen: str = ""
    time_ms: float = 0.0
    disables: tuple[str, ...] = ()
    unchecked: bool = False

    @property
    def passed(self) -> bool:
        return self.status in ("PASS", "UNSUPPORTED")

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "passed": self.passed}


@dataclass
class Device:
    """What the workers told of the adapter."""

    features: tuple[str, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)


class Worker:
    """One process and the lines that it prints. touches: whether it has said that it goes to the drivers now."""

    def __init__(self, job: dict[str, object], variables: Mapping[str, str] | None = None) -> None:
        """variables: of the environment, besides this process's. Raises OSError, if no process can be started."""
        self._process = subprocess.Popen(
            command("ort_gpu_ep.health.worker"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env={**environment(), **(variables or {})}, start_new_session=True)     # a terminal's Ctrl-C is for the parent
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.touches = False
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job))
            self._process.stdin.close()
        except BrokenPipeError:
            pass           # it ended before it read its job; how, the exit code says
        self._reader = threading.Thread(target=self._read, name="ort_gpu_ep-probe", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):       # not what a crash has cut short
                    self._lines.put(line)
        self._lines.put(None)

    def line(self, timeout_s: float) -> dict[str, Any] | None:
        """The next line; None at the end. Raises TimeoutError."""
        try:
            text = self._lines.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            raise TimeoutError from None
        line: dict[str, Any] | None = json.loads(text) if text else None
        self.touches = self.touches or (line is not None and "touches" in line)
        return line

    def answer(self, limit_s: float, deadline: float = math.inf) -> dict[str, Any] | None:
        """The next line, as `line` gives it. What the process waits for a core does not count: a machine that is busy is no hang.

        deadline: of the monotonic clock; it holds in any case.
        """
        left_s = limit_s
        while True:
            before = starved_s(self._process.pid)
            try:
                return self.line(min(left_s, deadline - time.monotonic()))
            except TimeoutError:
                left_s = max((s - before.get(thread, 0.0) for thread, s in starved_s(self._process.pid).items()), default=0.0)
                if left_s < STARVED * limit_s or time.monotonic() >= deadline:
                    raise

    def end(self, kill: bool = False) -> int:
        """Waits for the process, or ends it; its exit code."""
        if kill:
            self._process.kill()
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:     # a driver that hangs while it is unloaded
            self._process.kill()
            code = self._process.wait()
        self._reader.join()
        return code


class HelperError(AdapterError):
    """The process that was to look failed by itself, or was ended from outside: that says nothing about a driver."""


_FROM_OUTSIDE = frozenset(getattr(signal, name, 0) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGXCPU"))
"""Signals that people, service managers and the kernel (out of memory, limits) send; drivers don't."""


def list_adapters(variables: Mapping[str, str] | None = None, timeout_s: float = 0.0) -> list[dict[str, Any]]:
    """The adapters as a worker sees them. timeout_s: START_S by default.

    Raises: AdapterError where a driver kills or hangs the process that looks; HelperError where that process fails by itself; OSError
    where no process can be started.
    """
    worker, timeout_s = Worker({"task": "list"}, variables), timeout_s or START_S
    try:
        line = worker.answer(BEGIN_S)
        if worker.touches:
            line = worker.answer(timeout_s)
    except TimeoutError:
        worker.end(kill=True)
        if not worker.touches:
            raise HelperError(f"the process that looks for GPU adapters does not begin: no answer after {BEGIN_S:.0f} s.") from None
        raise AdapterError(f"looking for GPU adapters hangs: no answer after {timeout_s:.0f} s. {_ADVICE}") from None
    except BaseException:       # Ctrl-C, which it does not get itself
        worker.end(kill=True)
        raise
    code = worker.end()
    if line is not None and "failed" in line:
        raise HelperError(f"the process that looks for GPU adapters failed ({line['failed']}).")
    if not worker.touches or -code in _FROM_OUTSIDE:
        raise HelperError(f"the process that looks for GPU adapters ended before it did ({ending(code)}).")
    if line is None or code != DONE:
        raise AdapterError(f"looking for GPU adapters ends the process ({ending(code)}). {_ADVICE}")
    return list(line["adapters"])


_ADVICE = "Update or remove a GPU driver (VK_DRIVER_FILES chooses which ones Vulkan loads)."


def examine(
    adapter: int, names: Sequence[str], rounds: int, device: Device | None = None, budget_s: float = math.inf,
) -> Iterator[Outcome]:
    """Yields the outcome of each probe. adapter: index. rounds: repetitions with fresh inputs. budget_s: then the rest is NOT_RUN."""
    left, device, deadline = list(names), device or Device(), time.monotonic() + budget_s
    barren = 0
    while left and barren < 2:
        before = len(left)
        for outcome in _one_worker(adapter, list(left), rounds, device, deadline):
            left.remove(outcome.name)
            yield outcome
        barren = barren + 1 if len(left) == before else 0
        if time.monotonic() >= deadline:
            break
    for name in left:
        yield Outcome(name, PROBES[name].group, "NOT_RUN", "the time is up" if barren < 2 else "no worker came so far")


def _one_worker(adapter: int, names: list[str], rounds: int, device: Device, deadline: float) -> Iterator[Outcome]:
    """Outcomes until the worker ends; the probe at which it ended, if it did not finish, is one of them."""
    job = {"task": "probe", "adapter": adapter, "probes": names, "rounds": rounds, "seed": secrets.randbits(64)}
    worker, current, limit_s = Worker(job), PROBES[names[0]], BEGIN_S
    running = False
    while True:
        try:
            line = worker.answer(limit_s, deadline)
        except TimeoutError:
            worker.end(kill=True)
            if time.monotonic() < deadline and worker.touches:
                what = f"no answer after {limit_s:.0f} s" + ("" if running else ", while opening the device")
                yield _failed(current, "TIMEOUT", what)
            return
        except BaseException:
            worker.end(kill=True)
            raise
        if line is None or "failed" in line:
            break
        if "touches" in line:
            limit_s = START_S
            continue
        if "features" in line:
            device.features, device.limits = tuple(line["features"]), line["limits"]
        elif "start" in line:
            current, running = PROBES[line["start"]], True
            limit_s = current.timeout_s
        else:
            passed = line["status"] in ("PASS", "UNSUPPORTED")
            disables = () if passed else current.disables
            yield Outcome(line["name"], current.group, line["status"], line["seen"], line["time_ms"], disables, line["unchecked"])
            running, limit_s = False, START_S
            following = names.index(line["name"]) + 1
            current = PROBES[names[following]] if following < len(names) else current
    code = worker.end()
    if code != DONE and worker.touches and (running or -code not in _FROM_OUTSIDE):
        yield _failed(current, "CRASH", ending(code) + ("" if running else ", between probes or while opening the device"))


def _failed(probe: Probe, status: Status, seen: str) -> Outcome:
    return Outcome(probe.name, probe.group, status, seen, 0.0, probe.disables)
