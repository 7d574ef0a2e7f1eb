"""Random models answer as onnxruntime's CPU does: fusion, planning, partitions and kernels together."""

from __future__ import annotations

import functools

import onnx
import pytest

import ort_gpu_ep
from tests.daily import half
from tests.session.open_graphs import OpenModel, direct_differences, open_differences, open_model
from tests.session.random_graphs import differences, quiet, random_model

OPTIONS: tuple[dict[str, object], ...] = ({}, {"fusion": 0}, {"checked_shaders": 0}, {"isolation": "process"})
SEEDS = 120
OPEN_SEEDS = 30


@functools.cache
def opened(seed: int) -> OpenModel:
    """Asking onnxruntime what may vary takes longer than all else."""
    return open_model(seed)


@pytest.fixture(scope="module", autouse=True)
def one_worker() -> object:
    """Held by a session that lasts: else each model would start its own."""
    return ort_gpu_ep.InferenceSession(
        random_model(0)[0], quiet(), provider_options={"placement": "gpu", "isolation": "process"}
    )


@pytest.mark.parametrize("seed", half(SEEDS))
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


@pytest.mark.parametrize("seed", half(OPEN_SEEDS))
def test_random_models_agree_for_every_size_and_content(seed: int) -> None:
    """`python -m tests.session.random_graphs --open --first 1000 --count 1000` tries others."""
    made = opened(seed)
    direct = direct_differences(made) if seed % 4 else None
    found = direct[0] if direct is not None else open_differences(made, **OPTIONS[seed // 4 % len(OPTIONS)])[0]
    assert not found


def test_open_models_differ_from_run_to_run() -> None:
    """In sizes, some of them 0 or 1, and in what steers shapes."""
    made = [opened(seed) for seed in range(OPEN_SEEDS)]
    assert sum(len(m.runs) for m in made) > 4 * OPEN_SEEDS
    sizes = {d for m in made for feeds in m.runs for a in feeds.values() for d in a.shape}
    assert {0, 1, 13, 17, 33} < sizes
    steered = [
        m
        for m in made
        if any(
            n.startswith("c") and a.dtype == "int64" and not (a == m.runs[0][n]).all()
            for f in m.runs
            for n, a in f.items()
            if a.shape == m.runs[0][n].shape
        )
    ]
    assert len(steered) > 5
