"""How many rows go into a run: by a short measurement of what they take."""

from __future__ import annotations

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


def check(batch: int | str) -> None:
    """Raises ScoringError for what is neither a number of rows nor `auto`."""
    if batch != "auto" and not ((isinstance(batch, int) and batch > 0) or (isinstance(batch, str) and batch.isdecimal() and int(batch))):
        raise ScoringError(f"batch: got {batch!r}, expected auto or a number of rows")


def limit(model: Model, rows: int) -> int:
    """The most rows that are tried. rows: of a shard."""
    return max(1, min(MOST_ROWS, rows, MOST_NBYTES // max(model.row_nbytes(), 1)))


def measured(slots: list[Slot], loaded: Loaded, most: int) -> str:
    """Sets each slot's batch; equal adapters are measured once. Gives why, for people. Raises AdapterError, ScoringError."""
    known: dict[str, tuple[int, str]] = {}
    assert loaded.held is not None
    for slot in slots:
        if slot.kind not in known:
            task = worker.Task(loaded.held.source, 0, min(loaded.rows, most))
            found = slot.measure(task, most, BUDGET_S)
            if isinstance(found, worker.Failed) and found.kind == "device":
                raise AdapterError(f"{slot.name}: {found.message}")
            if isinstance(found, worker.Failed) and found.kind == "memory":
                raise ScoringError(f"{slot.name}: not even one row fits: {found.message}")
            known[slot.kind] = (min(UNKNOWN, most), f"not measured: {found.message}") if isinstance(found, worker.Failed) else chosen(found)
        slot.batch = known[slot.kind][0]
    return "; ".join(f"{kind}: {rows} ({why})" for kind, (rows, why) in known.items())


def chosen(found: list[tuple[int, float]]) -> tuple[int, str]:
    """(rows, why) of what was measured, (rows, rows a second) each."""
    best = max(rate for _, rate in found)
    rows, rate = next((rows, rate) for rows, rate in found if rate >= NEAR * best)
    last, last_rate = found[-1]
    if rows == last:
        return rows, f"{rate:,.0f} rows/s, the most that was tried"
    return rows, f"{rate:,.0f} rows/s; {last} rows: {last_rate:,.0f}"
