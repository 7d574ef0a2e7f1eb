"""Convolutions and products of many vectors whose weights are mostly zeros: right in every form, packed once, taken
where estimated faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.kernels.target import Tuned
from ort_gpu_ep.ops.sparse_products import FORMS, SHADER
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.compressed.test_functions import dense_model, model_of
from tests.compressed.test_packed_products import close
from tests.compressed.test_pruned import product, runs_packed, sparse_matrix
from tests.direct import PACKED, run_program
from tests.ops.single_node import on_cpu

RNG = np.random.default_rng(23)
FREE = replace(DEFAULT_FIGURES, sparse_factor=0.0)
"""Of an adapter that reads sparse weights in no time."""


def filters(shape: tuple[int, ...], density: float) -> Any:
    return sparse_matrix(shape[0], int(np.prod(shape[1:])), density).reshape(shape)


def convolution(x: tuple[Any, ...], weight: Any, bias: bool = True, **attributes: Any) -> onnx.ModelProto:
    """Conv, an operand for each filter added, Relu."""
    each = (1, len(weight), *(1,) * (weight.ndim - 2))
    held = {
        "w": weight,
        "r": RNG.normal(size=each).astype("f"),
        **({"c": RNG.normal(size=len(weight)).astype("f")} if bias else {}),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", *(["c"] if bias else [])], ["p"], **attributes),
        helper.make_node("Add", ["p", "r"], ["q"]),
        helper.make_node("Relu", ["q"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, x)],
        [helper.make_tensor_value_info("y", 1, [None] * len(x))],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def shaders_of(program: Program) -> list[str]:
    return [step.kernel.shader for step in program.plans[-1].steps if isinstance(step, Dispatch)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The adapter, where sparse weights cost nothing."""
    found = Gpu.open(Config())
    monkeypatch.setattr(found, "limits", replace(found.limits, figures=FREE))
    return found


def check(gpu: Gpu, model: onnx.ModelProto, *runs: Mapping[str, Any], weight: Any = None) -> None:
    """Right in each run; the weight comes back bit for bit from what is packed, and is not on the device beside it."""
    program = Program(from_onnx(model), PACKED, gpu, rewrite)
    try:
        for feeds in runs:
            close(run_program(program, feeds)[0], on_cpu(model, feeds)[0])
            assert SHADER in shaders_of(program)
        if weight is not None:
            assert "w" in program.context.replaced
            restored = np.empty_like(weight)
            gpu.download(program.weight("w"), 0, restored.ctypes.data, restored.nbytes)
            np.testing.assert_array_equal(restored, weight)
    finally:
        program.close()


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str, gpu: Gpu) -> None:
    """Fours of pixels and single ones, rows that are no multiple of a workgroup's, and taps outside x."""
    with forced(form):
        for size in (6, 7) if int(form.split()[2].strip(",")) >= 4 else (7,):
            weight = filters((70, 64, 1, 1), 0.1)
            check(
                gpu,
                convolution((2, 64, size, size), weight),
                {"x": RNG.normal(size=(2, 64, size, size)).astype("f")},
                weight=weight,
            )
        weight = filters((35, 20, 3, 3), 0.15)
        check(
            gpu,
            convolution((2, 20, 7, 6), weight, pads=[1] * 4),
            {"x": RNG.normal(size=(2, 20, 7, 6)).astype("f")},
            weight=weight,
        )


@pytest.mark.parametrize("density", [0.0, 0.01, 0.2])
@pytest.mark.parametrize(
    ("x", "shape", "attributes"),
    [
        ((2, 64, 9, 8), (66, 64, 1, 1), {"strides": [2, 3]}),
        ((1, 32, 9, 7), (17, 32, 3, 3), {"strides": [2, 1], "pads": [1, 2, 0, 1]}),
        ((1, 33, 9, 11), (16, 33, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
        ((1, 32, 6, 5), (16, 32, 4, 2), {"auto_pad": "SAME_LOWER"}),
        ((2, 64, 19), (40, 64, 5), {"strides": [2]}),
        ((1, 24, 5, 6, 7), (20, 24, 3, 2, 2), {"strides": [2, 1, 1], "pads": [1, 0, 1, 1, 1, 1]}),
        ((1, 64, 4, 4), (80, 64, 1, 1), {"pads": [1, 1, 1, 1]}),
        ((3, 256, 1, 1), (64, 256, 1, 1), {}),
    ],
)
def test_windows(x: tuple[int, ...], shape: tuple[int, ...], attributes: Any, density: float, gpu: Gpu) -> None:
    weight = filters(shape, density)
    check(
        gpu, convolution(x, weight, len(x) % 2 == 0, **attributes), {"x": RNG.normal(size=x).astype("f")}, weight=weight
    )


def test_sizes_that_only_a_run_knows(gpu: Gpu) -> None:
    """Weights that are packed once serve every number of images, and every image."""
    weight = filters((40, 32, 3, 3), 0.1)
    shapes = ((1, 32, 8, 8), (3, 32, 8, 8), (1, 32, 5, 9))
    check(
        gpu,
        convolution(("n", 32, "h", "w"), weight, pads=[1] * 4),
        *({"x": RNG.normal(size=s).astype("f")} for s in shapes),
        weight=weight,
    )
    weight = sparse_matrix(260, 300, 0.1)
    runs = [{"x": RNG.normal(size=(n, 260)).astype("f")} for n in (16, 37)]
    check(gpu, product("MatMul", ("n", 260), weight), *runs, weight=weight)


@pytest.mark.parametrize(
    ("op", "x", "shape", "attributes"),
    [
        ("MatMul", (2, 9, 300), (300, 260), {}),
        ("MatMul", (40, 300), (300, 257), {}),
        ("Gemm", (300, 12), (300, 260), {"transA": 1}),
        ("Gemm", (12, 300), (260, 300), {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    ],
)
def test_many_vectors(op: str, x: tuple[int, ...], shape: tuple[int, int], attributes: Any, gpu: Gpu) -> None:
    weight = sparse_matrix(*shape, 0.1)
    check(gpu, product(op, x, weight, op == "Gemm", **attributes), {"x": RNG.normal(size=x).astype("f")}, weight=weight)


def test_what_no_weight_reads_does_not_matter(gpu: Gpu) -> None:
    """Infinity in x reaches the outputs that have a weight for it."""
    weight = filters((64, 64, 1, 1), 0.1)
    weight[:, 5] = 0
    weight[3, 5], weight[9, 6] = 2.0, np.nan
    program = Program(from_onnx(convolution((1, 64, 4, 4), weight)), PACKED, gpu, rewrite)
    x = np.zeros((1, 64, 4, 4), "f")
    x[0, 5] = np.inf
    try:
        (got,) = run_program(program, {"x": x})
    finally:
        program.close()
    infinite = np.isinf(got).all((0, 2, 3))
    assert infinite[3]
    assert infinite.sum() == 1


@pytest.mark.parametrize(
    ("op", "x", "stored", "perm", "attributes"),
    [
        ("Conv", (2, 16, 9, 7), (40, 16, 3, 3), (0, 1, 2, 3), {"pads": [1, 1, 1, 1]}),
        ("Conv", (1, 64, 6, 6), (33, 64, 1, 1), (0, 1, 2, 3), {}),
        ("MatMul", (17, 515), (300, 515), (1, 0), {}),
        ("Gemm", (9, 64), (33, 64), (0, 1), {"transB": 1, "alpha": 0.5}),
    ],
)
@pytest.mark.parametrize("density", [0.02, 0.2])
def test_entries_of_a_file(op: str, x: Any, stored: Any, perm: Any, attributes: Any, density: float, gpu: Gpu) -> None:
    model, dense = model_of(op, "Sparse", x, stored, perm, density=density, **attributes)
    feeds = {"x": RNG.normal(size=x).astype("f")}
    program = Program(from_onnx(model), PACKED, gpu, rewrite)
    try:
        close(run_program(program, feeds)[0], on_cpu(dense_model(model, dense), feeds)[0])
        assert set(shaders_of(program)) <= {SHADER, "strided.wgsl"}
        assert SHADER in shaders_of(program)
    finally:
        program.close()


def test_broken_entries_lead_nowhere(gpu: Gpu) -> None:
    """Rows whose entries run past them, or begin anywhere."""
    model, _ = model_of("Conv", "Sparse", (1, 64, 6, 6), (33, 64, 1, 1), (0, 1, 2, 3))
    for name, broken in (
        ("entries", lambda a: np.full_like(a, 0xFF)),
        ("starts", lambda a: RNG.integers(-9, 1 << 30, a.shape).astype("i4")),
    ):
        other = onnx.ModelProto()
        other.CopyFrom(model)
        held = next(t for t in other.graph.initializer if t.name == name)
        held.CopyFrom(numpy_helper.from_array(broken(numpy_helper.to_array(held)), name))
        program = Program(from_onnx(other), PACKED, gpu, rewrite)
        try:
            assert np.isfinite(run_program(program, {"x": np.ones((1, 64, 6, 6), "f")})[0]).all()
        finally:
            program.close()


def planned(model: onnx.ModelProto, shape: tuple[int, ...], tuned: Tuned | None = None, **limits: Any) -> list[str]:
    plan = make_plan(
        from_onnx(model), {"x": TensorType(FLOAT32, shape)}, Limits(tuned=tuned or Tuned(), **limits), rewrite
    )
    return [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)]


def test_the_estimate_decides() -> None:
    """By an H200's figures, of one image of ResNet-50: 90 % zeros pay, half of them do not; a measured form counts
    more."""
    shape, weight = (1, 1024, 14, 14), filters((256, 1024, 1, 1), 0.1)
    model = convolution(shape, weight)
    assert planned(model, shape) == [SHADER]
    assert SHADER not in planned(convolution(shape, filters((256, 1024, 1, 1), 0.5)), shape)
    assert SHADER not in planned(model, shape, disabled=((SHADER, "a fault"),))
    with forced() as made:
        planned(model, shape)
    (choice,) = [choice for choice in made.values() if choice.form in FORMS]
    measured = next(form for form in choice.forms if form not in FORMS)
    assert SHADER not in planned(model, shape, Tuned({choice.key: measured}))


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_through_onnxruntime(isolation: str) -> None:
    weight = filters((128, 128, 3, 3), 0.1)
    model = convolution((1, 128, 14, 14), weight, pads=[1] * 4)
    runs_packed(model, {"x": RNG.normal(size=(1, 128, 14, 14)).astype("f")}, weight, isolation, 0.3, 0.3)
