"""Models of one node, run here and by ONNX Runtime's CPU provider: `check_node` compares, `check_decline` expects a
refusal."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.kernels.registry import OPS
from tests.direct import run_direct

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Host:
    """An input that the model holds as a constant."""

    value: Any
    dtype: str = "int64"


def data(*shape: int, dtype: str = "float32", seed: int = 11) -> Array:
    """Random numbers of any element type, none of them zero (but for bool)."""
    rng = np.random.default_rng([seed, *shape])
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.startswith("float"):
        return np.asarray(rng.normal(size=shape) + np.where(rng.random(shape) < 0.5, 2, -2), dtype)
    info = np.iinfo(dtype)
    return rng.integers(1, info.max, shape, dtype=dtype, endpoint=True)


def indices(low: int, high: int, *shape: int, dtype: str = "int64", seed: int = 5) -> Array:
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)


def model_of(
    op: str,
    inputs: tuple[Array | Host | None, ...],
    outputs: int = 1,
    opset: int = 17,
    after: tuple[onnx.NodeProto, ...] = (),
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model (output y0; `after`: nodes from y0 to y) and its feeds."""
    names = [f"x{i}" if value is not None else "" for i, value in enumerate(inputs)]
    held = {n: np.asarray(v.value, v.dtype) for n, v in zip(names, inputs, strict=True) if isinstance(v, Host)}
    feeds = {n: v for n, v in zip(names, inputs, strict=True) if isinstance(v, np.ndarray)}
    results = [f"y{k}" for k in range(outputs)]
    if op == "QLinearSoftmax":  # which has an attribute of that name, for the same
        attributes["opset"] = opset
    node = helper.make_node(op, names, results, **attributes)
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()
    ]
    graph = helper.make_graph(
        [node, *after],
        "g",
        given,
        [helper.make_empty_tensor_value_info(n) for n in (["y"] if after else results)],
        [numpy_helper.from_array(v, n) for n, v in held.items()],
    )
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(node.domain, 1)] if node.domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model), feeds


def exact_sums(options: Any) -> Any:
    """The SessionOptions, for a reference: on x86 processors with AVX2 but no VNNI onnxruntime's sums of uint8 times
    int8 saturate.

    What it does for that breaks some models: int8 constants with a scale and no zero point along an axis.
    """
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def on_cpu_exactly(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """`on_cpu` with exact sums of products of bytes, on every processor."""
    return on_cpu(model, feeds, exact_sums(onnxruntime.SessionOptions()))


def on_cpu(model: onnx.ModelProto, feeds: dict[str, Array], options: Any = None) -> list[Array]:
    options = options or onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return list(
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(
            None, feeds
        )
    )


@cache
def _node_cases() -> tuple[Any, ...]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases are made by numpy code that overflows on purpose
        return tuple(c for c in load_model_tests(kind="node"))


def onnx_cases(*ops: str) -> Iterator[tuple[str, onnx.ModelProto, dict[str, Array], list[Array]]]:
    """ONNX's node cases of these ops, with constants in place of the inputs that only the host reads: name, model,
    feeds, results."""
    for case in _node_cases():
        node = case.model.graph.node[0]
        if node.op_type not in ops or len(case.model.graph.node) > 1:
            continue
        spec = OPS.get((node.domain, node.op_type))  # none for Shape and Size, which the host computes
        held = {
            n for i, n in enumerate(node.input) if spec and n and not spec.inputs[min(i, len(spec.inputs) - 1)].bound
        }
        for given, wanted in case.data_sets:
            named = {i.name: np.asarray(v) for i, v in zip(case.model.graph.input, given, strict=False)}
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            kept = [i for i in model.graph.input if i.name not in held]
            del model.graph.input[:]
            model.graph.input.extend(kept)
            model.graph.initializer.extend(numpy_helper.from_array(named[n], n) for n in held)
            yield case.name, model, {k: v for k, v in named.items() if k not in held}, [np.asarray(w) for w in wanted]


def assert_same(got: list[Array], wanted: list[Array]) -> None:
    """Same type, same shape, same bits (any NaN for a NaN)."""
    for g, w in zip(got, wanted, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_array_equal(g, w)


def node_model(
    op: str, inputs: Sequence[Array | None], opset: int, known: Sequence[int] = (), outputs: int = 1, **attributes: Any
) -> Any:
    """A model of one node and its feeds. known: inputs that are initializers. None: an input left out."""
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(inputs)]
    node = helper.make_node(op, names, [f"o{k}" for k in range(outputs)], **attributes)
    given = {n: (k, a) for k, (n, a) in enumerate(zip(names, inputs, strict=True)) if a is not None}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, (k, a) in given.items()
        if k not in known
    ]
    constants = [numpy_helper.from_array(a, n) for n, (k, a) in given.items() if k in known]
    graph = helper.make_graph([node], op, infos, [onnx.ValueInfoProto(name=n) for n in node.output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, {n: a for n, (k, a) in given.items() if k not in known}


def assert_agree(got: Array, wanted: Array, tolerance: float = TOLERANCE) -> None:
    """Same type, shape and place of NaN and infinities; integers equal, floats within a relative L2 error."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, wanted)
        return
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[~finite], wanted[~finite])
    g, w = got[finite].astype(np.float64), wanted[finite].astype(np.float64)
    error = np.linalg.norm(g - w) / max(np.linalg.norm(w), 1e-30)
    assert error <= tolerance, f"relative L2 error {error}"


def check_node(
    op: str,
    inputs: Sequence[Array | None],
    opset: int,
    known: Sequence[int] = (),
    outputs: int = 1,
    tolerance: float = TOLERANCE,
    wanted: Sequence[Array] | None = None,
    **attributes: Any,
) -> None:
    """The node here against ONNX Runtime's CPU kernel, or against `wanted`."""
    model, feeds = node_model(op, inputs, opset, known, outputs, **attributes)
    for got, want in zip(run_direct(model, feeds), wanted or on_cpu(model, feeds), strict=True):
        assert_agree(got, want, tolerance)


def check_decline(
    code: Code, op: str, inputs: Sequence[Array | None], opset: int, known: Sequence[int] = (), **attributes: Any
) -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(*node_model(op, inputs, opset, known, **attributes))
    assert caught.value.code is code, caught.value


def normal(*shape: int, seed: int = 7) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return np.random.default_rng(7).uniform(0.5, 1.5, shape).astype(np.float32)
