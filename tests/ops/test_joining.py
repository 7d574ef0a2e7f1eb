"""Concat and Split: how many dispatches they take, and every element type in its place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import rewrite
from tests.direct import run_direct
from tests.ops.single_node import Array, Host, assert_agree, assert_same, data, model_of, on_cpu
from tests.unit.graphs import plan_of


def dispatches(model: onnx.ModelProto, limits: Limits | None = None) -> list[str]:
    """The shaders of a plan, with how many elements each moves at once."""
    steps = plan_of(from_onnx(model), limits=limits).steps
    return [f"{s.kernel.shader.removesuffix('.wgsl')}{'4' if s.kernel.vectors else ''}" for s in steps]  # type: ignore[union-attr]


def check(model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    for every_size_open in (False, True):
        assert_same(run_direct(model, feeds, rewrite, every_size_open), on_cpu(model, feeds))


@pytest.mark.parametrize("dtype", ["float32", "int64", "int32", "float16", "uint8", "bool"])
@pytest.mark.parametrize(("axis", "sizes"), [(0, (3, 1, 4)), (1, (5, 2)), (2, (1, 8, 3, 2)), (1, tuple(range(1, 20)))])
def test_concat(dtype: str, axis: int, sizes: tuple[int, ...]) -> None:
    shapes = [tuple(n if a == axis else d for a, d in enumerate((3, 5, 7))) for n in sizes]
    check(*model_of("Concat", tuple(data(*s, dtype=dtype, seed=k) for k, s in enumerate(shapes)), axis=axis))


@pytest.mark.parametrize("dtype", ["float32", "int64", "float16", "uint8"])
@pytest.mark.parametrize(("axis", "sizes"), [(0, (3, 1)), (1, (5, 2, 4)), (2, (8, 4, 12)), (1, tuple(range(1, 20)))])
def test_split(dtype: str, axis: int, sizes: tuple[int, ...]) -> None:
    x = data(*(sum(sizes) if a == axis else d for a, d in enumerate((3, 5, 6))), dtype=dtype)
    check(*model_of("Split", (x, Host(sizes)), outputs=len(sizes), axis=axis))


def test_one_dispatch_for_what_can_be_bound_at_once() -> None:
    seven, _ = model_of("Concat", tuple(data(2, n, 3) for n in range(1, 8)), axis=1)
    eight, _ = model_of("Concat", tuple(data(2, n, 3) for n in range(1, 9)), axis=1)
    assert dispatches(seven) == ["concat"]
    assert dispatches(eight) == ["concat", "concat4"]
    assert dispatches(eight, Limits(max_buffers_per_stage=16)) == ["concat"]
    assert dispatches(model_of("Split", (data(2, 28, 3), Host([*range(1, 8)])), outputs=7, axis=1)[0]) == ["split"]


def test_four_at_a_time_where_all_rows_are_fours() -> None:
    assert dispatches(model_of("Concat", (data(2, 5, 8), data(2, 5, 4)), axis=2)[0]) == ["concat4"]
    assert dispatches(model_of("Concat", (data(2, 5, 7), data(2, 5, 5)), axis=2)[0]) == ["concat"]
    assert dispatches(model_of("Split", (data(2, 3, 4), Host([1, 2])), outputs=2, axis=1)[0]) == ["split4"]


@pytest.mark.parametrize(
    ("dtype", "sizes", "count"),
    [
        ("float16", (6, 2, 4), 1),
        ("float16", (6, 3, 3), 3),
        ("uint8", (8, 4), 1),
        ("uint8", (6, 6), 2),
        ("bool", (4, 4, 4), 1),
    ],
)
def test_packed_elements_are_split_by_words(dtype: str, sizes: tuple[int, ...], count: int) -> None:
    model, feeds = model_of("Split", (data(3, 5, 12, dtype=dtype), Host(sizes)), outputs=len(sizes), axis=2)
    assert len(dispatches(model)) == count
    check(model, feeds)


def test_a_part_that_takes_several_bindings_counts_as_several() -> None:
    """Three parts of two bindings each, and a result of six: no two of the parts are joined at once."""
    model, _ = model_of("Concat", tuple(data(4, 16, 16) for _ in range(3)), axis=0)
    assert dispatches(model, Limits(max_binding_nbytes=2048, max_buffers_per_stage=8)) == ["concat4"] * 3


def test_steps_are_fused_behind_a_concat() -> None:
    parts = tuple(data(2, 4, n, seed=n) for n in (3, 5, 8, 1))
    model, feeds = model_of("Concat", parts, after=(helper.make_node("Relu", ["y0"], ["y"]),), axis=2)
    assert dispatches(model) == ["concat"]
    for every_size_open in (False, True):
        assert_agree(run_direct(model, feeds, rewrite, every_size_open)[0], np.maximum(np.concatenate(parts, 2), 0))


def test_fused_operands_where_four_elements_lie_in_two_rows() -> None:
    """Rows of 7: a scale of each channel, a bias of each column and a number are read for each of the four elements."""
    parts = (data(1, 4, 7, 7), data(1, 8, 7, 7, seed=3))
    after = (
        helper.make_node("Mul", ["y0", "scale"], ["a"]),
        helper.make_node("Add", ["a", "bias"], ["b"]),
        helper.make_node("Mul", ["b", "half"], ["y"]),
    )
    model, feeds = model_of("Concat", parts, after=after, axis=1)
    held = {"scale": data(12, 1, 1), "bias": data(7), "half": np.array(0.5, "f")}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in held.items())
    assert dispatches(model) == ["concat4"]
    assert_agree(run_direct(model, feeds, rewrite)[0], on_cpu(model, feeds)[0])


@pytest.mark.parametrize(
    ("dtype", "sizes", "shader"),
    [
        ("float16", (8, 24, 16), "concat4"),
        ("float16", (6, 2, 4), "concat"),
        ("float16", (6, 3, 3), "concat_packed"),
        ("uint8", (16, 48), "concat4"),
        ("uint8", (8, 4), "concat"),
        ("uint8", (6, 6), "concat_packed"),
        ("bool", (32, 16), "concat4"),
        ("float16", (4,) * 9, "concat"),
    ],
)
def test_packed_elements_are_joined_by_words(dtype: str, sizes: tuple[int, ...], shader: str) -> None:
    parts = tuple(data(3, 5, n, dtype=dtype, seed=k) for k, n in enumerate(sizes))
    model, feeds = model_of("Concat", parts, axis=2)
    assert set(dispatches(model)) == {shader}
    check(model, feeds)


def test_steps_behind_packed_elements_see_values() -> None:
    parts = tuple(data(3, 5, n, dtype="float16", seed=k) for k, n in enumerate((8, 24)))
    model, feeds = model_of("Concat", parts, axis=2)
    model.graph.node.append(helper.make_node("Relu", [model.graph.output[0].name], ["positive"]))
    model.graph.output[0].name = "positive"
    check(model, feeds)
