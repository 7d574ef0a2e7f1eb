"""Sessions in situations that one run does not show, against ONNX Runtime's CPU: the same model with other sizes again
and again, by several threads, by IO binding whose inputs change in place, with results that are kept, with forms
forced, limits, precision; training in odd batches.

`python -m tests.session.situations --first 0 --count 500` prints each seed at which an answer differs, and how many
runs the GPU had; `--seconds 60` ends then. A seed makes the same situation each time.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime

import ort_gpu_ep
from ort_gpu_ep.training import SGD, Adam, Trainer
from tests.session.fuzz import different
from tests.session.random_graphs import Array, quiet
from tests.training import references
from tests.unit.graphs import model_of

RUNS = 24
"""Of a session, in each way that it runs."""

SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 65)
THREADS = 3

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "fusion": ("1", "1", "0"),
    "checked_shaders": ("auto", "1", "0"),
    "specialize": ("auto", "off"),
    "unit_plans": ("background", "wait"),
    "join_runs": ("auto", "1", "0"),
    "winograd": ("1", "0"),
    "rounding": ("1", "0"),
    "few_tokens": ("0", "0", "5"),
    "memory_limit_mb": ("0", "0", "1"),
}

HALVES = 3e-2
"""With precision=f16: of the largest element."""

Feeds = dict[str, Array]


@dataclass(frozen=True)
class Family:
    """A model with open sizes; constants: by the seed's generator; feeds: of two sizes."""

    text: str
    constants: Callable[[Any], Mapping[str, Array]]
    feeds: Callable[[Any, int, int], Feeds]


def _normal(rng: Any, *shape: int) -> Array:
    made: Array = rng.standard_normal(shape).astype("f")
    return made


def _pruned(rng: Any, *shape: int) -> Array:
    made: Array = _normal(rng, *shape) * (rng.random(shape) < 0.1)
    return made.astype("f")


FAMILIES: Mapping[str, Family] = {
    "dense": Family(
        "(float[N, M, 24] x) => (float[N, M, 16] y, float[N, M] z) "
        "{ h = MatMul(x, w) g = Add(h, b) a = Relu(g) c = MatMul(a, v) y = Softmax<axis = -1>(c) z = "
        "ReduceMean<keepdims = 0>(c, axis) }",
        lambda r: {"w": _normal(r, 24, 40), "b": _normal(r, 40), "v": _normal(r, 40, 16), "axis": np.array([-1])},
        lambda r, n, m: {"x": _normal(r, n, m, 24)},
    ),
    "pruned": Family(
        "(float[N, 256] x) => (float[N, 128] y) { h = MatMul(x, w) a = Tanh(h) y = MatMul(a, v) }",
        lambda r: {"w": _pruned(r, 256, 384), "v": _pruned(r, 384, 128)},
        lambda r, n, m: {"x": _normal(r, n, 256)},
    ),
    "images": Family(
        "(float[N, 4, H, 24] x) => (float[N, 8, P, 12] y, float[N, 8] z) { h = Conv<pads = [1, 1, 1, 1]>(x, w, b) "
        "a = Relu(h) "
        "d = Conv<pads = [1, 1, 1, 1], group = 8>(a, u) e = Add(d, a) y = MaxPool<kernel_shape = [2, 2], strides "
        "= [2, 2]>(e) "
        "p = GlobalAveragePool(e) z = Flatten(p) }",
        lambda r: {"w": _normal(r, 8, 4, 3, 3), "b": _normal(r, 8), "u": _normal(r, 8, 1, 3, 3)},
        lambda r, n, m: {"x": _normal(r, min(n, 5), 4, m + 1, 24)},
    ),
    "branches": Family(
        "(float[N, 12] x, bool more) => (float[N, 12] y) { h = MatMul(x, w) g = If (more) "
        "<then_branch = then () => (float[N, 12] t) { s = Sigmoid(h) t = Mul(s, h) }, "
        "else_branch = other () => (float[N, 12] e) { e = Neg(h) }> y = Add(g, x) }",
        lambda r: {"w": _normal(r, 12, 12)},
        lambda r, n, m: {"x": _normal(r, n, 12), "more": np.array(m % 2 == 0)},
    ),
    "recurrent": Family(
        "(float[T, N, 6] x) => (float[T, N, 8] y) { h, l, c = LSTM<hidden_size = 8>(x, w, r) s = Squeeze(h, axis) "
        "y = Tanh(s) }",
        lambda r: {"w": _normal(r, 1, 32, 6), "r": _normal(r, 1, 32, 8), "axis": np.array([1])},
        lambda r, n, m: {"x": _normal(r, min(m, 17), min(n, 5), 6)},
    ),
    "tokens": Family(
        "(int64[B, T] ids, float[B, T, 8] x) => (float[B, T, 8] y, int64[B] best) { e = Gather(table, ids) h "
        "= Add(e, x) "
        "k = Transpose<perm = [0, 2, 1]>(h) s = MatMul(h, k) p = Softmax(s) y = MatMul(p, h) "
        "t = ReduceSum<keepdims = 0>(y, axes) best = ArgMax<axis = 1, keepdims = 0>(t) }",
        lambda r: {"table": _normal(r, 50, 8), "axes": np.array([2])},
        lambda r, n, m: {"ids": r.integers(-50, 50, (min(n, 7), m)), "x": _normal(r, min(n, 7), m, 8)},
    ),
}


@dataclass
class Situation:
    """A model, its session on the GPU, what the CPU gives, and what was seen."""

    seed: int
    counts: Counter[str]

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.name = list(FAMILIES)[self.seed % len(FAMILIES)]
        self.family = FAMILIES[self.name]
        self.options = {"placement": "gpu", "health": "off", **{k: str(self.rng.choice(v)) for k, v in OPTIONS.items()}}
        if self.rng.random() < 0.15:
            self.options["precision"] = "f16"
        self.model = model_of(self.family.text, self.family.constants(self.rng)).SerializeToString()
        self.cpu = onnxruntime.InferenceSession(self.model, quiet(), providers=["CPUExecutionProvider"])
        self.session = ort_gpu_ep.InferenceSession(self.model, quiet(), provider_options=self.options)
        sizes = self.rng.choice(SIZES, (6, 2))
        self.cases = [
            (feeds, self.cpu.run(None, feeds))
            for n, m in sizes
            for feeds in [self.family.feeds(self.rng, int(n), int(m))]
        ]
        self.found: list[str] = []

    def check(self, how: str, got: list[Any], want: list[Array]) -> None:
        for g, w in zip(got, want, strict=True):
            if "precision" in self.options:
                wrong = w.dtype.kind == "f" and (
                    g.shape != w.shape
                    or float(np.abs(g - w).max(initial=0)) > HALVES * max(np.abs(w).max(initial=0), 1)
                )
                what = f"beyond {HALVES}" if wrong else ""
            else:
                what = different(g, w)
            if what:
                self.found.append(f"{how}: {what}")

    def again(self) -> None:
        """Sizes in turn; all results are looked at in the end, when the runs behind them have taken their memory."""
        order = self.rng.integers(len(self.cases), size=RUNS)
        kept = [(self.session.run(None, self.cases[k][0]), self.cases[k][1]) for k in order]
        for got, want in kept:
            self.check("again", got, want)

    def threads(self) -> None:
        """Several threads, each with sizes of its own."""
        orders = self.rng.integers(len(self.cases), size=(THREADS, RUNS // 2))
        with ThreadPoolExecutor(THREADS) as pool:
            for order, results in zip(
                orders, pool.map(lambda o: [self.session.run(None, self.cases[k][0]) for k in o], orders), strict=True
            ):
                for k, got in zip(order, results, strict=True):
                    self.check("threads", got, self.cases[k][1])

    def bound(self) -> None:
        """Inputs in host memory that change between the runs of one binding."""
        feeds = {name: array.copy() for name, array in self.cases[0][0].items()}
        binding = self.session.io_binding()
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for output in self.session.get_outputs():
            binding.bind_output(output.name)
        for _ in range(RUNS // 3):
            for name, value in values.items():
                if feeds[name].dtype.kind == "f":
                    feeds[name] = _normal(self.rng, *feeds[name].shape)
                    value.update_inplace(feeds[name])
            self.session.run_with_iobinding(binding)
            self.check("bound", binding.copy_outputs_to_cpu(), self.cpu.run(None, feeds))

    def values(self) -> None:
        """OrtValues, of which only views are kept."""
        kept = []
        for k in self.rng.integers(len(self.cases), size=RUNS // 3):
            feeds = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in self.cases[k][0].items()}
            kept.append(
                ([np.asarray(v.numpy()) for v in self.session.run_with_ort_values(None, feeds)], self.cases[k][1])
            )
        for got, want in kept:
            self.check("values", got, want)

    def run(self) -> list[str]:
        """What differed, in all ways of running, in an order by chance."""
        for way in self.rng.permutation([self.again, self.threads, self.bound, self.values]):
            way()
        stats = self.session.stats()
        self.counts.update(runs=stats["runs"], fallbacks=stats["fallbacks"])
        return self.found


def training(seed: int, counts: Counter[str]) -> list[str]:
    """Steps with odd batches, and fit() over data that they don't divide: the losses and the weights of both sides."""
    rng = np.random.default_rng(seed)
    make = [lambda: SGD(0.1), lambda: Adam(0.02)][int(rng.integers(2))]
    x = _normal(rng, int(rng.integers(5, 40)), 6)
    y = rng.integers(0, 3, len(x))
    batch = int(rng.integers(1, len(x)))
    batches = [rng.permutation(len(x))[:batch] for _ in range(6)]
    sides: list[tuple[list[float], dict[str, Array]]] = []
    for options in ({"placement": "cpu"}, {"placement": "gpu", "health": "off"}):
        trainer = Trainer(
            references.mlp(seed=seed % 7), loss="cross_entropy", optimizer=make(), options=options, seed=seed
        )
        losses = [float(trainer.step(x[b], y[b])) for b in batches]
        trainer.fit(x, y, batch=batch, epochs=2)
        sides.append((losses, trainer.parameters()))
    counts.update(runs=trainer.steps)
    found = (
        [f"training: losses {sides[1][0]} instead of {sides[0][0]}"]
        if not np.allclose(*[s[0] for s in sides], rtol=1e-3, atol=1e-5)
        else []
    )
    return found + [
        f"training: {name}: {what}" for name, w in sides[0][1].items() if (what := different(sides[1][1][name], w))
    ]


def situation(seed: int, counts: Counter[str]) -> list[str]:
    """What differed at a seed."""
    counts.update(situations=1)
    return training(seed, counts) if seed % 12 == 11 else Situation(seed, counts).run()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("ort_gpu_ep").setLevel(logging.CRITICAL)  # of what limits do on purpose
    counts: Counter[str] = Counter()
    wrong = []
    end = time.monotonic() + asked.seconds
    for seed in range(asked.first, asked.first + asked.count):
        if time.monotonic() > end:
            break
        print(f"at {seed}", file=sys.stderr, flush=True)
        found = situation(seed, counts)
        if found:
            wrong.append(seed)
            print(f"{seed}: {len(found)} differ: {'; '.join(dict.fromkeys(found))[:600]}", flush=True)
    print(
        f"{counts['situations']} situations, {counts['runs']} runs on the GPU side, {counts['fallbacks']} left to "
        f"the CPU, wrong: {wrong}"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
