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
from ort_gpu_ep.feeds import arrays_in, dtype_of, random_feeds
from ort_gpu_ep.providers import CPU_PROVIDER

SIZES = (1, 16, 64)
"""Of random inputs where the model leaves them open: what most take, what windows and strides need."""


def session_of(model: onnx.ModelProto) -> Any:
    """On ONNX Runtime's CPU, with products of packed weights as the file has them. Raises what onnxruntime raises."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4      # what a run refuses is raised, too
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU_PROVIDER])


def load_samples(path: Path | str | Mapping[str, Array], session: Any) -> list[dict[str, Array]]:
    """Feeds of the model, each a batch. path: a .npz file (or its arrays) with an array for each input, samples along the first axis; one
    value for an input of rank 0. Numbers of another precision are converted.

    Raises ModelError for another file, and names, types or shapes that are not the model's.
    """
    given = dict(path) if isinstance(path, Mapping) else arrays_in(path, "calibration data")
    inputs = {i.name: i for i in session.get_inputs()}
    if set(given) != set(inputs):
        raise ModelError(f"calibration data has arrays {sorted(given)}; expected one for each input: {sorted(inputs)}")
    given = {name: _checked(name, array, inputs[name]) for name, array in given.items()}
    counts = {name: len(array) for name, array in given.items() if array.ndim}
    if len(set(counts.values())) != 1 or not min(counts.values()):
        raise ModelError(f"calibration data has {counts} samples; expected as many for each input, along the first axis")
    count = next(iter(counts.values()))
    fixed = [inputs[name].shape[0] for name in counts if isinstance(inputs[name].shape[0], int)]
    batch = max(fixed, default=min(count, 64))
    if count < batch or batch < 1:
        raise ModelError(f"calibration data has {count} samples; the model takes {batch} at a time")
    begins = range(0, count - batch + 1 if fixed else count, batch)     # the last may be a smaller one where the model takes any
    return [{name: array[k:k + batch] if array.ndim else array for name, array in given.items()} for k in begins]


def _checked(name: str, array: Array, value: Any) -> Array:
    """The array as the model takes it. Raises ModelError."""
    fixed = [(a, d) for a, d in zip(array.shape[1:], value.shape[1:], strict=False) if isinstance(d, int) and a != d]
    if array.ndim != len(value.shape) or fixed:
        raise ModelError(f"calibration array {name!r} has shape {list(array.shape)}; expected samples of {list(value.shape)}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ModelError(f"calibration array {name!r} has NaN or infinite elements")
    wanted = dtype_of(value)
    if wanted is None or array.dtype == wanted:
        return array
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise ModelError(f"calibration array {name!r} is {array.dtype}; the model takes {wanted}")
    return array.astype(wanted)


def random_samples(session: Any) -> list[dict[str, Array]]:
    """Random inputs that the model runs on: with open sizes of 1, or of the next of SIZES. Raises ModelError where it runs on none."""
    refused = ""
    for size in SIZES:
        feeds = random_feeds(session, default=size)
        try:
            session.run(None, feeds)
        except Exception as error:      # of onnxruntime, which has a type for each
            refused = refused or f"the model does not run on random inputs ({' '.join(str(error).rpartition(' : ')[2].split())})"
            continue
        return [feeds]
    raise ModelError(refused)


def differences(before: Any, after: Any, feeds: Sequence[Mapping[str, Array]]) -> tuple[float | None, float | None]:
    """(largest relative L2 error of an output, where what was is finite, None for outputs without such elements; part of the samples whose
    largest element of the first output is the same).
    """
    pairs = list(_outputs(before, after, feeds))
    errors = [e for a, b in pairs if a.dtype.kind == "f" and (e := _relative(b, a)) is not None]
    firsts = pairs[::len(before.get_outputs())]
    first = [(a, b) for a, b in firsts if a.ndim >= 2 and a.size and a.dtype.kind == "f"]
    same = [np.ravel(a.argmax(-1) == b.argmax(-1)) for a, b in first]
    return max(errors, default=None), float(np.concatenate(same).mean()) if same else None


def _relative(got: Array, wanted: Array) -> float | None:
    finite = np.isfinite(wanted)
    if not finite.any():
        return None
    a, b = wanted[finite].astype(np.float64), np.nan_to_num(got[finite].astype(np.float64))
    return float(np.linalg.norm(b - a) / max(float(np.linalg.norm(a)), 1e-30))


def _outputs(before: Any, after: Any, feeds: Sequence[Mapping[str, Array]]) -> Iterator[tuple[Array, Array]]:
    for feed in feeds:
        for a, b in zip(before.run(None, feed), after.run(None, feed), strict=True):
            if isinstance(a, np.ndarray):
                yield a, b
