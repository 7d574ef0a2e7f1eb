"""Several rows of unequal lengths through IO binding, whose caches are past and present at once: ONNX Runtime's logits,
and its caches up to the length of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from models.language import language_model
from tests.session.test_language_models import session

ROWS, CAPACITY, STEPS = 6, 40, 4
LENGTHS = (3, 9, 1, 17, 5, 12, 9, 2, 16, 1, 7, 11, 4, 8, 13, 6, 10)


class Rows:
    """The caches of a batch, and how many tokens each of its rows has. opened: here, or on the CPU."""

    def __init__(self, opened: Any, rows: int) -> None:
        self.opened, self.lengths, self.on_gpu = opened, np.zeros(rows, np.int64), hasattr(opened, "state")
        kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        rng = np.random.default_rng(3)  # what nobody has written is not zero
        self.caches: dict[str, Any] = {
            i.name: rng.standard_normal((rows, i.shape[1], CAPACITY, i.shape[3])).astype(kinds[i.type])
            for i in opened.get_inputs()
            if i.name.startswith("past")
        }
        if self.on_gpu:
            value = onnxruntime.OrtValue.ortvalue_from_numpy
            self.caches = {name: value(cache, "gpu") for name, cache in self.caches.items()}

    def step(self, tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Logits behind the last token of each row. tokens: [rows, S], padded at the right. lengths: of each row in
        it."""
        self.lengths = self.lengths + lengths
        mask = (np.arange(self.lengths.max()) < self.lengths[:, None]).astype(np.int64)
        feeds = {"input_ids": tokens, "attention_mask": mask}
        presents = {name: name.replace("past_key_values", "present") for name in self.caches}
        if self.on_gpu:
            binding = self.opened.io_binding()
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array)
            for name, cache in self.caches.items():
                binding.bind_ortvalue_input(name, cache)
                binding.bind_ortvalue_output(presents[name], cache)
            binding.bind_output("logits", "cpu")
            self.opened.run_with_iobinding(binding)
            logits = binding.get_outputs()[-1].numpy()
        else:
            results = self.opened.run(["logits", *presents.values()], feeds | self.caches)
            logits, self.caches = results[0], dict(zip(self.caches, results[1:], strict=True))
        return np.asarray(logits[np.arange(len(lengths)), lengths - 1])

    def kept(self) -> list[np.ndarray]:
        """The caches of each row up to its length."""
        arrays = [c.numpy() if self.on_gpu else c for c in self.caches.values()]
        return [array[row, :, :length] for array in arrays for row, length in enumerate(self.lengths)]


def prompts(rows: int, vocabulary: int = 512) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array(LENGTHS[:rows])
    return np.random.default_rng(rows).integers(0, vocabulary, (rows, lengths.max())), lengths


def near(own: Any, other: Any, tolerance: float) -> None:
    own, other = (np.asarray(array, np.float64) for array in (own, other))
    np.testing.assert_allclose(own, other, rtol=0, atol=tolerance * np.abs(other).max())


def compared(model: onnx.ModelProto, rows: int, tolerance: float = 2e-5) -> None:
    """A prompt of each row, then tokens that the CPU's logits name."""
    ours, theirs = Rows(session(model, "gpu"), rows), Rows(session(model, "plain"), rows)
    tokens, lengths = prompts(rows)
    for _ in range(STEPS):
        own, other = (side.step(tokens, lengths) for side in (ours, theirs))
        near(own, other, tolerance)
        tokens, lengths = other.argmax(-1)[:, None], np.ones(rows, np.int64)
    for own, other in zip(ours.kept(), theirs.kept(), strict=True):
        near(own, other, tolerance)
    assert ours.opened.stats()["fallbacks"] == 0


@pytest.mark.parametrize("rows", [2, 5, 17])
def test_rows_of_unequal_lengths(rows: int) -> None:
    compared(language_model(packed=rows > 2), rows)


@pytest.mark.parametrize(
    "changed",
    [
        {"head": 128, "heads": 4, "groups": 1},
        {"window": 4, "sinks": True, "biases": True},
        {"experts": 6, "active": 2, "hidden": 64},
    ],
    ids=str,
)
def test_heads_windows_and_experts(changed: dict[str, Any]) -> None:
    compared(language_model(**{"layers": 2, **changed}), 5)


def test_float16() -> None:
    compared(language_model(layers=1, dtype="float16"), 6, 1e-2)


def test_nothing_is_compiled_and_memory_is_flat_once_rows_decode() -> None:
    opened = session(language_model(layers=1), "gpu")
    ours, (tokens, lengths) = Rows(opened, ROWS), prompts(ROWS)
    ours.step(tokens, lengths)
    one = np.ones(ROWS, np.int64)
    for _ in range(3):
        ours.step(tokens[:, :1], one)
    gpu, held = opened.state.gpu, opened.state.allowance
    compiled, nbytes = gpu.compiled, held.held_nbytes
    for _ in range(15):
        ours.step(tokens[:, :1], one)
    assert (gpu.compiled, held.held_nbytes) == (compiled, nbytes)
