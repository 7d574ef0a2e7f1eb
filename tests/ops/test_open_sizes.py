"""Sizes that the model leaves open: one plan and one set of pipelines, right for sizes that it was not made for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.backend.test.loader import load_model_tests
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import dtype_of
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.runtime.program import Program
from tests.direct import run_direct, run_program

rng = np.random.default_rng(7)


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: (rng.standard_normal(shape) / 4).astype("f") for name, shape in shapes.items()}


CASES: dict[str, tuple[str, dict[str, np.ndarray], Sequence[tuple[int, ...]]]] = {
    "attention": (
        "(float[N, L, 16] x) => (float[N, L, 16] y) { q = MatMul(x, a) k = MatMul(x, b) t = Transpose<perm=[0, 2, "
        "1]>(k) s = MatMul(q, t) "
        "p = Softmax(s) o = MatMul(p, x) r = Add(o, x) n = LayerNormalization(r, g, h) y = "
        'Gelu<approximate="tanh">(n) }',
        weights(a=(16, 16), b=(16, 16), g=(16,), h=(16,)),
        [(2, 5), (3, 17), (2, 64), (5, 130), (4, 2)],
    ),
    "heads": (
        "(float[N, L, 24] x) => (float[N, L, 24] y) { s = Shape(x) n = Gather(s, zero) l = Gather(s, one) un = "
        "Unsqueeze(n, axis) "
        "ul = Unsqueeze(l, axis) a = Concat<axis=0>(un, ul, heads) r = Reshape(x, a) t = Transpose<perm=[0, "
        "2, 1, 3]>(r) "
        "e = Exp(t) b = Transpose<perm=[0, 2, 1, 3]>(e) y = Reshape(b, s) }",
        {"zero": np.array(0), "one": np.array(1), "axis": np.array([0]), "heads": np.array([3, 8])},
        [(2, 5), (3, 17), (2, 64)],
    ),
    "positions": (  # how exporters write those of a decoder's step
        "(float[N, L, 64] x) => (float[N, 1, 64] y) { s = Shape(x) n = Gather(s, axis) l = Gather(s, one) p = "
        "Unsqueeze(l, axis) r = Concat<axis=0>(n, column) t = Tile(p, r) e = Gather(w, t) m = "
        "ReduceMean<axes=[1]>(x) y = Add(m, e) }",
        {"one": np.array([1]), "axis": np.array([0]), "column": np.array([1]), **weights(w=(40, 64))},
        [(1, 5), (1, 17), (1, 2), (1, 39)],
    ),
    "offset positions": (
        "(float[N, L, 64] x) => (float[N, L, 64] y) { s = Shape(x) l = Gather(s, one) b = Add(l, two) e = Gather(w, b) "
        "y = Add(x, e) }",
        {"one": np.array(1), "two": np.array(2), **weights(w=(42, 64))},
        [(2, 5), (3, 17), (2, 3), (4, 39)],
    ),
    "convolutions": (
        "(float[N, 3, H, W] x) => (float[N, C, P, Q] y) { a = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, w, v) "
        "r = Relu(a) "
        "d = Conv<group=8, pads=[1, 1, 1, 1]>(r, u) p = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(d) c = Conv(p, z) "
        'm = AveragePool<kernel_shape=[3, 3], auto_pad="SAME_UPPER">(c) t = ConvTranspose<strides=[2, 2]>(m, o) y = '
        "Sigmoid(t) }",
        weights(w=(8, 3, 3, 3), v=(8,), u=(8, 1, 3, 3), z=(12, 8, 1, 1), o=(12, 4, 2, 2)),
        [(2, 16, 24), (3, 32, 40), (2, 64, 18), (4, 17, 33)],
    ),
    "reductions": (
        "(float[N, L, 7] x) => (float[N, 7] y, float[N, L] z, int64[N, 7] i) { m = ReduceMean<axes=[1], keepdims=0>(x) "
        "a = ReduceMax<axes=[1], "
        "keepdims=0>(x) y = Sub(m, a) z = ReduceL2<axes=[2], keepdims=0>(x) i = ArgMax<axis=1, keepdims=0>(x) }",
        {},
        [(2, 5), (3, 17), (2, 700), (40, 33)],
    ),
    "movement": (
        "(float[N, L, 6] x) => (y, z, w) { s = Slice(x, from, to, along) c = Concat<axis=1>(x, s, x) "
        'p = Pad<mode="reflect">(c, pads) t = Tile(p, repeats) y = Neg(t) g = Gather<axis=1>(x, places) z = Abs(g) '
        "a, b = Split<axis=2>(x, parts) e = Expand(a, shape) w = Mul(e, a) }",
        {
            "from": np.array([1]),
            "to": np.array([1 << 40]),
            "along": np.array([1]),
            "pads": np.array([0, 1, 2, 0, 1, 0]),
            "repeats": np.array([2, 1, 1]),
            "places": np.array([0, -1, 2]),
            "parts": np.array([2, 4]),
            "shape": np.array([1, 1, 2]),
        },
        [(2, 5), (3, 17), (2, 64)],
    ),
    "ranges": (
        "(float[N, L] x) => (float[N, L] y, int64[K] z) { s = Shape(x) l = Gather(s, one) r = Range(zero, l, one) c = "
        "Cast<to=1>(r) a = Add(x, c) "
        "f = ConstantOfShape<value: tensor = float[1] {2.5}>(s) y = Mul(a, f) u = Unsqueeze(l, axis) t = Add(u, u) z = "
        "Concat<axis=0>(s, t) }",
        {"zero": np.array(0), "one": np.array(1), "axis": np.array([0])},
        [(2, 5), (3, 17), (2, 64)],
    ),
    "resize": (
        '(float[N, 3, H, W] x) => (y, z) { y = Resize<mode="linear">(x, none, scales) s = Shape(x) h = Slice(s, two, '
        "four, axis) "
        'd = Mul(h, factor) k = Slice(s, axis, two, axis) t = Concat<axis=0>(k, d) z = Resize<mode="nearest">(x, '
        "none, none, t) }",
        {
            "none": np.zeros(0, "f"),
            "scales": np.array([1, 1, 2, 1.5], "f"),
            "two": np.array([2]),
            "four": np.array([4]),
            "axis": np.array([0]),
            "factor": np.array([3, 2]),
        },
        [(2, 4, 6), (3, 8, 10), (2, 20, 14)],
    ),
    "resize to a length that an axis has already": (
        "(float[N, 3, H, W] x) => (a, b, c, d, e) { s = Shape(x) k = Slice(s, zero, two, zero) t = "
        "Concat<axis=0>(k, grid) "
        'a = Resize<mode="linear">(x, none, none, t) b = Resize<mode="cubic", '
        'coordinate_transformation_mode="align_corners">(x, none, none, t) '
        'c = Resize<mode="nearest">(x, none, none, t) d = Resize<mode="linear", antialias=1>(x, none, none, t) '
        'e = Resize<mode="linear", coordinate_transformation_mode="pytorch_half_pixel">(x, none, none, t) }',
        {"none": np.zeros(0, "f"), "two": np.array([2]), "zero": np.array([0]), "grid": np.array([5, 7])},
        [(2, 4, 6), (2, 5, 6), (3, 5, 7), (2, 20, 7)],
    ),
    "resize by a scale that fits": (
        '(float[N, 3, H, W] x) => (y, z) { y = Resize<mode="linear", '
        'coordinate_transformation_mode="align_corners">(x, none, twice) '
        'z = Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, none, half) }',
        {"none": np.zeros(0, "f"), "twice": np.array([1, 1, 2, 2], "f"), "half": np.array([1, 1, 2, 1.5], "f")},
        [(2, 4, 6), (3, 5, 8), (2, 20, 14)],
    ),
    "resize that keeps the aspect": (
        '(float[N, 3, H, W] x) => (y, z) { y = Resize<mode="linear", axes=[2, 3], '
        'keep_aspect_ratio_policy="not_larger">(x, none, none, grid) '
        'z = Resize<mode="nearest", axes=[2, 3], keep_aspect_ratio_policy="not_smaller">(x, none, none, grid) }',
        {"none": np.zeros(0, "f"), "grid": np.array([6, 8])},
        [(2, 4, 6), (3, 8, 10), (2, 20, 14), (2, 6, 8)],
    ),
    "padded to whole windows": (
        "(float[N, H, W] x) => (y) { s = Shape<start=1>(x) m = Mod(s, four) d = Sub(four, m) r = Mod(d, four) "
        "b = Slice(r, last, first, along, last) e = Slice(b, last, first, along, last) p = Concat<axis=0>(none, e) y "
        "= Pad(x, p) }",
        {
            "four": np.array([4]),
            "last": np.array([-1]),
            "first": np.array([-(1 << 62)]),
            "along": np.array([0]),
            "none": np.zeros(4, np.int64),
        },
        [(2, 5, 7), (3, 6, 9), (2, 13, 30)],
    ),
    "order": (
        "(float[N, L] x) => (float[N, 3] y, int64[N, 3] i, float[N, L] z) { y, i = TopK(x, three) z = CumSum(x, one) }",
        {"three": np.array([3]), "one": np.array(1)},
        [(2, 5), (3, 17), (2, 64), (3, 900)],
    ),
    "recurrent": (
        "(float[T, B, 5] x) => (y, h) { y, h = GRU<hidden_size=6>(x, w, r, b) }",
        weights(w=(1, 18, 5), r=(1, 18, 6), b=(1, 36)),
        [(4, 2), (9, 3), (33, 5)],
    ),
    "attention over heads": (
        "(float[N, L, 24] x) => (float[N, L, 24] y) { "
        "q = Reshape(x, split) qt = Transpose<perm=[0, 2, 1, 3]>(q) kt = Transpose<perm=[0, 2, 3, 1]>(q) vt = "
        "Transpose<perm=[0, 2, 1, 3]>(q) "
        "s = MatMul(qt, kt) c = Div(s, scale) p = Softmax(c) o = MatMul(p, vt) t = Transpose<perm=[0, 2, 1, 3]>(o) y = "
        "Reshape(t, joined) }",
        {"split": np.array([0, 0, 3, 8]), "joined": np.array([0, 0, 24]), "scale": np.array(2.8, "f")},
        [(2, 5), (3, 17), (2, 64), (2, 200)],
    ),
    "recurrent stack": (
        "(float[T, B, 5] x) => (y, h) { a = LSTM<hidden_size=6>(x, w, r, b) s = Squeeze(a, one) y, h = "
        "LSTM<hidden_size=6>(s, w2, r2, b2) }",
        weights(w=(1, 24, 5), r=(1, 24, 6), b=(1, 48), w2=(1, 24, 6), r2=(1, 24, 6), b2=(1, 48))
        | {"one": np.array([1])},
        [(4, 2), (9, 3), (33, 5)],
    ),
    "quantized": (
        "(float[N, L, 16] x) => (y) { q, s, z = DynamicQuantizeLinear(x) m = MatMulInteger(q, w, z) f = Cast<to=1>(m) "
        "y = Mul(f, s) }",
        {"w": rng.integers(-127, 127, (16, 8)).astype(np.int8)},
        [(2, 5), (3, 17), (2, 64)],
    ),
    "requantized": (
        "(float[N, L, 16] x) => (y) { q, s, z = DynamicQuantizeLinear(x) m = QLinearMatMul(q, s, z, w, t, u, r, v) "
        "y = DequantizeLinear(m, r, v) }",
        {
            "w": rng.integers(-127, 127, (16, 8)).astype(np.int8),
            "t": np.linspace(0.01, 0.02, 8, dtype="f"),
            "u": np.zeros(8, np.int8),
            "r": np.array(0.1, "f"),
            "v": np.array(120, np.uint8),
        },
        [(2, 5), (3, 17), (2, 64)],
    ),
    "rotary": (
        "(float[N, L, 24] x, int64[N, L] p) => (float[N, L, 24] y) { y = RotaryEmbedding<num_heads=3>(x, "
        "cosines, sines, p) }",
        weights(cosines=(100, 4), sines=(100, 4)),
        [(2, 5), (3, 17), (2, 64)],
    ),
    "windows": (
        "(float[N, L] x) => (float[N, L] y, float[K] c) { s = Shape(x) l = Gather(s, one) f = Cast<to=1>(l) r = "
        "Range(from, f, step) d = Div(tau, f) "
        "a = Mul(r, d) c = Cos(a) g = Gather(c, places) y = Mul(x, g) }",
        {
            "one": np.array(1),
            "from": np.array(-0.5, "f"),
            "step": np.array(0.25, "f"),
            "tau": np.array(6.2831855, "f"),
            "places": np.array([2]),
        },
        [(2, 5), (3, 17), (2, 64)],
    ),
    "spectra": (
        "(float[N, L, 1] x) => (float[N, K, 2] y, float[N, L, 2] z) { y = DFT<axis=1, onesided=1>(x) c = "
        "DFT<axis=1>(x) "
        "z = DFT<axis=1, inverse=1>(c) }",
        {},
        [(2, 5), (3, 17), (2, 64)],
    ),
    "scatter": (
        "(float[N, L] x, int64[N, 3] i, float[N, 3] u) => (y) { y = ScatterElements<axis=1>(x, i, u) }",
        {},
        [(2, 5), (3, 17), (4, 64)],
    ),
}


PLANS = {"order": {1: 2, 2: 2, 3: 3}}
"""Of cases with another plan for lines that are much longer: how many there are with each size."""


def feeds_of(model: onnx.ModelProto, sizes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Random inputs; each name of a dimension takes the next size."""
    names: dict[str, int] = {}
    feeds = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = [
            d.dim_value or names.setdefault(d.dim_param, sizes[min(len(names), len(sizes) - 1)])
            for d in tensor.shape.dim
        ]
        integers = tensor.elem_type == onnx.TensorProto.INT64
        feeds[info.name] = (
            np.tile(rng.permutation(shape[-1]), (shape[0], 1)) if integers else rng.standard_normal(shape).astype("f")
        )
    return feeds


def model_of(text: str, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    opset = 23 if "Rotary" in text else 20 if any(new in text for new in ("Gelu", "antialias", "keep_aspect")) else 17
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {text}')
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("name", CASES)
def test_one_plan_serves_sizes_that_it_was_not_made_for(name: str) -> None:
    text, constants, sizes = CASES[name]
    model = model_of(text, constants)
    cpu = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    gpu = Gpu.open(Config())
    program = Program(from_onnx(model), Config(), gpu, rewrite)
    compiled: dict[int, int] = {}
    for k, size in enumerate(sizes):
        feeds = feeds_of(model, size)
        for got, wanted in zip(run_program(program, feeds), cpu.run(None, feeds), strict=True):
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), size
            np.testing.assert_allclose(
                got, wanted, rtol=1e-4, atol=2e-5 * max(1.0, float(np.abs(wanted).max(initial=0))), err_msg=str(size)
            )
        assert program.planned == PLANS.get(name, {}).get(k, 1), f"{size} needed another plan"
        assert gpu.compiled == compiled.setdefault(program.planned, gpu.compiled), f"size {k}, {size}, compiled"
    program.close()


def test_a_tensor_that_outgrows_a_binding_gets_a_plan_of_its_own() -> None:
    """Its parts are bindings: their number and sizes belong to the plan. The plan for small ones stays."""
    model = model_of(
        "(float[N, 16] x) => (float[N, 16] y) { a = Relu(x) b = Transpose<perm=[1, 0]>(a) c = Exp(b) y = "
        "Transpose<perm=[1, 0]>(c) }",
        {},
    )
    gpu = Gpu.open(Config())
    program = Program(from_onnx(model), Config(), gpu)
    limits = gpu.limits
    gpu.limits = replace(limits, max_binding_nbytes=4096)
    try:
        for rows in (3, 60, 100, 9, 101):
            x = rng.standard_normal((rows, 16)).astype("f")
            np.testing.assert_allclose(run_program(program, {"x": x})[0], np.exp(np.maximum(x, 0)), rtol=1e-5)
        assert program.planned == 3
    finally:
        gpu.limits = limits
        program.close()


def test_a_convolution_whose_window_fits_nowhere_is_the_cpus() -> None:
    """Which refuses it."""
    model = model_of("(float[N, 3, L] x) => (y) { y = Conv(x, w) }", weights(w=(2, 3, 4)))
    program = Program(from_onnx(model), Config(), Gpu.open(Config()))
    for length in (9, 3):
        x = rng.standard_normal((2, 3, length)).astype("f")
        if length < 4:
            with pytest.raises(UnsupportedNodeError, match="a window of"):
                run_program(program, {"x": x})
        else:
            run_program(program, {"x": x})
    program.close()


@pytest.mark.parametrize(
    "op",
    [
        "MaxPool<kernel_shape=[4], strides=[2]>(x)",
        "AveragePool<kernel_shape=[2], dilations=[3]>(x)",
        "LpPool<kernel_shape=[4], strides=[3]>(x)",
        "AveragePool<kernel_shape=[5], dilations=[2], strides=[3], ceil_mode=1>(x)",
        "AveragePool<kernel_shape=[4], strides=[3], pads=[1, 0], count_include_pad=1>(x)",
    ],
)
def test_a_pool_whose_window_is_larger_than_its_input(op: str) -> None:
    """onnxruntime's CPU rounds the number of its places towards zero, so that there is one, or none; it refuses
    fewer."""
    model = model_of(f"(float[N, 3, L] x) => (y) {{ y = {op} }}", {})
    model.opset_import[0].version = 19
    program = Program(from_onnx(model), Config(), Gpu.open(Config()))
    cpu = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    refused = []
    for length in (12, 3, 9, 7, 4, 2, 1):
        x = rng.standard_normal((2, 3, length)).astype("f")
        try:
            want = cpu.run(None, {"x": x})[0]
        except Fail:
            refused.append(length)
            with pytest.raises(UnsupportedNodeError, match="a window of"):
                run_program(program, {"x": x})
        else:
            (got,) = run_program(program, {"x": x})
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert len(refused) < 4
    program.close()


def node_cases() -> list[Any]:
    """ONNX's own cases of one node; what functions expand to is made of these."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in load_model_tests(kind="node") if "_expanded" not in case.name]


def unlike() -> list[Any]:
    """The first of the cases with the same ops and attributes."""
    first: dict[object, Any] = {}
    for case in node_cases():
        nodes = case.model.graph.node
        first.setdefault(
            (frozenset(node.op_type for node in nodes), frozenset(a.name for node in nodes for a in node.attribute)),
            case,
        )
    return list(first.values())


@pytest.mark.parametrize(
    ("selected", "least"), [(lambda: unlike()[::2], 100), pytest.param(node_cases, 500, marks=pytest.mark.nightly)]
)
def test_onnx_cases_with_every_size_open(selected: Callable[[], list[Any]], least: int) -> None:
    """Each case that runs with the sizes of its model also runs with sizes from the run, through other shaders, and
    gives the same."""
    ran, compared = 0, list[str]()
    for case in selected():
        names = [i.name for i in case.model.graph.input]
        for inputs, _ in case.data_sets[:1]:
            if not all(isinstance(i, np.ndarray) and i.dtype.kind in "fiub" for i in inputs):
                continue
            feeds = dict(zip(names, inputs, strict=False))
            try:
                [dtype_of(a) for a in feeds.values()]
                fixed = run_direct(case.model, feeds)
            except (UnsupportedNodeError, KeyError):
                continue
            ran += 1
            for got, wanted in zip(run_direct(case.model, feeds, every_size_open=True), fixed, strict=True):
                if (got.dtype, got.shape) != (wanted.dtype, wanted.shape) or not np.allclose(
                    got, wanted, 1e-5, 1e-6, equal_nan=True
                ):
                    compared.append(case.name)
    assert not compared
    assert ran > least
