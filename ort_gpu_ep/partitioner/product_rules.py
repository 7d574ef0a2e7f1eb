"""Rules for products whose result gets another shape at once: ONNX Runtime makes Gemm with a Reshape around it of MatMul and Add."""

from __future__ import annotations

from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.kernels.lowering import Facts
from ort_gpu_ep.partitioner.fusions import Built, fusion
from ort_gpu_ep.partitioner.patterns import Match


def _with_bias(op, x, w, b, shape):  # type: ignore[no-untyped-def]
    return op.Reshape(op.Gemm(x, w, b), shape)


def _alone(op, x, w, shape):  # type: ignore[no-untyped-def]
    return op.Reshape(op.Gemm(x, w), shape)


@fusion("Gemm of rows", _alone)
@fusion("Gemm of rows, biased", _with_bias)
def gemm_of_rows(found: Match, facts: Facts) -> Built | str:
    """The result's rows stay rows, of more dimensions: then what follows elementwise can go into the product."""
    root, product = found.nodes
    w, out = facts.types.get(product.inputs[1]), facts.types.get(root.outputs[0])
    if w is None or out is None:
        return "unknown types"
    if not out.rank or out.shape[-1] != w.shape[0 if product.attributes.get("transB") else 1]:
        return f"the result's {list(out.shape)} has other rows than the product"
    return Built(Node("Gemm", product.inputs, (), product.name, "", product.version, {**product.attributes, "output_shape": out.shape}))
