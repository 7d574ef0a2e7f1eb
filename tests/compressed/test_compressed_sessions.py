"""Packed weights through ONNX Runtime: claimed, verified against the CPU, never dense on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gpu_ep
from tests.compressed.test_packed_products import RNG, close, exact, nbits_model, weighted
from tests.plugin.cases import open_session

TROUBLES = ("fallback", "error", "warning")


def device_nbytes(opened: Any) -> int:
    return sum(p.program.weight_nbytes for p in opened.state.partitions)


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("bits", [4, 8])
def test_matmul_nbits_stays_packed(bits: int, isolation: str) -> None:
    k, n = 1024, 768
    model, (dense, _) = nbits_model((2, k), k, n, bits, 32, "codes", bias=False)
    x = RNG.normal(size=(2, k)).astype("f")
    opened = open_session(model.SerializeToString(), isolation=isolation, verify=1)
    close(opened.session.run(None, {"x": x})[0], x.astype("d") @ dense)
    assert not [e for e in opened.state.events if e.kind in TROUBLES]
    assert device_nbytes(opened) <= 1.15 * (k * n * bits // 8 + k // 32 * n * (4 + bits / 8)) + 512


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize("kind", ["int8", "uint4"])
@pytest.mark.parametrize(
    ("op", "x", "w", "scale", "decoder", "attributes"),
    [
        ("MatMul", ("n", 515), (515, 256), (256,), {"axis": 1}, {}),
        ("Gemm", ("n", 512), (300, 512), (300, 16), {"axis": 1, "block_size": 32}, {"transB": 1}),
        ("Conv", ("n", 64, 7, 7), (128, 64, 3, 3), (128,), {"axis": 0}, {"pads": [1, 1, 1, 1]}),
    ],
)
def test_decoders_disappear(
    kind: str, op: str, x: Any, w: Any, scale: Any, decoder: Any, attributes: Any, isolation: str
) -> None:
    model = weighted(op, kind, x, w, scale, True, None, decoder, **attributes)
    opened = open_session(model.SerializeToString(), isolation=isolation, verify=1)
    for n in (1, 3, 40):
        feeds = {"x": RNG.normal(size=(n, *x[1:])).astype("f")}
        close(opened.session.run(None, feeds)[0], exact(model, feeds))
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events
    bits = int(kind.lstrip("uint"))
    nbytes = np.prod(w) * bits / 8 + 5 * np.prod(scale)
    packed = device_nbytes(opened)
    # rows that begin at no word are stored twice; buffers are a little larger
    assert packed <= 2.3 * nbytes + 2048, (packed, nbytes)
    assert len(opened.state.reports[0].partitions) == 1
    assert {n.device for n in opened.state.reports[0].nodes} == {"gpu"}


def test_an_embedding_that_two_nodes_read_is_decoded_once() -> None:
    """A Gather and a product of one decoder: right, if not packed."""
    model = weighted("MatMul", "int8", (3, 64), (64, 96), (96,), False, None, {"axis": 1})
    model.graph.node.append(onnx.helper.make_node("ReduceSum", ["d"], ["total"]))
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("total"))
    opened = open_session(onnx.shape_inference.infer_shapes(model).SerializeToString(), verify=1)
    feeds = {"x": RNG.normal(size=(3, 64)).astype("f")}
    close(opened.session.run(None, feeds)[0], exact(model, feeds))
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events


@pytest.mark.parametrize("placement", ["cpu", "gpu", "auto"])
def test_every_placement_gives_what_the_file_says(placement: str) -> None:
    """ONNX Runtime's CPU would round the activations, and differ from the GPU by more than verify allows."""
    model = weighted("MatMul", "int8", (3, 256), (256, 96), (96,), False, None, {"axis": 1})
    feeds = {"x": RNG.normal(size=(3, 256)).astype("f")}
    session = ort_gpu_ep.InferenceSession(model.SerializeToString(), provider_options={"placement": placement})
    for _ in range(6):
        close(session.run(None, feeds)[0], exact(model, feeds))


def test_what_the_user_set_stays() -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
    model = weighted("MatMul", "int8", (3, 256), (256, 96), (96,), False, None, {"axis": 1})
    ort_gpu_ep.InferenceSession(model.SerializeToString(), options, provider_options={"placement": "cpu"})
    assert options.get_session_config_entry("session.qdq_matmulnbits_accuracy_level") == "4"
