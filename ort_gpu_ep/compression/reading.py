"""The input of a layer on calibration data, as columns that its weight matrix is multiplied by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx

from ort_gpu_ep.compression.layers import RECURRENT, Array, Layer, attribute
from ort_gpu_ep.compression.samples import session_of

MAX_ROWS = 4096
"""More say little more, and take longer to fit."""


def read_by(model: onnx.ModelProto, layer: Layer, feeds: Sequence[Mapping[str, Array]]) -> Array:
    """[b, s, k]: for each of the layer's blocks, up to MAX_ROWS samples of what it reads. model: one that has the
    layer's node.

    The same samples for each model, so that a changed one compares with what it was. Of recurrent weights: the states
    before.
    """
    states = layer.node.op_type in RECURRENT and layer.weight == layer.node.input[2]
    name, watched = _watched(model, layer, states)
    share = -(-MAX_ROWS // len(feeds))
    rng, parts = np.random.default_rng(0), []
    for array in _values(watched, name, feeds):
        if layer.node.op_type == "Conv":
            parts.append(_windows(array, layer, share, rng))
            continue
        if layer.node.op_type == "ConvTranspose":
            array = np.moveaxis(array, 1, -1)
        elif layer.node.op_type == "Gemm" and attribute(layer.node, "transA", 0):
            array = array.T
        if states:  # [steps, directions, batch, hidden]
            by_block = array.swapaxes(0, 1) if array.ndim == 4 else array[None]
        else:
            by_block = np.broadcast_to(array, (layer.blocks[0], *array.shape))
        by_block = by_block.reshape(layer.blocks[0], -1, array.shape[-1])
        parts.append(by_block[:, np.sort(rng.permutation(by_block.shape[1])[:share])])
    rows: Array = np.concatenate(parts, axis=1)[:, :MAX_ROWS].astype(np.float32)
    return rows


def _watched(model: onnx.ModelProto, layer: Layer, states: bool) -> tuple[str, onnx.ModelProto]:
    """The model with the value that the layer reads as its only output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    name = layer.node.input[0]
    if states:
        node = next(n for n in copy.graph.node if layer.weight in n.input)
        if not node.output[0]:
            node.output[0] = f"{layer.weight}.states"
        name = node.output[0]
    del copy.graph.output[:]
    copy.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return name, copy


def _values(model: onnx.ModelProto, name: str, feeds: Sequence[Mapping[str, Array]]) -> Iterator[Array]:
    if name in {i.name for i in model.graph.input}:
        yield from (feed[name] for feed in feeds)
        return
    session = session_of(model)
    names = {i.name for i in session.get_inputs()}
    yield from (session.run([name], {n: a for n, a in feed.items() if n in names})[0] for feed in feeds)


def _windows(x: Array, layer: Layer, count: int, rng: np.random.Generator) -> Array:
    """[groups, s, k]: windows of x at random places, k as the filters have it."""
    groups, kernel = layer.blocks[0], layer.array.shape[2:]
    strides, dilations, begins, ends = _geometry(layer.node, x.shape[2:], kernel)
    x = np.pad(x, ((0, 0), (0, 0), *zip(begins, ends, strict=True)))
    sizes = [
        (d - 1 - (k - 1) * dil) // s + 1 for d, k, dil, s in zip(x.shape[2:], kernel, dilations, strides, strict=True)
    ]
    chosen = np.sort(rng.permutation(x.shape[0] * int(np.prod(sizes)))[:count])
    image, *places = np.unravel_index(chosen, (x.shape[0], *sizes))
    taps = [
        x[(image, slice(None), *(p * s + t * d for p, s, t, d in zip(places, strides, tap, dilations, strict=True)))]
        for tap in np.ndindex(*kernel)
    ]
    windows: Array = np.stack(taps, axis=2).reshape(len(chosen), groups, -1).swapaxes(0, 1)
    return windows


def _geometry(
    node: onnx.NodeProto, sizes: Sequence[int], kernel: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, and what is added before and behind each dimension."""
    ones = [1] * len(kernel)
    strides, dilations = (list(attribute(node, name, ones)) for name in ("strides", "dilations"))
    same = attribute(node, "auto_pad", b"NOTSET").decode()
    if not same.startswith("SAME"):
        pads = list(attribute(node, "pads", [0, 0] * len(kernel)))
        return strides, dilations, pads[: len(kernel)], pads[len(kernel) :]
    total = [
        max((-(-d // s) - 1) * s + (k - 1) * dil + 1 - d, 0)
        for d, s, k, dil in zip(sizes, strides, kernel, dilations, strict=True)
    ]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    return (strides, dilations, less, more) if same == "SAME_UPPER" else (strides, dilations, more, less)
