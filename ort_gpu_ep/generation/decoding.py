"""A decoder's step as a session for IO binding: the next token is chosen on the device, which needs nothing from the
host between two tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.generation.opening import Model, length_of, loaded, options_of, session_of
from ort_gpu_ep.generation.positions import positions_of
from ort_gpu_ep.generation.step import LOGITS, LOGITS_ROWS, Step, step_of
from ort_gpu_ep.session.session import InferenceSession

CANDIDATES, CANDIDATE_LOGITS = "generation.candidates", "generation.candidate_logits"
"""Outputs: the most likely tokens, int64 [1, candidates], the most likely one first; their logits, likewise."""


def decoding_session(
    model: Model,
    *,
    max_length: int | None = None,
    candidates: int = 0,
    provider_options: Mapping[str, Any] | None = None,
    sess_options: Any = None,
) -> InferenceSession:
    """A session of one step of a decoder, whose outputs are the inputs of its next step.

    Inputs: `input_ids` [1, S]; `generation.length`, int64 [1, 1]: how many tokens there are with these; the caches, by
    the model's names, [1, heads, max_length, size]. Outputs: `generation.next` [1, 1], the most likely token behind the
    last one, -1 where the logits have NaN (on the device) or are all -inf; `generation.next_length`; `generation.logits`
    [1, 1, vocabulary] of the last token; the presents. Bind each cache as its past and its present. An output that is
    not bound is not delivered. With `candidates`, a program that draws tokens itself reads so many numbers in place of
    a vocabulary: `generation.candidates` and `generation.candidate_logits`, [1, candidates], the most likely one first.

    model: path, bytes or ModelProto of a decoder as onnxruntime-genai's model builder writes it. max_length: tokens of
    prompt and answer together; None: 2048, or as many as the model's tables of positions have. provider_options: as
    InferenceSession's; by default placement=gpu. sess_options: as Generator has them.

    Raises:
        ModelError: the model is no such decoder. ConfigError: an option, a max_length beyond the model's tables of
        positions.
    """
    if candidates < 0:
        raise ConfigError(f"decoding_session: candidates: got {candidates}, expected 0 or more")
    parsed, folder = loaded(model)
    step = step_of(parsed, length_of(max_length, positions_of(parsed)))
    if candidates:
        _add_candidates(step, candidates)
    return session_of(step.model, folder, sess_options, options_of(provider_options))


def _add_candidates(step: Step, count: int) -> None:
    graph = step.model.graph
    logits = next(o for o in graph.output if o.name == LOGITS).type.tensor_type
    vocabulary = logits.shape.dim[-1].dim_value
    if vocabulary and count > vocabulary:
        raise ConfigError(f"decoding_session: candidates: got {count}, expected at most {vocabulary}, the vocabulary")
    graph.initializer.append(numpy_helper.from_array(np.array([count]), "generation.count_of_candidates"))
    graph.node.append(
        helper.make_node("TopK", [LOGITS_ROWS, "generation.count_of_candidates"], [CANDIDATE_LOGITS, CANDIDATES])
    )
    graph.output.extend(
        [
            helper.make_tensor_value_info(CANDIDATES, TensorProto.INT64, [1, count]),
            helper.make_tensor_value_info(CANDIDATE_LOGITS, logits.elem_type, [1, count]),
        ]
    )
