"""A profile as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ort_gpu_ep.files import whole
from ort_gpu_ep.profiling.result import PHASES, RunProfile

_PROCESS, _HOST, _GPU, _NODES = 1, 1, 2, 3


def trace_of(profile: RunProfile) -> dict[str, Any]:
    """One run of median times. The host's and the GPU's clocks are not the same: the last dispatch is put at the end of
    the wait.

    Where nodes run on the CPU, a third track has them between our partitions and the copies: one run, which begins
    where the others do.

    Source: Trace Event Format (complete events, `ph` X; metadata, `ph` M); times in microseconds.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": _PROCESS, "name": "process_name", "args": {"name": f"{profile.model} on {profile.adapter}"}},
        {"ph": "M", "pid": _PROCESS, "tid": _HOST, "name": "thread_name", "args": {"name": "host (means)"}},
        {"ph": "M", "pid": _PROCESS, "tid": _GPU, "name": "thread_name", "args": {"name": "GPU (medians)"}},
    ]
    at_us, waited_us = 0.0, 0.0
    for name, what in PHASES.items():
        events.append(_event(name, "host", _HOST, at_us, profile.phases_us[name], {"what": what}))
        at_us += profile.phases_us[name]
        waited_us = at_us if name == "wait" else waited_us
    last_us = max((d.begin_us + d.us for d in profile.dispatches), default=0.0)
    for d in profile.dispatches:
        share, of = profile.roofs.share(d)
        events.append(
            _event(
                f"{d.kernel} {d.shape}",
                d.family,
                _GPU,
                waited_us - last_us + d.begin_us,
                d.us,
                {
                    "label": d.label,
                    "groups": list(d.groups),
                    "partition": d.partition,
                    "GFLOP/s": round(d.gflops, 1),
                    "GB/s": round(d.gbytes, 1),
                    "of roof": f"{share:.0%} {of}".strip(),
                },
            )
        )
    if profile.nodes:
        events.append(
            {"ph": "M", "pid": _PROCESS, "tid": _NODES, "name": "thread_name", "args": {"name": "nodes (one run)"}}
        )
    for n in profile.nodes:
        kind = "CPU" if n.is_on_cpu else "copy" if n.op else "partition"
        events.append(_event(n.name, kind, _NODES, n.begin_us, n.us, {"op": n.op, "provider": n.provider}))
    about = {key: value for key, value in profile.as_dict().items() if key not in ("dispatches", "families", "nodes")}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _event(name: str, category: str, track: int, begin_us: float, us: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": track,
        "name": name,
        "cat": category,
        "ts": begin_us,
        "dur": us,
        "args": args,
    }


def write_trace(profile: RunProfile, path: Path) -> None:
    """Raises OSError."""
    with whole(path) as part:
        part.write_text(json.dumps(trace_of(profile)), encoding="utf-8")
