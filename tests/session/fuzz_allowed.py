"""Where an answer may differ from ONNX Runtime's CPU by more than rounding; docs/drop-in.md tells users the same by the
same names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.session.fuzz_models import FuzzModel
from tests.session.random_graphs import Array

_OUTSIDE = ("nan", "infinite", "large", "any")
_ELEMENTS = re.compile(r"of \d+ \w+ differ")


def _has(model: FuzzModel, pattern: str) -> bool:
    return any(re.fullmatch(pattern, op) for op in model.nodes)


def _is_empty(model: FuzzModel) -> bool:
    return any(a.size == 0 for feeds in model.runs for a in feeds.values()) or "size 0" in " ".join(model.changes)


def _fed(model: FuzzModel, defect: str) -> dict[str, Array]:
    """What the model's inputs were in the run of a defect."""
    found = re.match(r"run (\d+): ", defect)
    return model.runs[int(found[1])] if found else {}


def _read(model: FuzzModel, defect: str, ops: str) -> Iterator[tuple[Any, Array]]:
    """Nodes of these operators whose first input is the model's, and what it holds in the run of a defect."""
    graph = onnx.load_from_string(model.model).graph
    known = {t.name: numpy_helper.to_array(t) for t in graph.initializer} | _fed(model, defect)
    yield from (
        (n, known[n.input[0]]) for n in graph.node if re.fullmatch(ops, n.op_type) and n.input and n.input[0] in known
    )


def _more(model: FuzzModel, defect: str) -> bool:
    return bool(
        re.search(
            r"instead of (NotImplemented|Fail.*(layout_ == 0|output_dtype U?INT8 does not match|conv_integer|ScalesValidation|Updating cos_cache))",
            defect,
        )
    ) or ("instead of RuntimeException" in defect and "not currently supported" in defect)


def _order(model: FuzzModel, defect: str) -> bool:
    wanted = r"Reduce(Max|Min)|ArgM(ax|in)|.*MaxPool|TopK|Max|Min|Clip|Hardmax|Relu|LeakyRelu|PRelu|Sign|Resize"
    return (
        bool(_ELEMENTS.search(defect)) and model.content in ("nan", "infinite", "any", "large") and _has(model, wanted)
    )


def _recurrent(model: FuzzModel, defect: str) -> bool:
    return bool(_ELEMENTS.search(defect)) and model.content in _OUTSIDE and _has(model, "LSTM|GRU|RNN")


def _overflow(model: FuzzModel, defect: str) -> bool:
    summing = (
        r".*(MatMul|Gemm|Conv|Pool|Normalization|Softmax|Attention|CrossEntropy|Loss).*|Reduce.*|Einsum|GridSample|DFT|STFT|Resize|CumSum|"
        r"CumProd|Pow|Mean|Sum|Det|LRN|RotaryEmbedding|Upsample|AffineGrid|Mul|Div|Add|Sub"
    )
    return (
        bool(_ELEMENTS.search(defect)) and model.content in ("infinite", "large", "any", "nan") and _has(model, summing)
    )


def _range(model: FuzzModel, defect: str) -> bool:
    if not _ELEMENTS.search(defect):
        return False
    if model.content in _OUTSIDE and _has(model, r"Cast|CastLike|Pow|QuantizeLinear|DynamicQuantizeLinear|Mod"):
        return True
    kind = re.search(r"of \d+ (u?)int(\d+) differ", defect)
    return kind is not None and any(
        _outside(values, not kind[1], int(kind[2])) for _, values in _read(model, defect, "Cast|CastLike")
    )


def _outside(values: Array, signed: bool, bits: int) -> bool:
    """Whether one of these floats, without its fraction, is not in the range of an integer type."""
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (0.0, 2.0**bits)
    whole = np.trunc(values.astype("f8")) if values.dtype.kind == "f" else np.zeros(0)
    return not ((whole >= low) & (whole < high)).all()


def _equal(model: FuzzModel, defect: str) -> bool:
    """All elements that MeanVarianceNormalization takes together are the same, in one place at least."""
    for node, values in _read(model, defect, "MeanVarianceNormalization") if _ELEMENTS.search(defect) else ():
        axes = next((tuple(a.ints) for a in node.attribute if a.name == "axes"), (0, 2, 3))
        if not np.ptp(values.astype("f8"), axis=axes).all():
            return True
    return False


def _tiny(model: FuzzModel, defect: str) -> bool:
    return bool(_ELEMENTS.search(defect)) and model.content in ("tiny", "any")


def _compared(model: FuzzModel, defect: str) -> bool:
    """Integers that 32 bits do not hold, compared as int64."""
    fed = (a for a in _fed(model, defect).values() if a.dtype.kind in "iu" and a.size)
    return (
        " int64 differ" in defect
        and _has(model, "ReduceM(ax|in)")
        and any(int(a.max()) >= 2**31 or int(a.min()) < -(2**31) for a in fed)
    )


def _empty(model: FuzzModel, defect: str) -> bool:
    reduced = _has(model, r"Reduce.*|ArgM.*|.*Loss|.*Pool") and (
        "differ" in defect or re.search(r"\)? instead of \w+\(", defect) is not None
    )
    refused = re.search(r"instead of (Fail|InvalidArgument|RuntimeException.*empty set)", defect) is not None
    unset = (
        " float32 differ, 0.0 instead of " in defect
        and _has(model, "MatMul")
        and any(a.size == 0 for a in _fed(model, defect).values())
    )
    return _is_empty(model) and (bool(reduced) or refused or unset)


def _made_wrong(model: FuzzModel, defect: str) -> bool:
    """onnxruntime's optimisations give a decoder of bytes with a scale for each row, and no zero point, one zero point
    for all."""
    if not re.search(r"instead of Fail: .*running DequantizeLinear node.*PrepareForQDQ", defect):
        return False
    graph = onnx.load_from_string(model.model).graph
    sizes = {t.name: tuple(t.dims) for t in graph.initializer}
    decoders = [
        n for n in graph.node if n.op_type == "DequantizeLinear" and len(n.input) == 2 and set(n.input) <= set(sizes)
    ]
    return any(
        sizes[n.input[1]] == (sizes[n.input[0]][a.i],) for n in decoders for a in n.attribute if a.name == "axis"
    )


def _short_mask(model: FuzzModel, defect: str) -> bool:
    """A mask of one axis, or of fewer keys than there are."""
    fed = _fed(model, defect)
    for node in onnx.load_from_string(model.model).graph.node if "instead of Fail: " in defect else ():
        if node.op_type == "Attention" and len(node.input) > 3 and {*node.input[:4]} <= {*fed}:
            mask, keys = (
                fed[node.input[3]],
                fed[node.input[1]].shape[-2] + (fed[node.input[4]].shape[-2] if node.input[4:5] else 0),
            )
            if mask.ndim < 2 or mask.shape[-1] < keys:
                return True
    return False


def _unseen(model: FuzzModel, defect: str) -> bool:
    """Minus infinity where onnxruntime has the lowest number, and the scores behind the mask are an output."""
    lowest = re.search(r"differ, -inf instead of (-3\.40282\d*e\+38|-655\d\d\.0) ", defect)
    return lowest is not None and any(
        n.op_type == "Attention"
        and n.output[3:4]
        and any(a.name == "qk_matmul_output_mode" and a.i == 2 for a in n.attribute)
        for n in onnx.load_from_string(model.model).graph.node
    )


def _unique(model: FuzzModel, defect: str) -> bool:
    wanted = any(
        a.name == "axis"
        for n in onnx.load_from_string(model.model).graph.node
        if n.op_type == "Unique"
        for a in n.attribute
    )
    return wanted and any(np.isnan(a).any() for a in _fed(model, defect).values() if a.dtype.kind == "f")


DIFFERENCES: Mapping[str, Callable[[FuzzModel, str], bool]] = {
    "operators that the CPU has no kernel for": _more,
    "NaN in comparisons": _order,
    "NaN and infinity in recurrent layers": _recurrent,
    "overflow in sums and products": _overflow,
    "floats beyond the range of an integer": _range,
    "equal elements in MeanVarianceNormalization": _equal,
    "large int64 in ReduceMax and ReduceMin": _compared,
    "denormal floats": _tiny,
    "tensors without elements": _empty,
    "a scale for each row and no zero point": _made_wrong,
    "masks of fewer keys in Attention": _short_mask,
    "scores of keys that are not seen in Attention": _unseen,
    "NaN in Unique along an axis": _unique,
}
"""Each by its name, and how a defect is known to be one of its kind."""


def allowed(model: FuzzModel, defect: str) -> str:
    """Name of the difference that a defect is; empty where it is a defect."""
    return next((name for name, fits in DIFFERENCES.items() if fits(model, defect)), "")


_TOLD_BY_RUNS = re.compile(
    r"Resize of \d axes; taken|over no elements has no value|: Dropout in training mode|is not a whole number"
)
"""Declines of what a claim can't know: values of inputs, and that a size is 0."""


def told_by_run(message: str) -> bool:
    """Whether a node that was claimed ran on the CPU for what only a run tells."""
    return bool(_TOLD_BY_RUNS.search(message))
