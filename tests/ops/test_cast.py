"""Cast, CastLike, BitCast, Identity and Dropout: every pair of element types against numpy, and what is passed on
unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.partitioner import rewrite
from tests.direct import run_direct
from tests.ops.single_node import Array, Host, assert_same, data, model_of

TYPES = ("float32", "float16", "int32", "int64", "uint32", "uint64", "int8", "uint8", "bool")


def onnx_type(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def cast(x: Array, to: str, opset: int = 19) -> Array:
    return run_direct(*model_of("Cast", (x,), opset=opset, to=onnx_type(to)))[0]


def values(source: str, target: str) -> Array:
    """Numbers of `source` whose conversion is defined: integers of any size wrap, floats stay within the target's
    range."""
    if source == "bool":
        return data(37, dtype="bool")
    if source.startswith("float"):
        floats = np.array([0, -0.0, 0.5, 1.5, 2.5, 100.9, 126.99, 1, 7, *data(28)], source)
        if not target.startswith("u"):
            floats = np.concatenate([floats, -floats])
        return np.abs(floats) if target.startswith("u") else floats
    info = np.iinfo(source)
    return np.concatenate(
        [
            np.array([0, 1, info.min, info.max, info.max - 1, 3, 100, 16777217 % info.max], source),
            data(29, dtype=source),
        ]
    )


@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("source", TYPES)
def test_every_pair(source: str, target: str) -> None:
    x = values(source, target)
    with np.errstate(over="ignore"):
        # ONNX Runtime rounds twice too
        wanted = x.astype(np.float32).astype(target) if target == "float16" else x.astype(target)
    assert_same([cast(x, target)], [wanted])


def test_float_to_half_rounds_to_even_and_overflows() -> None:
    x = np.float32(
        [65504, 65519, 65520, 1e30, -1e30, np.inf, -np.inf, np.nan, 6e-8, 2.9e-8, 6.1e-5, 1.00048828125, 1.00146484375]
    )
    with np.errstate(over="ignore"):
        assert_same([cast(x, "float16")], [x.astype(np.float16)])


def test_to_bool_is_not_zero() -> None:
    x = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 0.25, -3])
    assert_same([cast(x, "bool")], [np.array([1, 1, 1, 0, 0, 1, 1], bool)])


def test_negative_floats_wrap_in_unsigned_types() -> None:
    x = np.float32([-1, -1.5, -100.9, -255])
    for target in ("uint8", "uint32", "uint64"):
        assert_same([cast(x, target)], [x.astype(np.int64).astype(target)])


def test_floats_beyond_an_integer_type_saturate() -> None:
    got = cast(np.float32([1e20, -1e20]), "int32")
    assert got[0] > 2**31 - 256
    assert got[1] == -(2**31)


@pytest.mark.parametrize("shape", [(), (0, 3), (16777259,), (2, 3, 5)], ids=str)  # 4 packed elements an invocation
def test_sizes(shape: tuple[int, ...]) -> None:
    source, target = "int32", "uint8"
    x = np.asarray(data(*shape, dtype="int32") % 200).astype(source)
    assert_same([cast(x, target)], [x.astype(target)])


@pytest.mark.parametrize("opset", [6, 9, 13, 19, 23])
def test_old_opsets(opset: int) -> None:
    x = data(3, 5)
    assert_same([cast(x, "int64", opset)], [x.astype(np.int64)])


@pytest.mark.parametrize("target", ["float16", "int64", "bool", "uint8"])
def test_cast_like(target: str) -> None:
    x = np.abs(data(3, 7))
    assert_same(run_direct(*model_of("CastLike", (x, data(2, dtype=target)), opset=19)), [x.astype(target)])


@pytest.mark.parametrize("dtype", [*TYPES, "float64", "int16"])
def test_identity_of_any_type(dtype: str) -> None:
    x = data(3, 7, dtype=dtype)
    for opset in (7, 16):
        assert_same(run_direct(*model_of("Identity", (x,), opset=opset)), [x])


DROPOUTS: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = [
    (7, (), {"ratio": 0.3}),
    (10, (), {}),
    (13, (), {}),
    (13, (Host(0.3, "float32"),), {}),
    (22, (Host(0.3, "float32"), Host(False, "bool")), {}),
    (13, (None, Host(False, "bool")), {}),
]


@pytest.mark.parametrize(("opset", "inputs", "attributes"), DROPOUTS)
def test_dropout_of_inference(opset: int, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
    x = data(3, 7)
    assert_same(run_direct(*model_of("Dropout", (x, *inputs), opset=opset, **attributes)), [x])


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (3, 1031), (263, 257)], ids=str)
@pytest.mark.parametrize(
    ("opset", "inputs"),
    [
        (12, ()),
        (13, (Host(0.3, "float32"),)),
        (22, (Host(0.3, "float32"), Host(False, "bool"))),
        (22, (Host(0.0, "float32"), Host(True, "bool"))),
    ],
)
def test_dropout_masks_nothing(opset: int, inputs: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    """In inference, and in training with a ratio of 0; with either output left out, too."""
    x = data(*shape)
    model, feeds = model_of("Dropout", (x, *inputs), outputs=2, opset=opset)
    assert_same(run_direct(model, feeds), [x, np.ones(shape, bool)])
    del model.graph.output[0]
    model.graph.node[0].output[0] = ""
    assert_same(run_direct(model, feeds), [np.ones(shape, bool)])


BIT_TYPES = {
    1: ("int8", "uint8"),
    2: ("int16", "uint16", "float16"),
    4: ("int32", "uint32", "float32"),
    8: ("int64", "uint64", "float64"),
}


@pytest.mark.parametrize(
    ("source", "target"), [(s, t) for types in BIT_TYPES.values() for s in types for t in types if s != t]
)
def test_bit_casts(source: str, target: str) -> None:
    for shape in ((), (0, 3), (5, 7), (3, 1031)):
        x = np.frombuffer(
            np.random.default_rng(3).bytes(np.dtype(source).itemsize * int(np.prod(shape))), source
        ).reshape(shape)
        (got,) = run_direct(*model_of("BitCast", (x,), opset=26, to=onnx_type(target)))
        assert (got.dtype, got.shape) == (np.dtype(target), shape)
        assert got.tobytes() == x.tobytes()


def test_bit_casts_between_kernels() -> None:
    """The sign by its bit: what is computed before and after is of different types."""
    x = data(5, 1031)
    after = (
        helper.make_node("BitwiseAnd", ["y0", "sign"], ["a"]),
        helper.make_node("BitCast", ["a"], ["y"], to=onnx_type("float32")),
    )
    model, feeds = model_of("BitCast", (x,), opset=26, after=after, to=onnx_type("uint32"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0x7FFFFFFF, np.uint32), "sign"))
    assert_same(run_direct(model, feeds, rewrite), [np.abs(x)])


DECLINED: list[tuple[str, tuple[Any, ...], int, dict[str, Any], Code]] = [
    ("Cast", (data(3),), 13, {"to": TensorProto.BFLOAT16}, Code.DTYPE),
    ("Cast", (data(3),), 19, {"to": TensorProto.FLOAT8E5M2}, Code.DTYPE),
    ("Dropout", (data(3), None, Host(True, "bool")), 13, {}, Code.ATTRIBUTE),
    ("Dropout", (data(3), None, np.array(True)), 13, {}, Code.ATTRIBUTE),
    ("Dropout", (data(3), Host(0.5, "float32"), Host(True, "bool")), 13, {"outputs": 2}, Code.ATTRIBUTE),
    ("Dropout", (data(3),), 7, {"outputs": 2}, Code.ATTRIBUTE),
    ("Dropout", (data(3),), 10, {"outputs": 2}, Code.ATTRIBUTE),
    ("BitCast", (data(3),), 26, {"to": TensorProto.DOUBLE}, Code.DTYPE),
    ("BitCast", (data(3),), 26, {"to": TensorProto.COMPLEX64}, Code.DTYPE),
]


@pytest.mark.parametrize(("op", "inputs", "opset", "attributes", "code"), DECLINED)
def test_declines(op: str, inputs: tuple[Any, ...], opset: int, attributes: dict[str, Any], code: Code) -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(*model_of(op, inputs, opset=opset, **attributes))
    assert caught.value.code is code
