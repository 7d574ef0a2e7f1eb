"""Compression methods: the constants and nodes that each writes, and the weight that they decode to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ort_gpu_ep.compression.layers import RECURRENT, Array, Layer, attribute
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.weights.formats import VALUES, pack_codes, pack_sparse
from ort_gpu_ep.weights.functions import BITS, DOMAIN, SPARSE

BLOCK = 32
"""int4: weights of a row that share a scale."""

KNOWN = f"float32, int8, int4, codebookN (N {', '.join(map(str, BITS))}), pruneNN and pruneNN+codebook4 (NN 1 to 99)"


@dataclass(frozen=True)
class Method:
    """kind: float32, int8, int4, codebook or prune. bits: of a codebook. percent: of the weights that become zero."""

    kind: str
    bits: int = 0
    percent: int = 0

    def __str__(self) -> str:
        return self.kind + (
            str(self.percent) if self.kind == "prune" else str(self.bits) if self.kind == "codebook" else ""
        )

    def gentler(self) -> Method | None:
        """The next method that changes weights less; None after float32, which changes none."""
        match self.kind:
            case "float32":
                return None
            case "int8":
                return Method("float32")
            case "int4":
                return Method("int8")
            case "codebook":
                return (
                    Method("codebook", next((b for b in BITS if b > self.bits), 0))
                    if self.bits < BITS[-1]
                    else Method("float32")
                )
            case _:
                return Method("prune", percent=self.percent - 10) if self.percent > 60 else Method("codebook", 5)


def parse_method(text: str) -> Method:
    """Raises ConfigError, naming what there is."""
    if text in ("float32", "int8", "int4"):
        return Method(text)
    match = re.fullmatch(r"codebook(\d)", text)
    if match and int(match[1]) in BITS:
        return Method("codebook", int(match[1]))
    match = re.fullmatch(r"prune(\d\d?)(?:\+codebook4)?", text)
    if match and int(match[1]):
        return Method("prune", percent=int(match[1]))
    raise ConfigError(f"method {text!r}: expected one of {KNOWN}")


def fitting(layer: Layer, method: Method) -> Method:
    """What a layer gets for a method: rows of a table are picked whole, so that zeros among them save nothing in a
    run."""
    return Method("codebook", 5) if layer.is_table and method.kind == "prune" else method


@dataclass(frozen=True)
class Encoded:
    """held: constants by name. nodes: what makes the weight (or, `instead`, what takes the layer's place). weight: the
    dense weight, which decoding gives. functions: names of functions.py's that the nodes call.
    """

    weight: Array
    held: Mapping[str, Array] = field(default_factory=dict)
    nodes: Sequence[onnx.NodeProto] = ()
    functions: Sequence[str] = ()
    instead: bool = False

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.held.values()) if self.nodes else self.weight.nbytes


def encode(layer: Layer, method: Method, pruned: Array | None = None) -> Encoded:
    """The layer by a method. pruned: its rows with zeros where nothing is to be stored (for `prune`).

    int4 is for products and tables; another layer gets int8.
    """
    match method.kind:
        case "int8" | "int4" if (
            layer.is_table and not layer.shared and (method.kind == "int8" or layer.stored[1] % 2 == 0)
        ):
            return _blocks(layer, method.kind == "int4")
        case "int4" if layer.is_matrix and not layer.shared and not attribute(layer.node, "transA", 0):
            return _int4(layer)
        case "int4" | "int8":
            return _int8(layer)
        case "codebook":
            return _codebook(layer, method.bits)
        case "prune" if pruned is not None:
            return _sparse(layer, pruned)
    return Encoded(layer.array)


def apart(layer: Layer, made: Encoded, taken: set[str]) -> Encoded:
    """The same with names that the model has not, which are then taken."""
    own = {layer.weight, layer.node.name, *layer.node.input, *layer.node.output, ""}
    new = {}
    for name in dict.fromkeys([*made.held, *(n for node in made.nodes for n in (*node.output, node.name))]):
        if name not in own:
            new[name] = name
            while new[name] in taken:
                new[name] += "_"
            taken.add(new[name])
    nodes = []
    for node in made.nodes:
        nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
        if node.name in new:
            nodes[-1].name = new[node.name]
        for names in (nodes[-1].input, nodes[-1].output):
            names[:] = [new.get(n, n) for n in names]
    return replace(made, held={new[name]: array for name, array in made.held.items()}, nodes=nodes)


def _int8(layer: Layer) -> Encoded:
    """DequantizeLinear with a scale for each output; of recurrent layers, one for all."""
    recurrent = layer.node.op_type in RECURRENT
    rows = layer.rows()
    scale = np.abs(rows).max() if recurrent else np.abs(rows).max(axis=1)
    scale = np.maximum(np.asarray(scale, np.float32) / np.float32(127), np.float32(1e-30)).astype(np.float32)
    divisor = scale if recurrent else scale[:, None]
    codes = np.clip(np.rint(rows / divisor), -127, 127)
    names = [f"{layer.weight}.int8", f"{layer.weight}.scale"]
    node = helper.make_node("DequantizeLinear", names, [layer.weight], f"{layer.weight}.decoder")
    if not recurrent:
        node.attribute.append(helper.make_attribute("axis", layer.perm.index(0)))
    constants = {names[0]: np.ascontiguousarray(layer.dense(codes.astype(np.int8))), names[1]: scale}
    return Encoded(np.ascontiguousarray(layer.dense((codes * divisor).astype(np.float32))), constants, [node])


def _int4(layer: Layer) -> Encoded:
    """MatMulNBits, and for a Gemm its bias behind it."""
    rows, (n, k) = layer.rows(), layer.stored
    blocks = -(-k // BLOCK)
    padded = np.pad(rows, ((0, 0), (0, blocks * BLOCK - k))).reshape(n, blocks, BLOCK)
    extreme = np.take_along_axis(padded, np.abs(padded).argmax(axis=2)[..., None], axis=2)[..., 0]
    scale = (extreme / np.float32(-8)).astype(np.float32)
    scale[scale == 0] = 1
    codes = np.clip(np.rint(padded / scale[..., None]) + 8, 0, 15).astype(np.uint8)
    dense = ((codes.astype(np.float32) - 8) * scale[..., None]).reshape(n, -1)[:, :k]
    node, gemm = layer.node, layer.node.op_type == "Gemm"
    constants = {
        f"{layer.weight}.int4": codes[..., 0::2] | codes[..., 1::2] << 4,
        f"{layer.weight}.scale": scale.reshape(-1) * np.float32(attribute(node, "alpha", 1.0) if gemm else 1.0),
    }
    has_bias = gemm and len(node.input) > 2 and bool(node.input[2])
    target = f"{node.output[0]}.product" if has_bias else node.output[0]
    nodes = [
        helper.make_node(
            "MatMulNBits",
            [node.input[0], *constants],
            [target],
            node.name,
            domain="com.microsoft",
            K=k,
            N=n,
            bits=4,
            block_size=BLOCK,
        )
    ]
    if has_bias:
        bias, beta = node.input[2], float(attribute(node, "beta", 1.0))
        if beta != 1.0:
            constants[f"{layer.weight}.beta"] = np.array(beta, np.float32)
            nodes.append(helper.make_node("Mul", [bias, f"{layer.weight}.beta"], [f"{node.output[0]}.bias"]))
            bias = f"{node.output[0]}.bias"
        nodes.append(helper.make_node("Add", [target, bias], [node.output[0]], node.name and f"{node.name}.bias"))
    return Encoded(np.ascontiguousarray(layer.dense(dense)), constants, nodes, instead=True)


def _blocks(layer: Layer, halves: bool) -> Encoded:
    """GatherBlockQuantized: a scale for each row, or with 4 bits for BLOCK of it."""
    rows, (n, k) = layer.rows(), layer.stored
    block, top = (BLOCK, 8) if halves else (max(16, 1 << (k - 1).bit_length()), 128)
    blocks = -(-k // block)
    padded = np.pad(rows, ((0, 0), (0, blocks * block - k))).reshape(n, blocks, block)
    scale = np.maximum(np.abs(padded).max(axis=2) / np.float32(top - 1), np.float32(1e-30)).astype(np.float32)
    codes = np.clip(np.rint(padded / scale[..., None]), -top, top - 1)
    dense = (codes * scale[..., None]).astype(np.float32).reshape(n, -1)[:, :k]
    stored = (codes + top).astype(np.uint8).reshape(n, -1)[:, :k]
    constants = {
        f"{layer.weight}.{'int4' if halves else 'int8'}": stored[:, 0::2] | stored[:, 1::2] << 4 if halves else stored,
        f"{layer.weight}.scale": scale,
    }
    codes_name, scale_name = constants
    node = helper.make_node(
        "GatherBlockQuantized",
        [codes_name, layer.node.input[1], scale_name],
        list(layer.node.output),
        layer.node.name,
        domain="com.microsoft",
        bits=4 if halves else 8,
        block_size=block,
        gather_axis=0,
        quantize_axis=1,
    )
    return Encoded(np.ascontiguousarray(dense), constants, [node], instead=True)


def _codebook(layer: Layer, bits: int) -> Encoded:
    """k-means over all weights of the layer."""
    rows = layer.rows()
    values = centroids(rows, 1 << bits)
    codes = nearest(rows, values)
    stored = {f"{layer.weight}.codes": pack_codes(codes, bits), f"{layer.weight}.values": values}
    return Encoded(
        np.ascontiguousarray(layer.dense(values[codes])),
        stored,
        [_call(layer, f"Codebook{bits}", stored)],
        [f"Codebook{bits}"],
    )


def _sparse(layer: Layer, pruned: Array) -> Encoded:
    """The nonzero weights by 15 values."""
    # the function's kernel turns matrices alone
    if len(layer.perm) > 2 and layer.perm != tuple(range(len(layer.perm))):
        pruned = layer.dense(pruned).reshape(layer.array.shape[0], -1)
        layer = replace(layer, stored=layer.array.shape, perm=tuple(range(len(layer.perm))))
    kept = pruned != 0
    values = np.zeros(VALUES, np.float32)
    entries_of = centroids(pruned[kept], VALUES - 1) if kept.any() else np.zeros(1, np.float32)
    values[1 : 1 + len(entries_of)] = entries_of
    codes = np.zeros(pruned.shape, np.int64)
    codes[kept] = nearest(pruned[kept], entries_of) + 1
    entries, starts = pack_sparse(codes)
    constants = {f"{layer.weight}.entries": entries, f"{layer.weight}.starts": starts, f"{layer.weight}.values": values}
    return Encoded(
        np.ascontiguousarray(layer.dense(values[codes])), constants, [_call(layer, SPARSE, constants)], [SPARSE]
    )


def _call(layer: Layer, function: str, held: Mapping[str, Any]) -> onnx.NodeProto:
    size = int(np.prod(layer.stored))
    return helper.make_node(
        function,
        list(held),
        [layer.weight],
        f"{layer.weight}.decoder",
        domain=DOMAIN,
        size=[size],
        shape=layer.stored,
        perm=layer.perm,
    )


BINS = 4096
SAMPLE = 1 << 10
"""Of so many weights the first are looked at: whether there are few different ones at all."""


def centroids(weights: Array, count: int) -> Array:
    """At most `count` float32 values, ascending: means of clusters, by k-means over a histogram, so that its time does
    not grow with the number of weights. Deterministic. Raises ConfigError without scikit-learn.
    """
    try:
        from sklearn.cluster import KMeans
    except ImportError as error:
        raise ConfigError("codebooks need scikit-learn: pip install scikit-learn") from error
    flat = weights.reshape(-1).astype(np.float64)
    if len(np.unique(flat[:SAMPLE])) <= count and len(distinct := np.unique(flat)) <= count:
        return distinct.astype(np.float32)
    counts, edges = np.histogram(flat, BINS)
    sums, _ = np.histogram(flat, edges, weights=flat)
    filled = counts > 0
    means, mass = sums[filled] / counts[filled], counts[filled]
    count = min(count, len(means))
    spread = np.cumsum(np.cbrt(mass))  # where the density is high centres are close, but less so than quantiles
    start = np.interp((np.arange(count) + 0.5) / count * spread[-1], spread, means)
    clusters = KMeans(count, init=start[:, None], n_init=1, max_iter=100).fit(means[:, None], sample_weight=mass)
    return np.unique(clusters.cluster_centers_.reshape(-1).astype(np.float32))


def nearest(weights: Array, values: Array) -> Array:
    """The index of the nearest of ascending values, for each weight."""
    borders = (values[1:].astype(np.float64) + values[:-1]) / 2
    indices: Array = np.searchsorted(borders, weights.reshape(-1)).reshape(weights.shape)
    return indices
