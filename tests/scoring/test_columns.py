"""Columns become inputs; what is wrong with a row is an error of that row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ort_gpu_ep import ScoringError
from ort_gpu_ep.scoring.columns import Rows, check_type, mapping, pack
from ort_gpu_ep.scoring.model import Model, Value


def model(dtype: str = "float32", inner: tuple[int | None, ...] = (2,), name: str = "x") -> Model:
    return Model("m.onnx", "", (Value(name, dtype, inner),), ())


def packed(column: Any, dtype: str = "float32", inner: tuple[int | None, ...] = (2,)) -> Any:
    count = len(column)
    column = column if isinstance(column, np.ndarray) else pa.chunked_array([column])
    return pack(model(dtype, inner), {"x": ["c"]}, Rows(count, {"c": column}))


@pytest.mark.parametrize(
    ("column", "dtype", "inner"),
    [
        (pa.array([[1, 2], [3, 4]]), "float32", (2,)),
        (pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)), "float32", (2,)),
        (pa.array([[[1], [2]], [[3], [4]]]), "float32", (2, 1)),
        (np.array([[1, 2], [3, 4]], "u1"), "float16", (2,)),
        (pa.array([[1, 2], [3, 4]]), "int8", (1, 2)),
        (pa.array([[1.0, 2.0], [3.0, 4.0]]), "int32", (None,)),
        (pa.FixedShapeTensorArray.from_numpy_ndarray(np.array([[[1, 2]], [[3, 4]]], "f")), "float64", (1, 2)),
    ],
)
def test_columns_of_many_kinds_are_the_same_input(column: Any, dtype: str, inner: Any) -> None:
    found = packed(column, dtype, inner)
    assert not found.errors
    assert found.arrays["x"].dtype == dtype
    assert found.arrays["x"].reshape(2, 2).tolist() == [[1, 2], [3, 4]]
    assert len(found.arrays["x"].shape) == 1 + len(inner)


def test_lists_of_one_number_beside_a_longer_one() -> None:
    found = packed(pa.array([[1.0], [2.0, 3.0], [4.0]]), inner=(1,))
    assert (found.kept.tolist(), found.arrays["x"].tolist()) == ([0, 2], [[1], [4]])
    assert found.errors == {1: "column 'c' has 2 values, expected 1 as the other rows have"}


def test_bad_rows_are_told_and_the_others_stay() -> None:
    found = packed(pa.array([[1.0, 2.0], None, [3.0], [4.0, 5.0], [6.0, None]]))
    assert found.kept.tolist() == [0, 3]
    assert found.arrays["x"].tolist() == [[1, 2], [4, 5]]
    assert found.errors == {
        1: "column 'c' has no value",
        2: "column 'c' has 1 values, expected 2 as the other rows have",
        4: "column 'c' has a list with a place without a value",
    }


def test_numbers_that_the_type_does_not_have() -> None:
    found = packed(np.array([1.0, 2.5, 300.0, np.nan, 4.0]), "uint8", ())
    assert found.kept.tolist() == [0, 4]
    assert found.arrays["x"].tolist() == [1, 4]
    assert found.errors[1] == "column 'c' has 2.5, expected an uint8"
    assert set(found.errors) == {1, 2, 3}


def test_texts_of_a_csv_file_are_numbers_or_errors() -> None:
    assert packed(pa.array(["1", "2"]), "int64", ()).arrays["x"].tolist() == [1, 2]
    found = packed(pa.array(["1.5", "abc", None, "2"]), "float32", ())
    assert found.arrays["x"].tolist() == [1.5, 2]
    assert found.errors == {1: "column 'c' has 'abc', expected a number", 2: "column 'c' has no value"}


def test_rows_of_another_size_than_the_model_takes() -> None:
    found = packed(pa.array([[1.0, 2.0, 3.0]] * 2))
    assert len(found.kept) == 0
    assert found.errors[1] == "column 'c' has 3 values in a row, expected x float32[?, 2]"


def test_a_flat_list_takes_the_one_open_size_where_it_divides() -> None:
    found = packed(pa.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]), inner=(2, None))
    assert found.arrays["x"].tolist() == [[[1, 2, 3], [4, 5, 6]]]
    for inner in ((4, None), (None, None, 2)):
        found = packed(pa.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]), inner=inner)
        assert (len(found.kept), list(found.errors)) == (0, [0])


def test_several_columns_are_one_input() -> None:
    columns = {"a": pa.chunked_array([pa.array(["1", None, "3"])]), "b": pa.chunked_array([pa.array([4, 5, None])])}
    found = pack(model(), {"x": ["a", "b"]}, Rows(3, columns))
    assert found.arrays["x"].tolist() == [[1, 4]]
    assert set(found.errors) == {1, 2}


def test_of_many_columns_an_error_names_three() -> None:
    columns = {name: np.array([1.0, 2.5]) for name in "abcde"}
    found = pack(model("uint8", (5,)), {"x": list(columns)}, Rows(2, columns))
    assert found.errors == {1: "column 'a, b, c' has 2.5, expected an uint8"}


def test_mapping_by_name_by_pattern_and_the_only_one() -> None:
    assert mapping(model(), ["x", "id"], {}, "f") == {"x": ["x"]}
    assert mapping(model(), ["pixels"], {}, "f") == {"x": ["pixels"]}
    assert mapping(model(), ["f1", "f0", "y"], {"x": "f*"}, "f") == {"x": ["f1", "f0"]}
    assert mapping(model(), ["f1", "f0", "y"], {"x": "f0,y"}, "f") == {"x": ["f0", "y"]}


@pytest.mark.parametrize(
    ("there", "given", "message"),
    [
        (
            ["a", "b"],
            {},
            r"f.parquet: no column for input x float32\[\?, 2\]; it has a, b. Say which: --columns x=COLUMN",
        ),
        (["a", "b"], {"x": "c"}, "f.parquet: columns x=c: no column 'c'; it has a, b"),
        (["a", "b"], {"xx": "a"}, "the model has no input 'xx'; it has x. Did you mean 'x'?"),
    ],
)
def test_columns_that_are_missing(there: list[str], given: dict[str, str], message: str) -> None:
    with pytest.raises(ScoringError, match=message):
        mapping(model(), there, given, "f.parquet")


def test_types_that_are_no_numbers() -> None:
    value = Value("x", "float32", (2,))
    check_type(pa.list_(pa.int8()), value, "c", "f")
    check_type(np.dtype("f8"), value, "c", "f")
    for kind in (pa.string(), pa.timestamp("s"), np.dtype("M8[s]"), pa.list_(pa.string())):
        with pytest.raises(ScoringError, match=r"f: column 'c' is of .*, expected numbers for input x"):
            check_type(kind, value, "c", "f")
