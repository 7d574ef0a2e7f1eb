"""Schemas of ops that ONNX Runtime defines and that have a kernel here; onnx.defs does not provide them:
com.microsoft's, and SimplifiedLayerNormalization, which ONNX Runtime put into ONNX's own domain.

Source: onnxruntime/core/graph/contrib_ops/contrib_defs.cc and bert_defs.cc; the tests compare with what onnxruntime
tells of them, which is everything but the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from onnx.defs import OpSchema

DOMAIN = "com.microsoft"

BYTES = ("tensor(uint8)", "tensor(int8)")
SMALL = (*BYTES, "tensor(uint16)", "tensor(int16)", "tensor(uint4)", "tensor(int4)")
FLOATS = ("tensor(float)", "tensor(float16)", "tensor(bfloat16)")
ALL_FLOATS = (*FLOATS, "tensor(double)")
HALF_OR_FLOAT = ("tensor(float16)", "tensor(float)")

Given: TypeAlias = (
    type[int]
    | type[float]
    | type[str]
    | type[list[float]]
    | type[tuple[int, ...]]
    | int
    | float
    | str
    | tuple[int, ...]
)
"""An attribute's default, () for none; or the type of one that must be given; float, list (of floats), str (strings):
one without a default that may be left out.
"""

WINDOW: Mapping[str, Given] = {"auto_pad": "NOTSET", "kernel_shape": (), "dilations": (), "strides": (), "pads": ()}
"""Attributes of convolutions and pooling."""

MIXTURE: Mapping[str, Given] = {
    "k": 1,
    "activation_type": "relu",
    "activation_alpha": 1.0,
    "activation_beta": 0.0,
    "normalize_routing_weights": 0,
    "use_sparse_mixer": 0,
    "swiglu_fusion": 0,
    "swiglu_limit": float,
    "swiglu_limit_after_activation": 0,
}
"""Attributes of mixtures of experts."""


@cache
def schemas() -> Mapping[tuple[str, str], OpSchema]:
    """By domain and name; all since version 1."""
    all_schemas = (*_of_codes(), *_of_transformers(), *_of_attention(), *_of_images())
    return {(schema.domain, schema.name): schema for schema in all_schemas}


def _of_codes() -> tuple[OpSchema, ...]:
    """Weights and values in codes."""
    return (
        _schema(
            "QuantizeLinear",
            "x:T1 y_scale:T1 y_zero_point:T2?",
            "y:T2",
            {"T1": HALF_OR_FLOAT, "T2": SMALL},
            {"axis": 1},
        ),
        _schema(
            "DequantizeLinear",
            "x:T1 x_scale:T2 x_zero_point:T1?",
            "y:T2",
            {"T1": (*SMALL, "tensor(int32)"), "T2": HALF_OR_FLOAT},
            {"axis": 1},
        ),
        _schema(
            "GatherBlockQuantized",
            "data:T1 indices:Tind scales:T2 zero_points:T1?",
            "output:T2",
            {
                "T1": (
                    "tensor(int4)",
                    "tensor(uint4)",
                    "tensor(uint8)",
                    "tensor(float8e4m3fn)",
                    "tensor(float8e4m3fnuz)",
                    "tensor(float8e5m2)",
                    "tensor(float8e5m2fnuz)",
                    "tensor(float4e2m1)",
                ),
                "T2": FLOATS,
                "Tind": ("tensor(int32)", "tensor(int64)"),
            },
            {"gather_axis": 0, "quantize_axis": 1, "block_size": 128, "bits": 4},
        ),
        _schema(
            "MatMulNBits",
            "A:T1 B:T2 scales:T1 zero_points:T3? g_idx:T4? bias:T1?",
            "Y:T1",
            {"T1": FLOATS, "T2": ("tensor(uint8)",), "T3": ("tensor(uint8)", *FLOATS), "T4": ("tensor(int32)",)},
            {"K": int, "N": int, "block_size": int, "bits": 4, "accuracy_level": 0, "weight_prepacked": 0},
        ),
        _schema(
            "MatMulBnb4",
            "A:T1 B:T2 absmax:T1",
            "Y:T1",
            {"T1": FLOATS, "T2": ("tensor(uint8)",)},
            {"K": int, "N": int, "block_size": int, "quant_type": int, "training_mode": 0, "transB": 1},
        ),
        *(
            _schema(
                name,
                "A:T A_scale:tensor(float) A_zero_point:T? B:T B_scale:tensor(float) B_zero_point:T? "
                "C_scale:tensor(float) "
                "C_zero_point:T?",
                "C:T",
                {"T": BYTES},
                {},
            )
            for name in ("QLinearAdd", "QLinearMul")
        ),
        *(
            _schema(
                name,
                "X:T X_scale:tensor(float) X_zero_point:T? Y_scale:tensor(float) Y_zero_point:T?",
                "Y:T",
                {"T": BYTES},
                attributes,
            )
            for name, attributes in (("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.01}))
        ),
        _schema(
            "QLinearWhere",
            "condition:B X:T x_scale:TF x_zero_point:T Y:T y_scale:TF y_zero_point:T z_scale:TF z_zero_point:T",
            "Z:T",
            {"B": ("tensor(bool)",), "TF": ("tensor(float)",), "T": BYTES},
            {},
        ),
        _schema(
            "QLinearConcat",
            "Y_scale:TF Y_zero_point:T8 inputs:TV...",
            "Y:T8",
            {"T8": BYTES, "TF": ("tensor(float)",), "TV": (*BYTES, "tensor(float)")},
            {"axis": int},
        ),
        _schema(
            "QLinearAveragePool",
            "X:T x_scale:tensor(float) x_zero_point:T? y_scale:tensor(float) y_zero_point:T?",
            "Y:T",
            {"T": BYTES},
            {
                "auto_pad": "NOTSET",
                "kernel_shape": tuple,
                "pads": (),
                "strides": (),
                "ceil_mode": 0,
                "count_include_pad": 0,
                "channels_last": 0,
            },
        ),
        _schema(
            "QLinearGlobalAveragePool",
            "X:T x_scale:tensor(float) x_zero_point:T y_scale:tensor(float) y_zero_point:T",
            "Y:T",
            {"T": BYTES},
            {"channels_last": 0},
        ),
        _schema(
            "QLinearSoftmax",
            "X:T X_scale:tensor(float) x_zero_point:T? y_scale:tensor(float) y_zero_point:T",
            "Y:T",
            {"T": BYTES},
            {"axis": -1, "opset": int},
        ),
        _schema(
            "QGemm",
            "A:TA a_scale:T a_zero_point:TA B:TB b_scale:T b_zero_point:TB C:TC? y_scale:T? y_zero_point:TYZ?",
            "Y:TY",
            {
                "T": ("tensor(float)",),
                "TA": BYTES,
                "TB": BYTES,
                "TC": ("tensor(int32)",),
                "TYZ": BYTES,
                "TY": ("tensor(float)", *BYTES),
            },
            {"transA": 0, "transB": 0, "alpha": 1.0},
        ),
        _schema(
            "DynamicQuantizeLSTM",
            "X:T W:T2 R:T2 B:T? sequence_lens:T1? initial_h:T? initial_c:T? P:T? W_scale:T W_zero_point:T2 "
            "R_scale:T R_zero_point:T2",
            "Y:T? Y_h:T? Y_c:T?",
            {"T": ("tensor(float)",), "T1": ("tensor(int32)",), "T2": BYTES},
            {
                "direction": "forward",
                "hidden_size": 0,
                "activations": str,
                "activation_alpha": list,
                "activation_beta": list,
                "clip": float,
                "input_forget": 0,
            },
        ),
        _schema(
            "DynamicQuantizeMatMul",
            "A:T1 B:T2 b_scale:T1 b_zero_point:T2? bias:T1?",
            "Y:T1",
            {"T1": ("tensor(float)",), "T2": BYTES},
            {},
        ),
        _schema(
            "MatMulIntegerToFloat",
            "A:T1 B:T2 a_scale:T3 b_scale:T3 a_zero_point:T1? b_zero_point:T2? bias:T3?",
            "Y:T3",
            {"T1": BYTES, "T2": BYTES, "T3": HALF_OR_FLOAT},
            {},
        ),
    )


def _of_transformers() -> tuple[OpSchema, ...]:
    """What transformers are made of but attention."""
    return (
        _schema(
            "SimplifiedLayerNormalization",
            "X:T scale:V",
            "Y:V inv_std_var:U?",
            {"T": ALL_FLOATS, "U": ("tensor(float)", "tensor(double)"), "V": ALL_FLOATS},
            {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
            "",
        ),
        *(
            _schema(
                name,
                f"input:T skip:T gamma:T {beta}bias:T?",
                "output:T mean:U? inv_std_var:U? input_skip_bias_sum:T?",
                {"T": FLOATS, "U": ("tensor(float)",)},
                {"epsilon": 1e-12},
            )
            for name, beta in (("SkipLayerNormalization", "beta:T? "), ("SkipSimplifiedLayerNormalization", ""))
        ),
        *(
            _schema(name, inputs, "Y:T" if name != "BiasGelu" else "C:T", {"T": ALL_FLOATS}, attributes)
            for name, inputs, attributes in (
                ("Gelu", "X:T", {}),
                ("QuickGelu", "X:T", {"alpha": 1.702}),
                ("FastGelu", "X:T bias:T?", {}),
                ("BiasGelu", "A:T B:T", {}),
            )
        ),
        _schema(
            "EmbedLayerNormalization",
            "input_ids:T1 segment_ids:T1? word_embedding:T position_embedding:T segment_embedding:T? gamma:T "
            "beta:T mask:T1? position_ids:T1?",
            "output:T mask_index:T1? embedding_sum:T?",
            {"T1": ("tensor(int32)",), "T": HALF_OR_FLOAT},
            {"epsilon": 1e-12, "mask_index_type": 0},
        ),
        _schema(
            "LinearAttention",
            "query:T key:T value:T past_state:S? decay:T? beta:T?",
            "output:T present_state:S",
            {"T": FLOATS, "S": FLOATS},
            {
                "q_num_heads": int,
                "kv_num_heads": int,
                "update_rule": "gated_delta",
                "scale": 0.0,
                "chunk_size": 64,
                "state_window": 0,
            },
        ),
        _schema(
            "CausalConvWithState",
            "input:T weight:T bias:T? past_state:T?",
            "output:T present_state:T state_update:T?",
            {"T": FLOATS},
            {
                "ndim": 1,
                "activation": "none",
                "dilation": 1,
                "channels_last": 0,
                "state_window": 0,
                "state_length": 0,
                "state_channels_last": -1,
                "state_update_capacity": 0,
                "input_channel_offset": 0,
                "input_channels": 0,
            },
        ),
        _schema(
            "SwiGLU",
            "gate:T up:T?",
            "output:T",
            {"T": FLOATS},
            {"activation_alpha": 1.0, "activation_beta": 0.0, "limit": 0.0, "round_activation": 0},
        ),
        _schema(
            "RelativePositionBias",
            "bias_table:T query_length:U key_length:U",
            "output:T",
            {"T": HALF_OR_FLOAT, "U": ("tensor(int64)",)},
            {"is_bidirectional": 0, "max_distance": int},
        ),
        _schema("BiasAdd", "X:T bias:T skip:T", "Y:T", {"T": ("tensor(float16)", "tensor(float)")}, {}),
        _schema("BiasSplitGelu", "X:T bias:T", "Y:T", {"T": ("tensor(float16)", "tensor(float)")}, {}),
        _schema(
            "FusedMatMul",
            "A:T B:T",
            "Y:T",
            {"T": ALL_FLOATS},
            {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0},
        ),
        _schema(
            "RotaryEmbedding",
            "input:T position_ids:M cos_cache:T sin_cache:T",
            "output:T",
            {"T": FLOATS, "M": ("tensor(int64)",)},
            {"interleaved": 0, "num_heads": 0, "rotary_embedding_dim": 0, "is_packed_batching": 0, "scale": 1.0},
        ),
    )


def _of_attention() -> tuple[OpSchema, ...]:
    """Attention, and mixtures of experts."""
    return (
        _schema(
            "GroupQueryAttention",
            "query:T key:T? value:T? past_key:T_CACHE? past_value:T_CACHE? seqlens_k:M total_sequence_length:M "
            "cos_cache:T? sin_cache:T? position_ids:tensor(int64)? attention_bias:T? head_sink:T? k_scale:T_KV_SCALE? "
            "v_scale:T_KV_SCALE? q_norm_weight:T? k_norm_weight:T? query_seqlens:M?",
            "output:T present_key:T_CACHE? present_value:T_CACHE? output_qk:T?",
            {
                "T": FLOATS,
                "T_CACHE": (*FLOATS, *BYTES, "tensor(float8e4m3fn)"),
                "T_KV_SCALE": ("tensor(float)",),
                "M": ("tensor(int32)",),
            },
            {
                "num_heads": int,
                "kv_num_heads": int,
                "scale": float,
                "softcap": 0.0,
                "do_rotary": 0,
                "rotary_interleaved": 0,
                "local_window_size": -1,
                "causal": 1,
                "smooth_softmax": -1,
                "sliding_window_cache": 0,
                "kv_cache_bit_width": 0,
                "qk_output": 0,
                "qk_norm_epsilon": 1e-6,
                "q_norm_epsilon": float,
                "k_norm_epsilon": float,
                "k_quant_type": "NONE",
                "v_quant_type": "NONE",
            },
        ),
        _schema(
            "MultiHeadAttention",
            "query:T key:T? value:T? bias:T? key_padding_mask:M? attention_bias:T? past_key:T? past_value:T? "
            "past_sequence_length:M? cache_indirection:M?",
            "output:T present_key:T? present_value:T? qk:QK?",
            {"T": FLOATS, "QK": FLOATS, "M": ("tensor(int32)",)},
            {"num_heads": int, "mask_filter_value": -10000.0, "scale": float, "unidirectional": 0},
        ),
        _schema(
            "Attention",
            "input:T weights:T bias:T? mask_index:M? past:T? attention_bias:T? past_sequence_length:M?",
            "output:T present:T?",
            {"T": FLOATS, "M": ("tensor(int32)",)},
            {
                "num_heads": int,
                "unidirectional": 0,
                "qkv_hidden_sizes": (),
                "past_present_share_buffer": 0,
                "do_rotary": 0,
                "rotary_embedding_dim": 0,
                "mask_filter_value": -10000.0,
                "scale": float,
            },
        ),
        _schema(
            "QAttention",
            "input:T1 weight:T2 bias:T3 input_scale:T3 weight_scale:T3 mask_index:T4? input_zero_point:T1? "
            "weight_zero_point:T2? past:T3?",
            "output:T3 present:T3?",
            {"T1": BYTES, "T2": BYTES, "T3": HALF_OR_FLOAT, "T4": ("tensor(int32)",)},
            {
                "num_heads": int,
                "unidirectional": 0,
                "past_present_share_buffer": 0,
                "do_rotary": 0,
                "mask_filter_value": -10000.0,
                "scale": float,
            },
        ),
        _schema(
            "MoE",
            "input:T router_probs:T fc1_experts_weights:T fc1_experts_bias:T? fc2_experts_weights:T "
            "fc2_experts_bias:T? "
            "fc3_experts_weights:T? fc3_experts_bias:T?",
            "output:T",
            {"T": FLOATS},
            MIXTURE,
        ),
        _schema(
            "QMoE",
            "input:T router_probs:T fc1_experts_weights:T1 fc1_scales:T2? fc1_experts_bias:T? "
            "fc2_experts_weights:T1 fc2_scales:T2? fc2_experts_bias:T? fc3_experts_weights:T1? fc3_scales:T2? "
            "fc3_experts_bias:T? "
            "fc1_zero_points:T1? fc2_zero_points:T1? fc3_zero_points:T1? router_weights:T? "
            "fc1_global_scale:T4? fc2_global_scale:T4? fc1_act_scale:T4? fc2_act_scale:T4? "
            "fc1_act_block_scale:T2? fc2_act_block_scale:T2?",
            "output:T",
            {
                "T": FLOATS,
                "T1": ("tensor(uint8)", "tensor(float8e4m3fn)"),
                "T2": (*FLOATS, "tensor(float8e8m0)", "tensor(float8e4m3fn)"),
                "T4": ("tensor(float)",),
            },
            {
                **MIXTURE,
                "expert_weight_bits": 4,
                "fc1_expert_weight_bits": 0,
                "fc2_expert_weight_bits": 0,
                "fc3_expert_weight_bits": 0,
                "block_size": 0,
                "quant_type": "int",
                "weights_prepacked": -1,
                "accuracy_level": 0,
            },
        ),
    )


def _of_images() -> tuple[OpSchema, ...]:
    """Images channels last, and what has an activation behind it."""
    return (
        *(
            _schema(
                name,
                f"X:T gamma:M beta:M{skip}",
                outputs,
                {"T": HALF_OR_FLOAT, "M": HALF_OR_FLOAT},
                {"epsilon": 1e-5, "groups": int, "activation": int, "channels_last": 1},
            )
            for name, skip, outputs in (("GroupNorm", "", "Y:T"), ("SkipGroupNorm", " skip:T bias:T?", "Y:T S:T?"))
        ),
        _schema("NhwcConv", "X:T W:T B:T?", "Y:T", {"T": (*HALF_OR_FLOAT, "tensor(double)")}, {**WINDOW, "group": 1}),
        _schema(
            "FusedConv",
            "X:T W:T B:T? Z:T?",
            "Y:T",
            {"T": (*HALF_OR_FLOAT, "tensor(double)")},
            {**WINDOW, "group": 1, "activation": "", "activation_params": list},
        ),
        _schema(
            "GridSample",
            "X:T1 Grid:T1",
            "Y:T2",
            {
                "T1": (
                    *(
                        f"tensor({name})"
                        for name in (
                            "uint8",
                            "uint16",
                            "uint32",
                            "uint64",
                            "int8",
                            "int16",
                            "int32",
                            "int64",
                            "string",
                            "bool",
                            "complex64",
                            "complex128",
                        )
                    ),
                    *HALF_OR_FLOAT,
                    "tensor(double)",
                ),
                "T2": (*HALF_OR_FLOAT, "tensor(double)"),
            },
            {"mode": "bilinear", "padding_mode": "zeros", "align_corners": 0},
        ),
        _schema(
            "CropAndResize",
            "X:T1 rois:T1 batch_indices:T2 crop_size:T2",
            "Y:T1",
            {"T1": (*HALF_OR_FLOAT, "tensor(double)"), "T2": ("tensor(int32)",)},
            {"mode": "bilinear", "extrapolation_value": 0.0},
        ),
        _schema("NhwcMaxPool", "x:T", "y:T", {"T": BYTES}, {**WINDOW, "kernel_shape": tuple, "ceil_mode": 0}),
        _schema(
            "BiasSoftmax",
            "data:T bias:T",
            "output:T",
            {"T": (*HALF_OR_FLOAT, "tensor(double)")},
            {"axis": 1, "is_inner_broadcast": int},
        ),
        _schema(
            "FusedGemm",
            "A:T B:T C:T?",
            "Y:T",
            {
                "T": (
                    *HALF_OR_FLOAT,
                    "tensor(double)",
                    "tensor(uint32)",
                    "tensor(uint64)",
                    "tensor(int32)",
                    "tensor(int64)",
                )
            },
            {
                "transA": 0,
                "transB": 0,
                "alpha": 1.0,
                "beta": 1.0,
                "activation": "",
                "activation_alpha": float,
                "activation_beta": float,
                "activation_gamma": float,
            },
        ),
    )


def _schema(
    name: str,
    inputs: str,
    outputs: str,
    types: Mapping[str, Sequence[str]],
    attributes: Mapping[str, Given],
    domain: str = DOMAIN,
) -> OpSchema:
    """inputs, outputs: `name:type parameter`, or a type itself; `?` behind optional ones, `...` behind one that
    repeats."""
    from onnx.defs import OpSchema  # a third of what a session on the CPU loads, otherwise

    return OpSchema(
        name,
        domain,
        1,
        inputs=[_parameter(text) for text in inputs.split()],
        outputs=[_parameter(text) for text in outputs.split()],
        type_constraints=[(parameter, list(allowed), "") for parameter, allowed in types.items()],
        attributes=[_attribute(key, value) for key, value in attributes.items()],
    )


def _attribute(key: str, value: Given) -> OpSchema.Attribute:
    import onnx
    from onnx.defs import OpSchema

    kinds = OpSchema.AttrType
    without = {float: kinds.FLOAT, list: kinds.FLOATS, str: kinds.STRINGS}
    if isinstance(value, type) and value in without:
        return OpSchema.Attribute(key, without[value], "", required=False)
    if isinstance(value, type) or value == ():
        return OpSchema.Attribute(key, kinds.INT if value is int else kinds.INTS, "", required=isinstance(value, type))
    return OpSchema.Attribute(key, onnx.helper.make_attribute(key, value), "")


def _parameter(text: str) -> OpSchema.FormalParameter:
    from onnx.defs import OpSchema

    name, _, parameter = text.rstrip("?.").partition(":")
    options = OpSchema.FormalParameterOption
    option = options.Optional if text.endswith("?") else options.Variadic if text.endswith("...") else options.Single
    return OpSchema.FormalParameter(name, parameter, param_option=option)
