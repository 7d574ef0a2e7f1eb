"""Chooses the batch size, and whether the CPU gets a share, by short measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from ort_gpu_ep.errors import AdapterError, ScoringError
from ort_gpu_ep.scoring import worker
from ort_gpu_ep.scoring.board import Loaded
from ort_gpu_ep.scoring.drive import Slot
from ort_gpu_ep.scoring.model import Model

BUDGET_S = 3.0
"""Of measuring, an adapter."""

MOST_ROWS, MOST_NBYTES = 16384, 256 << 20
"""In a batch."""

NEAR = 0.95
"""The smallest batch that does this part of the best: less memory, less to do again."""

UNKNOWN = 64
"""Where nothing could be measured."""

ROUND_S, ROUNDS = 0.7, 2
"""Of measuring whether the CPU helps: with it and without, in turn."""

HELPS = 1.05
"""By how much more is done with the CPU, for it to take a share."""


def check(batch: int | str) -> None:
    """Raises ScoringError for what is neither a number of rows nor `auto`."""
    if batch != "auto" and not (
        (isinstance(batch, int) and batch > 0) or (isinstance(batch, str) and batch.isdecimal() and int(batch))
    ):
        raise ScoringError(f"batch: got {batch!r}, expected auto or a number of rows")


def limit(model: Model, rows: int) -> int:
    """The most rows that are tried. rows: of a shard."""
    return max(1, min(MOST_ROWS, rows, MOST_NBYTES // max(model.row_nbytes(), 1)))


def choose(
    slots: list[Slot],
    batch: int | str,
    model: Model,
    before: Mapping[str, int],
    sample: Callable[[], Loaded],
    most: int,
) -> str:
    """Sets each slot's batch: as asked, as the model fixes it, as an earlier run had it (`before`, by kind), or as
    measured on the rows of `sample`, at most that many. Gives why, for people. Raises AdapterError, ScoringError,
    WorkerEndError.
    """
    fixed = int(batch) if batch != "auto" else model.batch
    for slot in slots:
        slot.batch = fixed or before.get(slot.kind, 0)
    if fixed is not None:
        return f"{fixed}, as asked" if batch != "auto" else f"{fixed}: the model fixes it"
    texts = [
        f"{kind}: {rows} (as this output was begun with)"
        for kind, rows in {s.kind: s.batch for s in slots}.items()
        if rows
    ]
    unknown = [slot for slot in slots if not slot.batch]
    return "; ".join([*texts, *(_measured(unknown, sample(), most) if unknown else [])])


def _measured(slots: list[Slot], loaded: Loaded, most: int) -> list[str]:
    """Equal adapters are measured once."""
    by_model: dict[str, tuple[int, str]] = {}
    assert loaded.held is not None
    for slot in slots:
        if slot.kind not in by_model:
            rates = slot.measure(worker.Task(loaded.held.source, 0, min(loaded.rows, most)), most, BUDGET_S)
            if isinstance(rates, worker.Failed):
                _raise(slot, rates)
                by_model[slot.kind] = min(UNKNOWN, most), f"not measured: {rates.message}"
            else:
                by_model[slot.kind] = chosen(rates)
        slot.batch = by_model[slot.kind][0]
    return [f"{kind}: {rows} ({why})" for kind, (rows, why) in by_model.items()]


def _raise(slot: Slot, failed: worker.Failed) -> None:
    """What no run could do either."""
    if failed.kind == "device":
        raise AdapterError(f"{slot.name}: {failed.message}")
    if failed.kind == "memory":
        raise ScoringError(f"{slot.name}: not even one row fits: {failed.message}")


def declined(slots: list[Slot], loaded: Loaded) -> str:
    """Why the optional slots are of no help to the others; empty where they are. Raises AdapterError, ScoringError,
    WorkerEndError."""
    needed, best = [slot for slot in slots if not slot.is_optional], {True: 0.0, False: 0.0}
    for is_with in (False, True) * ROUNDS:
        best[is_with] = max(best[is_with], _together(slots if is_with else needed, loaded))
    if best[True] >= HELPS * best[False]:
        return ""
    return f"the CPU has no share: {best[True]:,.0f} rows/s with it, {best[False]:,.0f} without"


def _together(slots: list[Slot], loaded: Loaded) -> float:
    """Rows a second of all of these at the same time."""

    def one(slot: Slot) -> float:
        assert loaded.held is not None
        rate = slot.rate(loaded.held.source, loaded.rows, ROUND_S)
        if isinstance(rate, worker.Failed):
            _raise(slot, rate)
            return 0.0
        return rate

    with ThreadPoolExecutor(len(slots), "ort_gpu_ep-rate") as pool:
        return sum(pool.map(one, slots))


def chosen(found: list[tuple[int, float]]) -> tuple[int, str]:
    """(rows, why) of what was measured, (rows, rows a second) each."""
    best = max(rate for _, rate in found)
    rows, rate = next((rows, rate) for rows, rate in found if rate >= NEAR * best)
    last, last_rate = found[-1]
    if rows == last:
        return rows, f"{rate:,.0f} rows/s, the most that was tried"
    return rows, f"{rate:,.0f} rows/s; {last} rows: {last_rate:,.0f}"
