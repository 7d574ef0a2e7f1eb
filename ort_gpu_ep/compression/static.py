"""int8 weights and activations: onnxruntime's own static quantizer, per channel, in QuantizeLinear and
DequantizeLinear."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ort_gpu_ep.compression.layers import Array, Layer
from ort_gpu_ep.compression.report import LayerReport
from ort_gpu_ep.errors import ModelError


def quantized(
    model: onnx.ModelProto,
    layers: Sequence[Layer],
    feeds: Sequence[Mapping[str, Array]],
) -> tuple[onnx.ModelProto, list[LayerReport]]:
    """The model with uint8 activations between int8 products, and its layers. feeds: samples that ranges are taken
    from.

    Layers that the quantizer leaves are reported as float32. Raises ModelError where it fails.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self.left: Iterator[Any] = iter(feeds)

        def get_next(self) -> Any:
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "model.onnx", Path(folder) / "int8.onnx"
        try:
            onnx.save(onnx.shape_inference.infer_shapes(_with_flat_biases(model)), source)
            with _without_advice():
                quantize_static(
                    source,
                    target,
                    Reader(),
                    QuantFormat.QDQ,
                    per_channel=True,
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                )
        except OSError as error:
            raise ModelError(
                f"temporary files in {folder}: {error.strerror or error}; TMPDIR names another folder"
            ) from error
        except Exception as error:
            raise ModelError(
                f"onnxruntime's static quantization of the model fails ({type(error).__name__}: {error}); "
                "int8 without calibration data makes weights int8 alone"
            ) from error
        result = onnx.load(target)
    initializers = {i.name: i for i in result.graph.initializer}
    return result, [_reported(layer, initializers) for layer in layers]


@contextmanager
def _without_advice() -> Iterator[None]:
    """onnxruntime's quantizer logs advice to the root logger: to run a preparation that this package has done. Others'
    messages pass."""

    def is_ours(record: logging.LogRecord) -> bool:
        return f"{os.sep}onnxruntime{os.sep}quantization{os.sep}" not in record.pathname

    root = logging.getLogger()
    root.addFilter(is_ours)
    try:
        yield
    finally:
        root.removeFilter(is_ours)


def _with_flat_biases(model: onnx.ModelProto) -> onnx.ModelProto:
    """Biases of Gemm [1, n] as [n]: onnxruntime's quantizer has no scale for each output of others."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    biases = {n.input[2] for n in copy.graph.node if n.op_type == "Gemm" and len(n.input) > 2}
    biases -= {name for n in copy.graph.node for name in (n.input[:2] if n.op_type == "Gemm" else n.input)}
    biases -= {i.name for i in (*copy.graph.input, *copy.graph.output)}
    for initializer in copy.graph.initializer:
        if initializer.name in biases and len(initializer.dims) == 2 and initializer.dims[0] == 1:
            del initializer.dims[0]
    return copy


def _reported(layer: Layer, held: Mapping[str, onnx.TensorProto]) -> LayerReport:
    """What became of a layer, by the constants that the quantizer names after its weight."""
    codes, scale, zero = (held.get(f"{layer.weight}_{what}") for what in ("quantized", "scale", "zero_point"))
    if codes is None or scale is None or zero is None:
        return LayerReport(
            layer.name, layer.node.op_type, "int8", "float32", layer.array.nbytes, layer.array.nbytes, 1.0, 0.0
        )
    numbers, scales = numpy_helper.to_array(codes), numpy_helper.to_array(scale)
    axis = layer.perm.index(0)
    shape = [1] * numbers.ndim
    if scales.size > 1:
        shape[axis] = scales.size
    dense = (numbers.astype(np.float32) - numpy_helper.to_array(zero).reshape(shape)) * scales.reshape(shape)
    error = float(np.linalg.norm(dense - layer.array) / max(float(np.linalg.norm(layer.array)), 1e-30))
    return LayerReport(
        layer.name,
        layer.node.op_type,
        "int8",
        "int8",
        layer.array.nbytes,
        numbers.nbytes + scales.nbytes,
        float(np.count_nonzero(numbers)) / numbers.size,
        error,
    )
