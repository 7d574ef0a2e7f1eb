"""Which batch goes where, and what becomes of it when workers end: with workers that are no processes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep import AdapterError, ScoringError
from ort_gpu_ep.scoring import worker
from ort_gpu_ep.scoring.board import Board, Loaded
from ort_gpu_ep.scoring.columns import Packed
from ort_gpu_ep.scoring.drive import ENDS, Slot, drive_all
from ort_gpu_ep.scoring.model import Model
from ort_gpu_ep.scoring.parts import Shard, cut
from ort_gpu_ep.scoring.process import GoneError, WorkerEndError
from ort_gpu_ep.scoring.worker import Done, Failed, Task

ROWS, SHARD = 100, 30


class Worker:
    """A process that is none. answer: gives what a batch of rows does."""

    def __init__(self, answer: Callable[[int, int], Any]) -> None:
        self.pid, self.name, self.kind, self._answer, self._answers = 1, "", "", answer, list[Any]()

    def open(self, setup: worker.Setup) -> None:
        pass

    def call(self, function: Any, *given: Any) -> Any:
        assert function is worker.exchange
        if given[0] is not None:
            self._answers.append(self._answer(first(given[0]), given[0].stop - given[0].start))
            if isinstance(self._answers[-1], WorkerEndError):       # as soon as it has the batch
                raise self._answers[-1]
        return self._answers.pop(0) if given[0] is None or len(self._answers) == worker.DEPTH else None

    def kill(self) -> None:
        pass

    end = kill


def first(task: Task) -> int:
    """The row's number in the data."""
    return int(task.source.name) + task.start


def score(answers: list[Callable[[int, int], Any]], fail_fast: bool = False, window: int = 3) -> Any:
    """Runs all rows, 8 a batch; gives the board, the slots, what was committed, and the most shards in memory."""
    made: list[Loaded] = []
    facts = SimpleNamespace(committed={}, most=0, processes=0)

    def read(shard: Shard) -> Loaded:
        held = SimpleNamespace(source=SimpleNamespace(name=str(shard.first)), release=lambda: None)
        made.append(Loaded(shard, Packed(shard.rows, {}, np.arange(shard.rows), {}), {}, held))  # type: ignore[arg-type]
        facts.most = max(facts.most, len(made) - len(facts.committed))
        return made[-1]

    def commit(loaded: Loaded) -> None:
        facts.committed[loaded.shard.number] = sorted((start, stop, dict(errors)) for start, (_, errors, stop) in loaded.pieces.items())

    def process(number: int) -> Callable[[], Worker]:
        def start() -> Worker:
            facts.processes += 1
            return Worker(answers[number])
        return start

    facts.board = Board(cut([ROWS], SHARD), read, commit, window, (lambda shard, row, text: f"row {shard.first + row}: {text}") if fail_fast else None)
    facts.slots = [Slot(k, f"adapter {k}", worker.Setup(Model("m", "", (), ()), str(k), {}), process(k)) for k in range(len(answers))]
    for slot in facts.slots:
        slot.batch = 8
        slot.open()
    facts.board.start()
    for thread in drive_all(facts.slots, facts.board):
        thread.join(30)
    facts.board.join()
    return facts


def well(start: int, rows: int) -> Done:
    return Done({}, {}, 0.0)


def each_row_once(facts: Any) -> dict[int, str]:
    """The errors by row, after a check that each row was answered once."""
    errors: dict[int, str] = {}
    for number, pieces in facts.committed.items():
        assert [p[0] for p in pieces] == [0, *[p[1] for p in pieces[:-1]]]
        assert pieces[-1][1] == min(SHARD, ROWS - number * SHARD)
        for _, _, found in pieces:
            errors |= {number * SHARD + row: text for row, text in found.items()}
    assert sorted(facts.committed) == [0, 1, 2, 3]
    return errors


def test_each_row_is_answered_once_and_memory_is_bounded() -> None:
    facts = score([well, well], window=2)
    assert each_row_once(facts) == {}
    assert (facts.board.scored, facts.most) == (ROWS, 2)
    assert sum(s.counts.rows for s in facts.slots) == ROWS


def test_a_worker_that_ends_once_is_replaced_and_its_batches_done_again() -> None:
    ends = [WorkerEndError("signal SIGKILL")]
    facts = score([lambda start, rows: ends.pop() if start == 24 and ends else well(start, rows)])
    assert each_row_once(facts) == {}
    assert facts.slots[0].counts.replaced == ["signal SIGKILL"]
    assert facts.processes == 2


def test_a_batch_that_ends_every_worker_is_given_up_and_no_other() -> None:
    facts = score([lambda start, rows: WorkerEndError("signal SIGSEGV") if start <= 40 < start + rows else well(start, rows)])
    errors = each_row_once(facts)
    assert set(errors) == set(range(38, 46))
    assert errors[40] == "signal SIGSEGV, 2 times with nothing else under way than these 8 rows"
    assert len(facts.slots[0].counts.replaced) == 3      # once with its neighbour, twice alone


def test_a_device_that_is_lost_replaces_the_worker() -> None:
    lost = [Failed("device", "DeviceLostError: gone")]
    facts = score([lambda start, rows: lost.pop() if start == 60 and lost else well(start, rows)])
    assert each_row_once(facts) == {}
    assert facts.slots[0].counts.replaced == ["DeviceLostError: gone"]


def test_an_adapter_that_only_ends_is_given_up_and_the_other_goes_on() -> None:
    facts = score([lambda start, rows: WorkerEndError("exit code 1"), well])
    assert "5 times in a row" in facts.slots[0].counts.given_up or facts.slots[0].counts.rows == 0
    assert facts.board.scored + facts.board.refused == ROWS


def test_when_the_last_adapter_is_given_up_the_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_gpu_ep.scoring.drive.ATTEMPTS", 10 * ENDS)
    facts = score([lambda start, rows: WorkerEndError("exit code 1")])
    assert isinstance(facts.board.failure, AdapterError)
    assert "no adapter is left: adapter 0: its workers ended 5 times in a row" in str(facts.board.failure)


def test_a_batch_too_large_for_the_device_is_halved() -> None:
    facts = score([lambda start, rows: Failed("memory", "too much") if rows > 2 else well(start, rows)])
    assert each_row_once(facts) == {}
    assert facts.slots[0].batch == 2


def test_refused_rows_stop_only_where_that_is_asked_for() -> None:
    def refuse(start: int, rows: int) -> Done:
        return Done({}, {70 - start: "no"} if start <= 70 < start + rows else {}, 0.0)

    assert each_row_once(score([refuse])) == {70: "no"}
    facts = score([refuse], fail_fast=True)
    assert isinstance(facts.board.failure, ScoringError)
    assert str(facts.board.failure) == "row 70: no"
    assert 0 in facts.committed


def test_a_model_that_refuses_everything_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_gpu_ep.scoring.board.REFUSED", 40)
    facts = score([lambda start, rows: Done({}, dict.fromkeys(range(rows), "InvalidArgument: x"), 0.0)])
    assert "was refused; the first one: InvalidArgument: x" in str(facts.board.failure)


def test_what_no_worker_can_do_ends_the_run() -> None:
    facts = score([lambda start, rows: Failed("fatal", "output 'y' has the shape [3]")])
    assert "adapter 0: output 'y'" in str(facts.board.failure)


def test_an_adapter_that_is_gone_is_given_up_at_once() -> None:
    gone = [GoneError("the node 10.0.0.1 is gone")]
    facts = score([lambda start, rows: gone.pop() if gone else well(start, rows), well])
    assert each_row_once(facts) == {}
    assert {s.counts.given_up for s in facts.slots} == {"", "the node 10.0.0.1 is gone"}
    assert facts.processes == 2
