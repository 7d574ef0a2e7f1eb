"""Resize: linear in x and the same along each axis on its own, so its gradient is a product along each axis."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.training.gradient import Gradients, Site, gradient

_EXTRAPOLATES = "tf_crop_and_resize"


@gradient("Resize")
def resize(n: Site) -> Gradients:
    """Along each axis whose size or scale changes, the transposed matrix of what Resize does there."""
    if n.attr("coordinate_transformation_mode") == _EXTRAPOLATES or n.attr("antialias"):
        raise n.unsupported(f"{_EXTRAPOLATES} and antialias have none")
    if n.attr("keep_aspect_ratio_policy") not in (None, "stretch"):
        raise n.unsupported("keep_aspect_ratio_policy is set")
    grad, scales = n.dy, _scales(n)
    for axis, (size, out) in enumerate(zip(n.x.shape, n.y.shape, strict=True)):
        if size != out or scales.get(axis, 1.0) != 1.0:
            grad = n.writer.along(grad, axis, _matrix(n, size, out, scales.get(axis)))
    return [grad]


def _scales(n: Site) -> dict[int, float]:
    """Of each axis that one is given for."""
    numbers = n.constant(2)
    if numbers is None or numbers.size == 0:
        return {}
    axes = n.attr("axes") or range(n.x.rank)
    return dict(zip((a % n.x.rank for a in axes), numbers.tolist(), strict=True))


def _matrix(n: Site, size: int, out: int, scale: float | None) -> Array:
    """[out, size]: each output as a sum of inputs, by resizing the unit vectors. scale: None where the model gives
    sizes."""
    kept = {
        a.name: helper.get_attribute_value(a)
        for a in n.node.attribute
        if a.name not in ("axes", "keep_aspect_ratio_policy")
    }
    to = np.array([out, size], np.int64) if scale is None else np.array([scale, 1.0], np.float32)
    node = helper.make_node("Resize", ["x", "", "", "to"] if scale is None else ["x", "", "to"], ["y"], **kept)
    graph = helper.make_graph(
        [node], "resize", [onnx.ValueInfoProto(name=name) for name in ("x", "to")], [onnx.ValueInfoProto(name="y")]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", n.writer.opset)], ir_version=n.writer.ir_version
    )
    matrix = np.asarray(ReferenceEvaluator(model).run(None, {"x": np.eye(size, dtype=np.float32), "to": to})[0])  # type: ignore[index]
    if matrix.shape != (out, size):
        raise n.unsupported(
            f"an axis of {size} becomes one of {out} at scale {scale}, where the reference has {matrix.shape[0]}"
        )
    return matrix
