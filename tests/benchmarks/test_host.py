"""The floor that runs are compared with: a session's own recording, submitted by itself."""

from __future__ import annotations

import numpy as np

from benchmarks import cases
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
