"""A device that fails on purpose, for tests and drills: the option `faults`."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ort_gpu_ep.config import Config
from ort_gpu_ep.device.gpu import Gpu, Maker
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.device.tensor import Tensor
from ort_gpu_ep.errors import ConfigError, OutOfDeviceMemoryError, ShaderError
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.webgpu import native

KINDS = ("lost", "hang", "corrupt", "oom", "compile", "abort", "segfault", "leak")
DEADLY = ("abort", "segfault", "leak")
"""End the process they happen in, or take its memory: only for a worker's."""

LEAK_NBYTES = 256 << 20

_ITEM = re.compile(
    rf"(?:(?P<kind>{'|'.join(KINDS)})(?:@(?P<at>[1-9]\d*)|~(?P<chance>0?\.\d+|1))|slow@(?P<slow>[1-9]\d*)x)"
)
_WRONG = b"\x00\x00\x00\x7f"
"""What corruption writes over four bytes: 1.7e38 as f32, 127 in the last of four small elements."""


@dataclass(frozen=True, slots=True)
class Faults:
    """at: (kind, k), at the k-th run (compile: the k-th pipeline). chance: kind -> probability. slow: factor of waiting
    times."""

    at: frozenset[tuple[str, int]] = frozenset()
    chance: dict[str, float] = field(default_factory=dict)
    slow: int = 1
    seed: int = 0

    def has(self, kind: str) -> bool:
        """Whether there may be one of this kind."""
        return kind in self.chance or any(kind == planned for planned, _ in self.at)


def parse_faults(text: str) -> Faults:
    """`lost@3,corrupt~0.1,slow@100x;seed=7`. Raises ConfigError, naming the part that is not understood."""
    items, _, seed = text.partition(";")
    at, chance, slow = set(), {}, 1
    for item in filter(None, (part.strip() for part in items.split(","))):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ConfigError(
                f"option faults={text!r}: got {item!r}, expected kind@k or kind~chance with kind one of "
                f"{', '.join(KINDS)}, or slow@100x; see docs/faults.md."
            )
        if match["slow"]:
            slow = int(match["slow"])
        elif match["at"]:
            at.add((match["kind"], int(match["at"])))
        else:
            chance[match["kind"]] = float(match["chance"])
    if seed and not re.fullmatch(r"\s*seed=\d+\s*", seed):
        raise ConfigError(f"option faults={text!r}: got {seed.strip()!r} after ';', expected seed=<whole number>.")
    return Faults(frozenset(at), chance, slow, int(seed.split("=")[1]) if seed else 0)


def refuse_deadly(faults: Faults, text: str) -> None:
    """Raises ConfigError for faults that would end the user's own process."""
    for kind in sorted({kind for kind, _ in faults.at} | set(faults.chance)):
        if kind in DEADLY:
            what = "fill" if kind == "leak" else "end"
            raise ConfigError(
                f"option faults={text!r}: {kind} would {what} this process; expected isolation=process with it, "
                "where it is the worker's."
            )


def maker(config: Config) -> Maker | None:
    """For `Gpu.open`: what makes a device with the faults that are asked for, None without any. Raises ConfigError."""
    if not config.faults:
        return None
    faults, in_worker = parse_faults(config.faults), config.isolation == "process"
    if not in_worker:
        refuse_deadly(faults, config.faults)
    return partial(FaultyGpu, faults=faults, in_worker=in_worker)


def after_run(gpu: Gpu) -> Callable[[Sequence[Tensor]], None] | None:
    """For a Program on this device: what corrupts its outputs on purpose; None where nothing is to."""
    return gpu.corrupt if isinstance(gpu, FaultyGpu) and gpu.faults.has("corrupt") else None


class FaultyGpu(Gpu):
    """A Gpu with faults. runs, compiles: how many there were. injected: how many faults of each kind there were."""

    def __init__(self, info: AdapterInfo, raw: Any, limits: Limits, faults: Faults, in_worker: bool = False) -> None:
        super().__init__(info, raw, limits)
        self.faults, self.runs, self.compiles, self.in_worker = faults, 0, 0, in_worker
        self.injected = dict.fromkeys(KINDS, 0)
        self._random = random.Random(faults.seed)
        self._hung, self._leaked = False, list[bytes]()
        self._thread = threading.local()  # number of its latest run

    def successor(self, info: AdapterInfo, raw: Any, limits: Limits) -> FaultyGpu:
        """Counts on where this one stopped, so that a fault at run k happens once."""
        gpu = FaultyGpu(info, raw, limits, self.faults, self.in_worker)
        gpu.runs, gpu.compiles, gpu.injected, gpu._random = self.runs, self.compiles, self.injected, self._random
        return gpu

    def resume(self, runs: int, compiles: int) -> None:
        """Goes on where the device of a worker before this one ended."""
        self.runs, self.compiles = runs, compiles
        self._random.seed(self.faults.seed + runs)

    def _due(self, kind: str, number: int) -> bool:
        due = (kind, number) in self.faults.at or self._random.random() < self.faults.chance.get(kind, 0.0)
        self.injected[kind] += due
        return due

    def execute(self, command_buffers: list[Any]) -> None:
        with self._lock:
            self.runs += 1
            if self.in_worker:
                self._harm_process()
            if self._due("lost", self.runs):
                self.lost = self.lost or "fault on purpose: lost"
            self.check_alive()
            if self._due("oom", self.runs):
                raise OutOfDeviceMemoryError(f"{self.info.name}: no memory left (fault on purpose at run {self.runs}).")
            super().execute(command_buffers)
            self._hung = self._hung or self._due("hang", self.runs)
            while self._hung and self.in_worker:
                time.sleep(1.0)  # the parent's deadline ends it
            self._thread.run = self.runs

    def corrupt(self, outputs: Sequence[Tensor]) -> None:
        """Overwrites a word of what this thread's latest run gives, where that is due."""
        words = [(t.buffer, t.offset_bytes, t.type.nbytes // 4) for t in outputs if t.type.nbytes >= 4]
        with self._lock:
            run, self._thread.run = getattr(self._thread, "run", 0), 0  # a plan without steps is no run
            if run and words and self._due("corrupt", run):
                buffer, offset, count = self._random.choice(words)
                self.flush()
                native.write(
                    self.device, buffer.native, offset + 4 * self._random.randrange(count), native.address_of(_WRONG), 4
                )

    def _harm_process(self) -> None:
        if self._due("leak", self.runs):
            self._leaked.append(b"\1" * LEAK_NBYTES)
        if self._due("abort", self.runs):
            os.abort()
        if self._due("segfault", self.runs):
            os.kill(os.getpid(), signal.SIGSEGV)

    def finished(self, arrival: native.Arrival | None) -> bool:
        return not self._hung and super().finished(arrival)

    def ends_in_time(self, index: int, timeout_s: float) -> bool:
        if self._hung:
            time.sleep(min(timeout_s, self.hang_timeout_s))
        return not self._hung and super().ends_in_time(index, timeout_s)

    def exchanged(self, sent: tuple[int, int, float] | None, received: tuple[int, int, float, float] | None) -> None:
        if received is not None:
            time.sleep((time.perf_counter() - received[2]) * (self.faults.slow - 1))
        super().exchanged(sent, received)

    def pipeline(self, source: Hashable, make: Callable[[], Any]) -> Any:
        def faulty() -> Any:
            with self._lock:
                self.compiles += 1
                due = self._due("compile", self.compiles)
            if due:
                raise ShaderError(
                    f"{self.info.name}: a shader does not compile (fault on purpose at pipeline {self.compiles})."
                )
            return make()

        return super().pipeline(source, faulty)
