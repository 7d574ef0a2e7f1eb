"""Walking a graph: shape arithmetic is the host's, the rest is claimed or declined; and what the host computes is
right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ort_gpu_ep.errors import Code
from ort_gpu_ep.ir.graph import Graph
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels import host
from ort_gpu_ep.kernels.claim import FLAGS
from ort_gpu_ep.kernels.lowering import Answer, HostValues, bind, facts_of, walk
from ort_gpu_ep.kernels.registry import OPS, BoundNode, Decline, Limits, Lowering
from tests.unit.graphs import graph_of, plan_of, static_types, tensor

CHAIN = """(float[N, C, H, W] x) => (y) {
    shape = Shape(x)
    zero = Constant<value_ints: ints = [0]>()
    rest = Constant<value_ints: ints = [-1]>()
    first = Gather(shape, zero)
    target = Concat<axis=0>(first, rest)
    r = Relu(x)
    y = Reshape(r, target)
}"""


def answers(graph: Graph, **inputs: TensorType) -> dict[str, Answer]:
    return {n.outputs[0]: a for n, a, _ in walk(graph, facts_of(graph, inputs or static_types(graph)), Limits())}


def test_shape_arithmetic_is_the_hosts() -> None:
    found = answers(graph_of(CHAIN), x=tensor(2, 3, 5, 7))
    assert [n for n, a in found.items() if isinstance(a, HostValues)] == ["shape", "first", "target"]
    target, reshape = found["target"], found["y"]
    assert isinstance(target, HostValues)
    assert target.values[0] is not None
    assert target.values[0][0].tolist() == [2, -1]
    assert isinstance(reshape, Lowering)
    assert reshape.kernels == ()
    assert reshape.outputs == (tensor(2, 105),)


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (4, 1, 2, 2), (1, 11, 13, 1)])
def test_shape_arithmetic_costs_no_dispatch(shape: tuple[int, ...]) -> None:
    """The same graph, planned anew for each shape."""
    plan = plan_of(graph_of(CHAIN), x=tensor(*shape))
    assert plan.dispatches == 1
    assert plan.outputs == (tensor(shape[0], int(np.prod(shape[1:]))),)
    assert plan.constants == ()


def test_unknown_inputs_decline_what_reads_them_and_only_that() -> None:
    graph = graph_of("(float[3] x, float[3] z) => (y, w) { a = Relu(x) y = Relu(z) w = Add(a, a) }")
    found = answers(graph, x=tensor(3))
    declined = found["y"]
    assert isinstance(declined, Decline)
    assert declined.code is Code.DYNAMIC_SHAPE
    assert "'z'" in declined.reason
    assert isinstance(found["w"], Lowering)


def test_types_of_declined_nodes_come_from_whoever_knows_them() -> None:
    graph = graph_of("(float[2, 2] x) => (y) { a = com.microsoft.Inverse(x) y = Relu(a) }")
    inputs = static_types(graph)
    alone = [a for _, a, _ in walk(graph, facts_of(graph, inputs), Limits())]
    assert [type(a) for a in alone] == [Decline, Decline]
    helped = [a for _, a, _ in walk(graph, facts_of(graph, inputs), Limits(), {"a": tensor(2, 2)}.get)]
    assert [type(a) for a in helped] == [Decline, Lowering]


def test_a_value_that_only_the_run_knows_is_declined() -> None:
    declined = answers(graph_of("(float[4] x, int64[2] s) => (y) { y = Reshape(x, s) }"))["y"]
    assert isinstance(declined, Decline)
    assert declined.code is Code.NOT_CONSTANT


def test_a_large_constant_is_a_weight(rng: np.random.Generator) -> None:
    big = rng.standard_normal(host.MAX_CONSTANT_NBYTES // 4 + 1).astype("f")
    small = big[:-1]
    graph = graph_of("(float x) => (y, z) { y = Add(b, b) z = Add(s, s) }", {"b": big, "s": small})
    found = answers(graph)
    assert isinstance(found["y"], Lowering)
    assert isinstance(found["z"], HostValues)


def test_bind_keeps_the_place_of_inputs_left_out() -> None:
    graph = graph_of("(float[2] x, float max) => (y) { y = Clip(x, , max) }")
    bound = bind(graph.nodes[0], facts_of(graph, static_types(graph)))
    assert isinstance(bound, BoundNode)
    assert [bound.has(i) for i in range(4)] == [True, False, True, False]
    assert bound.input(2).name == "max"


def bound_nodes(text: str, **inputs: TensorType) -> list[BoundNode]:
    graph = graph_of(text)
    return [b for _, _, b in walk(graph, facts_of(graph, inputs or static_types(graph)), Limits()) if b is not None]


def values(text: str, **inputs: TensorType) -> list[np.ndarray | None]:
    """What the host computes for the last node."""
    return [found and found[0] for found in host.evaluate(bound_nodes(text, **inputs)[-1])]


def test_evaluate_shape_needs_no_memory() -> None:
    (shape,) = values("(float[A, B] x) => (y) { y = Shape(x) }", x=tensor(1 << 20, 1 << 20))
    assert shape is not None
    assert shape.tolist() == [1 << 20, 1 << 20]


def test_evaluate_with_attributes_and_several_outputs() -> None:
    got = values(
        "(float x) => (a, c) { v = Constant<value_ints: ints = [5, 4, 3, 2, 1]>() s = Constant<value_ints: ints "
        "= [2, 3]>() "
        "a, c = Split<axis=0>(v, s) }"
    )
    assert [g.tolist() for g in got if g is not None] == [[5, 4], [3, 2, 1]]


def test_evaluate_keeps_the_element_type_and_scalars() -> None:
    (got,) = values(
        "(float x) => (y) { v = Constant<value_ints: ints = [5, 4]>() i = Constant<value_int: int = 1>() y = "
        "Gather(v, i) }"
    )
    assert got is not None
    assert (got.dtype, got.shape, int(got)) == (np.int64, (), 4)


def test_nodes_that_only_look_like_the_hosts() -> None:
    """Random numbers differ from run to run; a body's content is unknown; an epilogue belongs to a kernel."""
    (random, shape) = bound_nodes("(float x) => (y, s) { y = RandomNormal<shape=[2]>() s = Shape(x) }")
    assert not host.is_host_node(random)
    assert host.is_host_node(shape)


@pytest.mark.parametrize(
    "made",
    [
        "y = ConstantOfShape<value = double[1] {3.0}>(s)",
        "t = ConstantOfShape<value = double[1] {3.0}>(one) y = Expand(t, s)",
        "t = ConstantOfShape<value = double[1] {3.0}>(one) y = Tile(t, m)",
        "zero = Constant<value_float: float = 0.0>() step = Constant<value_float: float = 1.0>() "
        "y = Range(zero, end, step)",
    ],
    ids=["ConstantOfShape", "Expand", "Tile", "Range"],
)
def test_the_host_makes_nothing_that_is_too_large(made: str) -> None:
    """A size that is only tried may be a thousand times what the machine has. What is small is calculated."""
    text = (
        "(float[A, 3] x) => (y) { one = Constant<value_ints: ints = [1]>() s = Shape(x) n = Size(x) "
        f"m = Reshape(n, one) end = Cast<to: int = 1>(n) {made} }}"
    )
    size = 1 << 40
    large, small = answers(graph_of(text), x=tensor(size, 3))["y"], answers(graph_of(text), x=tensor(2, 3))["y"]
    assert isinstance(small, HostValues)
    assert not isinstance(large, HostValues)
    with pytest.raises(ValueError, match=r"\d{13} elements are more than the host calculates with"):
        values(text, x=tensor(size, 3))


def test_what_the_reference_rejects_is_a_decline_with_both_reasons() -> None:
    graph = graph_of(
        "(float x) => (y) { v = Constant<value_ints: ints = [1, 2, 3]>() "
        "s = Constant<value_ints: ints = [2, 2]>() y = MatMul(v, s) }"
    )
    declined = answers(graph)["y"]
    assert isinstance(declined, Decline)
    assert "nor can the host compute it" in declined.reason


NO_FLAGS = frozenset(
    (
        "axis",
        "batch_axis",
        "batch_dims",
        "block_size",
        "blocksize",
        "broadcast",
        "chunk_size",
        "detect_negative",
        "detect_positive",
        "dtype",
        "group",
        "hidden_size",
        "is_test",
        "k",
        "kv_num_heads",
        "left_window_size",
        "num_groups",
        "num_heads",
        "num_outputs",
        "offset_group",
        "output_datatype",
        "output_dtype",
        "output_height",
        "output_sequence",
        "output_width",
        "p",
        "periodic",
        "precision",
        "q_num_heads",
        "qk_matmul_output_mode",
        "right_window_size",
        "rotary_embedding_dim",
        "sampling_ratio",
        "saturate",
        "seed",
        "size",
        "softmax_precision",
        "spatial",
        "stash_type",
        "time_axis",
        "to",
        "training_mode",
    )
)
"""Numbers; what rows themselves read as 0 or other than 0; what only old versions of an op have."""


def test_each_whole_number_of_an_op_is_a_flag_or_none() -> None:
    """An attribute that a newer onnx brings, or a new row, is put on one side."""
    whole = onnx.defs.OpSchema.AttrType.INT
    named = {
        a.name
        for s in onnx.defs.get_all_schemas_with_history()
        if ("", s.name) in OPS and not s.domain
        for a in s.attributes.values()
        if a.type == whole
    }
    assert named - NO_FLAGS == FLAGS
