"""No process, file or memory is left, whichever way sessions and their process end."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import ort_gpu_ep
from ort_gpu_ep.isolation import process
from ort_gpu_ep.processes.known import own_pids
from tests.isolation.conftest import end_of, gpu_of, isolated, mlp, rows, workers
from tests.patience import PATIENCE_S, until
from tests.plugin.cases import assert_close, reference

ROOT = Path(__file__).parents[2]
MODEL = mlp()
X = rows(4)
WANT = reference(MODEL, x=X)


def parent(then: str) -> subprocess.Popen[str]:
    """Another process with an isolated session; it prints its worker's pid, then does `then`."""
    program = textwrap.dedent(f"""
        import os, signal, sys, time
        from tests.isolation.conftest import gpu_of, isolated, mlp, rows
        from ort_gpu_ep import register
        register()
        opened = isolated(mlp())
        opened.run(x=rows(4))
        print(gpu_of(opened).pid, flush=True)
        {then}
    """)
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def abandoned() -> set[str]:
    """Files of shared memory that no process has any more: there may be others' in use."""
    held = set[str]()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended
            held |= set(re.findall(r"/dev/shm/(\S+)", maps.read_text()))
    return set(os.listdir("/dev/shm")) - held if os.path.isdir("/dev/shm") else set()


@pytest.mark.parametrize(
    "then",
    [
        "pass",
        "sys.exit(3)",
        "os._exit(0)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.abort()",
        "opened.session = None; time.sleep(0.1); os.kill(os.getpid(), signal.SIGTERM)",
    ],
)
def test_the_parent_ends(then: str) -> None:
    files = abandoned()
    process = parent(then)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.wait(300)
    until(lambda: end_of(pid), "the end of the worker")
    process.stdout.close()
    until(lambda: abandoned() <= files, "the files gone")


def test_the_parent_is_killed_while_the_worker_hangs() -> None:
    """The worker's main thread never comes back from the driver; another one sees that the parent is gone."""
    process = parent(
        "opened = isolated(mlp(), faults='hang@1', health='off'); print(gpu_of(opened).pid, flush=True); "
        "opened.run(x=rows(4))"
    )
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    time.sleep(1)
    process.kill()
    process.wait(300)
    until(lambda: all(map(end_of, pids)), "the end of the workers")
    process.stdout.close()


def test_closing_all_sessions_ends_the_worker(own: dict[str, str]) -> None:
    first, second = isolated(MODEL, **own), isolated(MODEL, **own)
    gpu = gpu_of(first)
    pid = gpu.pid
    assert pid is not None
    assert pid == gpu_of(second).pid
    del first
    gc.collect()
    assert_close(second.run(x=X), WANT)
    assert gpu.pid == pid
    del second
    gc.collect()
    assert gpu.pid is None
    assert not psutil.pid_exists(pid)
    again = isolated(MODEL, **own)
    assert_close(again.run(x=X), WANT)


def open_files() -> int:
    return psutil.Process().num_fds()


def test_many_sessions_leave_nothing(own: dict[str, str]) -> None:
    def one(number: int) -> None:
        options = {**own, "health": "off"}
        if number % 5 == 0:
            opened = isolated(mlp(number), **options)
            assert_close(opened.run(x=X), reference(mlp(number), x=X))
        else:
            session = ort_gpu_ep.InferenceSession(MODEL, provider_options={"isolation": "process", "placement": "gpu"})
            assert_close(session.run(None, {"x": X}), WANT)

    one(0)
    one(1)
    gc.collect()
    files, threads, processes = open_files(), psutil.Process().num_threads(), len(workers())
    for number in range(10):
        one(number)
    gc.collect()
    until(lambda: psutil.Process().num_threads() <= threads, "threads gone")
    until(lambda: open_files() <= files, "files closed")
    until(lambda: len(workers()) == processes == 1, "one worker")


def test_auto_on_a_software_adapter_leaves_no_worker() -> None:
    before = {w.pid for w in workers()}
    session = ort_gpu_ep.InferenceSession(MODEL, provider_options={"isolation": "process", "health": "off"})
    assert_close(session.run(None, {"x": X}), WANT)
    assert session._lease is None
    assert {w.pid for w in workers()} == before


def test_the_workers_work_is_ours(own: dict[str, str]) -> None:
    """A session must not leave the GPU because of the load that its own worker is."""
    killed = isolated(MODEL, **own)
    pid = gpu_of(killed).pid or 0
    assert pid in own_pids()
    os.kill(pid, signal.SIGKILL)
    assert_close(killed.run(x=X), WANT)  # by the CPU
    assert pid not in own_pids()
    other = isolated(MODEL, **own)  # starts the next worker at once
    pid = gpu_of(other).pid or 0
    assert pid in own_pids()
    del killed, other
    gc.collect()
    assert pid not in own_pids()


def test_markers_go_with_the_worker(own: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was asked to end has ended cleanly: nobody probes because of it."""
    monkeypatch.setattr(process, "_LAST_S", PATIENCE_S)  # it is not killed because the machine is busy
    opened = isolated(MODEL, cache_dir=str(tmp_path))
    assert list(tmp_path.rglob("*.open"))
    assert gpu_of(opened).pid
    del opened
    gc.collect()
    assert not list(tmp_path.rglob("*.open"))


def test_a_forked_child_gets_a_worker_of_its_own(own: dict[str, str]) -> None:
    opened = isolated(MODEL, **own)
    assert_close(opened.run(x=X), WANT)
    mine = gpu_of(opened).pid
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(ours)
            code = in_the_child(opened, mine, theirs)
        finally:
            os._exit(code)
    os.close(theirs)
    try:
        _, status = os.waitpid(child, 0)
        told = os.read(ours, 1000).decode()
    finally:
        os.close(ours)
    assert os.waitstatus_to_exitcode(status) == 0, told
    assert_close(opened.run(x=X), WANT)
    assert gpu_of(opened).pid == mine
    assert not opened.state.failures
    until(lambda: end_of(int(told)), "the end of the child's worker")


def in_the_child(opened: Any, parents: int | None, pipe: int) -> int:
    """0 if runs are right at once, and come from another worker later."""
    end = time.monotonic() + 300
    while gpu_of(opened).pid is None or gpu_of(opened).circuit.state != "closed":
        assert_close(opened.run(x=X), WANT)
        if time.monotonic() > end:
            os.write(pipe, b"no worker of its own came")
            return 2
        time.sleep(0.05)
    assert_close(opened.run(x=X), WANT)
    os.write(pipe, str(gpu_of(opened).pid).encode())
    return 3 if gpu_of(opened).pid == parents else 0


def test_ctrl_c_is_for_the_parent(own: dict[str, str]) -> None:
    opened = isolated(MODEL, **own)
    assert_close(opened.run(x=X), WANT)
    os.kill(gpu_of(opened).pid or 0, signal.SIGINT)
    time.sleep(0.2)
    assert_close(opened.run(x=X), WANT)
    assert not opened.state.failures
