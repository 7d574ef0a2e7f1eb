"""Nodes that a guessed size left to the CPU, or placed on the GPU where it has no kernel for them, are decided on again
after the first run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep import InferenceSession
from tests.unit.graphs import model_of

RANDOM = np.random.default_rng(4)
NORM = """(float[N, 20] x, float[400] z) => (y) {
    s = Shape<start=0, end=1>(x)
    n = ReduceL1(s)
    t = Concat<axis=0>(n, n)
    a = Reshape(z, t)
    b = MatMul(x, v)
    d = Relu(b)
    y = Add(a, d)
}"""
"""`z` is reshaped to as many rows as x has, and columns: 20. No row compares them, they become a number on the way."""
FOUR = """(float[A, B, C, D] x, float[E, F, G, H] z) => (y) {
    s = Shape(z)
    a = Tanh(x)
    b = Resize<mode="nearest">(a, none, none, s)
    e = Exp(b)
    y = Add(e, z)
}"""
"""Resized are as many axes as differ: by the guess none, in the run four, for which there is no kernel."""
WEIGHTS = {"v": RANDOM.standard_normal((20, 1)).astype("f"), "none": np.zeros(0, "f")}


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype("f")


def opened(text: str, **options: str) -> tuple[InferenceSession, Any]:
    model = model_of(
        text, {n: a for n, a in WEIGHTS.items() if re.search(rf"\b{n}\b", text)}, opset=17
    ).SerializeToString()
    return InferenceSession(model, provider_options={"placement": "gpu", **options}), onnxruntime.InferenceSession(
        model, providers=["CPUExecutionProvider"]
    )


def on_cpu(session: InferenceSession) -> list[str]:
    return [n.op for report in session.explain().reports for n in report.nodes if n.device == "cpu"]


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_guessed_size_that_no_comparison_tells(isolation: str) -> None:
    ours, cpu = opened(NORM, isolation=isolation)
    assert on_cpu(ours) == ["Reshape"]
    for rows in (20, 20):
        feeds = {"x": normal(rows, 20), "z": normal(400)}
        np.testing.assert_allclose(ours.run(None, feeds)[0], cpu.run(None, feeds)[0], rtol=1e-5, atol=1e-5)
        assert ours.wait_ready(60)
    assert on_cpu(ours) == []
    assert not ours.explain().events


def test_what_has_no_kernel_at_the_run_s_sizes() -> None:
    ours, cpu = opened(FOUR)
    assert on_cpu(ours) == []
    feeds = {"x": normal(2, 3, 4, 5), "z": normal(4, 6, 8, 10)}
    for _ in range(2):
        np.testing.assert_allclose(ours.run(None, feeds)[0], cpu.run(None, feeds)[0], rtol=1e-5, atol=1e-5)
        assert ours.wait_ready(60)
    assert on_cpu(ours) == ["Resize"]
    assert not ours.explain().events
    assert ours.stats()["fallbacks"] == 0


def test_a_session_that_values_are_bound_to_stays_what_it_is() -> None:
    ours, cpu = opened(FOUR)
    feeds = {"x": normal(2, 3, 4, 5), "z": normal(4, 6, 8, 10)}
    binding = ours.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("y")
    ours.run(None, feeds)
    assert ours.wait_ready(60)
    ours.run_with_iobinding(binding)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], cpu.run(None, feeds)[0], rtol=1e-5, atol=1e-5)
    assert "ERROR" in {n.code for report in ours.explain().reports for n in report.nodes}
