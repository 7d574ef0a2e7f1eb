"""Starting a worker holds up nobody else, and a session whose worker ends while it is made comes back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import AdapterError, DeviceLostError
from ort_gpu_ep.isolation.process import WorkerProcess
from ort_gpu_ep.isolation.remote import MAX_KILLED, open_remote
from tests.isolation.conftest import gpu_of, isolated, mlp, patient_for, rows
from tests.isolation.test_worker_ends import back_on_the_gpu, runs_of
from tests.patience import until
from tests.plugin.cases import assert_close, reference

MODEL = mlp()
X = rows(4)
WANT = reference(MODEL, x=X)

Before = Callable[[WorkerProcess, tuple[Any, ...]], object]


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Callable[[Before], None]:
    """`before(f)` calls f(worker, request) before each request of this process."""
    request = WorkerProcess.request

    def install(f: Before) -> None:
        def replaced(self: WorkerProcess, what: tuple[Any, ...], timeout_s: float) -> dict[str, Any]:
            f(self, what)
            return request(self, what, timeout_s)

        monkeypatch.setattr(WorkerProcess, "request", replaced)

    return install


class Gate:
    """What a start waits for. reached: it has come here. passed: it has gone on."""

    def __init__(self) -> None:
        self.reached, self.passed, self._open = threading.Event(), threading.Event(), threading.Event()

    def hold(self) -> None:
        self.reached.set()
        self._open.wait(300)
        self.passed.set()

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Open at the end, whatever happens."""
    made = Gate()
    yield made
    made.open()


def die(worker: WorkerProcess, number: int = signal.SIGKILL) -> None:
    worker._process.send_signal(number)
    worker._process.wait()


def test_a_run_does_not_wait_for_the_worker_of_a_new_session(
    own: dict[str, str], before: Callable[[Before], None], gate: Gate
) -> None:
    first = isolated(MODEL, **own)
    assert back_on_the_gpu(first)
    process = gpu_of(first).process
    die(process)
    before(lambda worker, what: gate.hold() if what[0] == "open" else None)
    made: list[Any] = []
    creation = threading.Thread(target=lambda: made.append(isolated(MODEL, **own)))
    creation.start()
    assert gate.reached.wait(300)
    for _ in range(3):
        assert_close(first.run(x=X), WANT)
    assert not gate.passed.is_set()
    assert runs_of(first)[1] == 3
    gate.open()
    creation.join(300)
    until(lambda: back_on_the_gpu(first) and back_on_the_gpu(made[0]), "the GPU")


def test_other_options_do_not_wait_for_a_worker(
    own: dict[str, str], before: Callable[[Before], None], gate: Gate
) -> None:
    before(lambda worker, what: gate.hold() if what[0] == "open" and what[1].memory_limit_mb == 77 else None)
    waiting = threading.Thread(target=lambda: open_remote(Config(isolation="process", memory_limit_mb=77, **own)).end())  # type: ignore[arg-type]
    waiting.start()
    assert gate.reached.wait(300)
    other = isolated(MODEL, **own)
    assert back_on_the_gpu(other)
    assert not gate.passed.is_set()
    gate.open()
    waiting.join(300)


def test_the_worker_ends_while_a_session_is_made(own: dict[str, str], before: Callable[[Before], None]) -> None:
    left = [True]
    before(lambda worker, what: die(worker) if what[0] == "compile" and left and left.pop() else None)
    opened = isolated(MODEL, **own)
    assert not left
    assert "A new worker is started" in opened.state.events[-1].message
    assert_close(opened.run(x=X), WANT)
    until(lambda: back_on_the_gpu(opened), "the GPU")
    assert gpu_of(opened).generations == 2


def test_a_worker_that_is_killed_before_it_is_ready_is_followed_by_another(
    own: dict[str, str], before: Callable[[Before], None]
) -> None:
    left = [True] * 3
    before(lambda worker, what: die(worker) if what[0] == "open" and left and left.pop() else None)
    opened = isolated(MODEL, **own)
    assert not left
    assert back_on_the_gpu(opened)
    assert not opened.state.events


def test_kills_from_outside_leave_no_partition_to_the_cpu(
    own: dict[str, str], before: Callable[[Before], None]
) -> None:
    left = [True] * 4
    before(lambda worker, what: die(worker) if what[0] == "compile" and left and left.pop() else None)
    opened = isolated(MODEL, **own)
    until(lambda: back_on_the_gpu(opened), "the GPU")
    assert not left


def test_a_session_is_made_where_all_workers_are_killed_for_a_while(
    own: dict[str, str], before: Callable[[Before], None]
) -> None:
    """What the adapter is like is known from an earlier worker; the session's own comes later."""
    first = isolated(MODEL, **own)
    assert back_on_the_gpu(first)
    die(gpu_of(first).process)
    left = [True] * (2 * MAX_KILLED)
    before(lambda worker, what: die(worker) if what[0] == "open" and left and left.pop() else None)
    second = isolated(MODEL, **own)
    assert_close(second.run(x=X), WANT)
    until(lambda: back_on_the_gpu(second) and back_on_the_gpu(first), "the GPU")


def test_strict_raises_where_the_worker_ends_while_a_session_is_made(
    own: dict[str, str], before: Callable[[Before], None]
) -> None:
    before(lambda worker, what: die(worker) if what[0] == "compile" else None)
    with pytest.raises(Exception, match=DeviceLostError.__name__):
        isolated(MODEL, strict=1, **own)


def test_a_partition_that_ends_workers_is_given_up(own: dict[str, str], before: Callable[[Before], None]) -> None:
    """It costs the other sessions two workers, and no more; it does not open their circuit either."""
    healthy = isolated(MODEL, **own)
    bad: list[int] = []
    before(
        lambda worker, what: (
            die(worker, signal.SIGSEGV)
            if what[0] == "compile" and what[1] in (bad or bad.append(what[1]) or bad)
            else None
        )
    )
    poison = isolated(mlp(7), **own)
    until(lambda: back_on_the_gpu(healthy), "the GPU")
    for _ in range(5):
        assert_close(poison.run(x=X), reference(mlp(7), x=X))
    assert runs_of(poison) == (5, 5)
    assert "is left to the CPU: 2 worker processes ended while they compiled it" in poison.state.events[-1].message
    assert gpu_of(healthy).circuit.state == "closed"
    assert back_on_the_gpu(healthy)
    assert gpu_of(healthy).generations == 2


def test_what_is_said_where_no_worker_opens_the_adapter(own: dict[str, str], before: Callable[[Before], None]) -> None:
    before(lambda worker, what: die(worker) if what[0] == "open" else None)
    with pytest.raises(AdapterError, match="SIGKILL") as raised:
        open_remote(Config(isolation="process", memory_limit_mb=78, **own))  # type: ignore[arg-type]
    assert "new worker" not in str(raised.value)
    assert "ort-gpu-ep doctor" in str(raised.value)


def test_a_run_does_not_wait_for_others_longer_than_for_a_hang(own: dict[str, str]) -> None:
    opened = isolated(MODEL, **own)
    assert back_on_the_gpu(opened)
    gpu, held, done = gpu_of(opened), threading.Event(), threading.Event()

    def hold() -> None:
        with gpu._lock:
            held.set()
            done.wait(300)

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(300)
    with patient_for(opened, 1.0):
        for _ in range(4):
            assert_close(opened.run(x=X), WANT)
    assert "busy with other sessions for 1 s" in opened.state.events[-1].message
    done.set()
    other.join()
    assert gpu.circuit.state == "closed"
    assert back_on_the_gpu(opened)
