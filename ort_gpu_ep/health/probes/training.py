"""Functions of training steps: layers backward in time, cells, updates; against loops in numpy, float64."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.graph import Array
from ort_gpu_ep.health.probe import Trial, agree, probe

DOMAIN = "ort_gpu_ep.training"
STEPS, BATCH = 4, 3
HIDDEN = (1, 33, 130, 300)
"""Below, at and above the number of lanes that sum, and more units than lanes."""


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)), np.float32)


def _check(trial: Trial, op: str, given: list[Array], want: list[Array]) -> None:
    got = trial.node(op, 1, given, outputs=len(want), domain=DOMAIN)
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        agree(f"{op} of hidden size {given[-1].shape[-1]}, output {k}", g, w, 1e-4)


def _wide(arrays: list[Array]) -> list[Array]:
    return [a.astype(np.float64) for a in arrays]


def _lstm(trial: Trial, hidden: int) -> None:
    sequence, state = (STEPS, BATCH, hidden), (BATCH, hidden)
    given = [trial.normal(*sequence), trial.normal(*state), trial.normal(*state), _sigmoid(trial.normal(STEPS, BATCH, 4 * hidden)),
             trial.normal(*sequence), trial.normal(*sequence), trial.normal(4 * hidden, hidden) / np.float32(hidden)]
    dy, dh, dc, gates, cells, before, r = _wide(given)
    da = np.zeros_like(gates)
    for t in reversed(range(STEPS)):
        i, o, f, n = np.split(gates[t], 4, axis=1)
        g, tanh = dy[t] + dh, np.tanh(cells[t])
        dcell = dc + g * o * (1 - tanh**2)
        af, an = dcell * before[t] * f * (1 - f), dcell * i * (1 - n**2)
        da[t] = np.concatenate([dcell * n * i * (1 - i), g * tanh * o * (1 - o), af, an], 1)
        dh, dc = da[t] @ r, dcell * f
    _check(trial, "LSTMBackward", given, [da, dh, dc])


def _gru(trial: Trial, hidden: int, first: bool) -> None:
    sequence, state = (STEPS, BATCH, hidden), (BATCH, hidden)
    given = [trial.normal(*sequence), trial.normal(*state), _sigmoid(trial.normal(STEPS, BATCH, 3 * hidden)), trial.normal(*sequence)]
    small = np.float32(hidden)
    given += ([trial.normal(2 * hidden, hidden) / small, trial.normal(hidden, hidden) / small] if first
              else [trial.normal(*sequence), trial.normal(3 * hidden, hidden) / small])
    dy, dh, gates, before, *rest = _wide(given)
    da = np.zeros_like(gates)
    for t in reversed(range(STEPS)):
        z, r, n = np.split(gates[t], 3, axis=1)
        g = dy[t] + dh
        az, an = g * (before[t] - n) * z * (1 - z), g * (1 - z) * (1 - n**2)
        reset = an @ rest[1] if first else an * rest[0][t]
        ar = reset * (before[t] if first else 1) * r * (1 - r)
        da[t] = np.concatenate([az, ar, an], 1)
        back = np.concatenate([az, ar], 1) @ rest[0] + reset * r if first else np.concatenate([az, ar, an * r], 1) @ rest[1]
        dh = g * z + back
    _check(trial, "GRUBackwardResetFirst" if first else "GRUBackward", given, [da, dh])


def _rnn(trial: Trial, hidden: int) -> None:
    given = [trial.normal(STEPS, BATCH, hidden), trial.normal(BATCH, hidden), trial.normal(STEPS, BATCH, hidden),
             trial.normal(hidden, hidden) / np.float32(hidden)]
    dy, dh, slope, r = _wide(given)
    da = np.zeros_like(dy)
    for t in reversed(range(STEPS)):
        da[t] = (dy[t] + dh) * slope[t]
        dh = da[t] @ r
    _check(trial, "RNNBackward", given, [da, dh])


@probe("recurrent layers backward", "kernels", disables=("recurrent_backward.wgsl",))
def backward(trial: Trial) -> str:
    """LSTM, GRU with the reset after and before the product, RNN."""
    sizes = HIDDEN if trial.rounds > 1 else HIDDEN[1:2]
    for _ in range(trial.rounds):
        for hidden in sizes:
            _lstm(trial, hidden)
            _gru(trial, hidden, False)
            _gru(trial, hidden, True)
            _rnn(trial, hidden)
    return f"4 ops, {len(sizes)} sizes"


@probe("LSTM cells", "kernels", disables=("lstm_cells.wgsl",))
def cells(trial: Trial) -> str:
    """A state of more elements than a workgroup has lanes."""
    for _ in range(trial.rounds):
        forget, added, c = _sigmoid(trial.normal(5, 3, 37)), trial.normal(5, 3, 37), trial.normal(3, 37)
        want, now = np.zeros((5, 3, 37)), c.astype(np.float64)
        for t in range(5):
            now = want[t] = forget[t].astype(np.float64) * now + added[t]
        (got,) = trial.node("LSTMCells", 1, [forget, added, c], domain=DOMAIN)
        agree("LSTMCells", got, want, 1e-5)
    return "1 shape"


@probe("Adam", "kernels", disables=("adam.wgsl",))
def adam(trial: Trial) -> str:
    """An update of more elements than a workgroup has lanes."""
    for _ in range(trial.rounds):
        p, g, m, v = (trial.normal(7, 31) for _ in range(4))
        v, hyper = v * v, np.array([0.01, 3.0, 0.9], np.float32)
        wp, wg, wm, wv = _wide([p, g, m, v])
        mean, square = wm * 0.875 + wg * 0.125, wv * 0.9375 + wg**2 * 0.0625
        want = [wp * 0.9 - mean * 0.01 / (np.sqrt(square) * 3.0 + 1e-6), mean, square]
        got = trial.node("AdamUpdate", 1, [p, g, m, v, hyper], outputs=3, domain=DOMAIN, beta1=0.875, beta2=0.9375, rest1=0.125,
                         rest2=0.0625, epsilon=1e-6)
        for k in range(3):
            agree(f"AdamUpdate, output {k}", got[k], want[k], 1e-5)
    return "1 shape"
