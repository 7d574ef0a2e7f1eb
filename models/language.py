"""A language model as onnxruntime-genai's builder writes it: int4 weights, grouped heads, a cache as inputs and
outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.builder import Attribute, Net, Value, require_multiple

BITS, BLOCK = 4, 32
"""Of a code, and codes that share a scale."""

CONTRIB = "com.microsoft"

GPT_OSS_20B: Mapping[str, Any] = {
    "layers": 24,
    "width": 2880,
    "heads": 64,
    "groups": 8,
    "head": 64,
    "hidden": 2880,
    "vocabulary": 201088,
    "packed": True,
    "experts": 32,
    "active": 4,
    "window": 128,
    "sinks": True,
    "biases": True,
}
"""Arguments of `language_model` that give gpt-oss-20b's shape: some 12 GB of weights. Source: OpenAI, gpt-oss-120b and
gpt-oss-20b Model Card, 2025, arXiv:2508.10925."""


class LanguageNet(Net):
    """A graph with nodes of ONNX Runtime's own domain. dtype: of its floats. accuracy: the accuracy_level of its
    products. biases: whether they have some."""

    def __init__(self, name: str, seed: int, dtype: str, accuracy: int = 0, biases: bool = False) -> None:
        super().__init__(name, seed)
        self.accuracy, self.biases = accuracy, biases
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

    def codes(self, name: str, rows: int, k: int, deviation: float, *matrices: int) -> tuple[np.ndarray, Value]:
        """Bytes of `rows` x `k` random codes, low nibble first, and the scales that give weights this deviation.
        matrices: how many of these."""
        rng = self._rng(name)
        # 4.6: of codes from 0 to 15
        scales = (deviation / 4.6 * rng.uniform(0.8, 1.2, (*matrices, rows, k // BLOCK))).astype(self.dtype)
        return rng.integers(0, 256, (*matrices, rows, k * BITS // 8), np.uint8), self.initializer(
            f"{name}.scales", scales
        )

    def matmul(self, x: Value, out: int, label: str) -> Value:
        """MatMulNBits [B, S, K] -> [B, S, out]."""
        with self.scope(label):
            codes, scales = self.codes("/".join([*self._scopes, "weight"]), out, x.channels, 0.7 / np.sqrt(x.channels))
            weight = self.initializer(
                scales.name.replace(".scales", ".codes"), codes.reshape(out, x.channels // BLOCK, -1)
            )
            (y,) = self.contrib(
                "MatMulNBits",
                [x, weight, scales, *([None, None, self.drawn("bias", out)] if self.biases else [])],
                channels=out,
                K=x.channels,
                N=out,
                bits=BITS,
                block_size=BLOCK,
                accuracy_level=self.accuracy,
            )
        return y

    def drawn(self, label: str, *shape: int, deviation: float = 0.1) -> Value:
        """A stored constant of random floats."""
        name = "/".join([*self._scopes, label])
        return self.floats(name, self._rng(name).standard_normal(shape, np.float32) * np.float32(deviation))

    def experts(self, x: Value, hidden: int, experts: int, active: int) -> Value:
        """QMoE with gates and ups in turn [B, S, K] -> [B, S, K]. experts: of which a token meets `active`."""
        width = x.channels
        router = self.drawn("router.weight", width, experts, deviation=float(width**-0.5))
        scores = self.op("Add", self.op("MatMul", x, router), self.drawn("router.bias", experts))
        given: list[Value | None] = [x, self.op("Reshape", scores, self.ints(-1, experts))]
        for label, rows, k in (("gate_up", 2 * hidden, width), ("down", width, hidden)):
            codes, scales = self.codes("/".join([*self._scopes, label]), rows, k, 0.7 / np.sqrt(k), experts)
            given += [self.initializer(scales.name.replace(".scales", ".codes"), codes), scales]
            given += [self.drawn(f"{label}.bias", experts, rows) if self.biases else None]
        (y,) = self.contrib(
            "QMoE",
            given,
            channels=width,
            k=active,
            activation_type="swiglu",
            swiglu_fusion=1,
            activation_alpha=1.702,
            activation_beta=1.0,
            swiglu_limit=7.0,
            normalize_routing_weights=1,
            expert_weight_bits=BITS,
            block_size=BLOCK,
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
    experts: int = 0,
    active: int = 4,
    window: int = 0,
    sinks: bool = False,
    biases: bool = False,
) -> onnx.ModelProto:
    """A decoder as Llama (packed=False, norms=False), Qwen3 (norms=True) or gpt-oss (GPT_OSS_20B) has it, with random
    int4 weights in blocks of 32.

    input_ids: int64 [batch, sequence], attention_mask: int64 [batch, total], past_key_values.<layer>.key and .value:
    [batch, groups, past, head] -> logits [batch, sequence, vocabulary], present.<layer>.key and .value [batch, groups,
    present, head]. Sizes in words are open: `present` is `past` where the cache is shared and long enough.

    heads, groups: of queries, and of keys and values. head: elements of one; width / heads unless given. context:
    positions that the tables of angles have. packed: one product gives queries, keys and values. norms: queries and
    keys are normalized. accuracy: accuracy_level of the products, 4 lets x be rounded to bytes. experts: of each layer's
    perceptron, of which a token meets `active`; 0 for a perceptron alone. window: tokens that every other layer sees,
    the first one too; 0 for all. sinks: each head has a score that takes part in its softmax alone. biases: of the
    products, but the last.

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
    net = LanguageNet("language_model", seed, dtype, accuracy, biases)
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
                net, y, caches, common, (heads, groups, size), packed, norms, 0 if layer % 2 else window, sinks
            )
            y, x = net.norm(x, net.matmul(y, width, "o_proj"), f"layers.{layer}.post_norm")
            if experts:
                skip = net.experts(y, hidden, experts, active)
                continue
            gate, up = net.matmul(y, hidden, "gate_proj"), net.matmul(y, hidden, "up_proj")
            skip = net.matmul(net.op("Mul", net.op("Mul", gate, net.op("Sigmoid", gate)), up), width, "down_proj")
    y, _ = net.norm(x, skip, "final_norm", last=True)
    net.biases = False
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
    window: int,
    sinks: bool,
) -> list[Value]:
    """Attention with a cache -> what it mixed [B, S, heads * head], the keys and the values behind this step."""
    heads, groups, size = sizes
    if packed:
        given: list[Value | None] = [net.matmul(x, (heads + 2 * groups) * size, "qkv_proj"), None, None]
    else:
        given = [net.matmul(x, n * size, f"{what}_proj") for n, what in ((heads, "q"), (groups, "k"), (groups, "v"))]
    more: list[Value | None] = []
    if sinks or norms:
        more = [None, None, net.drawn("sinks", heads, deviation=1.0) if sinks else None]
    if norms:
        scope = "/".join(net._scopes)
        more += [None, None]
        more += [
            net.floats(f"{scope}/{w}.weight", net._rng(f"{scope}/{w}").uniform(0.8, 1.2, size))
            for w in ("q_norm", "k_norm")
        ]
    return net.contrib(
        "GroupQueryAttention",
        [*given, *caches, *common, *more],
        3,
        channels=heads * size,
        num_heads=heads,
        kv_num_heads=groups,
        do_rotary=1,
        rotary_interleaved=0,
        local_window_size=window or -1,
    )
