"""Load: how busy a GPU and the CPU are with other people's work, as data. Measured by load/, judged by placement/policy.py."""

from __future__ import annotations

import time
from dataclasses import dataclass

BANDS = ("idle", "low", "medium", "high")
EDGES = (0.10, 0.40, 0.80)
"""Where one band ends and the next begins. A load of 25, 60 or 95 % (load/generator.py) lies in the middle of low, medium, high."""


@dataclass(frozen=True, slots=True)
class Load:
    """One smoothed reading, without the work of this process.

    gpu: part of the time in which others keep the adapter busy, 0 to 1; None: unknown. cpu: the same of the usable cores.
    cores: how many cores this process may use. source: what was read, or why nothing could be. when_s: monotonic clock.
    """

    gpu: float | None
    cpu: float
    cores: int
    source: str
    when_s: float

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.when_s

    def as_dict(self) -> dict[str, object]:
        return {"gpu": self.gpu, "cpu": self.cpu, "cores": self.cores, "source": self.source, "age_s": self.age_s}


UNKNOWN = Load(None, 0.0, 1, "not measured", 0.0)
"""What a session without a sampler passes to its policy: no run is moved."""
