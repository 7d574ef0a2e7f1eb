"""Calibration data: samples for a model's inputs, and the model's outputs for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from ort_gpu_ep.compression.layers import Array
from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.inputs.feeds import array_in, arrays_in, dtype_of
from ort_gpu_ep.inputs.guess import guess, structure_of
from ort_gpu_ep.providers import CPU_PROVIDER

HELD_OUT = 4
"""Each fourth sample is held out: nothing is fitted to it, so that outputs are compared on it."""

LABELS = ("y", "labels")
"""Names of labels in a file of samples."""


def session_of(model: onnx.ModelProto) -> Any:
    """On ONNX Runtime's CPU, with products of packed weights as the file has them. Raises what onnxruntime raises."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what a run refuses is raised, too
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU_PROVIDER])


@dataclass(frozen=True)
class Samples:
    """A user's samples. fit: feeds that methods fit to. held: feeds that outputs are compared on; the same as fit where
    there are too few samples to hold some out (held_out is False then). labels: the classes of the samples in held,
    None where none were given.
    """

    fit: list[dict[str, Array]]
    held: list[dict[str, Array]]
    held_out: bool
    labels: Array | None = None


@dataclass(frozen=True)
class Comparison:
    """Outputs before and after, on `samples` samples.

    error: the largest relative L2 error of an output, where the values before are finite; None for outputs without such
    elements. predictions: how many largest elements along the last axis the first output has, same: how many of them
    are at the same place; 0 where the first output has no classes. right: how many of the predictions are their label,
    before and after; None without labels.
    """

    samples: int
    error: float | None
    predictions: int = 0
    same: int = 0
    right: tuple[int, int] | None = None


def load_samples(
    path: Path | str | Mapping[str, Array], session: Any, labels: Path | str | Array | None = None
) -> Samples:
    """path: a .npz file (or its arrays) with an array for each input, samples along the first axis; one value for an
    input of rank 0. Numbers of another precision are converted. labels: a .npy file or an array, an integer a sample;
    else an array `y` or `labels` of the file, if no input has that name.

    Raises ModelError for another file, and names, types or shapes that are not the model's.
    """
    arrays = dict(path) if isinstance(path, Mapping) else arrays_in(path, "calibration data")
    inputs = {i.name: i for i in session.get_inputs()}
    classes = next((arrays.pop(name) for name in LABELS if name in arrays and name not in inputs), None)
    if labels is not None:
        classes = labels if isinstance(labels, np.ndarray) else array_in(labels, "labels")
    if set(arrays) != set(inputs):
        raise ModelError(f"calibration data has arrays {sorted(arrays)}; expected one for each input: {sorted(inputs)}")
    arrays = {name: _checked(name, array, inputs[name]) for name, array in arrays.items()}
    counts = {name: len(array) for name, array in arrays.items() if array.ndim}
    if len(set(counts.values())) != 1 or not min(counts.values()):
        raise ModelError(
            f"calibration data has {counts} samples; expected as many for each input, along the first axis"
        )
    count = next(iter(counts.values()))
    if classes is not None and (classes.dtype.kind not in "iub" or classes.shape[:1] != (count,)):
        raise ModelError(
            f"labels are {classes.dtype}{list(classes.shape)}; expected an integer for each of the {count} samples"
        )
    fixed = max((inputs[name].shape[0] for name in counts if isinstance(inputs[name].shape[0], int)), default=0)
    if count < fixed:
        raise ModelError(f"calibration data has {count} samples; the model takes {fixed} at a time")
    apart = np.arange(count) % HELD_OUT == HELD_OUT - 1
    if count < 2 * HELD_OUT or int(apart.sum()) < fixed:
        return Samples(
            _batches(arrays, fixed),
            _batches(arrays, fixed),
            False,
            None if classes is None else _whole(classes, count, fixed),
        )
    kept = None if classes is None else _whole(classes[apart], int(apart.sum()), fixed)
    parts = [{n: a[chosen] if a.ndim else a for n, a in arrays.items()} for chosen in (~apart, apart)]
    return Samples(_batches(parts[0], fixed), _batches(parts[1], fixed), True, kept)


def _batches(arrays: Mapping[str, Array], fixed: int) -> list[dict[str, Array]]:
    """fixed: how many samples the model takes at a time, 0 if any: then the last batch may be smaller."""
    count = next(len(a) for a in arrays.values() if a.ndim)
    batch = fixed or min(count, 64)
    begins = range(0, count - batch + 1 if fixed else count, batch)
    return [{name: a[k : k + batch] if a.ndim else a for name, a in arrays.items()} for k in begins]


def _whole(labels: Array, count: int, fixed: int) -> Array:
    """The labels of the samples that fill batches."""
    return labels[: count // fixed * fixed] if fixed else labels


def _checked(name: str, array: Array, value: Any) -> Array:
    """The array as the model takes it. Raises ModelError."""
    fixed = [(a, d) for a, d in zip(array.shape[1:], value.shape[1:], strict=False) if isinstance(d, int) and a != d]
    if array.ndim != len(value.shape) or fixed:
        raise ModelError(
            f"calibration array {name!r} has shape {list(array.shape)}; expected samples of {list(value.shape)}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ModelError(f"calibration array {name!r} has NaN or infinite elements")
    dtype = dtype_of(value)
    if dtype is None or array.dtype == dtype:
        return array
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ModelError(f"calibration array {name!r} is {array.dtype}; the model takes {dtype}")
    return array.astype(dtype)


def random_samples(session: Any, model: onnx.ModelProto) -> list[dict[str, Array]]:
    """Random inputs that the model runs on (guess.py). Raises ModelError where it runs on none."""
    guessed = guess(session.get_inputs(), structure_of(model), tries=lambda feeds: session.run(None, dict(feeds)))
    if guessed.refused:
        raise ModelError(f"the model does not run on random inputs ({guessed.refused.rpartition(' : ')[2]})")
    return [dict(guessed.feeds)]


def compared(before: Any, after: Any, feeds: Sequence[Mapping[str, Array]], labels: Array | None = None) -> Comparison:
    """labels: of the samples in feeds. Raises ModelError for labels that are no classes of the first output."""
    pairs = list(_outputs(before, after, feeds))
    errors = [e for a, b in pairs if a.dtype.kind == "f" and (e := _relative(b, a)) is not None]
    samples = sum(next((len(a) for a in feed.values() if a.ndim), 1) for feed in feeds)
    comparison = Comparison(samples, max(errors, default=None))
    firsts = pairs[:: len(before.get_outputs())]
    first = [(a, b) for a, b in firsts if a.ndim >= 2 and a.shape[-1] > 1 and a.size and a.dtype.kind == "f"]
    if not first:
        if labels is not None:
            raise ModelError(
                f"labels need an output of classes, [samples, classes]; the first output is "
                f"{before.get_outputs()[0].shape}"
            )
        return comparison
    was, now = (np.concatenate([pair[k].argmax(-1) for pair in first]) for k in (0, 1))
    comparison = replace(comparison, predictions=was.size, same=int((was == now).sum()))
    if labels is None:
        return comparison
    classes = first[0][0].shape[-1]
    if labels.shape != was.shape or (labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < classes):
        raise ModelError(
            f"labels {list(labels.shape)} of {labels.min()} to {labels.max()} don't fit the first output: "
            f"expected {list(was.shape)} of 0 to {classes - 1}"
        )
    return replace(comparison, right=(int((was == labels).sum()), int((now == labels).sum())))


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
