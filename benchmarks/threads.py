"""Several models and threads in one process: runs a second and quantiles of a run, on the CPU, on the GPU and where a
session chooses.

    python -m benchmarks.threads [--models squeezenet1_1,mobilenet_v2,encoder,har_lstm] [--threads 8] [--seconds 4]
      [--blocks 2]
        [--sides cpu,gpu,auto] [--adapter A] [--profile] [--json FILE]

Each thread runs one model over and over (thread i the i-th, from the first again behind the last); the sides take turns
in blocks. --profile: what Python does in one thread's runs of `auto` beside those of the side that it has chosen, in
function calls a run.
"""

from __future__ import annotations

import cProfile
import json as json_module
import pstats
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import cases
from ort_gpu_ep import InferenceSession

SETTLING_S = 40.0
"""What `auto` may take until it has decided on each model."""

PROFILED = 200


def opened(side: str, name: str, adapter: str) -> tuple[Any, dict[str, Any]]:
    model, feeds = cases.load(name)
    options = {"placement": side, **({"adapter": adapter} if adapter and side != "cpu" else {})}
    session = cases.waited(InferenceSession(model, cases.quiet(), provider_options=options))
    until = time.perf_counter() + (SETTLING_S if side == "auto" else 0.3)
    for i in range(1000):
        session.run(None, feeds)
        if (i >= 20 and (side != "auto" or _decided(session))) or time.perf_counter() > until:
            break
    return session, feeds


def _decided(session: Any) -> bool:
    runner = session._runner
    return runner is None or all(d.source != "partial" for d in runner.chooser.decided.values())


def block(sessions: list[tuple[Any, dict[str, Any]]], threads: int, seconds: float) -> list[list[float]]:
    """Milliseconds of each run, for each thread."""
    took: list[list[float]] = [[] for _ in range(threads)]
    ready = threading.Barrier(threads)

    def work(i: int) -> None:
        session, feeds = sessions[i % len(sessions)]
        ready.wait()
        now = time.perf_counter()
        until = now + seconds
        while now < until:
            session.run(None, feeds)
            begin, now = now, time.perf_counter()
            took[i].append((now - begin) * 1e3)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return took


def calls(session: Any, feeds: dict[str, Any]) -> tuple[float, list[str]]:
    """Function calls a run, and the functions that take the most of its time, with calls and microseconds a run."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(PROFILED):
        session.run(None, feeds)
    profile.disable()
    stats: Any = pstats.Stats(profile)
    rows = sorted(stats.stats.items(), key=lambda row: -row[1][2])[:8]
    return stats.total_calls / PROFILED, [
        f"{Path(at[0]).name}:{at[2]} {count / PROFILED:.1f} x, {own * 1e6 / PROFILED:.1f} us"
        for at, (_, count, own, _, _) in rows
    ]


def main(
    models: Annotated[str, typer.Option(help="By commas.")] = "squeezenet1_1,mobilenet_v2,encoder,har_lstm",
    threads: Annotated[int, typer.Option(min=1)] = 8,
    seconds: Annotated[float, typer.Option(help="Of a block.")] = 4.0,
    blocks: Annotated[int, typer.Option(min=1)] = 2,
    sides: Annotated[str, typer.Option(help="By commas.")] = "cpu,gpu,auto",
    adapter: Annotated[str, typer.Option()] = "",
    profile: Annotated[bool, typer.Option("--profile", help="Count function calls of single runs.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the figures here, too.")] = None,
) -> None:
    """Measures the sides in turn."""
    found: dict[str, dict[str, Any]] = {}
    # of each model
    took: dict[str, list[list[float]]] = {side: [[] for _ in models.split(",")] for side in sides.split(",")}
    sessions = {}
    for side in took:
        sessions[side] = [opened(side, name, adapter) for name in models.split(",")]
        print(f"# {side} is open", flush=True)
    for i in range(blocks):
        for side in reversed(took) if i % 2 else took:
            for k, ms in enumerate(block(sessions[side], threads, seconds)):
                took[side][k % len(took[side])] += ms
    for side, of_models in took.items():
        for name, ms in (
            ("all", [m for model in of_models for m in model]),
            *zip(models.split(","), of_models, strict=True),
        ):
            p50_ms, p99_ms = np.percentile(ms, (50, 99))
            row = {
                "runs_s": len(ms) / (blocks * seconds),
                "mean_ms": float(np.mean(ms)),
                "p50_ms": float(p50_ms),
                "p99_ms": float(p99_ms),
            }
            found[f"{side}, {name}"] = row
            print(f"{side:5} {name:16}" + "".join(f"  {key} {value:9.2f}" for key, value in row.items()), flush=True)
    if "auto" in sessions:
        for name, (session, _) in zip(models.split(","), sessions["auto"], strict=True):
            print(
                f"auto, {name}: {session.stats().get('runs_by_candidate')}; {session.explain().decisions[-1][1]}",
                flush=True,
            )
    for side in took if profile else ():
        for name, (session, feeds) in zip(models.split(","), sessions[side], strict=True):
            count, rows = calls(session, feeds)
            print(f"{side}, {name}: {count:.1f} calls a run: " + "; ".join(rows), flush=True)
    if json is not None:
        json.write_text(json_module.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
