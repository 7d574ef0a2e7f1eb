"""Normalizations. With z = (x - mean) / deviation and dz = dy scale: dx = (dz - mean dz - z mean(dz z)) / deviation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ort_gpu_ep.training.gradient import Gradients, Site, axis_of, gradient, per_channel
from ort_gpu_ep.training.writer import DOMAIN, Value, Writer


def inverse_deviation(w: Writer, variance: Value, epsilon: float) -> Value:
    return w.op("Reciprocal", w.op("Sqrt", variance + epsilon))


def standardized(w: Writer, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value, Value]:
    """z, 1 / deviation, mean and variance of x over axes."""
    mean = w.reduce("ReduceMean", x, axes)
    centred = x - mean
    variance = w.reduce("ReduceMean", centred * centred, axes)
    inverse = inverse_deviation(w, variance, epsilon)
    return centred * inverse, inverse, mean, variance


def _through(w: Writer, z: Value, inverse: Value, dz: Value, axes: Sequence[int]) -> Value:
    """dx from dz, where mean and deviation are x's own."""
    means = w.reduce("ReduceMean", dz, axes) + z * w.reduce("ReduceMean", dz * z, axes)
    return (dz - means) * inverse


@gradient("BatchNormalization")
def batch_normalization(n: Site) -> Gradients:
    """With stored statistics: a scale and a shift of each channel."""
    if n.attr("training_mode"):
        raise n.unsupported("training_mode=1; it is set by batch_norm='train', not by the model")
    w, rank = n.writer, n.x.rank
    mean, variance = per_channel(n.input(3), rank), per_channel(n.input(4), rank)
    inverse = inverse_deviation(w, variance, n.attr("epsilon"))
    dx = n.dy * (per_channel(n.input(1), rank) * inverse) if n.wants(0) else None
    return [dx, *_scale_and_bias(n, lambda: (n.x - mean) * inverse, _all_but(1, rank))]


@gradient("BatchNormalization", domain=DOMAIN)
def batch_normalization_in_training(n: Site) -> Gradients:
    """With the batch's statistics. Inputs: x, scale, bias and, for this rule, z and 1 / deviation."""
    w, axes = n.writer, _all_but(1, n.x.rank)
    z, inverse = n.input(3), n.input(4)
    dx = _through(w, z, inverse, n.dy * per_channel(n.input(1), n.x.rank), axes) if n.wants(0) else None
    return [dx, *_scale_and_bias(n, lambda: z, axes)]


@gradient("InstanceNormalization")
def instance_normalization(n: Site) -> Gradients:
    axes = list(range(2, n.x.rank))
    z, inverse, *_ = standardized(n.writer, n.x, axes, n.attr("epsilon"))
    dx = _through(n.writer, z, inverse, n.dy * per_channel(n.input(1), n.x.rank), axes) if n.wants(0) else None
    return [dx, *_scale_and_bias(n, lambda: z, _all_but(1, n.x.rank))]


@gradient("GroupNormalization")
def group_normalization(n: Site) -> Gradients:
    """As over rows [N, groups, rest]; scale and bias are the channels' (opset 21)."""
    w, groups, shape = n.writer, n.attr("num_groups"), n.x.shape
    if n.input(1).shape != (shape[1],):
        raise n.unsupported("scale and bias of each group (opset 18); expected those of each channel (opset 21)")
    rows = [shape[0], groups, int(np.prod(shape[1:])) // groups]
    z, inverse, *_ = standardized(w, w.reshape(n.x, rows), [2], n.attr("epsilon"))
    dz = w.reshape(n.dy * per_channel(n.input(1), n.x.rank), rows)
    dx = w.reshape(_through(w, z, inverse, dz, [2]), shape) if n.wants(0) else None
    return [dx, *_scale_and_bias(n, lambda: w.reshape(z, shape), _all_but(1, n.x.rank))]


@gradient("LayerNormalization")
def layer_normalization(n: Site) -> Gradients:
    axes = list(range(axis_of(n), n.x.rank))
    z, inverse, *_ = standardized(n.writer, n.x, axes, n.attr("epsilon"))
    dx = _through(n.writer, z, inverse, n.dy * n.input(1), axes) if n.wants(0) else None
    dscale = n.writer.reduce_to(n.dy * z, n.input(1).shape) if n.wants(1) else None
    return [dx, dscale, n.writer.reduce_to(n.dy, n.input(2).shape) if n.wants(2) else None]


@gradient("RMSNormalization")
def rms_normalization(n: Site) -> Gradients:
    """dx = (dz - z mean(dz z)) / root, z = x / root."""
    w, axes = n.writer, list(range(axis_of(n), n.x.rank))
    inverse = inverse_deviation(w, w.reduce("ReduceMean", n.x * n.x, axes), n.attr("epsilon"))
    z, dz = n.x * inverse, n.dy * n.input(1)
    dx = (dz - z * w.reduce("ReduceMean", dz * z, axes)) * inverse if n.wants(0) else None
    return [dx, w.reduce_to(n.dy * z, n.input(1).shape) if n.wants(1) else None]


@gradient("LpNormalization")
def lp_normalization(n: Site) -> Gradients:
    """p = 2: (dy - y sum(dy y)) / norm; p = 1: (dy - sign(x) sum(dy y)) / norm."""
    w, axis = n.writer, axis_of(n, -1)
    inner = w.reduce("ReduceSum", n.dy * n.y, [axis])
    if n.attr("p") == 1:
        return [(n.dy - w.op("Sign", n.x) * inner) / w.reduce("ReduceL1", n.x, [axis])]
    return [(n.dy - n.y * inner) / w.reduce("ReduceL2", n.x, [axis])]


@gradient("LRN")
def local_response_normalization(n: Site) -> Gradients:
    """y = x s^-beta, s = bias + alpha / size sum x^2: dx = dy s^-beta - 2 alpha beta / size x sum(dy x s^(-beta - 1)).

    Both sums are over neighbouring channels: products with a band of ones, the second one's turned.
    """
    size, alpha, beta, channels = n.attr("size"), n.attr("alpha"), n.attr("beta"), n.x.shape[1]
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    apart = np.arange(channels)[:, None] - np.arange(channels)[None]  # [of what is added, of the sum]
    band = ((apart >= -before) & (apart <= after)).astype(np.float64)
    s = n.writer.along(n.x * n.x, 1, band) * (alpha / size) + n.attr("bias")
    power = n.writer.op("Pow", s, n.writer.like(-beta, s))
    inner = n.writer.along(n.dy * n.x * power / s, 1, band.T)
    return [n.dy * power - n.x * inner * (2.0 * alpha * beta / size)]


def _all_but(axis: int, rank: int) -> list[int]:
    return [i for i in range(rank) if i != axis]


def _scale_and_bias(n: Site, standard: Callable[[], Value], axes: Sequence[int]) -> list[Value | None]:
    """Sums of dy z and of dy for each channel; z is made only where it is asked for."""
    scale = bias = None
    if n.wants(1):
        scale = n.writer.reduce("ReduceSum", n.dy * standard(), axes, keepdims=False)
    if n.wants(2):
        bias = n.writer.reduce("ReduceSum", n.dy, axes, keepdims=False)
    return [scale, bias]
