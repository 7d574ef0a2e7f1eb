"""Schemas of ops that ONNX Runtime defines and that have a row here: what onnx.defs says of ONNX's own.

Source: onnxruntime/core/graph/contrib_ops/contrib_defs.cc and bert_defs.cc; the tests compare with what onnxruntime tells of them, which
is everything but the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeAlias

import onnx
from onnx.defs import OpSchema

DOMAIN = "com.microsoft"

BYTES = ("tensor(uint8)", "tensor(int8)")
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
        *(_schema(
            name, "A:T A_scale:tensor(float) A_zero_point:T? B:T B_scale:tensor(float) B_zero_point:T? C_scale:tensor(float) "
            "C_zero_point:T?", "C:T", {"T": BYTES}, {}) for name in ("QLinearAdd", "QLinearMul")),
        *(_schema(
            name, "X:T X_scale:tensor(float) X_zero_point:T? Y_scale:tensor(float) Y_zero_point:T?", "Y:T", {"T": BYTES}, attributes)
            for name, attributes in (("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.01}))),
        _schema(
            "QLinearConcat", "Y_scale:TF Y_zero_point:T8 inputs:TV...", "Y:T8",
            {"T8": BYTES, "TF": ("tensor(float)",), "TV": (*BYTES, "tensor(float)")}, {"axis": int}),
        _schema(
            "QLinearAveragePool", "X:T x_scale:tensor(float) x_zero_point:T? y_scale:tensor(float) y_zero_point:T?", "Y:T", {"T": BYTES},
            {"auto_pad": "NOTSET", "kernel_shape": tuple, "pads": (), "strides": (), "ceil_mode": 0, "count_include_pad": 0,
             "channels_last": 0}),
        _schema(
            "QLinearGlobalAveragePool", "X:T x_scale:tensor(float) x_zero_point:T y_scale:tensor(float) y_zero_point:T", "Y:T",
            {"T": BYTES}, {"channels_last": 0}),
        _schema(
            "QLinearSoftmax", "X:T X_scale:tensor(float) x_zero_point:T? y_scale:tensor(float) y_zero_point:T", "Y:T", {"T": BYTES},
            {"axis": -1, "opset": int}),
        _schema(
            "QGemm", "A:TA a_scale:T a_zero_point:TA B:TB b_scale:T b_zero_point:TB C:TC? y_scale:T? y_zero_point:TYZ?", "Y:TY",
            {"T": ("tensor(float)",), "TA": BYTES, "TB": BYTES, "TC": ("tensor(int32)",), "TYZ": BYTES, "TY": ("tensor(float)", *BYTES)},
            {"transA": 0, "transB": 0, "alpha": 1.0}),
        _schema(
            "RotaryEmbedding", "input:T position_ids:M cos_cache:T sin_cache:T", "output:T", {"T": FLOATS, "M": ("tensor(int64)",)},
            {"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0, "is_packed_batching": 0, "scale": 1.0}))
    return {(schema.domain, schema.name): schema for schema in found}


Given: TypeAlias = type[int] | type[tuple[int, ...]] | int | float | str | tuple[int, ...]
"""An attribute's default, () for none; or the type of one that must be given."""


def _schema(name: str, inputs: str, outputs: str, types: Mapping[str, Sequence[str]], attributes: Mapping[str, Given]) -> OpSchema:
    """inputs, outputs: `name:type parameter`, or a type itself; `?` behind optional ones, `...` behind one that repeats."""
    return OpSchema(
        name, DOMAIN, 1, inputs=[_parameter(text) for text in inputs.split()], outputs=[_parameter(text) for text in outputs.split()],
        type_constraints=[(parameter, list(allowed), "") for parameter, allowed in types.items()],
        attributes=[_attribute(key, value) for key, value in attributes.items()])


def _attribute(key: str, value: Given) -> OpSchema.Attribute:
    kinds = OpSchema.AttrType
    if isinstance(value, type) or value == ():
        return OpSchema.Attribute(key, kinds.INT if value is int else kinds.INTS, "", required=isinstance(value, type))
    return OpSchema.Attribute(key, onnx.helper.make_attribute(key, value), "")


def _parameter(text: str) -> OpSchema.FormalParameter:
    name, _, parameter = text.rstrip("?.").partition(":")
    options = OpSchema.FormalParameterOption
    option = options.Optional if text.endswith("?") else options.Variadic if text.endswith("...") else options.Single
    return OpSchema.FormalParameter(name, parameter, param_option=option)
