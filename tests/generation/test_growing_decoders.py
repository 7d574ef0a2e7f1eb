"""generate() with decoders as optimum exports them: ONNX Runtime's tokens, from caches that grow on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ort_gpu_ep.errors import InputError, ModelError
from ort_gpu_ep.generation import Generator
from ort_gpu_ep.plugin.state import COPIES
from tests.decoder import decoder
from tests.encoder import HEADS, WORDS

PROMPT, TOKENS = 7, 12


def plain_tokens(model: onnx.ModelProto, prompt: Any) -> list[int]:
    """By onnxruntime's CPU, through `run`."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    pasts = {
        i.name: np.zeros((1, HEADS, 0, i.shape[3]), "f") for i in session.get_inputs() if i.name.startswith("past")
    }
    tokens, total, found = np.asarray(prompt)[None], len(prompt), list[int]()
    merged = any(i.name == "use_cache_branch" for i in session.get_inputs())
    for step in range(TOKENS):
        feeds = {
            "input_ids": tokens,
            "attention_mask": np.ones((1, total), "int64"),
            "position_ids": np.arange(total - tokens.shape[1], total)[None],
            **pasts,
        }
        given = session.run(None, feeds | ({"use_cache_branch": np.array([step > 0])} if merged else {}))
        values = dict(zip((o.name for o in session.get_outputs()), given, strict=True))
        pasts = {name: values[name.replace("past_key_values", "present")] for name in pasts}
        found.append(int(values["logits"][0, -1].argmax()))
        tokens, total = np.array([found[-1:]]), total + 1
    return found


@pytest.mark.parametrize("merged", [False, True], ids=["one", "merged"])
@pytest.mark.parametrize("options", [{"strict": 1}, {"placement": "cpu"}, {"isolation": "process"}], ids=str)
def test_the_tokens_of_the_cpu(merged: bool, options: dict[str, Any], rng: np.random.Generator) -> None:
    made = Generator(decoder(merged), max_length=64, provider_options=options)
    for _ in range(2):
        prompt = rng.integers(0, WORDS, PROMPT)
        wanted = plain_tokens(decoder(merged), prompt)
        assert list(made.generate(prompt, max_new_tokens=TOKENS)) == wanted
    assert list(made.generate(prompt, max_new_tokens=TOKENS, stop=wanted[1:2])) == wanted[: wanted.index(wanted[1]) + 1]
    assert list(made.generate(prompt, max_new_tokens=TOKENS, temperature=2.0, top_k=1)) == wanted
    assert made.session.stats()["fallbacks"] == 0


@pytest.mark.parametrize("merged", [False, True], ids=["one", "merged"])
def test_caches_stay_on_the_device(merged: bool, rng: np.random.Generator) -> None:
    made = Generator(decoder(merged), max_length=64, provider_options={"strict": 1})
    assert merged or len(made.session.state.partitions) == 1, str(made.session.explain())
    assert made.vocabulary == WORDS
    list(made.generate(rng.integers(0, WORDS, PROMPT), max_new_tokens=3))
    before = COPIES.as_dict()
    steps = made.generate(rng.integers(0, WORDS, PROMPT), max_new_tokens=TOKENS)
    assert len(list(steps)) == TOKENS
    crossed = {kind: count - before[kind] for kind, count in COPIES.as_dict().items()}
    assert crossed["device_to_host"] == TOKENS
    assert crossed["device_to_host_nbytes"] == 8 * TOKENS
    assert crossed["host_to_device_nbytes"] < 1024 * TOKENS


def test_bad_input() -> None:
    made = Generator(decoder(), max_length=9, provider_options={"placement": "cpu"})
    for ids in ([], np.arange(9)):
        with pytest.raises(InputError, match="generate"):
            made.generate(ids)
    strange = decoder()
    strange.graph.input[2].name = "encoder_hidden_states"
    with pytest.raises(ModelError, match="encoder_hidden_states"):
        Generator(strange)
    strange = decoder()
    strange.graph.input[3].type.tensor_type.shape.dim[3].dim_param = "head"
    with pytest.raises(ModelError, match=r"past_key_values\.0\.key"):
        Generator(strange)
