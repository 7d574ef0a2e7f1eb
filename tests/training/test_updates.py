"""What ends a step: gradients added up over several, weights that stay, weights pruned on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.training import SGD, Adam, Admm, cosine, make_training_step
from ort_gpu_ep.training.admm import kept
from tests.training import references
from tests.training.test_step import batches
from tests.training.test_trainer import SIDES, bits, points, trainer


@pytest.mark.parametrize("name", ["sgd", "adam", "clip"])
@pytest.mark.parametrize("side", SIDES)
def test_accumulated_steps_make_the_update_of_one_large_batch(side: str, name: str) -> None:
    optimizer, update = {
        "sgd": (SGD(0.3, 0.9), references.sgd(0.3, 0.9)),
        "adam": (Adam(0.02), references.adam(0.02)),
        "clip": (SGD(0.3, clip=0.2), references.clipping(references.sgd(0.3), 0.2)),
    }[name]
    data = batches(5, 12)
    t = trainer(side, model=references.mlp(), optimizer=optimizer, accumulate=3)
    losses = [[float(t.step(x[k : k + 4], y[k : k + 4])) for k in (0, 4, 8)] for x, y in data]
    want, weights = references.trajectory(references.mlp(), data, update)
    np.testing.assert_allclose(np.mean(losses, 1), want, atol=2e-6)
    for n, w in weights.items():
        np.testing.assert_allclose(t.parameters()[n], w, atol=1e-5)


def test_between_updates_only_the_gradient_changes_and_resuming_there_is_exact(tmp_path: Path) -> None:
    data = batches(4, 4)
    one, two = (trainer(model=references.mlp(), accumulate=2) for _ in range(2))
    for x, y in data[:3]:
        one.step(x, y)
    one.save(tmp_path / "t.safetensors")
    before = one.parameters()
    two.load(tmp_path / "t.safetensors")
    for t in (one, two):
        t.step(*data[3])
    assert bits(one) == bits(two)
    assert not np.array_equal(before["w0"], one.parameters()["w0"])
    third = trainer(model=references.mlp(), accumulate=2)
    for x, y in data[:2]:
        third.step(x, y)
    np.testing.assert_array_equal(third.parameters()["w0"], before["w0"])


@pytest.mark.parametrize("side", SIDES)
def test_accumulation_goes_on_over_epochs_checkpoints_and_failures(side: str, tmp_path: Path) -> None:
    """Four steps an epoch, three an update: epochs end in the middle of one, and with a short batch."""
    x, y = points(30)

    def made(**options: Any) -> Any:
        return trainer(side, model=references.mlp(), accumulate=3, optimizer=Adam(cosine(0.05, 4)), options=options)

    one, two, three = made(), made(), made()
    one.fit(x, y, epochs=3, batch=8)
    two.fit(x, y, epochs=1, batch=8)
    two.save(tmp_path / "t.safetensors")
    three.load(tmp_path / "t.safetensors")
    three.fit(x, y, epochs=2, batch=8)
    assert three.steps == one.steps == 12
    assert bits(three) == bits(one)
    if side == "gpu":
        failing = made(faults="lost@8;seed=1")
        failing.fit(x, y, epochs=3, batch=8)
        assert failing.stats()["renewals"] == 1
        assert bits(failing) == bits(one)


def test_frozen_weights_stay() -> None:
    step = make_training_step(
        references.mlp((6, 8, 5, 3)), loss="cross_entropy", optimizer=SGD(0.1), frozen=["b*", "w0"], batch=5
    )
    assert set(step.parameters) == {"w1", "w2"}
    both = make_training_step(
        references.mlp((6, 8, 5, 3)), loss="cross_entropy", optimizer=SGD(0.1), trainable=["*2"], frozen=["b*"], batch=5
    )
    assert both.parameters == ("w2",)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "frozen": ({"frozen": ["v*"]}, "frozen: 'v.' matches none of the model's 4 float32 weights"),
    "all frozen": ({"frozen": ["*"]}, "frozen: '.' leaves no weight to train"),
    "text": ({"frozen": "w0"}, "frozen: got the text 'w0', expected a list of patterns"),
    "accumulate": ({"accumulate": 0}, "accumulate: got 0, expected the number of steps that make an update"),
    "pruned": ({"optimizer": Admm(SGD(0.1), {"conv*": 0.5}, every=1, prune_at=2)}, "Admm: 'conv.' matches none"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_said(name: str) -> None:
    changed, message = MISTAKES[name]
    with pytest.raises(TrainingError, match=message):
        make_training_step(references.mlp(), **{"loss": "cross_entropy", "optimizer": SGD(0.1), "batch": 5, **changed})


@pytest.mark.parametrize(
    "wrong", [{"sparsity": {"w*": 1.0}}, {"sparsity": {}}, {"every": 0}, {"prune_at": -1}, {"rho": 0.0}]
)
def test_wrong_numbers_of_admm_are_said(wrong: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match=r"Admm: .*expected"):
        Admm(SGD(0.1), **{"sparsity": {"w*": 0.5}, "every": 1, "prune_at": 2, **wrong})


@pytest.mark.parametrize("side", SIDES)
def test_admm_prunes_what_it_is_told_and_trains_the_rest(side: str) -> None:
    x, y = points(60)
    pruning = Admm(Adam(0.02), {"w0": 0.75, "w*": 0.5}, every=5, prune_at=20, rho=0.1)
    t = trainer(side, optimizer=pruning)
    t.fit(x, y, epochs=4, batch=12)
    assert not (t.parameters()["w0"] == 0).any()
    t.fit(x, y, epochs=1, batch=12)
    weights = t.parameters()
    assert {n: (w == 0).sum() for n, w in weights.items()} == {"w0": 36, "w1": 12, "b0": 0, "b1": 0}
    zeros = {n: w == 0 for n, w in weights.items()}
    t.fit(x, y, epochs=15, batch=12)
    assert all(np.array_equal(t.parameters()[n] == 0, z) for n, z in zeros.items())
    assert t.evaluate(x, y)["accuracy"] > 0.7
    assert "prune_at=20" in t.summary()


def test_admm_is_that_of_numpy() -> None:
    """SGD on the loss with rho / 2 |W - Z + U|^2 added; Z and U before updates 0 and 3, pruned before update 6."""
    data, rho, rate = batches(8), 0.2, 0.1
    pruning = Admm(SGD(rate), {"w0": 0.5}, every=3, prune_at=6, rho=rho)
    t = trainer(model=references.mlp(), optimizer=pruning)
    p = references.weights(references.mlp())
    goal, dual, mask = (np.zeros_like(p["w0"]) for _ in range(3))
    mask += 1
    for k, (x, y) in enumerate(data):
        t.step(x, y)
        if k in (0, 3):
            goal = (p["w0"] + dual) * kept(p["w0"] + dual, 0.5)
            dual = p["w0"] + dual - goal
        if k == 6:
            mask = kept(p["w0"], 0.5)
            p["w0"] = p["w0"] * mask
        _, g = references.gradients(p, x, y, np.full(5, 0.2))
        g["w0"] = g["w0"] + (rho * (p["w0"] - goal + dual) if k < 6 else 0)
        p = {n: p[n] - rate * g[n] for n in p}
        p["w0"] = p["w0"] * mask
    for n, w in p.items():
        np.testing.assert_allclose(t.parameters()[n], w, atol=1e-5)


@pytest.mark.parametrize("stop", [3, 4, 7])
def test_pruning_goes_on_where_it_was(stop: int, tmp_path: Path) -> None:
    data = batches(9)
    pruning = Admm(Adam(0.02), {"w*": 0.5}, every=2, prune_at=5)
    one, two = (trainer("cpu", model=references.mlp(), optimizer=pruning) for _ in range(2))
    for x, y in data[:stop]:
        one.step(x, y)
    one.save(tmp_path / "t.safetensors")
    two.load(tmp_path / "t.safetensors")
    for x, y in data[stop:]:
        one.step(x, y)
        two.step(x, y)
    assert bits(one) == bits(two)


def test_a_lost_device_loses_nothing_of_a_pruning_run() -> None:
    found, data = [], batches(9)
    for options in ({}, {"faults": "lost@3,lost@8;seed=1"}):
        t = trainer(
            model=references.mlp(),
            optimizer=Admm(Adam(0.02), {"w*": 0.5}, every=2, prune_at=5),
            accumulate=1,
            options=options,
        )
        for x, y in data:
            t.step(x, y)
        found.append(bits(t))
    assert t.stats()["renewals"] >= 2
    assert found[0] == found[1]
