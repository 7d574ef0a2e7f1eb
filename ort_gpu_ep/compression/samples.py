"""Calibration data: arrays of samples for a model's inputs, and what a model gives for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from ort_gpu_ep.compression.layers import Array
from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.feeds import arrays_in, random_feeds
from ort_gpu_ep.providers import CPU_PROVIDER


def session_of(model: onnx.ModelProto) -> Any:
    """On ONNX Runtime's CPU, with products of packed weights as the file has them. Raises what onnxruntime raises."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU_PROVIDER])


def load_samples(path: Path | str | Mapping[str, Array], session: Any) -> list[dict[str, Array]]:
    """Feeds of the model, each a batch. path: a .npz file (or its arrays) with an array for each input, samples along the first axis.

    Raises ModelError for another file, and names, types or shapes that are not the model's.
    """
    given = dict(path) if isinstance(path, Mapping) else arrays_in(path, "calibration data")
    inputs = {i.name: i for i in session.get_inputs()}
    if set(given) != set(inputs):
        raise ModelError(f"calibration data has arrays {sorted(given)}; expected one for each input: {sorted(inputs)}")
    counts = {name: len(array) if array.ndim else 0 for name, array in given.items()}
    if len(set(counts.values())) != 1 or not min(counts.values()):
        raise ModelError(f"calibration data has {counts} samples; expected as many for each input, along the first axis")
    batch = 1
    for name, array in given.items():
        shape = inputs[name].shape
        fixed = [(a, d) for a, d in zip(array.shape[1:], shape[1:], strict=False) if isinstance(d, int) and a != d]
        if array.ndim != len(shape) or fixed:
            raise ModelError(f"calibration array {name!r} has shape {list(array.shape)}; expected samples of {list(shape)}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ModelError(f"calibration array {name!r} has NaN or infinite elements")
        batch = max(batch, shape[0] if isinstance(shape[0], int) else min(counts[name], 64))
    count = next(iter(counts.values())) // batch * batch
    if not count:
        raise ModelError(f"calibration data has {next(iter(counts.values()))} samples; the model takes {batch} at a time")
    return [{name: array[k:k + batch] for name, array in given.items()} for k in range(0, count, batch)]


def random_samples(session: Any) -> list[dict[str, Array]]:
    return [random_feeds(session)]


def differences(before: Any, after: Any, feeds: Sequence[Mapping[str, Array]]) -> tuple[float, float | None]:
    """(largest relative L2 error of an output, part of the samples whose largest element of the first output is the same)."""
    pairs = list(_outputs(before, after, feeds))
    errors = [np.linalg.norm(b.astype(np.float64) - a) / max(float(np.linalg.norm(a)), 1e-30) for a, b in pairs if a.dtype.kind == "f"]
    first = [(a, b) for k, (a, b) in enumerate(pairs) if k % len(before.get_outputs()) == 0 and a.ndim >= 2 and a.dtype.kind == "f"]
    same = [np.ravel(a.argmax(-1) == b.argmax(-1)) for a, b in first]
    return float(max(errors, default=0.0)), float(np.concatenate(same).mean()) if same else None


def _outputs(before: Any, after: Any, feeds: Sequence[Mapping[str, Array]]) -> Iterator[tuple[Array, Array]]:
    for feed in feeds:
        for a, b in zip(before.run(None, feed), after.run(None, feed), strict=True):
            if isinstance(a, np.ndarray):
                yield a, b
