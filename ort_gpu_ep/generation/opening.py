"""Models that a generation reads, opened: from a path, bytes or a ModelProto to a session, its vocabulary, and the
tokens that it has room for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from ort_gpu_ep.config import resolve
from ort_gpu_ep.errors import ConfigError, ModelError
from ort_gpu_ep.generation.model_file import without_weights
from ort_gpu_ep.generation.step import LOGITS
from ort_gpu_ep.ir.refused import kind_of
from ort_gpu_ep.session.bound_runs import state_of
from ort_gpu_ep.session.opening import EXTERNAL_FOLDER, own_settings
from ort_gpu_ep.session.session import InferenceSession

DEFAULT_LENGTH = 2048
"""Tokens of prompt and answer together, where the model's tables of positions have room for them."""

DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""Of operators that onnxruntime has without a library."""

Model = str | os.PathLike[str] | bytes | onnx.ModelProto


def loaded(model: Model) -> tuple[onnx.ModelProto, str]:
    """The model, its weights left in their files, and the folder of these. Raises ModelError where it can't be read."""
    if isinstance(model, onnx.ModelProto):
        copied = onnx.ModelProto()
        copied.CopyFrom(model)
        return copied, ""
    try:
        if isinstance(model, bytes):
            parsed = onnx.load_model_from_string(model)
            if not parsed.HasField("graph"):
                raise ValueError("it has no graph")
            return parsed, ""
        return without_weights(os.fspath(model))
    except Exception as error:
        name = "bytes" if isinstance(model, bytes) else os.fspath(model)
        raise ModelError(f"generate: {name}: not a readable ONNX model ({kind_of(model) or error})") from error


def session_of(
    model: onnx.ModelProto, folder: str, sess_options: Any, provider_options: Mapping[str, Any]
) -> InferenceSession:
    """folder: of the model's external data. sess_options: copied, unless the model has operators of a library, which no
    copy knows."""
    settings = sess_options if {n.domain for n in model.graph.node} - DOMAINS else own_settings(sess_options)
    if folder:
        settings = settings if settings is not None else onnxruntime.SessionOptions()
        settings.add_session_config_entry(EXTERNAL_FOLDER, folder)
    return InferenceSession(model.SerializeToString(), settings, provider_options=provider_options)


def options_of(provider_options: Mapping[str, Any] | None, tokens: int = 0) -> dict[str, Any]:
    """One plan for all sizes, since tokens come evenly. tokens: of each pass that verifies drafts; 0: none does."""
    few = {"few_tokens": tokens} if tokens else {}
    return {"placement": "gpu", "specialize": "off", **few, **(provider_options or {})}


def is_on_gpu(session: InferenceSession, provider_options: Mapping[str, Any]) -> bool:
    """Whether a session's provider has its values, in this process."""
    return state_of(session) is not None and resolve(provider_options).isolation == "none"


def logits_of(session: InferenceSession) -> tuple[int, npt.DTypeLike]:
    """How many logits a step gives for a token, and their numpy type. Raises ModelError where the model leaves the
    number open."""
    info = next(o for o in session.get_outputs() if o.name == LOGITS)
    if not isinstance(info.shape[-1], int):
        raise ModelError(
            "generate: the model leaves the number of logits open; write it into the shape of output 'logits'"
        )
    return info.shape[-1], {"tensor(float)": np.float32, "tensor(float16)": np.float16}[info.type]


def length_of(asked: int | None, positions: tuple[int, str] | None) -> int:
    """Tokens of prompt and answer together. positions: see positions_of. Raises ConfigError."""
    most, table = positions if positions is not None else (None, "")
    length = asked if asked is not None else DEFAULT_LENGTH if most is None else min(DEFAULT_LENGTH, most)
    if length < 2:
        raise ConfigError(f"generate: max_length: got {length}, expected 2 tokens or more")
    if most is not None and length > most:
        raise ConfigError(
            f"generate: max_length: got {length}, expected at most {most}, the positions of the model's table {table!r}"
        )
    return length
