"""The circuit breaker, with a clock of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ort_gpu_ep.device.circuit import (
    FIRST_PAUSE_S,
    LONGEST_AFTER_KILL_S,
    LONGEST_PAUSE_S,
    PATIENCE,
    SUSPICION_S,
    Circuit,
)


class Bench:
    """A circuit whose clock stands still and whose probe runs when the test says so."""

    def __init__(self) -> None:
        self.now, self.healthy, self.waiting = 0.0, True, list[Callable[[], None]]()
        self.circuit = Circuit(self.check, lambda: self.now, self.waiting.append)

    def check(self) -> None:
        if not self.healthy:
            raise RuntimeError("still broken")

    def probe(self) -> None:
        self.waiting.pop()()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_failure_opens_and_a_passed_probe_closes(bench: Bench) -> None:
    assert bench.circuit.allows()
    bench.circuit.failed("lost", at_once=True)
    assert (bench.circuit.state, bench.circuit.allows(), bench.waiting) == ("open", False, [])
    bench.now = FIRST_PAUSE_S
    assert not bench.circuit.allows()
    assert not bench.circuit.allows()
    assert (bench.circuit.state, len(bench.waiting)) == ("probing", 1)
    bench.probe()
    assert (bench.circuit.state, bench.circuit.allows()) == ("closed", True)


def test_pauses_double_up_to_the_longest_and_start_again_after_a_success(bench: Bench) -> None:
    bench.circuit.failed("lost", at_once=True)
    bench.healthy, pause, seen = False, FIRST_PAUSE_S, []
    for _ in range(12):
        bench.now += pause - 0.01
        bench.circuit.allows()
        assert not bench.waiting
        bench.now += 0.02
        bench.circuit.allows()
        bench.probe()
        pause = min(2 * pause, LONGEST_PAUSE_S)
        seen.append(pause)
    assert seen[:3] == [2, 4, 8]
    assert seen[-1] == LONGEST_PAUSE_S
    bench.healthy = True
    bench.now += pause
    bench.circuit.allows()
    bench.probe()
    bench.circuit.succeeded()
    bench.circuit.failed("lost", at_once=True)
    bench.now += FIRST_PAUSE_S
    bench.circuit.allows()
    assert len(bench.waiting) == 1


def test_kills_from_outside_keep_the_pause_short(bench: Bench) -> None:
    bench.healthy = False
    for _ in range(20):
        bench.circuit.failed("killed", at_once=True, killed=True)
        bench.now += LONGEST_AFTER_KILL_S
        bench.circuit.reset() if bench.circuit.allows() else None
        assert bench.waiting
        bench.healthy = True
        bench.probe()
    assert bench.circuit.state == "closed"


def test_a_run_s_own_failure_needs_several_in_a_row(bench: Bench) -> None:
    for _ in range(2):
        for _ in range(PATIENCE - 1):
            bench.circuit.failed("memory", at_once=False)
        assert bench.circuit.allows()
        bench.circuit.succeeded()
    for _ in range(PATIENCE):
        bench.circuit.failed("memory", at_once=False)
    assert not bench.circuit.allows()


def test_behind_a_pause_one_failure_is_enough(bench: Bench) -> None:
    """Until something was right."""
    bench.circuit.failed("wrong", at_once=True)
    bench.now = FIRST_PAUSE_S
    bench.circuit.allows()
    bench.probe()
    bench.circuit.failed("memory", at_once=False)
    assert bench.circuit.state == "open"
    bench.now += 2 * FIRST_PAUSE_S
    bench.circuit.allows()
    bench.probe()
    bench.circuit.succeeded()
    bench.circuit.failed("memory", at_once=False)
    assert bench.circuit.is_closed


def test_without_a_probe_it_is_tried_again_when_the_pause_is_over(bench: Bench) -> None:
    circuit = Circuit(None, lambda: bench.now)
    circuit.failed("wrong", at_once=True)
    assert (circuit.allows(), circuit.state) == (False, "open")
    bench.now = FIRST_PAUSE_S
    assert (circuit.allows(), circuit.state) == (True, "closed")


def test_a_suspicion_is_probed_and_stops_no_run(bench: Bench) -> None:
    for _ in range(3):
        bench.circuit.suspect("a text does not compile")
    assert (bench.circuit.is_closed, len(bench.waiting)) == (True, 1)
    bench.probe()
    bench.circuit.suspect("another does not")
    assert (bench.circuit.is_closed, bench.waiting) == (True, []), "one probe says enough for a while"
    bench.now, bench.healthy = FIRST_PAUSE_S, False
    bench.circuit.suspect("another does not")
    assert bench.circuit.is_closed
    bench.probe()
    assert bench.circuit.state == "open"


def test_a_device_that_is_lost_while_a_suspicion_is_probed(bench: Bench) -> None:
    """A probe that began before does not close what was opened meanwhile."""
    bench.circuit.suspect("wrong", "model")
    bench.circuit.failed("lost", at_once=True)
    bench.probe()
    assert bench.circuit.state == "open"
    bench.now = FIRST_PAUSE_S
    bench.circuit.allows()
    bench.probe()
    assert bench.circuit.is_closed


def test_wrong_results_of_two_models_are_the_adapters(bench: Bench) -> None:
    for now in (0.0, 1.0):
        bench.now = now
        bench.circuit.suspect("wrong", "one")
    bench.now = SUSPICION_S + 2.0
    bench.circuit.suspect("wrong", "other")
    assert bench.circuit.is_closed, "that was long ago"
    bench.now += 1.0
    bench.circuit.suspect("wrong", "one")
    assert not bench.circuit.allows()


def test_many_threads_start_one_probe(bench: Bench) -> None:
    bench.circuit.failed("hang", at_once=True)
    bench.now = FIRST_PAUSE_S
    threads = [threading.Thread(target=bench.circuit.allows) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bench.waiting) == 1
