"""The worker is killed, stopped, crashes, hangs or talks nonsense: the CPU answers, then a new worker."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.errors import DeviceHangError, DeviceLostError
from ort_gpu_ep.isolation import leak_watch
from ort_gpu_ep.isolation.channel import Channel
from tests.isolation.conftest import gpu_of, isolated, mlp, patient_for, rows
from tests.patience import until
from tests.plugin.cases import Opened, assert_close, reference

MODEL = mlp()
X = rows(4)
WANT = reference(MODEL, x=X)


def runs_of(opened: Opened) -> tuple[int, int]:
    """(runs, those that the CPU answered)."""
    return sum(p.runs for p in opened.state.partitions), sum(p.fallbacks for p in opened.state.partitions)


def back_on_the_gpu(opened: Opened) -> bool:
    """Whether a run, whose result is right, was the GPU's."""
    before = runs_of(opened)[1]
    assert_close(opened.run(x=X), WANT)
    return runs_of(opened)[1] == before


def check_replaced(opened: Opened, old: int | None, says: str) -> None:
    assert_close(opened.run(x=X), WANT)
    assert runs_of(opened)[1] >= 1
    told = [e for e in opened.state.events if says in e.message]
    assert len(told) == 1, list(opened.state.events)
    assert "ort-gpu-ep doctor" in told[0].message
    until(lambda: back_on_the_gpu(opened), "a new worker")
    assert gpu_of(opened).pid not in (None, old)
    assert gpu_of(opened).circuit.state == "closed"


@pytest.mark.parametrize("name", ["SIGKILL", "SIGABRT", "SIGSEGV", "SIGTERM"])
def test_killed_between_runs(name: str, own: dict[str, str]) -> None:
    opened = isolated(MODEL, **own)
    assert back_on_the_gpu(opened)
    old = gpu_of(opened).pid
    assert old is not None
    os.kill(old, signal.Signals[name])
    check_replaced(opened, old, name)


def test_killed_during_a_run(own: dict[str, str]) -> None:
    opened = isolated(MODEL, faults="hang@2", hang_timeout_ms=200_000, **own)
    assert back_on_the_gpu(opened)
    old = gpu_of(opened).pid
    assert old is not None
    threading.Timer(0.5, os.kill, (old, signal.SIGKILL)).start()
    check_replaced(opened, old, "SIGKILL")  # the wait did not go on to hang_timeout_ms: that would be told instead


def test_stopped(own: dict[str, str]) -> None:
    opened = isolated(MODEL, **own)
    assert back_on_the_gpu(opened)
    old = gpu_of(opened).pid
    assert old is not None
    os.kill(old, signal.SIGSTOP)
    with patient_for(opened, 2.0):
        assert_close(opened.run(x=X), WANT)
    check_replaced(opened, old, "did not answer within 2 s")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("abort", "SIGABRT"),
        ("segfault", "SIGSEGV"),
        ("hang", "did not answer within 2 s"),
        ("lost", "the driver dropped the device"),
    ],
)
def test_faults_during_a_run(kind: str, says: str, own: dict[str, str]) -> None:
    opened = isolated(MODEL, faults=f"{kind}@3", **own)
    assert back_on_the_gpu(opened)
    assert back_on_the_gpu(opened)
    old = gpu_of(opened).pid
    with patient_for(opened, 2.0) if kind == "hang" else nullcontext():
        assert_close(opened.run(x=X), WANT)
    until(lambda: back_on_the_gpu(opened), "a new worker")
    assert [e.kind for e in opened.state.events if says in e.message] == ["fallback"]
    assert gpu_of(opened).pid != old
    assert gpu_of(opened).generations == 2  # the fault was at run 3 of the drill, not of each worker


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xfe",
        b"[1]",
        b'{"outputs": [[[4, 8], -1]]}',
        b'{"outputs": [[[4, 8], 1099511627776]]}',
        b'{"outputs": []}',
        b"{}",
        b'{"outputs": [[[4], 0]]}',
    ],
)
def test_garbage(answer: bytes, own: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = isolated(MODEL, **own)
    assert back_on_the_gpu(opened)
    old, receive = gpu_of(opened).pid, Channel.receive

    def once(self: Any, timeout_s: float | None = None) -> bytes:
        receive(self, timeout_s)
        monkeypatch.undo()
        return answer

    monkeypatch.setattr(Channel, "receive", once)
    check_replaced(opened, old, "answers garbage")


def test_a_leak(own: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that only grows is replaced between two runs; the sizes of heaps, and new shapes with their buffers, are
    no leak."""
    monkeypatch.setattr(leak_watch, "PAUSE_S", 0.0)
    monkeypatch.setattr(leak_watch, "ALLOWED_NBYTES", 128 << 20)
    opened = isolated(MODEL, faults="leak@8", **own)
    old = gpu_of(opened).pid
    for count in (4, 400_000, 4, 4, 4, 4, 4):
        x = rows(count)
        assert_close(opened.run(x=x)[:1], [reference(MODEL, x=x)[0]])
    assert gpu_of(opened).pid == old
    assert_close(opened.run(x=X), WANT)
    assert gpu_of(opened).pid is None
    assert gpu_of(opened).circuit.state == "open"
    assert runs_of(opened)[1] == 0  # the run was right, and the worker's
    assert "MiB more than when it last compiled anything" in caplog.text
    until(lambda: back_on_the_gpu(opened), "a new worker")
    assert gpu_of(opened).pid not in (None, old)
    assert_close(opened.run(x=X), WANT)
    assert gpu_of(opened).generations == 2


def test_strict_raises_and_recovers(own: dict[str, str]) -> None:
    opened = isolated(MODEL, strict=1, **own)
    assert_close(opened.run(x=X), WANT)
    for number, kind in ((signal.SIGKILL, DeviceLostError), (signal.SIGSTOP, DeviceHangError)):
        os.kill(gpu_of(opened).pid or 0, number)
        patience = patient_for(opened, 2.0) if number == signal.SIGSTOP else nullcontext()
        with patience, pytest.raises(Exception, match=kind.__name__) as raised:
            opened.run(x=X)
        assert isinstance(opened.state.cause_of(raised.value), kind)
        with pytest.raises(Exception, match="being replaced"):
            opened.run(x=X)

        def works() -> bool:
            try:
                got = opened.run(x=X)
            except Exception as error:
                if not isinstance(opened.state.cause_of(error), DeviceLostError):
                    raise
                return False
            assert_close(got, WANT)
            return True

        until(works, "a new worker")


def test_all_sessions_go_on_with_the_new_worker(own: dict[str, str]) -> None:
    models = [mlp(seed) for seed in range(3)]
    opened = [isolated(m, **own) for m in models]
    os.kill(gpu_of(opened[0]).pid or 0, signal.SIGKILL)

    def closed() -> bool:
        for session in opened:
            session.run(x=X)
        return gpu_of(opened[0]).circuit.state == "closed"

    until(closed, "a new worker")
    before = [runs_of(o)[1] for o in opened]
    for session, model in zip(opened, models, strict=True):
        np.testing.assert_allclose(session.run(x=X)[0], reference(model, x=X)[0], rtol=1e-4, atol=1e-5)
    assert [runs_of(o)[1] for o in opened] == before


def test_a_new_session_does_not_wait_for_the_circuit(own: dict[str, str]) -> None:
    first = isolated(MODEL, **own)
    process = gpu_of(first)._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not process.is_alive, "its end")
    second = isolated(MODEL, **own)
    assert back_on_the_gpu(second)
    assert back_on_the_gpu(first)
