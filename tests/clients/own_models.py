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


def encoder(folder: Path) -> None:
    """A BERT of transformers: two layers of width 64, its tokenizer, and a head of three classes."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    torch.manual_seed(7)
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS), "utf-8")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(len(WORDS), 64, 2, 4, 128, max_position_embeddings=64, num_labels=3, initializer_range=0.3)
    BertForSequenceClassification(config).eval().save_pretrained(folder)


def decoder(folder: Path) -> None:
    """A Llama of transformers: two layers of width 64, two heads of keys for four of queries; and a tokenizer."""
    import torch
    from transformers import BertTokenizerFast, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS), "utf-8")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    config = LlamaConfig(
        len(WORDS),
        64,
        128,
        2,
        4,
        2,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).eval().save_pretrained(folder)


def scores_of_rows(path: Path, columns: int) -> None:
    """Rows [rows, columns] -> their scores [rows, 3]: two layers."""
    rng = np.random.default_rng(9)
    weights = {
        "a": rng.standard_normal((columns, 16)).astype("f"),
        "b": rng.standard_normal(16).astype("f"),
        "c": rng.standard_normal((16, 3)).astype("f"),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "a", "b"], ["p"]),
        helper.make_node("Tanh", ["p"], ["q"]),
        helper.make_node("MatMul", ["q", "c"], ["r"]),
        helper.make_node("Softmax", ["r"], ["scores"]),
    ]
    _saved(
        path,
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", columns])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", 3])],
        weights,
    )


def speech_model(path: Path) -> None:
    """Tokens [1, n], a style [1, 256] and a speed [1] -> sound: the inputs of Kokoro."""
    rng = np.random.default_rng(10)
    weights = {
        "table": rng.standard_normal((178, 32)).astype("f"),
        "styles": rng.standard_normal((256, 32)).astype("f") / 16,
        "filters": rng.standard_normal((32, 1, 600)).astype("f") / 8,
        "flat": np.array([-1]),
    }
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["words"]),
        helper.make_node("MatMul", ["style", "styles"], ["how"]),
        helper.make_node("Mul", ["words", "how"], ["x"]),
        helper.make_node("Div", ["x", "speed"], ["scaled"]),
        helper.make_node("Transpose", ["scaled"], ["rows"], perm=[0, 2, 1]),
        helper.make_node("ConvTranspose", ["rows", "filters"], ["wave"], strides=[300]),
        helper.make_node("Tanh", ["wave"], ["bounded"]),
        helper.make_node("Reshape", ["bounded", "flat"], ["audio"]),
    ]
    _saved(
        path,
        nodes,
        [
            helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, "tokens"]),
            helper.make_tensor_value_info("style", TensorProto.FLOAT, [1, 256]),
            helper.make_tensor_value_info("speed", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("audio", TensorProto.FLOAT, ["samples"])],
        weights,
    )


def face_model(path: Path) -> None:
    """A face [n, 3, 112, 112] -> its embedding [n, 64]: the inputs of ArcFace."""
    rng = np.random.default_rng(14)
    weights = {
        "a": rng.standard_normal((8, 3, 3, 3)).astype("f") / 5,
        "slope": np.full((8, 1, 1), 0.25, "f"),
        "b": rng.standard_normal((16, 8, 3, 3)).astype("f") / 8,
        "c": rng.standard_normal((16, 64)).astype("f"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("PRelu", ["p", "slope"], ["q"]),
        helper.make_node("Conv", ["q", "b"], ["r"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["r"], ["s"]),
        helper.make_node("Flatten", ["s"], ["t"]),
        helper.make_node("MatMul", ["t", "c"], ["embedding"]),
    ]
    _saved(
        path,
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 112, 112])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", 64])],
        weights,
    )


def plate_model(path: Path, slots: int, letters: int) -> None:
    """Plates [n, 32, 64, 1] of bytes -> scores of the letters [n, slots, letters]."""
    rng = np.random.default_rng(15)
    weights = {
        "whole": np.array(255, "f"),
        "a": rng.standard_normal((8, 1, 4, 4)).astype("f"),
        "b": rng.standard_normal((8 * 8 * 16, slots * letters)).astype("f") / 8,
        "places": np.array([0, slots, letters]),
    }
    nodes = [
        helper.make_node("Cast", ["input"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["floats", "whole"], ["x"]),
        helper.make_node("Transpose", ["x"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["planes", "a"], ["p"], strides=[4, 4]),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("Flatten", ["q"], ["flat"]),
        helper.make_node("MatMul", ["flat", "b"], ["scores"]),
        helper.make_node("Reshape", ["scores", "places"], ["rows"]),
        helper.make_node("Softmax", ["rows"], ["plate"], axis=-1),
    ]
    _saved(
        path,
        nodes,
        [helper.make_tensor_value_info("input", TensorProto.UINT8, ["n", 32, 64, 1])],
        [helper.make_tensor_value_info("plate", TensorProto.FLOAT, ["n", slots, letters])],
        weights,
    )
