"""Runs of several threads submitted together: the same answers, fewer submissions, and what goes wrong in one stays
with it."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.device import background
from ort_gpu_ep.errors import IndexOutOfRangeError
from ort_gpu_ep.runtime import joined_runs, prepared
from ort_gpu_ep.runtime.context import RECENT_RUNS
from ort_gpu_ep.runtime.ends import HostEnds
from ort_gpu_ep.runtime.joined_runs import Contention, Pace, Together
from ort_gpu_ep.scheduler.barriers import unsettled
from ort_gpu_ep.scheduler.plan import Dispatch, Kind
from tests.patience import PATIENCE_S
from tests.session.conftest import assert_close, gpu_session, on_the_cpu
from tests.session.test_direct import WARM
from tests.unit.graphs import model_of

pytestmark = pytest.mark.usefixtures("long_pauses", "brief_hangs")

THREADS, RUNS = 8, 6


@pytest.fixture
def branches(rng: np.random.Generator) -> bytes:
    """Branches whose ends are joined, a value that is read late, an output that is read on."""
    constants = {n: rng.standard_normal((16, 16)).astype("f") for n in ("u", "v", "w")}
    text = (
        "(float[4, 16] x) => (float[4, 48] y, float[4, 16] e) { a = MatMul(x, u) b = MatMul(x, v) t = Tanh(a) "
        "c = Relu(b) "
        "s = Softmax(t) e = MatMul(s, w) j = Concat<axis=1>(e, c, t) k = ReduceMean<keepdims=1>(j, axes) y "
        "= Sub(j, k) }"
    )
    return bytes(model_of(text, {**constants, "axes": np.array([1])}).SerializeToString())


@pytest.fixture
def picks() -> bytes:
    """Rows of a table, by indices that data brings."""
    table = np.arange(40, dtype="f").reshape(10, 4)
    text = "(int64[3] i, float[4] x) => (float[3, 4] y) { r = Gather(t, i) a = Add(r, x) y = Tanh(a) }"
    return bytes(model_of(text, {"t": table}).SerializeToString())


def steady_of(session: Any) -> Any:
    return next(iter(session.direct.partition.forms.values())).steady


def joined(model: bytes, feeds: dict[str, Any], **options: object) -> tuple[Any, Any]:
    """A session whose runs are submitted together from now on, where others are under way, and its Steady."""
    session = gpu_session(model, join_runs="1", **options)
    for _ in range(WARM):
        session.run(None, feeds)
    steady = steady_of(session)
    steady.contention = Contention.of(steady.prepared, steady.filled)
    Together(steady.contention, steady.prepared, steady.filled).make()
    assert steady.contention.coalescer is not None, steady.contention.why
    return session, steady


def together(runs: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    begin = threading.Barrier(threads)

    def one(k: int) -> Any:
        begin.wait(PATIENCE_S)
        return runs(k)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, range(threads)))


@pytest.fixture
def all_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are submitted together however few are under way: on a busy machine threads may come one after another."""
    monkeypatch.setattr(joined_runs, "CONTENDED", 1)


def first_ones_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first runs, as many as a group has, write their inputs when all of them have joined it."""
    met, upload, first = threading.Barrier(joined_runs.MAX_RUNS), HostEnds.upload, list(range(joined_runs.MAX_RUNS))

    def meet(own: Any, sources: Any) -> None:
        with suppress(IndexError):
            first.pop()
            met.wait(PATIENCE_S)
        upload(own, sources)

    monkeypatch.setattr(HostEnds, "upload", meet)


@pytest.mark.usefixtures("all_join")
def test_answers_are_the_cpus_in_fewer_submissions(
    branches: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    xs = [{"x": rng.standard_normal((4, 16)).astype("f")} for _ in range(THREADS)]
    wants = [on_the_cpu(branches, x) for x in xs]
    session, steady = joined(branches, xs[0])
    stats = session.state.gpu.stats
    before = stats.submits
    first_ones_meet(monkeypatch)

    def some(k: int) -> None:
        for _ in range(RUNS):
            assert_close(session.run(None, xs[k]), wants[k])

    together(some)
    assert stats.submits - before <= THREADS * RUNS - (joined_runs.MAX_RUNS - 1)
    assert steady.contention.coalescer.inside == steady.contention.coalescer.under_way == 0
    assert len(steady.contention.coalescer.free) == joined_runs.MAX_GROUPS
    assert session.stats()["fallbacks"] == 0


def test_runs_that_went_by_themselves_for_long_take_no_memory_from_groups(
    branches: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans that were not used lately give their memory back, if it is large. That of groups is recorded, and stays."""
    xs = [{"x": rng.standard_normal((4, 16)).astype("f")} for _ in range(THREADS)]
    wants = [on_the_cpu(branches, x) for x in xs]
    session, _ = joined(branches, xs[0])
    monkeypatch.setattr(prepared, "SHRINK_NBYTES", 1)
    for _ in range(3 * RECENT_RUNS):
        session.run(None, xs[0])
    monkeypatch.setattr(joined_runs, "CONTENDED", 1)
    for _ in range(3):
        together(lambda k: assert_close(session.run(None, xs[k]), wants[k]))
    assert not session.state.events


@pytest.mark.usefixtures("all_join")
def test_an_index_out_of_range_is_one_runs_own(picks: bytes) -> None:
    x = np.linspace(-1, 1, 4, dtype="f")
    good, bad = ({"i": np.array(i), "x": x} for i in ([1, 2, 9], [1, 2, 10]))
    session, _ = joined(picks, good, strict="1")
    want = on_the_cpu(picks, good)

    def some(k: int) -> int:
        failed = 0
        for _ in range(RUNS):
            try:
                assert_close(session.run(None, bad if k == 3 else good), want)
            except IndexOutOfRangeError:
                failed += 1
        return failed

    assert together(some) == [RUNS if k == 3 else 0 for k in range(THREADS)]


@pytest.mark.parametrize("kind", ["lost", "oom", "hang"])
def test_after_a_fault_each_run_is_answered_by_the_cpu(kind: str, branches: bytes, rng: np.random.Generator) -> None:
    xs = [{"x": rng.standard_normal((4, 16)).astype("f")} for _ in range(THREADS)]
    wants = [on_the_cpu(branches, x) for x in xs]
    session, _ = joined(branches, xs[0], faults=f"{kind}@{WARM + 5};seed={len(kind) + 40}")

    def some(k: int) -> None:
        for _ in range(RUNS):
            assert_close(session.run(None, xs[k]), wants[k])

    together(some)
    assert session.stats()["fallbacks"] >= 1


def test_memory_is_flat_and_given_back(
    branches: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = {"x": rng.standard_normal((4, 16)).astype("f")}
    session, steady = joined(branches, x)
    gpu, objects = session.state.gpu, []
    with monkeypatch.context() as patch:
        # all join: how many go by themselves at a time is chance, and so is what those keep
        patch.setattr(joined_runs, "CONTENDED", 1)
        for _ in range(3):
            together(lambda k: [session.run(None, x) for _ in range(RUNS)])
            objects.append((gpu.stats.allocated_nbytes, gpu.stats.pooled_nbytes))
    assert objects[1] == objects[2]
    monkeypatch.setattr(joined_runs, "POOL_AGE_S", -1.0)
    session.run(None, x)
    assert steady.contention.coalescer is None
    gpu.trim()
    assert gpu.stats.allocated_nbytes < objects[2][0]
    assert_close(session.run(None, x), on_the_cpu(branches, x))


def calls_of(run: Callable[[], Any]) -> Counter[str]:
    """Functions of this package that a call runs in this thread, and functions of wgpu-native, but for what a wait
    takes."""
    made = Counter[str]()

    def note(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and "ort_gpu_ep" in code.co_filename and not code.co_filename.endswith("waiting.py"):
            made[code.co_name] += 1
        elif event == "c_call" and str(getattr(argument, "__name__", "")).startswith("wgpu"):
            made[argument.__name__] += 1

    gc.collect()  # what it would free meanwhile is not the call's
    gc.disable()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        gc.enable()
    for waits in ("finished", "status", "ends_in_time", "hang_timeout_s", "current", "wgpuDevicePoll"):
        made.pop(waits, None)  # as often as it takes
    return made


def fewest_calls_of(run: Callable[[], Any]) -> Counter[str]:
    """Of five runs the one with the fewest: on a busy machine one of them may also free what was idle for long."""
    return min((calls_of(run) for _ in range(5)), key=Counter.total)


def test_a_run_alone_makes_the_same_calls(branches: bytes, rng: np.random.Generator) -> None:
    x = {"x": rng.standard_normal((4, 16)).astype("f")}
    plain = gpu_session(branches, join_runs="0")
    for _ in range(WARM):
        plain.run(None, x)
    session, steady = joined(branches, x)
    want = fewest_calls_of(lambda: plain.run(None, x))
    assert want["_run"] == 1
    assert fewest_calls_of(lambda: session.run(None, x)) == want + Counter(("run", "_alone", "forget", "forget"))

    def first() -> None:
        steady.contention = None  # nobody else has been there yet
        session.run(None, x)

    assert fewest_calls_of(first) == want


def test_a_closed_plan_lets_nobody_wait(branches: bytes, rng: np.random.Generator) -> None:
    x = {"x": rng.standard_normal((4, 16)).astype("f")}
    _session, steady = joined(branches, x)
    running = steady.contention.coalescer
    runs = runs_of(running, joined_runs.MAX_RUNS)
    found = list[Any]()
    waiting = threading.Thread(target=lambda: found.append(running.join()))  # all runs are taken
    waiting.start()
    steady.close()
    waiting.join(300)
    assert found == [None]
    assert runs[0].submit() is None
    for run in runs:
        run.leave(True)
    assert running._all == 0


class Told:
    """Departures by hand."""

    def __init__(self) -> None:
        self.submitted: list[int] = []
        self.error: Exception | None = None

    def submit(self, group: Any) -> int | None:
        if self.error is not None:
            raise self.error
        self.submitted.append(group.taken)
        return len(self.submitted)


class Fake:
    """A group without a GPU."""

    def __init__(self) -> None:
        self.runs = [RunOf(self) for _ in range(joined_runs.MAX_RUNS)]
        self.broken, self.freed = False, False
        self.reset()

    def reset(self) -> None:
        self.taken = self.ready = self.left = 0
        self.submission: int | None = None
        self.error: Exception | None = None
        self.closed = self.done = False
        for run in self.runs:
            run.ready = False

    def free(self) -> None:
        self.freed = True


class RunOf:
    def __init__(self, group: Fake) -> None:
        self.group, self.ready = group, False


def runs_of(running: Any, count: int) -> list[Any]:
    return [running.join() for _ in range(count)]


def submit(running: Any, runs: list[Any]) -> list[Any]:
    """All of them are ready; what each is told."""
    with ThreadPoolExecutor(len(runs)) as pool:
        return list(pool.map(running.submitted, runs))


def test_a_group_departs_when_all_on_board_are_ready() -> None:
    told = Told()
    cars: Any = [Fake(), Fake()]
    running = joined_runs.Coalescer(told.submit, cars)
    assert submit(running, runs_of(running, 3)) == [1, 1, 1]
    assert told.submitted == [3]
    assert submit(running, runs_of(running, 3)) == [2, 2, 2]  # as many as half of those who ride
    assert told.submitted == [3, 3]
    assert running.under_way == joined_runs.MAX_GROUPS


def test_a_run_that_fails_before_the_departure_holds_nobody_up() -> None:
    told = Told()
    cars: Any = [Fake(), Fake()]
    running = joined_runs.Coalescer(told.submit, cars)
    one, other = runs_of(running, 2)
    running.leave(one, False)
    assert submit(running, [other]) == [1]
    running.done(other.group)
    running.leave(other, True)
    assert other.group.freed, "its buffers are not used again"
    assert running.under_way == running.inside == 0
    assert submit(running, runs_of(running, 1)) == [2], "there is another one"


def test_the_error_of_a_submission_is_everybodys() -> None:
    told = Told()
    told.error = joined_runs.OutOfDeviceMemoryError("no room")
    cars: Any = [Fake(), Fake()]
    running = joined_runs.Coalescer(told.submit, cars)
    runs = runs_of(running, 2)
    errors = []

    def fail(run: Any) -> None:
        with pytest.raises(joined_runs.OutOfDeviceMemoryError, match="no room") as caught:
            running.submitted(run)
        errors.append(caught.value)
        running.leave(run, False)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fail, runs))
    assert errors[0] is not errors[1]
    assert runs[0].group.freed
    assert running.under_way == 0


def test_nobody_who_waited_in_vain_keeps_the_next_from_departing() -> None:
    """All of a group's runs are given up before its results are there."""
    told = Told()
    cars: Any = [Fake(), Fake()]
    running = joined_runs.Coalescer(told.submit, cars)
    runs = runs_of(running, 2)
    submit(running, runs)
    for run in runs:
        running.leave(run, False)
    assert running.under_way == 0
    assert submit(running, runs_of(running, 1)) == [2]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("factor", "stays"), [(0.7, True), (1.2, False)])
def test_the_faster_way_stays(
    factor: float, stays: bool, branches: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = {"x": rng.standard_normal((4, 16)).astype("f")}
    session = gpu_session(branches)
    for _ in range(WARM):
        session.run(None, x)
    asked = list[Callable[[], None]]()
    monkeypatch.setattr(background.background, "add", asked.append)
    steady = steady_of(session)
    some, clock = Contention(steady.prepared, steady.filled, True), Clock()
    some.apart, some.together = Pace(0, clock), Pace(joined_runs.TRIAL, clock)

    def others(count: int, seconds: float) -> None:
        for _ in range(count):
            run = some.run(joined_runs.CONTENDED)
            clock.now += seconds
            if run is not None:
                run.leave(True)

    others(joined_runs.WINDOW, 1.0)
    assert not asked
    others(2, 1.0)
    assert len(asked) == 1
    asked[0]()
    assert some.coalescer is not None
    others(joined_runs.TRIAL + joined_runs.WINDOW + 1, factor)
    assert (some.coalescer is not None, not some.why) == (stays, stays)
    some.close()


def test_values_apart_are_written_once(branches: bytes, rng: np.random.Generator) -> None:
    """So one barrier a step serves all runs: nothing but what was written in this run is waited for."""
    x = {"x": rng.standard_normal((4, 16)).astype("f")}
    session, steady = joined(branches, x)
    plan = steady.contention.coalescer.free[0].runs[0].prepared.template.plan
    writers = Counter(
        t.place
        for s in plan.steps
        if isinstance(s, Dispatch)
        for t in s.tensors
        if t.written and t.place.kind is Kind.SLOT
    )
    parts = {
        t.place for s in plan.steps if isinstance(s, Dispatch) for t in s.tensors if t.written and t.whole is not None
    }
    assert all(count == 1 or place in parts for place, count in writers.items())
    written = set[Any]()
    for step, waits in zip(plan.steps, unsettled(plan.steps), strict=True):
        assert set(waits) <= written
        written |= {t.place for t in step.tensors if t.written} if isinstance(step, Dispatch) else set()
    assert session.stats()["fallbacks"] == 0


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no Ctrl-C of one's own here")
def test_ctrl_c_in_one_of_them(python: Callable[..., Any]) -> None:
    done = python("""
        import os, signal, threading
        import numpy as np
        import onnxruntime
        import ort_gpu_ep as ort
        from ort_gpu_ep.runtime.joined_runs import Contention, Together
        from tests.unit.graphs import model_of

        onnxruntime.set_default_logger_severity(4)
        text = "(float[8, 8] x) => (float[8, 8] y) { a = Tanh(x) m = MatMul(a, w) y = Neg(m) }"
        model = model_of(text, {"w": np.eye(8, dtype="f")}).SerializeToString()
        session = ort.InferenceSession(model, provider_options={"placement": "gpu", "join_runs": "1", "health": "off"})
        x = {"x": np.linspace(-1, 1, 64, dtype="f").reshape(8, 8)}
        for _ in range(4):
            session.run(None, x)
        steady = next(iter(session.direct.partition.forms.values())).steady
        steady.contention = Contention.of(steady.prepared, steady.filled)
        Together(steady.contention, steady.prepared, steady.filled).make()
        over, calm, counts, wrong = threading.Event(), threading.Event(), [0, 0, 0, 0], []

        def beside(k):
            while not over.is_set():
                if not np.allclose(session.run(None, x)[0], -np.tanh(x["x"]), rtol=1e-4):
                    wrong.append(k)
                counts[k] += 1
                if k == 0 and counts[0] % 3 == 0:
                    pressed.release()

        def press():
            while calm.wait() and pressed.acquire():
                calm.clear()
                os.kill(os.getpid(), signal.SIGINT)

        pressed, hits = threading.Semaphore(0), 0
        threads = [threading.Thread(target=beside, args=(k,)) for k in range(4)]
        presser = threading.Thread(target=press, daemon=True)
        [t.start() for t in (*threads, presser)]
        while hits < 6 or not min(counts):
            try:
                calm.set()          # the next one may come: this is where it is caught
                while True:
                    session.run(None, x)
            except KeyboardInterrupt:
                hits += 1
        over.set()
        [t.join() for t in threads]
        group = steady.contention.coalescer
        assert not wrong and min(counts) and (group.inside, group.under_way, len(group.free)) == (0, 0, 2), (wrong, counts)
        assert session.stats()["fallbacks"] == 0
    """)
    assert done.returncode == 0, (done.stdout, done.stderr)
