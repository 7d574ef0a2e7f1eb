"""onnxruntime's CPU on small pairs of encoder and decoder, for comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from models.encoder_decoder import SIZES, decoders, encoder

WORDS, BANDS, FRAMES = SIZES.vocabulary, SIZES.bands, SIZES.frames

START = 1
"""The token that answers begin with."""


class Plain:
    """onnxruntime's CPU on the two decoders, through `run`."""

    def __init__(self, sound: bool = False) -> None:
        providers = ["CPUExecutionProvider"]
        self._sessions = [
            onnxruntime.InferenceSession(model.SerializeToString(), providers=providers)
            for model in (encoder(sound), *decoders(sound))
        ]

    def _run(self, place: int, values: dict[str, Any]) -> dict[str, Any]:
        session = self._sessions[place]
        results = session.run(None, {i.name: values[i.name] for i in session.get_inputs()})
        return dict(zip((o.name for o in session.get_outputs()), results, strict=True))

    def logits(self, inputs: Any, answers: Any) -> Any:
        """Of the token behind each of some answers of one length, [N, WORDS], read in one pass without caches."""
        inputs = np.asarray(inputs)[None]
        values = {"input_ids": inputs, "input_features": inputs, "attention_mask": np.ones(inputs.shape[:2], "i8")}
        states = np.repeat(self._run(0, values)["last_hidden_state"], len(answers), axis=0)
        mask = np.ones(states.shape[:2], "i8")
        values = {"encoder_hidden_states": states, "encoder_attention_mask": mask, "input_ids": np.asarray(answers)}
        return self._run(1, values)["logits"][:, -1]

    def tokens(self, inputs: Any, start: list[int], count: int) -> list[int]:
        """The most likely ones, step by step with caches."""
        inputs = np.asarray(inputs)[None]
        values = {"input_ids": inputs, "input_features": inputs, "attention_mask": np.ones(inputs.shape[:2], "i8")}
        states = self._run(0, values)["last_hidden_state"]
        values = {"encoder_hidden_states": states, "encoder_attention_mask": np.ones(states.shape[:2], "i8")}
        tokens = list[int]()
        for step in range(count):
            values["input_ids"] = np.array([tokens[-1:] or start])
            results = self._run(min(step + 1, 2), values)
            tokens.append(int(results.pop("logits")[0, -1].argmax()))
            values |= {name.replace("present", "past_key_values"): value for name, value in results.items()}
        return tokens
