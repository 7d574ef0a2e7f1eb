"""Sizes that change from run to run and leave the dispatches as they are: recordings stay, results are each run's
own."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.runtime.prepared import Prepared
from ort_gpu_ep.runtime.program import Program
from tests.direct import run_program


def program() -> Program:
    """The mean of a row of any length: few workgroups, whose number stays the same."""
    x, y = (
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "n"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1]),
    )
    model = helper.make_model(
        helper.make_graph([helper.make_node("ReduceMean", ["x"], ["y"], axes=[1])], "g", [x], [y]),
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
    )
    return Program(from_onnx(model), Config(), Gpu.open(Config()))


def run(made: Program, n: int) -> None:
    x = np.random.default_rng(n).standard_normal((1, n)).astype("f")
    np.testing.assert_allclose(run_program(made, {"x": x})[0], x.mean(keepdims=True), rtol=1e-5, atol=1e-6)


def regions(made: Program) -> int:
    prepared: Prepared = made.compiled.general[0]
    return len(prepared._shapes)


def test_a_growing_size_has_one_region() -> None:
    made = program()
    for n in range(40, 140):
        run(made, n)
    assert len(made.compiled.general) == 1
    assert regions(made) == 1


def test_sizes_that_take_turns_have_one_each() -> None:
    made = program()
    for _ in range(4):
        for n in (50, 51, 52):
            run(made, n)
    assert regions(made) == 3
    for n in (53, 54, 50, 51, 52, 55):
        run(made, n)


def test_a_pending_run_keeps_its_numbers() -> None:
    """Both runs are enqueued before either is submitted."""
    from ort_gpu_ep.device import Tensor
    from ort_gpu_ep.ir.types import FLOAT32, TensorType

    made, gpu = program(), Gpu.open(Config())
    run(made, 30)
    arrays = [np.random.default_rng(n).standard_normal((1, n)).astype("f") for n in (31, 47)]
    inputs = [Tensor(gpu.allocate(a.nbytes), 0, TensorType(FLOAT32, a.shape)) for a in arrays]
    outputs = [Tensor(gpu.allocate(4), 0, TensorType(FLOAT32, (1, 1))) for _ in arrays]
    for tensor, array in zip(inputs, arrays, strict=True):
        gpu.upload(tensor.buffer, 0, array.ctypes.data, array.nbytes)
    for tensor, output in zip(inputs, outputs, strict=True):
        made.run([tensor], lambda index, shape, output=output: output)
    for output, array in zip(outputs, arrays, strict=True):
        got = np.empty((1, 1), "f")
        gpu.download(output.buffer, 0, got.ctypes.data, 4)
        np.testing.assert_allclose(got, array.mean(keepdims=True), rtol=1e-5, atol=1e-6)
