"""Packed weights that other ops than products read where they are: no dense copy, not even for the time of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.partitioner import fuse, rewrite
from ort_gpu_ep.weights.functions import DOMAIN, functions
from tests.compressed.test_compressed_sessions import TROUBLES, device_nbytes
from tests.compressed.test_functions import compressed
from tests.compressed.test_packed_products import RNG, close
from tests.compressed.test_sub_byte import constant
from tests.daily import part
from tests.direct import run_direct
from tests.ops.single_node import on_cpu
from tests.plugin.cases import open_session


def decoder_of(kind: str, shape: tuple[int, ...], axis: int, block: int = 0) -> tuple[list[onnx.NodeProto], list[Any]]:
    """The node that makes `w` of a shape, and its constants."""
    if kind.startswith("Codebook"):
        perm = tuple(np.roll(range(len(shape)), 1)) if axis else tuple(range(len(shape)))
        stored = tuple(shape[perm.index(k)] for k in range(len(shape)))
        node, held, _ = compressed(kind, stored, tuple(int(p) for p in perm))
        return [node], [numpy_helper.from_array(a, n) for n, a in held.items()]
    scales = tuple(
        -(-s // block) if block and k == axis else s if block or k == axis else 0 for k, s in enumerate(shape)
    )
    scales = tuple(s for s in scales if s)
    held = [
        constant("codes", kind, shape),
        helper.make_tensor("s", 1, scales, RNG.uniform(0.01, 0.3, scales).reshape(-1)),
        constant("z", kind, scales),
    ]
    node = helper.make_node(
        "DequantizeLinear", ["codes", "s", "z"], ["w"], axis=axis, **({"block_size": block} if block else {})
    )
    return [node], held


def model_of(
    node: onnx.NodeProto,
    kind: str,
    w: tuple[int, ...],
    axis: int,
    inputs: dict[str, Any],
    held: dict[str, Any],
    block: int = 0,
) -> onnx.ModelProto:
    """A node that reads `w`. inputs: arrays, or (type, shape)."""
    nodes, constants = decoder_of(kind, w, axis, block)
    types = {n: (1 if a.dtype == np.float32 else 7, a.shape) for n, a in inputs.items()}
    graph = helper.make_graph(
        [*nodes, node],
        "g",
        [helper.make_tensor_value_info(n, *t) for n, t in types.items()],
        [helper.make_empty_tensor_value_info(o) for o in node.output if o],
        [*constants, *(numpy_helper.from_array(a, n) for n, a in held.items())],
    )
    is_function = kind.startswith("Codebook")
    opsets = [helper.make_opsetid("", 21), *([helper.make_opsetid(DOMAIN, 1)] if is_function else [])]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=10, functions=functions([kind], 21) if is_function else []
    )


def wanted(model: onnx.ModelProto, feeds: Any) -> Any:
    """ONNX Runtime's CPU, of the dense weight that the decoder's own model gives."""
    decoder = model.graph.node[0]
    held = [i for i in model.graph.initializer if i.name in decoder.input]
    alone = helper.make_graph([decoder], "d", [], [helper.make_empty_tensor_value_info("w")], held)
    (dense,) = on_cpu(
        helper.make_model(alone, opset_imports=model.opset_import, ir_version=10, functions=list(model.functions)), {}
    )
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    plain.graph.node.remove(plain.graph.node[0])
    plain.graph.initializer.append(numpy_helper.from_array(dense, "w"))
    return on_cpu(plain, feeds)


def normal(*shape: int) -> Any:
    return (RNG.normal(size=shape) / 4).astype("f")


def indices(*shape: int) -> Any:
    return RNG.integers(-7, 7, shape)


CASES = {
    "rows": ("Gather", (7, 65), 0, {"x": indices(3, 2)}, {}, ["w", "x"], {}, 0),
    "blocks": ("Gather", (7, 64), 1, {"x": indices(5)}, {}, ["w", "x"], {}, 16),
    "columns": ("Gather", (9, 7), 1, {"x": indices(4)}, {}, ["w", "x"], {"axis": 1}, 0),
    "transposed": (
        "ConvTranspose",
        (3, 5, 3, 3),
        1,
        {"x": normal(1, 3, 6, 5)},
        {"b": normal(5)},
        ["x", "w", "b"],
        {"strides": [2, 2]},
        0,
    ),
    "transposed, many": (
        "ConvTranspose",
        (16, 6, 2, 2),
        0,
        {"x": normal(2, 16, 5, 5)},
        {},
        ["x", "w"],
        {"strides": [2, 2]},
        0,
    ),
    "einsum": ("Einsum", (9, 33), 0, {"x": normal(4, 33)}, {}, ["x", "w"], {"equation": "bk,nk->bn"}, 0),
    "einsum, left": ("Einsum", (3, 9, 17), 0, {"x": normal(17, 3, 5)}, {}, ["w", "x"], {"equation": "hnk,khb->bhn"}, 0),
    "depthwise": (
        "Conv",
        (12, 1, 3, 3),
        0,
        {"x": normal(2, 12, 7, 6)},
        {"b": normal(12)},
        ["x", "w", "b"],
        {"group": 12, "pads": [1, 1, 1, 1]},
        0,
    ),
    "lstm": (
        "LSTM",
        (1, 400, 11),
        1,
        {"x": normal(4, 2, 11)},
        {"r": normal(1, 400, 100), "b": normal(1, 800)},
        ["x", "w", "r", "b"],
        {"hidden_size": 100},
        0,
    ),
    "gru": (
        "GRU",
        (2, 36, 10),
        1,
        {"x": normal(5, 3, 10)},
        {"r": normal(2, 36, 12)},
        ["x", "w", "r"],
        {"hidden_size": 12, "direction": "bidirectional"},
        0,
    ),
    "rnn": (
        "RNN",
        (1, 20, 7),
        1,
        {"x": normal(5, 1, 7)},
        {"r": normal(1, 20, 20)},
        ["x", "w", "r"],
        {"hidden_size": 20},
        0,
    ),
}


@pytest.mark.parametrize(("case", "kind"), part(list(CASES), ["int8", "uint4", "Codebook5", "Codebook8"]))
def test_they_are_read_in_place(case: str, kind: str) -> None:
    op, w, axis, feeds, held, names, attributes, block = CASES[case]
    outputs = ["", "y"] if op in ("LSTM", "GRU", "RNN") else ["y"]
    model = model_of(helper.make_node(op, names, outputs, **attributes), kind, w, axis, feeds, held, block)
    seen = []

    def watched(*arguments: Any, **named: Any) -> Any:
        seen.append(rewrite(*arguments, **named))
        return seen[-1]

    for every_size_open in (False, True):
        got = run_direct(model, feeds, watched, every_size_open)
        close(got[0], wanted(model, feeds)[0])
        assert [n.op for n in seen[-1].nodes if n.op.startswith(("Packed", "Deq", "Code"))] == [f"Packed{op}"]


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("kind", ["int8", "Codebook6"])
def test_a_table_that_embeds_and_classifies(kind: str, isolation: str) -> None:
    """Two nodes read one decoder: each in place, once their partition is known; on the device the table is packed, in
    the order of each."""
    rows, width = 640, 96
    product = helper.make_node("Gemm", ["e", "w"], ["y"], transB=1)
    model = model_of(product, kind, (rows, width), 0, {"x": RNG.integers(0, rows, (4,))}, {})
    model.graph.node.insert(1, helper.make_node("Gather", ["w", "x"], ["e"]))
    opened = open_session(model.SerializeToString(), verify=1, isolation=isolation)
    feeds = {"x": RNG.integers(0, rows, (4,))}
    close(opened.session.run(None, feeds)[0], wanted(model, feeds)[0])
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events
    bits = 8 if kind == "int8" else 6
    assert device_nbytes(opened) < 2.2 * rows * width * bits // 8
    (part,) = opened.state.reports[-1].partitions
    assert not part.unpacked
    assert part.packed_nbytes < rows * width * bits / 8 + 5 * rows + 300


def test_a_node_that_its_row_declines_stays_one() -> None:
    """Fusing a decoder makes no node claimable that is not so by itself."""
    feeds = {"x": normal(1, 3, 6, 5)}
    model = model_of(
        helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], kernel_shape=[2, 2]),
        "int8",
        (3, 5, 3, 3),
        1,
        feeds,
        {},
    )
    from ort_gpu_ep.ir.graph import from_onnx
    from ort_gpu_ep.ir.types import FLOAT32, TensorType
    from ort_gpu_ep.kernels.registry import Limits

    graph = from_onnx(model)
    assert [n.op for n in fuse(graph, {"x": TensorType(FLOAT32, (1, 3, 6, 5))}, Limits()).nodes] == [
        "DequantizeLinear",
        "ConvTranspose",
    ]
