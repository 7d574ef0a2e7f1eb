"""Encoders as onnxruntime's optimiser of transformers leaves them: one partition, with the results of the model that it was given."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import ort_gpu_ep
from tests.encoder import Encoder, feeds, optimised
from tests.session.random_graphs import quiet

SHAPES = ((2, 9), (1, 32), (3, 2))


@pytest.mark.parametrize("attention", ["", "Attention", "MultiHeadAttention"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("float16", 4e-3)])
def test_an_optimised_encoder_is_one_partition_and_right(attention: str, dtype: str, tolerance: float, tmp_path: Path) -> None:
    plain = Encoder().model()
    model = plain
    if attention or dtype == "float16":
        model = optimised(plain, str(tmp_path / "encoder.onnx"), dtype == "float16", attention == "MultiHeadAttention")
        ops = Counter(n.op_type for n in model.graph.node)
        assert (ops[attention or "Attention"], ops["SkipLayerNormalization"], ops["EmbedLayerNormalization"]) == (2, 4, 1)
        assert ops["BiasGelu"] == 2
    session = ort_gpu_ep.InferenceSession(model.SerializeToString(), quiet(), provider_options={"placement": "gpu", "strict": "1"})
    report = session.explain()
    assert (report.count("cpu"), [len(r.partitions) for r in report.reports]) == (0, [1])
    cpu = onnxruntime.InferenceSession(plain.SerializeToString(), quiet(), providers=["CPUExecutionProvider"])
    for shape in SHAPES:
        given = feeds(*shape)
        (got,), (wanted,) = session.run(None, given), cpu.run(None, given)
        np.testing.assert_allclose(got.astype("d"), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())
    assert session.stats()["fallbacks"] == 0
