"""Scoring many rows: rows a second and memory beside a plain loop over onnxruntime's CPU, and beside Ray Data's
`map_batches` with it.

    python -m benchmarks.scoring [--rows 2000000] [--adapters cpu --adapters 0,0] [--ray]
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import psutil
import pyarrow as pa
import pyarrow.parquet as parquet
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.scoring import score
from ort_gpu_ep.scoring.job import SHARD_ROWS

FEATURES, HIDDEN, CLASSES = 32, 64, 10

BATCH = 4096
"""Of what is written by hand."""

FIFTHS = 5


def write_model(path: Path) -> None:
    """A small MLP, [n, 32] -> [n, 10]."""
    rng = np.random.default_rng(0)
    weights = {"first": (FEATURES, HIDDEN), "second": (HIDDEN, CLASSES)}
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(rng.standard_normal(shape).astype("f"), name) for name, shape in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def write_rows(path: Path, rows: int) -> None:
    """In groups of 100,000 rows."""
    rng = np.random.default_rng(1)
    schema = pa.schema([("id", pa.int64()), ("x", pa.list_(pa.float32(), FEATURES))])
    with parquet.ParquetWriter(path, schema) as file:
        for start in range(0, rows, 100_000):
            count = min(100_000, rows - start)
            values = pa.array(rng.standard_normal(count * FEATURES).astype("f"))
            lists = pa.FixedSizeListArray.from_arrays(values, FEATURES)
            file.write_table(pa.table({"id": np.arange(start, start + count), "x": lists}, schema))


def plain_loop(model: Path, data: Path, out: Path, batch: int) -> None:
    """What one would write by hand: no restart, no errors by row, one session."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    writer = None
    for rows in parquet.ParquetFile(data).iter_batches(SHARD_ROWS):
        x = rows.column("x").flatten().to_numpy().reshape(-1, FEATURES)
        y = np.concatenate([session.run(None, {"x": x[k : k + batch]})[0] for k in range(0, len(x), batch)])
        lists = pa.FixedSizeListArray.from_arrays(pa.array(y.reshape(-1)), CLASSES)
        table = pa.table({"id": rows.column("id"), "y": lists})
        writer = writer or parquet.ParquetWriter(out, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()


class Plain:
    """What one would write by hand for `map_batches`."""

    def __init__(self, model: bytes) -> None:
        self._session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def __call__(self, batch: Any) -> Any:
        x = batch.column("x").combine_chunks().flatten().to_numpy().reshape(-1, FEATURES)
        y = self._session.run(None, {"x": x})[0]
        return pa.table(
            {"id": batch.column("id"), "y": pa.FixedSizeListArray.from_arrays(pa.array(y.reshape(-1)), CLASSES)}
        )


def map_batches(model: Path, data: Path, out: Path) -> None:
    """One actor, as the loop is one session."""
    import ray

    actors, given = ray.data.ActorPoolStrategy(size=1), {"model": model.read_bytes()}
    scored = ray.data.read_parquet(str(data)).map_batches(
        Plain, fn_constructor_kwargs=given, compute=actors, batch_size=BATCH, batch_format="pyarrow"
    )
    scored.write_parquet(str(out))


@contextmanager
def watched(samples: list[float], cpu_s: dict[int, list[float]]) -> Iterator[None]:
    """Ten times a second, of this process and its children: megabytes that they share with nobody, and seconds of a
    core by process."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            total = 0
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                try:
                    total += process.memory_full_info().uss
                    times = process.cpu_times()
                    cpu_s.setdefault(process.pid, []).append(times.user + times.system)
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
            samples.append(total / 2**20)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def timed(name: str, rows: int, work: Callable[[], Any]) -> None:
    samples, cpu_s = list[float](), dict[int, list[float]]()
    start = time.perf_counter()
    with watched(samples, cpu_s):
        report = work()
    whole_s = time.perf_counter() - start
    seconds = report.seconds if report is not None else whole_s
    parts = [max(part, default=0.0) for part in np.array_split(samples, FIFTHS)]
    print(
        f"{name:24} {rows / seconds:12,.0f} rows/s {seconds / rows * 1e6:8.2f} us a row {whole_s:8.1f} s with "
        f"preparation"
    )
    spent_s = sum(found[-1] - found[0] for found in cpu_s.values())
    print(f"{'':24} {spent_s / rows * 1e6:.2f} us of a core a row, preparation included")
    print(
        f"{'':24} MB at most in each fifth of the time: {', '.join(f'{part:,.0f}' for part in parts)}",
        f"; batch {report.batch}" if report is not None else "",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--adapters", action="append")
    parser.add_argument("--batch", default="auto")
    parser.add_argument("--ray", action="store_true", help="on a Ray cluster of this machine, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model, data = folder / "mlp.onnx", folder / "rows.parquet"
        write_model(model)
        write_rows(data, given.rows)
        timed("plain loop, CPU", given.rows, lambda: plain_loop(model, data, folder / "plain.parquet", BATCH))
        for place, adapters in enumerate(given.adapters or ["cpu"]):
            out = folder / f"out{place}"
            timed(
                adapters,
                given.rows,
                lambda a=adapters, o=out: score(model, data, o, adapters=a, key="id", batch=given.batch),
            )  # type: ignore[misc]
        if given.ray:
            with_ray(model, data, folder, given.rows)


def with_ray(model: Path, data: Path, folder: Path, rows: int) -> None:
    """Ray's own processes count as memory, its object store does not."""
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    timed("score, --ray, cpu", rows, lambda: score(model, data, folder / "ray", adapters="cpu", key="id", ray="local"))
    timed("map_batches, CPU", rows, lambda: map_batches(model, data, folder / "mapped"))
    ray.shutdown()


if __name__ == "__main__":
    main()
