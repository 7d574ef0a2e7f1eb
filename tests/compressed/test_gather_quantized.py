"""GatherBlockQuantized: what ONNX Runtime's CPU gives, and the table packed on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from tests.compressed.test_compressed_sessions import TROUBLES, device_nbytes
from tests.compressed.test_sub_byte import constant
from tests.direct import run_direct
from tests.ops.single_node import on_cpu
from tests.plugin.cases import open_session

RNG = np.random.default_rng(31)


def model_of(
    kind: str,
    shape: tuple[int, ...],
    scales: tuple[int, ...],
    zeros: tuple[int, ...] | None,
    indices: tuple[Any, ...],
    dtype: str = "float32",
    **attributes: Any,
) -> onnx.ModelProto:
    """shape, zeros: as they are stored."""

    def stored(name: str, dims: tuple[int, ...]) -> Any:
        return (
            numpy_helper.from_array(RNG.integers(0, 256, dims).astype("u1"), name)
            if kind == "uint8"
            else constant(name, kind, dims)
        )

    held = [stored("w", shape), numpy_helper.from_array(RNG.uniform(0.1, 1, scales).astype(dtype), "s")]
    held += [stored("z", zeros)] if zeros is not None else []
    node = helper.make_node(
        "GatherBlockQuantized",
        ["w", "i", "s", *(["z"] if zeros is not None else [])],
        ["y"],
        domain="com.microsoft",
        **attributes,
    )
    rank = len(shape) + len(indices) - 1
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("i", 7, indices)],
        [helper.make_tensor_value_info("y", {"float32": 1, "float16": 10}[dtype], [None] * rank)],
        held,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10
    )


@pytest.mark.parametrize(
    ("kind", "shape", "scales", "zeros", "attributes"),
    [
        ("uint8", (37, 16), (37, 4), None, {"bits": 2, "block_size": 16}),
        ("uint8", (37, 20), (37, 5), (37, 2), {"bits": 2, "block_size": 16}),
        ("uint8", (33, 24), (33, 2), None, {"bits": 4, "block_size": 32}),
        ("uint8", (33, 40), (33, 5), (33, 3), {"bits": 4, "block_size": 16}),
        ("uint8", (21, 300), (21, 3), None, {"bits": 8}),
        ("uint8", (21, 40), (21, 2), (21, 2), {"bits": 8, "block_size": 32, "quantize_axis": -1}),
        ("int4", (35, 40), (35, 3), (35, 3), {"block_size": 16}),
        ("uint4", (35, 41), (35, 3), None, {"block_size": 16}),
        ("int4", (35, 12), (3, 12), (3, 12), {"block_size": 16, "quantize_axis": 0, "gather_axis": 1}),
        ("uint4", (5, 7, 33), (5, 7, 3), (5, 7, 3), {"block_size": 16, "quantize_axis": 2, "gather_axis": 1}),
    ],
)
def test_as_the_cpu(kind: str, shape: tuple[int, ...], scales: tuple[int, ...], zeros: Any, attributes: Any) -> None:
    model = model_of(kind, shape, scales, zeros, (3, 4), **attributes)
    size = shape[attributes.get("gather_axis", 0)]
    feeds = {"i": RNG.integers(-size, size, (3, 4))}
    for every_size_open in (False, True):
        np.testing.assert_allclose(
            run_direct(model, feeds, every_size_open=every_size_open)[0], on_cpu(model, feeds)[0], rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("zeros", [None, (33, 2)])
def test_scales_of_float16(zeros: Any) -> None:
    model = model_of("uint8", (33, 24), (33, 3), zeros, (3, 5), dtype="float16", bits=4, block_size=16)
    feeds = {"i": RNG.integers(-33, 33, (3, 5))}
    for every_size_open in (False, True):
        (got,), (wanted,) = run_direct(model, feeds, every_size_open=every_size_open), on_cpu(model, feeds)
        assert got.dtype == np.float16
        np.testing.assert_allclose(got.astype("f"), wanted.astype("f"), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_the_table_stays_packed(isolation: str) -> None:
    model = model_of("uint8", (3001, 64), (3001, 4), (3001, 2), ("n",), bits=4, block_size=32)
    opened = open_session(model.SerializeToString(), isolation=isolation, verify=1)
    for count in (1, 7):
        feeds = {"i": RNG.integers(0, 3001, count)}
        np.testing.assert_allclose(opened.session.run(None, feeds)[0], on_cpu(model, feeds)[0], rtol=1e-6, atol=1e-6)
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events
    assert device_nbytes(opened) <= 1.15 * 3001 * (64 + 16 + 2) + 1024
    (part,) = opened.state.reports[0].partitions
    assert (part.packed_nbytes, part.dense_nbytes) == (3001 * (64 + 16 + 2), 4 * 3001 * 128)


def test_what_is_declined() -> None:
    model = model_of("uint8", (21, 300), (21, 3), None, (4,), bits=8)
    feeds = {"i": np.zeros(4, "i8"), "w": np.zeros((21, 300), "u1")}
    model.graph.initializer.pop(0)
    model.graph.input.append(helper.make_tensor_value_info("w", 2, (21, 300)))
    with pytest.raises(UnsupportedNodeError, match="no constant") as caught:
        run_direct(model, feeds)
    assert caught.value.code is Code.NOT_CONSTANT
    for scales, bits in (((21, 2), 8), ((21, 3), 3)):
        with pytest.raises(UnsupportedNodeError, match="GatherBlockQuantized"):
            run_direct(model_of("uint8", (21, 300), scales, None, (4,), bits=bits), feeds)
