"""ONNX's own node tests, strictly on the GPU: no node may run on ONNX Runtime's CPU provider."""

from __future__ import annotations

import ctypes
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from ort_gpu_ep import private
from ort_gpu_ep.errors import Code, GpuEpError

STATUSES = ("PASS", "FOLDED", "UNSUPPORTED", "FAIL", "EXCLUDED", "NOT_RUN")
"""FOLDED: right, but onnxruntime computed it before any provider saw a node; whoever looks at onnxruntime alone counts
it as a pass. UNSUPPORTED: a row declines a node, with code and reason. EXCLUDED: onnxruntime itself rejects the model,
or of INEXACT.
"""

BY_VALUE = "(a value of the run decides)"
"""Ends the reason of a node that was claimed, and declined by a run."""

_FURTHER = "its expected values are further from the exact ones than it tolerates"
INEXACT = {
    "test_dft_inverse": _FURTHER,
    "test_dft_inverse_opset19": _FURTHER,
    "test_attention_4d_causal_fp16_expanded": "two of 192 float16 numbers are neighbours of those expected, 1.2e-3 "
    "away where it tolerates 1e-3, and nearer to the exact ones",
}
"""Cases whose expected values say nothing, and why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case. code: of the decline; reason: what a person needs to know."""

    name: str
    status: str
    code: str = ""
    reason: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def cases(pattern: str = "") -> list[Any]:
    """ONNX's node cases whose name matches the regular expression, sorted by name."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators provoke overflows on purpose
        tests = load_model_tests(kind="node")
    selected = sorted((c for c in tests if re.search(pattern, c.name)), key=lambda c: c.name)
    return [case if case.model is not None else _read(case) for case in selected]


def _read(case: Any) -> Any:
    """A case with its model and data from files, where onnx, before 1.23, has them there."""
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = [
        tuple(
            [_value(value.type, Path(data, f"{kind}_{i}.pb").read_bytes()) for i, value in enumerate(values)]
            for kind, values in (("input", model.graph.input), ("output", model.graph.output))
        )
        for data in sorted(folder.glob("test_data_set_*"))
    ]
    return replace(case, model=model, data_sets=sets)


def _value(kind: onnx.TypeProto, data: bytes) -> Any:
    if kind.HasField("sequence_type"):
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return onnx.TensorProto.FromString(data)


def run(selected: list[Any], session_class: Any, options: dict[str, str] | None = None) -> Iterator[Outcome]:
    """Runs each case; yields its outcome as soon as it is known. session_class: ort_gpu_ep.InferenceSession."""
    settings = {"placement": "gpu", "strict": "1", **(options or {})}
    for case in selected:
        yield _run_case(case, session_class, settings)


def _run_case(case: Any, session_class: Any, options: dict[str, str]) -> Outcome:
    if case.name in INEXACT:
        return Outcome(case.name, "EXCLUDED", "", INEXACT[case.name])
    model = case.model.SerializeToString()
    try:
        session = session_class(model, _quiet(), provider_options=options)
    except private.NotImplemented as error:  # also as ours, which says what no provider takes
        return Outcome(case.name, "EXCLUDED", "", f"onnxruntime: {str(error).splitlines()[0][-200:]}")
    except GpuEpError as error:
        return Outcome(case.name, "FAIL", "", f"{type(error).__name__}: {error}")
    except Exception as error:  # onnxruntime rejects the model: no provider could run it
        return Outcome(case.name, "EXCLUDED", "", f"onnxruntime: {str(error).splitlines()[0][-200:]}")
    declined = _declined(session)
    if declined is not None:
        session = _through_bodies(case, model, session_class, options)
        if session is None:
            return Outcome(case.name, "UNSUPPORTED", *declined)
    for inputs, expected in case.data_sets:
        problem = _compare(session, inputs, expected, case)
        by_value = re.search(r"UnsupportedNodeError: ([A-Z_]+): (.*)", problem)
        # what decides whether a node is taken came with the run; without `strict` the CPU answers it
        if by_value:
            return Outcome(case.name, "UNSUPPORTED", by_value[1], f"{by_value[2]} {BY_VALUE}")
        if problem:
            return Outcome(case.name, "FAIL", "", problem)
    return Outcome(case.name, "PASS" if any(r.partitions for r in session.explain().reports) else "FOLDED")


def _quiet() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def _through_bodies(case: Any, model: bytes, session_class: Any, options: dict[str, str]) -> Any:
    """A session where onnxruntime has put the bodies of declined functions in their places, None if a node is left to
    its CPU provider.

    That is how an operator without a row of its own runs. onnxruntime itself refuses such a session if anything falls
    back.
    """
    if not any(onnx.defs.has(n.op_type, n.domain) and _has_body(n) for n in case.model.graph.node):
        return None
    strict = _quiet()
    strict.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        return session_class(model, strict, provider_options=options)
    except Exception:  # what is left to the CPU was told by the decline
        return None


def _has_body(node: Any) -> bool:
    schema: Any = onnx.defs.get_schema(node.op_type, node.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _declined(session: Any) -> tuple[str, str] | None:
    """Code and reason of the first node that is not ours, None if all are, but for those that the host has anyway."""
    for report in session.explain().reports:
        for node in report.nodes:
            if node.device == "cpu" and node.code != Code.HOST:
                return node.code, f"{node.op}: {node.reason}"
    return None


def _compare(session: Any, inputs: Any, wanted: Any, case: Any) -> str:
    """Empty if the outputs are right, else what is wrong."""
    names = [i.name for i in session.get_inputs()]
    try:
        got = _run(session, dict(zip(names, map(_array, inputs), strict=False)))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[-400:]}"
    for g, w in zip(got, map(_array, wanted), strict=True):
        if not isinstance(w, np.ndarray) or g.dtype != w.dtype or g.shape != w.shape:
            return f"got {getattr(g, 'dtype', type(g))}{getattr(g, 'shape', '')}, expected {w.dtype}{w.shape}"
        if g.dtype.kind in "OSU":
            same = bool((g == w).all())
        else:
            a, b = (g.astype(np.float64), w.astype(np.float64)) if g.dtype.kind not in "iub" else (g, w)
            same = bool(np.allclose(a, b, rtol=case.rtol, atol=case.atol, equal_nan=True))
        if not same:
            return f"wrong result beyond rtol {case.rtol}, atol {case.atol}"
    return ""


def _run(session: Any, feeds: dict[str, Any]) -> list[Any]:
    """The outputs. onnxruntime knows no numpy type for bfloat16: where an input is of it, all values pass as
    OrtValues."""
    bfloat16 = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    if all(getattr(value, "dtype", None) != bfloat16 for value in feeds.values()):
        return list(session.run(None, feeds))
    make = onnxruntime.OrtValue
    values = {
        name: make.ortvalue_from_numpy_with_onnx_type(value.view(np.uint16), onnx.TensorProto.BFLOAT16)
        if value.dtype == bfloat16
        else make.ortvalue_from_numpy(value)
        for name, value in feeds.items()
    }
    outputs = session.run_with_ort_values(None, values)
    return [
        _bits(value).view(bfloat16) if value.element_type() == onnx.TensorProto.BFLOAT16 else value.numpy()
        for value in outputs
    ]


def _bits(value: Any) -> Any:
    """A copy of the 16-bit elements of an OrtValue that lies in the host's memory."""
    shape = value.shape()
    return np.frombuffer(ctypes.string_at(value.data_ptr(), 2 * math.prod(shape)), np.uint16).reshape(shape)


def _array(given: Any) -> Any:
    """Some cases give a scalar as a numpy number, some a tensor as a TensorProto."""
    if isinstance(given, onnx.TensorProto):
        return onnx.numpy_helper.to_array(given)
    return np.asarray(given) if isinstance(given, np.generic) else given
