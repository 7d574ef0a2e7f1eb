"""Attention whose cache grows with each run, with masks over all tokens so far: claimed by the names of its sizes,
planned once or twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_gpu_ep
from tests.session.random_graphs import quiet

N, H = 4, 16
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
Sizes = list[Any]

FORMS: dict[str, tuple[dict[str, tuple[int, Sizes]], str, dict[str, Any]]] = {
    "MultiHeadAttention": (
        {
            "q": (FLOAT, ["B", "S", N * H]),
            "k": (FLOAT, ["B", "S", N * H]),
            "v": (FLOAT, ["B", "S", N * H]),
            "c": (FLOAT, [3 * N * H]),
            "m": (INT32, ["B", "past + S"]),
            "": (FLOAT, []),
            "p": (FLOAT, ["B", N, "past", H]),
            "r": (FLOAT, ["B", N, "past", H]),
        },
        "com.microsoft",
        {"num_heads": N, "unidirectional": 1},
    ),
    "Attention": (
        {
            "x": (FLOAT, ["B", "S", N * H]),
            "w": (FLOAT, [N * H, 3 * N * H]),
            "c": (FLOAT, [3 * N * H]),
            "m": (INT32, ["B", "total_length"]),
            "p": (FLOAT, [2, "B", N, "past", H]),
        },
        "com.microsoft",
        {"num_heads": N, "unidirectional": 1},
    ),
    "Attention of ONNX": (
        {
            "q": (FLOAT, ["B", N, "S", H]),
            "k": (FLOAT, ["B", 2, "S", H]),
            "v": (FLOAT, ["B", 2, "S", H]),
            "": (FLOAT, []),
            "p": (FLOAT, ["B", 2, "past", H]),
            "r": (FLOAT, ["B", 2, "past", H]),
        },
        "",
        {"is_causal": 1},
    ),
}
HELD = ("c", "w")


def model(form: str) -> onnx.ModelProto:
    inputs, domain, attributes = FORMS[form]
    rng = np.random.default_rng(0)
    outputs = ["y", "n"] if "w" in inputs else ["y", "n", "o"]
    node = helper.make_node(form.split()[0], list(inputs), outputs, domain=domain, **attributes)
    given = [helper.make_tensor_value_info(n, *t) for n, t in inputs.items() if n and n not in HELD]
    held = [
        numpy_helper.from_array((rng.standard_normal(inputs[n][1]) / 8).astype("f"), n) for n in HELD if n in inputs
    ]
    graph = helper.make_graph([node], "g", given, [helper.make_empty_tensor_value_info(n) for n in outputs], held)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds(form: str, new: int, past: int, rng: np.random.Generator) -> dict[str, Any]:
    sizes = {"B": 2, "S": new, "past": past, "past + S": past + new, "total_length": past + new}
    found = {}
    for name, (kind, shape) in FORMS[form][0].items():
        if name and name not in HELD:
            shape = [sizes.get(d, d) for d in shape]
            found[name] = np.ones(shape, "int32") if kind == INT32 else rng.standard_normal(shape).astype("f")
    return found


@pytest.mark.parametrize("form", FORMS)
def test_steps_behind_a_growing_cache(form: str, rng: np.random.Generator) -> None:
    made = model(form).SerializeToString()
    session = ort_gpu_ep.InferenceSession(made, quiet(), provider_options={"placement": "gpu", "strict": "1"})
    cpu = onnxruntime.InferenceSession(made, quiet(), providers=["CPUExecutionProvider"])
    assert session.explain().count("gpu") == 1
    past = 0
    for new in (7, 1, 1, 1, 5, 1, 3):
        given = feeds(form, new, past, rng)
        for got, wanted in zip(session.run(None, given), cpu.run(None, given), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=5e-6, atol=5e-6)
        past += new
    (partition,) = session.state.partitions
    assert partition.program.planned <= 2
    assert session.stats()["fallbacks"] == 0
