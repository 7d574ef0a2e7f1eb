"""Where an answer may differ from ONNX Runtime's CPU by more than rounding; docs/drop-in.md tells users the same by the same names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests.session.fuzz_models import FuzzModel

_OUTSIDE = ("nan", "infinite", "large", "any")
_ELEMENTS = re.compile(r"of \d+ \w+ differ")


def _has(model: FuzzModel, pattern: str) -> bool:
    return any(re.fullmatch(pattern, op) for op in model.nodes)


def _is_empty(model: FuzzModel) -> bool:
    return any(a.size == 0 for feeds in model.runs for a in feeds.values()) or "size 0" in " ".join(model.changes)


def _more(model: FuzzModel, defect: str) -> bool:
    return bool(re.search(r"instead of (NotImplemented|Fail.*(layout_ == 0|conv_integer|ScalesValidation|Updating cos_cache))", defect)) or (
        "instead of RuntimeException" in defect and "not currently supported" in defect)


def _order(model: FuzzModel, defect: str) -> bool:
    wanted = r"Reduce(Max|Min)|ArgM(ax|in)|.*MaxPool|TopK|Max|Min|Clip|Hardmax|Relu|LeakyRelu|PRelu|Sign|Resize"
    return bool(_ELEMENTS.search(defect)) and model.content in ("nan", "infinite", "any", "large") and _has(model, wanted)


def _recurrent(model: FuzzModel, defect: str) -> bool:
    return bool(_ELEMENTS.search(defect)) and model.content in _OUTSIDE and _has(model, "LSTM|GRU|RNN")


def _overflow(model: FuzzModel, defect: str) -> bool:
    summing = (r".*(MatMul|Gemm|Conv|Pool|Normalization|Softmax|Attention|CrossEntropy|Loss).*|Reduce.*|Einsum|GridSample|DFT|STFT|Resize|CumSum|"
               r"CumProd|Pow|Mean|Sum|Det|LRN|RotaryEmbedding|Upsample|AffineGrid|Mul|Div|Add|Sub")
    return bool(_ELEMENTS.search(defect)) and model.content in ("infinite", "large", "any", "nan") and _has(model, summing)


def _range(model: FuzzModel, defect: str) -> bool:
    return bool(_ELEMENTS.search(defect)) and model.content in _OUTSIDE and _has(model, r"Cast|CastLike|Pow|QuantizeLinear|DynamicQuantizeLinear|Mod")


def _tiny(model: FuzzModel, defect: str) -> bool:
    return bool(_ELEMENTS.search(defect)) and model.content in ("tiny", "any")


def _empty(model: FuzzModel, defect: str) -> bool:
    reduced = _has(model, r"Reduce.*|ArgM.*|.*Loss|.*Pool") and ("differ" in defect or re.search(r"\)? instead of \w+\(", defect) is not None)
    refused = re.search(r"instead of (Fail|InvalidArgument)", defect) is not None
    return _is_empty(model) and (bool(reduced) or refused)


DIFFERENCES: Mapping[str, Callable[[FuzzModel, str], bool]] = {
    "forms that the CPU has no kernel for": _more,
    "NaN among numbers that are compared": _order,
    "NaN and infinity in recurrent layers": _recurrent,
    "sums and products that leave the range": _overflow,
    "floats that no integer holds": _range,
    "denormal floats": _tiny,
    "tensors without elements": _empty,
}
"""Each by its name, and how a defect is known to be one of its kind."""


def allowed(model: FuzzModel, defect: str) -> str:
    """Name of the difference that a defect is; empty where it is a defect."""
    return next((name for name, fits in DIFFERENCES.items() if fits(model, defect)), "")
