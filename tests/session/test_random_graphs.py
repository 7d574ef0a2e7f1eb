"""Random models answer as onnxruntime's CPU does: fusion, planning, partitions and kernels together."""

from __future__ import annotations

import onnx
import pytest

import ort_gpu_ep
from tests.session.random_graphs import differences, quiet, random_model

OPTIONS: tuple[dict[str, object], ...] = ({}, {"fusion": 0}, {"checked_shaders": 0}, {"isolation": "process"})
SEEDS = 120


@pytest.fixture(scope="module", autouse=True)
def one_worker() -> object:
    """Held by a session that lasts: else each model would start its own."""
    return ort_gpu_ep.InferenceSession(random_model(0)[0], quiet(), provider_options={"placement": "gpu", "isolation": "process"})


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_models_agree_with_the_cpu(seed: int) -> None:
    """`python -m tests.session.random_graphs --first 1000 --count 1000` tries others."""
    model, feeds, outputs = random_model(seed, dynamic=seed % 8 > 3)
    found, session = differences(model, feeds, outputs, **OPTIONS[seed % len(OPTIONS)])
    assert not found, session.explain()


def test_random_models_are_not_all_alike() -> None:
    """What the comparison can see depends on what is generated."""
    ops = set()
    for seed in range(SEEDS):
        model = random_model(seed)[0]
        ops |= {n.op_type for n in onnx.load_from_string(model).graph.node}
    assert len(ops) > 80
