"""Sizes that come again and again get a plan of their own, compiled beside the runs: the same answers, and nothing for
a run to wait for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.device import background, pipelines
from ort_gpu_ep.errors import ShaderError
from ort_gpu_ep.runtime import better_plans, context, prepared
from ort_gpu_ep.runtime.better_plans import MAX_SPECIALIZED
from tests.patience import PATIENCE_S
from tests.session.conftest import assert_close, gpu_session, on_the_cpu
from tests.session.test_content import feeds as content_feeds
from tests.session.test_content import sliced
from tests.session.test_direct import feeds_of, many  # noqa: F401  (a fixture)

AFTER = 4


class ByHand:
    """What waits is done when a test says so, on its own thread."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def add(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def work(self) -> int:
        """Does all of it; how much it was."""
        done = 0
        while self.waiting:
            self.waiting.pop(0)()
            done += 1
        return done


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> ByHand:
    made = ByHand()
    monkeypatch.setattr(background, "background", made)
    monkeypatch.setattr(prepared, "OFTEN", AFTER)
    return made


def opened(model: bytes, **options: str) -> Any:
    return gpu_session(model, strict="1", **options)


def program_of(session: Any) -> Any:
    return session.state.partitions[0].program


def run(session: Any, model: bytes, feeds: dict[str, Any], times: int = AFTER) -> None:
    want = on_the_cpu(model, feeds)
    for _ in range(times):
        assert_close(session.run(None, feeds), want)


def test_the_run_after_uses_it_and_compiles_nothing(mlp: bytes, x: np.ndarray, hand: ByHand) -> None:
    session, x = opened(mlp), np.resize(x, (13, 16))  # no other test of the process has compiled for these
    run(session, mlp, {"x": x}, AFTER - 1)
    assert not hand.waiting
    run(session, mlp, {"x": x}, 3)
    assert len(hand.waiting) == 1, "asked for once"
    gpu, program = session.state.gpu, program_of(session)
    (general,) = program.compiled.general
    made = gpu.compiled
    assert hand.work() == 1
    assert gpu.compiled > made
    made = gpu.compiled
    run(session, mlp, {"x": x}, 6)
    assert gpu.compiled == made
    assert session.stats()["specialized"] == 1
    assert not program.compiled.runs(general).steadies, "what it kept for these sizes is freed"
    (special,) = program.compiled.specialized
    assert not special.template.varies
    assert next(iter(special._shapes.values())).runs >= 6
    assert not hand.waiting, "such a plan does not ask for another one"


def test_other_sizes_stay_with_the_general_plan(mlp: bytes, x: np.ndarray, hand: ByHand) -> None:
    session = opened(mlp)
    run(session, mlp, {"x": x})
    hand.work()
    made = session.state.gpu.compiled
    for rows in (3, 5, 7, 5, 3):
        run(session, mlp, {"x": x[:1].repeat(rows, 0)}, 1)
    assert session.state.gpu.compiled == made
    assert program_of(session).planned == 1


def test_explain_tells_of_it(mlp: bytes, x: np.ndarray, hand: ByHand) -> None:
    session = opened(mlp)
    run(session, mlp, {"x": x})
    assert "constants" not in str(session.explain())
    hand.work()
    shown = session.explain()
    assert "for float32[5, 16]: sizes are constants, compiled beside the runs in" in str(shown)
    assert [item["inputs"] for item in shown.as_dict()["specialized"]] == [("float32[5, 16]",)]
    assert not shown.events


def test_off_makes_none(mlp: bytes, x: np.ndarray, hand: ByHand) -> None:
    run(opened(mlp, specialize="off"), mlp, {"x": x}, 2 * AFTER)
    assert not hand.waiting


def test_sizes_that_the_model_fixes_need_none(hand: ByHand, island: bytes) -> None:
    feeds = {"x": np.eye(4, dtype="f")[None].repeat(2, 0)}
    session = gpu_session(island)
    for _ in range(2 * AFTER):
        session.run(None, feeds)
    assert not hand.waiting


def test_what_does_not_compile_leaves_the_general_plan(
    mlp: bytes, x: np.ndarray, hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(mlp)
    run(session, mlp, {"x": x})

    def fail(*_: Any) -> Any:
        raise ShaderError("no shader today\n   1 fn main")

    monkeypatch.setattr(context, "pipeline", fail)
    hand.work()
    run(session, mlp, {"x": x}, 2 * AFTER)
    assert not hand.waiting, "not tried again"
    assert session.stats()["specialized"] == 0
    (event,) = session.explain().events
    assert event.startswith("warning in ")
    assert event.endswith("float32[5, 16]: sizes are numbers of each run: ShaderError: no shader today")


def test_what_fails_when_it_is_warmed_up_is_freed(
    mlp: bytes, x: np.ndarray, hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(mlp)
    run(session, mlp, {"x": x})

    def fail(*_: Any) -> Any:
        raise ShaderError("not at the first dispatch")

    monkeypatch.setattr(prepared.Prepared, "warm_up", fail)
    hand.work()
    assert not program_of(session).compiled.specialized
    assert "not at the first dispatch" in session.explain().events[0]
    run(session, mlp, {"x": x})


def test_more_memory_than_it_may_take(mlp: bytes, x: np.ndarray, hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(better_plans, "MAX_NBYTES", 0)
    session, x = opened(mlp), np.resize(x, (17, 16))  # no other test of the process has compiled for these
    run(session, mlp, {"x": x})
    gpu = session.state.gpu
    made = gpu.compiled
    hand.work()
    assert "of device memory besides; up to 0 MiB are given" in session.explain().events[0]
    assert gpu.compiled == made, "nothing is compiled for a plan that has no room"

    monkeypatch.setattr(gpu, "memory_limit_nbytes", 1 << 30)
    run(session, mlp, {"x": np.resize(x, (19, 16))})
    hand.work()
    assert session.stats()["specialized"] == 1


def test_the_least_recently_used_goes(mlp: bytes, x: np.ndarray, hand: ByHand) -> None:
    session = opened(mlp)
    sizes = range(2, 3 + MAX_SPECIALIZED)
    for rows in sizes:
        run(session, mlp, {"x": x[:1].repeat(rows, 0)})
        assert hand.work() == 1
    assert session.stats()["specialized"] == MAX_SPECIALIZED
    assert [s.inputs for s in program_of(session).specialized] == [(f"float32[{rows}, 16]",) for rows in sizes[1:]]
    made, planned = session.state.gpu.compiled, program_of(session).planned
    run(session, mlp, {"x": x[:1].repeat(sizes[0], 0)}, 1)
    assert (session.state.gpu.compiled, program_of(session).planned) == (made, planned), (
        "the general plan holds for the one that went"
    )


def test_sizes_by_the_thousand_don_t_keep_it(
    mlp: bytes, x: np.ndarray, hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_gpu_ep.runtime import plans as module

    session = opened(mlp)
    run(session, mlp, {"x": x})
    hand.work()
    monkeypatch.setattr(module, "MAX_SHAPES", 2)
    for rows in (2, 3, 4):
        run(session, mlp, {"x": x[:1].repeat(rows, 0)}, 1)
    assert not program_of(session).compiled.specialized
    run(session, mlp, {"x": x}, 1)


def test_one_that_loses_its_place_while_it_is_warmed_up_may_come_again(
    mlp: bytes,
    x: np.ndarray,
    hand: ByHand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = opened(mlp)
    run(session, mlp, {"x": x})
    program, warm_up = program_of(session), prepared.Prepared.warm_up

    def dropped(own: Any, *arguments: Any) -> None:
        warm_up(own, *arguments)
        if own in program.compiled.specialized:
            program.compiled.drop(own)

    with monkeypatch.context() as short:
        short.setattr(prepared.Prepared, "warm_up", dropped)
        hand.work()
    assert not program.compiled.specialized
    assert not session.explain().events
    run(session, mlp, {"x": x}, 1)
    (key,) = program.compiled.found
    with program.lock:
        program.better.specialize(key)
    assert hand.work() == 1
    run(session, mlp, {"x": x}, 1)
    assert session.stats()["specialized"] == 1


@pytest.mark.parametrize("when", ["before", "while it compiles", "while it is warmed up"])
def test_closing_the_program_cancels_it(
    mlp: bytes, x: np.ndarray, hand: ByHand, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    session = opened(mlp)
    run(session, mlp, {"x": x})
    program, gpu = program_of(session), session.state.gpu
    made, compile_one, finish = gpu.compiled, pipelines.pipeline, gpu.finish
    ends: list[Callable[[], None]] = [program.close]

    def compile_and_close(*arguments: Any) -> Any:
        if ends and when == "while it compiles":
            ends.pop()()
        return compile_one(*arguments)

    def finish_and_close() -> None:
        if ends and when == "while it is warmed up":
            ends.pop()()
        finish()

    monkeypatch.setattr(context, "pipeline", compile_and_close)
    monkeypatch.setattr(gpu, "finish", finish_and_close)
    if when == "before":
        ends.pop()()
    hand.work()
    assert not ends
    assert not program.compiled.specialized
    assert not program.specialized
    assert gpu.compiled - made <= (1 if when != "while it is warmed up" else 99)


def test_a_lost_device_cancels_it(mlp: bytes, x: np.ndarray, hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(mlp)
    run(session, mlp, {"x": x})
    made = session.state.gpu.compiled
    with monkeypatch.context() as lost:
        lost.setattr(session.state.gpu, "lost", "for a test")
        hand.work()
    assert session.state.gpu.compiled == made
    assert not program_of(session).specialized


def test_content_that_decides_on_shapes(hand: ByHand) -> None:
    session, model = opened(sliced()), sliced()
    given, other = content_feeds(9, 1, 5, 4), content_feeds(9, 2, 8, 2)
    run(session, model, given)
    assert hand.work() == 1
    assert session.stats()["specialized"] == 1
    made = session.state.gpu.compiled
    for feeds in (given, other, given):
        run(session, model, feeds, 1)
    assert session.state.gpu.compiled == made


def test_several_types_and_outputs(many: bytes, rng: np.random.Generator, hand: ByHand) -> None:  # noqa: F811
    session, feeds = opened(many), feeds_of(rng, 5)
    run(session, many, feeds)
    assert hand.work() == 1
    run(session, many, feeds, 6)
    assert session.stats()["specialized"] == 1


def test_verify_compares_the_first_run_of_it(
    mlp: bytes, x: np.ndarray, hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_gpu_ep.plugin.compute import Run

    session, compared = gpu_session(mlp, verify="1000"), list[int]()
    monkeypatch.setattr(Run, "_verify", lambda run: compared.append(1))
    run(session, mlp, {"x": x})
    assert len(compared) == 1
    hand.work()
    run(session, mlp, {"x": x})
    assert len(compared) == 2


def test_memory_comes_back(mlp: bytes, x: np.ndarray, hand: ByHand) -> None:
    session = opened(mlp)
    gpu = session.state.gpu
    run(session, mlp, {"x": x})
    gpu.trim()
    before = gpu.stats.allocated_nbytes
    for _ in range(3):
        for rows in range(2, 4 + MAX_SPECIALIZED):
            run(session, mlp, {"x": x[:1].repeat(rows, 0)})
            hand.work()
    program = program_of(session)
    with program.lock:
        for special in list(program.compiled.specialized):
            program.compiled.drop(special)
    run(session, mlp, {"x": x}, 1)
    gpu.trim()
    assert gpu.stats.allocated_nbytes - before <= 32 << 10, (
        "inputs and outputs that the general plan keeps for four sizes"
    )


def test_on_its_own_thread(mlp: bytes, x: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "OFTEN", AFTER)
    session, until = opened(mlp), time.monotonic() + 300
    while not session.stats()["specialized"]:
        assert time.monotonic() < until, program_of(session).specialized
        run(session, mlp, {"x": x}, 1)
    run(session, mlp, {"x": x})


def test_in_a_worker(mlp: bytes, x: np.ndarray) -> None:
    session, until = opened(mlp, isolation="process"), time.monotonic() + 300
    want = on_the_cpu(mlp, {"x": x})
    while not session.stats()["specialized"]:
        assert time.monotonic() < until, session.explain().specialized
        assert_close(session.run(None, {"x": x}), want)
    assert_close(session.run(None, {"x": x}), want)


def test_the_thread_ends_when_there_is_nothing_to_do() -> None:
    made, threads, done = background.Background(), set[threading.Thread](), threading.Event()
    for _ in range(3):
        made.add(lambda: threads.add(threading.current_thread()))
    made.add(done.set)
    assert done.wait(PATIENCE_S)
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert not thread.daemon
    assert threads
    again = threading.Event()
    made.add(again.set)
    assert again.wait(PATIENCE_S)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where there is fork")
def test_a_forked_child_has_one_of_its_own() -> None:
    inherited = background.background
    inherited._lock.acquire()  # as where the parent's thread was at work
    pid = os.fork()
    if not pid:
        done = threading.Event()
        background.background.add(done.set)
        os._exit(0 if background.background is not inherited and done.wait(PATIENCE_S) else 1)
    inherited._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
