"""Report and progress of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """rows: of all; done: committed or scored, also before this run. eta_s: None until it is known. adapters: as in the
    report."""

    rows: int
    done: int
    rows_per_s: float
    eta_s: float | None
    adapters: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Report:
    """output: where the rows are. rows: in all, of which `before` came from earlier runs; scored, refused: in this one.

    seconds: of this run from its first batch; start_s: before that, making sessions and measuring. batch: why it is
    what it is. adapters: of each its name, batch, rows, batches, seconds, rows_per_s, busy (part of the time with a run
    under way), replaced (why each of its workers was), given_up. first_error: the first refused row of this run. notes:
    what else is to be known.
    """

    output: str
    rows: int
    before: int
    scored: int
    refused: int
    seconds: float
    start_s: float
    batch: str
    adapters: list[dict[str, Any]]
    first_error: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def rows_per_s(self) -> float:
        return (self.scored + self.refused) / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rows_per_s": round(self.rows_per_s, 1)}
