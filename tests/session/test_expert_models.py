"""Language models of gpt-oss-20b's shape, small: mixtures of experts, windows in every other layer, sinks, biases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.language import GPT_OSS_20B, language_model
from ort_gpu_ep import Generator
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.ops.experts import BY_EXPERT, BY_TOKEN, MOST_FEW
from tests.session.test_language_models import STEPS, generated, prompt_of, session

SMALL: dict[str, Any] = {
    **GPT_OSS_20B,
    "layers": 2,
    "width": 96,
    "heads": 4,
    "groups": 2,
    "head": 32,
    "hidden": 64,
    "vocabulary": 512,
    "experts": 8,
    "window": 4,
}


@pytest.mark.parametrize("rows", [0, 40], ids=["growing", "static"])
def test_one_partition_and_the_tokens_of_the_cpu(rows: int) -> None:
    model = language_model(**SMALL)
    ours, plain = session(model, "gpu"), session(model, "plain")
    assert len(ours.state.partitions) == 1, str(ours.explain())
    (tokens, logits), (wanted, theirs) = (generated(s, prompt_of(1), rows) for s in (ours, plain))
    assert tokens == wanted
    for own, other in zip(logits, theirs, strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=5e-6 * np.abs(other).max())


def test_float16() -> None:
    model = language_model(**SMALL, dtype="float16")
    (_, logits), (_, theirs) = (generated(session(model, side), prompt_of(2)) for side in ("gpu", "plain"))
    np.testing.assert_allclose(logits[0], theirs[0], rtol=0, atol=2e-2 * np.abs(theirs[0]).max())


@pytest.mark.parametrize("form", [BY_TOKEN, f"{BY_EXPERT} 16"])
def test_generated_tokens_of_each_form_and_of_several_prompts(form: str) -> None:
    model = language_model(**SMALL)
    plain = session(model, "plain")
    prompts = [prompt_of(seed)[:length] for seed, length in ((1, 9), (2, 3), (3, 7))]
    wanted = [generated(plain, prompt)[0] for prompt in prompts]
    with forced(form):
        alone = Generator(model, max_length=32, provider_options={"strict": 1})
        assert [list(alone.generate(prompt, max_new_tokens=STEPS)) for prompt in prompts] == wanted
        rows = Generator(model, max_length=32, provider_options={"strict": 1}, rows=3)
        assert rows.generate_batch(prompts, max_new_tokens=STEPS) == wanted


def test_nothing_is_compiled_for_prompts_of_other_lengths() -> None:
    opened = session(language_model(**SMALL | {"layers": 1}), "gpu")

    def compiled_by(length: int) -> int:
        before = opened.state.gpu.compiled
        generated(opened, np.random.default_rng(length).integers(0, 512, length), steps=1)
        return int(opened.state.gpu.compiled - before)

    for few, many in ((9, 2 * MOST_FEW), (30, MOST_FEW + 1), (100, 4 * MOST_FEW), (77, MOST_FEW + 90)):
        kernels = compiled_by(few) + compiled_by(many)
        assert bool(kernels) == (few == 9), (few, many)
