"""Element types: sizes in bits, and what shares a byte with others."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from ort_gpu_ep.ir.types import (
    BY_NAME,
    BY_ONNX,
    DTYPES,
    FLOAT4E2M1,
    FLOAT32,
    INT2,
    INT4,
    SUB_BYTE,
    UINT2,
    UINT4,
    DType,
    TensorType,
    packed,
    unpacked,
)


@pytest.mark.parametrize("dtype", BY_ONNX.values(), ids=str)
def test_numbers_and_sizes_are_onnxs(dtype: DType) -> None:
    assert onnx.helper.tensor_dtype_to_np_dtype(dtype.onnx) == dtype.numpy
    assert dtype.bits == 8 * dtype.numpy.itemsize or dtype in SUB_BYTE
    assert BY_NAME[dtype.numpy.name] is dtype


def test_bytes_are_the_bits_rounded_up() -> None:
    assert [TensorType(INT4, (n,)).nbytes for n in (0, 1, 2, 3)] == [0, 1, 1, 2]
    assert [TensorType(UINT2, (n, 3)).nbytes for n in (1, 2, 3)] == [1, 2, 3]
    assert TensorType(FLOAT32, (2, 3)).nbytes == 24
    assert all(t.nbytes == t.numpy.itemsize for t in DTYPES)
    with pytest.raises(ValueError, match="uint4 has 4 bits"):
        _ = UINT4.nbytes


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (INT4, [-8, 7, -1, 0, 3]),
        (UINT4, [15, 0, 8, 1, 7]),
        (INT2, [-2, -1, 0, 1, -2]),
        (UINT2, [3, 0, 2, 1, 3]),
        (FLOAT4E2M1, [-6, 0.5, 1.5, -0.5, 4]),
    ],
    ids=str,
)
def test_unpacked_is_what_onnx_packs(dtype: DType, values: list[float]) -> None:
    array = np.array(values).astype(dtype.numpy)
    raw = np.frombuffer(onnx.numpy_helper.from_array(array).raw_data, np.uint8)
    tensor = TensorType(dtype, (5,))
    assert len(raw) == tensor.nbytes
    np.testing.assert_array_equal(unpacked(raw, tensor).astype("f"), np.array(values, "f"))


def test_float8_is_moved_by_rows_that_move_anything() -> None:
    assert BY_NAME[np.dtype(ml_dtypes.float8_e5m2).name] in DTYPES
    assert not any(t.value for t in (FLOAT4E2M1, *(BY_ONNX[n] for n in range(17, 21))))


@pytest.mark.parametrize("dtype", [INT4, UINT4, INT2, UINT2], ids=str)
@pytest.mark.parametrize("size", [0, 1, 3, 4, 7])
def test_packed_is_what_onnx_packs(dtype: DType, size: int) -> None:
    array = (
        np.random.default_rng(size).integers(-2, 2, size).astype(dtype.numpy)
        if dtype.name[0] == "i"
        else np.arange(size).astype(dtype.numpy)
    )
    assert packed(array).tobytes() == onnx.numpy_helper.from_array(array).raw_data
    np.testing.assert_array_equal(unpacked(packed(array), TensorType(dtype, (size,))).astype("i"), array.astype("i"))
