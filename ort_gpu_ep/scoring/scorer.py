"""Scores a data set on adapters of this machine or of a Ray cluster: a worker process each, shards committed one by
one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ort_gpu_ep.config import resolve
from ort_gpu_ep.errors import AdapterError, ScoringError
from ort_gpu_ep.scoring import batching, drive, parts
from ort_gpu_ep.scoring import outputs as outputs_of
from ort_gpu_ep.scoring.board import Board, Loaded, release
from ort_gpu_ep.scoring.host import Host, Machine, wanted
from ort_gpu_ep.scoring.job import Job, request_of
from ort_gpu_ep.scoring.parts import Shard
from ort_gpu_ep.scoring.report import Progress, Report
from ort_gpu_ep.scoring.transport import WorkerEndError

TIMEOUT_S = 300.0
"""For a batch, its first run and so its compilation included; the provider's own limit for a GPU that hangs is 120
s."""

_EVERY_S = 0.2
"""Between two looks at the progress, and so the longest that Ctrl-C has to wait."""


def score(
    model: str | Path,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    adapters: str | Sequence[str | int] = "all",
    batch: int | str = "auto",
    columns: Mapping[str, str | Sequence[str]] | None = None,
    key: str | Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    preprocess: str | Path | Mapping[str, Any] | None = None,
    fail_fast: bool = False,
    options: Mapping[str, Any] | None = None,
    shard_rows: int | None = None,
    timeout_s: float = TIMEOUT_S,
    ray: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Scores each row of DATA once and writes the outputs in the same order: see docs/scoring.md.

    data: files, patterns or folders. out: a folder of parts, or one file where it ends with .parquet. adapters: `all`
    (hardware; the CPU where there is none), or indices, names, PCI addresses and `cpu`; one that is named twice has two
    workers; `auto`: the CPU, too, if that is measured to help. batch: rows in a run, or `auto`. columns: input ->
    column, columns, or a pattern. key: columns that go to the output as they are. outputs: which of the model's.
    preprocess: of images, a mapping or a JSON file. fail_fast: the first row that can't be scored ends the run.
    options: of the provider. shard_rows: rows that are committed together. timeout_s: for a batch. ray: the address of
    a Ray cluster, whose adapters it is then, or `local` for one on this machine. progress: called about five times a
    second, in this thread.

    A run that was killed goes on when the same call is made again. Raises ScoringError, ModelError, AdapterError,
    ConfigError; what was scored until then stays.
    """
    request = {"columns": columns, "key": key, "outputs": outputs, "preprocess": preprocess, "shard_rows": shard_rows}
    resolve(options)
    batching.check(batch)
    job = Job(request_of(model, data, request))
    try:
        host = _host(job, dict(options or {}), timeout_s, ray)
        try:
            with parts.claimed(Path(out), job.manifest()) as folder:
                left = [shard for shard in job.shards if not parts.is_done(folder, shard)]
                report = _Run(job, left, folder, str(out), batch, host).run(wanted(adapters), fail_fast, progress)
                if Path(out).suffix == ".parquet":
                    parts.merge(folder, Path(out), job.shards)
                return report
        finally:
            host.close()
    finally:
        job.close()


def _host(job: Job, options: dict[str, Any], timeout_s: float, ray: str | None) -> Host:
    if ray is None:
        return Machine(job.model, options, timeout_s)
    from ort_gpu_ep.scoring.cluster import Cluster

    return Cluster(job.model, options, timeout_s, ray)


class _Run:
    """One run, from what is left to its report."""

    def __init__(self, job: Job, left: list[Shard], folder: Path, out: str, batch: int | str, host: Host) -> None:
        self._job, self._left, self._folder, self._out, self._batch, self._host = job, left, folder, out, batch, host
        self._begun_s = time.perf_counter()
        self._before = job.rows - sum(shard.rows for shard in left)
        self._notes = [f"{self._before:,} rows were there from an earlier run"] if self._before else []
        if job.unused():
            self._notes.append(f"columns that are not used: {', '.join(job.unused()[:12])}")
        if job.how is not None:
            guessed = (
                ""
                if job.request.preprocess
                else " (guessed from the model's input: --preprocess FILE.json says otherwise)"
            )
            self._notes.append(f"images are {job.how}{guessed}")
        self._first_error = ""

    def run(self, adapters: Sequence[str], fail_fast: bool, progress: Callable[[Progress], None] | None) -> Report:
        if not self._left:
            return self._report([], None, "nothing is left to score")
        before = parts.noted(self._folder)
        offered = self._host.slots(adapters)
        slots = [slot for slot in offered if not slot.is_optional or before.get(slot.kind) != 0]
        self._notes += ["the CPU has no share, as when this output was begun"] if len(slots) < len(offered) else []
        window = 2 * len(slots) + 1
        board = Board(iter(self._left), self._read, self._commit, window, self._job.place if fail_fast else None)
        why, clean, threads = "", False, list[threading.Thread]()
        try:
            _open(slots)
            why = self._prepare(slots, before)
            board.start()
            threads = drive.drive_all(slots, board)
            self._watch(board, slots, progress)
            clean = True
        except BaseException as error:
            board.fail(error)
            raise
        finally:
            for slot in slots if not clean else ():
                slot.close(kill=True)
            for thread in threads:
                thread.join()
            for slot in slots:
                slot.close(kill=not clean)
            if why:
                board.join()
        return self._report(slots, board, why)

    def _read(self, shard: Shard) -> Loaded:
        packed, keys = self._job.read(shard)
        if packed.errors and not self._first_error:
            self._first_error = self._job.place(shard, *min(packed.errors.items()))
        batch = self._host.hold(packed.arrays) if len(packed.kept) else None
        return Loaded(shard, replace(packed, arrays={}), keys, batch)

    def _commit(self, loaded: Loaded) -> None:
        pieces = [loaded.pieces[start][:2] for start in sorted(loaded.pieces)]
        refused = {int(loaded.packed.kept[row]): text for _, errors in pieces for row, text in errors.items()}
        if refused and not self._first_error:
            self._first_error = self._job.place(loaded.shard, *min(refused.items()))
        parts.commit(
            self._folder, loaded.shard, outputs_of.table(self._job.model.outputs, loaded.packed, loaded.keys, pieces)
        )

    def _prepare(self, slots: list[drive.Slot], before: Mapping[str, int]) -> str:
        """Chooses the batch of each slot, closes those that are of no help, and notes both for a run that goes on.
        Gives why."""
        open_slots = [slot for slot in slots if not slot.counts.given_up]
        most = batching.limit(self._job.model, self._left[0].rows)
        with self._sample() as sample:
            try:
                why = batching.choose(open_slots, self._batch, self._job.model, before, sample, most)
                trial = any(s.is_optional and s.kind not in before for s in open_slots) and any(
                    not s.is_optional for s in open_slots
                )
                declined = batching.declined(open_slots, sample()) if trial else ""
            except WorkerEndError as error:
                raise AdapterError(f"measuring the batch: {error}") from error
        for slot in [slot for slot in slots if declined and slot.is_optional]:
            slot.close()
            slots.remove(slot)
        self._notes += [declined] if declined else []
        parts.note(self._folder, {slot.kind: slot.batch if slot in slots else 0 for slot in open_slots})
        return why

    @contextmanager
    def _sample(self) -> Iterator[Callable[[], Loaded]]:
        """The first shard that is left, for measurements: read when it is asked for."""
        batches = list[Loaded]()

        def sample() -> Loaded:
            if not batches:
                batches.append(self._read(self._left[0]))
            if batches[0].held is None:
                raise ScoringError(self._first_error or "no row of the first shard can be scored")
            return batches[0]

        try:
            yield sample
        finally:
            for loaded in batches:
                release(loaded)

    def _watch(self, board: Board, slots: list[drive.Slot], progress: Callable[[Progress], None] | None) -> None:
        """Waits for the end of the run. Raises what has failed."""
        start = time.perf_counter()
        while not board.is_over:
            board.wait(_EVERY_S)
            if progress is not None:
                done, seconds = board.scored + board.refused, time.perf_counter() - start
                rate = done / seconds if seconds else 0.0
                eta_s = (self._job.rows - self._before - done) / rate if done and seconds > 1.0 else None
                progress(Progress(self._job.rows, self._before + done, rate, eta_s, drive.summary(slots)))
                time.sleep(max(0.0, min(_EVERY_S, start + seconds + _EVERY_S - time.perf_counter())))
        if board.failure is not None:
            raise board.failure

    def _report(self, slots: list[drive.Slot], board: Board | None, why: str) -> Report:
        adapters = drive.summary(slots)
        self._notes += self._host.notes
        for entry in adapters:
            self._notes += [f"{entry['name']}: given up, {entry['given_up']}"] if entry["given_up"] else []
        since_s = min((s.counts.since_s for s in slots if s.counts.since_s), default=time.perf_counter())
        seconds = max((s.counts.until_s for s in slots), default=since_s) - since_s
        return Report(
            self._out,
            self._job.rows,
            self._before,
            board.scored if board else 0,
            board.refused if board else 0,
            round(seconds, 3),
            round(since_s - self._begun_s, 3),
            why,
            adapters,
            self._first_error,
            self._notes,
        )


def _open(slots: list[drive.Slot]) -> None:
    """All at a time. One that does not start is given up. Raises AdapterError where none does."""

    def one(slot: drive.Slot) -> None:
        try:
            slot.open()
        except WorkerEndError as error:
            slot.close(kill=True)
            slot.counts.given_up = f"its worker did not start: {error}"

    with ThreadPoolExecutor(len(slots), "ort_gpu_ep-open") as pool:
        for future in [pool.submit(one, slot) for slot in slots]:
            future.result()
    drive.check_left(slots)
