"""Functions of training steps: layers backward in time, cells, updates; against loops in numpy, float64."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe, reference
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.ops.recurrent_held import GENERAL
from ort_gpu_ep.ops.recurrent_steps import STEPWISE
from ort_gpu_ep.ops.training import STEPS as SHADER

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
    inputs = [
        trial.normal(*sequence),
        trial.normal(*state),
        trial.normal(*state),
        _sigmoid(trial.normal(STEPS, BATCH, 4 * hidden)),
        trial.normal(*sequence),
        trial.normal(*sequence),
        trial.normal(4 * hidden, hidden) / np.float32(hidden),
    ]
    dy, dh, dc, gates, cells, before, r = _wide(inputs)
    da = np.zeros_like(gates)
    for t in reversed(range(STEPS)):
        i, o, f, n = np.split(gates[t], 4, axis=1)
        g, tanh = dy[t] + dh, np.tanh(cells[t])
        dcell = dc + g * o * (1 - tanh**2)
        af, an = dcell * before[t] * f * (1 - f), dcell * i * (1 - n**2)
        da[t] = np.concatenate([dcell * n * i * (1 - i), g * tanh * o * (1 - o), af, an], 1)
        dh, dc = da[t] @ r, dcell * f
    _check(trial, "LSTMBackward", inputs, [da, dh, dc])


def _gru(trial: Trial, hidden: int, first: bool) -> None:
    sequence, state = (STEPS, BATCH, hidden), (BATCH, hidden)
    inputs = [
        trial.normal(*sequence),
        trial.normal(*state),
        _sigmoid(trial.normal(STEPS, BATCH, 3 * hidden)),
        trial.normal(*sequence),
    ]
    small = np.float32(hidden)
    inputs += (
        [trial.normal(2 * hidden, hidden) / small, trial.normal(hidden, hidden) / small]
        if first
        else [trial.normal(*sequence), trial.normal(3 * hidden, hidden) / small]
    )
    dy, dh, gates, before, *rest = _wide(inputs)
    da = np.zeros_like(gates)
    for t in reversed(range(STEPS)):
        z, r, n = np.split(gates[t], 3, axis=1)
        g = dy[t] + dh
        az, an = g * (before[t] - n) * z * (1 - z), g * (1 - z) * (1 - n**2)
        reset = an @ rest[1] if first else an * rest[0][t]
        ar = reset * (before[t] if first else 1) * r * (1 - r)
        da[t] = np.concatenate([az, ar, an], 1)
        back = (
            np.concatenate([az, ar], 1) @ rest[0] + reset * r
            if first
            else np.concatenate([az, ar, an * r], 1) @ rest[1]
        )
        dh = g * z + back
    _check(trial, "GRUBackwardResetFirst" if first else "GRUBackward", inputs, [da, dh])


def _rnn(trial: Trial, hidden: int) -> None:
    inputs = [
        trial.normal(STEPS, BATCH, hidden),
        trial.normal(BATCH, hidden),
        trial.normal(STEPS, BATCH, hidden),
        trial.normal(hidden, hidden) / np.float32(hidden),
    ]
    dy, dh, slope, r = _wide(inputs)
    da = np.zeros_like(dy)
    for t in reversed(range(STEPS)):
        da[t] = (dy[t] + dh) * slope[t]
        dh = da[t] @ r
    _check(trial, "RNNBackward", inputs, [da, dh])


@probe("recurrent layers backward", "kernels", disables=("recurrent_backward.wgsl",))
def backward(trial: Trial) -> str:
    """LSTM, GRU with the reset after and before the product, RNN."""
    sizes = HIDDEN if trial.rounds > 1 else HIDDEN[1:2]
    for _ in range(trial.rounds):
        for hidden in sizes:
            with forced(GENERAL):
                _layers(trial, hidden)
    return f"4 ops, {len(sizes)} sizes"


@probe("recurrent layers backward, a dispatch a step", "kernels", disables=(SHADER, "recurrent_transposed.wgsl"))
def stepwise(trial: Trial) -> str:
    """The same, with hidden units that fill teams and vectors and that don't."""
    sizes = HIDDEN if trial.rounds > 1 else HIDDEN[1:2]
    for form, hidden in trial.repeated(tuple(STEPWISE), sizes, of=3):
        with forced(form):
            _layers(trial, hidden)
    return f"4 ops, {len(STEPWISE)} forms, {len(sizes)} sizes"


def _layers(trial: Trial, hidden: int) -> None:
    _lstm(trial, hidden)
    _gru(trial, hidden, False)
    _gru(trial, hidden, True)
    _rnn(trial, hidden)


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
        got = trial.node(
            "AdamUpdate",
            1,
            [p, g, m, v, hyper],
            outputs=3,
            domain=DOMAIN,
            beta1=0.875,
            beta2=0.9375,
            rest1=0.125,
            rest2=0.0625,
            epsilon=1e-6,
        )
        for k in range(3):
            agree(f"AdamUpdate, output {k}", got[k], want[k], 1e-5)
    return "1 shape"


@probe("momentum", "kernels", disables=("momentum.wgsl",))
def momentum(trial: Trial) -> str:
    """An update of more elements than a workgroup has lanes."""
    for _ in range(trial.rounds):
        p, g, v = (trial.normal(7, 31) for _ in range(3))
        wp, wg, wv = _wide([p, g, v])
        slope = wg + 0.125 * wp
        velocity = wv * 0.875 + slope
        got = trial.node(
            "MomentumUpdate",
            1,
            [p, g, v, np.array([0.25], np.float32)],
            outputs=2,
            domain=DOMAIN,
            momentum=0.875,
            decay=0.125,
            direct=1.0,
            along=0.875,
        )
        for k, want in enumerate((wp - 0.25 * (slope + 0.875 * velocity), velocity)):
            agree(f"MomentumUpdate, output {k}", got[k], want, 1e-5)
    return "1 shape"


POOLS = [((2, 3, 7, 9), (3, 2), (2, 1), (1, 1), (1, 0)), ((2, 3, 21), (3,), (2,), (2,), (2,))]
"""Windows that overlap, with padding; one axis, with dilation. Shape, window, strides, dilations, padding."""


@probe("max pool backward", "kernels", disables=("pool_gradient.wgsl",))
def max_pool(trial: Trial) -> str:
    """Windows that overlap, with padding; one axis, with dilation."""
    for _ in range(trial.rounds):
        for shape, size, strides, dilations, before in POOLS:
            x = trial.normal(*shape)
            y, at = reference(
                "MaxPool", 12, [x], 2, kernel_shape=size, strides=strides, dilations=dilations, pads=(*before, *before)
            )
            dy = trial.normal(*y.shape)
            want = np.zeros(x.size)
            np.add.at(want, at.reshape(-1), dy.reshape(-1).astype(np.float64))
            (got,) = trial.node(
                "MaxPoolGradient",
                1,
                [dy, at.astype(np.int32)],
                domain=DOMAIN,
                kernel_shape=size,
                strides=strides,
                dilations=dilations,
                before=before,
                count=(x.size,),
                shape=shape,
            )
            agree(f"MaxPoolGradient of {list(shape)}", got, want.reshape(shape))
    return f"{len(POOLS)} shapes"


@probe("average pool backward", "kernels", disables=("pool_gradient.wgsl",))
def average_pool(trial: Trial) -> str:
    """The same windows; each with a share of its own."""
    for _ in range(trial.rounds):
        for shape, size, strides, dilations, before in POOLS:
            out = [
                (n + 2 * h - (k - 1) * d - 1) // s + 1
                for n, k, s, d, h in zip(shape[2:], size, strides, dilations, before, strict=True)
            ]
            dy, share, want = trial.normal(*shape[:2], *out), trial.normal(1, 1, *out), np.zeros(shape)
            for at in np.ndindex(*out):
                for tap in np.ndindex(*size):
                    place = tuple(
                        a * s + t * d - h for a, s, t, d, h in zip(at, strides, tap, dilations, before, strict=True)
                    )
                    if all(0 <= p < n for p, n in zip(place, shape[2:], strict=True)):
                        want[(..., *place)] += dy[(..., *at)].astype(np.float64) * share[(0, 0, *at)]
            (got,) = trial.node(
                "AveragePoolGradient",
                1,
                [dy, share],
                domain=DOMAIN,
                kernel_shape=size,
                strides=strides,
                dilations=dilations,
                before=before,
                shape=shape,
            )
            agree(f"AveragePoolGradient of {list(shape)}", got, want, 1e-5)
    return f"{len(POOLS)} shapes"


@probe("depthwise convolution backward", "kernels", disables=("depthwise_weight_gradient.wgsl",))
def depthwise(trial: Trial) -> str:
    """Strides, padding and dilation that differ between the axes."""
    strides, dilations, pads = (2, 1), (1, 2), (1, 0, 1, 2)
    for _ in range(trial.rounds):
        image, maps = trial.normal(3, 5, 9, 40), trial.normal(3, 5, 5, 38)
        around = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (1, 1), (0, 2)))
        want = np.zeros((5, 1, 3, 3))
        for i in range(3):
            for j in range(3):
                seen = around[:, :, i : i + 9 : 2, 2 * j : 2 * j + 38]
                want[:, 0, i, j] = (seen * maps).sum((0, 2, 3))
        (got,) = trial.node(
            "DepthwiseWeightGradient",
            1,
            [image, maps],
            domain=DOMAIN,
            kernel_shape=(3, 3),
            strides=strides,
            dilations=dilations,
            pads=pads,
            group=5,
            planes=(1, -1, 9, 40),
        )
        agree("DepthwiseWeightGradient", got, want)
    return "1 shape"


@probe("cross-entropy", "kernels", disables=("cross_entropy.wgsl",))
def cross_entropy(trial: Trial) -> str:
    """Rows of all lengths, with values that overflow exp."""
    shapes = ((5, 1), (3, 31), (7, 257), (300, 9), (2, 1025)) if trial.rounds > 1 else ((7, 257),)
    for _ in range(trial.rounds):
        for rows, n in shapes:
            z, weight = trial.normal(rows, n) * np.float32(50), abs(trial.normal(rows))
            label = trial.integers(0, n, rows, dtype="int32")
            wide = z.astype(np.float64)
            logs = wide - wide.max(1, keepdims=True)
            logs -= np.log(np.exp(logs).sum(1, keepdims=True))
            onehot = np.eye(n)[label]
            losses, dz = trial.node("SoftmaxCrossEntropy", 1, [z, label, weight], outputs=2, domain=DOMAIN, classes=n)
            agree(f"SoftmaxCrossEntropy of {[rows, n]}, losses", losses, -(logs * onehot).sum(1) * weight)
            agree(f"SoftmaxCrossEntropy of {[rows, n]}, gradient", dz, (np.exp(logs) - onehot) * weight[:, None])
    return f"{len(shapes)} shapes" if len(shapes) > 1 else "1 shape"
