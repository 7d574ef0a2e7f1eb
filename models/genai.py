"""A folder that onnxruntime-genai opens: a small language model, its settings, a tokenizer that has a token for each
byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.language import language_model

BYTES = 256
"""Tokens of a text; behind them one that ends it."""

SIZES: dict[str, Any] = {"layers": 2, "width": 128, "heads": 4, "groups": 2, "vocabulary": BYTES + 1, "context": 256}


def save_folder(folder: Path, provider: str = "", options: Mapping[str, str] | None = None, **sizes: Any) -> None:
    """Writes a decoder with random weights, `sizes` of models.language.language_model in place of SIZES.

    provider: as onnxruntime-genai calls it, "" for the CPU; options: its options.
    """
    given = SIZES | sizes
    (folder / "model.onnx").write_bytes(language_model(**given).SerializeToString())
    save_settings(folder, given, provider, options)


def save_settings(
    folder: Path, sizes: Mapping[str, Any], provider: str = "", options: Mapping[str, str] | None = None
) -> None:
    """Writes what onnxruntime-genai reads beside a model.onnx of these sizes, all of them; see `save_folder`."""
    tables = {
        "genai_config": {
            "model": _described(sizes, [{provider: dict(options or {})}] if provider else []),
            "search": _SEARCH | {"max_length": sizes["context"]},
        },
        "tokenizer": _tokenizer(),
        "tokenizer_config": {
            "tokenizer_class": "GPT2Tokenizer",
            "add_bos_token": False,
            **dict.fromkeys(("bos_token", "eos_token"), _END),
        },
    }
    for name, table in tables.items():
        (folder / f"{name}.json").write_text(json.dumps(table), "utf-8")


_END = "<|end|>"
_SEARCH = {
    "do_sample": False,
    "past_present_share_buffer": True,
    "batch_size": 1,
    "num_beams": 1,
    "min_length": 0,
    "top_k": 1,
    "top_p": 1.0,
    "temperature": 1.0,
    "repetition_penalty": 1.0,
}


def _described(sizes: Mapping[str, Any], providers: list[dict[str, dict[str, str]]]) -> dict[str, Any]:
    """What onnxruntime-genai reads of a model before it opens it."""
    names = {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}
    results = {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
    head = sizes.get("head") or sizes["width"] // sizes["heads"]
    return {
        "type": "llama",
        "bos_token_id": BYTES,
        "eos_token_id": BYTES,
        "pad_token_id": BYTES,
        "context_length": sizes["context"],
        "vocab_size": sizes["vocabulary"],
        "decoder": {
            "session_options": {"log_id": "onnxruntime-genai", "provider_options": providers},
            "filename": "model.onnx",
            "head_size": head,
            "hidden_size": sizes["width"],
            "num_attention_heads": sizes["heads"],
            "num_key_value_heads": sizes["groups"],
            "num_hidden_layers": sizes["layers"],
            "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **names},
            "outputs": {"logits": "logits", **results},
        },
    }


def _tokenizer() -> dict[str, Any]:
    """Byte-level BPE that merges nothing: a token for each byte, as GPT-2 writes bytes as characters."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(BYTES) if b not in visible]
    letters = {**{b: chr(b) for b in visible}, **{b: chr(BYTES + k) for k, b in enumerate(others)}}
    end = {
        "id": BYTES,
        "content": _END,
        "special": True,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "vocab": {letter: byte for byte, letter in letters.items()} | {_END: BYTES},
            "merges": [],
        },
    }
