"""A library that records for the driver in a submission, as Dawn does: the GPU has the first dispatches of a run before
the others."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.runtime import commands
from ort_gpu_ep.webgpu import native
from tests.session.conftest import assert_close, gpu_session, on_the_cpu
from tests.session.test_direct import WARM
from tests.unit.graphs import model_of


def chain(length: int) -> bytes:
    """So many dispatches, one behind another."""
    names = ["x", *(f"v{k}" for k in range(length - 1)), "y"]
    lines = [f"{after} = Softmax<axis = {k % 2}>({before})" for k, (before, after) in enumerate(pairwise(names))]
    return bytes(model_of(f"(float[5, 7] x) => (float[5, 7] y) {{ {' '.join(lines)} }}").SerializeToString())


@pytest.mark.parametrize(
    ("late", "length", "submits"),
    [(True, commands.HEAD_LEAST, 2), (True, commands.HEAD_LEAST - 1, 1), (False, commands.HEAD_LEAST, 1)],
)
def test_a_run_begins_with_its_head(monkeypatch: pytest.MonkeyPatch, late: bool, length: int, submits: int) -> None:
    monkeypatch.setattr(native, "RECORDS_LATE", late)
    model, rng = chain(length), np.random.default_rng()
    session: Any = gpu_session(model)
    gpu = session.state.gpu
    for _ in range(WARM + 2):
        feeds = {"x": rng.standard_normal((5, 7), np.float32)}
        before = gpu.stats.submits
        found = session.run(None, feeds)
        assert_close(found, on_the_cpu(model, feeds))
    assert gpu.stats.submits - before == submits
