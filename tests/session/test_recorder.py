"""Recordings by another thread: when, the same answers, and nothing lost, used twice or used half-made, whatever comes between."""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.device import native, recorder, steady
from ort_gpu_ep.device.prepared import Prepared
from ort_gpu_ep.device.recorder import RUNS, WORTH_S, Recorder, Rule
from ort_gpu_ep.errors import DeviceError
from tests.patience import PATIENCE_S, until
from tests.session.conftest import assert_close, gpu_session, on_the_cpu
from tests.session.test_direct import WARM

pytestmark = pytest.mark.usefixtures("long_pauses")

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def notes(rule: Rule, times: int, record_s: float, arrival_s: float) -> list[bool]:
    """Where the rule records, after each of so many runs."""
    found = []
    for _ in range(times):
        rule.note(record_s, arrival_s)
        found.append(rule.elsewhere)
    return found


def test_a_recording_that_is_late_leaves_and_comes_back() -> None:
    rule = Rule(True)
    assert not rule.elsewhere
    assert notes(rule, 50, 0.32e-3, 0.99e-3) == [False] * 50, "well below the GPU's time"
    assert notes(rule, RUNS, 0.237e-3, 0.285e-3) == [*[False] * (RUNS - 1), True]
    assert notes(rule, 50, 0.25e-3, 0.3e-3) == [True] * 50, "late there, too, where nobody waits for it"
    assert notes(rule, RUNS, 0.1e-3, 0.3e-3) == [*[True] * (RUNS - 1), False]


def test_in_between_neither_way_is_left() -> None:
    rule = Rule(True)
    assert not any(notes(rule, 50, 0.2e-3, 0.3e-3))
    notes(rule, RUNS, 0.3e-3, 0.3e-3)
    assert all(notes(rule, 50, 0.2e-3, 0.3e-3))


def test_runs_that_differ_decide_nothing() -> None:
    rule = Rule(True)
    for _ in range(50):
        assert notes(rule, RUNS - 1, 0.3e-3, 0.3e-3) == [False] * (RUNS - 1)
        assert not any(notes(rule, RUNS - 1, 0.1e-3, 0.3e-3))
    notes(rule, RUNS, 0.3e-3, 0.3e-3)
    for _ in range(50):
        assert all(rule.elsewhere and notes(rule, 1, record_s, 0.3e-3)[0] for record_s in (0.1e-3, 0.3e-3))


def test_what_is_short_is_not_handed_over() -> None:
    assert not any(notes(Rule(True), 50, 0.9 * WORTH_S, WORTH_S))


def test_with_one_core_or_a_gpu_of_cores_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(notes(Rule(False), 50, 1e-3, 1e-3))
    found = {}
    for cores in (1, 2):
        monkeypatch.setattr(recorder, "cores", lambda cores=cores: cores)
        for software in (False, True):
            found[cores, software] = recorder.possible(SimpleNamespace(info=SimpleNamespace(is_software=software)))
    assert found == {(1, False): False, (1, True): False, (2, False): True, (2, True): False}


class Told:
    """How long recordings and waiting take, by a clock of each thread's own; by: which thread made each recording; looks: at the clock.

    held: recordings on the thread begin when it is set. fails: which threads' recordings raise.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.record_s, self.elsewhere_s, self.wait_s = 0.1e-3, 0.1e-3, 0.3e-3
        self.by, self.looks, self.fails = list[str](), 0, set[str]()
        self.held, self.begun, self.waits = threading.Event(), threading.Semaphore(0), threading.Event()
        self.held.set()
        self._own = threading.local()
        encode, wait, job_wait = Prepared.encode, native.wait, recorder.Job.wait

        def told_encode(prepared: Any, *arguments: Any) -> Any:
            who = "thread" if threading.current_thread().name == "ort_gpu_ep-record" else "run"
            self.by.append(who)
            if who == "thread":
                self.begun.release()
                assert self.held.wait(PATIENCE_S)
            self._rest(self.elsewhere_s if who == "thread" else self.record_s)
            if who in self.fails:
                raise DeviceError("told to fail")
            return encode(prepared, *arguments)

        def told_wait(*arguments: Any) -> None:
            wait(*arguments)
            self._rest(self.wait_s)

        def noted_wait(job: Any, *arguments: Any) -> None:
            self.waits.set()
            job_wait(job, *arguments)

        patch.setattr(Prepared, "encode", told_encode)
        patch.setattr(native, "wait", told_wait)
        patch.setattr(recorder.Job, "wait", noted_wait)
        patch.setattr(recorder, "recorder", Recorder())
        for module in (steady, recorder):
            patch.setattr(module, "time", SimpleNamespace(perf_counter=self._look))

    def _look(self) -> float:
        self.looks += 1
        return getattr(self._own, "now_s", 0.0)

    def _rest(self, seconds: float) -> None:
        self._own.now_s = getattr(self._own, "now_s", 0.0) + seconds

    def hold(self) -> None:
        """The next recording on the thread does not come to its end before `held` is set."""
        recorder.recorder.settle()
        self.held.clear()
        self.waits.clear()
        self.by.clear()
        while self.begun.acquire(blocking=False):
            pass


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setattr(recorder, "possible", lambda gpu: True)
    made = Told(monkeypatch)
    yield made
    made.held.set()
    recorder.recorder.end()


@pytest.fixture
def forced(told: Told, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Every recording ahead is made by the thread."""
    monkeypatch.setattr(recorder, "FORCED", True)
    return told


def warm(model: bytes, x: Any, **options: object) -> Any:
    session = gpu_session(model, **options)
    for _ in range(WARM):
        session.run(None, {"x": x})
    return session


def steady_of(session: Any) -> Any:
    return next(iter(session.direct._known.values()))[()].steady


def test_runs_go_by_the_rule(mlp: bytes, rng: np.random.Generator, told: Told) -> None:
    xs = [rng.standard_normal((5, 16)).astype("f") for _ in range(5)]
    session, wants = warm(mlp, xs[0]), [on_the_cpu(mlp, {"x": x}) for x in xs]

    def runs(times: int) -> list[str]:
        told.by.clear()
        for k in range(times):
            assert_close(session.run(None, {"x": xs[k % 5]}), wants[k % 5])
        recorder.recorder.settle()
        return told.by

    assert runs(10) == ["run"] * 10
    told.record_s, told.wait_s = 0.3e-3, 0.05e-3
    assert runs(RUNS + 10) == [*["run"] * RUNS, *["thread"] * 10]
    told.elsewhere_s, told.wait_s = 0.05e-3, 0.3e-3
    assert runs(RUNS + 10) == [*["thread"] * RUNS, *["run"] * 10]


def test_a_fast_recording_costs_one_more_look_at_the_clock(mlp: bytes, x: Any, told: Told) -> None:
    session = warm(mlp, x)
    told.looks, before = 0, threading.active_count()
    session.run(None, {"x": x})
    assert (told.looks, threading.active_count()) == (5, before)


def test_the_next_run_waits_and_records_nothing_again(mlp: bytes, x: Any, forced: Told) -> None:
    session, want = warm(mlp, x), on_the_cpu(mlp, {"x": x})
    forced.hold()
    assert_close(session.run(None, {"x": x}), want)     # it does not wait for the recording
    stats = session._state.gpu.stats
    before = stats.submits
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(session.run, None, {"x": x})
        assert forced.waits.wait(PATIENCE_S)
        assert (following.done(), stats.submits) == (False, before)
        forced.held.set()
        assert_close(following.result(PATIENCE_S), want)
    recorder.recorder.settle()
    assert forced.by == ["thread", "thread"]


def test_a_thread_at_work_gets_no_second_recording(mlp: bytes, x: Any, forced: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work, ends = threading.Event(), threading.Event()
    first = recorder.recorder.begin(lambda: (at_work.set(), ends.wait(PATIENCE_S), "first"))
    assert first is not None
    assert at_work.wait(PATIENCE_S)
    assert recorder.recorder.begin(lambda: "second") is None
    session, want = warm(mlp, x), on_the_cpu(mlp, {"x": x})
    assert_close(session.run(None, {"x": x}), want)
    assert set(forced.by) == {"run"}
    ends.set()
    assert first.result() == (None, True, "first")
    assert_close(session.run(None, {"x": x}), want)
    recorder.recorder.settle()
    assert forced.by[-1] == "thread"


def test_the_thread_keeps_nothing_of_what_nobody_wants(forced: Told) -> None:
    class Recording:
        pass

    made = list[weakref.ref[Any]]()

    def record() -> Recording:
        found = Recording()
        made.append(weakref.ref(found))
        return found

    recorder.recorder.begin(record)
    until(lambda: made and made[0]() is None)


def test_a_recording_of_buffers_that_are_gone_is_not_used(mlp: bytes, rng: np.random.Generator, forced: Told) -> None:
    small, large = (rng.standard_normal((n, 16)).astype("f") for n in (3, 3000))
    session = warm(mlp, small)
    forced.hold()
    session.run(None, {"x": small})
    assert forced.begun.acquire(timeout=PATIENCE_S)
    assert_close(session.run(None, {"x": large}), on_the_cpu(mlp, {"x": large}))
    session._state.gpu.trim()       # a submission that names the buffers before would end the process
    forced.held.set()
    assert_close(session.run(None, {"x": small}), on_the_cpu(mlp, {"x": small}))
    recorder.recorder.settle()
    assert forced.by == ["thread", "run", "run", "thread"], "one ahead; large, and small anew; ahead again"


def test_a_recording_that_fails_is_made_again(mlp: bytes, x: Any, forced: Told, caplog: pytest.LogCaptureFixture) -> None:
    session, want = warm(mlp, x, strict=1), on_the_cpu(mlp, {"x": x})
    forced.hold()
    forced.held.set()
    forced.fails.add("thread")
    with caplog.at_level(logging.WARNING, "ort_gpu_ep"):
        for _ in range(2):
            assert_close(session.run(None, {"x": x}), want)
    assert "told to fail" in caplog.text
    recorder.recorder.settle()
    assert forced.by == ["thread", "run", "thread"]
    forced.fails.add("run")
    with pytest.raises(DeviceError, match="told to fail"):
        session.run(None, {"x": x})
    forced.fails.clear()
    assert_close(session.run(None, {"x": x}), want)


def test_a_session_closed_meanwhile(mlp: bytes, x: Any, forced: Told) -> None:
    session = warm(mlp, x)
    gpu, gone = session._state.gpu, weakref.ref(steady_of(session))
    forced.hold()
    session.run(None, {"x": x})
    assert forced.begun.acquire(timeout=PATIENCE_S)
    prepared = steady_of(session).prepared
    del session
    gc.collect()
    assert prepared.closed
    del prepared
    gpu.trim()                  # the recording names buffers that went back to the driver, and its readback
    forced.held.set()
    recorder.recorder.settle()
    until(lambda: gc.collect() >= 0 and gone() is None, "nothing holds the runs of a closed session")
    assert_close(warm(mlp, x).run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


def test_a_device_lost_meanwhile(mlp: bytes, x: Any, forced: Told) -> None:
    session, want = warm(mlp, x, faults="slow@1x;seed=41"), on_the_cpu(mlp, {"x": x})
    forced.hold()
    session.run(None, {"x": x})
    session._state.gpu.lost = "for this test"
    assert_close(session.run(None, {"x": x}), want)
    assert session.stats()["fallbacks"] == 1
    forced.held.set()
    for _ in range(3):
        assert_close(session.run(None, {"x": x}), want)


SCRIPT = """
    import atexit, os, signal, sys, threading, time
    import numpy as np
    import onnxruntime
    import ort_gpu_ep as ort
    from ort_gpu_ep.device import recorder
    from ort_gpu_ep.device.prepared import Prepared
    from tests.unit.graphs import model_of

    onnxruntime.set_default_logger_severity(4)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1       # a child does not have a pool's threads
    text = "(float[8, 8] x) => (float[8, 8] y) { a = Tanh(x) m = MatMul(a, w) y = Neg(m) }"
    model = model_of(text, {"w": np.eye(8, dtype="f")}).SerializeToString()
    recorder.FORCED = True
    session, x = ort.InferenceSession(model, settings, provider_options={"placement": "gpu", "health": "off"}), np.linspace(
        -1, 1, 64, dtype="f").reshape(8, 8)
    encode, held, events = Prepared.encode, False, []

    def slow(self, *arguments):
        if held and threading.current_thread().name == "ort_gpu_ep-record":
            begun.set()
            go.wait(60)
            time.sleep(0.2)         # the process is past where it would not wait
        found = encode(self, *arguments)
        if held:
            events.append(threading.current_thread().name)
        return found

    Prepared.encode, begun, go = slow, threading.Event(), threading.Event()

    def right():
        np.testing.assert_allclose(session.run(None, {"x": x})[0], -np.tanh(x), rtol=1e-4)

    atexit.register(lambda: print("at exit:", *events))
    for _ in range(5):
        right()
    recorder.recorder.settle()
"""


def test_the_process_ends_after_a_recording_under_way(python: Callable[..., Any]) -> None:
    done = python(SCRIPT + """
    held = True
    right()
    begun.wait(60)
    atexit.register(go.set)     # called before what waits for the thread
    """)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "at exit: ort_gpu_ep-record", "")


@needs_fork
def test_a_fork_waits_and_the_child_has_no_thread(python: Callable[..., Any]) -> None:
    done = python(SCRIPT + """
    os.register_at_fork(before=go.set)      # the last one registered is the first one called
    held = True
    right()
    begun.wait(60)
    job = next(iter(session.direct._known.values()))[()].steady._idle[0].job
    child = os.fork()
    if child == 0:
        if not job.over: os._exit(2)
        if job.result() is not None or recorder.recorder.begin(lambda: 0) is not None: os._exit(3)
        right()
        os._exit(0 if session.stats()["fallbacks"] == 1 else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    right()
    assert session.stats()["fallbacks"] == 0
    """)
    assert done.returncode == 0, (done.stdout, done.stderr)


def test_interrupts_while_the_thread_records(python: Callable[..., Any]) -> None:
    """Each comes from the thread that records, so in a run that waits for the GPU, in one that waits for the recording, or behind one."""
    done = python(SCRIPT + """
    calm, count, hits = threading.Event(), 0, 0

    def pressing(self, *arguments):
        global count
        if threading.current_thread().name == "ort_gpu_ep-record" and calm.is_set():
            calm.clear()
            count += 1
            if count % 2:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        return encode(self, *arguments)

    Prepared.encode = pressing
    while hits < 12:
        try:
            calm.set()
            while True:
                session.run(None, {"x": x})
        except KeyboardInterrupt:
            hits += 1
        right()
    calm.clear()
    right()
    print(hits, session.stats()["fallbacks"])
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[0] == "12 0"
