"""Small models with random weights, in the folders and with the names that packages expect of pretrained ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "a",
    "gpu",
    "runs",
    "models",
    "the",
    "cat",
    "sleeps",
    "on",
    "mat",
    "fast",
    "slow",
    "warm",
)


def _saved(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray],
) -> None:
    graph = helper.make_graph(
        nodes, "model", inputs, outputs, [numpy_helper.from_array(w, name) for name, w in weights.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    onnx.checker.check_model(model)
    onnx.save(model, path)


def text_model(path: Path, width: int, scores: bool = False) -> None:
    """Token ids and masks -> last_hidden_state [batch, sequence, width], or with `scores` logits [batch, 1]."""
    rng = np.random.default_rng(7)
    weights = {
        "table": rng.standard_normal((len(WORDS), 64)).astype("f"),
        "w": rng.standard_normal((64, width)).astype("f") / 8,
        "gamma": np.ones(width, "f"),
        "beta": np.zeros(width, "f"),
        "kinds": rng.standard_normal((2, 64)).astype("f"),
        "last": np.array([2]),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("Gather", ["kinds", "token_type_ids"], ["places"]),
        helper.make_node("Add", ["words", "places"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Erf", ["y"], ["z"]),
        helper.make_node("LayerNormalization", ["z", "gamma", "beta"], ["normal"]),
        helper.make_node("Cast", ["attention_mask"], ["m"], to=1),
        helper.make_node("Unsqueeze", ["m", "last"], ["mask"]),
        helper.make_node("Mul", ["normal", "mask"], ["last_hidden_state"]),
    ]
    out = ("last_hidden_state", ["batch", "sequence", width])
    if scores:
        weights["head"] = rng.standard_normal((width, 1)).astype("f")
        nodes += [
            helper.make_node("ReduceMean", ["last_hidden_state"], ["mean"], axes=[1], keepdims=0),
            helper.make_node("MatMul", ["mean", "head"], ["logits"]),
        ]
        out = ("logits", ["batch", 1])
    names = ("input_ids", "attention_mask", "token_type_ids")
    _saved(
        path,
        nodes,
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "sequence"]) for n in names],
        [helper.make_tensor_value_info(out[0], TensorProto.FLOAT, out[1])],
        weights,
    )


def tokenizer(folder: Path) -> None:
    """Of words, in the files that transformers writes."""
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "added_tokens": [
            {
                "id": i,
                "content": word,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, word in enumerate(WORDS[:4])
        ],
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "[UNK]"},
    }
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    for name, value in (
        ("tokenizer", content),
        ("special_tokens_map", special),
        ("tokenizer_config", {"model_max_length": 64, **special}),
        ("config", {"pad_token_id": 0, "model_type": "bert"}),
    ):
        (folder / f"{name}.json").write_text(json.dumps(value), "utf-8")


def mask_model(path: Path) -> None:
    """An image [1, 3, 320, 320] -> a mask [1, 1, 320, 320]: three convolutions, one of them with a stride, and a
    Resize."""
    rng = np.random.default_rng(8)
    weights = {
        "a": rng.standard_normal((8, 3, 3, 3)).astype("f") / 5,
        "b": rng.standard_normal((8, 8, 3, 3)).astype("f") / 8,
        "c": rng.standard_normal((1, 8, 1, 1)).astype("f"),
        "scales": np.array([1, 1, 2, 2], "f"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("Conv", ["q", "b"], ["r"], pads=[1] * 4),
        helper.make_node("Relu", ["r"], ["s"]),
        helper.make_node("Conv", ["s", "c"], ["t"]),
        helper.make_node("Resize", ["t", "", "scales"], ["u"], mode="linear"),
        helper.make_node("Sigmoid", ["u"], ["mask"]),
    ]
    _saved(
        path,
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 320, 320])],
        [helper.make_tensor_value_info("mask", TensorProto.FLOAT, [1, 1, 320, 320])],
        weights,
    )
