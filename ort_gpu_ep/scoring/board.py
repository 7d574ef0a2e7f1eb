"""State of a run that its threads share: the batches, who has them, and which shards are complete."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.scoring import memory
from ort_gpu_ep.scoring.columns import Array, Packed
from ort_gpu_ep.scoring.parts import Shard

ATTEMPTS = 2
"""How often a batch may end a worker that has nothing else under way before its rows are given up."""

REFUSED = 1000
"""Rows refused, and none taken: then it is not the rows."""


@dataclass(slots=True)
class Loaded:
    """A shard in memory. keys: the columns that go through. held: the inputs, None where no row is kept. pieces:
    outputs by the first row (of those kept) of their batch."""

    shard: Shard
    packed: Packed
    keys: dict[str, Any]
    held: memory.Held | None
    taken: int = 0
    finished: int = 0
    pieces: dict[int, tuple[dict[str, Array], dict[int, str], int]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Those that go to a worker."""
        return len(self.packed.kept)


@dataclass(slots=True)
class Batch:
    """Rows start to stop of those that a shard keeps. ends: workers that it alone has ended; suspect: it was there when
    one ended."""

    loaded: Loaded
    start: int
    stop: int
    ends: int = 0
    suspect: bool = False


class Board:
    """Threads take batches and bring results; whole shards go to `commit`. read: loads a shard; window: shards in
    memory at a time."""

    def __init__(
        self,
        shards: Iterator[Shard],
        read: Callable[[Shard], Loaded],
        commit: Callable[[Loaded], None],
        window: int,
        fail_fast: Callable[[Shard, int, str], str] | None,
    ) -> None:
        self._shards, self._read, self._commit, self._window, self._fail_fast = shards, read, commit, window, fail_fast
        self._changed = threading.Condition()
        self._loaded, self._again, self._whole = deque[Loaded](), deque[Batch](), deque[Loaded]()
        self._held, self._all_read, self._all_written = dict[int, Loaded](), False, False
        self.failure: BaseException | None = None
        self.scored = self.refused = 0
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"ort_gpu_ep-{name}", daemon=True)
            for name, work in (("read", self._reading), ("write", self._writing))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def fail(self, error: BaseException) -> None:
        """Ends the run: the first error counts."""
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()

    def join(self) -> None:
        """Waits for the threads of reading and writing, and gives the shared memory back."""
        for thread in self._threads:
            thread.join()
        for loaded in self._held.values():
            release(loaded)

    @property
    def is_over(self) -> bool:
        return self.failure is not None or self._all_written

    def wait(self, seconds: float) -> None:
        with self._changed:
            if not self.is_over:
                self._changed.wait(seconds)

    def take(self, rows: int, under_way: int, suspect_under_way: bool) -> Batch | None:
        """The next batch. None: all is taken; or the taker has something under way, and should see to that first."""
        with self._changed:
            while self.failure is None:
                if self._again and not under_way:
                    return self._again.popleft()
                if not suspect_under_way and (batch := self._next(rows)) is not None:
                    return batch
                if under_way or self._all_written:
                    return None
                self._changed.wait()
            return None

    def _next(self, rows: int) -> Batch | None:
        """Of the first shard that has rows left; as many as the batch, or what is left."""
        while self._loaded:
            loaded = self._loaded[0]
            batch = Batch(loaded, loaded.taken, min(loaded.taken + rows, loaded.rows))
            loaded.taken = batch.stop
            if loaded.taken == loaded.rows:
                self._loaded.popleft()
            if batch.stop > batch.start:
                return batch
        return None

    def give_back(self, batches: list[Batch]) -> None:
        """What a worker had when it ended: each runs alone next. One that was alone is to blame, and given up after
        ATTEMPTS ends."""
        with self._changed:
            for batch in batches:
                batch.ends += len(batches) == 1
                batch.suspect = True
                self._again.append(batch)
            self._changed.notify_all()

    def halve(self, batch: Batch) -> None:
        """For a batch that does not fit into a device's memory."""
        middle = (batch.start + batch.stop) // 2
        with self._changed:
            self._again += [Batch(batch.loaded, batch.start, middle), Batch(batch.loaded, middle, batch.stop)]
            self._changed.notify_all()

    def finish(self, batch: Batch, arrays: dict[str, Array], errors: dict[int, str]) -> None:
        """errors: by row of the batch."""
        loaded = batch.loaded
        with self._changed:
            loaded.pieces[batch.start] = arrays, {batch.start + row: text for row, text in errors.items()}, batch.stop
            loaded.finished += batch.stop - batch.start
            places = {int(loaded.packed.kept[batch.start + row]): text for row, text in errors.items()}
            self._count(loaded, batch.stop - batch.start - len(errors), places)
            if loaded.finished == loaded.rows:
                self._whole.append(loaded)
            self._changed.notify_all()

    def _count(self, loaded: Loaded, scored: int, errors: dict[int, str]) -> None:
        self.scored, self.refused = self.scored + scored, self.refused + len(errors)
        if not errors:
            return
        row, text = min(errors.items())
        if self._fail_fast is not None:
            self.failure = self.failure or ScoringError(self._fail_fast(loaded.shard, row, text))
        elif not self.scored and self.refused >= REFUSED:
            self.failure = self.failure or ScoringError(
                f"each of the first {self.refused:,} rows was refused; the first one: {text}"
            )

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.fail(error)

    def _reading(self) -> None:
        for shard in self._shards:
            with self._changed:
                while len(self._held) >= self._window and self.failure is None:
                    self._changed.wait()
                if self.failure is not None:
                    return
            loaded = self._read(shard)
            with self._changed:
                self._held[shard.number] = loaded
                self._count(loaded, 0, loaded.packed.errors)
                (self._loaded if loaded.rows else self._whole).append(loaded)
                self._changed.notify_all()
        with self._changed:
            self._all_read = True
            self._changed.notify_all()

    def _writing(self) -> None:
        while True:
            with self._changed:
                while not self._whole and self.failure is None and not (self._all_read and not self._held):
                    self._changed.wait()
                if not self._whole:  # after a failure, what is whole is written
                    self._all_written = self.failure is None
                    self._changed.notify_all()
                    return
                loaded = self._whole.popleft()
            self._commit(loaded)
            release(loaded)
            with self._changed:
                del self._held[loaded.shard.number]
                self._changed.notify_all()


def release(loaded: Loaded) -> None:
    """Lets the inputs go."""
    if loaded.held is not None:
        batch, loaded.held = loaded.held, None
        batch.release()
