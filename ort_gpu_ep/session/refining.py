"""A session with placement=gpu whose nodes were placed by guesses: once more, with what its first run shows.

Nodes that only a guessed size or rank left to the CPU, and partitions that have no kernel at the run's sizes, are asked
about again in the background, with the shape of every value, which onnxruntime's profiler tells. The session changes
over when that is done, once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ort_gpu_ep.device.background import ending
from ort_gpu_ep.errors import Code
from ort_gpu_ep.placement import GPU
from ort_gpu_ep.placement.candidates import Candidate
from ort_gpu_ep.placement.source import Source
from ort_gpu_ep.plugin import Direct, SessionState, capture
from ort_gpu_ep.session.starting import beside_runs

log = logging.getLogger("ort_gpu_ep")


class Refinement:
    """Of one session. source, settings, names, options, kwargs: what it was made of. become: the session's, held
    weakly."""

    def __init__(
        self,
        source: Source,
        settings: Any,
        names: Sequence[str],
        options: Sequence[Mapping[str, str]],
        kwargs: Mapping[str, Any],
        become: Callable[[Candidate], None],
    ) -> None:
        self._made_of, self._become = (source, settings, list(names), [dict(o) for o in options], kwargs), become
        self._lock, self._over, self._begun = threading.Lock(), threading.Event(), False
        self._cancelled, self._pid = False, os.getpid()

    def ran(self, state: SessionState, feeds: Mapping[str, Any]) -> None:
        """The session has answered its first run. The work begins, if there is any."""
        with self._lock:
            if self._begun or self._cancelled:
                return
            self._begun = True
        if not is_wanted(state) or not all(isinstance(value, np.ndarray) for value in feeds.values()):
            self._over.set()
            return
        arrays = {name: np.array(value) for name, value in feeds.items()}
        beside_runs(partial(self._work, state, arrays))

    def cancel(self) -> None:
        """From now on the session stays what it is: values may be bound to it."""
        with self._lock:
            self._cancelled = True
        self._over.set()

    @property
    def is_over(self) -> bool:
        """Also in a forked child, which has no thread that could go on."""
        return self._over.is_set() or not self._begun or self._pid != os.getpid()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.is_over or self._over.wait(timeout_s)

    def _work(self, state: SessionState, feeds: Mapping[str, Any]) -> None:
        try:
            if self._cancelled or ending():
                return
            candidate = self._refined(feeds)
            with self._lock:
                if not self._cancelled and not ending() and _placed(candidate.state) > _placed(state):
                    self._become(candidate)
        except (
            Exception
        ) as error:  # an op of the user's own that a profile does not run, no room for a file: it goes on as it is
            log.info("placement: nodes that guesses left to the CPU stay there: %s: %s", type(error).__name__, error)
        finally:
            self._over.set()

    def _refined(self, feeds: Mapping[str, Any]) -> Candidate:
        from ort_gpu_ep.partitioner import Costs
        from ort_gpu_ep.placement.proof import node_profile

        source, settings, names, options, kwargs = self._made_of
        profile = node_profile(source, settings, kwargs, feeds, runs=1)
        costs = Costs(shapes={name: value.shape for name, value in feeds.items()}, node_shapes=profile.shapes)
        with capture(costs, source.path_or_bytes) as states:
            session = source.session(settings, names, options, kwargs)
        session.direct = Direct.of(session, states[-1])
        return Candidate(GPU, session, states[-1])


def is_wanted(state: SessionState) -> bool:
    """Whether a guess left nodes to the CPU, or the run's sizes have no kernel that the guess had."""
    return any(report.guessed for report in state.reports if not report.nested) or any(
        map(_is_refused, state.partitions)
    )


def _is_refused(partition: Any) -> bool:
    return (
        partition.cpu_because.startswith("UnsupportedNodeError")
        and f"UnsupportedNodeError: {Code.COST}" not in partition.cpu_because
    )


def _placed(state: SessionState | None) -> int:
    """Nodes that the GPU answers for."""
    if state is None:
        return 0
    refused = {name for partition in state.partitions if _is_refused(partition) for name in partition.graph.outputs}
    parts = [part for report in state.reports for part in report.partitions]
    return sum(part.nodes for part in parts if refused.isdisjoint(part.outputs))
