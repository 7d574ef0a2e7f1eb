"""Every row that says how it works channel-last, against ONNX Runtime's CPU kernel: for fixed and for open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.kernels.registry import OPS, Limits
from ort_gpu_ep.partitioner import rewrite
from tests.direct import run_direct
from tests.ops.single_node import Array, Host, assert_agree, data, model_of, on_cpu
from tests.unit.graphs import static_types
from tests.unit.layouts import gaining

F32 = "float32"
X = data(2, 12, 7, 9)
S = (2, 3, 5, 4)
LINE, SPACE = data(2, 8, 19), data(2, 8, 5, 7, 6)


BYTES = [Host(np.array(v), t) for v, t in ((0.031, F32), (121, "uint8"), (0.047, F32), (99, "uint8"))]
"""Scale and zero point of what is read, and of what is written."""


def floats(*values: float) -> Host:
    return Host(np.array(values, "f"), F32)


CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "conv": ("Conv", (X, Host(data(8, 12, 3, 3), F32), Host(data(8), F32)), {"pads": [1, 0, 1, 2], "strides": [2, 1]}),
    "conv of points": ("Conv", (X, Host(data(20, 12, 1, 1), F32)), {}),
    "conv of planes": ("Conv", (data(2, 3, 9, 8), Host(data(8, 3, 3, 3), F32)), {"pads": [1, 1, 1, 1]}),
    "depthwise": ("Conv", (X, Host(data(12, 1, 3, 3), F32), Host(data(12), F32)), {"group": 12, "dilations": [2, 1]}),
    "conv of 5 filters": (
        "Conv",
        (X, Host(data(5, 12, 3, 3), F32), Host(data(5), F32)),
        {"pads": [1, 1, 0, 1], "strides": [1, 2]},
    ),
    "conv of two groups": (
        "Conv",
        (X, Host(data(24, 4, 3, 3), F32), Host(data(24), F32)),
        {"group": 3, "pads": [1, 1, 1, 1]},
    ),
    "conv of many channels in groups": (
        "Conv",
        (data(2, 72, 7, 9), Host(data(40, 36, 2, 2), F32)),
        {"group": 2, "strides": [2, 1]},
    ),
    "points of groups": ("Conv", (data(2, 24, 7, 9), Host(data(48, 8, 1, 1), F32), Host(data(48), F32)), {"group": 3}),
    "transposed": ("ConvTranspose", (X, Host(data(12, 8, 2, 2), F32), Host(data(8), F32)), {"strides": [2, 2]}),
    "transposed, overlapping": (
        "ConvTranspose",
        (X, Host(data(12, 4, 4, 4), F32), Host(data(4), F32)),
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "transposed, uneven": (
        "ConvTranspose",
        (X, Host(data(12, 8, 3, 5), F32)),
        {"strides": [2, 3], "pads": [1, 3, 0, 2], "output_padding": [1, 2]},
    ),
    "transposed with gaps": (
        "ConvTranspose",
        (X, Host(data(12, 4, 2, 1), F32), Host(data(4), F32)),
        {"strides": [3, 2]},
    ),
    "transposed without steps": ("ConvTranspose", (X, Host(data(12, 4, 3, 3), F32)), {"pads": [1, 0, 1, 2]}),
    "transposed to three": (
        "ConvTranspose",
        (X, Host(data(12, 3, 4, 4), F32), Host(data(3), F32)),
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "max pool": ("MaxPool", (X,), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    "max pool, ceil": ("MaxPool", (data(1, 3, 10, 11),), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "max pool, dilated": (
        "MaxPool",
        (data(1, 5, 12, 11),),
        {"kernel_shape": [2, 3], "dilations": [2, 2], "auto_pad": "VALID"},
    ),
    "max pool of bytes": ("MaxPool", (data(1, 5, 6, 8, dtype="uint8"),), {"kernel_shape": [2, 2]}),
    "bytes to bytes": (
        "QLinearConv",
        (
            data(2, 12, 7, 9, dtype="uint8"),
            Host(np.array(0.02, "f"), F32),
            Host(np.array(99), "uint8"),
            Host(data(8, 12, 3, 3, dtype="int8"), "int8"),
            Host(np.linspace(0.01, 0.02, 8), F32),
            Host(np.zeros(8), "int8"),
            Host(np.array(0.9, "f"), F32),
            Host(np.array(7), "uint8"),
        ),
        {"pads": [1, 0, 1, 2], "strides": [2, 1]},
    ),
    "to bytes": ("QuantizeLinear", (X, Host(np.array(0.1, "f"), F32), Host(np.array(99), "uint8")), {}),
    "from bytes": (
        "DequantizeLinear",
        (data(2, 12, 7, 9, dtype="uint8"), Host(np.array(0.1, "f"), F32), Host(np.array(99), "uint8")),
        {},
    ),
    "max pool of signed bytes, four channels": (
        "MaxPool",
        (data(2, 8, 6, 7, dtype="int8"),),
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    ),
    "mean pool of bytes": (
        "QLinearAveragePool",
        (data(1, 5, 6, 8, dtype="uint8"), *BYTES),
        {"kernel_shape": [2, 2], "domain": "com.microsoft"},
    ),
    "mean pool of bytes, four channels": (
        "QLinearAveragePool",
        (data(2, 8, 6, 7, dtype="uint8"), *BYTES),
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 1], "domain": "com.microsoft"},
    ),
    "mean pool of bytes, four channels, padding counts": (
        "QLinearAveragePool",
        (data(2, 4, 5, 5, dtype="uint8"), *BYTES),
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1, "domain": "com.microsoft"},
    ),
    "global mean of bytes": (
        "QLinearGlobalAveragePool",
        (data(2, 5, 9, 7, dtype="uint8"), *BYTES),
        {"domain": "com.microsoft"},
    ),
    "global mean of bytes, four channels": (
        "QLinearGlobalAveragePool",
        (data(2, 8, 9, 7, dtype="uint8"), *BYTES),
        {"domain": "com.microsoft"},
    ),
    "concat of bytes": (
        "QLinearConcat",
        (*BYTES[2:], data(2, 3, 4, 5, dtype="uint8"), *BYTES[:2], data(2, 5, 4, 5, dtype="uint8"), *BYTES[2:]),
        {"axis": 1, "domain": "com.microsoft"},
    ),
    "softmax of bytes": (
        "QLinearSoftmax",
        (data(2, 8, 5, 7, dtype="uint8"), *BYTES),
        {"axis": 1, "domain": "com.microsoft"},
    ),
    "sum of bytes": (
        "QLinearAdd",
        (data(*S, dtype="uint8"), *BYTES[:2], data(*S, dtype="uint8"), *BYTES[:2], *BYTES[2:]),
        {"domain": "com.microsoft"},
    ),
    "mean pool": ("AveragePool", (X,), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "mean pool, padding counts": (
        "AveragePool",
        (data(*S),),
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1},
    ),
    "norm pool": ("LpPool", (X,), {"kernel_shape": [3, 3], "p": 2}),
    "global mean": ("GlobalAveragePool", (data(2, 24, 17, 19),), {}),
    "global max": ("GlobalMaxPool", (data(*S),), {}),
    "global norm": ("GlobalLpPool", (data(*S),), {"p": 3}),
    "mean over space": ("ReduceMean", (data(*S),), {"axes": [2, 3], "keepdims": 1}),
    "mean over space, squeezed": ("ReduceMean", (data(*S),), {"axes": [-1, 2], "keepdims": 0}),
    "max over channels, squeezed": ("ReduceMax", (data(*S),), {"axes": [1], "keepdims": 0}),
    "sum over rows": ("ReduceSum", (data(*S), Host([-2])), {"keepdims": 1}),
    "norm over all": ("ReduceL2", (data(*S),), {"keepdims": 1}),
    "log of sums of exp": ("ReduceLogSumExp", (data(*S),), {"axes": [1], "keepdims": 1}),
    "softmax over channels": ("Softmax", (data(*S),), {"axis": 1}),
    "log softmax over columns": ("LogSoftmax", (data(*S),), {"axis": -1}),
    "hardmax": ("Hardmax", (data(*S),), {"axis": 1}),
    "concat of channels": ("Concat", (data(2, 3, 4, 5), data(2, 8, 4, 5, seed=1), data(2, 1, 4, 5)), {"axis": 1}),
    "concat of two": ("Concat", (data(2, 4, 4, 5), data(2, 8, 4, 5, seed=1)), {"axis": -3}),
    "concat of rows": ("Concat", (data(2, 3, 4, 5), data(2, 3, 7, 5, seed=1)), {"axis": 2}),
    "split of channels": ("Split", (data(2, 8, 4, 5), Host([3, 5])), {"axis": 1}),
    "slice of channels": ("Slice", (X, Host([2]), Host([9]), Host([1])), {}),
    "slice of all, backwards": (
        "Slice",
        (X, Host([0, 10, 6]), Host([2, 1, 0]), Host([0, 1, -2]), Host([1, -3, -1])),
        {},
    ),
    "slice without axes": ("Slice", (X, Host([0, 1, 2]), Host([1, 11, 5])), {}),
    "pad": ("Pad", (X, Host([0, 1, 2, 3, 1, 0, 1, 2]), floats(2.5)), {}),
    "pad, reflected": ("Pad", (data(*S), Host([0, 0, 2, 1, 0, 0, 1, 2])), {"mode": "reflect"}),
    "nearest": ("Resize", (X, None, floats(1, 1, 2, 2)), {"mode": "nearest"}),
    "linear": ("Resize", (X, None, floats(1, 1, 1.5, 2.5)), {"mode": "linear"}),
    "linear to sizes": (
        "Resize",
        (X, None, None, Host([2, 12, 11, 5])),
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "cubic": ("Resize", (data(1, 3, 5, 6), None, floats(1, 1, 2, 1.5)), {"mode": "cubic"}),
    "region": (
        "Resize",
        (data(1, 2, 6, 8), floats(0, 0, 0.2, 0.1, 1, 1, 0.8, 0.9), None, Host([1, 2, 4, 4])),
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
    ),
    "neighbouring channels": ("LRN", (data(2, 9, 3, 5),), {"size": 5, "alpha": 0.3}),
    "each channel normalised": (
        "InstanceNormalization",
        (data(*S), Host(data(3), F32), Host(data(3, seed=2), F32)),
        {},
    ),
    "depth to space": ("DepthToSpace", (data(2, 12, 3, 5),), {"blocksize": 2}),
    "depth to space, columns first": ("DepthToSpace", (data(2, 12, 3, 5),), {"blocksize": 2, "mode": "CRD"}),
    "space to depth": ("SpaceToDepth", (data(2, 3, 4, 6),), {"blocksize": 2}),
    "relu": ("Relu", (X,), {}),
    "clip": ("Clip", (X, floats(-1).value.reshape(()), floats(2).value.reshape(())), {}),
    "slope of each channel": ("PRelu", (X, Host(data(12, 1, 1), F32)), {}),
    "sum with rows": ("Add", (X, Host(data(7, 1), F32)), {}),
    "sum with columns": ("Add", (X, Host(data(9), F32)), {}),
    "product with a mask": ("Mul", (X, Host(data(1, 12, 7, 9, seed=3), F32)), {}),
    "choice": ("Where", (Host(data(12, 1, 1, dtype="bool"), "bool"), X, data(2, 12, 7, 9, seed=2)), {}),
    "largest of four": ("Max", (X, data(1, 12, 1, 1), data(2, 1, 7, 9), Host(data(1, 1, 9), F32)), {}),
    "mean of two": ("Mean", (X, data(2, 12, 7, 9, seed=4)), {}),
    "identity": ("Identity", (X,), {}),
    "dropout": ("Dropout", (X,), {}),
    "cast": ("Cast", (X,), {"to": onnx.TensorProto.INT32}),
    "transposed to channels last": ("Transpose", (X,), {"perm": [0, 2, 3, 1]}),
    "transposed to channels first": ("Transpose", (X,), {"perm": [0, 3, 1, 2]}),
    "transposed otherwise": ("Transpose", (X,), {"perm": [3, 1, 0, 2]}),
    "reversed": ("Transpose", (X,), {}),
    "max pool of a line": ("MaxPool", (LINE,), {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
    "max pool of a space": (
        "MaxPool",
        (SPACE,),
        {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [0, 1, 1, 1, 0, 0]},
    ),
    "mean pool of a space, padding counts": (
        "AveragePool",
        (SPACE,),
        {"kernel_shape": [2, 3, 2], "pads": [0, 1, 1, 1, 0, 0], "count_include_pad": 1},
    ),
    "global mean of a line": ("GlobalAveragePool", (LINE,), {}),
    "global max of a space": ("GlobalMaxPool", (SPACE,), {}),
    "each channel of a space normalised": (
        "InstanceNormalization",
        (SPACE, Host(data(8), F32), Host(data(8, seed=2), F32)),
        {},
    ),
    "concat of channels of a line": ("Concat", (LINE, data(2, 3, 19)), {"axis": 1}),
    "concat of a space along columns": ("Concat", (SPACE, data(2, 8, 5, 7, 2)), {"axis": -1}),
    "softmax over channels of a space": ("Softmax", (SPACE,), {"axis": 1}),
    "sum with channels of a space": ("Add", (SPACE, Host(data(8, 1, 1, 1), F32)), {}),
    "product with columns of a line": ("Mul", (LINE, Host(data(19), F32)), {}),
    "a line to bytes": ("QuantizeLinear", (LINE, Host(np.array(0.1, "f"), F32), Host(np.array(99), "uint8")), {}),
}


def channels_last_nodes(model: onnx.ModelProto) -> list[str]:
    graph = from_onnx(model)
    return [n.op for n in rewrite(graph, static_types(graph), Limits()).nodes if n.channels_last]


@pytest.mark.parametrize("name", CASES)
def test_channels_last(name: str) -> None:
    op, inputs, attributes = CASES[name]
    model, feeds = model_of(op, inputs, 2 if op == "Split" else 1, **attributes)
    wanted = on_cpu(model, feeds)
    with gaining(op):
        assert channels_last_nodes(model) == [op]
        for every_size_open in (False, True):
            for got, want in zip(run_direct(model, feeds, rewrite, every_size_open), wanted, strict=True):
                assert_agree(got, want, 3e-6)


def test_every_rule_has_a_case() -> None:
    tested = {OPS[attributes.get("domain", ""), op].channels_last for op, _, attributes in CASES.values()}
    assert [name for (_, name), spec in OPS.items() if spec.channels_last not in (None, *tested)] == []


def test_the_maximum_of_what_is_not_finite() -> None:
    """NaN where a window has one, as in plain; else -inf."""
    x = np.where(data(1, 8, 5, 6) > 2.5, np.float32(np.nan), np.float32(-np.inf))
    model, feeds = model_of("MaxPool", (x,), kernel_shape=[2, 2])
    with gaining("MaxPool"):
        (got,) = run_direct(model, feeds, rewrite)
    np.testing.assert_array_equal(
        got, np.maximum.reduce([x[:, :, a : 4 + a, b : 5 + b] for a in (0, 1) for b in (0, 1)])
    )
    assert np.isnan(got).any()
    assert np.isinf(got).any()


@pytest.mark.parametrize("opset", [7, 9])
def test_old_upsampling(opset: int) -> None:
    """By an attribute, then by an input; ONNX's own function is Resize's with the floor of asymmetric coordinates."""
    x = data(1, 4, 3, 5)
    scales = [1.0, 1.0, 2.0, 3.0]
    inputs: tuple[Any, ...] = (x,) if opset < 9 else (x, floats(*scales))
    model, feeds = model_of(
        "Upsample", inputs, opset=opset, mode="nearest", **({"scales": scales} if opset < 9 else {})
    )
    with gaining("Upsample"):
        assert channels_last_nodes(model) == ["Upsample"]
        np.testing.assert_array_equal(run_direct(model, feeds, rewrite)[0], x.repeat(2, 2).repeat(3, 3))


def test_fused_steps_and_their_operands() -> None:
    """Constants of any rank are permuted, values of the run are read as they are stored; a scalar stays."""
    nodes = [
        helper.make_node("Mul", ["y0", "scale"], ["a"]),
        helper.make_node("Add", ["a", "bias"], ["b"]),
        helper.make_node("Add", ["b", "x0"], ["c"]),
        helper.make_node("Mul", ["c", "half"], ["y"]),
    ]
    model, feeds = model_of("MaxPool", (X,), after=tuple(nodes), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    held: dict[str, Array] = {"scale": data(12, 1, 1), "bias": data(9), "half": np.array(0.5, "f")}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in held.items())
    wanted = on_cpu(model, feeds)[0]
    with gaining("MaxPool"):
        for every_size_open in (False, True):
            assert_agree(run_direct(model, feeds, rewrite, every_size_open)[0], wanted, 1e-6)
        (node,) = (
            n for n in rewrite(from_onnx(model), static_types(from_onnx(model)), Limits()).nodes if n.channels_last
        )
    assert len(node.epilogue) == 4


def test_a_constant_that_images_of_two_ranks_read() -> None:
    """[C, 1, 1] is of channels in an image, and of depths in a space."""
    nodes = [
        helper.make_node("MaxPool", ["x0"], ["p"], kernel_shape=[2, 2]),
        helper.make_node("Add", ["p", "c"], ["a"]),
    ]
    nodes += [
        helper.make_node("MaxPool", ["x1"], ["q"], kernel_shape=[1, 2, 2]),
        helper.make_node("Add", ["q", "c"], ["b"]),
    ]
    feeds = {"x0": data(2, 5, 6, 8), "x1": data(2, 3, 5, 7, 6)}
    inputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in feeds.items()]
    outputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in "ab"]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [onnx.numpy_helper.from_array(data(5, 1, 1), "c")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    with gaining("MaxPool"):
        assert channels_last_nodes(model) == ["MaxPool", "MaxPool"]
        got = run_direct(model, feeds, rewrite)
    for ours, want in zip(got, on_cpu(model, feeds), strict=True):
        assert_agree(ours, want, 1e-6)
