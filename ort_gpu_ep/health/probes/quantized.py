"""8-bit quantization."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, compare, probe


@probe("quantization", "kernels", disables=("quantize.wgsl", "dequantize.wgsl"))
def quantization(trial: Trial) -> str:
    """QuantizeLinear by scalar and by channel, DequantizeLinear. Values on a tie may differ by one from the 64-bit reference."""
    for _ in range(trial.rounds):
        x, scale = trial.normal(7, 13), abs(trial.normal(13)) + np.float32(0.1)
        for zero, low, high in ((np.uint8, 0, 255), (np.int8, -128, 127)):
            zeros = trial.integers(0, 100, 13).astype(zero)
            got = trial.node("QuantizeLinear", 13, [x, scale, zeros], axis=1)[0]
            exact = x.astype(np.float64) / scale
            want = np.clip(np.rint(exact) + zeros, low, high)
            tie = abs(abs(exact - np.floor(exact)) - 0.5) < 1e-4
            agree("QuantizeLinear", np.where(tie, want, got), want)
            compare(trial, "DequantizeLinear", 13, [got, scale, zeros], axis=1)
    return "uint8 and int8"


@probe("dynamic quantization", "kernels", disables=("quantize_range.wgsl", "quantize_parameter.wgsl", "quantize.wgsl"))
def dynamic(trial: Trial) -> str:
    """The scale and zero point of tensors around a part's size."""
    for n in (5, 257, 40_001):
        x = trial.normal(n)
        y, scale, zero = trial.node("DynamicQuantizeLinear", 11, [x], outputs=3)
        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        agree(f"scale of {n}", scale, np.array((high - low) / 255))
        agree(f"zero point of {n}", zero, np.array(np.rint(-low / ((high - low) / 255)), np.uint8))
        back = (y.astype(np.float64) - float(zero)) * float(scale)
        agree(f"values of {n}", back / abs(x).max(), x.astype(np.float64) / abs(x).max(), 1.01 * float(scale) / float(abs(x).max()))
    return "3 sizes"
