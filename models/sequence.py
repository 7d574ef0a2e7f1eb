"""Networks over sequences: an LSTM, a temporal convolutional network, a transformer encoder."""

from __future__ import annotations

import math

import numpy as np
import onnx

from models.builder import Dim, Net, Value, require_multiple


def har_lstm(
    *,
    batch: Dim = 1,
    hidden: int = 32,
    layers: int = 2,
    steps: int = 128,
    features: int = 9,
    classes: int = 6,
    seed: int = 0,
) -> onnx.ModelProto:
    """The stacked LSTM of human activity recognition: the last step's state decides.

    motion: [batch, steps, features], the 128 samples of 9 motion signals of one window -> probabilities: [batch,
    classes]

    Source: Cao et al., MobiRNN, 2017, arXiv:1706.00878 (hidden 32 to 256, 1 to 3 layers); data set of Anguita et al.,
    2013.
    """
    net = Net("har_lstm", seed)
    x = net.transpose(net.input("motion", [batch, steps, features], channels=features), 1, 0, 2)
    for layer in range(layers):
        with net.scope(f"layer{layer}"):
            x = net.op("Squeeze", net.lstm(x, hidden), net.ints(1))
    x = net.op("Gather", net.transpose(x, 1, 0, 2), net.constant(-1, np.int64), axis=1)
    return net.softmax_output(net.gemm(x, classes, gain=3.0), batch)


def tcn(
    *,
    batch: Dim = 1,
    steps: int = 784,
    features: int = 1,
    width: int = 25,
    levels: int = 8,
    kernel: int = 7,
    classes: int = 10,
    seed: int = 0,
) -> onnx.ModelProto:
    """A temporal convolutional network: residual blocks of two causal convolutions, dilation 1, 2, 4, ...; the last
    step decides.

    sequence: [batch, features, steps] -> log_probabilities: [batch, classes]

    Source: Bai et al., An Empirical Evaluation of Generic Convolutional and Recurrent Networks for Sequence Modeling,
    2018, arXiv:1803.01271; the defaults are its sequential MNIST, weight normalization folded.
    """
    net = Net("tcn", seed)
    x = net.input("sequence", [batch, features, steps])
    for level in range(levels):
        with net.scope(f"level{level}"):
            x = _temporal_block(net, x, width, kernel, 1 << level)
    x = net.gemm(net.op("Gather", x, net.constant(-1, np.int64), axis=2), classes, gain=0.25)
    net.output("log_probabilities", net.op("LogSoftmax", x, axis=1), [batch, classes])
    return net.model()


def _temporal_block(net: Net, x: Value, width: int, kernel: int, dilation: int) -> Value:
    y = net.relu(_causal_conv(net, x, width, kernel, dilation))
    y = net.relu(_causal_conv(net, y, width, kernel, dilation, gain=0.5))
    if x.channels != width:
        x = net.conv(x, width, [1], gain=0.7)
    return net.relu(net.add(y, x))


def _causal_conv(net: Net, x: Value, out: int, kernel: int, dilation: int, gain: float = 1.0) -> Value:
    """Pads both ends and cuts the right one off, as the paper's code does: step t sees no later one."""
    pad = (kernel - 1) * dilation
    return net.slice(net.conv(x, out, [kernel], pad=[pad], dilation=dilation, gain=gain), 0, -pad, axis=2)


def encoder(
    *, batch: Dim = 1, tokens: int = 128, layers: int = 6, width: int = 384, heads: int = 12, seed: int = 0
) -> onnx.ModelProto:
    """A transformer encoder (post-norm, GELU, inner width 4 · width) over embedded tokens.

    embeddings: [batch, tokens, width] -> states: [batch, tokens, width]

    Raises:
        ModelError: width is not a multiple of heads.

    Source: Vaswani et al., Attention Is All You Need, 2017, arXiv:1706.03762; sizes of Wang et al., MiniLM, 2020,
    arXiv:2002.10957.
    """
    require_multiple("encoder: width", width, heads)
    net = Net("encoder", seed)
    x = net.input("embeddings", [batch, tokens, width], channels=width)
    for layer in range(layers):
        with net.scope(f"layer{layer}"):
            with net.scope("attention"):
                x = net.layer_norm(net.add(_attention(net, x, heads), x))
            with net.scope("mlp"):
                y = net.linear(gelu(net, net.linear(x, 4 * width)), width, gain=0.7)
                x = net.layer_norm(net.add(y, x))
    net.output("states", x, [batch, tokens, width])
    return net.model()


def _attention(net: Net, x: Value, heads: int) -> Value:
    """Multi-head self-attention, softmax(q kᵀ / √d) v."""
    depth = x.channels // heads

    def split(y: Value, *perm: int) -> Value:
        return net.transpose(net.reshape(y, 0, 0, heads, depth), *perm)

    q = split(net.linear(x, x.channels, gain=0.7), 0, 2, 1, 3)
    k = split(net.linear(x, x.channels, gain=0.7), 0, 2, 3, 1)
    v = split(net.linear(x, x.channels, gain=0.7), 0, 2, 1, 3)
    scores = net.op("Div", net.op("MatMul", q, k), net.constant(math.sqrt(depth)))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    return net.linear(net.reshape(net.transpose(mixed, 0, 2, 1, 3), 0, 0, x.channels), x.channels, gain=0.7)


def gelu(net: Net, x: Value) -> Value:
    """x · (1 + erf(x / √2)) / 2, in the nodes that the exporter writes."""
    erf = net.op("Erf", net.op("Div", x, net.constant(math.sqrt(2.0))))
    return net.op("Mul", net.op("Mul", x, net.op("Add", erf, net.constant(1.0))), net.constant(0.5))
