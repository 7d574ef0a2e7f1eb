"""A small decoder with random weights, in the nodes that exporters write; its caches grow, and merged it has an If, as
optimum's have."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.encoder import HEADS, LAYERS, LENGTH, WIDTH, WORDS, Encoder

SIZE = WIDTH // HEADS


class Decoder(Encoder):
    """prefix: of the names of values: there are two bodies in a merged model."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self.prefix = prefix

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        name = super().add(op, *inputs, **attributes)
        self.nodes[-1].output[0] = self.prefix + name
        return self.prefix + name

    def mask(self) -> str:
        """0 where a token may look, very low where not: [batch, 1, sequence, total]."""
        total = self.add("Gather", self.add("Shape", "attention_mask"), self.hold("one", 1, "int64"), axis=0)
        columns = self.add("Range", self.hold("none", 0, "int64"), total, "one")
        rows = self.add("Unsqueeze", "position_ids", self.hold("at", [1, 3], "int64"))
        given = self.add(
            "Unsqueeze", self.add("Cast", "attention_mask", to=TensorProto.BOOL), self.hold("between", [1, 2], "int64")
        )
        seen = self.add("And", self.add("LessOrEqual", columns, rows), given)
        return self.add("Where", seen, self.hold("zero", 0.0), self.hold("low", np.finfo("f").min))

    def body(self, cached: bool) -> dict[str, str]:
        """The names of its outputs -> of the values inside."""
        words, places = (
            self.add("Gather", self.weight("words", WORDS, WIDTH), "input_ids"),
            self.weight("places", LENGTH, WIDTH),
        )
        x, mask, given = (
            self.add("Add", words, self.add("Gather", places, "position_ids")),
            self.mask(),
            dict[str, str](),
        )
        for k in range(LAYERS):
            y = self.norm(x, f"{k}.norm1")
            q, key, value = (self.heads(self.linear(y, f"{k}.{n}", WIDTH, WIDTH), (0, 2, 1, 3)) for n in "qkv")
            if cached:
                key, value = (
                    self.add("Concat", f"past_key_values.{k}.{n}", v, axis=2)
                    for n, v in (("key", key), ("value", value))
                )
            given |= {f"present.{k}.key": key, f"present.{k}.value": value}
            scores = self.add(
                "Div",
                self.add("MatMul", q, self.add("Transpose", key, perm=(0, 1, 3, 2))),
                self.hold("root", SIZE**0.5),
            )
            mixed = self.add("MatMul", self.add("Softmax", self.add("Add", scores, mask), axis=-1), value)
            joined = self.add(
                "Reshape", self.add("Transpose", mixed, perm=(0, 2, 1, 3)), self.hold("joined", [0, 0, WIDTH], "int64")
            )
            x = self.add("Add", x, self.linear(joined, f"{k}.o", WIDTH, WIDTH))
            h = self.linear(self.norm(x, f"{k}.norm2"), f"{k}.up", WIDTH, 4 * WIDTH)
            x = self.add(
                "Add", x, self.linear(self.add("Mul", h, self.add("Sigmoid", h)), f"{k}.down", 4 * WIDTH, WIDTH)
            )
        return {"logits": self.add("MatMul", self.norm(x, "last"), self.weight("head", WIDTH, WORDS)), **given}


def _renamed(nodes: list[onnx.NodeProto], given: dict[str, str]) -> list[onnx.NodeProto]:
    """The nodes, and what gives the outputs their names."""
    return [*nodes, *(helper.make_node("Identity", [inside], [name]) for name, inside in given.items())]


def decoder(merged: bool = False) -> onnx.ModelProto:
    """input_ids, attention_mask, position_ids, past_key_values.*, of a merged one use_cache_branch -> logits,
    present.*."""
    made, info = Decoder(), helper.make_tensor_value_info
    past = {f"{k}.{n}": [1, HEADS, "past", SIZE] for k in range(LAYERS) for n in ("key", "value")}
    outputs = [
        info("logits", TensorProto.FLOAT, [1, "sequence", WORDS]),
        *(info(f"present.{n}", TensorProto.FLOAT, [1, HEADS, "total", SIZE]) for n in past),
    ]
    inputs = [
        *(
            info(n, TensorProto.INT64, [1, size])
            for n, size in (("input_ids", "sequence"), ("attention_mask", "total"), ("position_ids", "sequence"))
        ),
        *(info(f"past_key_values.{n}", TensorProto.FLOAT, shape) for n, shape in past.items()),
    ]
    nodes = _renamed(made.nodes, made.body(True)) if not merged else []
    if merged:
        branches = {}
        for name, cached in (("then", True), ("else", False)):
            part = Decoder(f"{name}/")
            given = part.body(cached)
            results = [info(f"{name}/{o.name}", TensorProto.FLOAT, None) for o in outputs]
            named = {f"{name}/{n}": inside for n, inside in given.items()}
            branches[f"{name}_branch"] = helper.make_graph(_renamed(part.nodes, named), name, [], results)
            made.held |= part.held
        nodes = [helper.make_node("If", ["use_cache_branch"], [o.name for o in outputs], **branches)]
        inputs.append(info("use_cache_branch", TensorProto.BOOL, [1]))
    graph = helper.make_graph(
        nodes, "decoder", inputs, outputs, [numpy_helper.from_array(a, n) for n, a in made.held.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
