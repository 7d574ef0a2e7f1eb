"""Inputs from numpy's files: what is in them, or what was expected there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.inputs.feeds import array_in, arrays_in

X = np.arange(6.0).reshape(2, 3)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    np.save(tmp_path / "one.npy", X)
    np.savez(tmp_path / "some.npz", x=X, y=X[0])
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object))
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.npy").write_text("1 2 3")
    (tmp_path / "half.npy").write_bytes((tmp_path / "one.npy").read_bytes()[:-9])
    (tmp_path / "half.npz").write_bytes((tmp_path / "some.npz").read_bytes()[:-9])
    return tmp_path


def test_arrays_of_files(files: Path) -> None:
    assert array_in(files / "one.npy", "x").tolist() == X.tolist()
    assert {n: a.tolist() for n, a in arrays_in(files / "some.npz", "data").items()} == {
        "x": X.tolist(),
        "y": X[0].tolist(),
    }


OTHER = "holds something else, or not all of it"


@pytest.mark.parametrize(
    ("read", "name", "message"),
    [
        (array_in, "some.npz", "expected a .npy file, .*; got a .npz file of x, y"),
        (array_in, "objects.npy", OTHER),
        (array_in, "empty.npy", OTHER),
        (array_in, "text.npy", OTHER),
        (array_in, "half.npy", OTHER),
        (array_in, "nowhere.npy", "No such file or directory: .*nowhere.npy"),
        (array_in, ".", "Is a directory"),
        (arrays_in, "one.npy", "expected a .npz file, .*; got a .npy file of one array"),
        (arrays_in, "objects.npz", OTHER),
        (arrays_in, "half.npz", OTHER),
        (arrays_in, "nowhere.npz", "No such file"),
    ],
)
def test_other_files_are_refused(files: Path, read: Any, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=f"^data: .*{message}") as caught:
        read(files / name, "data")
    assert "pickle" not in str(caught.value)
