"""The option `weights`: dense copies of compressed weights that stay on the device, and are given back where memory is
short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.allowance import Allowance
from ort_gpu_ep.errors import OutOfDeviceMemoryError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.kernels.target import Target
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.plugin.explain import explanation
from ort_gpu_ep.runtime import context
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch, Plan
from ort_gpu_ep.scheduler.planner import make_plan
from ort_gpu_ep.scheduler.verify import check
from tests.compressed.test_choice import SLOW_STEPS
from tests.compressed.test_functions import model_of as function_model
from tests.compressed.test_packed_products import RNG, close, exact, nbits_model, weighted
from tests.direct import run_program
from tests.plugin.cases import open_session

CONV = ("Conv", (1, 128, 9, 9), (128, 128, 3, 3), (128,), {"axis": 0}, {"pads": [1, 1, 1, 1]})
DENSE_NBYTES = 4 * 128 * 128 * 9
CASES = {
    "Conv": CONV,
    "depthwise Conv": ("Conv", (1, 2048, 9, 9), (2048, 1, 3, 3), (2048,), {"axis": 0}, {"group": 2048}),
    "ConvTranspose": ("ConvTranspose", (1, 64, 5, 5), (64, 64, 2, 2), (64,), {"axis": 1}, {"strides": [2, 2]}),
    "MatMul": ("MatMul", (40, 256), (256, 288), (288,), {"axis": 1}, {}),
    "Gemm": ("Gemm", (50, 256), (288, 256), (288, 8), {"axis": 1, "block_size": 32}, {"transB": 1}),
}


def model_of(case: Any, kind: str = "int8") -> onnx.ModelProto:
    op, x, w, scale, decoder, attributes = case
    return weighted(op, kind, x, w, scale, True, None, decoder, **attributes)


def twin(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with its first node's output, a decoded weight, as float32."""
    decoder, dense = model.graph.node[0], onnx.ModelProto()
    dense.CopyFrom(model)
    one = onnx.helper.make_graph(
        [decoder], "d", [], [onnx.helper.make_empty_tensor_value_info(decoder.output[0])], model.graph.initializer
    )
    (weight,) = ReferenceEvaluator(onnx.helper.make_model(one, opset_imports=model.opset_import)).run(None, {})
    del dense.graph.node[0]
    dense.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(weight), decoder.output[0]))
    return dense


@pytest.fixture
def programs() -> Iterator[Any]:
    made: list[Program] = []

    def program(model: onnx.ModelProto, weights: str, **options: Any) -> Program:
        made.append(Program(from_onnx(model), Config(weights=weights, **options), Gpu.open(Config()), rewrite))
        return made[-1]

    yield program
    for one in made:
        one.close()


def shaders(plan: Plan) -> list[str]:
    return [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)]


@pytest.mark.parametrize("kind", ["int8", "uint4"])
@pytest.mark.parametrize("name", CASES)
def test_what_stays_dense_runs_as_its_float32_twin(name: str, kind: str, programs: Any) -> None:
    """With the same kernels and the same result, to the last bit."""
    model = model_of(CASES[name], kind)
    feeds = {"x": RNG.normal(size=CASES[name][1]).astype("f")}
    dense, like = programs(model, "fast"), programs(twin(model), "packed")
    (got,), (wanted,) = run_program(dense, feeds), run_program(like, feeds)
    close(got, exact(model, feeds))
    np.testing.assert_array_equal(got, wanted)
    assert shaders(dense.plans[-1]) == shaders(like.plans[-1])
    assert dense.plans[-1].dense_nbytes >= 4 * np.prod(CASES[name][2])
    assert like.plans[-1].dense_nbytes == 0


def test_bytes_that_each_choice_holds(programs: Any) -> None:
    """Packed, the weight is written out in each run by the same kernels: the results are equal to the last bit."""
    model, feeds = model_of(CONV), {"x": RNG.normal(size=CONV[1]).astype("f")}
    codes = DENSE_NBYTES // 4
    found = {}
    for choice, most in (
        ("packed", 1.1 * codes),
        ("auto", 1.1 * codes + DENSE_NBYTES),
        ("fast", 1.1 * codes + DENSE_NBYTES),
    ):
        program = programs(model, choice)
        (found[choice],) = run_program(program, feeds)
        check(program.plans[-1])
        assert codes <= program.weight_nbytes <= most
        assert program.plans[-1].dense_nbytes == (0 if choice == "packed" else DENSE_NBYTES)
        assert program.context.prologue.dense_nbytes >= program.plans[-1].dense_nbytes
        assert ("dequantize.wgsl" in shaders(program.plans[-1])) == (choice == "packed")
    np.testing.assert_array_equal(found["packed"], found["auto"])
    np.testing.assert_array_equal(found["packed"], found["fast"])


def test_a_product_of_blocks_writes_its_weight_out_once(programs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, figures=SLOW_STEPS))
    model, (dense, bias) = nbits_model((20, 256), 256, 72, 4, 32, "codes", bias=True)
    x, found = RNG.normal(size=(20, 256)).astype("f"), []
    for choice in ("packed", "fast"):
        program = programs(model, choice)
        found += run_program(program, {"x": x})
        assert ("unpack_interleaved.wgsl" in shaders(program.plans[-1])) == (choice == "packed")
        assert program.plans[-1].dense_nbytes == (0 if choice == "packed" else 4 * 256 * 72)
    close(found[0], x.astype("d") @ dense + bias)
    np.testing.assert_array_equal(*found)


def test_vectors_read_packed_weights_whatever_the_choice(programs: Any) -> None:
    model = weighted("Gemm", "int8", (1, 512), (300, 512), (300,), True, None, {"axis": 0}, transB=1)
    program = programs(model, "fast")
    run_program(program, {"x": RNG.normal(size=(1, 512)).astype("f")})
    assert program.plans[-1].dense == ()
    assert program.weight_nbytes < 1.2 * 300 * 512


def test_nodes_that_decode_one_weight_share_what_it_becomes(programs: Any) -> None:
    model = stack(3)
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            node.input[0] = "codes0"
    program = programs(model, "fast")
    (got,) = run_program(program, feeds := {"x": RNG.normal(size=(1, 128, 9, 9)).astype("f") / 100})
    assert program.plans[-1].dense_nbytes == DENSE_NBYTES
    (wanted,) = run_program(programs(model, "packed"), feeds)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * float(np.abs(wanted).max()))


def test_what_only_the_prologue_reads_does_not_stay(programs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Winograd's filters are made of the decoded ones, which are freed then."""
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, figures=replace(gpu.limits.figures, winograd_factor=1e-9)))
    model, feeds = model_of(CONV), {"x": RNG.normal(size=CONV[1]).astype("f")}
    program = programs(model, "fast")
    (got,) = run_program(program, feeds)
    close(got, exact(model, feeds))
    plan = program.plans[-1]
    assert plan.prologue[0].kernel.shader == "dequantize.wgsl"
    assert len(plan.prologue) == 2
    assert plan.dense_nbytes == 4 * DENSE_NBYTES  # 36 elements for each 9
    assert program.context.prologue.nbytes < 1.1 * plan.dense_nbytes
    assert program.context.prologue.missing(plan) == []


@pytest.mark.parametrize("function", ["Codebook5", "Sparse"])
def test_functions_are_decoded_once(function: str, programs: Any) -> None:
    model, _ = function_model("Conv", function, (1, 64, 9, 7), (64, 32, 3, 3), (0, 1, 2, 3), group=2)
    feeds, found = {"x": RNG.normal(size=(1, 64, 9, 7)).astype("f")}, []
    for choice in ("packed", "fast"):
        program = programs(model, choice)
        found += run_program(program, feeds)
        assert bool(program.plans[-1].dense) == (choice == "fast")
    close(found[1], found[0])


@pytest.mark.parametrize("choice", ["packed", "fast"])
@pytest.mark.parametrize(
    ("op", "x", "w", "perm", "density"),
    [
        ("Conv", (1, 64, 14, 14), (64, 64, 3, 3), (0, 1, 2, 3), 0.2),
        ("Conv", (1, 64, 14, 14), (64, 64, 3, 3), (0, 1, 2, 3), 0.1),
        ("MatMul", (40, 256), (144, 256), (1, 0), 0.1),
    ],
)
def test_sparse_weights_are_read_sparse_from_entries_or_from_dense_ones(
    op: str, x: Any, w: Any, perm: Any, density: float, choice: str, programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they cost nothing. From dense ones, which are gone then, they are as the layouts around them are
    weighed."""
    model, _ = function_model(op, "Sparse", x, w, perm, density=density)
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, figures=replace(DEFAULT_FIGURES, sparse_factor=0.0)))
    program = programs(model, choice)
    feeds = {"x": RNG.normal(size=x).astype("f")}
    got = run_program(program, feeds)
    close(got[0], ReferenceEvaluator(model).run(None, feeds)[0])
    plan = program.plans[-1]
    assert "sparse_product.wgsl" in shaders(plan)
    packing = [step.kernel.shader for step in plan.prologue if isinstance(step, Dispatch)]
    few = op == "Conv" and density == 0.1
    assert packing == (
        ["pack_entries.wgsl"] if choice == "packed" or few else ["unpack_sparse.wgsl", "pack_pruned.wgsl"]
    )
    assert program.context.prologue.nbytes < 5 * density * 4 * np.prod(w), (
        "6 bytes for each, as many as the fullest output has"
    )


def test_sparse_filters_stay_dense_where_that_is_estimated_to_be_faster() -> None:
    model, _ = function_model("Conv", "Sparse", (1, 64, 14, 14), (64, 64, 3, 3), (0, 1, 2, 3), density=0.3)
    plan = make_plan(
        from_onnx(model), {"x": TensorType(FLOAT32, (1, 64, 14, 14))}, replace(Limits(), keeps_dense=True), rewrite
    )
    assert "sparse_product.wgsl" not in shaders(plan)


@pytest.mark.parametrize("limit_mb", [1, 2])
def test_a_limit_that_leaves_no_room_keeps_nothing_dense(limit_mb: int, programs: Any) -> None:
    model, feeds = model_of(CONV), {"x": RNG.normal(size=CONV[1]).astype("f")}
    program = programs(model, "auto", memory_limit_mb=limit_mb)
    close(run_program(program, feeds)[0], exact(model, feeds))
    assert program.plans[-1].dense == ()
    assert programs(model, "auto", memory_limit_mb=16).plans[-1].dense_nbytes == DENSE_NBYTES


def test_all_programs_together_keep_no_more_than_their_share(programs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Gpu.open(Config()).dense_nbytes(apart_from=None)
    monkeypatch.setattr(context, "MAX_DENSE_NBYTES", before + int(1.5 * DENSE_NBYTES))
    model = model_of(CONV)
    dense = [programs(model, "auto").plans[-1].dense_nbytes for _ in range(3)]
    assert dense == [DENSE_NBYTES, 0, 0]
    assert programs(model, "fast").plans[-1].dense_nbytes == DENSE_NBYTES


def test_other_sessions_get_the_memory_back(programs: Any) -> None:
    """What one program keeps dense goes where another has no memory left; results stay the same."""
    gpu, model, feeds = Gpu.open(Config()), model_of(CONV), {"x": RNG.normal(size=CONV[1]).astype("f")}
    program = programs(model, "auto")
    (before,) = run_program(program, feeds)
    gpu.trim()
    other = Allowance(0, 0.0)
    limit, gpu.memory_limit_nbytes = gpu.memory_limit_nbytes, gpu.stats.allocated_nbytes + DENSE_NBYTES // 2
    try:
        with other:
            buffer = gpu.allocate(DENSE_NBYTES)
        assert program.context.prologue.dense_nbytes == 0
        with pytest.raises(OutOfDeviceMemoryError):
            gpu.allocate(8 * DENSE_NBYTES)
        gpu.free(buffer)
    finally:
        gpu.memory_limit_nbytes = limit
    (after,) = run_program(program, feeds)
    np.testing.assert_array_equal(before, after)
    assert program.plans[-1].dense == ()


def stack(count: int) -> onnx.ModelProto:
    """Convolutions behind each other, each with a weight of its own."""
    model, name = model_of(CONV), "x"
    decoder, nodes = model.graph.node[0], []
    for k in range(count):
        weight, codes = f"d{k}", f"codes{k}"
        own = model.graph.initializer.add()
        own.CopyFrom(next(t for t in model.graph.initializer if t.name == decoder.input[0]))
        own.name = codes
        nodes += [
            onnx.helper.make_node("DequantizeLinear", [codes, *decoder.input[1:]], [weight], axis=0),
            onnx.helper.make_node("Conv", [name, weight], [f"y{k}" if k < count - 1 else "y"], pads=[1, 1, 1, 1]),
        ]
        name = f"y{k}"
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    return model


@pytest.mark.parametrize("choice", ["auto", "fast"])
def test_a_session_at_its_limit_does_without(choice: str, programs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a larger run needs more than the one before; `fast` says that there is none left."""
    gpu = Gpu.open(Config())
    monkeypatch.setattr(context, "DENSE_SHARE", 1)
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, figures=replace(gpu.limits.figures, byte_ns=1e3)))
    model = stack(8)
    feeds = [{"x": RNG.normal(size=(n, 128, 9, 9)).astype("f") / 100} for n in (1, 24)]
    with Allowance(64 << 20, 0.0) as allowance:
        program = programs(model, choice)
        (before,) = run_program(program, feeds[0])
        assert program.plans[-1].dense_nbytes == 8 * DENSE_NBYTES
        allowance.memory_nbytes = allowance.held_nbytes + (2 << 20)
        if choice == "fast":
            with pytest.raises(OutOfDeviceMemoryError):
                run_program(program, feeds[1])
            return
        (got,) = run_program(program, feeds[1])
        assert program.plans[-1].dense == ()
        assert program.context.prologue.dense_nbytes == 0
        (after,) = run_program(program, feeds[0])
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5 * float(np.abs(before).max()))
    (wanted,) = run_program(programs(model, "packed"), feeds[1])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_explain_shows_the_bytes_of_both(isolation: str) -> None:
    model = model_of(CONV)
    feeds = {"x": RNG.normal(size=CONV[1]).astype("f")}
    for choice in ("packed", "auto"):
        opened = open_session(model.SerializeToString(), weights=choice, isolation=isolation, verify=1)
        close(opened.session.run(None, feeds)[0], exact(model, feeds))
        found = explanation(opened.state)
        (memory,) = found.memory
        assert memory.dense_nbytes == (0 if choice == "packed" else DENSE_NBYTES)
        text = "of the weights 576.0 KiB are dense copies; without them (weights=packed) the others are"
        assert (text in str(found)) == (choice == "auto")
        assert ("written out in each run, because" in str(found)) == (choice == "packed")
        assert ("written out once, and dense on the device, because" in str(found)) == (choice == "auto")
        assert not [e for e in opened.state.events if e.kind in ("fallback", "error")], opened.state.events


def test_a_target_that_keeps_none_chooses_as_before() -> None:
    assert not Target().limits.keeps_dense
    assert Limits().of(Config()).keeps_dense
    assert Limits().of(Config(weights="fast")).keeps_dense
    assert Limits().of(Config(weights="packed")) == Limits()
