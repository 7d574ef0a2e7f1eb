"""Small models, and sessions on our provider together with what the plugin recorded of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep import plugin

ORT = tuple(int(n) for n in onnxruntime.__version__.split(".")[:2])


def info(name: str, shape: Sequence[int | str] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: dict[str, Any] | None = None,
    opset: int = 21,
) -> bytes:
    """A serialized model; a string among inputs or outputs is the name of a float tensor of unknown shape."""
    graph = helper.make_graph(
        list(nodes),
        "model",
        [info(i, None) if isinstance(i, str) else i for i in inputs],
        [info(o, None) if isinstance(o, str) else o for o in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    domains = {n.domain for n in nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """`node("Add", "a b", "c")`."""
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def island(source: str, target: str) -> onnx.NodeProto:
    """A node that only the CPU provider has: a matrix inverse of the last two dimensions."""
    return helper.make_node("Inverse", [source], [target], domain="com.microsoft")


def batches(layout: int) -> bytes:
    """An LSTM from x: [A, B, 12] to its last state h. With layout 1 batches come first, which only our provider has a
    kernel for."""
    rng = np.random.default_rng(8)
    weights = {n: (rng.normal(size=s) / 4).astype("f") for n, s in {"W": (1, 64, 12), "R": (1, 64, 16)}.items()}
    lstm = node("LSTM", "x W R", "_ h", hidden_size=16, layout=layout)
    return make_model([lstm], [info("x", ["A", "B", 12])], ["h"], weights)


@dataclass
class Opened:
    """A session on our provider, and its record."""

    session: Any
    state: plugin.SessionState

    def run(self, **feeds: Any) -> list[Any]:
        return list(self.session.run(None, feeds))


def open_session(model: bytes | str, options: Any = None, **provider_options: object) -> Opened:
    """A session with every supported node on the GPU."""
    given = {k: str(v) for k, v in {"placement": "gpu", **provider_options}.items()}
    with plugin.capture() as seen:
        session = onnxruntime.InferenceSession(
            model, options, providers=[(plugin.EP_NAME, given), "CPUExecutionProvider"]
        )
    assert len(seen) == 1
    return Opened(session, seen[0])


def raises(error: BaseException) -> Callable[..., Any]:
    """A function that does nothing else, to be put in another's place."""

    def fail(*arguments: Any, **named: Any) -> Any:
        raise error

    return fail


def reference(model: bytes | str, **feeds: Any) -> list[Any]:
    """What ONNX Runtime's CPU provider answers."""
    return list(onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds))


def device_value(opened: Opened, array: Any) -> Any:
    """An OrtValue in device memory with an array's content."""
    if not hasattr(opened.session, "create_ortvalue_from_shape_and_type"):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, "gpu", 0, plugin.VENDOR_ID)
    value = opened.session.create_ortvalue_from_shape_and_type(
        array.shape, array.dtype.type, "gpu", 0, plugin.VENDOR_ID
    )
    value.update_inplace(array)
    return value


def assert_close(actual: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        np.testing.assert_allclose(a.astype(np.float64), e.astype(np.float64), rtol=2e-5, atol=2e-5)
