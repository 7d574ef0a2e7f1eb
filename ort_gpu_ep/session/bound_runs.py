"""Repeated runs of a session with the same values, in two alternating sets; they bypass ONNX Runtime where they can."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ort_gpu_ep.plugin import SessionState, Turns, download_later
from ort_gpu_ep.plugin.io_binding import TENSORS
from ort_gpu_ep.processes.interrupts import uninterrupted
from ort_gpu_ep.session.session import InferenceSession


def state_of(session: InferenceSession) -> SessionState | None:
    """The provider in a session to which values are to be bound; None where it runs on the CPU alone."""
    session._stay()
    return session._state if session._state is not None and session._state.partitions else None


def read_later(*values: Any) -> Callable[[], list[npt.NDArray[Any]]]:
    """The content of small OrtValues behind the runs so far, which are submitted; later runs may write there.

    What this gives waits for it, not for later runs, and is called once. So a program that reads a step's values when
    the next step has been submitted does not let the GPU wait. Values that are not on a device of this package are
    copied now. Raises DeviceError, both times, and then IndexOutOfRangeError where a run that they come from had such
    an index.
    """
    wait = uninterrupted(download_later, values) if values else None
    if wait is None:
        arrays = [np.array(value.numpy()) for value in values]
        return lambda: arrays
    kinds = [(TENSORS[value.data_type()], tuple(value.shape())) for value in values]

    def read() -> list[npt.NDArray[Any]]:
        content = zip(uninterrupted(wait), kinds, strict=True)
        return [np.frombuffer(data, kind).reshape(shape).copy() for data, (kind, shape) in content]

    return read


class Runs:
    """Runs of a session that take turns: of each, its inputs and outputs by name."""

    def __init__(
        self, session: InferenceSession, values: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    ) -> None:
        self._session, self._values, self._bindings = session, values, dict[int, Any]()
        self._turns = Turns.of(session, state_of(session), values)

    def run(self, place: int) -> None:
        """Raises what the session does."""
        if self._turns is None or not self._turns.run(place):
            self._session.run_with_iobinding(self._binding(place))

    def _binding(self, place: int) -> Any:
        if place not in self._bindings:
            binding = self._bindings[place] = self._session.io_binding()
            for name, value in self._values[place][0].items():
                binding.bind_ortvalue_input(name, value)
            for name, value in self._values[place][1].items():
                binding.bind_ortvalue_output(name, value)
        return self._bindings[place]
