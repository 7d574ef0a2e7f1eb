"""Weights in local functions: what ONNX Runtime's CPU makes of them, and that ours claims them whole and reads them
packed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import InternalError, ModelError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES, SOFTWARE_FIGURES
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.ops.packed_vectors import HELD, HOLDING, SPARSE_TEAMS
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.plugin.explain import explanation
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from ort_gpu_ep.weights.formats import codebook_fault, pack_codes, pack_sparse, unpack_sparse
from ort_gpu_ep.weights.functions import BITS, DOMAIN, MIN_OPSET, function, functions
from tests.compressed.test_compressed_sessions import TROUBLES, device_nbytes
from tests.compressed.test_packed_products import RNG, close
from tests.daily import part
from tests.direct import PACKED, run_program
from tests.ops.single_node import on_cpu
from tests.plugin.cases import open_session


def unpack_codes(packed: Any, count: int) -> Any:
    """The first `count` codes."""
    bits = packed.shape[1]
    words = np.bitwise_or.reduce(packed.astype(np.uint64) << (np.arange(bits, dtype=np.uint64) * np.uint64(8)), axis=1)
    codes = (words[:, None] >> (np.arange(8, dtype=np.uint64) * np.uint64(bits))) & np.uint64((1 << bits) - 1)
    found: Any = codes.reshape(-1)[:count].astype(np.int64)
    return found


def compressed(
    kind: str, stored: tuple[int, ...], perm: tuple[int, ...], density: float = 0.1
) -> tuple[onnx.NodeProto, dict[str, Any], Any]:
    """The node that makes `w`, its constants, and the dense weight."""
    size = int(np.prod(stored))
    if kind == "Sparse":
        codes = RNG.integers(1, 16, stored) * (RNG.random(stored) < density)
        values = RNG.normal(size=16).astype("f")
        values[0] = 0
        entries, starts = pack_sparse(codes.reshape(stored[0], -1))
        held = {"entries": entries, "starts": starts, "values": values}
    else:
        bits = int(kind.removeprefix("Codebook"))
        codes, values = RNG.integers(0, 1 << bits, stored), RNG.normal(size=1 << bits).astype("f")
        held = {"codes": pack_codes(codes, bits), "values": values}
    node = helper.make_node(kind, list(held), ["w"], domain=DOMAIN, size=[size], shape=stored, perm=perm)
    return node, held, values[codes].transpose(perm)


def model_of(
    op: str,
    kind: str,
    x: tuple[Any, ...],
    stored: tuple[int, ...],
    perm: tuple[int, ...],
    opset: int = 17,
    density: float = 0.1,
    **attributes: Any,
) -> tuple[onnx.ModelProto, Any]:
    decoder, held, dense = compressed(kind, stored, perm, density)
    product = helper.make_node(op, ["x", "w"], ["p"], **attributes)
    graph = helper.make_graph(
        [decoder, product, helper.make_node("Relu", ["p"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, x)],
        [helper.make_tensor_value_info("y", 1, [None] * (4 if op == "Conv" else 2))],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions([kind], opset), ir_version=10), dense


def dense_model(model: onnx.ModelProto, dense: Any) -> onnx.ModelProto:
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    plain.graph.node.remove(plain.graph.node[0])
    plain.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(dense), "w"))
    del plain.functions[:]
    return plain


@pytest.mark.parametrize("bits", BITS)
def test_codes_come_back(bits: int) -> None:
    for count in (0, 1, 7, 8, 1003):
        codes = RNG.integers(0, 1 << bits, count)
        packed = pack_codes(codes, bits)
        assert packed.shape == (-(-count // 8), bits)
        np.testing.assert_array_equal(unpack_codes(packed, count), codes)


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
def test_sparse_codes_come_back(density: float) -> None:
    for shape in ((1, 1), (3, 50), (40, 301)):
        codes = RNG.integers(1, 16, shape) * (RNG.random(shape) < density)
        entries, starts = pack_sparse(codes)
        np.testing.assert_array_equal(unpack_sparse(entries, shape), codes)
        assert starts.shape == (shape[0] + 1,)
        assert starts[-1] == len(entries)
    with pytest.raises(InternalError, match="reach place"):
        unpack_sparse(np.full(9, 0x1F, np.uint8), (2, 50))


KINDS = [*(f"Codebook{bits}" for bits in BITS), "Sparse"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opset", [13, 21])
def test_stock_onnxruntime_gives_the_dense_models_result(kind: str, opset: int) -> None:
    model, dense = model_of("MatMul", kind, (3, 67), (33, 67), (1, 0), opset)
    onnx.checker.check_model(model)
    feeds = {"x": RNG.normal(size=(3, 67)).astype("f")}
    np.testing.assert_array_equal(on_cpu(model, feeds)[0], on_cpu(dense_model(model, dense), feeds)[0])


CASES = [
    ("MatMul", ("n", 515), (300, 515), (1, 0), {}),
    ("MatMul", ("n", 96), (96, 257), (0, 1), {}),
    ("Gemm", ("n", 1024), (130, 1024), (0, 1), {"transB": 1}),
    ("Gemm", ("n", 64), (33, 64), (1, 0), {"alpha": 0.5}),
]


@pytest.mark.parametrize(("op", "x", "stored", "perm", "attributes", "kind"), part(CASES, KINDS))
def test_products_read_them(kind: str, op: str, x: Any, stored: Any, perm: Any, attributes: Any) -> None:
    model, dense = model_of(op, kind, x, stored, perm, **attributes)
    opened = open_session(model.SerializeToString(), verify=1)
    for n in (1, 3, 40):
        feeds = {"x": RNG.normal(size=(n, x[1])).astype("f")}
        close(opened.session.run(None, feeds)[0], on_cpu(dense_model(model, dense), feeds)[0])
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events
    assert {(n.op, n.device) for r in opened.state.reports for n in r.nodes} == {
        (kind, "gpu"),
        (op, "gpu"),
        ("Relu", "gpu"),
    }
    assert device_nbytes(opened) < 0.6 * dense.nbytes + 4096


@pytest.mark.parametrize("kind", ["Codebook5", "Codebook8"])
def test_convolutions_read_them(kind: str) -> None:
    model, dense = model_of("Conv", kind, ("n", 16, 9, 7), (40, 16, 3, 3), (0, 1, 2, 3), pads=[1, 1, 1, 1])
    opened = open_session(model.SerializeToString(), verify=1)
    for n in (1, 2):
        feeds = {"x": RNG.normal(size=(n, 16, 9, 7)).astype("f")}
        close(opened.session.run(None, feeds)[0], on_cpu(dense_model(model, dense), feeds)[0])
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events


@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_sparse_rows_of_any_density(density: float, isolation: str) -> None:
    model, dense = model_of("Gemm", "Sparse", (2, 1030), (257, 1030), (0, 1), density=density, transB=1)
    opened = open_session(model.SerializeToString(), verify=1, isolation=isolation)
    feeds = {"x": RNG.normal(size=(2, 1030)).astype("f")}
    close(opened.session.run(None, feeds)[0], on_cpu(dense_model(model, dense), feeds)[0])
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events


def test_unknown_functions_are_named() -> None:
    with pytest.raises(ModelError, match="Codebook7"):
        function("Codebook7", 17)
    with pytest.raises(ModelError, match=f"opset {MIN_OPSET}"):
        function("Sparse", MIN_OPSET - 1)


def test_explain_tells_packed_bytes_and_what_is_written_out() -> None:
    """A product absorbs its decoder; of a convolution in groups with sparse filters the weight is written out."""
    model, dense = model_of("Gemm", "Codebook4", (1, 1024), (130, 1024), (0, 1), transB=1)
    opened = open_session(model.SerializeToString())
    (part,) = opened.state.reports[-1].partitions
    assert (part.packed_nbytes, part.dense_nbytes, part.unpacked) == (dense.size // 2 + 64, dense.nbytes, ())
    assert "weights read packed: 65.1 KiB, as float32 520.0 KiB" in str(explanation(opened.state))
    model, dense = model_of("Conv", "Sparse", (1, 16, 9, 7), (16, 8, 3, 3), (0, 1, 2, 3), group=2)
    opened = open_session(model.SerializeToString(), verify=1)
    feeds = {"x": RNG.normal(size=(1, 16, 9, 7)).astype("f")}
    close(opened.session.run(None, feeds)[0], on_cpu(dense_model(model, dense), feeds)[0])
    (part,) = opened.state.reports[-1].partitions
    assert part.unpacked == ("Sparse->w",)
    assert "written out in each run, because no kernel reads them packed, or not as fast: Sparse->w" in str(
        explanation(opened.state)
    )
    assert len(opened.state.reports) == 1  # asked twice, told once


@pytest.mark.parametrize("team", SPARSE_TEAMS)
def test_any_team_sums_a_row(team: int) -> None:
    for rows, k, density in ((1, 5, 1.0), (70, 1030, 0.1), (257, 67, 0.3)):
        model, dense = model_of("Gemm", "Sparse", (min(3, team), k), (rows, k), (0, 1), density=density, transB=1)
        feeds = {"x": RNG.normal(size=(min(3, team), k)).astype("f")}
        with forced(f"team {team}"):
            opened = open_session(model.SerializeToString())
            close(opened.session.run(None, feeds)[0], on_cpu(dense_model(model, dense), feeds)[0])


@pytest.mark.parametrize(
    ("vectors", "rows", "k", "density"), [(1, 1, 5, 1.0), (1, 70, 3030, 0.1), (3, 257, 67, 0.3), (2, 9, 600, 1.0)]
)
def test_rows_are_summed_with_x_in_workgroup_memory(vectors: int, rows: int, k: int, density: float) -> None:
    """Rows begin and end within words, are shorter than a subgroup's entries, or take several rounds of them."""
    model, dense = model_of("Gemm", "Sparse", (vectors, k), (rows, k), (0, 1), density=density, transB=1)
    feeds = {"x": RNG.normal(size=(vectors, k)).astype("f")}
    with forced(HELD):
        program = Program(from_onnx(model), PACKED, Gpu.open(Config()), rewrite)
        try:
            (got,) = run_program(program, feeds)
            close(got, on_cpu(dense_model(model, dense), feeds)[0])
            assert HOLDING in [step.kernel.shader for step in program.plans[0].steps if isinstance(step, Dispatch)]
        finally:
            program.close()


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_more_invocations_than_copies_of_a_codebook(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: llvmpipe's own workgroups have fewer."""
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, figures=DEFAULT_FIGURES))
    model, dense = model_of("MatMul", f"Codebook{bits}", (1, 2048), (40, 2048), (1, 0))
    feeds = {"x": RNG.normal(size=(1, 2048)).astype("f")}
    program = Program(from_onnx(model), PACKED, gpu, rewrite)
    try:
        close(run_program(program, feeds)[0], on_cpu(dense_model(model, dense), feeds)[0])
        (kernel,) = [
            s.kernel
            for s in program.plans[0].steps
            if isinstance(s, Dispatch) and s.kernel.shader == "packed_matvec.wgsl"
        ]
        assert kernel.workgroup_size > 1 << dict(kernel.consts)["COPY_BITS"]
    finally:
        program.close()


def sparse_form(model: onnx.ModelProto, limits: Limits) -> str:
    """Of a product of a vector of 2048: the form that was chosen."""
    types = {"x": TensorType(FLOAT32, (1, 2048))}
    plan = make_plan(rewrite(from_onnx(model), types, limits), types, limits)
    (choice,) = [
        s.kernel.choice
        for s in plan.steps
        if isinstance(s, Dispatch) and s.kernel.shader in ("sparse_matvec.wgsl", HOLDING)
    ]
    return choice.form if choice else ""


def test_a_small_adapter_gives_each_row_to_one_invocation() -> None:
    """Its units hold few rows at a time, and barriers only cost there; a large one is filled by teams."""
    model, _ = model_of("Gemm", "Sparse", (1, 2048), (2048, 2048), (0, 1), transB=1)
    forms = {
        units: sparse_form(model, Limits(figures=replace(SOFTWARE_FIGURES, units=units, sparse_halving_clocks=halving)))
        for units, halving in ((1, 20000.0), (132, 60.0))
    }
    assert forms == {1: "team 1", 132: "team 32"}


def test_many_entries_are_worth_x_in_workgroup_memory() -> None:
    """Where subgroups add up without barriers, and the memory holds it."""
    model, _ = model_of("Gemm", "Sparse", (1, 2048), (2048, 2048), (0, 1), density=0.9, transB=1)
    large = Limits(features=frozenset({"subgroup"}), max_invocations=1024, figures=DEFAULT_FIGURES)
    assert sparse_form(model, large) == HELD
    assert sparse_form(model, replace(large, features=frozenset())) == "team 32"
    assert sparse_form(model, replace(large, max_workgroup_nbytes=8192)) == "team 32"
    assert sparse_form(model, replace(large, disabled=((HOLDING, "a fault"),))) == "team 32"
    assert sparse_form(model, replace(large, figures=SOFTWARE_FIGURES)) == "team 1"


@pytest.mark.parametrize(("vectors", "form"), [(1, "team 32"), (1, HELD), (9, "team 32")])
@pytest.mark.parametrize("starts", [[0, 2**31 - 1, 0, -5], [900, 3, -1, 10**6]])
def test_a_kernel_given_damaged_rows_reads_nothing_outside(vectors: int, form: str, starts: list[int]) -> None:
    """Rows that begin and end anywhere: sums of something, in bounded time; entries that lead past a row count for
    nothing."""
    model, _ = model_of("Gemm", "Sparse", (vectors, 515), (3, 515), (0, 1), transB=1)
    replaced(model, "starts", np.array(starts, np.int32))
    with forced(form):
        program = Program(from_onnx(model), PACKED, Gpu.open(Config()), rewrite)
        try:
            (got,) = run_program(program, {"x": RNG.normal(size=(vectors, 515)).astype("f")})
        finally:
            program.close()
    assert np.isfinite(got).all()


def replaced(model: onnx.ModelProto, name: str, array: Any) -> None:
    held = {i.name: i for i in model.graph.initializer}
    held[name].CopyFrom(numpy_helper.from_array(array, name))


def constant(model: onnx.ModelProto, name: str) -> Any:
    return numpy_helper.to_array(next(i for i in model.graph.initializer if i.name == name)).copy()


def damaged_sparse(model: onnx.ModelProto, kind: str) -> None:
    entries, starts, values = (constant(model, name) for name in ("entries", "starts", "values"))
    if kind == "starts are shifted":
        starts[1:-1] += 1
    elif kind == "starts are 0":
        starts[:] = 0
    elif kind == "starts are random":
        starts = RNG.integers(0, entries.size, starts.shape, dtype=np.int32)
    elif kind == "entries past the end":
        entries = np.concatenate([entries, np.full(99, 0x1F, np.uint8)])
    elif kind == "fewer entries":
        entries, starts = entries[:-2], np.minimum(starts, entries.size - 2)
    elif kind == "other distances":
        entries[1:40:3] ^= 7
    elif kind == "a first value":
        values[0] = 2.5
    elif kind == "size":
        model.graph.node[0].attribute[0].ints[0] += 5
    for name, array in (("entries", entries), ("starts", starts), ("values", values)):
        replaced(model, name, array)


def answer(run: Any) -> Any:
    """What a session gives, None where it raises."""
    try:
        return run()
    except Exception as error:
        if "onnxruntime" not in type(error).__module__:
            raise
        return None


def assert_left_to_onnxruntime(model: onnx.ModelProto, decoder: str, vectors: int, word: str) -> None:
    feeds = {"x": RNG.normal(size=(vectors, 515)).astype("f")}
    wanted = answer(lambda: on_cpu(model, feeds)[0])
    opened = answer(lambda: open_session(model.SerializeToString()))
    got = opened and answer(lambda: opened.session.run(None, feeds)[0])
    assert (got is None) == (wanted is None)
    if wanted is not None:
        close(got, wanted)
    if opened is not None:
        (said,) = {e.message for e in opened.state.events if "its weight is damaged" in e.message}
        assert said.startswith(f"{decoder}->w")
        assert word in said


@pytest.mark.parametrize("vectors", [1, 3, 64])
@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("starts are shifted", "span"),
        ("starts are 0", "starts of rows"),
        ("starts are random", "starts of rows"),
        ("entries past the end", "starts of rows"),
        ("fewer entries", "span"),
        ("other distances", "span"),
        ("a first value", "must be 0"),
        ("size", "size"),
    ],
)
def test_a_damaged_sparse_weight_is_left_to_onnxruntime(kind: str, word: str, vectors: int) -> None:
    model, _ = model_of("Gemm", "Sparse", (vectors, 515), (7, 515), (0, 1), transB=1)
    damaged_sparse(model, kind)
    assert_left_to_onnxruntime(model, "Sparse", vectors, word)


@pytest.mark.parametrize("vectors", [1, 3, 64])
@pytest.mark.parametrize(("kind", "word"), [("fewer values", "in a codebook of 9 values"), ("size", "size")])
@pytest.mark.parametrize("bits", [4, 5, 8])
def test_a_damaged_codebook_is_left_to_onnxruntime(bits: int, kind: str, word: str, vectors: int) -> None:
    model, _ = model_of("Gemm", f"Codebook{bits}", (vectors, 515), (7, 515), (0, 1), transB=1)
    if kind == "size":
        model.graph.node[0].attribute[0].ints[0] -= 1
    else:
        replaced(model, "values", constant(model, "values")[:9])
    assert_left_to_onnxruntime(model, f"Codebook{bits}", vectors, word)


def test_codes_behind_the_last_element_choose_nothing() -> None:
    """A codebook of fewer values than codes could name, and codes that name none where there is no element."""
    codes = RNG.integers(0, 9, 3 * 15)
    packed = pack_codes(np.concatenate([codes, np.full(3, 15)]), 4)
    values = RNG.normal(size=9).astype("f")
    assert not codebook_fault(packed, values, (3, 15), (45,))
    assert codebook_fault(packed, values, (3, 16), (48,))
    assert codebook_fault(packed, values, (0, 15), (0,)) != codebook_fault(packed[:0], values, (0, 15), (0,))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize(("vectors", "form"), [(1, "team 1"), (3, "team 32"), (2, HELD), (64, "team 1")])
def test_what_is_not_finite_meets_all_of_a_row_or_its_entries(vectors: int, form: str, value: float) -> None:
    """In x, and among the values of the weight: an output is what the dense product gives, or the sum over the entries
    of its row."""
    for where in ("x", "values"):
        model, dense = model_of("Gemm", "Sparse", (vectors, 516), (60, 516), (0, 1), density=0.3, transB=1)
        del model.graph.node[2]
        model.graph.node[1].output[0] = "y"
        x = RNG.normal(size=(vectors, 516)).astype("f")
        if where == "x":
            x[-1, 77] = value
        else:
            values = constant(model, "values")
            dense = np.where(dense == values[3], np.float32(value), dense)
            values[3] = value
            replaced(model, "values", values)
        with np.errstate(invalid="ignore"):
            products = x[:, None].astype("d") * dense
            of_all, of_entries = products.sum(-1), np.where(dense == 0, 0, products).sum(-1)
        with forced(form):
            program = Program(from_onnx(model), PACKED, Gpu.open(Config()), rewrite)
            try:
                (got,) = run_program(program, {"x": x})
            finally:
                program.close()
        right = [np.isclose(got, wanted, 1e-4, 1e-4, equal_nan=True) for wanted in (of_all, of_entries)]
        assert (right[0] | right[1]).all()
        assert not np.isfinite(got).all()
