"""What stands between products of bytes stays in bytes, one dispatch each, and gives the bytes that ONNX Runtime's CPU
gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.plugin.explain import explanation
from tests.daily import part
from tests.direct import run_direct
from tests.ops.single_node import on_cpu_exactly
from tests.plugin.cases import open_session
from tests.unit.graphs import static_types
from tests.unit.layouts import gaining

RNG = np.random.default_rng(9)
KINDS = ("uint8", "int8")
CONTRIB = "com.microsoft"
made = helper.make_node


class Form(NamedTuple):
    """An op over floats. scales: of its inputs; out: of its output, None: as the first input's."""

    nodes: Callable[[Sequence[str]], list[onnx.NodeProto]]
    shapes: Sequence[Sequence[int]]
    scales: Sequence[float] = (0.031,)
    out: float | None = 0.047
    dispatches: int = 1
    constants: Mapping[str, Any] = MappingProxyType({})


def one(op: str, **attributes: Any) -> Callable[[Sequence[str]], list[onnx.NodeProto]]:
    return lambda names: [made(op, list(names), ["f"], **attributes)]


def relu_behind(op: str) -> Callable[[Sequence[str]], list[onnx.NodeProto]]:
    return lambda names: [made(op, list(names), ["g"]), made("Relu", ["g"], ["f"])]


IMAGE = (2, 6, 9, 7)
FORMS = {
    "add": Form(one("Add"), [(3, 5, 7), (3, 5, 7)], (0.031, 0.052)),
    "add of a row": Form(one("Add"), [(3, 5, 8), (8,)], (0.031, 0.052)),
    "add of one number": Form(one("Add"), [(3, 5, 7), ()], (0.031, 0.052)),
    "halves": Form(one("Add"), [(4, 16, 16), (4, 16, 16)], (0.0625, 0.03125), 0.125),
    "add and relu": Form(relu_behind("Add"), [(2, 8, 6, 6), (2, 8, 6, 6)], (0.031, 0.052)),
    "mul": Form(one("Mul"), [(3, 5, 7), (3, 5, 7)], (0.031, 0.052), 0.02),
    "mul of channels": Form(one("Mul"), [(2, 8, 5, 5), (2, 8, 1, 1)], (0.031, 0.052), 0.02),
    "max pool": Form(one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), [IMAGE], out=None),
    "average pool": Form(one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), [IMAGE]),
    "average with the padding": Form(
        one("AveragePool", kernel_shape=[2, 3], pads=[0, 1, 1, 1], count_include_pad=1), [IMAGE]
    ),
    "global average": Form(one("GlobalAveragePool"), [IMAGE], (0.031,), 0.01),
    "global average of many": Form(one("GlobalAveragePool"), [(1, 5, 40, 33)], (0.031,), 0.01),
    "concat": Form(one("Concat", axis=1), [(2, 3, 5), (2, 1, 5), (2, 6, 5)], (0.031, 0.052, 0.047)),
    "concat of one scale": Form(one("Concat", axis=-1), [(2, 3, 5), (2, 3, 2)], (0.047, 0.047)),
    "flatten": Form(one("Flatten"), [(3, 5, 7)], out=None, dispatches=0),
    "transpose": Form(one("Transpose", perm=[0, 2, 1]), [(3, 5, 7)], out=None),
    "slice": Form(
        lambda names: [made("Slice", [names[0], "start", "end", "axis"], ["f"])],
        [(3, 5, 8)],
        out=None,
        constants={"start": np.array([1]), "end": np.array([7]), "axis": np.array([2])},
    ),
    "gather": Form(
        lambda names: [made("Gather", [names[0], "which"], ["f"], axis=1)],
        [(3, 5, 8)],
        out=None,
        constants={"which": np.array([4, 0, 2])},
    ),
    "resize": Form(
        lambda names: [
            made(
                "Resize",
                [names[0], "", "by"],
                ["f"],
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        ],
        [IMAGE],
        out=None,
        constants={"by": np.array([1, 1, 2, 2], "f")},
    ),
    "depth to space": Form(one("DepthToSpace", blocksize=2), [(2, 8, 3, 5)], out=None),
    "sigmoid": Form(one("Sigmoid"), [(3, 5, 7)], (0.05,), 0.0039),
    "softmax": Form(one("Softmax"), [(3, 5, 64)], (0.05,), 0.0039),
    "softmax of short rows": Form(one("Softmax", axis=1), [(3, 5, 8)], (0.05,), 0.0039, 2),
    "layer norm": Form(
        lambda names: [made("LayerNormalization", [names[0], "scale", "bias"], ["f"])],
        [(3, 5, 64)],
        (0.05,),
        0.02,
        constants={"scale": RNG.normal(size=64).astype("f"), "bias": RNG.normal(size=64).astype("f")},
    ),
    "mean of places": Form(
        lambda names: [made("ReduceMean", list(names), ["f"], axes=[2, 3], keepdims=0)],
        [(2, 6, 9, 8)],
        (0.05,),
        0.02,
        2,
    ),
    "leaky relu": Form(one("LeakyRelu", alpha=0.1), [(3, 5, 7)]),
    "hard swish": Form(one("HardSwish"), [(3, 5, 7)]),
    "clip": Form(
        lambda names: [made("Clip", [names[0], "low", "high"], ["f"])],
        [(3, 5, 7)],
        constants={"low": np.float32(-1), "high": np.float32(2)},
    ),
    "silu": Form(lambda names: [made("Sigmoid", [names[0]], ["g"]), made("Mul", [names[0], "g"], ["f"])], [(3, 5, 7)]),
}


def model_of(form: Form, kind: str, zeros: Sequence[int], open_sizes: bool = False) -> onnx.ModelProto:
    """Bytes x0, x1, ... -> DequantizeLinear -> the op -> QuantizeLinear -> bytes y. zeros: zero points of the inputs,
    then of y."""
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    scales = [*form.scales, form.out or form.scales[0]]
    zeros = [*zeros[: len(form.scales)], zeros[0] if form.out is None else zeros[-1]]
    held: dict[str, Any] = dict(form.constants)
    for k, (scale, zero) in enumerate(zip(scales, zeros, strict=True)):
        held |= {f"s{k}": np.float32(scale), f"z{k}": np.array(zero, kind)}
    count = len(form.shapes)
    nodes = [made("DequantizeLinear", [f"x{k}", f"s{k}", f"z{k}"], [f"d{k}"]) for k in range(count)]
    nodes += form.nodes([f"d{k}" for k in range(count)])
    nodes.append(made("QuantizeLinear", ["f", f"s{count}", f"z{count}"], ["y"]))
    inputs = [
        helper.make_tensor_value_info(f"x{k}", element, shape_of(shape, open_sizes))
        for k, shape in enumerate(form.shapes)
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()],
    )
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


def shape_of(shape: Sequence[int], open_sizes: bool) -> list[Any]:
    """With a name for the batch, which all inputs of that rank share."""
    return ["n" if open_sizes and k == 0 and len(shape) > 1 else size for k, size in enumerate(shape)]


def bytes_for(form: Form, kind: str, batch: int | None = None) -> dict[str, Any]:
    limits = np.iinfo(kind)
    return {
        f"x{k}": RNG.integers(
            limits.min,
            limits.max + 1,
            [batch if batch is not None and n == 0 and len(shape) > 1 else size for n, size in enumerate(shape)],
        ).astype(kind)
        for k, shape in enumerate(form.shapes)
    }


def check(model: onnx.ModelProto, feeds: Any, opened: Any, exact: bool = True, reference: Any = on_cpu_exactly) -> None:
    (wanted,) = reference(model, feeds)
    (got,) = opened.session.run(None, feeds)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    differ = np.abs(got.astype("i4") - wanted.astype("i4"))
    assert differ.max(initial=0) <= 1
    assert differ.sum() <= (0 if exact else wanted.size // 100)
    assert not [e for e in opened.state.events if e.kind in ("fallback", "error", "warning")], opened.state.events


def zeros_of(kind: str, relu: bool = False) -> list[int]:
    return [121, 77, 140, 0 if relu else 99] if kind == "uint8" else [-7, 50, 12, -128 if relu else -29]


@pytest.mark.parametrize(("name", "kind"), part(sorted(FORMS), list(KINDS), of_two=1))
def test_bytes_to_bytes(name: str, kind: str) -> None:
    form = FORMS[name]
    model = model_of(form, kind, zeros_of(kind, "relu" in name.split()))
    opened = open_session(model.SerializeToString(), strict=1)
    check(model, bytes_for(form, kind), opened)
    (memory,) = explanation(opened.state).memory
    assert memory.dispatches == form.dispatches
    assert memory.unshared_nbytes == 0 or memory.dispatches > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "add",
        "add and relu",
        "mul of channels",
        "max pool",
        "average pool",
        "global average",
        "concat",
        "silu",
        "softmax",
        "layer norm",
    ],
)
def test_sizes_that_a_run_brings(name: str, kind: str) -> None:
    form = FORMS[name]
    model = model_of(form, kind, zeros_of(kind, "relu" in name.split()), open_sizes=True)
    opened = open_session(model.SerializeToString(), strict=1)
    for batch in (1, 4, 0, 3):  # of nothing onnxruntime 1.31's QLinearSoftmax gives no tensor
        check(model, bytes_for(form, kind, batch), opened, reference=on_cpu_exactly if batch else as_written)


def test_a_scale_for_each_channel_goes_through_floats() -> None:
    form = FORMS["add"]
    model = model_of(form, "uint8", zeros_of("uint8"))
    for initializer in model.graph.initializer:
        if initializer.name in ("s0", "z0"):
            full = np.full(5, numpy_helper.to_array(initializer))
            initializer.CopyFrom(numpy_helper.from_array(full, initializer.name))
    check(model, bytes_for(form, "uint8"), open_session(model.SerializeToString(), strict=1), reference=as_written)


def as_written(model: onnx.ModelProto, feeds: Any) -> Any:
    """Node by node on the CPU: the optimiser of onnxruntime 1.31 makes a QLinearAdd of these that onnxruntime then
    refuses."""
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"]).run(
        None, feeds
    )


def qlinear(op: str, kind: str, count: int, shapes: Sequence[Sequence[int]], **attributes: Any) -> onnx.ModelProto:
    """The QLinear op itself, with scale and zero point of each of `count` inputs."""
    scales, points = (0.031, 0.052, 0.047), zeros_of(kind)
    held: dict[str, Any] = {"sy": np.float32(0.04), "zy": np.array(points[-1], kind)}
    inputs: list[str] = []
    for k in range(count):
        held |= {f"s{k}": np.float32(scales[k]), f"z{k}": np.array(points[k], kind)}
        inputs += [f"x{k}", f"s{k}", f"z{k}"]
    node = made(
        op,
        ["sy", "zy", *inputs] if op == "QLinearConcat" else [*inputs, "sy", "zy"],
        ["y"],
        domain=CONTRIB,
        **attributes,
    )
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(f"x{k}", element, shape) for k, shape in enumerate(shapes)],
        [helper.make_tensor_value_info("y", element, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)], ir_version=8
    )


OPS = [
    ("QLinearAdd", 2, [(3, 5, 7), (5, 1)], {}),
    ("QLinearMul", 2, [(3, 5, 7), (3, 5, 7)], {}),
    ("QLinearSigmoid", 1, [(5, 7)], {}),
    ("QLinearLeakyRelu", 1, [(5, 7)], {"alpha": 0.2}),
    ("QLinearConcat", 3, [(2, 3), (2, 6), (2, 1)], {"axis": 1}),
    ("QLinearAveragePool", 1, [(2, 3, 9, 8)], {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("QLinearAveragePool", 1, [(2, 3, 9)], {"kernel_shape": [2]}),
    ("QLinearGlobalAveragePool", 1, [(2, 3, 9, 7)], {}),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("op", "count", "shapes", "attributes"), OPS)
def test_ops_of_bytes(
    op: str, count: int, shapes: Sequence[Sequence[int]], attributes: dict[str, Any], kind: str
) -> None:
    model = qlinear(op, kind, count, shapes, **attributes)
    opened = open_session(model.SerializeToString(), strict=1)
    check(model, bytes_for(Form(one(op), shapes), kind), opened)
    assert explanation(opened.state).memory[0].dispatches == 1


def test_zero_points_that_are_left_out() -> None:
    model = model_of(FORMS["add"], "uint8", [0, 0, 0])
    for node in model.graph.node:
        if node.op_type != "Add":
            del node.input[2]
    check(model, bytes_for(FORMS["add"], "uint8"), open_session(model.SerializeToString(), strict=1))


def residual(kind: str, channels: int, size: int) -> onnx.ModelProto:
    """Bytes x -> Conv -> bytes, plus bytes r -> Relu -> bytes y."""
    zeros, element = zeros_of(kind, relu=True), helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    held: dict[str, Any] = {
        f"{name}{k}": value
        for k, (scale, zero) in enumerate(zip((0.03, 0.41, 0.37, 0.53), zeros, strict=True))
        for name, value in (("s", np.float32(scale)), ("z", np.array(zero, kind)))
    }
    held |= {"w": RNG.integers(-127, 128, (channels, 8, 1, 1)).astype("int8"), "ws": np.float32(0.01), "wz": np.int8(0)}
    nodes = [
        made("DequantizeLinear", ["x0", "s0", "z0"], ["d0"]),
        made("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        made("Conv", ["d0", "wd"], ["c"]),
        made("QuantizeLinear", ["c", "s1", "z1"], ["cq"]),
        made("DequantizeLinear", ["cq", "s1", "z1"], ["cd"]),
        made("DequantizeLinear", ["x1", "s2", "z2"], ["d1"]),
        made("Add", ["cd", "d1"], ["a"]),
        made("Relu", ["a"], ["r"]),
        made("QuantizeLinear", ["r", "s3", "z3"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x0", element, [2, 8, size, size]),
        helper.make_tensor_value_info("x1", element, [2, channels, size, size]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()],
    )
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("channels", "size", "dispatches"), [(12, 6, 1), (12, 5, 2), (6, 6, 1)])
def test_a_sum_behind_a_product_is_a_part_of_it(channels: int, size: int, dispatches: int, kind: str) -> None:
    """dispatches: one more where four bytes of a row share no word, and sums are made bytes by themselves."""
    model = residual(kind, channels, size)
    opened = open_session(model.SerializeToString(), strict=1)
    feeds = bytes_for(Form(one("Add"), [(2, 8, size, size), (2, channels, size, size)]), kind)
    check(model, feeds, opened)
    assert explanation(opened.state).memory[0].dispatches == dispatches


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_behind_a_product_channels_last(kind: str) -> None:
    model = residual(kind, 12, 5)
    feeds = bytes_for(Form(one("Add"), [(2, 8, 5, 5), (2, 12, 5, 5)]), kind)
    graph = from_onnx(model)
    with gaining("QLinearConv"):
        planned = rewrite(graph, static_types(graph), Limits())
        assert [(n.op, [s.op for s in n.epilogue]) for n in planned.nodes if n.channels_last] == [
            ("QLinearConv", ["QLinearAdd"])
        ]
        (got,) = run_direct(model, feeds, rewrite)
    np.testing.assert_array_equal(got, on_cpu_exactly(model, feeds)[0])
