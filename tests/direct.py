"""Runs an ONNX model straight through planner and device, without ONNX Runtime: for tests of kernels.

As a module: python -m tests.direct [--open] PATTERN...   runs ONNX's own node cases whose names match, one line each;
--open: as if the model left every size of its inputs open.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu, Tensor
from ort_gpu_ep.device.adapter import choose, limits_of
from ort_gpu_ep.device.info import FEATURES
from ort_gpu_ep.errors import UnsupportedNodeError
from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.ir.types import TensorType, dtype_of
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.planner import Rewrite
from ort_gpu_ep.scheduler.verify import check

Array = np.ndarray[Any, Any]

PACKED = Config(weights="packed")
"""Of tests of kernels that read packed weights: otherwise dense ones stay on the device where these are faster."""


def opened(graph: Graph) -> Graph:
    """The graph as if the model left every size of its inputs open."""
    values = {n: replace(graph.values[n], shape=(None,) * len(graph.values[n].shape or ())) for n in graph.inputs}
    return graph.with_nodes(graph.nodes, values)


def device_without(*features: str) -> Gpu:
    """A device of its own on the first adapter, as if that had none of these features."""
    info, raw = choose("")
    left = frozenset(raw.features - set(features))
    device = raw.request_device("without features", [f for f in FEATURES if f in left])
    return Gpu(info, device, replace(limits_of(raw), features=left))


def run_direct(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    rewrite: Rewrite | None = None,
    every_size_open: bool = False,
) -> list[Array]:
    """Outputs of the model on the first adapter. Raises UnsupportedNodeError where a row declines; checks every
    plan."""
    graph = from_onnx(model)
    program = Program(opened(graph) if every_size_open else graph, PACKED, Gpu.open(Config()), rewrite)
    try:
        return run_program(program, feeds)
    finally:
        program.close()


def run_program(program: Program, feeds: Mapping[str, Array]) -> list[Array]:
    """Outputs of a program; checks its plan."""

    def read(index: int, tensor: TensorType) -> Array:
        return np.ascontiguousarray(feeds[program.graph.inputs[index]]).reshape(tensor.shape)

    gpu, inputs = program.gpu, []
    for name in program.graph.inputs:
        array = np.ascontiguousarray(feeds[name]).reshape(feeds[name].shape)
        tensor = Tensor(gpu.allocate(array.nbytes), 0, TensorType(dtype_of(array), array.shape))
        gpu.upload(tensor.buffer, 0, array.ctypes.data, array.nbytes)
        inputs.append(tensor)
    plan = program.plan([t.type for t in inputs], read)
    check(plan, gpu.limits)
    outputs: dict[int, Tensor] = {}

    def make_output(index: int, shape: tuple[int, ...], over: int | None = None) -> Tensor:
        tensor = TensorType(plan.outputs[index].dtype, shape)
        outputs[index] = Tensor(gpu.allocate(tensor.nbytes), 0, tensor)
        return outputs[index]

    program.run(inputs, make_output, read)
    results = []
    for i in range(len(plan.outputs)):
        array = np.empty(outputs[i].type.shape, outputs[i].type.dtype.numpy)
        gpu.download(outputs[i].buffer, 0, array.ctypes.data, array.nbytes)
        results.append(array)
    for tensor in (*inputs, *outputs.values()):
        gpu.free(tensor.buffer)
    return results


def _array(given: Any) -> Array:
    """Some cases give a TensorProto, some a numpy scalar."""
    return onnx.numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else np.asarray(given)


def main(patterns: list[str]) -> int:
    from onnx.backend.test.loader import load_model_tests

    warnings.simplefilter("ignore")
    counts: dict[str, int] = {}
    every_size_open = "--open" in patterns
    for case in load_model_tests(kind="node"):
        if not any(re.search(p, case.name) for p in patterns):
            continue
        try:
            for inputs, wanted in case.data_sets:
                names = [i.name for i in case.model.graph.input]
                got = run_direct(
                    case.model, dict(zip(names, map(_array, inputs), strict=False)), every_size_open=every_size_open
                )
                for g, w in zip(got, map(_array, wanted), strict=True):
                    assert (g.dtype, g.shape) == (w.dtype, w.shape)
                    np.testing.assert_allclose(
                        g.astype(np.float64) if g.dtype.kind == "f" else g, w, rtol=case.rtol, atol=case.atol
                    )
            status, note = "PASS", ""
        except UnsupportedNodeError as error:
            status, note = "UNSUPPORTED", str(error)
        except Exception as error:
            status, note = "FAIL", f"{type(error).__name__}: {str(error)[:600]}"
        counts[status] = counts.get(status, 0) + 1
        print(f"{status:12} {case.name}  {note}", flush=True)
    print(counts)
    return 1 if counts.get("FAIL") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
