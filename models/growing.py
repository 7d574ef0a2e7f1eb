"""Networks whose state grows: a decoder with a cache of keys and values, a loop that appends a row each turn."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from models.builder import Dim, Net, Value, require_multiple
from models.sequence import gelu


def decoder(
    *,
    past: Dim = "past",
    layers: int = 4,
    width: int = 256,
    heads: int = 8,
    vocabulary: int = 512,
    context: int = 1024,
    seed: int = 0,
) -> onnx.ModelProto:
    """One step of a transformer decoder (pre-norm, GELU, learned positions) with its cache as inputs and outputs.

    token: int64 [1, 1], past.<layer>.key and .value: [1, heads, past, width / heads]
    -> logits: [1, 1, vocabulary], present.<layer>.key and .value: [1, heads, past + 1, width / heads]

    The token's position is the length of the cache, less than `context`. past: a number fixes that length.

    Raises:
        ModelError: width is not a multiple of heads.

    Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019 (GPT-2), with fewer and narrower
    layers.
    """
    require_multiple("decoder: width", width, heads)
    net, present = Net("decoder", seed), past + 1 if isinstance(past, int) else f"{past}_and_one"
    cache = {
        (layer, what): net.input(f"past.{layer}.{what}", [1, heads, past, width // heads])
        for layer in range(layers)
        for what in ("key", "value")
    }
    x = _embedded(net, net.input("token", [1, 1], dtype=TensorProto.INT64), cache[0, "key"], width, vocabulary, context)
    for layer in range(layers):
        with net.scope(f"layer{layer}"):
            y, cache[layer, "key"], cache[layer, "value"] = _attention(
                net, net.layer_norm(x), cache[layer, "key"], cache[layer, "value"], heads
            )
            x = net.add(x, y)
            x = net.add(x, net.linear(gelu(net, net.linear(net.layer_norm(x), 4 * width)), width, gain=0.7))
    net.output("logits", net.linear(net.layer_norm(x), vocabulary), [1, 1, vocabulary])
    for (layer, what), value in cache.items():
        net.output(f"present.{layer}.{what}", value, [1, heads, present, width // heads])
    return net.model()


def _embedded(net: Net, token: Value, past: Value, width: int, vocabulary: int, context: int) -> Value:
    """The token's vector plus that of its position, which is the length of the cache."""
    vectors, places = (
        net.normal("token.weight", [vocabulary, width], 1.0),
        net.normal("position.weight", [context, width], 0.2),
    )
    position = net.op("Gather", net.op("Shape", past), net.ints(2), axis=0)
    return net.op(
        "Add", net.op("Gather", vectors, token, axis=0), net.op("Gather", places, position, axis=0), channels=width
    )


def _attention(net: Net, x: Value, past_key: Value, past_value: Value, heads: int) -> tuple[Value, Value, Value]:
    """Attention of one token to itself and all before it -> its output, all keys, all values."""
    depth = x.channels // heads

    def split(y: Value) -> Value:
        return net.transpose(net.reshape(y, 0, 0, heads, depth), 0, 2, 1, 3)

    q, k, v = (split(net.linear(x, x.channels, gain=0.7)) for _ in range(3))
    key, value = net.op("Concat", past_key, k, axis=2), net.op("Concat", past_value, v, axis=2)
    scores = net.op("Div", net.op("MatMul", q, net.transpose(key, 0, 1, 3, 2)), net.constant(math.sqrt(depth)))
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
    return net.linear(net.reshape(net.transpose(mixed, 0, 2, 1, 3), 0, 0, x.channels), x.channels, gain=0.7), key, value


def table_rows(
    *, turns: int = 50, positions: int = 64, width: int = 128, classes: int = 30, seed: int = 0
) -> onnx.ModelProto:
    """A loop of a table recogniser: each turn attends to the picture and to the rows so far, and appends a row.

    features: [1, positions, width] -> rows: [1, turns, width], probabilities: [1, turns, classes]

    Source: the decoder of Ye et al., PingAn-VCGroup's Solution for Scientific Literature Parsing, 2021,
    arXiv:2105.01848, and of SLANet, Li et al., 2022, arXiv:2210.05391, reduced to what grows.
    """
    net = Net("table_rows", seed)
    features = net.input("features", [1, positions, width], channels=width)
    state = net.op("ReduceMean", features, axes=[1], keepdims=1)
    rows = net.op("Slice", features, net.ints(0), net.ints(0), net.ints(1))  # none yet
    with net.loop(turns, {"state": (state, [1, 1, width]), "rows": (rows, [1, "so_far", width])}) as turn:
        state, rows = turn.given["state"], turn.given["rows"]
        seen = net.add(_glance(net, state, features), _glance(net, state, net.op("Concat", state, rows, axis=1)))
        state = net.layer_norm(net.add(state, net.op("Tanh", net.linear(seen, width))))
        turn.end(state=state, rows=net.op("Concat", rows, state, axis=1))
    rows = turn.results[1]
    net.output("probabilities", net.op("Softmax", net.linear(rows, classes), axis=-1), [1, turns, classes])
    net.output("rows", rows, [1, turns, width])
    return net.model()


def _glance(net: Net, state: Value, at: Value) -> Value:
    """softmax(state atᵀ / √width) at."""
    scores = net.op("MatMul", net.linear(state, state.channels, gain=0.7), net.transpose(at, 0, 2, 1))
    return net.op(
        "MatMul",
        net.op("Softmax", net.op("Div", scores, net.constant(np.sqrt(state.channels))), axis=-1),
        at,
        channels=state.channels,
    )
