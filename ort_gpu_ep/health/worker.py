"""The process that runs probes, so that a driver may crash, hang or exit without taking anybody along.

health/helper.py starts it, with a job as JSON on its standard input.

A job names an adapter and the probes to run (null: those that decide whether a library is used, libraries.py). It
prints a line of JSON before it touches a driver, before and after each probe, and ends with exit code DONE: a driver
that calls exit(0) has not succeeded. Source: TFLite's mini-benchmark, which uses the same code for the same reason.
What goes wrong in its own Python is printed too: that says nothing about a driver.

ORT_GPU_EP_DRILL=FAULT@PROBE plants a fault, to see that it is found (docs/doctor.md): `wrong` spoils the probe's shader
or result; `abort`, `segfault`, `exit` and `hang` happen to the process as the probe begins.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from typing import Any

DONE = 120
FAULTS = ("wrong", "abort", "segfault", "exit", "hang")
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


def _say(pipe: Any, line: dict[str, object]) -> None:
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
    _say(pipe, {"features": sorted(gpu.limits.features), "limits": limits_of(gpu)})
    for name in _of_libraries() if job["probes"] is None else job["probes"]:
        _say(pipe, {"start": name})
        probe = PROBES[name]
        if name == target:
            _suffer(fault)
        planted = probe.fault if (fault, target) == ("wrong", name) else ""
        start = time.perf_counter()
        outcome = _both_ways(gpu, probe.check, partial(_trial, gpu, job, planted))
        _say(
            pipe,
            {
                "name": name,
                "time_ms": (time.perf_counter() - start) * 1e3,
                "units": MATRIX_UNITS in probe.disables,
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
