"""A small BERT-like encoder with random weights, in the nodes that torch's exporter writes: what optimisers of
transformers look for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
WIDTH, HEADS, LAYERS, WORDS, LENGTH = 64, 4, 2, 99, 128


class Encoder:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.held: dict[str, Array] = {}

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"/{op}_{len(self.nodes)}_out"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{len(self.nodes)}", **attributes))
        return name

    def hold(self, name: str, value: Any, dtype: str = "float32") -> str:
        self.held[name] = np.asarray(value, dtype)
        return name

    def weight(self, name: str, *shape: int, near: float = 0.0) -> str:
        return self.hold(name, near + self.rng.standard_normal(shape) * (shape[0] ** -0.5 if len(shape) > 1 else 0.1))

    def linear(self, x: str, name: str, inner: int, outer: int) -> str:
        product = self.add("MatMul", x, self.weight(f"{name}.weight", inner, outer))
        return self.add("Add", self.weight(f"{name}.bias", outer), product)

    def norm(self, x: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.scale", WIDTH, near=1.0), self.weight(f"{name}.bias", WIDTH)
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def embedded(self) -> str:
        words = self.add("Gather", self.weight("words", WORDS, WIDTH), "input_ids")
        segments = self.add("Gather", self.weight("segments", 2, WIDTH), "token_type_ids")
        shape = self.add("Shape", "input_ids")
        length = self.add(
            "Unsqueeze",
            self.add("Gather", shape, self.hold("one_index", 1, "int64"), axis=0),
            self.hold("axis0", [0], "int64"),
        )
        places = self.hold("position_ids", np.arange(LENGTH)[None], "int64")
        places = self.add("Slice", places, self.hold("zero", [0], "int64"), length, self.hold("axis1", [1], "int64"))
        positions = self.add("Gather", self.weight("positions", LENGTH, WIDTH), places)
        return self.norm(self.add("Add", self.add("Add", words, segments), positions), "embeddings")

    def mask(self) -> str:
        seen = self.add("Unsqueeze", self.add("Unsqueeze", "attention_mask", "axis1"), self.hold("axis2", [2], "int64"))
        seen = self.add("Cast", seen, to=TensorProto.FLOAT)
        return self.add("Mul", self.add("Sub", self.hold("ones", 1.0), seen), self.hold("filter", -10000.0))

    def heads(self, x: str, perm: tuple[int, ...]) -> str:
        return self.add(
            "Transpose", self.add("Reshape", x, self.hold("split", [0, 0, HEADS, WIDTH // HEADS], "int64")), perm=perm
        )

    def layer(self, x: str, mask: str, name: str) -> str:
        q, k, v = (
            self.heads(self.linear(x, f"{name}.{n}", WIDTH, WIDTH), perm)
            for n, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3)))
        )
        scores = self.add("Div", self.add("MatMul", q, k), self.hold("root", (WIDTH // HEADS) ** 0.5))
        mixed = self.add("MatMul", self.add("Softmax", self.add("Add", scores, mask), axis=-1), v)
        joined = self.add(
            "Reshape", self.add("Transpose", mixed, perm=(0, 2, 1, 3)), self.hold("joined", [0, 0, WIDTH], "int64")
        )
        x = self.norm(self.add("Add", self.linear(joined, f"{name}.o", WIDTH, WIDTH), x), f"{name}.norm1")
        h = self.linear(x, f"{name}.up", WIDTH, 4 * WIDTH)
        erf = self.add("Erf", self.add("Div", h, self.hold("root2", 2**0.5)))
        h = self.add("Mul", self.add("Mul", h, self.add("Add", erf, "ones")), self.hold("half", 0.5))
        return self.norm(self.add("Add", self.linear(h, f"{name}.down", 4 * WIDTH, WIDTH), x), f"{name}.norm2")

    def model(self) -> onnx.ModelProto:
        """input_ids, attention_mask, token_type_ids [batch, sequence] -> states [batch, sequence, 64]."""
        x, mask = self.embedded(), self.mask()
        for number in range(LAYERS):
            x = self.layer(x, mask, f"layer{number}")
        names = ("input_ids", "attention_mask", "token_type_ids")
        self.nodes[-1].output[0] = "states"
        graph = helper.make_graph(
            self.nodes,
            "encoder",
            [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "sequence"]) for n in names],
            [helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "sequence", WIDTH])],
            [numpy_helper.from_array(a, n) for n, a in self.held.items()],
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8
        )


def feeds(batch: int, length: int) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    ends = np.arange(batch)[:, None] * 2
    return {
        "input_ids": rng.integers(0, WORDS, (batch, length)),
        "attention_mask": (np.arange(length) < length - ends).astype("int64"),
        "token_type_ids": rng.integers(0, 2, (batch, length)),
    }


class _Shapes:
    """Of a run of the model before optimisation: in place of onnxruntime's inference, which wants a package for
    algebra."""

    def __init__(self, model: onnx.ModelProto) -> None:
        every = onnx.ModelProto.FromString(model.SerializeToString())
        names = [name for node in every.graph.node for name in node.output]
        del every.graph.output[:]
        every.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
        given = feeds(4, 7)
        values = onnxruntime.InferenceSession(every.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, given
        )
        self.known_vi_ = {  # their name for it
            name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in (*given.items(), *zip(names, values, strict=True))
        }

    def get_edge_shape(self, name: str) -> Any:
        found = self.known_vi_.get(name)
        return found and [d.dim_value for d in found.type.tensor_type.shape.dim]

    def compare_shape(self, one: str, other: str) -> bool:
        return bool(self.get_edge_shape(one) == self.get_edge_shape(other))


def optimised(model: onnx.ModelProto, path: str, half: bool, multi_head: bool) -> onnx.ModelProto:
    """By onnxruntime.transformers.optimizer. path: of a file that it may write. multi_head: MultiHeadAttention in place
    of Attention."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    onnx.save(model, path)
    options, shapes = FusionOptions("bert"), _Shapes(model)
    options.use_multi_head_attention = multi_head
    their = optimizer.MODEL_TYPES["bert"][0]
    inferred = their.infer_runtime_shape
    their.infer_runtime_shape = lambda self, *_, **__: shapes
    try:
        made = optimizer.optimize_model(path, "bert", HEADS, WIDTH, options, opt_level=0)
        if half:
            made.convert_float_to_float16(use_symbolic_shape_infer=False)
    finally:
        their.infer_runtime_shape = inferred
    return onnx.ModelProto.FromString(made.model.SerializeToString())
