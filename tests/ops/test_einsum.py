"""Einsum against ONNX Runtime's CPU kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.lowering import bind, facts_of
from ort_gpu_ep.kernels.registry import BoundNode, Limits, Lowering
from ort_gpu_ep.partitioner.passes import rewrite
from tests.direct import run_direct
from tests.ops.single_node import model_of as model_with
from tests.ops.single_node import node_model, on_cpu

CASES = [
    ("bhid,bhjd->bhij", (2, 3, 5, 7), (2, 3, 11, 7)),
    ("bhij,bhjd->bihd", (2, 3, 5, 7), (2, 3, 7, 11)),
    ("ij,jk->ik", (67, 129), (129, 71)),
    ("ij,jk->ki", (17, 5), (5, 13)),
    ("ij,kj", (3, 5), (7, 5)),
    ("i,j->ij", (13,), (17,)),
    ("i,i->", (131,), (131,)),
    ("ij,ij->i", (5, 7), (5, 7)),
    ("abc,cd->abd", (2, 3, 5), (5, 7)),
    ("abc,bcd->ad", (2, 3, 5), (3, 5, 7)),
    ("abc,cbd->ad", (2, 3, 5), (5, 3, 7)),
    ("ij,k->i", (3, 5), (7,)),
    ("...ij,...jk->...ik", (3, 2, 5, 7), (1, 2, 7, 3)),
    ("...ij,jk", (3, 2, 5, 7), (7, 3)),
    ("ii,i->i", (5, 5), (5,)),
    (" a b , b C -> a C ", (3, 5), (5, 7)),
    (",ij->ij", (), (3, 5)),
    ("ij->ji", (37, 41), None),
    ("bij->jbi", (2, 68, 36), None),
    ("bijj->jbi", (3, 5, 7, 7), None),
    ("ij->", (37, 41), None),
    ("ii->i", (7, 7), None),
    ("ii", (7, 7), None),
    ("...ij->...ji", (2, 3, 5), None),
    ("ij->ij", (0, 3), None),
    ("ij,jk->ik", (3, 0), (0, 5)),
    ("ij,jk->ik", (0, 3), (3, 5)),
    ("i,j->ij", (2100,), (2003,)),
]


def model_of(equation: str, feeds: dict[str, Any]) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()]
    graph = helper.make_graph(
        [helper.make_node("Einsum", list(feeds), ["y"], equation=equation)],
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)


def feeds_of(shapes: list[Any]) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {f"x{k}": rng.normal(size=s).astype(np.float32) for k, s in enumerate(shapes) if s is not None}


@pytest.mark.parametrize(("equation", "a", "b"), CASES)
def test_against_numpy_and_ort(equation: str, a: Any, b: Any) -> None:
    feeds = feeds_of([a, b])
    model = model_of(equation, feeds)
    (got,) = run_direct(model, feeds)
    wanted = np.einsum(equation, *(x.astype(np.float64) for x in feeds.values()))
    assert got.shape == wanted.shape
    assert np.linalg.norm(got - wanted) <= 1e-6 * np.linalg.norm(wanted)
    if got.size and 0 not in feeds["x0"].shape:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(got, session.run(None, feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("code", "equation", "shapes"),
    [
        (Code.ATTRIBUTE, "ij->iij", [(2, 3)]),
        (Code.ATTRIBUTE, "ij->ik", [(2, 3)]),
        (Code.RANK, "ijk->ij", [(2, 3)]),
        (Code.RANK, "ij,jk->ik", [(2, 3), (4, 5)]),
    ],
)
def test_declines(code: Code, equation: str, shapes: list[Any]) -> None:
    feeds = feeds_of(shapes)
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(model_of(equation, feeds), feeds)
    assert caught.value.code is code


CHAINS = [
    ("ij,jk,kl->il", [(5, 7), (7, 3), (3, 11)]),
    ("i,j,k->kij", [(3,), (5,), (4,)]),
    ("bhqd,bhkd,bk->bhq", [(2, 3, 5, 8), (2, 3, 7, 8), (2, 7)]),
    ("...ij,...jk,...k", [(2, 3, 4), (2, 4, 5), (1, 5)]),
    ("ii,ij,j->", [(4, 4), (4, 6), (6,)]),
    ("ab,bc,cd,de,ea", [(3, 4), (4, 5), (5, 2), (2, 6), (6, 3)]),
    ("ij,ij,ij->ij", [(5, 1), (1, 7), (5, 7)]),
    ("aij,k,b->ab", [(2, 3, 4), (5,), (6,)]),
    ("ij,jk,kl->il", [(5, 0), (0, 3), (3, 11)]),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(("equation", "shapes"), CHAINS, ids=[c[0] for c in CHAINS])
def test_three_operands_and_more(equation: str, shapes: list[tuple[int, ...]], dtype: str) -> None:
    """Against float64; onnxruntime's CPU agrees with it."""
    inputs = [np.random.default_rng([k, 5]).normal(size=shape).astype(dtype) for k, shape in enumerate(shapes)]
    wanted = np.einsum(equation, *(a.astype("d") for a in inputs))
    tolerance = {"float32": 2e-6, "float64": 1e-13, "float16": 1e-3}[dtype]
    model, feeds = node_model("Einsum", inputs, 12, equation=equation)
    if dtype != "float16":
        np.testing.assert_allclose(on_cpu(model, feeds)[0], wanted, rtol=1e-4, atol=1e-4)
    for every_size_open in (False, True):
        (got,) = run_direct(model, feeds, every_size_open=every_size_open)
        assert (got.dtype, got.shape) == (np.dtype(dtype), wanted.shape)
        assert np.linalg.norm(got - wanted) <= tolerance * max(np.linalg.norm(wanted), 1e-30)


def test_the_smallest_product_comes_first() -> None:
    """A vector behind two large matrices is multiplied with the second one: no value of 300 x 300 is made."""
    inputs = [
        np.random.default_rng(k).normal(size=shape).astype("f") for k, shape in enumerate([(300, 4), (4, 300), (300,)])
    ]
    model, _ = node_model("Einsum", inputs, 12, equation="ij,jk,k->i")
    graph = from_onnx(model)
    bound = bind(
        graph.nodes[0],
        facts_of(graph, {n: TensorType(FLOAT32, a.shape) for n, a in zip(graph.inputs, inputs, strict=True)}),
    )
    assert isinstance(bound, BoundNode)
    built = claim(bound, Limits())
    assert isinstance(built, Lowering)
    assert [tensor.size for _, tensor in built.temps if tensor.size == 300 * 300] == []


def test_steps_go_into_the_last_of_several_products() -> None:
    inputs = [
        np.random.default_rng(k).normal(size=shape).astype("f") for k, shape in enumerate([(5, 7), (7, 3), (3, 11)])
    ]
    model, feeds = model_with(
        "Einsum", tuple(inputs), after=(helper.make_node("Neg", ["y0"], ["y"]),), equation="ij,jk,kl->il"
    )
    np.testing.assert_allclose(
        run_direct(model, feeds, rewrite)[0], -(inputs[0] @ inputs[1] @ inputs[2]), rtol=1e-4, atol=1e-4
    )
