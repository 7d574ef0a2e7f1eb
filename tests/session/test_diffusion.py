"""A U-Net as it is optimised for CUDA: ONNX Runtime's CPU has no kernel for half of its ops, so without ours it does
not open."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_gpu_ep
from tests.session.random_graphs import quiet
from tests.unet import Network, feeds


def on_cpu(model: Any, given: Any) -> Any:
    return onnxruntime.InferenceSession(model.SerializeToString(), quiet(), providers=["CPUExecutionProvider"]).run(
        None, given
    )[0]


@pytest.mark.parametrize("placement", ["gpu", "auto"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("float16", 3e-3)])
def test_a_unet_for_cuda_opens_and_is_right(dtype: str, tolerance: float, placement: str) -> None:
    model = Network(True, dtype).model()
    with pytest.raises(Exception, match=r"NhwcConv|GroupNorm|BiasSplitGelu|BiasAdd"):
        on_cpu(model, {})
    session = ort_gpu_ep.InferenceSession(
        model.SerializeToString(), quiet(), provider_options={"placement": placement, "strict": "1"}
    )
    report = session.explain()
    assert (report.count("cpu"), [len(r.partitions) for r in report.reports]) == (0, [1])
    for batch in (1, 3):
        given = feeds(batch)
        wanted = on_cpu(Network(False).model(), given)
        (got,) = session.run(None, {name: array.astype(dtype) for name, array in given.items()})
        assert (got.dtype, got.shape) == (np.dtype(dtype), wanted.shape)
        np.testing.assert_allclose(got.astype("d"), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())
    assert session.stats()["fallbacks"] == 0
