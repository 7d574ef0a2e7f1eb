"""Recovery data of a trainer: a snapshot on the host, and the batches since."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field
from typing import Any

from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training.data import Batch

SHARE = 0.02
"""Of the time that snapshots may take."""

MAX_NBYTES = 256 << 20
"""Of batches that are kept, before a snapshot is taken in any case."""


@dataclass
class Entry:
    """A step that was taken: what it was fed, and whoever may still read its loss."""

    batch: Batch
    loss: weakref.ReferenceType[Any]


@dataclass
class Journal:
    """carried: the state before step `step`; entries: the steps since, in order."""

    step: int
    carried: dict[str, Array]
    entries: list[Entry] = field(default_factory=list)
    nbytes: int = 0
    taken_s: float = 0.0
    since: float = field(default_factory=time.perf_counter)

    def add(self, batch: Batch, loss: Any) -> None:
        self.entries.append(Entry(batch, weakref.ref(loss)))
        self.nbytes += sum(a.nbytes for a in batch.feeds.values())

    @property
    def due(self) -> bool:
        """Whether it is time for a snapshot: the last one is then SHARE of the time since."""
        too_large = self.nbytes > MAX_NBYTES
        return bool(self.entries) and (too_large or time.perf_counter() - self.since > max(1.0, self.taken_s / SHARE))

    def renew(self, step: int, carried: dict[str, Array], taken_s: float) -> None:
        """Begins anew with a snapshot that took so long."""
        self.step, self.carried, self.taken_s = step, carried, taken_s
        self.entries, self.nbytes, self.since = [], 0, time.perf_counter()
