"""What a recording made ahead holds for: it is used for the next run with the same buffers and sizes, and never past
that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, Tensor
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.runtime import recording
from ort_gpu_ep.runtime.ends import Ends
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.runtime.recording import Recording
from tests.unit.graphs import model_of

KIND = TensorType(FLOAT32, (4, 16))


class Trial:
    """A program, a recording of one run of it, and how many command buffers were recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rng, encode = np.random.default_rng(5), recording.encode
        self.w, self.x = rng.standard_normal((16, 16)).astype("f"), rng.standard_normal(KIND.shape).astype("f")
        model = model_of(
            "(float[4, 16] x) => (float[4, 16] y) { a = MatMul(x, w) b = Softmax(a) y = MatMul(b, w) }", {"w": self.w}
        )
        self.gpu = Gpu.open(Config())
        self.program = Program(from_onnx(model), Config(), self.gpu)
        self.prepared, self.filled = next(iter(self.program.compiled.found.values()))
        self.count = 0
        # storage, copied to and from
        self.tensors = [Tensor(self.gpu.create(KIND.nbytes, 0x8C), 0, KIND) for _ in range(2)]
        self.recording = Recording(self.prepared, Ends(self.tensors[:1], self.tensors[1:]))

        def counted(*arguments: Any) -> Any:
            self.count += 1
            return encode(*arguments)

        monkeypatch.setattr(recording, "encode", counted)

    def run(self) -> None:
        """One run, whose result is looked at."""
        self.x = -self.x
        self.gpu.upload(self.tensors[0].buffer, 0, self.x.ctypes.data, KIND.nbytes)
        with self.program.lock:
            self.recording.enqueue(self.prepared.current(self.filled))
        got, powers = np.zeros_like(self.x), np.exp(self.x @ self.w)
        self.gpu.download(self.tensors[1].buffer, 0, got.ctypes.data, KIND.nbytes)
        np.testing.assert_allclose(got, powers / powers.sum(axis=1, keepdims=True) @ self.w, rtol=1e-4, atol=1e-5)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    made = Trial(monkeypatch)
    yield made
    made.program.close()


def test_the_next_run_is_recorded_once(trial: Trial) -> None:
    assert not trial.recording.record_ahead(), "before the first run nobody knows its sizes"
    trial.run()
    assert trial.recording.record_ahead()
    assert not trial.recording.record_ahead()
    assert trial.count == 2
    trial.run()
    assert trial.count == 2


def test_other_buffers_of_the_plan_end_it(trial: Trial) -> None:
    trial.run()
    assert trial.recording.record_ahead()
    with trial.program.lock:
        trial.prepared.free_slots()
    trial.gpu.trim()  # a submission that names those before would end the process
    trial.run()
    assert trial.count == 3
    with trial.program.lock:
        trial.prepared.free_slots()
    assert not trial.recording.record_ahead(), "its commands name buffers that are gone"


def test_nothing_is_recorded_for_memory_that_is_gone(trial: Trial) -> None:
    trial.run()
    trial.gpu.destroy(trial.tensors[1].buffer)
    assert not trial.recording.record_ahead()


def test_nothing_is_recorded_beside_a_run_that_is_made_ready(trial: Trial) -> None:
    trial.run()
    with trial.program.lock:
        assert not trial.recording.record_ahead()
    assert trial.recording.record_ahead()


def test_nothing_is_recorded_for_a_plan_that_is_closed(trial: Trial) -> None:
    trial.run()
    trial.program.close()
    assert not trial.recording.record_ahead()
