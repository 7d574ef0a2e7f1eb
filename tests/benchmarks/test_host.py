"""The floor that runs are compared with: a session's own recording, submitted by itself."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import cases, host
from benchmarks.host import Floor
from ort_gpu_ep import InferenceSession


def test_the_floor_gives_what_the_session_gives() -> None:
    model, feeds = cases.load("lenet5")
    session = InferenceSession(model, cases.quiet(), provider_options={"placement": "gpu"})
    want = session.run(None, feeds)
    floor = Floor(session, feeds)
    assert floor.seconds() > 0
    for result, wanted in zip(floor.results, want, strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_runs_of_threads_are_submitted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "THREADS_S", 0.2)
    model, feeds = cases.load("lenet5")
    rates, submits = host.joined(model, feeds, [1, 8], {"placement": "gpu"})
    assert rates.keys() == submits.keys() == {1, 8}
    assert submits[1] >= 1 > submits[8] > 0
