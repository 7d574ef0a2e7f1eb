"""The process that runs probes, so that a driver may crash, hang or exit without taking anybody along.

health/helper.py starts it, with a job as JSON on its standard input.

A job names an adapter and the probes to run (null: those that decide whether a library is used, libraries.py). It
prints a line of JSON before it touches a driver, before and after each probe, and ends with exit code DONE: a driver
that calls exit(0) has not succeeded. Source: TFLite's mini-benchmark, which uses the same code for the same reason.
What goes wrong in its own Python is printed too: that says nothing about a driver.

A probe that fails runs again with the rewriting of shaders that is its cure; where it passes, the worker goes on with
that. One that has none looks whether a probe that has one fails, too.

ORT_GPU_EP_DRILL=FAULT@PROBE plants a fault, to see that it is found (docs/doctor.md): `wrong` spoils the probe's shader
or result; `miscompile` does so where the driver compiles it, so that a cure helps; `abort`, `segfault`, `exit` and
`hang` happen to the process as the probe begins.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

DONE = 120
DRILL = "ORT_GPU_EP_DRILL"


def main() -> None:
    """Runs the job on standard input. What drivers print goes to standard error."""
    # numpy's products are small: its threads would only wait for work, busily
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        _work(pipe, json.load(sys.stdin))
    except Exception as error:
        _say(pipe, {"failed": f"{type(error).__name__}: {error}"[:400]})
    pipe.flush()
    # not sys.exit: a driver's own exit handlers may crash, and that is no finding about its results
    os._exit(DONE)


def _work(pipe: Any, job: dict[str, Any]) -> None:
    fault, _, target = os.environ.get(DRILL, "").partition("@")
    if job["task"] == "list":
        from ort_gpu_ep.device import adapters

        _say(pipe, {"touches": "drivers"})
        if target == "enumerate":
            _suffer(fault)
        _say(pipe, {"adapters": [a.as_dict() for a in adapters()]})
    else:
        _probe(pipe, job, fault, target)


def _say(pipe: Any, line: Mapping[str, object]) -> None:
    pipe.write(json.dumps(line) + "\n")
    pipe.flush()


def _suffer(fault: str) -> None:
    """What a bad driver does to its process."""
    if fault == "exit":
        os._exit(0)
    elif fault == "hang":
        while True:
            time.sleep(1)
    elif fault in ("abort", "segfault"):
        os.kill(os.getpid(), signal.SIGABRT if fault == "abort" else signal.SIGSEGV)


def _probe(pipe: Any, job: dict[str, Any], fault: str, target: str) -> None:
    import ort_gpu_ep.health.probes  # noqa: F401  fills the table
    from ort_gpu_ep.config import Config
    from ort_gpu_ep.device import Gpu, adapters
    from ort_gpu_ep.health.probe import PROBES
    from ort_gpu_ep.health.quirks import shipped, workarounds_for
    from ort_gpu_ep.health.workarounds import apply
    from ort_gpu_ep.kernels.target import MATRIX_UNITS

    _say(pipe, {"touches": "drivers"})
    if target == "enumerate":
        _suffer(fault)
    gpu = Gpu.open(Config(adapter=str(job["adapter"])))
    here = adapters()[gpu.info.index]
    apply(gpu, workarounds_for(shipped(), here))  # a probe sees what sessions get
    gpu.rewritings |= {*job.get("cures", ())}
    _say(pipe, {"features": sorted(gpu.limits.features), "limits": limits_of(gpu)})
    if fault == "miscompile":
        _miscompile(*PROBES[target].fault)

    def check(probe: Any, planted: Any = "") -> dict[str, object]:
        return _both_ways(gpu, probe.check, partial(_trial, gpu, job, planted))

    under_way = dict[str, str]()
    cures = Cures(gpu, check, lambda: _say(pipe, under_way))  # a line as at its begin: it has as long again
    for name in _of_libraries() if job["probes"] is None else job["probes"]:
        under_way["start"] = name
        _say(pipe, under_way)
        probe = PROBES[name]
        if name == target:
            _suffer(fault)
        planted = probe.fault if (fault, target) == ("wrong", name) else ""
        start = time.perf_counter()
        outcome = check(probe, planted)
        if outcome["status"] == "FAIL":
            outcome = cures.tried(probe, outcome, partial(check, probe, planted))
        _say(
            pipe,
            {
                "name": name,
                "time_ms": (time.perf_counter() - start) * 1e3,
                "units": MATRIX_UNITS in probe.disables,
                "cures": cures.news(),
                **outcome,
            },
        )
        if gpu.lost:
            break  # the next worker goes on with a new device


def _of_libraries() -> list[str]:
    """Names of the probes without which an adapter is not used, and of those of matrix units."""
    from ort_gpu_ep.health.probe import PROBES
    from ort_gpu_ep.kernels.target import ADAPTER, MATRIX_UNITS

    return [p.name for p in PROBES.values() if (p.quick and ADAPTER in p.disables) or MATRIX_UNITS in p.disables]


def _trial(gpu: Any, job: dict[str, Any], planted: Any) -> Any:
    import numpy as np

    from ort_gpu_ep.health.probe import Trial

    return Trial(gpu, np.random.default_rng(job["seed"]), job["rounds"], planted)


def _both_ways(gpu: Any, check: Any, begin: Any) -> dict[str, object]:
    """What a probe says without bounds checks in its shaders, and where it fails, with them. begin: makes a Trial.

    A software adapter keeps the checks: without them llvmpipe compiles loops for ten times as long.
    """
    from ort_gpu_ep.kernels.records import FAMILIES, unchecked

    software = gpu.info.is_software
    gpu.trusted, trial = unchecked(() if software else FAMILIES), begin()
    status, seen = _outcome(check, trial)
    if status != "FAIL" or gpu.lost or software:
        return {
            "status": status,
            "seen": seen,
            "shaders": sorted(trial.shaders),
            "unchecked": status == "PASS" and not software,
        }
    gpu.trusted, again = frozenset[str](), begin()
    status, passed = _outcome(check, again)
    seen = f"{passed}; only with bounds checks, without: {seen}" if status == "PASS" else seen
    return {"status": status, "seen": seen, "shaders": sorted(trial.shaders | again.shaders), "unchecked": False}


class Cures:
    """The rewritings that a device turns out to need while its probes run: shaders have them from then on.

    check: runs a probe, see _both_ways. longer: told before each further run of the probe that is under way.
    """

    def __init__(self, gpu: Any, check: Callable[[Any], dict[str, object]], longer: Callable[[], None]) -> None:
        self._gpu, self._check, self._longer = gpu, check, longer
        self._why, self._told, self._asked = dict[str, str](), 0, False

    def tried(self, probe: Any, failed: dict[str, object], run: Callable[[], dict[str, object]]) -> dict[str, object]:
        """What a probe that has failed says in the end: its own cure counts where it passes with it and fails without;
        one that has none runs again where another's turns out to be needed.
        """
        gpu, before = self._gpu, self._gpu.rewritings
        if probe.cure:
            gpu.rewritings |= {probe.cure}
        elif not self._asked:
            self._asked = True
            self._ask()
        if gpu.lost or gpu.rewritings == before:
            return failed
        self._longer()
        again = run()
        if probe.cure:
            with_it, gpu.rewritings = gpu.rewritings, before
            if again["status"] != "PASS" or run()["status"] != "FAIL":  # the latter fails now and then
                return failed
            gpu.rewritings = with_it
            self._why[probe.cure] = f"probe {probe.name!r} fails without it: {failed['seen']}"
        if again["status"] != "PASS":
            return failed
        return again | {"seen": f"{again['seen']}; only with {', '.join(self._why)}, without: {failed['seen']}"}

    def _ask(self) -> None:
        """Runs the probes that have a cure."""
        from ort_gpu_ep.health.probe import PROBES

        for probe in PROBES.values():
            if probe.cure and not self._gpu.lost:
                self._longer()
                run = partial(self._check, probe)
                seen = run()
                if seen["status"] == "FAIL":
                    self.tried(probe, seen, run)

    def news(self) -> list[tuple[str, str]]:
        """What was found since the last call: names, and why."""
        new = list(self._why.items())[self._told :]
        self._told += len(new)
        return new


def _miscompile(pattern: str, replacement: str) -> None:
    """From now on the driver compiles something else where it is given what the pattern finds."""
    import re

    from ort_gpu_ep.webgpu import native
    from ort_gpu_ep.webgpu.objects import Device

    trusted, checked = native.trusted_module, Device.create_shader_module
    spoilt = partial(re.sub, pattern, replacement)
    native.trusted_module = lambda device, label, code: trusted(device, label, spoilt(code))
    Device.create_shader_module = lambda self, label, code: checked(self, label, spoilt(code))  # type: ignore[method-assign]


def _outcome(check: Any, trial: Any) -> tuple[str, str]:
    from ort_gpu_ep.errors import UnsupportedNodeError
    from ort_gpu_ep.health.probe import Unsupported

    try:
        return "PASS", check(trial)
    except (Unsupported, UnsupportedNodeError) as error:
        return "UNSUPPORTED", str(error)
    except Exception as error:  # whatever a driver does wrong is a finding, not a crash of the worker
        first = str(error).splitlines()[0] if str(error) else ""
        return "FAIL", f"{type(error).__name__}: {first}"[:400]


def limits_of(gpu: Any) -> dict[str, int]:
    """The numbers of an adapter's limits, by name."""
    from dataclasses import fields

    return {f.name: value for f in fields(gpu.limits) if isinstance(value := getattr(gpu.limits, f.name), int)}


if __name__ == "__main__":
    main()
