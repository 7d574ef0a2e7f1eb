"""recurrent.wgsl: LSTM, GRU and RNN layers, a sequence in one dispatch."""

from __future__ import annotations

from ort_gpu_ep.health.probe import Trial, compare, probe

FILES = ("recurrent.wgsl", "recurrent_weights.wgsl")


@probe("recurrent layers", "kernels", disables=FILES)
def layers(trial: Trial) -> str:
    """Hidden sizes below, at and above the number of lanes a slice has."""
    sizes = (1, 33, 130)
    for _ in range(trial.rounds):
        for hidden in sizes:
            for op, version, gates in (("LSTM", 14, 4), ("GRU", 14, 3), ("RNN", 14, 1)):
                x = trial.normal(5, 2, 3)
                w, r = trial.normal(1, gates * hidden, 3), trial.normal(1, gates * hidden, hidden) / hidden
                compare(trial, op, version, [x, w, r, trial.normal(1, 2 * gates * hidden)], outputs=2, tolerance=1e-4, hidden_size=hidden)
    return f"3 ops, {len(sizes)} sizes"
