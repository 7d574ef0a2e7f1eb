"""A language model as onnxruntime-genai's builder writes it: int4 weights, grouped heads, a cache as inputs and
outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.builder import Attribute, Net, Value, require_multiple

BITS, BLOCK = 4, 32
"""Of a code, and codes that share a scale."""

CONTRIB = "com.microsoft"


class LanguageNet(Net):
    """A graph with nodes of ONNX Runtime's own domain. dtype: of its floats. accuracy: the accuracy_level of its
    products."""

    def __init__(self, name: str, seed: int, dtype: str, accuracy: int = 0) -> None:
        super().__init__(name, seed)
        self.accuracy = accuracy
        self.dtype = np.dtype(dtype)
        self.element = helper.np_dtype_to_tensor_dtype(self.dtype)
        self._model.opset_import.append(helper.make_opsetid(CONTRIB, 1))

    def contrib(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        outputs: int | Sequence[bool] = 1,
        *,
        domain: str = CONTRIB,
        channels: int,
        **attributes: Attribute,
    ) -> list[Value]:
        """A node of which outputs are wanted, by number or one by one. Its values, those that are not wanted left
        out."""
        name = self._unique(op_type)
        wanted = [True] * outputs if isinstance(outputs, int) else outputs
        names = [(name if i == 0 else f"{name}/output_{i}") if want else "" for i, want in enumerate(wanted)]
        node = helper.make_node(op_type, ["" if v is None else v.name for v in inputs], names, name=name, domain=domain)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        self._graph.node.append(node)
        return [Value(n, channels) for n in names if n]

    def floats(self, name: str, array: np.ndarray) -> Value:
        """A stored constant of the network's type."""
        return self.initializer(name, array.astype(self.dtype))

    def codes(self, name: str, rows: int, k: int, deviation: float) -> tuple[np.ndarray, Value]:
        """Bytes of `rows` x `k` random codes, low nibble first, and the scales that give weights this deviation."""
        rng = self._rng(name)
        # 4.6: of codes from 0 to 15
        scales = (deviation / 4.6 * rng.uniform(0.8, 1.2, (rows, k // BLOCK))).astype(self.dtype)
        return rng.integers(0, 256, (rows, k * BITS // 8), np.uint8), self.initializer(f"{name}.scales", scales)

    def matmul(self, x: Value, out: int, label: str) -> Value:
        """MatMulNBits [B, S, K] -> [B, S, out]."""
        with self.scope(label):
            codes, scales = self.codes("/".join([*self._scopes, "weight"]), out, x.channels, 0.7 / np.sqrt(x.channels))
            weight = self.initializer(
                scales.name.replace(".scales", ".codes"), codes.reshape(out, x.channels // BLOCK, -1)
            )
            (y,) = self.contrib(
                "MatMulNBits",
                [x, weight, scales],
                channels=out,
                K=x.channels,
                N=out,
                bits=BITS,
                block_size=BLOCK,
                accuracy_level=self.accuracy,
            )
        return y

    def norm(self, x: Value, skip: Value | None, label: str, last: bool = False) -> tuple[Value, Value]:
        """x + skip divided by its root mean square -> that, and the sum; x itself where nothing is added."""
        gamma = self.floats(f"{label}.weight", self._rng(label).uniform(0.8, 1.2, x.channels))
        if skip is None:
            (y,) = self.contrib(
                "SimplifiedLayerNormalization", [x, gamma], domain="", channels=x.channels, axis=-1, epsilon=1e-5
            )
            return y, x
        wanted = [True, False, False, not last]
        y, *total = self.contrib(
            "SkipSimplifiedLayerNormalization", [x, skip, gamma], wanted, channels=x.channels, epsilon=1e-5
        )
        return y, total[0] if total else y


def language_model(
    *,
    layers: int = 2,
    width: int = 128,
    heads: int = 4,
    groups: int = 2,
    hidden: int = 256,
    vocabulary: int = 512,
    context: int = 1024,
    dtype: Literal["float32", "float16"] = "float32",
    packed: bool = True,
    norms: bool = False,
    head: int | None = None,
    seed: int = 0,
    accuracy: int = 0,
) -> onnx.ModelProto:
    """A decoder as Llama (packed=False, norms=False) or Qwen3 (norms=True) has it, with random int4 weights in blocks
    of 32.

    input_ids: int64 [batch, sequence], attention_mask: int64 [batch, total], past_key_values.<layer>.key and .value:
    [batch, groups, past, head] -> logits [batch, sequence, vocabulary], present.<layer>.key and .value [batch, groups,
    present, head]. Sizes in words are open: `present` is `past` where the cache is shared and long enough.

    heads, groups: of queries, and of keys and values. head: elements of one; width / heads unless given. context:
    positions that the tables of angles have. packed: one product gives queries, keys and values. norms: queries and
    keys are normalized. accuracy: accuracy_level of the products, 4 lets x be rounded to bytes.

    Raises:
        ModelError: width, hidden or heads do not divide as they must.

    Source: the graph of onnxruntime-genai's model builder (int4, GroupQueryAttention); Touvron et al., Llama 2, 2023,
    arXiv:2307.09288.
    """
    require_multiple("language_model: width", width, BLOCK)
    require_multiple("language_model: hidden", hidden, BLOCK)
    require_multiple("language_model: heads", heads, groups)
    size = head or width // heads
    require_multiple("language_model: heads times head", heads * size, BLOCK)
    net = LanguageNet("language_model", seed, dtype, accuracy)
    tokens = net.input("input_ids", ["batch", "sequence"], dtype=TensorProto.INT64, channels=0)
    mask = net.input("attention_mask", ["batch", "total"], dtype=TensorProto.INT64, channels=0)
    names = [(layer, what) for layer in range(layers) for what in ("key", "value")]
    past = {
        n: net.input(f"past_key_values.{n[0]}.{n[1]}", ["batch", groups, "past", size], dtype=net.element, channels=0)
        for n in names
    }
    angles = np.arange(context)[:, None] * 10000.0 ** (-np.arange(size // 2) * 2 / size)
    common = [*_lengths(net, mask), net.floats("cosines", np.cos(angles)), net.floats("sines", np.sin(angles))]
    x, skip, present = _embedded(net, tokens, vocabulary, width), None, {}
    for layer in range(layers):
        with net.scope(f"layers.{layer}"):
            y, x = net.norm(x, skip, f"layers.{layer}.input_norm")
            caches = [past[layer, what] for what in ("key", "value")]
            y, present[layer, "key"], present[layer, "value"] = _attention(
                net, y, caches, common, (heads, groups, size), packed, norms
            )
            y, x = net.norm(x, net.matmul(y, width, "o_proj"), f"layers.{layer}.post_norm")
            gate, up = net.matmul(y, hidden, "gate_proj"), net.matmul(y, hidden, "up_proj")
            skip = net.matmul(net.op("Mul", net.op("Mul", gate, net.op("Sigmoid", gate)), up), width, "down_proj")
    y, _ = net.norm(x, skip, "final_norm", last=True)
    net.output("logits", net.matmul(y, vocabulary, "lm_head"), ["batch", "sequence", vocabulary], net.element)
    for n in names:
        net.output(f"present.{n[0]}.{n[1]}", present[n], ["batch", groups, "present", size], net.element)
    return net.model()


def _lengths(net: LanguageNet, mask: Value) -> tuple[Value, Value]:
    """Tokens of each batch less one [B], and of the longest: what GroupQueryAttention takes."""
    ones = net.op("ReduceSum", mask, net.ints(1), keepdims=0)
    lengths = net.op("Cast", net.op("Sub", ones, net.ints(1)), to=TensorProto.INT32)
    return lengths, net.op(
        "Cast", net.op("Gather", net.op("Shape", mask), net.constant(1, np.int64), axis=0), to=TensorProto.INT32
    )


def _embedded(net: LanguageNet, tokens: Value, vocabulary: int, width: int) -> Value:
    """The tokens' rows of a table of codes."""
    codes, scales = net.codes("embed_tokens", vocabulary, width, 1.0)
    table = net.initializer("embed_tokens.codes", codes)
    (x,) = net.contrib(
        "GatherBlockQuantized",
        [table, tokens, scales],
        channels=width,
        gather_axis=0,
        quantize_axis=1,
        block_size=BLOCK,
        bits=BITS,
    )
    return x


def _attention(
    net: LanguageNet,
    x: Value,
    caches: list[Value],
    common: list[Value],
    sizes: tuple[int, int, int],
    packed: bool,
    norms: bool,
) -> list[Value]:
    """Attention with a cache -> what it mixed [B, S, heads * head], the keys and the values behind this step."""
    heads, groups, size = sizes
    if packed:
        given: list[Value | None] = [net.matmul(x, (heads + 2 * groups) * size, "qkv_proj"), None, None]
    else:
        given = [net.matmul(x, n * size, f"{what}_proj") for n, what in ((heads, "q"), (groups, "k"), (groups, "v"))]
    weights: list[Value | None] = []
    if norms:
        scope = "/".join(net._scopes)
        drawn = (
            net.floats(f"{scope}/{w}.weight", net._rng(f"{scope}/{w}").uniform(0.8, 1.2, size))
            for w in ("q_norm", "k_norm")
        )
        weights = [*[None] * 5, *drawn]
    return net.contrib(
        "GroupQueryAttention",
        [*given, *caches, *common, *weights],
        3,
        channels=heads * size,
        num_heads=heads,
        kv_num_heads=groups,
        do_rotary=1,
        rotary_interleaved=0,
        local_window_size=-1,
    )
