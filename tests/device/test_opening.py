"""Device memory while a program is made: weights in another order replace those of the model one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import Graph, Node, Value
from ort_gpu_ep.ir.types import FLOAT32
from ort_gpu_ep.runtime import context
from ort_gpu_ep.runtime.program import Program
from tests.direct import run_program

LAYERS, SIZE = 12, 256
NBYTES = 4 * SIZE * SIZE


def stack() -> tuple[Graph, list[Any]]:
    """Products behind each other, with weights that are packed before: their rows are columns of the model's."""
    rng = np.random.default_rng(7)
    weights = [(rng.normal(size=(SIZE, SIZE)) / SIZE**0.5).astype("f") for _ in range(LAYERS)]
    values = {"x0": Value("x0", FLOAT32, (48, SIZE)), f"x{LAYERS}": Value(f"x{LAYERS}", FLOAT32, (48, SIZE))}
    values |= {f"w{k}": Value(f"w{k}", FLOAT32, w.shape, lambda w=w: w) for k, w in enumerate(weights)}  # type: ignore[misc]
    nodes = tuple(
        Node("Gemm", (f"x{k}", f"w{k}"), (f"x{k + 1}",), version=13, attributes={"transB": 1}) for k in range(LAYERS)
    )
    return Graph("stack", ("x0",), (f"x{LAYERS}",), nodes, values), weights


@pytest.mark.parametrize("waiting_nbytes", [NBYTES, 1 << 30])
def test_weights_go_one_by_one(waiting_nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most at once is little more than what stays, unless what was freed may wait in the pool."""
    monkeypatch.setattr(context, "MAX_WAITING_NBYTES", waiting_nbytes)
    graph, weights = stack()
    gpu = Gpu.open(Config())
    gpu.trim()
    stats, seen = gpu.stats, list[int]()
    usual = gpu.allocate

    def allocate(*wanted: Any) -> Any:
        made = usual(*wanted)
        seen.append(stats.allocated_nbytes - stats.pooled_nbytes)
        return made

    before = stats.allocated_nbytes - stats.pooled_nbytes
    monkeypatch.setattr(gpu, "allocate", allocate)
    program = Program(graph, Config(), gpu)
    try:
        x = np.random.default_rng(8).normal(size=(48, SIZE)).astype("f")
        wanted = x.astype("d")
        for weight in weights:
            wanted = wanted @ weight.T.astype("d")
        np.testing.assert_allclose(
            run_program(program, {"x0": x})[0], wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max()
        )
        assert len(program.plans[-1].prologue) == LAYERS
        assert program.weight_nbytes <= 1.1 * LAYERS * NBYTES
        assert max(seen) - before <= (LAYERS + 3) * NBYTES
        np.testing.assert_array_equal(_downloaded(program, "w3"), weights[3])
    finally:
        program.close()
        gpu.trim()


def _downloaded(program: Program, name: str) -> Any:
    found = np.empty((SIZE, SIZE), np.float32)
    with program.lock:
        buffer = program.weight(name)
    program.gpu.download(buffer, 0, found.ctypes.data, found.nbytes)
    return found
