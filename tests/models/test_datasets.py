"""Data sets: of scikit-learn, of a user's files, synthetic."""

from __future__ import annotations

import builtins
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ort_gpu_ep
from models import datasets
from ort_gpu_ep.errors import TrainingError


@pytest.mark.parametrize("size", [8, 28])
def test_digits(size: int) -> None:
    x, y = datasets.digits(size)
    assert (x.shape, x.dtype, y.dtype) == ((1797, 1, size, size), np.float32, np.int64)
    assert (x.min(), x.max()) == (0, 1)
    assert set(y) == set(range(10))
    small = datasets.digits().x
    np.testing.assert_allclose(x.mean((1, 2, 3)), small.mean((1, 2, 3)), atol=0.03)


def test_onnxruntimes_examples_are_there_too() -> None:
    assert Path(ort_gpu_ep.datasets.get_example("mul_1.onnx")).is_file()


def test_without_scikit_learn_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(TrainingError, match="pip install scikit-learn"):
        datasets.digits()


def test_a_split_is_drawn_once_and_whole() -> None:
    samples = datasets.Samples(np.arange(50, dtype="f")[:, None], np.arange(50))
    train, test = samples.split(0.2, seed=3)
    assert (len(train.y), len(test.y)) == (40, 10)
    assert sorted([*train.y, *test.y]) == list(range(50))
    np.testing.assert_array_equal(train.x[:, 0], train.y)
    np.testing.assert_array_equal(test.y, samples.split(0.2, seed=3)[1].y)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_mnist(packed: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    images, labels = rng.integers(0, 256, (3, 28, 28), np.uint8), np.array([4, 0, 9], np.uint8)
    for name, array in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)):
        data = idx(array)
        (tmp_path / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    x, y = datasets.mnist(tmp_path)
    np.testing.assert_allclose(x[:, 0] * 255, images, atol=1e-4)
    np.testing.assert_array_equal(y, labels)
    with pytest.raises(TrainingError, match=r"no file t10k-images-idx3-ubyte or .*\.gz"):
        datasets.mnist(tmp_path, "t10k")
    if not packed:
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(labels)[:-1])
        with pytest.raises(TrainingError, match="not a whole IDX file"):
            datasets.mnist(tmp_path)


def test_files_of_har(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = tmp_path / "test" / "Inertial Signals"
    folder.mkdir(parents=True)
    wanted = rng.normal(size=(2, 128, 9)).astype("f")
    for k, name in enumerate(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"):
        np.savetxt(folder / f"{name}_test.txt", wanted[:, :, k], "%.9e")
    (tmp_path / "test" / "y_test.txt").write_text("5\n1\n")
    x, y = datasets.har(tmp_path, "test")
    np.testing.assert_array_equal(x, wanted)
    assert y.tolist() == [4, 0]
    (tmp_path / "test" / "y_test.txt").write_text("5\n")
    with pytest.raises(TrainingError, match="1 labels"):
        datasets.har(tmp_path, "test")
    with pytest.raises(TrainingError, match=r"expected train/y_train\.txt"):
        datasets.har(tmp_path)


def test_motion_is_the_same_each_time_and_its_classes_can_be_told() -> None:
    x, y = datasets.motion(200, seed=1)
    assert (x.shape, x.dtype, set(y)) == ((200, 128, 9), np.float32, set(range(6)))
    np.testing.assert_array_equal(x, datasets.motion(200, seed=1).x)
    means = np.stack([x[y == k].mean((0, 1)) for k in range(6)])
    other, labels = datasets.motion(200, seed=2)
    nearest = ((other.mean(1)[:, None] - means) ** 2).sum(2).argmin(1)
    assert (nearest == labels).mean() > 0.9
