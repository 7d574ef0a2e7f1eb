"""GPU time of single nodes by timestamps, in a form of their kernels that is asked for, at full clock: what forms.py
and tiles.py share.

A time is that of REPEATS runs of the node's kernels in one pass, weights on the device, median of five. The GPU works
on a large product before, so that its clock does not fall while shaders are compiled. The launch of a dependent
dispatch (2.2 us on an H200) is in each.
"""

from __future__ import annotations

import time

import numpy as np

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, Tensor
from ort_gpu_ep.device.timing import Timer
from ort_gpu_ep.ir.graph import Graph, Node, Value
from ort_gpu_ep.ir.types import FLOAT32, INT8, TensorType
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import Rewrite
from ort_gpu_ep.webgpu import native

REPEATS = 20
WARM_S = 0.4
"""How much work the GPU is given before each form: longer than it takes to compile one."""
WARM_SIZE = 2048


def microseconds(gpu: Gpu, graph: Graph, config: Config, rewrite: Rewrite | None = None) -> tuple[float, list[str]]:
    """Of one run of the graph's kernels, and which they are."""
    rng, program = np.random.default_rng(1), Program(graph, config, gpu, rewrite)
    tensors = []
    for name in graph.inputs:
        value = graph.values[name]
        drawn = (
            rng.integers(-128, 128, value.shape)
            if value.dtype is INT8
            else rng.standard_normal(value.shape, np.float32)
        )
        data = drawn.astype(value.dtype.numpy)  # type: ignore[union-attr]
        tensors.append(Tensor(gpu.allocate(data.nbytes), 0, TensorType(value.dtype, data.shape)))
        gpu.upload(tensors[-1].buffer, 0, data.ctypes.data, data.nbytes)
    plan = program.plan([t.type for t in tensors])
    outputs = [Tensor(gpu.allocate(t.nbytes), 0, t) for t in plan.outputs]
    try:
        program.run(tensors, lambda index, shape: outputs[index])
        (prepared,) = program.compiled.general
        groups, timer = prepared.bind(tensors, outputs), Timer(gpu)

        def once() -> float:
            encoder = gpu.device.create_command_encoder("gpu time")
            compute = encoder.begin_compute_pass(timer.writes(0))
            for _ in range(REPEATS):
                # behind them those of `halved`
                for step, pipeline, group in zip(plan.steps, prepared._pipelines, groups, strict=False):
                    assert isinstance(step, Dispatch)
                    native.dispatch(compute, pipeline, group, step.groups)
            compute.end()
            timer.resolve(encoder)
            gpu.execute([native.finish(encoder)])
            return timer.read_s() / REPEATS * 1e6

        return float(np.median([once() for _ in range(5)])), [
            s.kernel.shader for s in plan.steps if isinstance(s, Dispatch)
        ]
    finally:
        program.close()
        for tensor in (*tensors, *outputs):
            gpu.free(tensor.buffer)


class Warmth:
    """Work that keeps a GPU's clock up."""

    def __init__(self, gpu: Gpu, config: Config) -> None:
        x = np.ones((WARM_SIZE, WARM_SIZE), np.float32)
        values = {
            "x": Value("x", FLOAT32, x.shape),
            "w": Value("w", FLOAT32, x.shape, lambda: x),
            "y": Value("y", FLOAT32),
        }
        self._gpu = gpu
        self._program = Program(
            Graph("warmth", ("x",), ("y",), (Node("MatMul", ("x", "w"), ("y",), version=13),), values), config, gpu
        )
        self._x, self._y = (Tensor(gpu.allocate(x.nbytes), 0, TensorType(FLOAT32, x.shape)) for _ in range(2))
        gpu.upload(self._x.buffer, 0, x.ctypes.data, x.nbytes)
        self._count = 1
        gpu.finish()
        start = time.perf_counter()
        self.give()
        gpu.finish()
        self._count = max(1, int(WARM_S / (time.perf_counter() - start)))

    def give(self) -> None:
        """Enqueues work; returns at once."""
        for _ in range(self._count):
            self._program.run([self._x], lambda index, shape: self._y)
        self._gpu.flush()
