"""Ops of ai.onnx.ml that scikit-learn's pipelines begin or end with: Scaler, Normalizer, Imputer, LinearRegressor,
LinearClassifier.

Their parameters are attributes; partitioner/standard.py makes constants of them, behind the input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Step
from ort_gpu_ep.ir.types import FLOAT32, FLOAT64, INT32, INT64, TensorType
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Lowering, kernel, op
from ort_gpu_ep.ops.composed import Composed, Part
from ort_gpu_ep.ops.elementwise import constant, in_pairs

DOMAIN = "ai.onnx.ml"
PARAMETERS: Mapping[str, Mapping[str, type[np.generic]]] = {
    "Scaler": {"offset": np.float32, "scale": np.float32},
    "Imputer": {"imputed_value_floats": np.float32, "imputed_value_int64s": np.int64},
    "LinearRegressor": {"coefficients": np.float32, "intercepts": np.float32},
    "LinearClassifier": {"coefficients": np.float32, "intercepts": np.float32, "classlabels_ints": np.int64},
}
"""By op, the attributes that become its inputs from the second on, in this order, and their element types."""

NUMBERS = (FLOAT32, FLOAT64, INT64, INT32)


def _features(node: BoundNode) -> int:
    """Of a sample. Raises UnsupportedNodeError for what is neither samples nor one of them."""
    x = node.input(0)
    if x.rank not in (1, 2):
        raise UnsupportedNodeError(Code.RANK, f"{node.op} of {x.type}; expected [features] or [samples, features]")
    return x.shape[-1]


def _parameter(node: BoundNode, position: int, *sizes: int) -> None:
    """Raises UnsupportedNodeError where a parameter is not there, or has another size than these."""
    name = list(PARAMETERS[node.op])[position - 1]
    if not node.has(position):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} without {name}, or with option fusion=0, which leaves it an attribute"
        )
    if node.input(position).size not in sizes:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"{node.op} with {node.input(position).size} {name}; expected "
            f"{' or '.join(map(str, dict.fromkeys(sizes)))}",
        )


def _floats(made: Composed) -> Part:
    """The input in float32."""
    x = made.given(0)
    return x if x.operand.dtype is FLOAT32 else made.add_all("Cast", (x,), (None,), attributes={"to": FLOAT32.onnx})[0]


@op("Scaler", domain=DOMAIN, dtypes={"T": NUMBERS}, bindings="x offset? scale? -> y")
def scaler(node: BoundNode) -> Kernel | Lowering:
    """y = (x - offset) * scale, each a number or one a feature. x, y: [features] or [samples, features]."""
    features, dtype = _features(node), node.input(0).dtype
    for position in (1, 2):
        _parameter(node, position, 1, features)
    if node.input(1).size != node.input(2).size:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"Scaler with {node.input(1).size} offset and {node.input(2).size} scale"
        )
    wide = {FLOAT64: "f32((x - f64(y)) * f64(z))", INT32: "(f32(x) - y) * z"}
    if dtype is INT64:
        composed = Composed(node)
        composed.elementwise(
            "(x - y) * z", _floats(composed), composed.given(1), composed.given(2), dtype=FLOAT32, to=0
        )
        return composed.lowering()
    return _step(node, wide.get(dtype, "(x - y) * z"), TensorType(FLOAT32, node.input(0).shape), 0, 1, 2)


def _step(node: BoundNode, expression: str, out: TensorType, *inputs: int) -> Kernel:
    """An elementwise kernel, which fusion takes along."""
    operands = {f"e{k}": i for k, i in enumerate(inputs)}
    return kernel(
        "elementwise.wgsl",
        [out],
        reads=operands,
        writes={"y": 0},
        epilogue=[Step(node.op, expression, tuple(operands), out.dtype)],
    )


@op("Imputer", domain=DOMAIN, dtypes={"T": (FLOAT32, INT64)}, bindings="x floats? integers? -> y")
def imputer(node: BoundNode) -> Kernel:
    """y = x, but for what is `replaced_value`: there the imputed value, one for all or one a feature. Shapes as
    Scaler's."""
    x, features = node.input(0), _features(node)
    floating = x.dtype is FLOAT32
    at = 1 if floating else 2
    _parameter(node, at, 1, features)
    replaced = node.attr("replaced_value_float" if floating else "replaced_value_int64") or 0
    pairs = in_pairs(node)
    number = "" if floating and math.isnan(replaced) else constant(replaced, x.dtype, pairs)
    is_missing = "is_nan_f32(x)" if not number else f"all(x == {number})" if pairs else f"x == {number}"
    return _step(node, f"select(x, y, {is_missing})", x.type, 0, at)


@op("Normalizer", domain=DOMAIN, dtypes={"T": NUMBERS}, bindings="x -> y")
def normalizer(node: BoundNode) -> Lowering:
    """y = x / norm of its sample, x where that is 0; norm: the sum of absolute values, the root of squares, or the
    largest number."""
    norm, composed = node.attr("norm"), Composed(node)
    _features(node)
    if norm not in ("MAX", "L1", "L2"):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"Normalizer with norm {norm!r}; taken: MAX, L1, L2")
    x = _floats(composed)
    if norm == "MAX":
        most = composed.add("ReduceMax", x, axes=(-1,), keepdims=1)
        composed.elementwise("select(divide_f32(x, y).x, x, y == 0.0)", x, most, dtype=FLOAT32, to=0)
    else:
        composed.add("LpNormalization", x, version=1, to=0, axis=-1, p=int(norm[1]))
    return composed.lowering()


def _sums(node: BoundNode, made: Composed, count: int) -> Part:
    """x coefficients' + intercepts, [samples, count]."""
    features, x = _features(node), _floats(made)
    _parameter(node, 1, count * features)
    if node.has(2):
        _parameter(node, 2, count)
    samples = 1 if len(x.shape) == 1 else x.shape[0]
    return made.add(
        "Gemm", x.seen((samples, features)), made.given(1).seen((count, features)), made.optional(2), transB=1
    )


def _transformed(made: Composed, sums: Part, to: int) -> None:
    """Output `to`: the sums after `post_transform`."""
    name = made.node.attr("post_transform")
    if name == "NONE":
        made.store(sums, to)
    elif name == "LOGISTIC":
        made.elementwise("sigmoid_f32(x)", sums, dtype=FLOAT32, to=to)
    elif name == "SOFTMAX":
        made.add("Softmax", sums, axis=-1, to=to)
    else:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{made.node.op} with post_transform {name!r}; taken: NONE, LOGISTIC, SOFTMAX"
        )


@op("LinearRegressor", domain=DOMAIN, dtypes={"T": (FLOAT32,)}, bindings="x coefficients? intercepts? -> y")
def linear_regressor(node: BoundNode) -> Lowering:
    """y = x coefficients' + intercepts, and `post_transform`. x: [samples, features]; coefficients: [targets,
    features]."""
    targets, composed = int(node.attr("targets")), Composed(node)
    if targets == 1 and node.attr("post_transform") != "NONE":
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"LinearRegressor of one target with post_transform {node.attr('post_transform')!r}, which ONNX "
            f"Runtime's CPU "
            "leaves out; taken: NONE",
        )
    _transformed(composed, _sums(node, composed, targets), 0)
    return composed.lowering()


@op(
    "LinearClassifier",
    domain=DOMAIN,
    dtypes={"T1": NUMBERS},
    bindings="x coefficients? intercepts? labels? -> y scores",
)
def linear_classifier(node: BoundNode) -> Lowering:
    """The label of the class with the largest of x coefficients' + intercepts, and these after `post_transform`.

    x: [samples, features]; coefficients: [classes, features], or of the second of two classes alone; labels: [classes];
    scores: [samples, classes].
    """
    if node.attr("classlabels_strings"):
        raise UnsupportedNodeError(Code.DTYPE, "LinearClassifier whose labels are strings; taken: classlabels_ints")
    _parameter(node, 2, node.input(2).size if node.has(2) else 0)
    classes = int(node.input(2).size)
    _parameter(node, 3, max(classes, 2))
    composed = Composed(node)
    sums = _sums(node, composed, classes)
    if classes == 1:
        _two_classes(composed, sums)
        return composed.lowering()
    if node.wants(1):
        _transformed(composed, sums, 1)
    if node.wants(0):
        composed.add("Gather", composed.given(3), composed.add("ArgMax", sums, axis=1, keepdims=0), axis=0, to=0)
    return composed.lowering()


def _two_classes(made: Composed, sums: Part) -> None:
    """Both outputs from the sums of the second class, as ONNX Runtime has it: the scores add up to 1."""
    node, name = made.node, made.node.attr("post_transform")
    if name not in ("NONE", "LOGISTIC"):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"LinearClassifier with coefficients of one of two classes and post_transform {name!r}; taken: "
            f"NONE, LOGISTIC",
        )
    if node.wants(1):
        second = sums if name == "NONE" else made.elementwise("sigmoid_f32(x)", sums, dtype=FLOAT32)
        made.add("Concat", made.elementwise("1.0 - x", second, dtype=FLOAT32), second, axis=1, to=1)
    if node.wants(0):
        index = made.elementwise("select(0, 1, x > 0.0)", sums.seen(sums.shape[:1]), dtype=INT32)
        made.add("Gather", made.given(3), index, axis=0, to=0)
