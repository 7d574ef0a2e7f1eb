"""Ctrl-C while runs are in flight, as a terminal sends it: to every process of the group.

TEST_INTERRUPTS says how many there are for each way to run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ort_gpu_ep.processes import interrupts

ROOT = Path(__file__).parents[2]
COUNT = int(os.environ.get("TEST_INTERRUPTS", "12"))

SCRIPT = """
    import gc, os, random, signal, sys, threading, time
    import numpy as np
    import onnxruntime
    import ort_gpu_ep as ort
    from tests.unit.graphs import model_of

    way, isolation, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    onnxruntime.set_default_logger_severity(4)
    rng = np.random.default_rng(1)
    text = ("(float[2, 64, 64] x) => (float[2, 64, 64] y) <float[2, 64, 64] i> "
            "{ a = Tanh(x) m = MatMul(a, w) i = com.microsoft.Inverse(m) e = Tanh(i) y = Neg(e) }")
    model = model_of(text, {"w": np.eye(64, dtype="f") * 3}).SerializeToString()
    x = {"x": np.float32(np.eye(64) + rng.normal(size=(2, 64, 64)) / 99)}
    want = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, x)[0]
    options = {"placement": "gpu", "isolation": isolation, "health": "off"}
    if way == "plain":
        ort.register()
        session = onnxruntime.InferenceSession(model, providers=[(ort.EP_NAME, options), "CPUExecutionProvider"])
    elif way == "auto":
        session = ort.InferenceSession(model, provider_options={**options, "placement": "auto", "adapter": "0", "load": "off"})
        session.io_binding()            # the candidate with our provider stays
    else:
        session = ort.InferenceSession(model, provider_options=options)

    def right():
        np.testing.assert_allclose(session.run(None, x)[0], want, rtol=1e-3, atol=1e-3)

    right()
    calm, over, hits, sent = threading.Event(), False, 0, 0

    def press():
        pause = random.Random(f"{way} {isolation}")
        while not over:
            if calm.wait(1):
                time.sleep(pause.uniform(0.0, 0.03))
                calm.clear()
                os.killpg(0, signal.SIGINT)

    def beside():
        while not over:
            right()

    threads = [threading.Thread(target=f, daemon=True) for f in (press, beside)]
    [t.start() for t in threads]
    while hits < count:
        try:
            calm.set()
            again = time.monotonic() + 5
            while True:
                session.run(None, x)
                if time.monotonic() > again:
                    again += 5
                    calm.set()          # Python has dropped it (AWAY)
        except KeyboardInterrupt:
            hits += 1
        right()
    over = True
    [t.join() for t in threads]
    right()
    fallbacks = session.stats()["fallbacks"] if way != "plain" else 0
    print(f"{hits} interrupts, {fallbacks} fallbacks", flush=True)
"""

AWAY = re.compile(r"Exception ignored in: .*\nTraceback \(most recent call last\):\n(?:  .*\n)+KeyboardInterrupt: ?\n")
"""What Python itself says where the signal comes while it calls back of a weak reference or `__del__`, its import
system's among them: nobody gets the exception, and whoever pressed the key does so again, as these programs do."""


def run_script(script: str, *arguments: object, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """In a process group of its own, which is what a shell gives a command."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("way", ["gpu", "auto", "plain"])
def test_each_is_a_keyboard_interrupt_and_the_next_run_is_right(way: str, isolation: str) -> None:
    done = run_script(SCRIPT, way, isolation, COUNT, timeout_s=300 + 5 * COUNT)
    assert (done.returncode, AWAY.sub("", done.stderr)[-3000:]) == (0, "")
    assert done.stdout.strip() == f"{COUNT} interrupts, 0 fallbacks"


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_while_sessions_are_created(isolation: str) -> None:
    """A worker that is only starting must not take the terminal's signal for its own."""
    script = """
        import os, signal, sys, threading, time
        import numpy as np
        import onnxruntime
        import ort_gpu_ep as ort
        from tests.unit.graphs import model_of

        onnxruntime.set_default_logger_severity(4)
        model = model_of("(float[64] x) => (float[64] y) { y = Tanh(x) }").SerializeToString()
        options = {"placement": "gpu", "isolation": sys.argv[1], "health": "off"}
        x = {"x": np.linspace(-2, 2, 64, dtype="f")}
        hits = 0
        for i in range(int(sys.argv[2])):
            try:
                while True:
                    threading.Timer(0.05 + 0.02 * i, os.killpg, (0, signal.SIGINT)).start()
                    end = time.monotonic() + 5
                    while time.monotonic() < end:
                        session = ort.InferenceSession(model, provider_options=options)
                        del session
            except KeyboardInterrupt:
                hits += 1
        session = ort.InferenceSession(model, provider_options=options)
        np.testing.assert_allclose(session.run(None, x)[0], np.tanh(x["x"]), rtol=1e-5)
        print(hits, session.stats()["fallbacks"], session.explain().count("gpu"), *session.explain().events)
    """
    done = run_script(script, isolation, 6)
    assert (done.returncode, AWAY.sub("", done.stderr)[-3000:]) == (0, "")
    assert done.stdout.split() == ["6", "0", "1"]


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_it_is_kept_until_the_call_is_over() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):
        interrupts.uninterrupted(lambda: (interrupt(), steps.append("to the end")))
    assert steps == ["to the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert interrupts.uninterrupted(lambda: "and the next one") == "and the next one"


def test_an_error_does_not_hide_it() -> None:
    def fail() -> None:
        interrupt()
        raise ValueError("also")

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupts.uninterrupted(fail)
    assert isinstance(caught.value.__context__, ValueError)


def test_a_handler_of_the_users_own_gets_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        assert interrupts.uninterrupted(lambda: interrupts.uninterrupted(interrupt)) is None
        assert seen == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupts.uninterrupted(interrupt)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_callback_gives_its_result_and_sends_it_anew() -> None:
    results: list[Any] = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  it comes at some later bytecode
        results.append(interrupts.callback(lambda: (interrupt(), "done")[1])())
        end = time.monotonic() + 10
        while time.monotonic() < end:
            time.sleep(5)
    assert results == ["done"]


def test_another_thread_has_nothing_to_keep() -> None:
    held: list[Any] = []
    thread = threading.Thread(target=lambda: held.append(interrupts.hold()))
    thread.start()
    thread.join()
    assert held == [None]
