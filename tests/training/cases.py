"""A case for each gradient and each form of an op that its rule treats apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnx import helper

from tests.training.numeric import Case

_RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return _RNG.normal(size=shape).astype("f")


def apart(*shape: int) -> np.ndarray:
    """All different, by more than a difference's width: nothing changes places."""
    size = int(np.prod(shape))
    return ((_RNG.permutation(size) + 0.3) * (4.0 / size) - 2.0).reshape(shape).astype("f")


def between(low: float, high: float, *shape: int) -> np.ndarray:
    return _RNG.uniform(low, high, shape).astype("f")


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def nodes(text: str) -> tuple[onnx.NodeProto, ...]:
    """Nodes in ONNX's text form that compute y0 from a case's inputs."""
    return tuple(
        onnx.parser.parse_function(f'<domain: "case", opset_import: ["" : 17]> it (x) => (y0) {{ {text} }}').node
    )


def _unary() -> list[Case]:
    plain = (
        "Abs",
        "Neg",
        "Exp",
        "Sigmoid",
        "Tanh",
        "Relu",
        "Softplus",
        "Softsign",
        "HardSwish",
        "Sin",
        "Cos",
        "Tan",
        "Sinh",
        "Cosh",
        "Atan",
        "Asinh",
        "Identity",
        "LeakyRelu",
        "Elu",
        "Selu",
        "Celu",
        "ThresholdedRelu",
        "HardSigmoid",
    )
    found = [Case(op, {"x": apart(3, 4)}) for op in plain]
    found += [Case(op, {"x": between(0.5, 2.0, 3, 4)}) for op in ("Log", "Sqrt", "Reciprocal")]
    found += [Case(op, {"x": between(-0.9, 0.9, 3, 4)}) for op in ("Asin", "Acos", "Atanh")]
    found += [
        Case("Erf", {"x": apart(3, 4)}, width=1e-2),
        Case("Acosh", {"x": between(1.5, 3.0, 3, 4)}),
        Case("Gelu", {"x": apart(3, 4)}, opset=20, width=1e-2),
        Case("Gelu", {"x": apart(3, 4)}, {"approximate": "tanh"}, opset=20, name="tanh"),
        Case("Mish", {"x": apart(3, 4)}, opset=18),
        Case("Swish", {"x": apart(3, 4)}, {"alpha": 1.5}, opset=24),
        Case("Shrink", {"x": apart(3, 4)}, {"lambd": 0.7, "bias": 0.2}),
        Case("Clip", {"x": apart(3, 4), "low": np.float32(-0.5), "high": np.float32(1.0)}, fixed=("low", "high")),
        Case("Clip", {"x": apart(3, 4), "low": None, "high": np.float32(1.0)}, fixed=("high",), name="above"),
        Case("CumSum", {"x": normal(2, 5), "axis": np.array(1)}, {"exclusive": 1}),
        Case("Trilu", {"x": normal(2, 3, 4), "k": np.array(1)}, {"upper": 0}),
        Case("Cast", {"x": normal(2, 3)}, {"to": 1}, width=1e-2),
        Case("Dropout", {"x": normal(2, 3)}),
    ]
    return found


def _binary() -> list[Case]:
    pairs = {"same": ((2, 3), (2, 3)), "row": ((2, 3), (3,)), "both": ((2, 1, 3), (4, 1)), "scalar": ((2, 3), ())}
    found = []
    for name, (left, right) in pairs.items():
        b = between(0.5, 2.0, *right)
        found += [
            Case(op, {"a": normal(*left), "b": b}, name=name) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")
        ]
    found += [
        Case("Pow", {"a": between(0.5, 2.0, 2, 3), "b": normal(3)}),
        Case("Pow", {"a": normal(2, 3), "b": np.float32(2)}, fixed=("b",), name="square"),
        Case("Pow", {"a": normal(2, 3), "b": np.int64(3)}, name="cube"),
        Case("PRelu", {"x": apart(2, 3, 4), "slope": normal(3, 1)}),
        Case("Where", {"c": np.array([[True], [False]]), "a": normal(2, 3), "b": normal(3)}),
        Case("Sum", {"a": normal(2, 3), "b": normal(3), "c": normal(2, 1)}),
        Case("Mean", {"a": normal(2, 3), "b": normal(3)}),
        Case("Max", {"a": normal(2, 3), "b": normal(3), "c": normal(2, 1)}, name="three"),
    ]
    return found


def _reductions() -> list[Case]:
    found = [
        Case("ReduceSum", {"x": normal(2, 3, 4), "axes": ints(-1, 0)}, {"keepdims": 0}),
        Case("ReduceSum", {"x": normal(2, 3)}, name="all"),
    ]
    for op in ("ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMin"):
        found += [
            Case(op, {"x": apart(2, 3, 4)}, {"axes": [1, -1], "keepdims": 0}),
            Case(op, {"x": apart(2, 3)}, name="all"),
            Case(op, {"x": apart(2, 3, 4), "axes": ints(1)}, opset=18, name="input"),
        ]
    found += [
        Case("ReduceLogSum", {"x": between(0.5, 2, 2, 3)}, {"axes": [1]}),
        *(
            Case(op, {"x": normal(2, 3, 4)}, {"axis": axis}, name=f"axis{axis}")
            for op in ("Softmax", "LogSoftmax")
            for axis in (-1, 1)
        ),
    ]
    return found


def _movement() -> list[Case]:
    x = normal(2, 3, 4)
    return [
        Case("Reshape", {"x": x, "shape": ints(0, -1)}),
        Case("Flatten", {"x": x}, {"axis": 2}),
        Case("Squeeze", {"x": normal(2, 1, 3), "axes": ints(1)}),
        Case("Unsqueeze", {"x": x, "axes": ints(0, 2)}),
        Case("Transpose", {"x": x}, {"perm": [2, 0, 1]}),
        Case("Transpose", {"x": x}, name="reversed"),
        Case("Expand", {"x": normal(3, 1), "shape": ints(2, 1, 4)}),
        Case("Tile", {"x": normal(2, 3), "repeats": ints(2, 3)}),
        Case("Concat", {"a": normal(2, 3), "b": normal(2, 1), "c": normal(2, 2)}, {"axis": -1}),
        Case("Split", {"x": x, "split": ints(1, 3)}, {"axis": -1}, outputs=2, used=(0, 1)),
        Case("Split", {"x": x, "split": ints(1, 1, 2)}, {"axis": 2}, outputs=3, used=(1,), name="one of three"),
        Case("Slice", {"x": normal(4, 5), "starts": ints(1, -4), "ends": ints(3, 1000)}),
        Case(
            "Slice",
            {"x": normal(4, 7), "starts": ints(5), "ends": ints(0), "axes": ints(1), "steps": ints(-2)},
            name="backwards",
        ),
        Case(
            "Slice",
            {"x": normal(4, 7), "starts": ints(-1), "ends": ints(-(2**63)), "axes": ints(1), "steps": ints(-1)},
            name="turned",
        ),
        Case("Pad", {"x": normal(2, 3), "pads": ints(1, 0, 2, 1)}),
        Case(
            "Pad",
            {"x": normal(3, 4), "pads": ints(1, -1, -1, 2)},
            name="cropped",
            reference=nodes("""
            start = Constant <value_ints = [0, 1]> ()  end = Constant <value_ints = [2, 4]> ()
            around = Constant <value_ints = [1, 0, 0, 2]> ()
            inner = Slice (x, start, end)  y0 = Pad (inner, around)"""),
        ),
        Case("Pad", {"x": normal(3, 4), "pads": ints(1, 2, 0, 3)}, {"mode": "reflect"}, name="reflect"),
        Case("Pad", {"x": normal(3, 4), "pads": ints(1, 0, 2, 0)}, {"mode": "edge"}, name="edge"),
        Case("DepthToSpace", {"x": normal(1, 8, 2, 3)}, {"blocksize": 2}),
        Case("DepthToSpace", {"x": normal(1, 8, 2, 3)}, {"blocksize": 2, "mode": "CRD"}, name="crd"),
        Case("SpaceToDepth", {"x": normal(1, 2, 4, 6)}, {"blocksize": 2}),
        Case("SpaceToDepth", {"x": normal(1, 2, 4, 6)}, {"blocksize": 2, "mode": "CRD"}, opset=28, name="crd"),
    ]


def _indexing() -> list[Case]:
    table = normal(5, 3)
    return [
        Case("Gather", {"x": table, "i": np.array([[1, 4, 1], [0, 2, 2]])}, name="known, repeated"),
        Case("Gather", {"x": table, "i": np.array([3, 1])}, name="known"),
        Case("Gather", {"x": normal(2, 4, 3), "i": np.array(-1)}, {"axis": 1}, name="last"),
        Case("Gather", {"x": normal(2, 4, 3), "i": ints(1, 2)}, {"axis": -2}, name="neighbours"),
        Case("GatherElements", {"x": normal(3, 4), "i": np.array([[0, 2], [1, 1], [3, 0]])}, {"axis": 1}),
        Case("GatherND", {"x": normal(3, 4), "i": np.array([[0, 2], [1, 1], [1, 1]])}),
    ]


def _products() -> list[Case]:
    found = [
        Case("MatMul", {"a": normal(*a), "b": normal(*b)}, name=f"{len(a)}x{len(b)}")
        for a, b in (
            ((3, 4), (4, 2)),
            ((2, 3, 4), (4, 2)),
            ((2, 1, 3, 4), (5, 4, 2)),
            ((4,), (4, 2)),
            ((3, 4), (4,)),
            ((4,), (4,)),
            ((2, 3, 4), (4,)),
        )
    ]
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = normal(*((4, 3) if ta else (3, 4))), normal(*((2, 4) if tb else (4, 2)))
            found.append(
                Case(
                    "Gemm",
                    {"a": a, "b": b, "c": normal(2)},
                    {"transA": ta, "transB": tb, "alpha": 0.5, "beta": 2.0},
                    name=f"{ta}{tb}",
                )
            )
    found += [
        Case("Einsum", {"a": normal(2, 3, 4), "b": normal(2, 4, 5)}, {"equation": "bij,bjk->bki"}),
        Case("Einsum", {"a": normal(2, 3), "b": normal(3, 4)}, {"equation": "ij,jk"}, name="implicit"),
        Case("Einsum", {"a": normal(2, 3), "b": normal(4)}, {"equation": "ij,k->ik"}, name="summed alone"),
    ]
    return found


def _convolutions() -> list[Case]:
    def conv(name: str, x: tuple[int, ...], w: tuple[int, ...], **attributes: Any) -> Case:
        return Case("Conv", {"x": normal(*x), "w": normal(*w), "b": normal(w[0])}, attributes, name=name)

    def turned(name: str, x: tuple[int, ...], w: tuple[int, ...], **attributes: Any) -> Case:
        return Case("ConvTranspose", {"x": normal(*x), "w": normal(*w), "b": normal(w[1])}, attributes, name=name)

    return [
        conv("plain", (2, 3, 5, 6), (4, 3, 3, 2)),
        conv("strided, one side left", (2, 2, 6, 7), (3, 2, 3, 3), strides=[2, 2], pads=[1, 0, 1, 1]),
        conv("dilated", (1, 2, 7, 8), (2, 2, 3, 2), dilations=[2, 3], pads=[1, 1, 2, 0]),
        conv("groups", (2, 4, 5, 5), (6, 2, 3, 3), group=2, strides=[2, 1]),
        conv("depthwise", (2, 3, 5, 5), (3, 1, 3, 3), group=3, pads=[1, 1, 1, 1], strides=[2, 2]),
        conv("pointwise", (2, 3, 4, 2), (5, 3, 1, 1)),
        conv("pointwise, strided", (2, 3, 4, 5), (2, 3, 1, 1), strides=[2, 2]),
        conv("same upper", (1, 2, 5, 6), (2, 2, 3, 2), auto_pad="SAME_UPPER", strides=[2, 2]),
        conv("one axis", (2, 3, 9), (2, 3, 3), dilations=[2], pads=[4, 0]),
        turned("plain", (2, 3, 3, 4), (3, 2, 3, 2)),
        turned("strided", (1, 4, 3, 3), (4, 2, 2, 2), strides=[2, 2]),
        turned(
            "all",
            (1, 2, 3, 4),
            (2, 3, 3, 3),
            strides=[2, 3],
            pads=[1, 0, 1, 2],
            output_padding=[1, 0],
            dilations=[1, 2],
        ),
        Case(
            "ConvTranspose",
            {"x": normal(1, 4, 3, 3), "w": normal(4, 2, 3, 3)},
            {"group": 2},
            name="groups",
            reference=nodes("""
            x0, x1 = Split <axis = 1> (x)  w0, w1 = Split <axis = 0> (w)
            p0 = ConvTranspose (x0, w0)  p1 = ConvTranspose (x1, w1)  y0 = Concat <axis = 1> (p0, p1)"""),
        ),
    ]


def _pools() -> list[Case]:
    x = apart(2, 2, 7, 6)
    return [
        Case("MaxPool", {"x": x}, {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Case("MaxPool", {"x": x}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, name="overlap"),
        Case("MaxPool", {"x": x}, {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, name="ceil"),
        Case("MaxPool", {"x": x}, {"kernel_shape": [2, 3], "strides": [3, 1]}, name="gaps"),
        Case(
            "MaxPool",
            {"x": x},
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
            opset=15,
            name="gathered",
        ),
        Case(
            "MaxPool",
            {"x": x},
            {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
            opset=15,
            name="gathered, ceil",
        ),
        Case(
            "MaxPool",
            {"x": apart(1, 2, 9)},
            {"kernel_shape": [3], "dilations": [2], "strides": [2], "pads": [2, 1]},
            name="dilated",
        ),
        Case("MaxPool", {"x": apart(1, 1, 5, 6)}, {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}, name="same"),
        Case("AveragePool", {"x": x}, {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Case(
            "AveragePool",
            {"x": x},
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
            name="not counted",
        ),
        Case(
            "AveragePool",
            {"x": x},
            {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
            name="counted",
        ),
        Case(
            "AveragePool", {"x": x}, {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, opset=19, name="ceil"
        ),
        Case("AveragePool", {"x": normal(1, 2, 9)}, {"kernel_shape": [4], "strides": [2]}, name="one axis"),
        Case("GlobalAveragePool", {"x": x}),
        Case("GlobalMaxPool", {"x": x}),
    ]


def _normalizations() -> list[Case]:
    x, c = normal(2, 4, 3, 2), {"scale": normal(4), "bias": normal(4)}
    statistics = {"mean": normal(4), "var": between(0.5, 2, 4)}
    return [
        Case("BatchNormalization", {"x": x, **c, **statistics}, {"epsilon": 1e-3}, fixed=("mean", "var")),
        Case("InstanceNormalization", {"x": x, **c}),
        Case(
            "GroupNormalization",
            {"x": x, **c},
            {"num_groups": 2},
            opset=21,
            reference=nodes("""
            flat = Constant <value_ints = [2, 2, -1]> ()  whole = Constant <value_ints = [2, 4, 3, 2]> ()
            each = Constant <value_ints = [1, 4, 1, 1]> ()  one = Constant <value_floats = [1.0, 1.0]> ()
            zero = Constant <value_floats = [0.0, 0.0]> ()
            rows = Reshape (x, flat)  z = InstanceNormalization (rows, one, zero)  z4 = Reshape (z, whole)
            s4 = Reshape (scale, each)  b4 = Reshape (bias, each)  zs = Mul (z4, s4)  y0 = Add (zs, b4)"""),
        ),
        Case("LayerNormalization", {"x": normal(2, 3, 4), **c}),
        Case("LayerNormalization", {"x": normal(2, 3, 4), "scale": normal(3, 4)}, {"axis": 1}, name="two axes"),
        Case("RMSNormalization", {"x": normal(2, 3, 4), "scale": normal(4)}, opset=23),
        Case("LpNormalization", {"x": normal(3, 4)}),
        Case(
            "LpNormalization",
            {"x": normal(3, 4)},
            {"p": 1, "axis": 0},
            name="sum",
            reference=nodes("""
            norm = ReduceL1 <axes = [0]> (x)  y0 = Div (x, norm)"""),
        ),
        Case("LRN", {"x": normal(4, 4, 3, 1)}, {"size": 3, "alpha": 0.5, "beta": 0.75, "bias": 1.5}),
        Case("LRN", {"x": normal(4, 4, 3, 1)}, {"size": 4, "alpha": 0.5}, name="even"),
    ]


def _resizes() -> list[Case]:
    def resize(name: str, sizes: tuple[int, ...], **attributes: Any) -> Case:
        return Case(
            "Resize",
            {"x": normal(1, 2, 4, 5), "roi": None, "scales": None, "sizes": ints(*sizes)},
            attributes,
            name=name,
        )

    return [
        resize("nearest", (1, 2, 8, 10)),
        resize("linear", (1, 2, 7, 12), mode="linear"),
        resize("smaller", (1, 2, 3, 2), mode="linear", coordinate_transformation_mode="align_corners"),
        resize("cubic", (1, 2, 7, 9), mode="cubic", coordinate_transformation_mode="pytorch_half_pixel"),
        Case(
            "Resize",
            {"x": normal(1, 1, 4, 5), "roi": None, "scales": np.array([1, 1, 2, 1.5], "f")},
            {"mode": "linear"},
            fixed=("scales",),
            name="scales",
        ),
    ]


def _layer(op: str, gates: int, ways: int, bias: bool = True) -> dict[str, Any]:
    hidden, size = 3, 4
    return {
        "x": normal(4, 2, size),
        "w": normal(ways, gates * hidden, size) * 0.5,
        "r": normal(ways, gates * hidden, hidden) * 0.5,
        "b": normal(ways, 2 * gates * hidden) * 0.5 if bias else None,
        "n": None,
        "h": normal(ways, 2, hidden),
    }


def _two_ways(op: str, attributes: dict[str, Any], reverse_only: bool) -> tuple[Any, ...]:
    """A reverse or bidirectional layer as forward layers over turned sequences."""
    made, parts, states = [], [], []
    ends = [
        helper.make_node("Constant", [], [n], value_ints=[v])
        for n, v in (("first", -1), ("last", -(2**31)), ("axis0", 0), ("minus", -1))
    ]
    names = ["w", "r", "b", "h", *(["c"] if op == "LSTM" else [])]
    ways = [True] if reverse_only else [False, True]
    if not reverse_only:
        made += [helper.make_node("Split", [n], [f"{n}_0", f"{n}_1"], axis=0) for n in names]
    for i, back in enumerate(ways):
        part = {n: n if reverse_only else f"{n}_{i}" for n in names}
        if back:
            made.append(helper.make_node("Slice", ["x", "first", "last", "axis0", "minus"], ["x_turned"]))
        inputs = [
            "x_turned" if back else "x",
            part["w"],
            part["r"],
            part["b"],
            "",
            part["h"],
            *([part["c"]] if op == "LSTM" else []),
        ]
        made.append(helper.make_node(op, inputs, [f"made_{i}", f"state_{i}"], **attributes))
        if back:
            made.append(helper.make_node("Slice", [f"made_{i}", "first", "last", "axis0", "minus"], [f"part_{i}"]))
        parts.append(f"part_{i}" if back else f"made_{i}")
        states.append(f"state_{i}")
    return (
        *ends,
        *made,
        helper.make_node("Concat", parts, ["y0"], axis=1),
        helper.make_node("Concat", states, ["y1"], axis=0),
    )


def _unrolled(activation: str) -> tuple[Any, ...]:
    """An RNN of four steps as nodes: ONNX's reference knows Tanh alone."""
    made = [helper.make_node("Constant", [], [n], value_ints=v) for n, v in (("axis0", [0]), ("axes01", [0, 1]))]
    made += [helper.make_node("Squeeze", [n, "axis0"], [f"{n}_0"]) for n in ("w", "r", "b", "h")]
    made += [
        helper.make_node("Split", ["b_0"], ["b_x", "b_h"], axis=0),
        helper.make_node("Split", ["x"], [f"x_{t}" for t in range(4)], axis=0),
    ]
    for t in range(4):
        made += [
            helper.make_node("Squeeze", [f"x_{t}", "axis0"], [f"row_{t}"]),
            helper.make_node("Gemm", [f"row_{t}", "w_0", "b_x"], [f"from_x_{t}"], transB=1),
            helper.make_node("Gemm", [f"h_{t}", "r_0", "b_h"], [f"from_h_{t}"], transB=1),
            helper.make_node("Add", [f"from_x_{t}", f"from_h_{t}"], [f"sum_{t}"]),
            helper.make_node(activation, [f"sum_{t}"], [f"h_{t + 1}"]),
            helper.make_node("Unsqueeze", [f"h_{t + 1}", "axes01"], [f"y_{t}"]),
        ]
    return (
        *made,
        helper.make_node("Concat", [f"y_{t}" for t in range(4)], ["y0"], axis=0),
        helper.make_node("Unsqueeze", ["h_4", "axis0"], ["y1"]),
    )


def _recurrent() -> list[Case]:
    size = {"hidden_size": 3}
    c = {"c": normal(1, 2, 3)}
    found = [
        Case("LSTM", {**_layer("LSTM", 4, 1), **c}, size, outputs=2, used=(0, 1)),
        Case(
            "LSTM",
            {k: v for k, v in _layer("LSTM", 4, 1, False).items() if k in "xwr"},
            size,
            outputs=2,
            used=(1,),
            name="last state only",
        ),
        Case(
            "GRU", _layer("GRU", 3, 1), {**size, "linear_before_reset": 1}, outputs=2, used=(0, 1), name="reset after"
        ),
        Case("GRU", _layer("GRU", 3, 1), size, outputs=2, used=(0, 1), name="reset first"),
        Case("RNN", _layer("RNN", 1, 1), size, outputs=2, used=(0, 1)),
    ]
    for name, ways in (("reverse", 1), ("bidirectional", 2)):
        both = _layer("LSTM", 4, ways)
        found.append(
            Case(
                "LSTM",
                {**both, "c": normal(ways, 2, 3)},
                {**size, "direction": name},
                outputs=2,
                used=(0, 1),
                name=name,
                reference=_two_ways("LSTM", size, ways == 1),
            )
        )
    found.append(
        Case(
            "GRU",
            _layer("GRU", 3, 2),
            {**size, "direction": "bidirectional"},
            outputs=2,
            used=(0, 1),
            name="bidirectional",
            reference=_two_ways("GRU", size, False),
        )
    )
    found += [
        Case(
            "RNN",
            _layer("RNN", 1, 1),
            {**size, "activations": [other]},
            outputs=2,
            used=(0, 1),
            name=other,
            reference=_unrolled(other),
        )
        for other in ("Relu", "Sigmoid")
    ]
    return found


CASES = [
    *_unary(),
    *_binary(),
    *_reductions(),
    *_movement(),
    *_indexing(),
    *_products(),
    *_convolutions(),
    *_pools(),
    *_normalizations(),
    *_resizes(),
    *_recurrent(),
]
if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32):
    CASES = [case for case in CASES if case.opset <= 26]  # it takes no newer ones
