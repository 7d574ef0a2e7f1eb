"""Nodes of one run in the order of time: ours as partitions, the CPU's and the copies by ONNX Runtime's profiler, on
one clock."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ort_gpu_ep.profiling.measure import WARM_RUNS
from ort_gpu_ep.profiling.result import TimedNode
from ort_gpu_ep.providers import EP_NAME

RUNS = 7
"""Runs that count; the one of median length is shown."""

CLOCKS: tuple[Callable[[], int], ...] = (time.time_ns, time.perf_counter_ns, time.monotonic_ns)
"""ONNX Runtime's profiler reads std::chrono::high_resolution_clock, which is one of these: which one depends on the C++
library."""

NO_CLOCK = "onnxruntime's profiler reads a clock that Python can't read here: nodes on the CPU are left out"


def profile_nodes(open_session: Callable[[str], Any], feeds: Mapping[str, Any]) -> tuple[tuple[TimedNode, ...], str]:
    """The nodes of a run, and a note where they can't be placed.

    open_session: makes a session whose ONNX Runtime profiler writes a file that begins with the path it is given. None
    of the runs counts elsewhere: the profiler makes them longer.
    """
    with TemporaryDirectory(prefix="ort-gpu-ep-profile-", ignore_cleanup_errors=True) as folder:
        before = [clock() for clock in CLOCKS]
        session = open_session(os.path.join(folder, "nodes"))
        after = [clock() for clock in CLOCKS]
        for times in session.state.profiles:  # a pass for each dispatch would make our nodes longer
            times.stop()
        origin = session.get_profiling_start_time_ns()
        clock = next((c for c, a, b in zip(CLOCKS, before, after, strict=True) if a <= origin <= b), None)
        runs = [_run(session, feeds, clock) for _ in range(WARM_RUNS + RUNS)] if clock is not None else []
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    if not runs:
        return (), NO_CLOCK
    begin, end, ours = sorted(runs[WARM_RUNS:], key=lambda run: run[1] - run[0])[RUNS // 2]
    rows = [TimedNode(f"partition {number}", "", "", (a - begin) / 1e3, (b - a) / 1e3) for number, a, b in ours]
    rows += _theirs(events, (begin - origin) / 1e3, (end - origin) / 1e3)
    return tuple(sorted(rows, key=lambda node: node.begin_us)), ""


def _run(
    session: Any, feeds: Mapping[str, Any], clock: Callable[[], int]
) -> tuple[int, int, list[tuple[int, int, int]]]:
    """(beginning, end, (partition, beginning, end) of each of ours) of one run in nanoseconds."""
    spans: list[tuple[int, int, int]] = []
    with watched(session.state.partitions, clock, spans):
        begin = clock()
        session.run(None, feeds)
        return begin, clock(), spans


@contextmanager
def watched(partitions: Sequence[Any], clock: Callable[[], int], spans: list[tuple[int, int, int]]) -> Iterator[None]:
    """Adds (number, beginning, end) to `spans` for what each partition performs meanwhile."""

    def timed(number: int, perform: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            begin = clock()
            try:
                perform(*arguments)
            finally:
                spans.append((number, begin, clock()))

        return call

    for number, partition in enumerate(partitions):
        partition.perform = timed(number, partition.perform)
    try:
        yield
    finally:
        for partition in partitions:
            del partition.perform


def _theirs(events: Sequence[Mapping[str, Any]], begin_us: float, end_us: float) -> Iterator[TimedNode]:
    """What ONNX Runtime's profiler has of one run: its nodes without our partitions, whose own spans are more exact.

    Source: its events of category `Node`, named after the node with a suffix; times in microseconds since profiling
    began.
    """
    for event in events:
        about = event.get("args", {})
        if (
            event.get("cat") != "Node"
            or not event["name"].endswith("_kernel_time")
            or not begin_us <= event["ts"] <= end_us
        ):
            continue
        op, provider = about.get("op_name", ""), about.get("provider", "")
        if not op.startswith(f"{EP_NAME}_"):
            yield TimedNode(
                event["name"].removesuffix("_kernel_time"), op, provider, event["ts"] - begin_us, float(event["dur"])
            )
