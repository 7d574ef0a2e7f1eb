"""Local functions of a model that decode its weights: what stock ONNX Runtime inlines and folds, and our provider
claims whole.

`CodebookN(codes, codebook)` and `Sparse(entries, starts, codebook)`, attributes `size`, `shape` and `perm`: the decoded
weight has `shape`, its axes then permuted by `perm`, so that rows of a product are stored one after the other. Bodies
are ONNX's own operators. `starts` is for kernels: bodies do not read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ort_gpu_ep.errors import ModelError

if TYPE_CHECKING:
    import onnx

DOMAIN = "ort_gpu_ep.weights"
VERSION = 1
BITS = (2, 3, 4, 5, 6, 8)
"""Of 7, eight codes are more than ONNX Runtime's CPU divides exactly; they would save little of 8."""
MIN_OPSET = 13
"""Constant takes a list of integers since 12, and functions that ONNX Runtime inlines are of the model's own opset."""

CODEBOOK = {f"Codebook{bits}": bits for bits in BITS}
SPARSE = "Sparse"
NAMES = (*CODEBOOK, SPARSE)


def function(name: str, opset: int) -> onnx.FunctionProto:
    """The function in a model of that opset. Raises ModelError for an unknown name or an older opset."""
    if name not in NAMES or opset < MIN_OPSET:
        raise ModelError(
            f"function {DOMAIN}:{name} for opset {opset}: expected one of {', '.join(NAMES)} and opset "
            f"{MIN_OPSET} or newer"
        )
    from onnx import helper

    inputs, nodes = ["entries", "starts", "codebook"], _sparse()
    if name in CODEBOOK:
        inputs, nodes = ["codes", "codebook"], _codebook(CODEBOOK[name])
    return helper.make_function(
        DOMAIN, name, inputs, ["weight"], nodes, [helper.make_opsetid("", opset)], ["size", "shape", "perm"]
    )


def functions(names: Iterable[str], opset: int) -> list[onnx.FunctionProto]:
    """Those of `names`, each once."""
    return [function(name, opset) for name in sorted(set(names))]


def _codebook(bits: int) -> list[onnx.NodeProto]:
    """Eight codes at a time: their bytes as one number, divided by powers of two."""
    import onnx
    from onnx import helper

    nodes = [helper.make_node("Cast", ["codes"], ["bytes"], to=onnx.TensorProto.INT64)]
    if bits == 8:
        nodes.append(helper.make_node("Identity", ["bytes"], ["all"]))
    else:
        nodes += [
            _constant("places", [256**k for k in range(bits)]),
            helper.make_node("Mul", ["bytes", "places"], ["parts"]),
            _constant("axis", [1]),
            helper.make_node("ReduceSum", ["parts", "axis"], ["words"], keepdims=1),
            _constant("shifts", [1 << bits * k for k in range(8)]),
            helper.make_node("Div", ["words", "shifts"], ["shifted"]),
            _constant("count", [1 << bits]),
            helper.make_node("Mod", ["shifted", "count"], ["all"]),
        ]
    return [
        *nodes,
        _constant("flat", [-1]),
        helper.make_node("Reshape", ["all", "flat"], ["line"]),
        _constant("zero", [0]),
        _given("end", "size"),
        helper.make_node("Slice", ["line", "zero", "end"], ["indices"]),
        helper.make_node("Gather", ["codebook", "indices"], ["values"]),
        *_shaped(),
    ]


def _sparse() -> list[onnx.NodeProto]:
    """Places by a running sum of distances, values scattered into zeros."""
    import onnx
    from onnx import helper, numpy_helper

    zero = numpy_helper.from_array(np.zeros(1, np.float32))
    return [
        helper.make_node("Cast", ["entries"], ["numbers"], to=onnx.TensorProto.INT64),
        _constant("sixteen", [16]),
        helper.make_node("Mod", ["numbers", "sixteen"], ["gaps"]),
        helper.make_node("Div", ["numbers", "sixteen"], ["codes"]),
        _constant("one", [1]),
        helper.make_node("Add", ["gaps", "one"], ["distances"]),
        helper.make_node("Constant", [], ["axis"], value=numpy_helper.from_array(np.array(0, np.int64))),
        helper.make_node("CumSum", ["distances", "axis"], ["ends"]),
        helper.make_node("Sub", ["ends", "one"], ["places"]),
        helper.make_node("Gather", ["codebook", "codes"], ["found"]),
        _given("end", "size"),
        helper.make_node("ConstantOfShape", ["end"], ["nothing"], value=zero),
        helper.make_node("ScatterElements", ["nothing", "places", "found"], ["values"], axis=0),
        *_shaped(),
    ]


def _shaped() -> list[onnx.NodeProto]:
    from onnx import helper

    transpose = helper.make_node("Transpose", ["stored"], ["weight"])
    transpose.attribute.append(_reference("perm", "perm"))
    return [_given("dims", "shape"), helper.make_node("Reshape", ["values", "dims"], ["stored"]), transpose]


def _constant(name: str, values: Sequence[int]) -> onnx.NodeProto:
    from onnx import helper, numpy_helper

    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(values, np.int64)))


def _given(name: str, attribute: str) -> onnx.NodeProto:
    """A constant that is an attribute of the function."""
    from onnx import helper

    node = helper.make_node("Constant", [], [name])
    node.attribute.append(_reference("value_ints", attribute))
    return node


def _reference(name: str, attribute: str) -> Any:
    import onnx

    return onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS, ref_attr_name=attribute)
