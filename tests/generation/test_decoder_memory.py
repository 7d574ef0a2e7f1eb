"""Device memory of a decoder, by the session's own count: its packed weights once, its caches, and little beside
them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest

from models.language import language_model
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.generation import Generator
from ort_gpu_ep.runtime import prepared

SIZES: dict[str, Any] = {"layers": 2, "width": 512, "heads": 8, "groups": 2, "hidden": 1024, "vocabulary": 2048}
ROWS, PROMPT = 256, np.arange(40)
MOST = 1.15
"""Of the model's weights and the caches."""


@pytest.fixture(params=[0, 4], ids=["exact", "rounded"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> onnx.ModelProto:
    """The buffers of a prompt are small here."""
    monkeypatch.setattr(prepared, "SHRINK_NBYTES", 1)
    return language_model(**SIZES, accuracy=request.param)


def wanted_nbytes(model: onnx.ModelProto) -> int:
    weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    return weights + 4 * 2 * SIZES["layers"] * SIZES["groups"] * (SIZES["width"] // SIZES["heads"]) * ROWS


def test_generating_holds_the_weights_once(model: onnx.ModelProto) -> None:
    made = Generator(model, max_length=ROWS, provider_options={"strict": 1})
    held, wanted = made.session.state.allowance, wanted_nbytes(model)
    assert 0.8 * wanted < held.held_nbytes < MOST * wanted
    for _ in range(2):
        assert len(list(made.generate(PROMPT, max_new_tokens=2 * prepared.RECENT_RUNS))) == 2 * prepared.RECENT_RUNS
        assert held.held_nbytes < MOST * wanted


def test_steps_by_io_binding_hold_the_weights_once(model: onnx.ModelProto) -> None:
    session = InferenceSession(model.SerializeToString(), provider_options={"placement": "gpu", "strict": "1"})
    binding, shape = session.io_binding(), (1, SIZES["groups"], ROWS, SIZES["width"] // SIZES["heads"])
    for given in session.get_inputs()[2:]:
        cache = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, "f"), "gpu")
        binding.bind_ortvalue_input(given.name, cache)
        binding.bind_ortvalue_output(given.name.replace("past_key_values", "present"), cache)
    held, wanted = session.state.allowance, wanted_nbytes(model)
    caches = 4 * 2 * SIZES["layers"] * int(np.prod(shape))  # the process's, not this session's
    for total in range(len(PROMPT), len(PROMPT) + 2 * prepared.RECENT_RUNS):
        ids = PROMPT[None] if total == len(PROMPT) else np.array([[total]])
        binding.bind_cpu_input("input_ids", ids)
        binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
        binding.bind_output("logits", "cpu")
        session.run_with_iobinding(binding)
    assert 0.8 * wanted - caches < held.held_nbytes < MOST * wanted - caches


def test_steps_by_io_binding_leave_nothing_behind() -> None:
    """Nothing compiles, here or in the driver: memory stays as it is with caches of open sizes (software: 0.3 MB a
    layer and token)."""
    session = InferenceSession(
        language_model(width=64, hidden=64).SerializeToString(), provider_options={"placement": "gpu", "strict": "1"}
    )
    binding, gpu, process = session.io_binding(), session.state.gpu, psutil.Process()
    for given in session.get_inputs()[2:]:
        cache = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, 2, 1024, 16), "f"), "gpu")
        binding.bind_ortvalue_input(given.name, cache)
        binding.bind_ortvalue_output(given.name.replace("past_key_values", "present"), cache)
    for total in range(700, 764):
        if total == 724:
            compiled, before = gpu.compiled, process.memory_info().rss
        binding.bind_cpu_input("input_ids", np.array([[total % 100]]))
        binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
        binding.bind_output("logits", "cpu")
        session.run_with_iobinding(binding)
    assert gpu.compiled == compiled
    assert process.memory_info().rss - before < 6 << 20
