"""Time of each node of a model on the CPU, by ONNX Runtime's profiler."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime

from ort_gpu_ep.placement.source import Source
from ort_gpu_ep.plugin import CPU_PROVIDER

RUNS = 3
"""Profiled runs; the first one pays for memory and threads and does not count."""

_SUFFIX = "_kernel_time"


def cpu_costs(model: Source, settings: Any, kwargs: Mapping[str, Any], feeds: Mapping[str, Any], whole_s: float) -> dict[
        tuple[int, str], float]:
    """Seconds of each node of the main graph, by (node id, op).

    The graph is optimised only as far as it is when a provider is asked for its nodes, so that ids agree; the real session fuses more
    and is faster, so the seconds are scaled to sum up to whole_s, what a run of it takes.

    Raises: OSError where no temporary file can be written, and what onnxruntime raises.
    """
    with tempfile.TemporaryDirectory(prefix="ort_gpu_ep-") as folder, _profiling(settings, folder) as changed:
        session = model.session(changed, [CPU_PROVIDER], [{}], kwargs)
        for _ in range(RUNS):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    found: dict[tuple[int, str], list[float]] = defaultdict(list)
    for event in _outside_bodies([e for e in events if e.get("cat") == "Node" and e["name"].endswith(_SUFFIX)]):
        found[int(event["args"]["node_index"]), event["args"]["op_name"]].append(event["dur"] * 1e-6)
    typical = {key: median(seconds[1:] or seconds) for key, seconds in found.items()}
    total_s = sum(typical.values())
    return {key: seconds * whole_s / total_s for key, seconds in typical.items()} if total_s else {}


def _outside_bodies(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Events of the main graph: a body's nodes have indices of their own, and their time is in their If, Loop or Scan already."""
    end = -1
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        if event["ts"] >= end:
            yield event
            if event["args"]["op_name"] in ("If", "Loop", "Scan"):
                end = event["ts"] + event["dur"]


@contextmanager
def _profiling(settings: Any, folder: str) -> Iterator[Any]:
    """The user's own options with three of them changed, and changed back: a copy would lose custom ops and overridden dimensions."""
    changed = settings if settings is not None else onnxruntime.SessionOptions()
    names = ("enable_profiling", "profile_file_prefix", "graph_optimization_level")
    before = {name: getattr(changed, name) for name in names}
    try:
        changed.enable_profiling, changed.profile_file_prefix = True, str(Path(folder) / "profile")
        if before["graph_optimization_level"] != onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL:
            changed.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        yield changed
    finally:
        for name, value in before.items():
            setattr(changed, name, value)
