"""What is behind a value whose rank ONNX Runtime's shape inference does not tell goes to the GPU all the same, and is
right for every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep import InferenceSession
from tests.unit.graphs import model_of

RANDOM = np.random.default_rng(3)
WEIGHT = {"w": RANDOM.standard_normal((8, 8)).astype("f")}
AFTER = "m = MatMul(z, w) r = Relu(m) y = Softmax(r)"
SQUEEZE = (
    """(float[N, K, 8] x) => (y) {
    c = MatMul(x, w)
    s = Shape(c)
    one = Constant<value_int=1>()
    d = Gather(s, one)
    q = Equal(d, one)
    z = If(q) <then_branch = squeezed () => (t) { axes = Constant<value_ints=[1]>() t = Squeeze(c, axes) },
               else_branch = same () => (f) { f = Identity(c) }>
    """
    + AFTER
    + "}"
)
INSERTED = (
    "(float[N, 8] x) => (y) { e = SequenceEmpty() s = SequenceInsert(e, x) i = Constant<value_int=0>() z = "
    "SequenceAt(s, i) " + AFTER + "}"
)
SPLIT = (
    "(float[6, 8] x) => (y) { n = Constant<value_int=2>() s = SplitToSequence(x, n) i = Constant<value_int=1>() z = "
    "SequenceAt(s, i) " + AFTER + "}"
)
JOINED = (
    "(float[N, 8] x) => (y) { s = SequenceConstruct(x, x) z = ConcatFromSequence<axis=0, new_axis=1>(s) " + AFTER + "}"
)
COLLECTED = (
    """(float[N, 8] x, int64 n) => (y) {
    e = SequenceEmpty()
    t = Constant<value = bool {1}>()
    s = Loop(n, t, e) <body = turn (int64 i, bool c, seq(float) a) => (bool k, seq(float) b) { k = Identity(c) b = SequenceInsert(a, x) }>
    j = Constant<value_int=0>()
    z = SequenceAt(s, j)
    """
    + AFTER
    + "}"
)

RESHAPED = (
    """(float[N, 8] x, float[3] v) => (y) {
    f = Unique<sorted=0>(v)
    d = Cast<to=7>(f)
    z = Reshape(x, d)
    """
    + AFTER
    + "}"
)

CASES: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "If whose branches give two ranks": (SQUEEZE, ((3, 1, 8), (3, 4, 8))),
    "SequenceInsert": (INSERTED, ((5, 8),)),
    "SplitToSequence": (SPLIT, ((6, 8),)),
    "ConcatFromSequence": (JOINED, ((5, 8),)),
    "Loop": (COLLECTED, ((5, 8),)),
    "Reshape by a computed shape": (RESHAPED, ((6, 8),)),
    "an input": ("(float x) => (y) { z = Neg(x) " + AFTER + "}", ((5, 8), (2, 3, 8), (8,))),
}


def unranked(model: Any) -> Any:
    """Without a rank for `x`, where the text gives none (it means a number)."""
    kind = model.graph.input[0].type.tensor_type
    if not kind.shape.dim:
        kind.ClearField("shape")
    return model


@pytest.mark.parametrize("case", CASES)
def test_what_follows_is_on_the_gpu(case: str) -> None:
    text, shapes = CASES[case]
    model = unranked(model_of(text, WEIGHT, opset=17)).SerializeToString()
    ours = InferenceSession(model, provider_options={"placement": "gpu", "strict": "1"})
    cpu = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    placed = {n.name.split("->")[-1]: n.device for report in ours.explain().reports for n in report.nodes}
    assert {placed[name] for name in "mry"} == {"gpu"}, ours.explain()
    for shape in shapes:
        feeds = {"x": RANDOM.standard_normal(shape).astype("f"), "n": np.array(2), "v": np.array([1, 6, 8], "f")}
        feeds = {i.name: feeds[i.name] for i in ours.get_inputs()}
        np.testing.assert_allclose(ours.run(None, feeds)[0], cpu.run(None, feeds)[0], rtol=1e-5, atol=1e-6)
    assert not ours.explain().events


def test_a_scaler_before_a_network() -> None:
    text = "(float[N, 8] x) => (y) { z = ai.onnx.ml.Scaler<offset=[0.5], scale=[2.0]>(x) " + AFTER + "}"
    model = model_of(text, WEIGHT, opset=17)
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    ours = InferenceSession(model.SerializeToString(), provider_options={"placement": "gpu"})
    cpu = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": RANDOM.standard_normal((5, 8)).astype("f")}
    np.testing.assert_allclose(ours.run(None, feeds)[0], cpu.run(None, feeds)[0], rtol=1e-5, atol=1e-6)
    assert [n.op for n in ours.explain().reports[0].nodes if n.device == "cpu"] in (["Scaler"], [])


def test_a_sequence_is_no_value_of_the_host() -> None:
    """SequenceEmpty has no inputs that could be unknown."""
    ours = InferenceSession(
        model_of(INSERTED, WEIGHT, opset=17).SerializeToString(), provider_options={"placement": "gpu"}
    )
    (node,) = (n for n in ours.explain().reports[0].nodes if n.op == "SequenceEmpty")
    assert (node.device, node.code) == ("cpu", "OP")
    assert not ours.explain().events
