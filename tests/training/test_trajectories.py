"""Losses step by step against torch's in float64: as recorded for 100 steps by record_torch.py, and the first ones
here."""

from __future__ import annotations

import json

import pytest

from tests.training import trajectories as tr

STEPS = [
    ("gpu", "mlp", "sgd", 100),
    ("gpu", "mlp", "adam", 100),
    ("gpu", "lenet5", "adam", 8),
    ("gpu", "lstm", "sgd", 2),
    *(
        ("cpu", network, optimizer, steps)
        for network, steps in {"mlp": 100, "lenet5": 30, "lstm": 5, "mobilenet_v2 head": 10}.items()
        for optimizer in tr.OPTIMIZERS
    ),
]


@pytest.mark.parametrize(("side", "network", "optimizer", "steps"), STEPS)
def test_losses_are_those_of_torch(side: str, network: str, optimizer: str, steps: int) -> None:
    want, distance = tr.allowed(network, optimizer, steps)
    got = tr.losses(network, optimizer, {"placement": side}, steps)
    assert abs(got - want).max() <= distance + (tr.CPU_EXTRA if side == "cpu" else 0)


@pytest.mark.parametrize("optimizer", tr.OPTIMIZERS)
@pytest.mark.parametrize("network", tr.NETWORKS)
def test_a_hundred_steps_were_near_enough_when_they_were_recorded(network: str, optimizer: str) -> None:
    want, distance = tr.allowed(network, optimizer)
    assert len(want) == tr.STEPS
    found = json.loads(tr.RECORDED.read_text())["cases"][f"{network}, {optimizer}"]["distance"]
    assert found["gpu"] <= distance
    assert found["cpu"] <= distance + tr.CPU_EXTRA
