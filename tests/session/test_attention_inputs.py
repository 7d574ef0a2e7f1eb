"""Biases, masks of padding and ids around attention of ONNX Runtime: fewer dispatches, and the results of its CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_gpu_ep
from tests.session.random_graphs import quiet

BATCH, LENGTH, HIDDEN, HEADS = 3, 11, 32, 4
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
LAYERS = 3


class Layers:
    """Three layers of products and MultiHeadAttention, of x [B, S, 32] and padding."""

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype, self.rng, self.nodes, self.held = (
            dtype,
            np.random.default_rng(7),
            list[onnx.NodeProto](),
            dict[str, Any](),
        )
        self.outputs = ["y"]

    def weight(self, name: str, *shape: int) -> str:
        self.held[name] = (self.rng.standard_normal(shape) * shape[0] ** -0.5).astype(self.dtype)
        return name

    def product(self, x: str, name: str) -> str:
        self.nodes.append(helper.make_node("MatMul", [x, self.weight(f"{name}.w", HIDDEN, HIDDEN)], [name]))
        return name

    def attention(
        self, x: str, out: str, keys: list[str] | None = None, padding: str = "padding", bias: bool = True, **given: Any
    ) -> None:
        q = self.product(x, f"{out}.q")
        k, v = keys or [self.product(x, f"{out}.k"), self.product(x, f"{out}.v")]
        held = [self.weight(f"{out}.bias", 3 * HIDDEN)] if bias else [""]
        self.nodes.append(
            helper.make_node(
                "MultiHeadAttention", [q, k, v, *held, padding], [out], domain="com.microsoft", num_heads=HEADS, **given
            )
        )

    def model(self, padding: tuple[str | int, ...], **more: tuple[Any, ...]) -> bytes:
        inputs = [
            helper.make_tensor_value_info("x", TYPES[self.dtype], ["batch", "length", HIDDEN]),
            helper.make_tensor_value_info("padding", TensorProto.INT32, padding),
        ]
        inputs += [helper.make_tensor_value_info(name, TYPES[self.dtype], shape) for name, shape in more.items()]
        outputs = [helper.make_tensor_value_info(name, TYPES[self.dtype], None) for name in self.outputs]
        graph = helper.make_graph(
            self.nodes, "layers", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in self.held.items()]
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def paddings(rank: int, batch: int, length: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    ends = rng.integers(1, length + 1, batch)
    return (ends if rank == 1 else np.arange(length) < ends[:, None]).astype(np.int32)


def compare(model: bytes, exact: bytes, rank: int, more: Any = lambda *_: {}, tolerance: float = 3e-6) -> int:
    """The dispatches of a run, after runs of several sizes on both sides. exact: the same network in float32."""
    session = ort_gpu_ep.InferenceSession(model, quiet(), provider_options={"placement": "gpu", "strict": "1"})
    cpu = onnxruntime.InferenceSession(exact, quiet(), providers=["CPUExecutionProvider"])
    kind = "float16" if session.get_inputs()[0].type == "tensor(float16)" else "float32"
    rng = np.random.default_rng()
    for batch, length in ((BATCH, LENGTH), (1, 5), (2, 16)):
        given = {"x": rng.standard_normal((batch, length, HIDDEN)).astype("float16"), **more(rng, batch, length)}
        padding = paddings(rank, batch, length, rng)
        ours = {n: a.astype(kind) for n, a in given.items()}
        theirs = {n: a.astype("float32") for n, a in given.items()}
        for got, wanted in zip(
            session.run(None, {**ours, "padding": padding}), cpu.run(None, {**theirs, "padding": padding}), strict=True
        ):
            np.testing.assert_allclose(got.astype("d"), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())
    return max(int(memory.dispatches) for memory in session.explain().memory)


def layered(dtype: str, rank: int, **given: Any) -> bytes:
    made = Layers(dtype)
    for k in range(LAYERS):
        made.attention("x" if not k else f"y{k}", f"y{k + 1}" if k < LAYERS - 1 else "y", **given)
    return made.model(("batch",) if rank == 1 else ("batch", "length"))


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("float16", 4e-3)])
def test_a_layer_is_three_products_and_attention_and_the_mask_is_made_once(
    dtype: str, tolerance: float, rank: int
) -> None:
    taken = compare(layered(dtype, rank), layered("float32", rank), rank, tolerance=tolerance)
    assert taken == 4 * LAYERS + 1


def test_masks_with_other_numbers_are_made_apart() -> None:
    made = Layers()
    made.attention("x", "a", mask_filter_value=-1.0)
    made.attention("a", "b", mask_filter_value=-2.0)
    made.attention("b", "y", mask_filter_value=-1.0)
    model = made.model(("batch", "length"))
    assert compare(model, model, 2) == 4 * 3 + 2


def test_causal_attention_keeps_its_own_mask() -> None:
    made = Layers()
    made.attention("x", "a", unidirectional=1)
    made.attention("a", "b")
    made.attention("b", "y", unidirectional=1)
    model = made.model(("batch", "length"))
    assert compare(model, model, 2) == 4 * 3 + 3


def test_a_product_that_something_else_reads_keeps_its_result() -> None:
    made = Layers()
    made.attention("x", "y", padding="")
    made.outputs.append("y.k")
    model = made.model(("batch", "length"))
    assert compare(model, model, 2) == 4 + 3  # the bias is added in kernels of its own


def test_keys_of_another_sequence_have_no_bias() -> None:
    made = Layers()
    shape = ("batch", HEADS, "tokens", HIDDEN // HEADS)
    made.attention("x", "a", ["keys", "values"], padding="")
    made.attention("a", "y", ["keys", "values"], padding="")
    model = made.model(("batch", "length"), keys=shape, values=shape)

    def more(rng: np.random.Generator, batch: int, _: int) -> dict[str, Any]:
        return {
            name: rng.standard_normal((batch, HEADS, 9, HIDDEN // HEADS)).astype("float16")
            for name in ("keys", "values")
        }

    assert compare(model, model, 2, more) == 2 * 2


@pytest.mark.parametrize("wide", [True, False])
def test_ids_of_64_bits_are_embedded_without_a_cast(wide: bool) -> None:
    rng = np.random.default_rng(3)
    held = {
        name: rng.standard_normal(shape).astype("float32")
        for name, shape in (
            ("words", (50, 16)),
            ("positions", (20, 16)),
            ("segments", (2, 16)),
            ("gamma", (16,)),
            ("beta", (16,)),
        )
    }
    names, kind = ("ids", "places"), TensorProto.INT64 if wide else TensorProto.INT32
    nodes = [helper.make_node("Cast", [name], [f"{name}.32"], to=TensorProto.INT32) for name in names] if wide else []
    given = [f"{name}.32" if wide else name for name in names]
    nodes.append(
        helper.make_node(
            "EmbedLayerNormalization",
            [*given, "words", "positions", "segments", "gamma", "beta"],
            ["y", "counts"],
            domain="com.microsoft",
            epsilon=1e-3,
        )
    )
    graph = helper.make_graph(
        nodes,
        "embedding",
        [helper.make_tensor_value_info(name, kind, ["batch", "length"]) for name in names],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", 16])],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8
    ).SerializeToString()
    session = ort_gpu_ep.InferenceSession(model, quiet(), provider_options={"placement": "gpu", "strict": "1"})
    cpu = onnxruntime.InferenceSession(model, quiet(), providers=["CPUExecutionProvider"])
    fresh = np.random.default_rng()
    for batch, length in ((2, 7), (1, 20)):
        ids = fresh.integers(0, 50, (batch, length))
        if wide:
            ids[0, 0] += 1 << 32  # a Cast leaves the lower half
        feeds = {"ids": ids, "places": fresh.integers(0, 2, (batch, length))}
        feeds = {n: a.astype("int64" if wide else "int32") for n, a in feeds.items()}
        np.testing.assert_allclose(session.run(["y"], feeds)[0], cpu.run(["y"], feeds)[0], rtol=3e-6, atol=3e-6)
    # the sum, and its normalization; nobody reads the counts
    assert {m.dispatches for m in session.explain().memory} == {2}
