"""A helper whose owner is gone: it is ended, and waited for."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import ort_gpu_ep.health.probes  # noqa: F401  fills the table
from ort_gpu_ep.health import helper
from ort_gpu_ep.health.examination import examine
from ort_gpu_ep.health.helper import Worker
from tests.patience import PATIENCE_S, until

STAYS = "read job; echo '{\"touches\": true}'; exec sleep 600"
ENDS_BEHIND_ITS_LINES = "read job; exec >&-; exec sleep 0.5"
TELLS_OF_ONE = (
    'read job; echo \'{"name": "atomics", "status": "PASS", "seen": "", "time_ms": 1, "unchecked": false, '
    '"cures": []}\'; exec sleep 600'
)


def is_gone(pid: int) -> bool:
    """No process, nor a zombie, has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[int]]:
    """What starts a script of the shell as every helper; gives the numbers of its processes."""

    def of(script: str) -> list[int]:
        pids = list[int]()

        class Counted(subprocess.Popen[bytes]):
            def __init__(self, *arguments: Any, **others: Any) -> None:
                super().__init__(*arguments, **others)
                pids.append(self.pid)

        monkeypatch.setattr(helper, "command", lambda module: ["sh", "-c", script])
        monkeypatch.setattr(subprocess, "Popen", Counted)
        return pids

    return of


def waited_for(pids: list[int]) -> None:
    gc.collect()
    (pid,) = pids
    until(lambda: is_gone(pid), "the helper is still there, or a zombie")


def test_one_that_runs_is_ended(starts: Callable[[str], list[int]]) -> None:
    pids = starts(STAYS)
    worker = Worker({"task": "list"}, listens=True)
    assert worker.line(PATIENCE_S) == {"touches": True}
    del worker
    waited_for(pids)


def test_one_that_ends_later_than_its_lines_is_waited_for(starts: Callable[[str], list[int]]) -> None:
    pids = starts(ENDS_BEHIND_ITS_LINES)
    worker = Worker({"task": "list"})
    assert worker.line(PATIENCE_S) is None
    del worker
    waited_for(pids)


def test_an_interrupt_while_it_gets_its_job(starts: Callable[[str], list[int]]) -> None:
    pids = starts(STAYS)

    def payload() -> Iterator[bytes]:
        raise KeyboardInterrupt
        yield b""

    with suppress(KeyboardInterrupt):
        Worker({"task": "list"}, payload=payload())
    waited_for(pids)


def test_an_examination_that_nobody_goes_on_with(starts: Callable[[str], list[int]]) -> None:
    pids = starts(TELLS_OF_ONE)
    outcomes = examine(0, ["atomics", "softmax"], 1)
    assert next(outcomes).passed
    del outcomes
    waited_for(pids)
