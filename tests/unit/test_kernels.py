"""Every kernel has a record, and what follows from it: loops that are bounded, nodes that are priced by what their
kernels do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import ort_gpu_ep.ops  # noqa: F401  fills the records
from ort_gpu_ep.config import Config
from ort_gpu_ep.errors import Code, InternalError, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Graph, Node, Value
from ort_gpu_ep.ir.types import FLOAT32, TensorType, dtype_of
from ort_gpu_ep.kernels import records as kernels
from ort_gpu_ep.kernels.lowering import facts_of, walk
from ort_gpu_ep.kernels.profile import GUESSED
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.records import RECORDS, Record, loop_bound, record
from ort_gpu_ep.kernels.registry import Decline, Limits, Lowering, kernel
from ort_gpu_ep.partitioner import partition
from ort_gpu_ep.partitioner.costs import products_of
from ort_gpu_ep.shaders.composer import body
from tests.unit.graphs import graph_of
from tests.unit.shader_flow import indices_from_data

SHADERS = Path(kernels.__file__).parents[1] / "shaders"
KERNELS = {
    p.name: body(p.name)
    for p in SHADERS.glob("*.wgsl")
    if re.search(r"^fn (element|group_main|grid_main)\(", body(p.name), re.M)
}
LIMITS = Limits(features=frozenset({"shader-int64", "shader-f16"}))
N = 2048


def has_loop(text: str) -> bool:
    """Whether the text of a body has a loop statement, outside its comments."""
    return re.search(r"\b(for|while)\s*\(|\bloop\s*\{", re.sub(r"//.*", "", text)) is not None


def test_every_kernel_has_a_record() -> None:
    assert len(KERNELS) > 40
    assert set(KERNELS) - set(RECORDS) == set(), (
        "state record(...) beside the row that uses the file: docs/adding-an-op.md"
    )
    assert set(RECORDS) - set(KERNELS) == set(), "records of files that are not in ort_gpu_ep/shaders"


@pytest.mark.parametrize("shader", sorted(KERNELS))
def test_a_kernel_that_loops_states_a_bound(shader: str) -> None:
    """llvmpipe would cut the loops of one without it silently."""
    stated = shader in RECORDS and RECORDS[shader].loop_bound is not None
    assert stated == has_loop(KERNELS[shader]), (
        f"{shader}: record(..., loop_bound=...) says how often its loops go round, in all"
    )


BOUNDED = {
    "attention.wgsl": "lengths give the end of the keys that are read, which is at least 1 and at most SK",
    "attention_units.wgsl": "likewise",
    "attention_join.wgsl": "lengths give the end of the parts that are joined, at most SPLITS, and their beginning",
    "attention_split.wgsl": "of data come a token's place, clamped where it is read, and a row of the tables of "
    "angles, the least of which is taken",
    "expert_matvec.wgsl": "experts are clamped, or those of the EXPERTS whose rank is below SLOTS",
    "expert_product.wgsl": "experts are clamped; rows by expert are what group_experts.wgsl wrote: numbers of rows",
    "expert_tiles.wgsl": "likewise",
    "group_experts.wgsl": "a place is how many rows come before, of COUNT",
    "packed_matvec.wgsl": "codes are masked to as many bits as the book has entries for",
    "packed_matvecs.wgsl": "it has no book",
    "packed_product.wgsl": "codes are masked to as many bits as the book has entries for",
    "put_rows.wgsl": "rows are taken modulo LENGTH",
    "recurrent_backward_steps.wgsl": "the step is counted by the kernel itself, below T; lengths are clamped to T",
    "recurrent_steps.wgsl": "the step is counted by the kernel itself, below T; lengths are clamped to T",
    "route_experts.wgsl": "a rank is compared with SLOTS",
    "sizes.wgsl": "programs are constants that the planner wrote, and so are the places where their results go",
    "sparse_matvec_held.wgsl": "codes are masked to four bits, places and the ends of rows are clamped",
    "sparse_product.wgsl": "columns below K are read: of four the last is compared, and pack_pruned.wgsl and "
    "pack_entries.wgsl sort them",
}
"""Kernels that bound an index otherwise than by clamp or min, which the flow of names does not see."""


@pytest.mark.parametrize("shader", sorted(KERNELS))
def test_a_kernel_whose_indices_come_from_data_keeps_its_checks(shader: str) -> None:
    places = indices_from_data(KERNELS[shader])
    stated = shader in RECORDS and RECORDS[shader].data_indices
    assert stated == bool(places and shader not in BOUNDED), (
        f"{shader}: clamp what a tensor says before it is an index, or state record(..., data_indices=True); "
        f"indices: {places}"
    )


def test_indices_that_come_from_data_are_seen() -> None:
    direct = "fn element(i: u32) -> y_t { return x_at(u32(indices_at(i))); }"
    by_name = "fn element(i: u32) -> y_t { var at = first(i); at += u32(indices_at(i)) * STEP; return x_at(at); }"
    by_function = (
        "fn place(i: u32) -> u32 { return u32(indices_at(i)); } fn element(i: u32) -> y_t { return "
        "x_at(place(i) + 1u); }"
    )
    by_argument = (
        "fn get(k: u32) -> f32 { return x_at(k); } fn element(i: u32) -> y_t { return get(u32(indices_at(i))); }"
    )
    by_loop = (
        "fn element(i: u32) -> y_t { let n = u32(n_at(0u)); var s = 0.0; for (var k = 0u; k < n; k++) { s += "
        "x_at(k); } return s; }"
    )
    shared = (
        "var<workgroup> last: array<u32, 8>; fn group_main(g: u32, lane: u32) { let t = u32(places_at(g)); "
        "last[t] = g; }"
    )
    repeated = (
        "fn element(i: u32) -> y_t {\n#for k in 2\n    let at$k = u32(indices_at(i + $(k // 2)u));\n#end\n    "
        "return x_at(at0); }"
    )
    for text in (direct, by_name, by_function, by_argument, by_loop, shared, repeated):
        assert indices_from_data(text), text
    clamped = (
        "fn element(i: u32) -> y_t { let at = u32(clamp(i32(indices_at(i)), 0, i32(N) - 1)); return "
        "x_at(min(at, N - 1u)); }"
    )
    values = (
        "fn element(i: u32) -> y_t { var s = 0.0; for (var k = 0u; k < K; k++) { s += x_at(i * K + k) * w_at(k); "
        "} return s; }"
    )
    assert not indices_from_data(clamped)
    assert not indices_from_data(values)


def test_loops_are_seen() -> None:
    assert has_loop("fn f() { for (var k = 0u; k < 3u; k++) {} }")
    assert has_loop("fn f() { while (k < 3u) {} }")
    assert has_loop("fn f() { loop { break; } }")
    assert not has_loop("// for (each) element, in a loop {\nfn element(i: u32) -> y_t { return therefor(i); }")


def test_a_kernel_without_a_record_is_declined() -> None:
    with pytest.raises(UnsupportedNodeError, match=r"nowhere\.wgsl has no record .*docs/adding-an-op\.md") as caught:
        loop_bound(kernel("nowhere.wgsl", [TensorType(FLOAT32, (1,))]))
    assert caught.value.code == Code.LIMIT


def test_records_that_can_not_be() -> None:
    with pytest.raises(InternalError, match=r"gemm\.wgsl: there is one already"):
        record("gemm.wgsl", "product")
    with pytest.raises(InternalError, match="got family 'magic', expected one of product, "):
        record("new.wgsl", "magic")
    with pytest.raises(InternalError, match=r"hardmax\.wgsl has no constant 'N' for its record; it has M"):
        loop_bound(kernel("hardmax.wgsl", [TensorType(FLOAT32, (1,))], consts={"M": 1}))


# ---- prices


def node(
    op: str,
    *shapes: tuple[int, ...],
    dtype: str = "float32",
    version: int = 18,
    outputs: int = 1,
    held: tuple[int, ...] = (),
    **attributes: object,
) -> Graph:
    """A graph of one node over inputs of these shapes. held: positions of those that are constants."""
    arrays = [np.zeros(s, dtype) for s in shapes]
    values = {
        f"x{i}": Value(f"x{i}", dtype_of(a), a.shape, (lambda a=a: a) if i in held else None)
        for i, a in enumerate(arrays)
    }
    results = tuple(f"y{k}" for k in range(outputs))
    made = Node(op, tuple(values), results, attributes=attributes, version=version)  # type: ignore[arg-type]
    return Graph("g", tuple(n for n, v in values.items() if v.load is None), results, (made,), values)


def priced(graph: Graph) -> tuple[float, float]:
    """Seconds on the guessed GPU, and operations in sums of products."""
    inputs = {n: TensorType(graph.values[n].dtype, graph.values[n].shape) for n in graph.inputs}  # type: ignore[arg-type]
    _, answer, bound = next(walk(graph, facts_of(graph, inputs), LIMITS))
    assert isinstance(answer, Lowering), answer
    assert bound is not None
    return GUESSED.node_s(answer, bound), products_of(bound, answer)


def test_a_product_is_priced_alike_whichever_op_says_it() -> None:
    """On an adapter whose families are equally fast. 2048^3: 17 G operations."""
    square = (N, N)
    found = {
        "MatMul": priced(node("MatMul", square, square)),
        "Gemm": priced(node("Gemm", square, square)),
        "MatMulInteger": priced(node("MatMulInteger", square, square, dtype="uint8", version=10)),
        "Einsum": priced(node("Einsum", square, square, equation="ij,jk->ik")),
        "Einsum, no product": priced(node("Einsum", (1, N, N), (1, N, N), equation="aij,ajk->iak")),
        "Conv": priced(node("Conv", (1, N, N), (N, N, 1))),
    }
    assert {flops for _, flops in found.values()} == {2.0 * N**3}
    for name, (seconds, _) in found.items():
        assert seconds == pytest.approx(found["MatMul"][0], rel=0.5), name


@pytest.mark.parametrize(
    ("graph", "flops"),
    [
        (node("Conv", (2, 3, 9, 11), (8, 3, 3, 3)), 2 * 2 * 8 * 7 * 9 * 27),
        (node("Conv", (1, 32, 9, 9), (32, 1, 3, 3), group=32), 2 * 32 * 49 * 9),
        (node("ConvTranspose", (2, 3, 5, 7), (3, 4, 3, 3), strides=(2, 2)), 2 * 2 * 3 * 4 * 9 * 35),
        # a product, then its sums
        (node("ConvTranspose", (1, 64, 5, 7), (64, 4, 2, 2), strides=(2, 2)), 2 * 64 * 4 * 4 * 35 + 4 * 4 * 35),
        (node("MatMul", (5, 1, 33), (33, 7)), 2 * 5 * 33 * 7),
        (node("MatMul", (1, 4099), (4099, 5)), 2 * 4099 * 5),
        (node("LSTM", (16, 2, 8), (1, 64, 8), (1, 64, 16), version=14, hidden_size=16), 2 * 16 * 2 * 64 * (8 + 16)),
        (node("Softmax", (300, 77)), 0),
    ],
)
def test_operations_in_sums_of_products(graph: Graph, flops: int) -> None:
    assert priced(graph)[1] == flops


@pytest.mark.parametrize(
    ("dear", "cheap"),
    [
        (
            node("ScatterElements", (1000, 50), (1000, 50), (1000, 50), dtype="int64", reduction="add", axis=0),
            node("Neg", (1000, 50), dtype="int64"),
        ),
        (
            node("MaxPool", (1, 16, 200, 200), kernel_shape=(49, 49)),
            node("MaxPool", (1, 16, 152, 152), kernel_shape=(1, 1)),
        ),
    ],
    ids=["every update for each element", "a large window"],
)
def test_a_kernel_that_looks_at_much_is_dear(dear: Graph, cheap: Graph) -> None:
    assert priced(dear)[0] > 5 * priced(cheap)[0]


def test_a_gather_costs_what_it_takes_and_not_what_there_is() -> None:
    """Eight rows of an embedding of a million."""
    graph = Graph(
        "g",
        ("x", "i"),
        ("y",),
        (Node("Gather", ("x", "i"), ("y",), version=13),),
        {"x": Value("x", FLOAT32, (1_000_000, 64)), "i": Value("i", dtype_of(np.zeros(1, np.int64)), (8,))},
    )
    assert priced(graph)[0] == pytest.approx(GUESSED.dispatch_s, rel=0.01)


# ---- a price that fails


def test_a_pricing_failure_costs_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node stays on the CPU and the report says why; the others go by their prices."""

    def broken(call: object) -> int:
        raise ZeroDivisionError("by a test")

    graph = graph_of("""(float[8, 64, 56, 56] x, float[64, 64, 3, 3] w) => (y) {
        a = Conv<pads=[1, 1, 1, 1]>(x, w) b = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(a) y = Conv<pads=[1, 1, 1, 1]>(b, w) }""")
    auto = Config(placement="auto")
    assert {n.op: n.device for n in partition(graph, auto, Limits(), software=False).report.nodes} == {
        "Conv": "gpu",
        "MaxPool": "gpu",
    }
    monkeypatch.setitem(
        RECORDS, "pool.wgsl", Record("pool.wgsl", "pool", RECORDS["pool.wgsl"].loop_bound, flops=broken)
    )
    report = partition(graph, auto, Limits(), software=False).report
    assert {n.op: (n.device, n.code) for n in report.nodes} == {"Conv": ("gpu", ""), "MaxPool": ("cpu", "COST")}
    assert "its time can't be predicted: ZeroDivisionError: by a test" in next(
        n.reason for n in report.nodes if n.op == "MaxPool"
    )
    assert len(report.events) == 1
    assert "ZeroDivisionError: by a test" in report.events[0]
    with pytest.raises(InternalError, match="time can't be predicted: ZeroDivisionError: by a test"):
        partition(graph, Config(placement="auto", strict=True), Limits(), software=False)


def test_a_shader_that_no_record_knows_costs_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RECORDS, "hardmax.wgsl")
    graph = graph_of("(float[4096, 4096] x) => (y) { a = Exp(x) h = Hardmax(a) y = MatMul(h, a) }")
    with apart():
        report = partition(graph, Config(placement="gpu"), LIMITS, software=False).report
    assert {n.op: (n.device, n.code) for n in report.nodes} == {
        "Exp": ("gpu", ""),
        "Hardmax": ("cpu", "LIMIT"),
        "MatMul": ("gpu", ""),
    }


def test_a_decline_is_no_price() -> None:
    graph = node("MatMul", (2, 3), (4, 5))
    _, answer, _ = next(
        walk(graph, facts_of(graph, {n: TensorType(FLOAT32, graph.values[n].shape) for n in graph.inputs}), LIMITS)
    )  # type: ignore[arg-type]
    assert isinstance(answer, Decline)
