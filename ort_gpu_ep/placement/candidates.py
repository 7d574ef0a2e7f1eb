"""The candidates of a model, each a session of ONNX Runtime, created when first needed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.placement import CPU, CUT, GPU, NAMES
from ort_gpu_ep.plugin import CPU_PROVIDER, EP_NAME, Direct, SessionState, capture

if TYPE_CHECKING:
    from ort_gpu_ep.partitioner import Costs
    from ort_gpu_ep.placement.source import Source

log = logging.getLogger("ort_gpu_ep")

_PLACEMENT = {GPU: "gpu", CUT: "auto"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the model. state: of our provider, None on the CPU."""

    name: str
    session: Any
    state: SessionState | None = None


class Candidates:
    """What a session can choose from. Thread-safe.

    settings: the user's SessionOptions. options: provider options. kwargs: for onnxruntime.InferenceSession.
    costs: what the cut is made by.
    """

    def __init__(self, model: Source, settings: Any, options: Mapping[str, str], kwargs: Mapping[str, Any]) -> None:
        self.model = model
        self.settings, self.options, self.kwargs = settings, dict(options), dict(kwargs)
        self.costs: Costs | None = None
        self._made: dict[str, Candidate] = {}
        self._locks = {name: threading.Lock() for name in NAMES}
        self._building: set[str] = set()

    def get(self, name: str) -> Candidate:
        """The candidate, made now if need be. Raises what onnxruntime raises."""
        with self._locks[name]:
            candidate = self._made.get(name)
            if candidate is None:
                candidate = self._made[name] = self._make(name)
            return candidate

    def ready(self, name: str) -> Candidate | None:
        """The candidate if it exists; else it is begun in the background, and None."""
        candidate = self._made.get(name)
        if candidate is None and name not in self._building:
            self._building.add(name)
            threading.Thread(target=self._build, args=(name,), name=f"ort_gpu_ep-build-{name}", daemon=True).start()
        return candidate

    def add(self, candidate: Candidate) -> None:
        self._made[candidate.name] = candidate

    def drop(self, name: str) -> None:
        """Gives back the memory of a candidate; runs that use it now end first."""
        self._made.pop(name, None)

    @property
    def made(self) -> tuple[Candidate, ...]:
        return tuple(self._made.values())

    def _build(self, name: str) -> None:
        try:
            self.get(name)
        except Exception as error:  # the session goes on with what it has
            log.warning("the candidate %r can't be made in the background: %s: %s", name, type(error).__name__, error)
        else:
            self._building.discard(name)

    def _make(self, name: str) -> Candidate:
        names, options = self.providers(name)
        with capture(self.costs, self.model.path_or_bytes) as states:
            session = self.model.session(self.settings, names, options, self.kwargs)
        state = states[-1] if states else None
        if state is not None:
            session.direct = Direct.of(session, state)
        return Candidate(name, session, state)

    def providers(self, name: str) -> tuple[list[str], list[dict[str, str]]]:
        """Providers and their options, as onnxruntime takes them. What is measured against others is what a session
        ends with."""
        if name == CPU:
            return [CPU_PROVIDER], [{}]
        return [EP_NAME, CPU_PROVIDER], [{**self.options, "placement": _PLACEMENT[name], "unit_plans": "wait"}, {}]
