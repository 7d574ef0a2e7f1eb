"""Which batch goes where, and what becomes of it when workers end: with workers that are no processes."""

from __future__ import annotations

import threading
from collections import deque
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
from ort_gpu_ep.scoring.transport import GoneError, Worker, WorkerEndError
from ort_gpu_ep.scoring.worker import Done, Failed, Task
from tests.patience import PATIENCE_S

ROWS, SHARD = 100, 30


class Process:
    """A process that is none. answer: gives what a batch of rows does."""

    name, advice = "the process", ""

    def __init__(self, answer: Callable[[int, int], Any]) -> None:
        self._answer, self._answers = answer, list[Any]()

    def ask(self, timeout_s: float, function: Any, *given: Any) -> Any:
        if function is not worker.exchange:
            return {worker.identify: 1, worker.open_worker: ("", "")}[function]
        if given[0] is not None:
            self._answers.append(self._answer(first(given[0]), given[0].stop - given[0].start))
            if isinstance(self._answers[-1], WorkerEndError):  # as soon as it has the batch
                raise self._answers[-1]
        return self._answers.pop(0) if given[0] is None or len(self._answers) == worker.DEPTH else None

    def kill(self) -> None:
        pass

    close = kill


def first(task: Task) -> int:
    """The row's number in the data."""
    return int(task.source.name) + task.start


class Clock:
    """Time that passes only while everybody waits for it: the one whose turn is first goes on."""

    def __init__(self, users: int) -> None:
        self._changed, self._users, self._until, self.now = threading.Condition(), users, dict[object, float](), 0.0

    def wait(self, user: object, until: float) -> None:
        with self._changed:
            self._until[user] = until
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._until) == self._users and min(self._until.values()) == until)
            self.now = max(self.now, self._until.pop(user))

    def leave(self) -> None:
        with self._changed:
            self._users -= 1
            self._changed.notify_all()


class TimedProcess(Process):
    """Takes `each` for a batch, one after another."""

    def __init__(self, clock: Clock, each: float) -> None:
        super().__init__(well)
        self._clock, self._each, self._ends = clock, each, deque[float]()

    def ask(self, timeout_s: float, function: Any, *given: Any) -> Any:
        if function is worker.exchange and given[0] is not None:
            self._ends.append(max(self._clock.now, self._ends[-1] if self._ends else 0.0) + self._each)
        found = super().ask(timeout_s, function, *given)
        if function is worker.exchange and found is not None:
            self._clock.wait(self, self._ends.popleft())
        return found


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
        facts.committed[loaded.shard.number] = sorted(
            (start, stop, dict(errors)) for start, (_, errors, stop) in loaded.pieces.items()
        )

    def process(number: int) -> Callable[[], Worker]:
        def start() -> Worker:
            facts.processes += 1
            return Worker(Process(answers[number]), PATIENCE_S)

        return start

    facts.board = Board(
        cut([ROWS], SHARD),
        read,
        commit,
        window,
        (lambda shard, row, text: f"row {shard.first + row}: {text}") if fail_fast else None,
    )
    facts.slots = [
        Slot(k, f"adapter {k}", worker.Setup(Model("m", "", (), ()), str(k), {}), process(k))
        for k in range(len(answers))
    ]
    for slot in facts.slots:
        slot.batch = 8
        slot.open()
    facts.board.start()
    for thread in drive_all(facts.slots, facts.board):
        thread.join(PATIENCE_S)
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
    facts = score(
        [lambda start, rows: WorkerEndError("signal SIGSEGV") if start <= 40 < start + rows else well(start, rows)]
    )
    errors = each_row_once(facts)
    assert set(errors) == set(range(38, 46))
    assert errors[40] == "signal SIGSEGV, 2 times with nothing else under way than these 8 rows"
    assert len(facts.slots[0].counts.replaced) == 3  # once with its neighbour, twice alone


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


@pytest.mark.parametrize(("fast", "slow"), [(1.0, 1.0), (1.0, 1.7), (1.0, 5.0), (1.0, 20.0)])
def test_unequal_adapters_do_together_what_they_do_each(
    fast: float, slow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of its own: within 10 % of the sum of their rates, whatever this machine does meanwhile."""
    clock, rows = Clock(2), 4000
    shards = list(cut([rows], 500))
    held: Any = SimpleNamespace(source=SimpleNamespace(name="0"), release=lambda: None)
    board = Board(
        iter(shards),
        lambda s: Loaded(s, Packed(s.rows, {}, np.arange(s.rows), {}), {}, held),
        lambda _: None,
        len(shards),
        None,
    )
    slots = [
        Slot(
            k,
            str(k),
            worker.Setup(Model("m", "", (), ()), "", {}),
            lambda each=each: Worker(TimedProcess(clock, each), PATIENCE_S),
        )
        for k, each in enumerate((fast, slow))
    ]
    real = Board.take

    def take(self: Board, batch: int, under_way: int, suspect: bool) -> Any:
        if not under_way and not self._loaded:  # it waits for the others' last ones
            clock.leave()
        return real(self, batch, under_way, suspect)

    monkeypatch.setattr(Board, "take", take)
    for slot in slots:
        slot.batch = 8
        slot.open()
    board.start()
    board._threads[0].join(PATIENCE_S)  # all is read: nobody waits for rows
    for thread in drive_all(slots, board):
        thread.join(PATIENCE_S)
    board.join()
    assert sum(slot.counts.rows for slot in slots) == rows
    assert slots[0].counts.rows > slots[1].counts.rows or fast == slow
    assert rows / clock.now >= 0.9 * (8 / fast + 8 / slow)
