"""Ops that quantizers, converters and exporters write in common recipes: against ONNX Runtime's CPU, with sizes that
are fixed and open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import ort_gpu_ep
from ort_gpu_ep.errors import Code, IndexOutOfRangeError, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.lowering import bind, facts_of
from ort_gpu_ep.kernels.registry import BoundNode, Limits, Lowering
from ort_gpu_ep.ops.packed import BEFORE, IN_TILES
from ort_gpu_ep.partitioner.passes import fuse, rewrite
from ort_gpu_ep.partitioner.sizes import Guess, input_types
from tests.direct import run_direct
from tests.ops.single_node import Array, assert_agree, node_model, on_cpu_exactly

ORT, LEARNING = "com.microsoft", "ai.onnx.ml"


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng([38, *seed])


def normal(*shape: int, dtype: str = "float32", seed: int = 1) -> Array:
    return np.asarray(rng(seed, *shape).standard_normal(shape), dtype)


def codes(dtype: str, *shape: int, seed: int = 2) -> Array:
    limits = np.iinfo(dtype)
    return rng(seed, *shape).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def steps(*shape: int) -> Array:
    return np.asarray(rng(3, *shape).uniform(0.01, 0.3, shape), np.float32)


def contrib_model(
    op: str,
    inputs: Sequence[Array | None],
    known: Sequence[int] = (),
    outputs: int = 1,
    domain: str = ORT,
    opset: int = 17,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    arrays = [None if given is None else np.asarray(given) for given in inputs]
    model, feeds = node_model(op, arrays, opset, known, outputs, domain=domain, **attributes)
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model, feeds


def check(
    op: str,
    inputs: Sequence[Array | None],
    known: Sequence[int] = (),
    outputs: int = 1,
    domain: str = ORT,
    opset: int = 17,
    tolerance: float = 1e-6,
    wanted: Sequence[Array] | None = None,
    **attributes: Any,
) -> None:
    """Against ONNX Runtime's CPU kernel, or `wanted`: as the sizes are, and as if the model left all of them open."""
    model, feeds = contrib_model(op, inputs, known, outputs, domain, opset, **attributes)
    wanted = wanted or on_cpu_exactly(model, feeds)
    for every_size_open in (False, True):
        for got, want in zip(run_direct(model, feeds, passes_of(domain), every_size_open), wanted, strict=True):
            assert_agree(got, want, tolerance)


def passes_of(domain: str) -> Any:
    """Rows of ai.onnx.ml want their parameters as constants, which a pass makes of them; the others are asked for the
    node alone."""
    return rewrite if domain == LEARNING else None


def check_decline(
    code: Code, op: str, inputs: Sequence[Array | None], known: Sequence[int] = (), **attributes: Any
) -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(*contrib_model(op, inputs, known, **attributes))
    assert caught.value.code is code, caught.value


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize(
    ("shape", "axis", "count"),
    [((37, 41), 1, ()), ((3, 5, 7), None, (5,)), ((3, 5, 7), -3, (3,)), ((0, 5), 1, (5,))],
    ids=str,
)
def test_quantizers_of_onnxruntimes_domain(
    dtype: str, shape: tuple[int, ...], axis: int | None, count: tuple[int, ...]
) -> None:
    given = {} if axis is None else {"axis": axis}
    check("QuantizeLinear", [normal(*shape) * 9, steps(*count), codes(dtype, *count)], **given)
    check("DequantizeLinear", [codes(dtype, *shape), steps(*count), codes(dtype, *count)], **given)


def test_their_zero_point_may_be_left_out() -> None:
    check("QuantizeLinear", [normal(33) * 9, steps()])
    check("DequantizeLinear", [codes("uint8", 33), steps()])
    check("DequantizeLinear", [codes("int32", 3, 7), steps(7)])


def quantized_network(domain: str, product: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A product of dequantized bytes between quantizers of that domain, as onnxruntime's static quantizer writes it."""
    x, w = (
        (normal(2, 8, 9, 9), codes("int8", 4, 8, 3, 3)) if product == "Conv" else (normal(7, 16), codes("int8", 16, 12))
    )
    held = {
        "w": w,
        "s": np.float32(0.03),
        "z": np.uint8(120),
        "ws": np.float32(0.02),
        "wz": np.int8(0),
        "ys": np.float32(0.4),
        "yz": np.uint8(7),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain=domain),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["a"], domain=domain),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["b"], domain=domain),
        helper.make_node(product, ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["d"], domain=domain),
        helper.make_node("DequantizeLinear", ["d", "ys", "yz"], ["y"], domain=domain),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in held.items()],
    )
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), {"x": x}


@pytest.mark.parametrize("product", ["MatMul", "Conv"])
def test_products_between_them_are_products_of_bytes(product: str) -> None:
    """The same kernels as with ONNX's own quantizers."""
    fused, results = [], []
    for domain in (ORT, ""):
        model, feeds = quantized_network(domain, product)
        graph = from_onnx(model)
        fused.append([(n.op, n.domain) for n in fuse(graph, input_types(graph, Guess(8)), Limits()).nodes])
        results.append(run_direct(model, feeds)[0])
        assert_agree(results[-1], on_cpu_exactly(model, feeds)[0])
    assert fused[0] == fused[1]
    assert (f"QLinear{product}", "") in fused[0]
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("kind", [onnx.TensorProto.INT4, onnx.TensorProto.UINT4])
def test_weights_of_four_bits_of_their_domain(kind: int) -> None:
    """Read packed by the product, as those of ONNX's own DequantizeLinear. Against float64: onnxruntime's optimizer
    rounds x to bytes."""
    low = -8 if kind == onnx.TensorProto.INT4 else 0
    w, zeros = rng(4).integers(low, low + 16, (16, 12)), rng(5).integers(low, low + 16, 12)
    held = [
        helper.make_tensor("w", kind, w.shape, w.reshape(-1)),
        helper.make_tensor("z", kind, [12], zeros),
        numpy_helper.from_array(steps(12), "s"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["b"], domain=ORT),
        helper.make_node("MatMul", ["x", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [3, 16])], [onnx.ValueInfoProto(name="y")], held
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(ORT, 1)], ir_version=10
    )
    feeds = {"x": normal(3, 16)}
    read = from_onnx(model)
    assert [n.op for n in fuse(read, input_types(read, Guess(8)), Limits()).nodes] == ["PackedMatMul"]
    exact = feeds["x"].astype(np.float64) @ ((w - zeros) * steps(12).astype(np.float64))
    assert_agree(run_direct(model, feeds)[0], exact.astype(np.float32))


def q_attention(
    kind: str = "int8", columns: bool = False, batch: int = 2, rows: int = 5, d: int = 24, hidden: int = 32
) -> list[Array | None]:
    """Inputs of a QAttention up to the mask. columns: a scale and a zero point for each column."""
    each = (3 * hidden,) if columns else ()
    return [
        codes("uint8", batch, rows, d),
        codes(kind, d, 3 * hidden),
        normal(3 * hidden),
        np.float32(0.02),
        steps(*each) / 10,
        None,
        np.uint8(117),
        codes(kind, *each),
    ]


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("columns", [False, True])
def test_quantized_attention(kind: str, columns: bool) -> None:
    check("QAttention", q_attention(kind, columns), known=(1, 2, 3, 4, 6, 7), num_heads=4, tolerance=2e-6)


def test_its_zero_points_may_be_left_out() -> None:
    check("QAttention", q_attention()[:5], known=(1, 2, 4), num_heads=4, tolerance=2e-6)


@pytest.mark.parametrize("mask", ["lengths", "keys", "queries"])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_its_masks(mask: str, unidirectional: int) -> None:
    given = q_attention()
    given[5] = {
        "lengths": np.array([3, 5], np.int32),
        "keys": np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]], np.int32),
        "queries": np.concatenate([np.ones((2, 5, 1), "i"), rng(9).integers(0, 2, (2, 5, 4)).astype("i")], axis=2),
    }[mask]
    check(
        "QAttention",
        given,
        known=(1,),
        num_heads=4,
        unidirectional=unidirectional,
        mask_filter_value=-3e4,
        tolerance=2e-6,
    )


def test_its_cache() -> None:
    for past in (normal(2, 2, 4, 7, 8), normal(2, 2, 4, 0, 8)):
        check(
            "QAttention", [*q_attention(), past], known=(1,), outputs=2, num_heads=4, unidirectional=1, tolerance=2e-6
        )
    check("QAttention", q_attention(), known=(1,), outputs=2, num_heads=4, tolerance=2e-6)


def test_what_quantized_attention_declines() -> None:
    check_decline(Code.RANK, "QAttention", q_attention(), num_heads=5)
    check_decline(Code.ATTRIBUTE, "QAttention", q_attention(), num_heads=4, do_rotary=1)
    check_decline(Code.RANK, "QAttention", [*q_attention(), normal(2, 2, 4, 7, 9)], num_heads=4)


ACTIVE = {"Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Tanh": np.tanh, "Relu": lambda x: np.maximum(x, 0)}


def rounded(x: Array) -> Array:
    """As DynamicQuantizeLinear has it, and back."""
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    scale = (high - low) / 255 or 1.0
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def lstm_of_rounded(inputs: Sequence[Any], hidden: int, direction: str = "forward") -> list[Array]:
    """DynamicQuantizeLSTM in float64, h rounded a row at a time."""
    x, w, r, b, _, h0, c0, p = (None if i is None else np.asarray(i, np.float64) for i in inputs[:8])
    w_scale, w_zero, r_scale, r_zero = (np.asarray(i, np.float64) for i in inputs[8:12])
    x, directions, batch = rounded(x), len(w), x.shape[1]
    y = np.zeros((len(x), directions, batch, hidden))
    hs, cs = np.zeros((directions, batch, hidden)), np.zeros((directions, batch, hidden))
    for d in range(directions):
        wd, rd = ((m[d] - zero[d]) * scale[d] for m, zero, scale in ((w, w_zero, w_scale), (r, r_zero, r_scale)))
        bias = 0 if b is None else b[d][: 4 * hidden] + b[d][4 * hidden :]
        h, c = (np.zeros((batch, hidden)) if s is None else s[d] for s in (h0, c0))
        order = range(len(x))[::-1] if direction == "reverse" or d else range(len(x))
        for t in order:
            i, o, f, g = np.split(x[t] @ wd + np.stack([rounded(row) for row in h]) @ rd + bias, 4, axis=1)
            peep = np.zeros((3, hidden)) if p is None else p[d].reshape(3, hidden)
            sigmoid = ACTIVE["Sigmoid"]
            c_new = sigmoid(f + c * peep[2]) * c + sigmoid(i + c * peep[0]) * np.tanh(g)
            h, c = sigmoid(o + c_new * peep[1]) * np.tanh(c_new), c_new
            y[t, d] = h
        hs[d], cs[d] = h, c
    return [np.asarray(out, np.float32) for out in (y, hs, cs)]


def lstm_inputs(
    kind: str, batch: int, directions: int = 1, columns: bool = False, hidden: int = 20, inputs: int = 7
) -> list[Array | None]:
    each = (directions, 4 * hidden) if columns else (directions,)
    zero = (
        codes(kind, directions)
        if not columns
        else np.zeros(each, kind) + np.asarray(0 if kind == "int8" else 121, kind)
    )
    return [
        normal(6, batch, inputs),
        codes(kind, directions, inputs, 4 * hidden),
        codes(kind, directions, hidden, 4 * hidden),
        normal(directions, 8 * hidden),
        None,
        normal(directions, batch, hidden) / 3,
        normal(directions, batch, hidden, seed=4),
        None,
        steps(*each) / 30,
        zero,
        steps(*each) / 40,
        zero,
    ]


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_dynamic_quantize_lstm(kind: str, columns: bool, direction: str) -> None:
    """Of one row, all that onnxruntime's CPU rounds together."""
    given = lstm_inputs(kind, 1, 1 + (direction == "bidirectional"), columns)
    check("DynamicQuantizeLSTM", given, (1, 2, 3, 8, 9, 10, 11), outputs=3, hidden_size=20, direction=direction)


def test_its_rows_are_rounded_by_themselves() -> None:
    given = lstm_inputs("int8", 3, 2, True)
    check(
        "DynamicQuantizeLSTM",
        given,
        (1, 2),
        3,
        wanted=lstm_of_rounded(given, 20),
        hidden_size=20,
        direction="bidirectional",
    )
    given = lstm_inputs("uint8", 2)
    given[3] = given[5] = given[6] = None
    given[7] = normal(1, 60)
    check("DynamicQuantizeLSTM", given, (1, 2), 3, wanted=lstm_of_rounded(given, 20), hidden_size=20)


def test_more_hidden_units_than_a_workgroup_has_invocations() -> None:
    given = lstm_inputs("int8", 1, hidden=300, inputs=40)
    check("DynamicQuantizeLSTM", given, (1, 2, 8, 9, 10, 11), 3, hidden_size=300, tolerance=2e-6)


def test_its_activations_and_clip() -> None:
    check(
        "DynamicQuantizeLSTM",
        lstm_inputs("int8", 1),
        (1, 2),
        3,
        hidden_size=20,
        activations=["Relu", "Tanh", "Sigmoid"],
        clip=2.0,
        input_forget=1,
    )


def test_what_dynamic_quantize_lstm_declines() -> None:
    given = lstm_inputs("int8", 1)
    check_decline(Code.RANK, "DynamicQuantizeLSTM", [*given[:8], steps(3), *given[9:]], hidden_size=20)
    check_decline(Code.ATTRIBUTE, "DynamicQuantizeLSTM", given, hidden_size=21)


def bnb4(n: int, k: int, block: int, dtype: str = "float32") -> list[Array]:
    """Codes and scales of a MatMulBnb4."""
    return [
        rng(6, n, k).integers(0, 256, n * k // 2, "uint8"),
        np.asarray(rng(7, n, k).uniform(0.1, 2, n * k // block), dtype),
    ]


@pytest.mark.parametrize("kind", [0, 1], ids=["fp4", "nf4"])
@pytest.mark.parametrize(
    ("rows", "n", "k", "block"),
    [
        ((1,), 24, 64, 16),
        ((2, 2), 37, 96, 32),
        ((3,), 8, 32, 32),
        ((7,), 20, 128, 64),
        ((2, 35), 67, 64, 16),
        ((70,), 64, 64, 64),
    ],
    ids=str,
)
def test_matmul_of_fp4_and_nf4(kind: int, rows: tuple[int, ...], n: int, k: int, block: int) -> None:
    """Few vectors and many, blocks that are parts of a row and whole rows."""
    check(
        "MatMulBnb4", [normal(*rows, k), *bnb4(n, k, block)], known=(1, 2), K=k, N=n, block_size=block, quant_type=kind
    )


LEVELS = {
    0: [
        0.0,
        0.005208333333,
        2 / 3,
        1.0,
        1 / 3,
        0.5,
        1 / 6,
        0.25,
        0.0,
        -0.005208333333,
        -2 / 3,
        -1.0,
        -1 / 3,
        -0.5,
        -1 / 6,
        -0.25,
    ],
    1: [
        -1.0,
        -0.6961928,
        -0.52507305,
        -0.3949175,
        -0.28444138,
        -0.18477343,
        -0.091050036,
        0.0,
        0.0795803,
        0.1609302,
        0.2461123,
        0.33791524,
        0.44070983,
        0.562617,
        0.72295684,
        1.0,
    ],
}


@pytest.mark.parametrize("kind", [0, 1], ids=["fp4", "nf4"])
@pytest.mark.parametrize("rows", [2, 40])
def test_it_in_float16(kind: int, rows: int) -> None:
    """Against float64: onnxruntime's CPU has no such kernel."""
    n, k, block = 20, 64, 32
    held = bnb4(n, k, block, "float16")
    values = np.array(LEVELS[kind])[np.stack([held[0] >> 4, held[0] & 15], 1).reshape(n, k)] * held[1].astype(
        "d"
    ).repeat(block).reshape(n, k)
    x = normal(rows, k, dtype="float16")
    wanted = [(x.astype("d") @ values.T).astype(np.float16)]
    check("MatMulBnb4", [x, *held], (1, 2), wanted=wanted, tolerance=1e-3, K=k, N=n, block_size=block, quant_type=kind)


@pytest.mark.parametrize("form", [IN_TILES, BEFORE])
@pytest.mark.parametrize("block", [32, 64])
def test_its_forms_of_many_vectors(form: str, block: int) -> None:
    with forced(form):
        check(
            "MatMulBnb4",
            [normal(9, 64), *bnb4(40, 64, block)],
            known=(1, 2),
            K=64,
            N=40,
            block_size=block,
            quant_type=1,
        )


@pytest.mark.parametrize("rows", [1, 8])
def test_its_weights_stay_packed(rows: int) -> None:
    """What is on the device from run to run is in codes, and the model's own order need not be there beside."""
    model, _ = contrib_model(
        "MatMulBnb4", [normal(rows, 256), *bnb4(512, 256, 64)], (1, 2), K=256, N=512, block_size=64, quant_type=1
    )
    graph = from_onnx(model)
    bound = bind(graph.nodes[0], facts_of(graph, input_types(graph, Guess(64))))
    assert isinstance(bound, BoundNode)
    built = claim(bound, Limits())
    assert isinstance(built, Lowering)
    kept = [tensor.nbytes for name, tensor in built.temps if name in built.once]
    assert 512 * 256 // 2 <= sum(kept) <= 512 * 256 // 2 + 512 * 4 * 4
    assert 1 in [index for index, _ in built.inverses]


def test_what_matmul_of_four_bits_declines() -> None:
    given = [normal(3, 96), *bnb4(20, 96, 32)]
    check_decline(
        Code.ATTRIBUTE,
        "MatMulBnb4",
        [normal(3, 96), *bnb4(20, 96, 64)],
        (1, 2),
        K=96,
        N=20,
        block_size=64,
        quant_type=1,
    )
    check_decline(Code.ATTRIBUTE, "MatMulBnb4", given, (1, 2), K=96, N=20, block_size=32, quant_type=2)
    check_decline(Code.RANK, "MatMulBnb4", given, (1, 2), K=96, N=21, block_size=32, quant_type=1)
    check_decline(Code.NOT_CONSTANT, "MatMulBnb4", given, (2,), K=96, N=20, block_size=32, quant_type=1)


def check_learning(op: str, x: Array, outputs: int = 1, tolerance: float = 1e-6, **attributes: Any) -> None:
    check(op, [x], outputs=outputs, domain=LEARNING, tolerance=tolerance, **attributes)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("shape", [(5, 7), (7,), (0, 7), (301, 7)], ids=str)
@pytest.mark.parametrize("each", [1, 7])
def test_scaler(dtype: str, shape: tuple[int, ...], each: int) -> None:
    x = np.asarray(rng(11, *shape).normal(size=shape) * 50, dtype)
    check_learning("Scaler", x, offset=normal(each).tolist(), scale=normal(each, seed=5).tolist())


@pytest.mark.parametrize("replaced", [0.0, -3.0, float("nan")])
@pytest.mark.parametrize("each", [1, 7])
def test_imputer_of_floats(replaced: float, each: int) -> None:
    x = rng(12).integers(-4, 5, (40, 7)).astype("f")
    x[::3, 2] = np.nan
    check_learning("Imputer", x, imputed_value_floats=normal(each).tolist(), replaced_value_float=replaced)


@pytest.mark.parametrize("replaced", [0, -3, 1 << 40])
def test_imputer_of_integers(replaced: int) -> None:
    x = rng(13).integers(-4, 5, (40, 3))
    x[::4, 1] = 1 << 40
    x[1::4, 1] = 1 << 40 | 1
    check_learning("Imputer", x, imputed_value_int64s=[1 << 41, -7, 5], replaced_value_int64=replaced)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
@pytest.mark.parametrize("shape", [(40, 7), (7,)], ids=str)
def test_normalizer(norm: str, dtype: str, shape: tuple[int, ...]) -> None:
    x = np.asarray(rng(14, *shape).normal(size=shape) * 9, dtype)
    if len(shape) == 2:
        x[3] = 0
        x[4] = -abs(x[4])
    check_learning("Normalizer", x, norm=norm)


@pytest.mark.parametrize(("targets", "transform"), [(1, "NONE"), (3, "NONE"), (3, "LOGISTIC"), (3, "SOFTMAX")])
def test_linear_regressor(targets: int, transform: str) -> None:
    for x in (normal(40, 7), normal(7)):
        for intercepts in ({}, {"intercepts": normal(targets, seed=8).tolist()}):
            check_learning(
                "LinearRegressor",
                x,
                coefficients=normal(targets * 7, seed=3).tolist(),
                targets=targets,
                post_transform=transform,
                **intercepts,
            )


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize(
    ("classes", "transform"), [(2, "LOGISTIC"), (5, "NONE"), (5, "SOFTMAX"), (1, "NONE"), (1, "LOGISTIC")]
)
def test_linear_classifier(classes: int, transform: str, dtype: str) -> None:
    x = np.asarray(rng(15).normal(size=(40, 7)) * 4, dtype)
    attributes = {
        "coefficients": (normal(classes * 7, seed=3) / 3).tolist(),
        "intercepts": normal(classes, seed=8).tolist(),
        "post_transform": transform,
        "classlabels_ints": [10 - 3 * k for k in range(max(classes, 2))],
    }
    check_learning("LinearClassifier", x, outputs=2, **attributes)


def test_a_pipeline_is_one_partition() -> None:
    """Imputer, Scaler and LinearClassifier in a session: none is on the CPU, Scaler goes into the Imputer's kernel."""
    nodes = [
        helper.make_node(
            "Imputer",
            ["x"],
            ["a"],
            domain=LEARNING,
            imputed_value_floats=[1.0, 2.0, 3.0],
            replaced_value_float=float("nan"),
        ),
        helper.make_node("Scaler", ["a"], ["b"], domain=LEARNING, offset=[0.1, 0.2, 0.3], scale=[2.0, 3.0, 4.0]),
        helper.make_node(
            "LinearClassifier",
            ["b"],
            ["label", "scores"],
            domain=LEARNING,
            coefficients=normal(9).tolist(),
            intercepts=[0.1, 0.2, 0.3],
            classlabels_ints=[0, 1, 2],
            post_transform="SOFTMAX",
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", 3])],
        [helper.make_tensor_value_info("label", 7, ["n"]), helper.make_tensor_value_info("scores", 1, ["n", 3])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(LEARNING, 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    feeds = {"x": normal(17, 3)}
    feeds["x"][2, 1] = np.nan
    session = ort_gpu_ep.InferenceSession(model, provider_options={"placement": "gpu"})
    got = session.run(None, feeds)
    assert session.explain().count("cpu") == 0
    assert len(session.explain().reports[0].partitions) == 1
    for mine, its in zip(got, on_cpu_exactly(onnx.load_from_string(model), feeds), strict=True):
        assert_agree(mine, its)


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "code"),
    [
        ("Scaler", (2, 3, 4), {"offset": [0.0], "scale": [1.0]}, Code.RANK),
        ("Scaler", (2, 3), {"offset": [0.0, 1.0], "scale": [1.0, 1.0]}, Code.ATTRIBUTE),
        ("Scaler", (2, 3), {"offset": [0.0]}, Code.ATTRIBUTE),
        ("Imputer", (2, 3), {}, Code.ATTRIBUTE),
        ("Normalizer", (2, 3), {"norm": "L3"}, Code.ATTRIBUTE),
        ("LinearRegressor", (2, 3), {"coefficients": [1.0] * 3, "post_transform": "LOGISTIC"}, Code.ATTRIBUTE),
        (
            "LinearRegressor",
            (2, 3),
            {"coefficients": [1.0] * 6, "targets": 2, "post_transform": "PROBIT"},
            Code.ATTRIBUTE,
        ),
        ("LinearRegressor", (2, 3), {"coefficients": [1.0] * 4}, Code.ATTRIBUTE),
        (
            "LinearClassifier",
            (2, 3),
            {"coefficients": [1.0] * 6, "intercepts": [1.0, 2.0], "classlabels_strings": ["a", "b"]},
            Code.DTYPE,
        ),
    ],
)
def test_what_they_decline(op: str, shape: tuple[int, ...], attributes: dict[str, Any], code: Code) -> None:
    model, feeds = contrib_model(
        op, [normal(*shape)], outputs=1 + (op == "LinearClassifier"), domain=LEARNING, **attributes
    )
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(model, feeds, rewrite)
    assert caught.value.code is code, caught.value


def regions(count: int, height: float, width: float, seed: int = 21) -> Array:
    """Corners x, y of regions inside, across the border, beyond it, larger than the image, empty and turned."""
    low, high = rng(seed).uniform(-0.4, 0.8, (count, 2)), rng(seed, 1).uniform(0.1, 1.4, (count, 2))
    found = np.concatenate([low, high], 1) * [width, height, width, height]
    found[:3] = [[-2 * width, -2 * height, 3 * width, 3 * height], [2, 3, 2, 3], [6, 5, 2, 1]]
    return found.astype("f")


@pytest.mark.parametrize(
    ("opset", "coordinates"), [(10, None), (16, "half_pixel"), (22, "output_half_pixel"), (16, None)]
)
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("sampling", [0, 3])
def test_roi_align(opset: int, coordinates: str | None, mode: str, sampling: int) -> None:
    given: dict[str, Any] = {} if coordinates is None else {"coordinate_transformation_mode": coordinates}
    given |= {"mode": mode, "output_height": 3, "output_width": 5, "sampling_ratio": sampling, "spatial_scale": 0.5}
    rois = regions(9, 26, 34)
    if sampling == 0:  # a region that is turned round has a negative number of points, which onnxruntime refuses
        rois = np.concatenate([np.minimum(rois[:, :2], rois[:, 2:]), np.maximum(rois[:, :2], rois[:, 2:])], 1)
    inputs = [normal(3, 2, 13, 17), rois, rng(22).integers(0, 3, 9)]
    # onnxruntime's CPU has none of opset 22
    older = contrib_model("RoiAlign", inputs, domain="", opset=min(opset, 16), **given)
    check("RoiAlign", inputs, domain="", opset=opset, wanted=on_cpu_exactly(*older), tolerance=3e-6, **given)


def test_roi_align_in_float16_and_of_nothing() -> None:
    x, rois, batch = normal(2, 3, 9, 9, dtype="float16"), regions(5, 9, 9).astype("e"), rng(22).integers(0, 2, 5)
    wide = contrib_model(
        "RoiAlign", [x.astype("f"), rois.astype("f"), batch], domain="", opset=16, output_height=2, output_width=2
    )
    check(
        "RoiAlign",
        [x, rois, batch],
        domain="",
        opset=16,
        wanted=[on_cpu_exactly(*wide)[0].astype("e")],
        tolerance=1e-3,
        output_height=2,
        output_width=2,
    )
    check(
        "RoiAlign",
        [normal(2, 3, 9, 9), np.zeros((0, 4), "f"), np.zeros(0, "i8")],
        domain="",
        opset=16,
        output_height=2,
        output_width=2,
    )


@pytest.mark.parametrize("batch", [[0, 2], [-1, 0], [1, 1 << 32]], ids=str)
@pytest.mark.parametrize("op", ["RoiAlign", "CropAndResize"])
def test_an_image_out_of_range_is_an_error(op: str, batch: list[int]) -> None:
    crops = op == "CropAndResize"
    index = np.array(batch).astype("i4" if crops else "i8")
    if crops and batch[1] == 1 << 32:
        index = np.array([1 << 30, 0], "i4")
    size = [np.array([2, 3], "i4")] if crops else []
    model, feeds = contrib_model(
        op, [normal(2, 3, 9, 9), regions(4, 9, 9)[:2], index, *size], (3,), domain=ORT if crops else "", opset=16
    )
    with pytest.raises(Exception, match="out of range"):
        on_cpu_exactly(model, feeds)
    session = ort_gpu_ep.InferenceSession(
        model.SerializeToString(), provider_options={"placement": "gpu", "strict": "1"}
    )
    with pytest.raises(IndexOutOfRangeError, match=op):
        session.run(None, feeds)


def test_what_roi_align_declines() -> None:
    x, rois, batch = normal(2, 3, 9, 9), regions(5, 9, 9), np.zeros(5, "i8")
    for inputs, attributes, code in (
        ([x, rois[:, :3].copy(), batch], {}, Code.RANK),
        ([x, rois, batch[:4]], {}, Code.RANK),
        ([x, rois, batch], {"mode": "sum"}, Code.ATTRIBUTE),
    ):
        with pytest.raises(UnsupportedNodeError) as caught:
            run_direct(*contrib_model("RoiAlign", inputs, domain="", opset=16, **attributes))
        assert caught.value.code is code


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 5), (1, 4), (6, 1)], ids=str)
def test_crop_and_resize(mode: str, size: tuple[int, int]) -> None:
    rois = regions(9, 1, 1)[:, [1, 0, 3, 2]]
    rois[1:3] = [[0, 0, 1, 1], [0.8, 0.9, 0.1, 0.2]]
    check(
        "CropAndResize",
        [normal(3, 2, 13, 17), rois, rng(22).integers(0, 3, 9, "i4"), np.array(size, "i4")],
        known=(3,),
        mode=mode,
        extrapolation_value=-2.5,
        tolerance=3e-6,
    )


def test_what_crop_and_resize_declines() -> None:
    given = [normal(3, 2, 13, 17), regions(4, 1, 1), np.zeros(4, "i4"), np.array([2, 3, 4], "i4")]
    check_decline(Code.ATTRIBUTE, "CropAndResize", given, known=(3,))
    check_decline(Code.ATTRIBUTE, "CropAndResize", [*given[:3], np.array([2, 3], "i4")], known=(3,), mode="cubic")


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("known", [(), (2, 3, 5, 6, 7, 8)])
def test_qlinear_where(dtype: str, known: tuple[int, ...]) -> None:
    """Bit by bit, over all bytes, with shapes that broadcast."""
    x, y = np.arange(256).astype(dtype).reshape(1, 256), codes(dtype, 5, 1)
    numbers = [
        np.float32(0.037),
        codes(dtype),
        np.float32(0.052),
        codes(dtype, seed=8),
        np.float32(0.041),
        codes(dtype, seed=9),
    ]
    check("QLinearWhere", [rng(31).random((3, 1, 256)) < 0.5, x, *numbers[:2], y, *numbers[2:]], known)


def test_qlinear_where_declines_scales_of_channels() -> None:
    x, zero = codes("uint8", 3, 4), np.uint8(3)
    check_decline(Code.RANK, "QLinearWhere", [x > 100, x, steps(4), zero, x, steps(), zero, steps(), zero])


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_of_their_domain(mode: str, padding: str) -> None:
    check("GridSample", [normal(2, 3, 5, 7), normal(2, 4, 6, 2) * 1.5], mode=mode, padding_mode=padding, tolerance=3e-6)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample_of_volumes(mode: str, padding: str, align: int) -> None:
    check(
        "GridSample",
        [normal(2, 3, 5, 7, 4), normal(2, 4, 6, 3, 3) * 1.5],
        domain="",
        opset=20,
        mode=mode,
        padding_mode=padding,
        align_corners=align,
        tolerance=3e-6,
    )


RANDOM_OPS = {
    "RandomNormal": ([], {"shape": [40]}),
    "RandomUniform": ([], {"shape": [40]}),
    "RandomNormalLike": ([normal(40)], {}),
    "RandomUniformLike": ([normal(40)], {}),
    "Bernoulli": ([np.full(40, 0.5, np.float32)], {}),
    "Multinomial": ([np.zeros((1, 9), np.float32)], {"sample_size": 40}),
}


@pytest.mark.parametrize("op", RANDOM_OPS)
def test_random_numbers_of_a_seed_depend_on_the_runs_before(op: str) -> None:
    """So it is in onnxruntime: that is why such nodes are declined, and the reason says so."""
    inputs, attributes = RANDOM_OPS[op]
    model, feeds = contrib_model(op, inputs, domain="", opset=15, seed=7.0, **attributes)
    sessions = [
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]) for _ in range(2)
    ]
    first, second, other = (s.run(None, feeds)[0] for s in (sessions[0], sessions[0], sessions[1]))
    np.testing.assert_array_equal(first, other)
    assert not np.array_equal(first, second)
    with pytest.raises(UnsupportedNodeError, match="goes on with from run to run") as caught:
        run_direct(model, feeds)
    assert caught.value.code is Code.OP
