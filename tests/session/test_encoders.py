"""Encoders as onnxruntime's optimiser of transformers leaves them: one partition, with the results of the model that it
was given."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnxruntime.transformers.float16 import convert_float_to_float16

import ort_gpu_ep
from tests.encoder import Encoder, feeds, optimised
from tests.session.random_graphs import quiet

SHAPES = ((2, 9), (1, 32), (3, 2))


@pytest.mark.parametrize("attention", ["", "Attention", "MultiHeadAttention"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("float16", 4e-3)])
def test_an_optimised_encoder_is_one_partition_and_right(
    attention: str, dtype: str, tolerance: float, tmp_path: Path
) -> None:
    plain = Encoder().model()
    model = plain
    if attention or dtype == "float16":
        model = optimised(plain, str(tmp_path / "encoder.onnx"), dtype == "float16", attention == "MultiHeadAttention")
        ops = Counter(n.op_type for n in model.graph.node)
        assert (ops[attention or "Attention"], ops["SkipLayerNormalization"], ops["EmbedLayerNormalization"]) == (
            2,
            4,
            1,
        )
        assert ops["BiasGelu"] == 2
    session = ort_gpu_ep.InferenceSession(
        model.SerializeToString(), quiet(), provider_options={"placement": "gpu", "strict": "1"}
    )
    report = session.explain()
    assert (report.count("cpu"), [len(r.partitions) for r in report.reports]) == (0, [1])
    cpu = onnxruntime.InferenceSession(plain.SerializeToString(), quiet(), providers=["CPUExecutionProvider"])
    for shape in SHAPES:
        given = feeds(*shape)
        (got,), (wanted,) = session.run(None, given), cpu.run(None, given)
        np.testing.assert_allclose(got.astype("d"), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())
    assert session.stats()["fallbacks"] == 0


def test_neither_the_optimiser_nor_float16_adds_a_dispatch(tmp_path: Path) -> None:
    plain = Encoder().model()
    models = {"float32": plain, "float16": convert_float_to_float16(Encoder().model())}
    for attention in ("Attention", "MultiHeadAttention"):
        for half in (False, True):
            path = str(tmp_path / "encoder.onnx")
            models[f"{attention}, float{16 if half else 32}"] = optimised(
                plain, path, half, attention == "MultiHeadAttention"
            )
    taken = dict[str, int]()
    for name, model in models.items():
        session = ort_gpu_ep.InferenceSession(
            model.SerializeToString(), quiet(), provider_options={"placement": "gpu", "strict": "1"}
        )
        session.run(None, feeds(2, 9))
        report = session.explain()
        assert ([len(r.partitions) for r in report.reports], report.count("cpu")) == ([1], 0), name
        (taken[name],) = (m.dispatches for m in report.memory)
    assert (
        max(taken["float16"], taken["Attention, float32"], taken["MultiHeadAttention, float32"]) <= taken["float32"]
    ), taken
    for attention in ("Attention", "MultiHeadAttention"):
        assert taken[f"{attention}, float16"] <= taken[f"{attention}, float32"], taken


MASKED = """<ir_version: 8, opset_import: ["": 18]> g (float16[1, S, 32] x) => (float16[1, 4, S, S] y)
 <int64 i0 = {0}, int64 i1 = {1}, int64[1] a0 = {0}, int64[1] a1 = {1}, int64[4] heads = {0, -1, 4, 8}, float zero = {0}, float low = {-60000}> {
    shape = Shape(x) n = Gather <axis = 0> (shape, i1)
    places = Range(i0, n, i1) rows = Unsqueeze(places, a1) columns = Unsqueeze(places, a0) seen = LessOrEqual(columns, rows)
    wide = Where(seen, zero, low) mask = Cast <to = 10> (wide) none = Cast <to = 10> (zero)
    h = Reshape(x, heads) q = Transpose <perm = [0, 2, 1, 3]> (h) k = Transpose <perm = [0, 2, 3, 1]> (h)
    s = MatMul(q, k) a = Add(s, mask) p = Softmax <axis = -1> (a) nan = IsNaN(p) w = Where(nan, none, p) y = Add(w, mask)
}"""


def test_a_node_that_is_fused_for_one_size_alone_stays_on_the_gpu() -> None:
    """In float16 the steps behind a Softmax go into its kernel where four elements are stored at once: not for any
    length."""
    model = onnx.parser.parse_model(MASKED).SerializeToString()
    session = ort_gpu_ep.InferenceSession(model, quiet(), provider_options={"placement": "gpu", "strict": "1"})
    report = session.explain()
    assert (
        report.count("cpu"),
        [len(r.partitions) for r in report.reports],
        [len(r.nodes) for r in report.reports],
    ) == (0, [1], [17])
    cpu = onnxruntime.InferenceSession(model, quiet(), providers=["CPUExecutionProvider"])
    for length in (7, 64, 12):
        x = np.random.default_rng(length).standard_normal((1, length, 32)).astype(np.float16)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], cpu.run(None, {"x": x})[0], rtol=4e-3, atol=4e-3)
