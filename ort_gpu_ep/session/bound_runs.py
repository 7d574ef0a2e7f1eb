"""Repeated runs of a session with the same values, in two alternating sets; they bypass ONNX Runtime where they can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ort_gpu_ep.plugin import SessionState, Turns
from ort_gpu_ep.session.session import InferenceSession


def state_of(session: InferenceSession) -> SessionState | None:
    """The provider in a session to which values are to be bound; None where it runs on the CPU alone."""
    session._stay()
    return session._state if session._state is not None and session._state.partitions else None


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
