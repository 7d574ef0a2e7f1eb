"""The helper process that measures where a session runs best, while the session answers from the CPU. starting.py
starts it.

It makes a session of the same model with the same options and runs it once: adapters, probes, the device profile and
the candidates side by side, all of which ends up in the caches. It runs below the priority of others and ends at once
when its standard input is closed.
"""

from __future__ import annotations

import json
import math
import os
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ort_gpu_ep.files import PRIVATE_FOLDER
from ort_gpu_ep.health.worker import DONE

NICE = 10
"""A thread of this process gets a tenth of a core that another one wants, too. Source: sched_prio_to_weight in the
Linux kernel."""

REMOVALS = 20
"""Times that the folder is removed: the other thread may write to it meanwhile, and a folder with a new file in it
stays."""

_ending = threading.Lock()

Say = Callable[[dict[str, object]], None]


def main() -> None:
    """The job is a line of JSON on standard input, followed by the model, if it is no path, and the inputs. Without a
    model the probes run that no model has wanted so far.
    """
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    _give_way()

    def say(line: dict[str, object]) -> None:
        pipe.write(json.dumps(line) + "\n")
        pipe.flush()

    try:
        job = json.loads(sys.stdin.buffer.readline())
        os.mkdir(job["folder"], PRIVATE_FOLDER)
        tempfile.tempdir = job["folder"]
        model = job["model"] or sys.stdin.buffer.read(job["nbytes"])
        answers: queue.Queue[dict[str, Any]] = queue.Queue()
        feeds = _inputs(job)
        threading.Thread(target=_listen, args=(answers,), daemon=True).start()
        if feeds or model:
            say(_found(job, model, feeds, say, answers))
        else:
            _probe_the_rest(job["options"])
    except BrokenPipeError:  # the session is gone, or its process
        pass
    except Exception as error:  # of an op that only the user's process has, say: that one finds out by itself
        with suppress(BrokenPipeError):
            say({"done": True, "why": f"{type(error).__name__}: {error}"[:400]})
    finally:
        _end()


def _found(
    job: dict[str, Any],
    model: str | bytes,
    feeds: dict[str, Any],
    say: Say,
    answers: queue.Queue[dict[str, Any]],
) -> dict[str, object]:
    """done: whether there is something for the session to open. why: there is not, if that is a surprise."""
    import onnxruntime

    from ort_gpu_ep.config import resolve
    from ort_gpu_ep.health.libraries import settle

    settle(resolve(job["options"]))  # before a library is loaded
    from ort_gpu_ep.health import open_adapter
    from ort_gpu_ep.plugin.partitioning import load_partitioner
    from ort_gpu_ep.session.early import uses_of
    from ort_gpu_ep.session.session import InferenceSession

    open_adapter.QUICK_S = math.inf  # nobody waits
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    # it would take cores from the user's runs
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for name, value in job["settings"].items():
        kind = type(getattr(settings, name))
        setattr(settings, name, kind(value))
    _wait_for_others(job["options"]["cache_dir"])
    session = InferenceSession(model, settings, provider_options=job["options"])
    if job["options"]["isolation"] != "process":
        threading.Thread(target=load_partitioner, daemon=True).start()  # while drivers open the device
    session.wait_ready()
    say({"at": "the candidates"})
    runner = session._runner
    if runner is None:
        return {"done": not session.stays_on_cpu, "why": session.stays_on_cpu}

    def cpu_s() -> float | None:
        say({"ask": "cpu_s"})
        told = answers.get()["cpu_s"]
        return None if told is None else float(told)

    runner.chooser.tells_cpu_s = cpu_s
    session.run(None, feeds)
    (decision,) = runner.chooser.decided.values()
    runner.chooser.save()
    if runner.config.isolation != "process":  # what its op types did not tell its pipelines do
        open_adapter.open_gpu(runner.config, uses_of(runner.config, runner.candidates.model))
    return {"done": decision.source != "partial", "why": decision.why}


def _probe_the_rest(options: dict[str, str]) -> None:
    from ort_gpu_ep.config import resolve
    from ort_gpu_ep.health import open_adapter

    open_adapter.QUICK_S = math.inf  # nobody waits
    _wait_for_others(options["cache_dir"])
    open_adapter.open_gpu(resolve(options), open_adapter.everything)


def _inputs(job: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    arrays = {}
    for name, kind, shape in job["feeds"]:
        dtype = np.dtype(kind)
        data = sys.stdin.buffer.read(math.prod(shape) * dtype.itemsize)
        arrays[name] = np.frombuffer(data, dtype).reshape(shape)
    return arrays


def _give_way() -> None:
    """Lowers the priority, also where the system shares cores among terminals first (Linux' autogroup), and who dies
    where memory ends.

    An autogroup is a session's: that of the program's terminal stays as it is.
    """
    if hasattr(os, "nice"):
        os.nice(NICE)
    alone = hasattr(os, "getsid") and os.getsid(0) == os.getpid()
    for file, text in ((("autogroup", str(NICE)),) if alone else ()) + (("oom_score_adj", "1000"),):
        with suppress(OSError):
            Path("/proc/self", file).write_text(text)


def _wait_for_others(cache_dir: str) -> None:
    """One such process of a cache at a time: what several would find out, the others then know."""
    if os.name != "posix":
        return
    from ort_gpu_ep.config import Config
    from ort_gpu_ep.files import open_regular
    from ort_gpu_ep.store import lock, make_folder

    folder = Path(Config(cache_dir=cache_dir).cache_path)
    with suppress(OSError):
        make_folder(folder)
        file = open_regular(folder / "scout.lock", os.O_WRONLY | os.O_CREAT)
        lock(file, wait=True)
        globals()["_held"] = file  # until the process ends


def _listen(answers: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        answers.put(json.loads(line))
    _end()  # the session is gone, or its process


def _end() -> None:
    """Without exit handlers, which would wait; with nothing left behind. Whichever thread comes second waits for the
    end.

    So the end must come: what one step raises (the other thread may be loading its module) keeps none of the others
    from being done.
    """
    _ending.acquire()
    with ExitStack() as steps:  # from the last to the first
        steps.callback(os._exit, DONE)
        steps.callback(_remove_folder)
        for module, name in (("ort_gpu_ep.health.markers", "remove_mine"), ("ort_gpu_ep.health.helper", "kill_all")):
            if module in sys.modules:
                steps.callback(_call, module, name)


def _call(module: str, name: str) -> None:
    getattr(sys.modules[module], name)()


def _remove_folder() -> None:
    for _ in range(REMOVALS):
        if tempfile.tempdir is None or not os.path.exists(tempfile.tempdir):
            break
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)


if __name__ == "__main__":
    main()
