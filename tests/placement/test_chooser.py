"""Why a decision was made, in words."""

from __future__ import annotations

import pytest

from ort_gpu_ep.placement.chooser import _reason
from ort_gpu_ep.placement.decider import Entry
from ort_gpu_ep.placement.estimate import Estimate, Size

RAN, LOADED, NEAR, ASSUMED = (
    Estimate(1e-3, 0.1, runs=3),
    Estimate(1e-3, 0.1, runs=3, loaded=True),
    Estimate(1e-3, 0.2, sizes=2),
    Estimate(9e-3, 0.5),
)


@pytest.mark.parametrize(
    ("cpu", "gpu", "budget_ms", "expected"),
    [
        (RAN, RAN, 500, ("measured", "the fastest of those that were run")),
        (RAN, LOADED, 500, ("cached", "the fastest of those that an earlier session ran")),
        (RAN, NEAR, 500, ("predicted", "the fastest by what 2 other sizes took")),
        (
            RAN,
            ASSUMED,
            500,
            ("predicted", "the fastest by what was measured and what the partitioner expects of the others"),
        ),
        (RAN, ASSUMED, 0, ("predicted", "placement_budget_ms leaves no time to run the candidates")),
    ],
)
def test_reasons(cpu: Estimate, gpu: Estimate, budget_ms: int, expected: tuple[str, str]) -> None:
    assert _reason(Entry(Size((), 1.0)), {"cpu": cpu, "gpu": gpu}, budget_ms) == expected
