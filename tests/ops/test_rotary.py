"""RotaryEmbedding against ONNX Runtime's CPU kernels: what ONNX's own node cases lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from ort_gpu_ep.errors import Code
from tests.direct import run_direct
from tests.ops.single_node import (
    Array,
    assert_agree,
    check_decline,
    check_node,
    indices,
    model_of,
    node_model,
    normal,
    on_cpu,
)


def contrib(x: Array, positions: Array, rows: int, half: int, **attributes: Any) -> tuple[Any, dict[str, Array]]:
    """A model of com.microsoft's form and its feeds."""
    model, feeds = node_model(
        "RotaryEmbedding", [x, positions, normal(rows, half), normal(rows, half, seed=8)], 17, **attributes
    )
    model.graph.node[0].domain = "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model, feeds


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("shape", "half", "attributes"),
    [
        ((2, 3, 17, 14), 7, {}),
        ((2, 3, 17, 14), 5, {"rotary_embedding_dim": 10}),
        ((3, 31, 36), 6, {"num_heads": 3}),
        ((3, 31, 35), 2, {"num_heads": 5, "rotary_embedding_dim": 4}),
        ((1, 1, 1, 2), 1, {}),
    ],
)
@pytest.mark.parametrize("given", [True, False])
def test_layouts(shape: tuple[int, ...], half: int, attributes: dict[str, int], given: bool, interleaved: int) -> None:
    """4-D tensors with an axis of heads, 3-D ones without; parts of heads; positions given, or a row of the caches for
    each token."""
    tokens = (shape[0], shape[-2])
    rows = (67,) if given else tokens
    inputs: list[Array | None] = [normal(*shape), normal(*rows, half), normal(*rows, half, seed=8)]
    if given:
        inputs.append(indices(0, 67, *tokens))
    check_node("RotaryEmbedding", inputs, 23, interleaved=interleaved, **attributes)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 31, 42), {}),
        ((2, 3, 31, 14), {}),
        ((2, 31, 42), {"num_heads": 2, "rotary_embedding_dim": 14}),
        ((2, 31, 42), {"num_heads": 3}),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_contrib(shape: tuple[int, ...], attributes: dict[str, int], first: bool, interleaved: int) -> None:
    positions = np.array([5], np.int64) if first else indices(0, 67, shape[0], shape[-2])
    model, feeds = contrib(normal(*shape), positions, 67, 7, interleaved=interleaved, **attributes)
    for got, wanted in zip(run_direct(model, feeds), on_cpu(model, feeds), strict=True):
        assert_agree(got, wanted)


def test_positions_out_of_range_read_some_row() -> None:
    """ONNX does not define them: from the end where negative, else the nearest, as Gather has it."""
    x, cosines, sines = normal(1, 1, 5, 4), normal(7, 2), normal(7, 2, seed=8)
    wild = np.array([[-1, -7, 7, 1 << 30, -9]], np.int64)
    tame = np.array([[6, 0, 6, 6, 0]], np.int64)
    (got,) = run_direct(*node_model("RotaryEmbedding", [x, cosines, sines, wild], 23))
    check_node("RotaryEmbedding", [x, cosines, sines, tame], 23, wanted=[got])


def test_not_a_number_stays_in_its_pair() -> None:
    x = normal(1, 2, 3, 8)
    x[0, 1, 2, 3], x[0, 0, 1, 4] = np.nan, np.inf
    check_node("RotaryEmbedding", [x, normal(1, 3, 3), normal(1, 3, 3, seed=8)], 23, rotary_embedding_dim=6)


@pytest.mark.parametrize("shape", [(0, 3, 5, 4), (2, 3, 0, 4), (2, 0, 5, 4)])
def test_empty(shape: tuple[int, ...]) -> None:
    caches = [normal(shape[0], shape[2], 2) for _ in range(2)]
    check_node("RotaryEmbedding", [normal(*shape), *caches], 23, wanted=[normal(*shape)])


def test_more_than_65535_workgroups() -> None:
    check_node(
        "RotaryEmbedding",
        [normal(1, 5, 1201, 704), normal(1201, 352), normal(1201, 352, seed=8), indices(0, 1201, 1, 1201)],
        23,
    )


def test_a_fused_step() -> None:
    inputs = (normal(2, 3, 5, 4), normal(2, 5, 2), normal(2, 5, 2, seed=8))
    model, feeds = model_of("RotaryEmbedding", inputs, opset=23, after=(helper.make_node("Neg", ["y0"], ["y"]),))
    assert_agree(run_direct(model, feeds)[0], on_cpu(model, feeds)[0])


@pytest.mark.parametrize(
    ("shapes", "attributes"),
    [
        (((2, 5, 24), (2, 5, 4), (2, 5, 4)), {}),  # how many heads?
        (((2, 5, 24), (2, 5, 4), (2, 5, 4)), {"num_heads": 5}),
        (((2, 3, 5, 8), (2, 5, 3), (2, 5, 3)), {}),
        (((2, 3, 5, 8), (1, 5, 4), (1, 5, 4)), {}),
        (((2, 3, 5, 8), (2, 5, 4), (2, 5, 3)), {}),
        (((2, 3, 5, 8), (2, 5, 5), (2, 5, 5)), {"rotary_embedding_dim": 10}),
        (((2, 3, 5, 7), (2, 5, 3), (2, 5, 3)), {}),
    ],
)
def test_what_is_declined(shapes: Any, attributes: Any) -> None:
    check_decline(Code.RANK, "RotaryEmbedding", [normal(*s) for s in shapes], 23, **attributes)


def test_positions_that_fit_no_token_are_declined() -> None:
    x, cache = normal(2, 3, 5, 8), normal(7, 4)
    check_decline(Code.RANK, "RotaryEmbedding", [x, cache, cache, indices(0, 7, 5)], 23)
    check_decline(Code.ATTRIBUTE, "RotaryEmbedding", [x, cache[:0], cache[:0], indices(0, 1, 2, 5)], 23)
