"""Transposes by tiles: every permutation, every form and element type, sizes around tiles and words, against numpy bit
by bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import TensorType, dtype_of
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.registry import Strided
from ort_gpu_ep.kernels.target import Limits
from ort_gpu_ep.ops import transposition
from ort_gpu_ep.ops.axes import strides_of
from ort_gpu_ep.ops.transposition import BLOCKS, EACH, TILES, swap_of
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct, run_program
from tests.ops.single_node import Array, Host, assert_same, data, model_of, on_cpu
from tests.ops.test_movement import slices

ODD = (3, 5, 3, 7, 5, 3)
FORMS = (*BLOCKS, *TILES)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transposition, "SMALL", 0)


def permutations(rank: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    return ((ODD[:rank], perm) for perm in itertools.permutations(range(rank)))


def places(index: Strided) -> Array:
    """Where an index function leads, over its shape."""
    axes = np.ix_(*(np.arange(n) * step for n, step in zip(index.shape, index.strides, strict=True)))
    return np.asarray(index.offset + sum(axes, np.zeros(index.shape, np.int64)))


@pytest.mark.parametrize("rank", range(2, 7))
def test_what_a_permutation_comes_down_to(rank: int) -> None:
    """Of each: two runs and what goes around them reach every element of y, and of x the one that belongs there."""
    for shape, perm in permutations(rank):
        steps = strides_of(shape)
        index = Strided(tuple(shape[k] for k in perm), tuple(steps[k] for k in perm))
        swap = swap_of(index)
        assert (swap is None) == (perm[-1] == rank - 1), perm
        if swap is None:
            continue
        pitches = swap.pitches()
        runs = ((swap.a, 1, pitches[swap.axis]), (swap.b, swap.strides[-1], 1))
        shape_of, x_steps, y_steps = (
            (*swap.others(whole), *ends)
            for whole, ends in zip((swap.shape, swap.strides, pitches), zip(*runs, strict=True), strict=True)
        )
        read, written = places(Strided(shape_of, x_steps)).ravel(), places(Strided(shape_of, y_steps)).ravel()
        y = np.full(read.size, -1)
        y[written] = read
        np.testing.assert_array_equal(y, places(index).ravel(), str(perm))


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_every_permutation(rank: int) -> None:
    """Of odd sizes: a graph of them all."""
    x = data(*(17, 5, 9, 35)[-rank:])
    perms = list(itertools.permutations(range(rank)))
    model, feeds = model_of(
        "Relu",
        (x,),
        after=tuple(helper.make_node("Transpose", ["x0"], [f"t{k}"], perm=perm) for k, perm in enumerate(perms)),
    )
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(f"t{k}", 1, None) for k in range(len(perms)))
    for form in ("tile 32 x 32", EACH):
        with forced(form):
            assert_same(run_direct(model, feeds), [np.ascontiguousarray(x.transpose(perm)) for perm in perms])


def turned(x: Array, perm: tuple[int, ...], form: str, **options: Any) -> bool:
    """Checks a Transpose in this form, where it has it: whether it has."""
    model, feeds = model_of("Transpose", (x,), perm=perm, **options)
    with forced(form) as seen:
        assert_same(run_direct(model, feeds, rewrite), on_cpu(model, feeds))
    return any(form in choice.forms for choice in seen.values())


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float16", "int16", "int32", "int64", "float64", "uint32"])
def test_every_element_type(dtype: str) -> None:
    assert turned(data(2, 68, 36, dtype=dtype), (2, 0, 1), "tile 32 x 32")
    assert turned(data(2, 36, 68, dtype=dtype), (0, 2, 1), "blocks 16 x 64") == (np.dtype(dtype).itemsize < 8)
    # of 33 x 35, a word of y would hold elements of two runs where some share one
    assert turned(data(33, 35, dtype=dtype), (1, 0), "tile 32 x 32") == (np.dtype(dtype).itemsize >= 4)
    assert turned(data(36, 35, dtype=dtype), (1, 0), "tile 32 x 32")


def test_sixteen_bytes_at_a_time() -> None:
    """Where runs of x begin at multiples of 16, and what lies around them is left out or goes elsewhere."""
    for dtype in ("uint8", "bool"):
        assert turned(data(3, 36, 80, dtype=dtype), (0, 2, 1), "wide 64 x 64")
    assert not turned(data(3, 36, 72, dtype="uint8"), (0, 2, 1), "wide 64 x 64")


AFTER = {
    "relu, add": (
        np.float32,
        (helper.make_node("Relu", ["y0"], ["r"]), helper.make_node("Add", ["r", "operand"], ["y"])),
    ),
    "of bytes": (
        np.uint8,
        (helper.make_node("Cast", ["y0"], ["c"], to=1), helper.make_node("Mul", ["c", "operand"], ["y"])),
    ),
    "of signed bytes": (
        np.int8,
        (helper.make_node("Cast", ["y0"], ["c"], to=1), helper.make_node("Mul", ["c", "operand"], ["y"])),
    ),
    "of integers": (
        np.int32,
        (helper.make_node("Cast", ["y0"], ["c"], to=1), helper.make_node("Mul", ["c", "operand"], ["y"])),
    ),
    "to bytes": (
        np.float32,
        (helper.make_node("Mul", ["y0", "operand"], ["c"]), helper.make_node("QuantizeLinear", ["c", "s", "z"], ["y"])),
    ),
    "to integers": (
        np.float32,
        (helper.make_node("Mul", ["y0", "operand"], ["c"]), helper.make_node("Cast", ["c"], ["y"], to=6)),
    ),
}


@pytest.mark.parametrize("form", ["blocks 32 x 32", "tile 32 x 32", EACH])
@pytest.mark.parametrize("name", AFTER)
def test_fused_steps(name: str, form: str) -> None:
    """Also such as begin or end in another type than the Transpose: none is left as a dispatch of its own."""
    kind, after = AFTER[name]
    model, feeds = model_of("Transpose", (data(2, 68, 36, dtype=np.dtype(kind).name),), perm=(0, 2, 1), after=after)
    feeds["operand"] = data(36, 68)
    model.graph.input.append(helper.make_tensor_value_info("operand", 1, (36, 68)))
    model.graph.initializer.extend(
        [
            helper.make_tensor("s", 1, [], [0.05]),
            helper.make_tensor("z", 3, [], np.array([3], np.int8).tobytes(), raw=True),
        ]
    )
    with forced(form):
        assert_same(run_direct(model, feeds, rewrite), on_cpu(model, feeds))
        graph = from_onnx(model)
        plan = make_plan(
            graph, {n: TensorType(dtype_of(feeds[n]), feeds[n].shape) for n in graph.inputs}, Limits(), rewrite
        )
    assert [s.kernel.shader for s in plan.steps] == ["strided.wgsl" if form == EACH else "transpose.wgsl"]


@pytest.mark.parametrize(
    ("op", "inputs", "options"),
    [
        ("DepthToSpace", (data(2, 16, 12, 20),), {"blocksize": 2}),
        ("SpaceToDepth", (data(2, 3, 12, 20),), {"blocksize": 2}),
        ("Expand", (data(1, 6, 1), Host([5, 1, 7])), {}),
        ("Tile", (data(6, 5), Host([3, 2])), {}),
        ("Slice", slices(data(9, 40), [1, 3], [9, 39], [0, 1], [2, 3]), {}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
@pytest.mark.parametrize("form", ["blocks 32 x 32", "tile 32 x 32"])
def test_other_readings(op: str, inputs: Any, options: dict[str, Any], form: str) -> None:
    model, feeds = model_of(op, inputs, **options)
    with forced(form):
        assert_same(run_direct(model, feeds), on_cpu(model, feeds))


@pytest.mark.parametrize("form", ["blocks 16 x 64", "tile 32 x 32"])
def test_sizes_of_a_run(form: str) -> None:
    """One plan for sizes that it was not made for: of a length that may be any, elements go through workgroup
    memory."""
    shape, sizes = (
        (("N", 64, 36), ((2,), (5,), (3,)))
        if form in BLOCKS
        else (("N", "L", 36), ((2, 64), (3, 37), (2, 129), (5, 5)))
    )
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=(0, 2, 1)),
        helper.make_node("Transpose", ["x"], ["u"], perm=(1, 2, 0)),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", 1, shape)],
            [helper.make_tensor_value_info(n, 1, None) for n in "yu"],
        ),
        ir_version=10,
    )
    program = Program(from_onnx(model), Config(), Gpu.open(Config()), rewrite)
    with forced(form) as seen:
        for size in sizes:
            x = data(*size, *shape[len(size) :])
            assert_same(run_program(program, {"x": x}), [np.maximum(x.transpose(0, 2, 1), 0), x.transpose(1, 2, 0)])
    assert program.planned == 1
    assert any(form in choice.forms for choice in seen.values())
    program.close()


@pytest.mark.parametrize("form", ["blocks 32 x 32", "tile 32 x 32"])
def test_more_workgroups_than_a_dimension_has(form: str) -> None:
    assert turned(data(66_000, 4, 4), (0, 2, 1), form)


@pytest.mark.parametrize("form", ["blocks 32 x 32", "tile 32 x 32"])
def test_tensors_in_parts(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more bytes than a binding may have, on both sides."""
    model, feeds = model_of("Transpose", (data(2, 68, 36),), perm=(0, 2, 1))
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, max_binding_nbytes=8192))
    with forced(form) as seen:
        program = Program(from_onnx(model), Config(), gpu, rewrite)
        assert_same(run_program(program, feeds), on_cpu(model, feeds))
    assert [form in choice.forms for choice in seen.values()] == [True]
    program.close()
