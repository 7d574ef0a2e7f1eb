"""Pairs of encoder and decoder with random weights, in the nodes, files and names that optimum exports: of text, as BART
and Marian are, or of features of sound, as Whisper is.

Sources: Lewis et al., BART, 2019, https://arxiv.org/abs/1910.13461; Radford et al., Robust Speech Recognition via
Large-Scale Weak Supervision, 2022 (Whisper), https://arxiv.org/abs/2212.04356.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.errors import ModelError


@dataclass(frozen=True)
class Sizes:
    """Of both networks. bands, frames: of the features of sound; the encoder gives half as many states as there are
    frames. length: rows of the tables of positions."""

    width: int = 64
    heads: int = 4
    layers: int = 2
    vocabulary: int = 99
    length: int = 128
    bands: int = 8
    frames: int = 40

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.width // self.heads


SIZES = Sizes()

info = helper.make_tensor_value_info


class _Pair:
    """Parts of both networks. prefix: of the names of values: there are two bodies in a merged decoder."""

    def __init__(self, sizes: Sizes, prefix: str = "") -> None:
        if sizes.width % sizes.heads or sizes.frames % 2:
            raise ModelError(f"encoder_decoder: {sizes}: expected a width of whole heads, and frames in pairs")
        self.sizes, self.prefix = sizes, prefix
        self.nodes, self.tensors = list[onnx.NodeProto](), dict[str, onnx.TensorProto]()

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{self.prefix}/{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def hold(self, name: str, value: Any, dtype: str = "float32") -> str:
        self.tensors[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
        return name

    def weight(self, name: str, *shape: int, near: float = 0.0) -> str:
        """Drawn by its name: bodies that share some have the same."""
        if name in self.tensors:
            return name
        spread = shape[0] ** -0.5 if len(shape) > 1 else 0.1
        return self.hold(name, near + spread * np.random.default_rng(crc32(name.encode())).standard_normal(shape))

    def linear(self, x: str, name: str, inner: int = 1, outer: int = 1) -> str:
        """inner, outer: in widths."""
        rows, columns = inner * self.sizes.width, outer * self.sizes.width
        product = self.add("MatMul", x, self.weight(f"{name}.weight", rows, columns))
        return self.add("Add", self.weight(f"{name}.bias", columns), product)

    def norm(self, x: str, name: str) -> str:
        scale, bias = (
            self.weight(f"{name}.{n}", self.sizes.width, near=near) for n, near in (("scale", 1.0), ("bias", 0.0))
        )
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def integers(self, name: str, *values: int) -> str:
        return self.hold(name, list(values), "int64")

    def size(self, value: str, axis: int) -> str:
        """Of a value, [1]."""
        return self.add("Gather", self.add("Shape", value), self.integers(f"axis{axis}", axis), axis=0)

    def count(self, first: str, last: str) -> str:
        """The numbers between two sizes, [N]."""
        none = self.integers("squeezed", 0)
        ends = [self.add("Squeeze", end, none) for end in (first, last)]
        return self.add("Range", *ends, self.hold("one", 1, "int64"))

    def attention(self, q: str, k: str, v: str, name: str, mask: str = "") -> str:
        """Attention, [batch, sequence, width]. k, v: [batch, heads, total, head]."""
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=(0, 1, 3, 2)))
        scores = self.add("Mul", scores, self.hold("scale", self.sizes.head**-0.5))
        scores = self.add("Add", scores, mask) if mask else scores
        rows = self.add("Transpose", self.add("MatMul", self.add("Softmax", scores, axis=-1), v), perm=(0, 2, 1, 3))
        return self.linear(self.add("Reshape", rows, self.integers("joined", 0, 0, self.sizes.width)), f"{name}.o")

    def split(self, x: str, name: str) -> str:
        """Heads of a product, [batch, heads, sequence, head]."""
        shape = self.integers("heads", 0, 0, self.sizes.heads, self.sizes.head)
        return self.add("Transpose", self.add("Reshape", self.linear(x, name), shape), perm=(0, 2, 1, 3))

    def feed_forward(self, x: str, name: str) -> str:
        h = self.linear(self.norm(x, f"{name}.norm"), f"{name}.up", outer=2)
        return self.add("Add", x, self.linear(self.add("Mul", h, self.add("Sigmoid", h)), f"{name}.down", inner=2))

    def mask_of(self, mask: str) -> str:
        """0 where to look, very low where not: [batch, 1, 1, total] of a mask [batch, total]."""
        seen = self.add("Cast", self.add("Unsqueeze", mask, self.integers("inner", 1, 2)), to=TensorProto.BOOL)
        return self.add("Where", seen, self.hold("zero", 0.0), self.hold("low", np.finfo("f").min))

    def words(self) -> str:
        words = self.add("Gather", self.weight("words", self.sizes.vocabulary, self.sizes.width), "input_ids")
        return self.add("Mul", words, self.hold("root", 4 * self.sizes.width**0.5))

    # ---- the encoder

    def states(self, sound: bool) -> None:
        if sound:
            x = self.add(
                "Conv",
                "input_features",
                self.weight("filters", self.sizes.width, self.sizes.bands, 3),
                kernel_shape=[3],
                strides=[2],
                pads=[1, 1],
            )
            x = self.add("Transpose", self.add("Tanh", x), perm=(0, 2, 1))
            x = self.add("Add", x, self.weight("encoder.places", self.sizes.frames // 2, self.sizes.width))
        else:
            words = self.words()
            places = self.count(self.integers("nothing", 0), self.size("input_ids", 1))
            x = self.add(
                "Add",
                words,
                self.add("Gather", self.weight("encoder.places", self.sizes.length, self.sizes.width), places),
            )
        mask = "" if sound else self.mask_of("attention_mask")
        for k in range(self.sizes.layers):
            y = self.norm(x, f"encoder.{k}.norm")
            q, key, value = (self.split(y, f"encoder.{k}.{n}") for n in "qkv")
            x = self.feed_forward(
                self.add("Add", x, self.attention(q, key, value, f"encoder.{k}", mask)), f"encoder.{k}.ff"
            )
        self.norm(x, "encoder.last")
        self.nodes[-1].output[0] = "last_hidden_state"

    # ---- the decoder

    def body(self, cached: bool, sound: bool) -> dict[str, str]:
        """The names of its outputs -> of the values inside."""
        first = self.size("past_key_values.0.decoder.key", 2) if cached else self.integers("nothing", 0)
        last = self.add("Add", first, self.size("input_ids", 1))
        rows, columns = self.count(first, last), self.count(self.integers("nothing", 0), last)
        later = self.add("Greater", columns, self.add("Unsqueeze", rows, self.integers("column", 1)))
        mask = self.add("Where", later, self.hold("low", np.finfo("f").min), self.hold("zero", 0.0))
        if sound:  # Whisper's are of each row
            times = self.add("Concat", self.size("input_ids", 0), self.integers("row", 1), axis=0)
            places = self.add("Tile", self.add("Unsqueeze", rows, self.integers("batch", 0)), times)
        else:  # BART's begin at 2
            places = self.add("Add", rows, self.integers("offset", 2))
        words = self.words()
        x = self.add(
            "Add", words, self.add("Gather", self.weight("places", self.sizes.length, self.sizes.width), places)
        )
        cross_mask, outputs = "" if sound else self.mask_of("encoder_attention_mask"), dict[str, str]()
        for k in range(self.sizes.layers):
            y = self.norm(x, f"{k}.norm1")
            q, key, value = (self.split(y, f"{k}.{n}") for n in "qkv")
            if cached:
                key = self.add("Concat", f"past_key_values.{k}.decoder.key", key, axis=2)
                value = self.add("Concat", f"past_key_values.{k}.decoder.value", value, axis=2)
            x = self.add("Add", x, self.attention(q, key, value, f"{k}", mask))
            outputs |= {f"present.{k}.decoder.key": key, f"present.{k}.decoder.value": value}
            ends = [f"past_key_values.{k}.encoder.{n}" for n in ("key", "value")]
            if not cached:
                ends = [self.split("encoder_hidden_states", f"{k}.cross.{n}") for n in ("key", "value")]
                outputs |= {f"present.{k}.encoder.key": ends[0], f"present.{k}.encoder.value": ends[1]}
            q = self.split(self.norm(x, f"{k}.norm2"), f"{k}.cross.query")
            x = self.feed_forward(
                self.add("Add", x, self.attention(q, ends[0], ends[1], f"{k}.cross", cross_mask)), f"{k}.fed"
            )
        logits = self.add("MatMul", self.norm(x, "last"), self.weight("head", self.sizes.width, self.sizes.vocabulary))
        return {"logits": logits, **outputs}


def _graph(net: _Pair, name: str, nodes: Any, inputs: Any, outputs: Any) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, name, inputs, outputs, list(net.tensors.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def encoder(sound: bool = False, sizes: Sizes = SIZES) -> onnx.ModelProto:
    """input_ids and attention_mask, or input_features -> last_hidden_state."""
    net = _Pair(sizes)
    net.states(sound)
    inputs = (
        [info("input_features", TensorProto.FLOAT, ["batch_size", sizes.bands, sizes.frames])]
        if sound
        else [
            info(n, TensorProto.INT64, ["batch_size", "encoder_sequence_length"])
            for n in ("input_ids", "attention_mask")
        ]
    )
    shape: list[str | int | None] = [
        "batch_size",
        sizes.frames // 2 if sound else "encoder_sequence_length",
        sizes.width,
    ]
    return _graph(
        net,
        "encoder",
        net.nodes,
        inputs,
        [info("last_hidden_state", TensorProto.FLOAT, shape)],
    )


def _inputs(first: bool, later: bool, sound: bool, sizes: Sizes) -> list[onnx.ValueInfoProto]:
    inputs = (
        [] if sound else [info("encoder_attention_mask", TensorProto.INT64, ["batch_size", "encoder_sequence_length"])]
    )
    inputs.append(info("input_ids", TensorProto.INT64, ["batch_size", "decoder_sequence_length"]))
    if first:
        inputs.append(
            info("encoder_hidden_states", TensorProto.FLOAT, ["batch_size", "encoder_sequence_length", sizes.width])
        )
    return [*inputs, *(_caches("past_key_values", True, "past_decoder_sequence_length", sizes) if later else [])]


def _caches(prefix: str, cross: bool, total: str, sizes: Sizes) -> list[onnx.ValueInfoProto]:
    sides = {"decoder": total, **({"encoder": "encoder_sequence_length"} if cross else {})}
    return [
        info(f"{prefix}.{k}.{side}.{n}", TensorProto.FLOAT, ["batch_size", sizes.heads, size, sizes.head])
        for k in range(sizes.layers)
        for side, size in sides.items()
        for n in ("key", "value")
    ]


def _outputs(cross: bool, sizes: Sizes) -> list[onnx.ValueInfoProto]:
    logits = info("logits", TensorProto.FLOAT, ["batch_size", "decoder_sequence_length", sizes.vocabulary])
    return [logits, *_caches("present", cross, "past_decoder_sequence_length + decoder_sequence_length", sizes)]


def _named(net: _Pair, inside: dict[str, str], prefix: str = "") -> list[onnx.NodeProto]:
    """The nodes, and what gives the outputs their names."""
    return [*net.nodes, *(helper.make_node("Identity", [value], [prefix + name]) for name, value in inside.items())]


def decoders(sound: bool = False, sizes: Sizes = SIZES) -> list[onnx.ModelProto]:
    """The decoder of the first pass, and that of the later ones."""
    models = []
    for cached in (False, True):
        net = _Pair(sizes)
        nodes = _named(net, net.body(cached, sound))
        models.append(
            _graph(net, "decoder", nodes, _inputs(not cached, cached, sound, sizes), _outputs(not cached, sizes))
        )
    return models


def merged_decoder(sound: bool = False, sizes: Sizes = SIZES) -> onnx.ModelProto:
    """Both in an If over use_cache_branch, whose later passes give cross-attention's keys and values without elements."""
    branches, net = {}, _Pair(sizes)
    for branch, cached in (("then_branch", True), ("else_branch", False)):
        part = _Pair(sizes, f"{branch}/")
        nodes = _named(part, part.body(cached, sound), f"{branch}/")
        outputs = [info(f"{branch}/{o.name}", TensorProto.FLOAT, None) for o in _outputs(True, sizes)]
        written = {name for node in nodes for name in node.output}
        empty = numpy_helper.from_array(np.zeros((0, sizes.heads, 1, sizes.head), "f"))
        nodes += [helper.make_node("Constant", [], [o.name], value=empty) for o in outputs if o.name not in written]
        branches[branch] = helper.make_graph(nodes, branch, [], outputs)
        net.tensors |= part.tensors
    node = helper.make_node("If", ["use_cache_branch"], [o.name for o in _outputs(True, sizes)], **branches)
    inputs = [*_inputs(True, True, sound, sizes), info("use_cache_branch", TensorProto.BOOL, [1])]
    return _graph(net, "merged", [node], inputs, _outputs(True, sizes))


def save_folder(folder: Path, sound: bool = False, sizes: Sizes = SIZES) -> None:
    """Writes the encoder and the merged decoder as optimum calls them."""
    onnx.save(encoder(sound, sizes), folder / "encoder_model.onnx")
    onnx.save(merged_decoder(sound, sizes), folder / "decoder_model_merged.onnx")
