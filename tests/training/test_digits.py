"""Networks learn scikit-learn's digits: some epochs here, 20 on the GPU in digits.json (record_digits.py)."""

from __future__ import annotations

import json

import pytest

from tests.training import digits, record_digits


def test_a_perceptron_learns_on_the_gpu() -> None:
    accuracy, t = digits.trained("mlp", {"placement": "gpu"}, epochs=2)
    assert accuracy > 0.85
    assert t.stats()["placement"] == "gpu"


def test_nine_of_ten_weights_can_go() -> None:
    whole, _ = digits.trained("mlp", {"placement": "cpu"})
    accuracy, t = digits.trained("mlp", {"placement": "cpu"}, optimizer=digits.pruning())
    assert digits.zeros(t) >= 0.9
    assert accuracy >= whole - 0.01


@pytest.mark.parametrize("name", digits.NETWORKS)
def test_what_was_recorded_on_the_gpu_is_good_enough(name: str) -> None:
    found = json.loads(record_digits.RECORDED.read_text())["networks"]
    assert found[name]["placement"] == "gpu"
    assert found[name]["accuracy"] >= digits.GOALS[name]
    assert found["mlp, admm"]["accuracy"] >= found["mlp"]["accuracy"] - 0.01
    assert found["mlp, admm"]["zeros"] >= 0.9
