"""Einsum against ONNX Runtime's CPU kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from tests.direct import run_direct

CASES = [
    ("bhid,bhjd->bhij", (2, 3, 5, 7), (2, 3, 11, 7)), ("bhij,bhjd->bihd", (2, 3, 5, 7), (2, 3, 7, 11)),
    ("ij,jk->ik", (67, 129), (129, 71)), ("ij,jk->ki", (17, 5), (5, 13)), ("ij,kj", (3, 5), (7, 5)), ("i,j->ij", (13,), (17,)),
    ("i,i->", (131,), (131,)), ("ij,ij->i", (5, 7), (5, 7)), ("abc,cd->abd", (2, 3, 5), (5, 7)), ("abc,bcd->ad", (2, 3, 5), (3, 5, 7)),
    ("abc,cbd->ad", (2, 3, 5), (5, 3, 7)), ("ij,k->i", (3, 5), (7,)), ("...ij,...jk->...ik", (3, 2, 5, 7), (1, 2, 7, 3)),
    ("...ij,jk", (3, 2, 5, 7), (7, 3)), ("ii,i->i", (5, 5), (5,)), (" a b , b C -> a C ", (3, 5), (5, 7)), (",ij->ij", (), (3, 5)),
    ("ij->ji", (37, 41), None), ("bij->jbi", (2, 68, 36), None), ("bijj->jbi", (3, 5, 7, 7), None), ("ij->", (37, 41), None), ("ii->i", (7, 7), None), ("ii", (7, 7), None), ("...ij->...ji", (2, 3, 5), None),
    ("ij->ij", (0, 3), None), ("ij,jk->ik", (3, 0), (0, 5)), ("ij,jk->ik", (0, 3), (3, 5)), ("i,j->ij", (2100,), (2003,)),
]


def model_of(equation: str, feeds: dict[str, Any]) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()]
    graph = helper.make_graph(
        [helper.make_node("Einsum", list(feeds), ["y"], equation=equation)], "g", inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
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


@pytest.mark.parametrize(("code", "equation", "shapes"), [
    (Code.ATTRIBUTE, "ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    (Code.ATTRIBUTE, "ij->iij", [(2, 3)]),
    (Code.ATTRIBUTE, "ij->ik", [(2, 3)]),
    (Code.RANK, "ijk->ij", [(2, 3)]),
    (Code.RANK, "ij,jk->ik", [(2, 3), (4, 5)]),
])
def test_declines(code: Code, equation: str, shapes: list[Any]) -> None:
    feeds = feeds_of(shapes)
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(model_of(equation, feeds), feeds)
    assert caught.value.code is code
