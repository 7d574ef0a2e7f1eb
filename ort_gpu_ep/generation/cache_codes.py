"""Float caches of a decoder become codes of 8 or 4 bits, as GroupQueryAttention of ONNX Runtime defines them.

Each element of a head has a scale of its own, which must be there before the first token. So the scales come from the
keys and values of a sample that the decoder itself has read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.generation.step import PASTS, SHARES

BITS = (8, 4)

SAMPLE = 64
"""Tokens of a sample that nobody gives."""

_REACH = {8: 1.5, 4: 1.1}
"""By the bits of a code: the largest number that has a code, relative to the sample's largest one. Numbers beyond it
cost more than coarser codes do; codes of 4 bits have less room to spare."""

_KINDS = {8: TensorProto.INT8, 4: TensorProto.UINT8}

_FIRST_SCALE = 12
"""Which input of GroupQueryAttention has the scales of keys; those of values are the next one."""


def quantize_caches(model: onnx.ModelProto, sample: Mapping[str, npt.NDArray[Any]], bits: int) -> None:
    """Changes a decoder's caches of floats to codes of `bits` bits.

    sample: numbers of each cache, [B, groups, tokens, size], by the name of the model's input.

    Raises:
        ModelError: caches are no floats, or heads have elements that fill no whole words of codes.
    """
    inputs = {i.name: i for i in model.graph.input}
    kind = {"kv_cache_bit_width": bits, "k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
    for name, numbers in sample.items():
        if numbers.dtype.kind != "f" or numbers.shape[3] % (32 // bits):
            raise ModelError(
                f"generate: cache_bits: input {name!r} of the model holds {numbers.dtype} in heads of "
                f"{numbers.shape[3]}, expected floats in heads of a multiple of {32 // bits}"
            )
        tensor = inputs[name].type.tensor_type
        tensor.elem_type = _KINDS[bits]
        tensor.shape.dim[3].dim_value = numbers.shape[3] * bits // 8
        model.graph.initializer.append(numpy_helper.from_array(_scales(numbers, bits), _scale_of(name)))
    for node in model.graph.node:
        if node.op_type == SHARES:
            operands = [*node.input, *[""] * (_FIRST_SCALE + 2 - len(node.input))]
            operands[_FIRST_SCALE : _FIRST_SCALE + 2] = [_scale_of(node.input[at]) for at in PASTS]
            node.input[:] = operands
            node.attribute.extend(helper.make_attribute(*item) for item in kind.items())


def _scale_of(past: str) -> str:
    return f"generation.scale.{past}"


def _scales(numbers: npt.NDArray[Any], bits: int) -> npt.NDArray[np.float32]:
    """[1, groups, 1, size]; an element that the sample never has gets the largest scale of its head."""
    largest = np.abs(numbers.astype(np.float32)).max(axis=(0, 2), keepdims=True)
    largest = np.where(largest > 0, largest, largest.max(axis=3, keepdims=True))
    return np.asarray(np.where(largest > 0, largest, 1) * (_REACH[bits] / (2 ** (bits - 1) - 1)), np.float32)
