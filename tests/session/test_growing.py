"""State that grows by a row a run, or a turn: what the CPU gives, nothing compiled after the third, no more memory than
the state takes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnxruntime
import pytest

import models
from benchmarks.decoder import COMPILING_STEPS, Steps
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep import InferenceSession
from ort_gpu_ep.runtime import recording
from ort_gpu_ep.runtime.program import Program

STEPS = int(os.environ.get("TEST_STEPS", "40"))
"""Of the decoder; 200 take half a minute on two cores."""

TOLERANCE = 3e-5
"""Largest difference of a logit, whose standard deviation is 1.5. Measured over 200 steps of caches of each side's own:
5e-6."""


def on_cpu(model: Any) -> Any:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def on_gpu(model: Any, **options: str) -> Any:
    return InferenceSession(model.SerializeToString(), provider_options={"placement": "gpu", "strict": "1", **options})


def test_a_decoder_compiles_nothing_after_its_third_step() -> None:
    model = models.build("decoder")
    session, rng = on_gpu(model), np.random.default_rng(0)
    steps, wanted = Steps(session, "gpu"), Steps(on_cpu(model), "cpu")
    assert session.explain().count("cpu") == 0
    gpu, (partition,) = session.state.gpu, session.state.partitions
    for k, token in enumerate(rng.integers(0, 512, STEPS)):
        np.testing.assert_allclose(steps.step(token), wanted.step(token), rtol=0, atol=TOLERANCE, err_msg=f"step {k}")
        if k < COMPILING_STEPS:
            made = gpu.compiled
    assert gpu.compiled == made
    assert partition.program.planned <= COMPILING_STEPS
    assert session.stats()["fallbacks"] == 0
    for name, value in steps.past.items():
        assert value.device_name() != "cpu"
        np.testing.assert_allclose(value.numpy(), wanted.past[name].numpy(), rtol=0, atol=TOLERANCE)


def test_a_decoders_cache_stays_where_it_is() -> None:
    """A step brings a token and takes logits away; in use is what the weights and two caches take, and a plan's
    buffers."""
    session = on_gpu(models.build("decoder"))
    steps, gpu = Steps(session, "gpu"), session.state.gpu
    for token in range(COMPILING_STEPS):
        steps.step(token)
    gpu.trim()
    before = gpu.stats.allocated_nbytes - gpu.stats.pooled_nbytes
    for token in range(STEPS):
        steps.step(token)
        last = session.stats()["last_run"]
        # the token is read in each run
        assert [last[k] for k in ("host_to_device", "device_to_host", "device_to_device")] == [[8], [512 * 4], []]
    cache_nbytes = sum(value.numpy().nbytes for value in steps.past.values())
    assert gpu.stats.allocated_nbytes - gpu.stats.pooled_nbytes - before < 3 * cache_nbytes


def test_a_loop_compiles_nothing_after_its_third_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.build("table_rows")
    session, feeds = on_gpu(model), make_inputs(model_inputs(model))
    gpu, made = session.state.gpu, dict[Program, list[int]]()
    run = Program.run

    def counted(program: Program, *arguments: Any) -> None:
        run(program, *arguments)
        made.setdefault(program, []).append(gpu.compiled)

    monkeypatch.setattr(Program, "run", counted)
    for _ in range(2):
        for got, want in zip(session.run(None, feeds), on_cpu(model).run(None, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)
    (turns,) = (m for m in made.values() if len(m) == 2 * 50)
    assert turns[49] == turns[COMPILING_STEPS - 1], "in the first run"
    assert turns[99] == turns[50], "in the second"
    (body,) = (p for p in session.state.partitions if p.runs == 100)
    assert body.program.planned <= COMPILING_STEPS
    assert session.stats()["fallbacks"] == 0


def test_only_what_comes_again_is_recorded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, encode = [], recording.encode
    monkeypatch.setattr(recording, "encode", lambda *arguments: recorded.append(arguments) or encode(*arguments))
    steps = Steps(on_gpu(models.build("decoder", layers=1)), "gpu")
    for token in range(6):
        steps.step(token)
    assert len(recorded) == 6, "sizes that grow: one recording a step"
    fixed = on_gpu(models.build("mlp_16"))
    feeds = {i.name: np.ones(i.shape, "f") for i in fixed.get_inputs()}
    recorded.clear()
    for runs in (1, 3):
        fixed.run(None, feeds)
        assert len(recorded) == runs, "from the second run on one more, while the host waits"
    for _ in range(2):  # from the third run on past onnxruntime, with buffers and recordings of their own
        fixed.run(None, feeds)
    before = len(recorded)
    fixed.run(None, feeds)
    assert len(recorded) == before + 1
