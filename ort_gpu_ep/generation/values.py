"""What the steps of a session read and write on its device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnxruntime import OrtValue

from ort_gpu_ep.generation.sampling import Sampler
from ort_gpu_ep.generation.step import IDS, LENGTH, LOGITS, NEXT, NEXT_LENGTH, NOTHING, Step
from ort_gpu_ep.plugin import VENDOR_ID, Turns, download_later, fill

AHEAD = 2
"""Steps that are submitted before the token of the first of them is read."""


class Values:
    """Makes and fills values for a session; None: for any. on_gpu: where its provider has its values, in this process;
    else they are on the host."""

    def __init__(self, session: Any, on_gpu: bool) -> None:
        self._session, self.on_gpu = session, on_gpu
        self.device = ("gpu", 0, VENDOR_ID) if on_gpu else ("cpu", 0)

    def new(self, array: npt.NDArray[Any]) -> Any:
        """Since onnxruntime 1.30 the session's own: what is copied there counts in its stats."""
        make = getattr(self._session, "create_ortvalue_from_shape_and_type", OrtValue.ortvalue_from_shape_and_type)
        value = make(array.shape, array.dtype.type, *self.device)
        value.update_inplace(array)
        return value

    def set(self, value: Any, array: npt.NDArray[Any], waits: bool = False) -> None:
        """waits: for what is pending and may read the value."""
        if self.on_gpu:
            fill(value, np.ascontiguousarray(array), waits)
        else:
            value.update_inplace(array)

    def put_row(self, value: Any, place: int, row: Any) -> None:
        """Copies a value to a row of another one, by the host."""
        nbytes = row.tensor_size_in_bytes()
        if not self.on_gpu:
            ctypes.memmove(value.data_ptr() + place * nbytes, row.data_ptr(), nbytes)
            return
        array = value.numpy()
        array[place] = row.numpy()[0]
        self.set(value, array, waits=True)

    def caches(self, step: Step, rows: int) -> dict[str, Any]:
        """Of no tokens, by the names of the pasts."""
        return {name: self.new(np.zeros((rows, *shape[1:]), dtype)) for name, (_, shape, dtype) in step.caches.items()}


class Places:
    """Tokens, counts of tokens, random numbers and logits of steps of some rows: one place is read by a step, which
    writes tokens and counts of the other one.

    kind: numpy type of the logits.
    """

    def __init__(self, values: Values, step: Step, rows: int, vocabulary: int, kind: npt.DTypeLike) -> None:
        self._values, self._ids = values, step.ids
        self.caches = values.caches(step, rows)
        self.presents = {present: self.caches[name] for name, (present, _, _) in step.caches.items()}
        self.tokens = [values.new(np.zeros((rows, 1), step.ids)) for _ in range(2)]
        self.lengths = [values.new(np.ones((rows, 1), np.int64)) for _ in range(2)]
        self.logits = values.new(np.zeros((rows, 1, vocabulary), kind))
        self._draws = [values.new(np.zeros((rows, 4), np.float32)) for _ in range(2)]
        self._drawn: tuple[Sampler, Turns | None] | None = None  # of the generation that goes on

    def inputs(self, place: int) -> dict[str, Any]:
        return {IDS: self.tokens[place], LENGTH: self.lengths[place], **self.caches}

    def outputs(self, place: int) -> Mapping[str, Any]:
        return {
            NEXT: self.tokens[place],
            NEXT_LENGTH: self.lengths[place],
            LOGITS: self.logits,
            **self.presents,
        }

    def draw(self, sampler: Sampler, numbers: npt.NDArray[np.float32], place: int) -> None:
        """Puts random tokens in place of the most likely ones. numbers: DRAW of the sampler."""
        if self._drawn is None or self._drawn[0] is not sampler:
            self._drawn = sampler, sampler.turns(self.logits, self._draws, self.tokens)
        turns = self._drawn[1]
        if turns is not None:
            self._values.set(self._draws[place], numbers)
        if turns is None or not turns.run(place):
            tokens = sampler.tokens(OrtValue.ortvalue_from_numpy(self.logits.numpy()), numbers)
            self._values.set(self.tokens[place], tokens)

    def later(self, place: int) -> Callable[[], list[int]]:
        """Waits for the tokens of a step that has been submitted. What is on the host is read now: another step may
        write there."""
        value = self.tokens[place]
        wait = download_later([value])
        if wait is not None:
            return lambda: list(map(int, np.frombuffer(wait()[0], self._ids)))
        tokens = value.numpy().ravel()
        if self.logits.device_name() == "cpu":  # onnxruntime's ArgMax and TopK may not see NaN
            tokens = np.where(np.isnan(self.logits.numpy()).any(axis=(1, 2)), NOTHING, tokens)
        return lambda: list(map(int, tokens))
