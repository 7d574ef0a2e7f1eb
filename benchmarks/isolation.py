"""What isolation=process takes: the same model in this process and in a worker, in blocks of runs that take turns;
medians.

    python -m benchmarks.isolation [--runs 200] [--seconds 10] [--json FILE]

The goals: at most 150 us a run more for small tensors, no extra copy for large ones. `shared memory` is the worker made
to copy large tensors as small ones, once into the shared memory and once out of it; `two copies` is what two such
copies take here, measured alone.
"""

from __future__ import annotations

import ctypes
import json as json_module
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from onnx import helper, numpy_helper
from rich.console import Console
from rich.table import Table

from benchmarks import cases
from ort_gpu_ep import InferenceSession

console = Console()

GOAL_US = 150.0
SIZES_MIB = (1, 16, 64)


def mlp() -> tuple[bytes, dict[str, Any]]:
    """16 -> 300 -> 8 with ReLU and softmax, 4 rows."""
    rng = np.random.default_rng(0)
    weights = {"W": rng.normal(size=(16, 300)).astype("f"), "V": rng.normal(size=(300, 8)).astype("f")}
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "V"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    return _model(nodes, [4, 16], [4, 8], weights), {"x": rng.normal(size=(4, 16)).astype("f")}


def elementwise(mib: int) -> tuple[bytes, dict[str, Any]]:
    """y = sqrt(relu(x)) on so many MiB of float32."""
    shape = [mib, 1 << 18]
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Sqrt", ["a"], ["y"])]
    return _model(nodes, shape, shape, {}), {"x": np.random.default_rng(mib).normal(size=shape).astype("f")}


def _model(nodes: list[Any], given: list[int], made: list[int], weights: dict[str, Any]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, made)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    )


def measure(name: str, model: bytes, feeds: dict[str, Any], runs: int, seconds: float) -> dict[str, Any]:
    modes = {
        "none": {},
        "process": {"isolation": "process"},
        "shared": {"isolation": "process", "memory_limit_mb": 1 << 20},
    }
    sides = {
        mode: InferenceSession(model, cases.quiet(), provider_options={"placement": "gpu", "strict": 1, **options})
        for mode, options in modes.items()
    }  # another option, another worker
    sides["shared"]._lease.gpu.reaches = False  # type: ignore[union-attr]
    calls = {mode: lambda session=session: session.run(None, feeds) for mode, session in sides.items()}
    once_s = sum(float(np.median(t)) for t in cases.in_turn(calls, 3).values()) / 1e3  # after runs that compile
    times = cases.in_blocks(calls, max(12, min(runs, int(seconds / once_s))))
    medians = {mode: float(np.median(t)) for mode, t in times.items()}
    return {
        "model": name,
        "runs": len(times["none"]),
        "in_process_ms": medians["none"],
        "isolated_ms": medians["process"],
        "over_us": (medians["process"] - medians["none"]) * 1e3,
        "shared_over_us": (medians["shared"] - medians["none"]) * 1e3,
        "copies_us": copies_us(feeds["x"]),
    }


def copies_us(x: Any) -> float:
    """Median microseconds of one copy into other memory and one back, of an array's size."""
    there, back, times = np.zeros_like(x), np.zeros_like(x), []
    for _ in range(9):
        start = time.perf_counter()
        ctypes.memmove(there.ctypes.data, x.ctypes.data, x.nbytes)
        ctypes.memmove(back.ctypes.data, there.ctypes.data, x.nbytes)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e6


def main(
    runs: Annotated[int, typer.Option()] = 200,
    seconds: Annotated[float, typer.Option(help="Per model.")] = 10.0,
    json: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Prints the table."""
    todo = {"mlp": mlp(), **{f"{mib} MiB": elementwise(mib) for mib in SIZES_MIB}}
    rows = [measure(name, *case, runs, seconds) for name, case in todo.items()]
    table = Table(
        "model", "runs", "in process, ms", "isolated, ms", "over, us", "shared memory: over, us", "two copies, us"
    )
    for row in rows:
        table.add_row(
            row["model"],
            str(row["runs"]),
            f"{row['in_process_ms']:.3f}",
            f"{row['isolated_ms']:.3f}",
            f"{row['over_us']:.0f}",
            f"{row['shared_over_us']:.0f}",
            f"{row['copies_us']:.0f}",
        )
    console.print(table)
    console.print(
        f"goal of {GOAL_US:.0f} us for small tensors: {'met' if rows[0]['over_us'] <= GOAL_US else 'not met'}"
    )
    if json is not None:
        json.write_text(json_module.dumps(rows, indent=1))


if __name__ == "__main__":
    typer.run(main)
