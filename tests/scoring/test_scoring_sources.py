"""Files of all kinds give the same rows from any row on; what can't be read is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from onnx import helper
from PIL import Image

from ort_gpu_ep import ScoringError
from ort_gpu_ep.scoring import score
from ort_gpu_ep.scoring.images import Images, Preprocessing, preprocessing
from ort_gpu_ep.scoring.model import Value
from ort_gpu_ep.scoring.sources import identity, open_sources
from ort_gpu_ep.scoring.text import _EVERY
from tests.scoring.conftest import lists, write_model

COUNT = 2500
X = np.arange(2 * COUNT, dtype="f").reshape(COUNT, 2)


def opened(path: Path) -> Any:
    (found,) = open_sources(path, None)
    return found


def write(folder: Path, kind: str) -> Path:
    path = folder / f"data.{kind}"
    table = pa.table({"x": lists(X), "id": np.arange(COUNT)})
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=700)
    elif kind == "arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, 700)
    elif kind == "npy":
        np.save(path, X)
    else:
        (np.savez_compressed if kind == "npz" else np.savez)(path, x=X, id=np.arange(COUNT))
    return path


@pytest.mark.parametrize("kind", ["parquet", "arrow", "npy", "npz"])
def test_any_rows_can_be_read(kind: str, tmp_path: Path) -> None:
    file = opened(write(tmp_path, kind))
    assert file.rows == COUNT
    name = next(iter(file.kinds))
    # on, across groups, forth and back
    for start, stop in ((0, 300), (300, 900), (2400, 2500), (10, 11), (690, 2200)):
        column = file.read(start, stop, [name]).columns[name]
        values = (
            column if isinstance(column, np.ndarray) else column.combine_chunks().flatten().to_numpy().reshape(-1, 2)
        )
        np.testing.assert_array_equal(values, X[start:stop])
    file.close()


@pytest.mark.parametrize(("end", "last"), [("\n", "\n"), ("\r\n", "\r\n"), ("\n", ""), ("\n", "\n\n\n")])
def test_any_rows_of_a_csv_file_can_be_read(end: str, last: str, tmp_path: Path) -> None:
    lines = ['name,"a,b"', *(f'"{k}\nsecond ""line""",{k}.5' for k in range(COUNT))]
    lines.insert(5, "")
    path = tmp_path / "data.csv"
    path.write_bytes((end.join(lines) + last).encode())
    file = opened(path)
    assert (file.rows, list(file.kinds)) == (COUNT, ["name", "a,b"])
    for start, stop in ((0, COUNT), (_EVERY - 1, _EVERY + 1), (2 * _EVERY, 2 * _EVERY + 5), (3, 4)):
        rows = file.read(start, stop, ["a,b", "name"])
        assert rows.columns["a,b"].to_pylist() == [f"{k}.5" for k in range(start, stop)]
        assert rows.columns["name"].to_pylist()[0] == f'{start}\nsecond "line"'
    file.close()


def test_the_index_of_a_csv_file_crosses_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_gpu_ep.scoring.text._CHUNK", 7)
    path = tmp_path / "data.csv"
    path.write_text("a,b\n" + "".join(f'{k},"x\n{k}"\n' for k in range(3000)))
    file = opened(path)
    assert file.rows == 3000
    assert file.read(2990, 3000, ["a"]).columns["a"].to_pylist() == [str(k) for k in range(2990, 3000)]
    file.close()


def test_a_csv_line_with_too_many_values_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n" + "1,2\n" * 50 + "1,2,3\n" + "1,2\n")
    with pytest.raises(ScoringError, match=r"data.csv: a line behind row 0 .*Expected 2 columns, got 3"):
        opened(path).read(0, 52, ["a"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"", r"a.parquet: the file is empty \(0 bytes\)"),
        ("a.parquet", b"PAR1nonsense", "not a whole Parquet file"),
        ("a.arrow", b"ARROW1nonsense", "not a whole Arrow file"),
        ("a.npy", b"nonsense", "not an array as numpy writes it"),
        ("a.npz", b"nonsense", "not a whole .npz file"),
        ("a.csv", b"a,b\n", "a line of names and no rows"),
        ("a.csv", b"a,a\n1,2\n", "two columns have the same name"),
        ("a.txt", b"x", "unknown kind of file; expected Parquet"),
    ],
)
def test_files_that_are_none(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ScoringError, match=message):
        open_sources(tmp_path / name, None)


def test_arrays_that_have_no_rows_in_common(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=X[1:])
    with pytest.raises(ScoringError, match=f"arrays of different numbers of rows: x {COUNT}, y {COUNT - 1}"):
        open_sources(tmp_path / "a.npz", None)
    np.save(tmp_path / "b.npy", np.asfortranarray(X))
    with pytest.raises(ScoringError, match=r"stored by columns"):
        open_sources(tmp_path / "b.npy", None)


def test_a_file_that_is_cut_short_behind_its_beginning(tmp_path: Path) -> None:
    path = write(tmp_path, "npy")
    path.write_bytes(path.read_bytes()[:-100])
    file = opened(path)
    assert len(file.read(0, 100, ["values"]).columns["values"]) == 100
    with pytest.raises(
        ScoringError, match=r"rows 2400 to 2499 can't be read .the file was cut short.*what was scored stays"
    ):
        file.read(2400, 2500, ["values"])
    file.close()


def test_a_damaged_row_group_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "parquet")
    place = parquet.read_metadata(path).row_group(2).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[place : place + 40] = b"\xff" * 40
    path.write_bytes(content)
    file = opened(path)
    file.read(0, 700, ["x"])
    with pytest.raises(ScoringError, match=r"data.parquet: rows 1400 to 1499 can't be read"):
        file.read(1400, 1500, ["x"])


def test_no_file_no_rows_and_a_folder_of_files(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match=r"nothing.parquet: no such file"):
        open_sources(tmp_path / "nothing.parquet", None)
    np.save(tmp_path / "a.npy", X[:0])
    with pytest.raises(ScoringError, match=r"no rows in 1 files"):
        open_sources(tmp_path / "a.npy", None)
    np.save(tmp_path / "b.npy", X)
    assert [f.path.name for f in open_sources(tmp_path, None)] == ["b.npy"]
    assert [f.path.name for f in open_sources(str(tmp_path / "?.npy"), None)] == ["b.npy"]


def test_identity_sees_another_file(tmp_path: Path) -> None:
    path = write(tmp_path, "npy")
    before = identity(opened(path))
    np.save(path, X + 1)
    assert identity(opened(path)) != before


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Of one colour each, the second is none."""
    (tmp_path / "sub").mkdir()
    Image.new("RGB", (20, 10), (255, 0, 51)).save(tmp_path / "a.png")
    (tmp_path / "b.jpg").write_bytes(b"no image")
    Image.new("L", (8, 8), 102).save(tmp_path / "sub" / "c.png")
    return tmp_path


def images(folder: Path, how: Preprocessing) -> Any:
    (found,) = open_sources(folder, lambda path, paths: Images(path, paths, how))
    return found


def test_images_become_inputs(pictures: Path) -> None:
    how = preprocessing({"resize": 6, "mean": [0.5, 0, 0], "std": [1, 1, 2]}, Value("x", "float32", (3, 4, 4)))
    rows = images(pictures, how).read(0, 3, ["image", "file"])
    found = rows.columns["image"]
    assert found.shape == (3, 3, 4, 4)
    assert rows.columns["file"].to_pylist() == ["a.png", "b.jpg", "sub/c.png"]
    np.testing.assert_allclose(found[0, :, 1, 1], [0.5, 0, 0.1], atol=1e-6)
    np.testing.assert_allclose(found[2, :, 1, 1], [-0.1, 0.4, 0.2], atol=1e-6)
    assert list(rows.errors) == [1]
    assert rows.errors[1].startswith("b.jpg: not an image that can be decoded")


def test_the_models_input_says_what_nobody_else_does(pictures: Path, tmp_path: Path) -> None:
    how = preprocessing(None, Value("x", "uint8", (5, 7, 1)))
    assert (how.layout, how.channels, how.resize, how.scale) == ("NHWC", "L", (5, 7), 1.0)
    assert images(pictures, how).read(2, 3, ["image"]).columns["image"].tolist() == np.full((1, 5, 7, 1), 102).tolist()
    (tmp_path / "how.json").write_text(json.dumps({"channels": "BGR", "crop": [2, 2]}))
    how = preprocessing(tmp_path / "how.json", Value("x", "float32", (3, None, None)))
    np.testing.assert_allclose(
        images(pictures, how).read(0, 1, ["image"]).columns["image"][0, :, 0, 0], [0.2, 0, 1], atol=1e-6
    )


@pytest.mark.parametrize(
    ("given", "inner", "message"),
    [
        ({"size": 3}, (3, 4, 4), "unknown key 'size'; known: channels, crop"),
        (None, (3, None, None), r"open; say it: \{\"resize\": \[224, 224\]\}"),
        ({"mean": [1, 2]}, (3, 4, 4), "mean has 2 numbers, expected 3, one a channel"),
        (None, (7,), "is no image"),
        ({"layout": "CHWN"}, (3, 4, 4), "expected NCHW or NHWC"),
        ("nothing.json", (3, 4, 4), "nothing.json: no JSON file"),
    ],
)
def test_preprocessing_that_does_not_fit(given: Any, inner: Any, message: str) -> None:
    with pytest.raises(ScoringError, match=message):
        preprocessing(given, Value("x", "float32", inner))


@pytest.mark.parametrize("given", [None, {"resize": [4, 4], "scale": 1, "mean": [0.5, 0, 0]}])
def test_the_report_says_how_images_become_inputs(given: Any, pictures: Path, tmp_path: Path) -> None:
    """A guess that nobody sees is wrong for every network that was trained with a mean."""
    model = tmp_path.with_name(f"{tmp_path.name}.onnx")
    write_model(
        model,
        [helper.make_node("GlobalAveragePool", ["x"], ["y"])],
        [("x", ["n", 3, 4, 4])],
        [("y", ["n", 3, 1, 1])],
        {},
    )
    report = score(model, pictures, tmp_path.with_name(f"{tmp_path.name}.parquet"), adapters="cpu", preprocess=given)
    note = next(n for n in report.notes if n.startswith("images are "))
    if given is None:
        assert note == (
            "images are resized to 4 x 4, RGB, pixels times 1/255, no mean and no std, NCHW float32 "
            "(guessed from the model's input: --preprocess FILE.json says otherwise)"
        )
    else:
        assert note == "images are resized to 4 x 4, RGB, pixels times 1, minus mean [0.5, 0, 0], NCHW float32"
