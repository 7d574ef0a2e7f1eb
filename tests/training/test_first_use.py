"""What whoever trains for the first time does: labels of any integers, batches of one, models of a fixed batch,
checkpoints elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.training import Adam, Trainer, checkpoint
from tests.training import references
from tests.training.test_step import conv_bn
from tests.training.test_trainer import SIDES, bits, points, trainer


@pytest.mark.parametrize("side", SIDES)
def test_labels_may_be_any_integers(side: str) -> None:
    x, y = points(12)
    found = []
    for kind in ("uint8", "int32", "int64"):
        t = trainer(side)
        t.fit(x, (y % 2).astype(kind), batch=5)
        found.append(bits(t))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("side", SIDES)
def test_batches_of_one_and_a_last_batch_of_one(side: str) -> None:
    x, y = points(5)
    t, one = trainer(side), trainer(side)
    t.fit(x, y, batch=1, shuffle=False)
    for k in range(5):
        one.step(x[k : k + 1], y[k : k + 1])
    assert t.steps == 5
    assert bits(t) == bits(one)
    last = trainer(side)
    last.fit(x, y, batch=4, shuffle=False)
    assert last.steps == 2


@pytest.mark.parametrize("side", SIDES)
def test_samples_without_weight_are_left_out(side: str) -> None:
    x, y = points(20)
    weight = np.r_[np.zeros(9), np.ones(11)]
    some, all_of_them = trainer(side), trainer(side)
    some.fit(x[9:], y[9:], batch=4, shuffle=False, sample_weight=np.ones(11))
    all_of_them.fit(x, y, batch=4, shuffle=False, sample_weight=list(weight))
    assert bits(some) == bits(all_of_them)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "batch": ({"batch": 0}, "batch: got 0, expected at least 1"),
    "epochs": ({"epochs": -1}, "epochs: got -1, expected at least 0"),
    "length": ({"sample_weight": np.ones(3)}, r"sample weights: got the shape \[3\], expected 12 finite numbers"),
    "sign": ({"sample_weight": -np.ones(12)}, "sample weights: .* of at least 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_of_fit_are_said_before_the_first_step(name: str) -> None:
    arguments, message = WRONG[name]
    t = trainer("cpu")
    with pytest.raises(TrainingError, match=message):
        t.fit(*points(12), **arguments)
    assert t.steps == 0


def test_wrong_optimizers_and_rates_are_said_at_once() -> None:
    with pytest.raises(
        TrainingError, match=r"optimizer: got 'adam', expected one as Adam\(1e-3\), of SGD, Adam, AdamW"
    ):
        trainer("cpu", optimizer="adam")
    with pytest.raises(
        TrainingError, match=r"learning rate: got '1e-3', expected a finite number of at least 0, or a schedule"
    ):
        Adam("1e-3")  # type: ignore[arg-type]


def test_a_model_of_a_fixed_batch_takes_any_number_up_to_it(rng: np.random.Generator) -> None:
    x, y = rng.normal(size=(13, 2, 3, 3)).astype("f"), rng.integers(0, 4, 13)

    def made() -> Trainer:
        return Trainer(conv_bn(), loss="cross_entropy", optimizer=Adam(0.01), options={"placement": "cpu"})

    few = made()
    few.step(x[:4], y[:4])
    assert few._engine.step.feeds["x"][1] == (6, 2, 3, 3)
    whole = made()
    whole.step(x[:6], y[:6], np.r_[np.ones(4), np.zeros(2)])
    assert bits(few) == bits(whole)
    assert made().predict(x).shape == (13, 4)
    assert made().evaluate(x, y)["loss"] > 0
    with pytest.raises(TrainingError, match="its batch size is fixed: give batches of 6"):
        made().fit(x, y)


def test_a_nan_in_the_samples_is_found_there() -> None:
    x, y = points(8)
    x[3, 2] = np.nan
    with pytest.raises(TrainingError, match="the first value that is not finite comes from the input 'x';"):
        trainer("cpu").fit(x, y)


ELSEWHERE = """
import sys
import numpy as np
from tests.training import references
from ort_gpu_ep.training import Adam, Trainer

file = np.load(sys.argv[1] + ".npz")
t = Trainer(references.mlp(), loss="cross_entropy", optimizer=Adam(0.02), options={"placement": "cpu"}, seed=5)
t.fit(file["x"], file["y"], batch=8, epochs=2)
t.save(sys.argv[1])
"""


def test_a_checkpoint_of_another_process(tmp_path: Path) -> None:
    x, y = points(30)
    path = tmp_path / "t.safetensors"
    np.savez(f"{path}.npz", x=x, y=y)
    subprocess.run([sys.executable, "-c", ELSEWHERE, str(path)], check=True, timeout=300, cwd=Path(__file__).parents[2])
    one, two = (trainer("cpu", model=references.mlp(), seed=seed) for seed in (5, 0))
    one.fit(x, y, batch=8, epochs=3)
    two.load(path)
    two.fit(x, y, batch=8)
    assert bits(one) == bits(two)


def test_checkpoints_of_before_and_such_that_are_none(tmp_path: Path) -> None:
    t, path = trainer("cpu"), tmp_path / "t.safetensors"
    t.fit(*points(8), batch=4)
    t.save(path)
    tensors, metadata = checkpoint.read(path)
    checkpoint.write(path, tensors, {n: text for n, text in metadata.items() if n not in ("epochs", "seed")})
    old = trainer("cpu")
    old.load(path)
    assert (old.steps, old.epochs) == (2, 0)
    checkpoint.write(path, tensors, {**metadata, "step": "two"})
    with pytest.raises(TrainingError, match="its step is 'two', expected a whole number"):
        t.load(path)
    with pytest.raises(TrainingError, match="it is a folder, expected a file"):
        t.load(tmp_path)
    with pytest.raises(TrainingError, match=r"there is no folder '.*missing'; make it first"):
        t.save(tmp_path / "missing" / "t")
