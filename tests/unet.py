"""A small diffusion U-Net, made by script: as an optimiser writes it for CUDA (channels last, float16, ops of
com.microsoft), and in ONNX's ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
SIZE, CHANNELS, HEADS, WORDS, CONTEXT, GROUPS = 12, 32, 4, 7, 24, 8
ORT = "com.microsoft"


class Network:
    """optimised: in ops of com.microsoft. dtype: of all values. Both forms draw the same weights, and pass images as
    [N, H, W, C]."""

    def __init__(self, optimised: bool, dtype: str = "float32") -> None:
        self.optimised, self.dtype, self.rng = optimised, dtype, np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.held: dict[str, Array] = {}

    def add(self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes: Any) -> str:
        names = [f"v{len(self.nodes)}", *(f"v{len(self.nodes)}_{k}" for k in range(1, outputs))]
        self.nodes.append(
            helper.make_node(op, inputs, names, domain=domain, name=f"{op}{len(self.nodes)}", **attributes)
        )
        return names[0]

    def hold(self, value: Array) -> str:
        name = f"w{len(self.held)}"
        self.held[name] = value.astype(self.dtype) if value.dtype.kind == "f" else value
        return name

    def weight(self, *shape: int, near: float = 0.0) -> str:
        fan = max(1, int(np.prod(shape[:-1]))) if len(shape) > 1 else 25
        return self.hold((near + self.rng.standard_normal(shape) / fan**0.5).astype("f"))

    def seen(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.hold(np.array(shape, "int64")))

    def planes(self, x: str) -> str:
        return self.add("Transpose", x, perm=[0, 3, 1, 2])

    def last(self, x: str) -> str:
        return self.add("Transpose", x, perm=[0, 2, 3, 1])

    def silu(self, x: str) -> str:
        return self.add("Mul", x, self.add("Sigmoid", x))

    def conv(self, x: str, channels: int, filters: int, taps: int = 3, **attributes: Any) -> str:
        weight = (self.rng.standard_normal((filters, taps, taps, channels)) / (taps * taps * channels) ** 0.5).astype(
            "f"
        )
        bias, attributes = self.weight(filters), {"pads": [taps // 2] * 4, "kernel_shape": [taps, taps], **attributes}
        if self.optimised:
            return self.add("NhwcConv", x, self.hold(weight), bias, domain=ORT, **attributes)
        turned = self.hold(np.ascontiguousarray(weight.transpose(0, 3, 1, 2)))
        return self.last(self.add("Conv", self.planes(x), turned, bias, **attributes))

    def group_norm(self, x: str, channels: int, silu: bool, skip: str = "") -> str:
        """skip: [N, C], which is added before."""
        scale, bias = self.weight(channels, near=1.0), self.weight(channels)
        if self.optimised:
            op, more = ("SkipGroupNorm", (skip,)) if skip else ("GroupNorm", ())
            return self.add(op, x, scale, bias, *more, domain=ORT, groups=GROUPS, activation=int(silu), epsilon=1e-5)
        x = self.add("Add", x, self.seen(skip, -1, 1, 1, channels)) if skip else x
        y = self.last(self.add("GroupNormalization", self.planes(x), scale, bias, num_groups=GROUPS, epsilon=1e-5))
        return self.silu(y) if silu else y

    def linear(self, x: str, inner: int, outer: int) -> str:
        return self.add("MatMul", x, self.weight(inner, outer))

    def attention(self, x: str, context: str, width: int) -> str:
        """Of x to itself where there is no context: packed as optimisers pack it."""
        size = width // HEADS
        if not context:
            packed = self.seen(self.linear(x, width, 3 * width), 0, 0, HEADS, 3, size)
            if self.optimised:
                return self.add("MultiHeadAttention", packed, domain=ORT, num_heads=HEADS)
            return self.plain_attention(*(self.add("Gather", packed, self.hold(np.array(i)), axis=3) for i in range(3)))
        q, packed = (
            self.linear(x, width, width),
            self.seen(self.linear(context, CONTEXT, 2 * width), 0, 0, HEADS, 2, size),
        )
        if self.optimised:
            return self.add("MultiHeadAttention", q, packed, domain=ORT, num_heads=HEADS)
        k, v = (self.add("Gather", packed, self.hold(np.array(i)), axis=3) for i in range(2))
        return self.plain_attention(self.seen(q, 0, 0, HEADS, size), k, v)

    def plain_attention(self, q: str, k: str, v: str) -> str:
        size = CHANNELS * 2 // HEADS
        q, k, v = (
            self.add("Transpose", t, perm=p) for t, p in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
        )
        scores = self.add("Mul", self.add("MatMul", q, k), self.hold(np.array(size**-0.5, "f")))
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        return self.seen(self.add("Transpose", mixed, perm=[0, 2, 1, 3]), 0, 0, CHANNELS * 2)

    def added_norm(self, x: str, skip: str, width: int) -> tuple[str, str]:
        """(LayerNormalization of the sum with a bias, the sum)."""
        scale, beta, bias = self.weight(width, near=1.0), self.weight(width), self.weight(width)
        if self.optimised:
            norm = f"v{len(self.nodes)}"
            self.nodes.append(
                helper.make_node(
                    "SkipLayerNormalization",
                    [x, skip, scale, beta, bias],
                    [norm, "", "", f"{norm}_sum"],
                    domain=ORT,
                    epsilon=1e-5,
                )
            )
            return norm, f"{norm}_sum"
        total = self.add("Add", self.add("Add", x, skip), bias)
        return self.add("LayerNormalization", total, scale, beta, epsilon=1e-5), total

    def biased(self, x: str, width: int, skip: str) -> str:
        bias = self.weight(width)
        if self.optimised:
            return self.add("BiasAdd", x, bias, skip, domain=ORT)
        return self.add("Add", self.add("Add", x, bias), skip)

    def split_gelu(self, x: str, width: int) -> str:
        bias = self.weight(2 * width)
        if self.optimised:
            return self.add("BiasSplitGelu", x, bias, domain=ORT)
        halves = self.add("Split", self.add("Add", x, bias), outputs=2, axis=-1, num_outputs=2)
        return self.add("Mul", halves, self.add("Gelu", f"{halves}_1"))

    def residual(self, x: str, channels: int, filters: int, time: str) -> str:
        h = self.conv(self.group_norm(x, channels, True), channels, filters)
        h = self.conv(self.group_norm(h, filters, True, self.linear(time, CHANNELS, filters)), filters, filters)
        return self.add("Add", h, x if channels == filters else self.conv(x, channels, filters, 1))

    def transformer(self, x: str, width: int, side: int) -> str:
        h = self.linear(self.seen(self.group_norm(x, width, False), 0, side * side, width), width, width)
        normed = self.add("LayerNormalization", h, self.weight(width, near=1.0), self.weight(width), epsilon=1e-5)
        normed, h = self.added_norm(self.linear(self.attention(normed, "", width), width, width), h, width)
        normed, h = self.added_norm(self.linear(self.attention(normed, "context", width), width, width), h, width)
        h = self.biased(
            self.linear(self.split_gelu(self.linear(normed, width, 4 * width), 2 * width), 2 * width, width), width, h
        )
        return self.add("Add", self.seen(self.linear(h, width, width), 0, side, side, width), x)

    def model(self) -> onnx.ModelProto:
        """sample [N, 4, 12, 12], time [N, 32], context [N, 7, 24] -> noise [N, 4, 12, 12]."""
        first = self.conv(self.last("sample"), 4, CHANNELS)
        high = self.residual(first, CHANNELS, CHANNELS, "time")
        low = self.conv(high, CHANNELS, 2 * CHANNELS, strides=[2, 2])
        low = self.transformer(self.residual(low, 2 * CHANNELS, 2 * CHANNELS, "time"), 2 * CHANNELS, SIZE // 2)
        scales = f"w{len(self.held)}"
        self.held[scales] = np.array([1, 1, 2, 2], "f")
        large = self.last(self.add("Resize", self.planes(low), "", scales, mode="nearest"))
        joined = self.add("Concat", self.conv(large, 2 * CHANNELS, CHANNELS), high, axis=3)
        last = self.group_norm(self.residual(joined, 2 * CHANNELS, CHANNELS, "time"), CHANNELS, True)
        noise = self.add("Identity", self.planes(self.conv(last, CHANNELS, 4)))
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        inputs = [("sample", ["N", 4, SIZE, SIZE]), ("time", ["N", CHANNELS]), ("context", ["N", WORDS, CONTEXT])]
        graph = helper.make_graph(
            self.nodes,
            "unet",
            [helper.make_tensor_value_info(n, kind, s) for n, s in inputs],
            [helper.make_tensor_value_info(noise, kind, ["N", 4, SIZE, SIZE])],
            [numpy_helper.from_array(a, n) for n, a in self.held.items()],
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(ORT, 1)], ir_version=10
        )


def feeds(batch: int) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    shapes = {"sample": (batch, 4, SIZE, SIZE), "time": (batch, CHANNELS), "context": (batch, WORDS, CONTEXT)}
    return {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}
