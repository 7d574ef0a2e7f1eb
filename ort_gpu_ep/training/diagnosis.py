"""Finds where a NaN comes from: repeats a step on the CPU with all its values as outputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime

from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.plugin import CPU_PROVIDER, ort_session
from ort_gpu_ep.training.gradient import label_of


def first_bad_node(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> str:
    """The input that is not finite, or the first node of a step whose result is not although what it reads is; "" if
    there is none on the CPU.
    """
    for name, array in feeds.items():
        if not _finite(array):
            return f"the input {name!r}"
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    outputs = {o.name for o in shown.graph.output}
    shown.graph.output.extend(
        onnx.ValueInfoProto(name=n) for node in shown.graph.node for n in node.output if n and n not in outputs
    )
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort_session(shown.SerializeToString(), settings, providers=[CPU_PROVIDER])
    names = [o.name for o in session.get_outputs()]
    values = dict(zip(names, session.run(names, {i.name: feeds[i.name] for i in session.get_inputs()}), strict=True))
    for node in shown.graph.node:
        if any(n and not _finite(values[n]) for n in node.output):
            return label_of(node)
    return ""


def _finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
