"""Packed or written out for a run: the estimate decides, by the figures of the adapter and by what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES, Figures
from ort_gpu_ep.kernels.forms import best_ns
from ort_gpu_ep.kernels.profile import GUESSED, Curve
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.kernels.target import Target, Tuned
from ort_gpu_ep.ops import packed, tiles
from ort_gpu_ep.partitioner import partition, rewrite
from ort_gpu_ep.partitioner.costs import Costs
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch, Plan
from ort_gpu_ep.scheduler.planner import make_plan
from tests.compressed.test_functions import model_of as codebook_model
from tests.compressed.test_packed_products import RNG, close, exact, nbits_model, weighted
from tests.direct import PACKED, run_program

SLOW_STEPS = replace(DEFAULT_FIGURES, step_ns=1e6)
"""Of an adapter that is slow where tiles unpack; SLOW_WRITES: where a weight is written out."""
SLOW_WRITES = replace(DEFAULT_FIGURES, byte_ns=1e3)
MATMUL = ("MatMul", (40, 128), (128, 64), (64,), {"axis": 1}, {})
GEMM = ("Gemm", (50, 256), (64, 256), (64, 8), {"axis": 1, "block_size": 32}, {"transB": 1})
CONV = ("Conv", (1, 128, 9, 9), (128, 128, 3, 3), (128,), {"axis": 0}, {"pads": [1, 1, 1, 1]})


def model_of(case: Any, kind: str, zero_point: bool = True) -> onnx.ModelProto:
    op, x, w, scale, decoder, attributes = case
    return weighted(op, kind, x, w, scale, zero_point, (64,) if op == "Gemm" else None, decoder, **attributes)


def plan_of(model: onnx.ModelProto, figures: Figures, tuned: Tuned | None = None) -> Plan:
    graph = from_onnx(model)
    x = graph.values["x"].shape
    assert x is not None
    inputs = {"x": TensorType(FLOAT32, tuple(int(d) for d in x))}  # type: ignore[arg-type]
    limits = replace(Gpu.open(Config()).limits, figures=figures, tuned=tuned or Tuned())
    return make_plan(graph, inputs, limits, rewrite)


def shaders(plan: Plan) -> set[str]:
    return {step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)}


@pytest.fixture(params=[SLOW_WRITES, SLOW_STEPS], ids=["in tiles", "before"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The adapter, with these figures."""
    opened = Gpu.open(Config())
    monkeypatch.setattr(opened, "limits", replace(opened.limits, figures=request.param))
    return opened


def run_on(gpu: Gpu, model: onnx.ModelProto, feeds: Any, most_nbytes: float) -> Any:
    """The output. No dense weight stays on the device."""
    program = Program(from_onnx(model), PACKED, gpu, rewrite)
    try:
        (got,) = run_program(program, feeds)
        assert program.weight_nbytes <= most_nbytes
        return got
    finally:
        program.close()


@pytest.mark.parametrize("kind", ["int8", "uint4"])
@pytest.mark.parametrize(
    ("case", "written_out"),
    [(MATMUL, "unpack_interleaved.wgsl"), (GEMM, "unpack_interleaved.wgsl"), (CONV, "dequantize.wgsl")],
)
def test_figures_decide(case: Any, kind: str, written_out: str, gpu: Gpu) -> None:
    """And both ways are right."""
    model = model_of(case, kind)
    feeds = {"x": RNG.normal(size=case[1]).astype("f")}
    expected = written_out if gpu.limits.figures is SLOW_STEPS else "packed_product.wgsl"
    assert expected in shaders(plan_of(model, gpu.limits.figures))
    nbytes = np.prod(case[2]) * int(kind.lstrip("uint")) / 8
    close(run_on(gpu, model, feeds, 2.3 * nbytes + 8192), exact(model, feeds))


@pytest.mark.parametrize(("bits", "zero"), [(2, "none"), (4, "codes"), (8, "floats")])
def test_matmul_nbits_both_ways(bits: int, zero: str, gpu: Gpu) -> None:
    model, (dense, bias) = nbits_model((20, 256), 256, 72, bits, 32, zero, bias=True)
    x = RNG.normal(size=(20, 256)).astype("f")
    close(run_on(gpu, model, {"x": x}, 1e9), x.astype("d") @ dense + bias)
    assert ("unpack_interleaved.wgsl" in shaders(plan_of(model, gpu.limits.figures))) == (
        gpu.limits.figures is SLOW_STEPS
    )


@pytest.mark.parametrize(("kind", "perm"), [("Codebook3", (1, 0)), ("Codebook5", (0, 1)), ("Codebook8", (1, 0))])
def test_codebooks_both_ways(kind: str, perm: tuple[int, int], gpu: Gpu) -> None:
    stored = (68, 160) if perm == (1, 0) else (160, 68)
    model, dense = codebook_model("MatMul", kind, (9, 160), stored, perm)
    x = RNG.normal(size=(9, 160)).astype("f")
    close(run_on(gpu, model, {"x": x}, 1e9), np.maximum(x.astype("d") @ dense, 0))
    assert ("unpack_product.wgsl" in shaders(plan_of(model, gpu.limits.figures))) == (gpu.limits.figures is SLOW_STEPS)


def test_an_h200_writes_weights_out_where_a_dense_product_gains_by_its_forms() -> None:
    def forms(vectors: int, n: int, k: int) -> bool:
        weights = packed.Weights(n, k, k, 1, 8, 1, 2)
        packed_ns = packed.product_ns(Target(), weights, packed.Columns(0, vectors, k, 1, n, 1))
        dense = tiles.TiledProduct(vectors, n, tiles.Weights("unpacked", k, 1, 1, n, 0, False))
        return packed.unpack_ns(Target(), weights) + best_ns(tiles.forms(dense)) < packed.UNPACKED_GAIN * packed_ns

    assert forms(128, 1024, 1024)  # K is cut
    assert forms(4096, 4096, 4096)  # dense 46 TFLOP/s on an H200, packed 37
    assert not forms(8, 1024, 1024)
    assert not forms(512, 14336, 4096)


def test_what_was_measured_counts_more() -> None:
    model = model_of(MATMUL, "int8")
    (choice,) = [
        s.kernel.choice
        for s in plan_of(model, SLOW_STEPS).steps
        if isinstance(s, Dispatch) and s.kernel.shader == "unpack_interleaved.wgsl"
    ]
    assert choice is not None
    assert choice.forms[0] == packed.BEFORE
    assert "packed_product.wgsl" in shaders(plan_of(model, SLOW_STEPS, Tuned({choice.key: packed.IN_TILES})))


@pytest.mark.parametrize(("case", "kind"), [(MATMUL, "int8"), (GEMM, "uint4"), (CONV, "int8")])
def test_auto_compares_with_the_cpu(case: Any, kind: str) -> None:
    """Told what the CPU takes for the decoder and its product, and what the adapter takes."""
    graph = from_onnx(model_of(case, kind))
    for cpu_s, expected in ((1e-6, "cpu"), (1.0, "gpu")):
        costs = Costs(cpu_s={(node.id, node.op): cpu_s for node in graph.nodes})
        report = partition(graph, Config(placement="auto"), Limits(), software=False, costs=costs).report
        assert {node.device for node in report.nodes} == {expected}, report
        assert report.predictions[0].candidate == expected


def test_bytes_are_priced_as_they_are_read() -> None:
    """A vector times a matrix, on an adapter that is bound by memory: int4 is predicted to take less than int8, and
    that less than float32."""
    slow = replace(GUESSED, families={"elementwise": Curve(((1.0, 1e-9),))})
    times = []
    for kind in ("uint4", "int8", ""):
        model = weighted("Gemm", kind or "int8", (1, 1024), (512, 1024), (512,), False, None, {"axis": 0}, transB=1)
        if not kind:
            model.graph.node.remove(model.graph.node[0])
            model.graph.initializer.append(numpy_helper.from_array(RNG.normal(size=(512, 1024)).astype("f"), "d"))
        report = partition(
            from_onnx(model), Config(placement="auto"), Limits(), software=False, costs=Costs(profile=slow)
        ).report
        times.append(next(p.gpu_s for p in report.predictions if p.candidate == "gpu"))
    assert 1.5 * times[0] < times[1] < times[2] / 3, times
