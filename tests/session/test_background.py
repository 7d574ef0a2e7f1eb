"""placement=auto: the CPU answers at once; what is faster is found out beside the runs, and nothing of that gets in
their way."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil
import pytest

import ort_gpu_ep as ort
from ort_gpu_ep import private
from ort_gpu_ep.config import OPTIONS
from ort_gpu_ep.errors import AdapterError, ConfigError
from ort_gpu_ep.health import helper
from ort_gpu_ep.placement.rhythm import BUSY
from ort_gpu_ep.plugin import ort_sessions
from ort_gpu_ep.private import OrtSession
from ort_gpu_ep.session import starting
from ort_gpu_ep.session.opening import SHARE, threads_beside_search
from ort_gpu_ep.session.scout import DONE
from tests.daily import part
from tests.session.conftest import NODES, assert_close, on_the_cpu, with_rows
from tests.session.drills import ENDS, condemned, end_of_a_program
from tests.unit.graphs import model_of

Array = np.ndarray[Any, Any]
CPU = "CPUExecutionProvider"
ROOT = Path(__file__).parents[2]
LONG_S = 300.0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by these tests: adapters, probes and the device profile are found out once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def begin(cache: Path) -> Callable[..., Any]:
    def begun(model: Any, settings: Any = None, **options: object) -> Any:
        given = {"adapter": "0", "cache_dir": str(cache), "load": "off", **options}
        return ort.InferenceSession(model, settings, provider_options=given)

    return begun


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> list[helper.Worker]:
    """The process that finds out never does. Gives those that were started."""
    started = list[helper.Worker]()

    class Stuck(helper.Worker):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            started.append(self)

        def line(self, timeout_s: float) -> dict[str, Any] | None:
            time.sleep(min(timeout_s, 0.01))
            raise TimeoutError

    monkeypatch.setattr(starting, "Worker", Stuck)
    monkeypatch.setattr(starting, "is_decided", lambda *given: False)
    return started


def gone(worker: helper.Worker) -> bool:
    return worker._process.poll() is not None


def until(condition: Callable[[], bool], seconds: float = LONG_S) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_the_cpu_answers_until_the_gpu_has_won(
    begin: Any, slow_on_one_thread: tuple[bytes, Any, dict[str, Array]]
) -> None:
    """Right results all the way, whoever wins on a machine that may be busy; a second session knows it from the
    first."""
    model, settings, feeds = slow_on_one_thread
    want = on_the_cpu(model, feeds)
    session = begin(model, settings)
    assert session.get_providers() == [CPU]
    assert not session.ready()
    assert session.stats()["waits_for"] == starting.Stage.FIRST_RUN.waits_for
    assert_close(session.run(None, feeds), want)
    assert session.stats()["runs_by_candidate"] == {"cpu": 1}
    assert "the CPU answers; the session waits for" in str(session.explain())
    runs = 1
    while not session.ready():
        assert_close(session.run(None, feeds), want)
        runs += 1
    assert_close(session.run(None, feeds), want)
    answered = session.stats()["runs_by_candidate"]
    assert sum(answered.values()) == runs + 1
    ((shapes, decision),) = session.explain().decisions
    assert shapes == "every run"
    # the latter for runs with pauses, as a busy machine makes them
    assert decision.source in ("cached", "predicted")
    learnt = session.runner._decisions.found
    assert {name for name, kind, *_ in learnt.rows if kind == BUSY} == {"cpu", "gpu"}
    assert session.stays_on_cpu == ""
    again = begin(model, settings)
    again.run(None, feeds)
    assert again.wait_ready(LONG_S)
    assert again.explain().decisions[0][1].candidate == decision.candidate


@pytest.fixture
def gpu_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process finds out by itself, and the GPU is plainly faster."""
    monkeypatch.setattr(starting, "is_decided", lambda *given: True)
    monkeypatch.setattr(
        "ort_gpu_ep.placement.proof.race", lambda runs, *given, **named: {n: 2.0 if n == "cpu" else 1e-6 for n in runs}
    )
    monkeypatch.setattr("ort_gpu_ep.placement.chooser.FLOOR", 0.0)
    monkeypatch.setattr("ort_gpu_ep.placement.chooser._timed", lambda candidate, feeds: 2.0)


def test_a_decided_gpu_takes_over_between_two_runs(
    begin: Any, mlp: bytes, x: Array, monkeypatch: pytest.MonkeyPatch, endless: list[helper.Worker], gpu_wins: None
) -> None:
    """In a program with threads; none of them sees a wrong answer or an error. What was decided for the model needs no
    other process."""
    from ort_gpu_ep.placement.runner import Runner

    session, want, wrong = begin(mlp), on_the_cpu(mlp, {"x": x}), list[BaseException]()
    over, warmed, warm = threading.Event(), list[str](), Runner.warm

    def watched(self: Any, feeds: Any) -> None:
        warm(self, feeds)
        warmed.append(self.front.name)

    monkeypatch.setattr(Runner, "warm", watched)

    def work() -> None:
        try:
            while not over.is_set():
                assert_close(session.run(None, {"x": x}), want)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert session.wait_ready(LONG_S)
    assert until(lambda: session.stats()["runs_by_candidate"].get("gpu", 0) > 20)
    over.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert warmed == ["gpu"]
    assert session.get_providers() == [ort.EP_NAME, CPU]
    assert session.explain().count("gpu") == NODES
    assert session.stats()["runs_by_candidate"]["cpu"] >= 1
    assert endless == []


def test_nobody_holds_the_session_that_answered_first(begin: Any, mlp: bytes, x: Array, gpu_wins: None) -> None:
    """Its weights would lie in memory as long as the session that has moved to the GPU. A run that was about to begin
    on it is answered."""
    session, want = begin(with_rows(mlp, len(x))), on_the_cpu(mlp, {"x": x})
    start, first = session._start, weakref.ref(private.behind(session))
    assert_close(session.run(None, {"x": x}), want)
    assert session.wait_ready(LONG_S)
    assert session.get_providers() == [ort.EP_NAME, CPU]
    assert until(lambda: first() is None)
    before = session.stats()["runs"]
    assert_close(start.run(None, {"x": x}, None), want)
    assert session.stats()["runs"] == before + 1


def test_nobody_holds_a_session_whose_providers_were_changed(begin: Any, mlp: bytes, x: Array) -> None:
    """Before its first run, and so before anything was found out beside it."""
    session = begin(mlp)
    first = weakref.ref(private.behind(session))
    session.set_providers([CPU])
    gc.collect()
    assert first() is None
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


def test_a_gpu_that_is_wrong_never_takes_over(
    begin: Any, mlp: bytes, x: Array, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Decided earlier, and wrong now: a run beside those of the session is compared with the CPU before any of them
    goes there."""
    from ort_gpu_ep.placement.decisions import Learnt
    from ort_gpu_ep.placement.estimate import Size
    from ort_gpu_ep.placement.runner import Decisions

    size = Size((("x", x.shape),), float(x.size))
    learnt = Learnt("gpu", (("cpu", "busy", size, 1.0, 9), ("gpu", "busy", size, 1e-6, 9)))
    begun = Decisions.__init__

    def told(self: Decisions, *given: Any) -> None:
        begun(self, *given)
        self.found = learnt

    monkeypatch.setattr(Decisions, "__init__", told)
    monkeypatch.setattr(starting, "is_decided", lambda *given: True)
    session = begin(mlp, faults="corrupt@1;seed=9")
    session.run(None, {"x": x})
    assert session.wait_ready(LONG_S)
    assert "the candidate 'gpu' is left out, it fails: WrongResultError" in caplog.text
    for _ in range(3):
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert session.stats()["runs_by_candidate"] == {"cpu": 4}


def test_wrong_options_raise_at_once(begin: Any, mlp: bytes, tmp_path: Path) -> None:
    (tmp_path / "quirks.json").write_text("{")
    for options, error in (
        ({"adaptr": "0"}, ConfigError),
        ({"verify": "x"}, ConfigError),
        ({"adapter": "no such GPU"}, AdapterError),
        ({"quirks": str(tmp_path / "quirks.json")}, ConfigError),
    ):
        with pytest.raises(error):
            begin(mlp, **options)


def test_strict_waits_as_ever(begin: Any, mlp: bytes) -> None:
    session = begin(mlp, strict=1)
    assert session.ready()
    assert session.runner is not None


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> int:
    """A machine of 16 cores without a second thread each."""
    _has_cores(monkeypatch, 16, 16)
    return 16


def _has_cores(monkeypatch: pytest.MonkeyPatch, physical: int, logical: int) -> None:
    monkeypatch.setattr("ort_gpu_ep.processes.known.physical_cores", lambda: physical)
    monkeypatch.setattr("os.cpu_count", lambda: logical)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads of the sessions of the front, in the order in which they are made."""
    threads, init = list[int](), OrtSession.__init__

    def noted(self: Any, model: Any, settings: Any = None, *more: Any, **named: Any) -> None:
        if more[:1] == ([CPU],):
            threads.append(settings.intra_op_num_threads if settings is not None else 0)
        init(self, model, settings, *more, **named)

    monkeypatch.setattr(OrtSession, "__init__", noted)
    monkeypatch.setattr(ort_sessions, "_init", noted)
    return threads


def test_cores_are_left_to_the_search(begin: Any, mlp: bytes, x: Array, cores: int, made: list[int]) -> None:
    """Until it ends; the program's own settings are as they were."""
    settings = onnxruntime.SessionOptions()
    session = begin(mlp, settings)
    assert (made, settings.intra_op_num_threads) == ([cores - cores // SHARE], 0)
    want = session.run(None, {"x": x})[0]
    session.wait_ready()
    assert session.explain().decisions[-1][1].candidate == "cpu"  # an empty run takes lavapipe longer
    assert made[-1] == 0
    assert_close(session.run(None, {"x": x})[0], want)


def test_cores_are_left_where_no_gpu_is_found(
    begin: Any,
    mlp: bytes,
    x: Array,
    cores: int,
    made: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starting, "is_decided", lambda *given: True)
    monkeypatch.setattr(starting, "look_for_gpu", lambda *given: (True, None, ""))
    session = begin(mlp)
    start, before = session._start, weakref.ref(private.behind(session))
    session.run(None, {"x": x})
    session.wait_ready()
    assert made == [cores - cores // SHARE, 0]
    assert until(lambda: before() is None)  # two copies of the weights otherwise
    assert_close(start.run(None, {"x": x}, None), on_the_cpu(mlp, {"x": x}))
    assert_close(session.run(None, {"x": x})[0], on_the_cpu(mlp, {"x": x})[0])


def test_what_opening_took_is_given_back_before_more_is_taken(
    begin: Any, mlp: bytes, x: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most memory at once is less by that."""
    given, looked = list[int](), list[list[int]]()
    monkeypatch.setattr(starting, "is_decided", lambda *given: True)
    monkeypatch.setattr(starting, "give_back", given.append)
    monkeypatch.setattr(starting, "look_for_gpu", lambda *arguments: looked.append(list(given)) or (True, None, ""))  # type: ignore[func-returns-value]
    session = begin(mlp)
    session.run(None, {"x": x})
    session.wait_ready()
    assert looked == [[len(mlp)]]


def test_sessions_of_the_same_settings_on_two_threads(
    begin: Any, mlp: bytes, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is opened while the first one has changed them: it must not take that for what the program asked
    for."""
    settings, init, sessions, making = onnxruntime.SessionOptions(), OrtSession.__init__, list[Any](), threading.Event()

    def slow(self: Any, *given: Any, **named: Any) -> None:
        making.set()
        time.sleep(0.3)
        init(self, *given, **named)

    monkeypatch.setattr(OrtSession, "__init__", slow)
    opening = [threading.Thread(target=lambda: sessions.append(begin(mlp, settings))) for _ in range(2)]
    for thread in opening:
        thread.start()
        making.wait()
    for thread in opening:
        thread.join()
    assert [session._start._threads for session in sessions] == [cores - cores // SHARE] * 2
    assert settings.intra_op_num_threads == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("intra_op_num_threads", 3),
        ("use_per_session_threads", False),
        ("execution_mode", onnxruntime.ExecutionMode.ORT_PARALLEL),
    ],
)
def test_threads_that_a_program_asks_for_stay(cores: int, name: str, value: Any) -> None:
    settings = onnxruntime.SessionOptions()
    assert threads_beside_search(settings) == threads_beside_search(None) == cores - cores // SHARE
    setattr(settings, name, value)
    assert threads_beside_search(settings) == 0


@pytest.mark.parametrize(("physical", "logical"), [(4, 4), (16, 32)])
def test_no_core_is_left_where_that_costs_much_or_there_is_room(
    physical: int, logical: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _has_cores(monkeypatch, physical, logical)
    assert threads_beside_search(None) == 0
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    _has_cores(monkeypatch, 16, 16)
    assert threads_beside_search(settings) == 0


def test_a_session_that_is_gone_ends_its_search(begin: Any, mlp: bytes, x: Array, endless: list[helper.Worker]) -> None:
    threads = threading.active_count()
    session = begin(mlp)
    session.run(None, {"x": x})
    assert until(lambda: bool(endless))
    seen = weakref.ref(session)
    del session
    gc.collect()
    assert seen() is None
    assert until(lambda: gone(endless[0]))
    assert until(lambda: threading.active_count() <= threads)


def test_many_sessions_leave_nothing_behind(begin: Any, mlp: bytes, x: Array, endless: list[helper.Worker]) -> None:
    process, session = psutil.Process(), begin(mlp)
    session.run(None, {"x": x})
    del session
    gc.collect()
    threads, files = threading.active_count(), process.num_fds()
    for _ in range(50):
        begin(mlp).run(None, {"x": x})
    gc.collect()
    assert until(lambda: all(map(gone, endless)))
    assert until(lambda: threading.active_count() <= threads and process.num_fds() <= files + 2)


def test_io_binding_does_not_wait_for_a_search(begin: Any, mlp: bytes, x: Array, endless: list[helper.Worker]) -> None:
    session, want = begin(mlp), on_the_cpu(mlp, {"x": x})
    session.run(None, {"x": x})
    assert until(lambda: bool(endless))
    binding = session.io_binding()
    assert session.ready()
    assert gone(endless[0])
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    binding.bind_output("z", "gpu")
    session.run_with_iobinding(binding)
    assert_close(binding.copy_outputs_to_cpu(), want)
    assert_close(session.run(None, {"x": x}), want)


def test_ort_values_are_answered_meanwhile(begin: Any, mlp: bytes, x: Array, endless: list[helper.Worker]) -> None:
    import onnxruntime

    session, want = begin(mlp), on_the_cpu(mlp, {"x": x})
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    assert_close([v.numpy() for v in session.run_with_ort_values(None, {"x": value})], want)
    assert_close(session.run(None, {"x": value}), want)
    assert session.stats()["runs_by_candidate"] == {"cpu": 2}
    assert not session.ready()
    session.set_providers([CPU])
    assert session.ready()
    assert until(lambda: all(map(gone, endless)))


def test_a_file_that_is_deleted_meanwhile(begin: Any, mlp: bytes, x: Array, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(mlp)
    session = begin(str(path))
    path.unlink()
    session.run(None, {"x": x})
    assert session.wait_ready(LONG_S)
    assert session.stays_on_cpu == ""
    assert session.runner is not None
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


def test_what_another_process_can_not_have(begin: Any, mlp: bytes, x: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that are no arrays of numbers, say: this process finds out then, beside the runs all the same."""
    from ort_gpu_ep.placement.chooser import Chooser

    monkeypatch.setattr(starting.Start, "_job", lambda *given: None)
    threads, prepare = list[str](), Chooser._prepare

    def prepared(self: Chooser, *given: Any) -> None:
        threads.append(threading.current_thread().name)
        prepare(self, *given)

    monkeypatch.setattr(Chooser, "_prepare", prepared)
    session = begin(mlp, checked_shaders="1")
    session.run(None, {"x": x})
    assert session.wait_ready(LONG_S)
    assert threads == ["ort_gpu_ep-background"]
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


def test_inputs_of_every_type(begin: Any) -> None:
    """What is no number can't be carried to another process; numbers of any width can."""
    text = (
        "(float16[N, 2] h, bool[N] b, string[N] s) => (float16[N, 2] y, bool[N] n, string[N] t) { y = Neg(h) n = "
        "Not(b) t = Identity(s) }"
    )
    model = model_of(text).SerializeToString()
    given = {
        "h": np.ones((3, 2), np.float16),
        "b": np.array([True, False, True]),
        "s": np.array(["a", "b", "c"], object),
    }
    session = begin(model)
    start = session._start
    session.run(None, given)
    assert start._job(starting._copied(given)) is None
    assert start._job({n: v for n, v in given.items() if n != "s"}) is not None
    assert session.wait_ready(LONG_S)
    assert session.stays_on_cpu == ""
    narrow = begin(
        model_of(
            "(float16[N, 2] h, bool[N] b) => (float16[N, 2] y, bool[N] n) { y = Neg(h) n = Not(b) }"
        ).SerializeToString()
    )
    for rows in (0, 2):
        narrow.run(None, {"h": np.ones((rows, 2), np.float16), "b": np.ones(rows, bool)})
    assert narrow.wait_ready(LONG_S)
    assert narrow.stays_on_cpu == ""
    assert narrow.runner is not None


def test_with_a_worker_process(begin: Any, mlp: bytes, x: Array) -> None:
    session = begin(mlp, isolation="process")
    session.run(None, {"x": x})
    assert session.wait_ready(LONG_S)
    assert session.stays_on_cpu == ""
    assert session.runner is not None
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))


# ---- the ends of processes


def test_both_threads_load_modules(mlp: bytes, tmp_path: Path) -> None:
    """The program asks what makes plans while the other thread loads its device: neither meets half a module."""
    (tmp_path / "model.onnx").write_bytes(mlp)
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
        import sys, time
        import numpy as np
        import ort_gpu_ep as ort

        options = {"adapter": "0", "cache_dir": sys.argv[2], "load": "off"}
        session = ort.InferenceSession(sys.argv[1], provider_options=options)
        session.run(None, {"x": np.ones((5, 16), "f")})
        time.sleep(float(sys.argv[3]))
        other = ort.InferenceSession(sys.argv[1], provider_options={**options, "placement": "gpu"})
        other.run(None, {"x": np.ones((5, 16), "f")})
        print(session.explain().reports is not None, other.explain().count("gpu"), session.wait_ready(300.0), repr(session.stays_on_cpu))
        """)
    )
    for pause_s in (0.0, 0.02, 0.05, 0.1, 0.2):
        command = [
            sys.executable,
            str(tmp_path / "program.py"),
            str(tmp_path / "model.onnx"),
            str(tmp_path / "cache"),
            str(pause_s),
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert (done.returncode, done.stdout) == (0, f"True {NODES} True ''\n"), done.stderr


@pytest.mark.parametrize(("end", "until_s"), part(list(ENDS), [0.0, 0.5, 1.5], of_two=1))
def test_a_program_that_ends_meanwhile(end: str, until_s: float, mlp: bytes, tmp_path: Path) -> None:
    """As it would end without us; nothing is left behind, and no verdict is the worse for it."""
    found, _ = end_of_a_program(end, until_s, tmp_path, tmp_path / "cache", mlp)
    assert not found
    assert end == "a driver that crashes" or not condemned(tmp_path / "cache")


def priority_here() -> str:
    """Of this terminal's processes together; empty where the system has no such priority."""
    file = Path("/proc/self/autogroup")
    return file.read_text() if file.exists() else ""


def test_the_process_that_finds_out_has_nobody_to_tell(mlp: bytes, x: Array, tmp_path: Path) -> None:
    """Its next line meets a closed pipe before its input ends: it goes, and its folder with it. What else runs in this
    terminal keeps its priority: without a session of its own the process has this one's autogroup.
    """
    folder, priority = tmp_path / "scout", priority_here()
    options = {o.name: str(int(o.default) if isinstance(o.default, bool) else o.default) for o in OPTIONS}
    options |= {"adapter": "0", "cache_dir": str(tmp_path / "cache"), "load": "off"}
    job = {
        "options": options,
        "settings": {},
        "feeds": [["x", x.dtype.str, x.shape]],
        "model": "",
        "nbytes": len(mlp),
        "folder": str(folder),
    }
    command = [sys.executable, "-m", "ort_gpu_ep.session.scout"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as scout:
        assert scout.stdin is not None
        assert scout.stdout is not None
        assert scout.stderr is not None
        scout.stdout.close()
        scout.stdin.write(json.dumps(job).encode() + b"\n" + mlp + x.tobytes())
        scout.stdin.flush()
        assert scout.wait(LONG_S) == DONE, scout.stderr.read()
    assert priority_here() == priority
    assert not folder.exists()
    assert (tmp_path / "cache").exists()


def test_the_process_that_finds_out_ends_whatever_a_step_of_its_end_raises(tmp_path: Path) -> None:
    """A thread that failed there kept the other one waiting, which held the lock of that cache: nobody found out
    anything any more."""
    (tmp_path / "folder").mkdir()
    code = f"""
import sys, tempfile, threading, types
from ort_gpu_ep.session import scout
sys.modules["ort_gpu_ep.health.helper"] = types.ModuleType("half of it")
sys.modules["ort_gpu_ep.health.markers"] = types.SimpleNamespace(remove_mine=lambda: print("markers", flush=True))
tempfile.tempdir = {str(tmp_path / "folder")!r}
first = threading.Thread(target=scout._end)
first.start()
first.join()
scout._end()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_S, cwd=ROOT)
    assert (done.returncode, done.stdout) == (DONE, "markers\n"), done.stderr
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("how", "said"), [(signal.SIGKILL, "was ended"), (signal.SIGSEGV, "ended with signal SIGSEGV")]
)
def test_a_process_that_finds_out_and_dies(
    how: int, said: str, begin: Any, mlp: bytes, x: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that crashes takes that process along; the CPU's answers go on, and a kill is no driver's fault."""
    started = list[helper.Worker]()
    real = helper.Worker.line

    class Watched(helper.Worker):
        def line(self, timeout_s: float) -> dict[str, Any] | None:
            if not started:
                started.append(self)
                os.kill(self.pid, how)
            return real(self, timeout_s)

    monkeypatch.setattr(starting, "Worker", Watched)
    session = begin(mlp, precision="f16")
    session.run(None, {"x": x})
    assert session.wait_ready(LONG_S)
    assert said in session.stays_on_cpu
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert session.stats()["fallbacks"] == 0
    assert started
