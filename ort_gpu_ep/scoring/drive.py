"""The thread of one adapter: keeps its worker process busy, and replaces it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ort_gpu_ep.errors import AdapterError, ScoringError
from ort_gpu_ep.scoring import memory, worker
from ort_gpu_ep.scoring.board import ATTEMPTS, Batch, Board
from ort_gpu_ep.scoring.transport import GoneError, Worker, WorkerEndError

ENDS = 5
"""How often in a row an adapter's workers may end without a batch in between."""


@dataclass(slots=True)
class Counts:
    """What an adapter has done. busy_s: with at least one run under way; since_s: of the first batch
    (time.perf_counter)."""

    rows: int = 0
    batches: int = 0
    busy_s: float = 0.0
    since_s: float = 0.0
    until_s: float = 0.0
    replaced: list[str] = field(default_factory=list)
    given_up: str = ""

    @property
    def seconds(self) -> float:
        return (self.until_s or time.perf_counter()) - self.since_s if self.since_s else 0.0

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def busy(self) -> float:
        return min(self.busy_s / self.seconds, 1.0) if self.seconds else 0.0


class Slot:
    """One place for a worker. start: makes one. setup: as a new worker needs it. name: of its adapter; kind: the same
    for equal ones.

    answers: beginning of the names of shared memory for outputs; empty: they come with the answers. is_optional: only
    where it helps. batch: rows, less after the memory was too small.
    """

    def __init__(
        self,
        number: int,
        name: str,
        setup: worker.Setup,
        start: Callable[[], Worker],
        kind: str = "",
        answers: str = "",
        is_optional: bool = False,
    ) -> None:
        self.number, self.name, self.kind, self.setup, self.batch, self.is_optional = (
            number,
            name,
            kind or name,
            setup,
            1,
            is_optional,
        )
        self.counts = Counts()
        self._start, self._answers, self._given, self._ends, self._busy_before_s = start, answers, 0, 0, 0.0
        self._process: Worker | None = None
        self._under_way = deque[tuple[Batch, worker.Task]]()

    def open(self) -> None:
        """Starts the worker. Raises WorkerEndError; ScoringError where a session can't be made at all."""
        self._process = self._start()
        failed = self._process.open(self.setup)
        self.name, self.kind = self._process.name or self.name, self._process.kind or self.kind
        if failed is not None and failed.kind == "fatal":
            raise ScoringError(f"{self.name}: no session of {self.setup.model.path}: {failed.message}")
        if failed is not None:
            raise WorkerEndError(failed.message)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def measure(self, task: worker.Task, limit: int, budget_s: float) -> list[tuple[int, float]] | worker.Failed:
        assert self._process is not None
        return self._process.call(worker.measure, task, limit, budget_s)

    def rate(self, source: memory.Source, rows: int, budget_s: float) -> float | worker.Failed:
        assert self._process is not None
        return self._process.call(worker.rate, worker.Task(source, 0, rows), self.batch, budget_s)

    def close(self, kill: bool = False) -> None:
        if self._process is not None:
            (self._process.kill if kill else self._process.end)()
            self._process = None
        for _, task in self._under_way if self._answers else ():
            memory.remove(task.answer)

    def drive(self, board: Board) -> None:
        """Until there is nothing left, or the adapter is given up."""
        self.counts.since_s = time.perf_counter()
        try:
            while not self.counts.given_up and self._step(board):
                pass
        except BaseException as error:
            board.fail(error)
        self.counts.until_s = time.perf_counter()

    def _step(self, board: Board) -> bool:
        """Hands a batch over, or waits for one. False at the end."""
        suspect = any(batch.suspect for batch, _ in self._under_way)
        batch = board.take(self.batch, len(self._under_way), suspect)
        if batch is None and not self._under_way:
            return False
        if batch is not None:
            if batch.ends >= ATTEMPTS:
                board.finish(
                    batch, {}, dict.fromkeys(range(batch.stop - batch.start), _blame(batch, self.counts.replaced))
                )
                return True
            self._under_way.append((batch, self._task(batch)))
        try:
            answer = self._worker().call(worker.exchange, self._under_way[-1][1] if batch is not None else None)
        except WorkerEndError as error:
            self._replace(board, str(error), isinstance(error, GoneError))
            return True
        if answer is not None:
            self._answered(board, answer)
        return True

    def _worker(self) -> Worker:
        if self._process is None:
            self.open()
        assert self._process is not None
        return self._process

    def _task(self, batch: Batch) -> worker.Task:
        assert batch.loaded.held is not None
        self._given += 1
        answer = f"{self._answers}-{self.number}-{self._given}" if self._answers else ""
        return worker.Task(batch.loaded.held.source, batch.start, batch.stop, answer)

    def _answered(self, board: Board, answer: worker.Done | worker.Failed) -> None:
        if isinstance(answer, worker.Failed) and answer.kind == "device":
            self._replace(board, answer.message)
            return
        batch, _ = self._under_way.popleft()
        if isinstance(answer, worker.Failed):
            if answer.kind == "fatal" or batch.stop - batch.start == 1:
                raise ScoringError(f"{self.name}: {answer.message}")
            self.batch = max(1, min(self.batch, (batch.stop - batch.start) // 2))
            board.halve(batch)
            return
        arrays = answer.outputs.take() if isinstance(answer.outputs, memory.Segment) else answer.outputs
        board.finish(batch, arrays, answer.errors)
        self._ends, self.counts.busy_s = 0, self._busy_before_s + answer.busy_s
        self.counts.rows, self.counts.batches = self.counts.rows + batch.stop - batch.start, self.counts.batches + 1

    def _replace(self, board: Board, why: str, is_last: bool = False) -> None:
        """A new worker takes the place of this one unless it was the last, and its batches are done again."""
        batches = [batch for batch, _ in self._under_way]
        self.close(kill=True)
        self._under_way.clear()
        self._ends, self._busy_before_s = self._ends + 1, self.counts.busy_s
        self.counts.replaced.append(why)
        board.give_back(batches)
        if is_last:
            self.counts.given_up = why
        elif self._ends >= ENDS:
            self.counts.given_up = (
                f"its workers ended {self._ends} times in a row without a batch in between; the last time: {why}"
            )


def _blame(batch: Batch, ends: list[str]) -> str:
    rows = batch.stop - batch.start
    return (
        f"{ends[-1] if ends else 'the worker ended'}, {batch.ends} times with nothing else under way than these "
        f"{rows} rows"
    )


def check_left(slots: list[Slot]) -> None:
    """Raises AdapterError where all adapters are given up."""
    if all(slot.counts.given_up for slot in slots):
        texts = "; ".join(f"{s.name}: {s.counts.given_up}" for s in slots)
        raise AdapterError(f"no adapter is left: {texts}. What was scored stays; the same command goes on with it")


def drive_all(slots: list[Slot], board: Board) -> list[threading.Thread]:
    """A thread a slot. When the last adapter is given up, the run fails."""

    def one(slot: Slot) -> None:
        slot.drive(board)
        try:
            check_left(slots)
        except AdapterError as error:
            board.fail(error)

    threads = [
        threading.Thread(target=one, args=(slot,), name=f"ort_gpu_ep-score-{slot.number}", daemon=True)
        for slot in slots
    ]
    for thread in threads:
        thread.start()
    return threads


def summary(slots: list[Slot]) -> list[dict[str, Any]]:
    """What each adapter did, for progress and report."""
    return [
        {
            "adapter": s.setup.adapter,
            "name": s.name,
            "batch": s.batch,
            "rows": s.counts.rows,
            "batches": s.counts.batches,
            "seconds": round(s.counts.seconds, 3),
            "rows_per_s": round(s.counts.rows_per_s, 1),
            "busy": round(s.counts.busy, 3),
            "replaced": list(s.counts.replaced),
            "given_up": s.counts.given_up,
            "pid": s.pid,
        }
        for s in slots
    ]
