"""The user's model: converts its opset, and inlines its functions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, version_converter

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.ir.graph import Array

MIN_OPSET = 13
"""From here on axes of ReduceSum, Squeeze and Unsqueeze are inputs, and Softmax is over one axis."""

Model: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"


def opset_of(model: onnx.ModelProto) -> int:
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without local functions, of opset MIN_OPSET or newer; the one given is left as it is."""
    if model.functions:
        model = inliner.inline_local_functions(model)
    if opset_of(model) < MIN_OPSET:
        try:
            model = version_converter.convert_version(model, MIN_OPSET)
        except Exception as error:  # the converter raises what its C++ does
            raise TrainingError(
                f"the model is of opset {opset_of(model)}, training needs {MIN_OPSET} or newer, and onnx can't "
                f"convert it "
                f"({error}); export it again with a newer opset"
            ) from error
    return model


def initializers(model: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def statistics(model: onnx.ModelProto) -> set[str]:
    """Names of the running statistics of BatchNormalization: they are no weights."""
    return {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]}


def chosen(
    arrays: Mapping[str, Array],
    not_weights: set[str],
    patterns: Sequence[str] | None,
    frozen: Sequence[str] = (),
) -> list[str]:
    """Initializers to train. None: all of float32 that have more than one element. frozen: patterns of those that stay
    as they are.

    Raises: TrainingError, for a pattern that matches nothing, and where nothing is left.
    """
    candidates = [n for n, a in arrays.items() if a.dtype == np.float32 and n not in not_weights]
    if not candidates:
        kinds = ", ".join(sorted({str(a.dtype) for a in arrays.values()})) or "none at all"
        raise TrainingError(
            f"the model has no float32 weights to train (its initializers are: {kinds}); quantized and float16 "
            f"models are "
            "trained before they are converted"
        )
    kept = matching("frozen", frozen, candidates)
    names = (
        [n for n in candidates if arrays[n].size > 1]
        if patterns is None
        else matching("trainable", patterns, candidates)
    )
    if not names:
        raise TrainingError("trainable: got no pattern; None trains all weights")
    left = [n for n in names if n not in kept]
    if not left:
        raise TrainingError(f"frozen: {', '.join(map(repr, frozen))} leaves no weight to train; choose fewer")
    return left


def matching(what: str, patterns: Iterable[str], names: Sequence[str]) -> list[str]:
    """The names that one of the patterns (fnmatch) matches. Raises TrainingError for a pattern that matches none."""
    if isinstance(patterns, str):
        raise TrainingError(f"{what}: got the text {patterns!r}, expected a list of patterns: [{patterns!r}]")
    matches = dict[str, None]()
    for pattern in patterns:
        some = [n for n in names if fnmatchcase(n, pattern)]
        if not some:
            raise TrainingError(
                f"{what}: {pattern!r} matches none of the model's {len(names)} float32 weights; {_hint(pattern, names)}"
            )
        matches.update(dict.fromkeys(some))
    return list(matches)


def _hint(pattern: str, names: Sequence[str]) -> str:
    near = (
        get_close_matches(pattern.replace("*", ""), names, 3, 0.3)
        or [n for n in names if pattern.strip("*").lower() in n.lower()][:3]
    )
    return (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else f"there are {', '.join(map(repr, names[:5]))}" + (", ..." if len(names) > 5 else "")
    )


def input_shapes(
    model: onnx.ModelProto,
    given: Mapping[str, Sequence[int]],
    batch: int | None,
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Element type and shape of each input of the model. batch: for the first dimension where it is open and no shape
    is given.

    Raises: TrainingError, for sizes that the model leaves open and nobody gives, and for those that contradict the
    model.
    """
    stored = {t.name for t in model.graph.initializer}
    infos = [i for i in model.graph.input if i.name not in stored]
    unknown = set(given) - {i.name for i in infos}
    if unknown:
        raise TrainingError(
            f"input {sorted(unknown)[0]!r}: the model has no such input; it has "
            f"{', '.join(repr(i.name) for i in infos)}"
        )
    return {
        i.name: (helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type), _shape(i, given.get(i.name), batch))
        for i in infos
    }


def fixed_batch(model: onnx.ModelProto) -> int | None:
    """The number of samples that the model's inputs fix; None where they leave it open, or differ."""
    stored = {t.name for t in model.graph.initializer}
    dims = [i.type.tensor_type.shape.dim for i in model.graph.input if i.name not in stored]
    sizes = {d[0].dim_value if d and d[0].HasField("dim_value") else None for d in dims}
    return sizes.pop() if len(sizes) == 1 else None


def _shape(info: onnx.ValueInfoProto, given: Sequence[int] | None, batch: int | None) -> tuple[int, ...]:
    dims = info.type.tensor_type.shape.dim
    own = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in dims]
    if given is not None:
        fits = len(given) == len(own) and all(isinstance(d, str) or d == g for d, g in zip(own, given, strict=True))
        if not fits:
            advice = (
                ""
                if len(given) != len(own) or own[1:] != list(given)[1:]
                else (f"; its batch size is fixed: give batches of {own[0]}, or export it with an open first dimension")
            )
            raise TrainingError(f"input {info.name!r}: got the shape {list(given)}, expected {_text(own)}{advice}")
        return tuple(int(g) for g in given)
    if own and isinstance(own[0], str) and batch is not None:
        own[0] = batch
    if any(isinstance(d, str) for d in own):
        raise TrainingError(
            f"input {info.name!r}: its shape {_text(own)} is open; give the sizes (shapes={{{info.name!r}: (...)}})"
        )
    return tuple(int(d) for d in own)


def _text(dims: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, dims))}]"
