"""Schemas of ops that ONNX Runtime defines and that have a row here: what onnx.defs says of ONNX's own.

Source: onnxruntime/core/graph/contrib_ops/contrib_defs.cc and bert_defs.cc; the tests compare with what onnxruntime tells of them, which
is everything but the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import onnx
from onnx.defs import OpSchema

DOMAIN = "com.microsoft"

FLOATS = ("tensor(float)", "tensor(float16)", "tensor(bfloat16)")


@cache
def schemas() -> Mapping[tuple[str, str], OpSchema]:
    """By domain and name; all since version 1."""
    found = (
        _schema(
            "GatherBlockQuantized", "data:T1 indices:Tind scales:T2 zero_points:T1?", "output:T2",
            {"T1": ("tensor(int4)", "tensor(uint4)", "tensor(uint8)", "tensor(float8e4m3fn)", "tensor(float8e4m3fnuz)",
                    "tensor(float8e5m2)", "tensor(float8e5m2fnuz)", "tensor(float4e2m1)"), "T2": FLOATS,
             "Tind": ("tensor(int32)", "tensor(int64)")},
            {"gather_axis": 0, "quantize_axis": 1, "block_size": 128, "bits": 4}),
        _schema(
            "MatMulNBits", "A:T1 B:T2 scales:T1 zero_points:T3? g_idx:T4? bias:T1?", "Y:T1",
            {"T1": FLOATS, "T2": ("tensor(uint8)",), "T3": ("tensor(uint8)", *FLOATS), "T4": ("tensor(int32)",)},
            {"K": int, "N": int, "block_size": int, "bits": 4, "accuracy_level": 0, "weight_prepacked": 0}),
        _schema(
            "RotaryEmbedding", "input:T position_ids:M cos_cache:T sin_cache:T", "output:T", {"T": FLOATS, "M": ("tensor(int64)",)},
            {"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0, "is_packed_batching": 0, "scale": 1.0}))
    return {(schema.domain, schema.name): schema for schema in found}


def _schema(
    name: str, inputs: str, outputs: str, types: Mapping[str, Sequence[str]], attributes: Mapping[str, type[int] | int | float],
) -> OpSchema:
    """inputs, outputs: `name:type parameter`, `?` behind optional ones. attributes: the default, or `int` for one that must be given."""
    return OpSchema(
        name, DOMAIN, 1, inputs=[_parameter(text) for text in inputs.split()], outputs=[_parameter(text) for text in outputs.split()],
        type_constraints=[(parameter, list(allowed), "") for parameter, allowed in types.items()],
        attributes=[
            OpSchema.Attribute(key, OpSchema.AttrType.INT, "", required=True) if isinstance(value, type)
            else OpSchema.Attribute(key, onnx.helper.make_attribute(key, value), "") for key, value in attributes.items()])


def _parameter(text: str) -> OpSchema.FormalParameter:
    name, _, parameter = text.rstrip("?").partition(":")
    option = OpSchema.FormalParameterOption.Optional if text.endswith("?") else OpSchema.FormalParameterOption.Single
    return OpSchema.FormalParameter(name, parameter, param_option=option)
