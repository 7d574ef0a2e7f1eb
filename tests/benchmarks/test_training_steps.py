"""The benchmark of training steps: its sides take the same steps, and it counts what they move."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import training


def test_all_sides_take_the_same_steps() -> None:
    optimizer, rng = training.OPTIMIZERS["adam"], np.random.default_rng(0)
    model = training.CASES["mlp_16"].build(4)
    x, y = rng.normal(size=(4, 16)).astype("f"), rng.integers(0, 16, 4)
    written = training.make_training_step(model, loss="cross_entropy", optimizer=optimizer)
    one, _ = training.ours(model, optimizer, x, y, {"placement": "cpu"})
    other = training.numpy_loop(written, optimizer, x, y, {"placement": "cpu"})
    np.testing.assert_allclose([float(one()) for _ in range(5)], [float(other()) for _ in range(5)], rtol=1e-6)


def test_a_row_counts_bytes() -> None:
    row = training.measure("mlp_16", "sgd", 4, 10, 1, {})
    assert {"gpu", "cpu", "numpy", "held"} <= set(row.ms)
    batch, loss, state = 4 * 16 * 4 + 4 * 8 + 4, 4 / 10, (16 * 16 + 16) * 4 / 10  # one loss of ten was read
    snapshots = (row.nbytes - batch - loss) / state
    assert snapshots == pytest.approx(round(snapshots)), "with those that fell into the ten steps: one a second at most"
    assert round(snapshots) >= 0


@pytest.mark.usefixtures("slow_drawing")
def test_lstms_of_several_sizes_are_drawn(tmp_path: Path) -> None:
    """From told times: a panel for each number of layers, in it a curve for each side, optimizer and batch."""

    def row(name: str, optimizer: str) -> training.Row:
        layers, hidden = training.LSTM[name]
        return training.Row(name, optimizer, 32, {"cpu": float(layers * hidden), "gpu": float(hidden)}, 0.1, 10.0)

    rows = [row(name, optimizer) for name in reversed(training.LSTM) for optimizer in ("sgd", "adam")]
    training.plot(rows, tmp_path / "lstm.svg")
    text = (tmp_path / "lstm.svg").read_text()
    assert text.count('id="legend_1"') == 1
    for found in ("1 layer ", "2 layers", "3 layers", "CPU, sgd, batch 32", "GPU, adam, batch 32"):
        assert f"<!-- {found.strip()} -->" in text
    assert {hidden for _, hidden in training.LSTM.values()} == {32, 64, 128, 256}
