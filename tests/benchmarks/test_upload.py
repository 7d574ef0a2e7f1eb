"""Large inputs, each way: sessions go the way that they are told."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import sides, upload
from benchmarks.upload import Side, measure
from tests.session.test_coalescing import steady_of


def test_both_ways_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "WAKE_S", 0.0)
    monkeypatch.setattr(upload.copying, "usable_threads", lambda: 3)
    found = measure(0.05, 2)
    assert list(found["sides"]) == ["queue", "mapped", "mapped, 3 threads"]
    assert found["chosen"] == "queue"
    assert all(side["run_ms"] > side["upload_ms"] > 0 for side in found["sides"].values())


@pytest.mark.parametrize("threads", [0, 1])
def test_a_side_goes_its_way(threads: int) -> None:
    side = Side(np.ones((3, upload.COLUMNS), "f"), threads)
    side.run()
    (own,) = steady_of(side._session).idle
    assert (own.ends.large is not None) == bool(threads)
    assert len(side.upload_ms) == 1
