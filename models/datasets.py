"""Small data sets to train on: scikit-learn's digits, a user's own files of MNIST and UCI HAR, and synthetic motion."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ort_gpu_ep.errors import TrainingError
from ort_gpu_ep.ir.graph import Array

STEPS, SIGNALS, ACTIVITIES = 128, 9, 6
"""Of a window of UCI HAR: samples, signals; classes."""

_HAR_SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
_IMAGES, _LABELS = 0x803, 0x801
"""What IDX files of bytes with three dimensions, and with one, begin with."""


class Samples(NamedTuple):
    """x: float32 [N, ...]; y: int64 [N]."""

    x: Array
    y: Array

    def split(self, part: float = 0.2, seed: int = 0) -> tuple[Samples, Samples]:
        """(those to train on, `part` of them to test with), drawn at random."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        test, train = np.split(order, [round(part * len(order))])
        return Samples(self.x[train], self.y[train]), Samples(self.x[test], self.y[test])


def digits(size: int = 8) -> Samples:
    """scikit-learn's 1,797 handwritten digits: x [1797, 1, size, size] from 0 to 1, bilinearly enlarged from 8 x 8; ten
    classes.

    Raises TrainingError, if scikit-learn is not installed. Source: Alpaydin and Kaynak, Optical Recognition of
    Handwritten Digits, 1998.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise TrainingError("digits: scikit-learn has them, and is not installed: pip install scikit-learn") from error
    found: Any = load_digits()
    images = found.images.astype(np.float32) / 16
    scale = _enlarging(8, size)
    return Samples(np.ascontiguousarray((scale @ images @ scale.T)[:, None]), found.target.astype(np.int64))


def _enlarging(small: int, large: int) -> Array:
    """[large, small]: linear interpolation between centres of pixels."""
    at = np.clip((np.arange(large) + 0.5) * small / large - 0.5, 0, small - 1)
    near: Array = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(small)))
    return near.astype(np.float32)


def mnist(folder: str | os.PathLike[str], part: str = "train") -> Samples:
    """Images of a user's own files of MNIST (IDX, also .gz): x [N, 1, 28, 28] from 0 to 1; ten classes. part: "train"
    or "t10k".

    Raises TrainingError for files that are not there, or are none. Source: yann.lecun.com/exdb/mnist, "file formats".
    """
    images, labels = (
        _idx(_found(Path(folder), f"{part}-{name}")) for name in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise TrainingError(
            f"mnist {folder}: got images {list(images.shape)} and labels {list(labels.shape)}, expected [N, "
            f"28, 28], [N]"
        )
    return Samples(images[:, None].astype(np.float32) / 255, labels.astype(np.int64))


def _found(folder: Path, name: str) -> Path:
    names = [name, f"{name}.gz", name.replace("-idx", ".idx"), name.replace("-idx", ".idx") + ".gz"]
    path = next((folder / n for n in names if (folder / n).is_file()), None)
    if path is None:
        raise TrainingError(f"mnist {folder}: it has no file {name} or {name}.gz")
    return path


def _idx(path: Path) -> Array:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    magic = int.from_bytes(data[:4], "big")
    rank = magic & 0xFF
    shape = [int.from_bytes(data[4 + 4 * k : 8 + 4 * k], "big") for k in range(rank)]
    if magic not in (_IMAGES, _LABELS) or len(data) != 4 + 4 * rank + int(np.prod(shape)):
        raise TrainingError(
            f"{path}: not a whole IDX file of bytes (it begins with {data[:4].hex()} and has {len(data)} B)"
        )
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def har(folder: str | os.PathLike[str], part: str = "train") -> Samples:
    """Windows of a user's own copy of UCI HAR: x [N, 128, 9], y 0 to 5. folder: "UCI HAR Dataset"; part: "train" or
    "test".

    Raises TrainingError for files that are not there or differ in length. Source: its README.txt (Anguita et al.,
    2013).
    """
    base = Path(folder) / part
    try:
        signals = [
            np.loadtxt(base / "Inertial Signals" / f"{name}_{part}.txt", np.float32, ndmin=2) for name in _HAR_SIGNALS
        ]
        labels = np.loadtxt(base / f"y_{part}.txt", np.int64, ndmin=1) - 1
    except (OSError, ValueError) as error:
        raise TrainingError(
            f"har {folder}: {error}; expected {part}/y_{part}.txt and {part}/Inertial Signals/*_{part}.txt"
        ) from error
    shapes = {s.shape for s in signals}
    if shapes != {(len(labels), STEPS)}:
        raise TrainingError(
            f"har {folder}: got signals {sorted(shapes)} and {len(labels)} labels, expected [N, {STEPS}] each and N"
        )
    return Samples(np.stack(signals, axis=2), labels)


def motion(count: int = 600, seed: int = 0) -> Samples:
    """Synthetic, not measured: windows as UCI HAR has them, x [count, 128, 9], six classes that differ in rhythm and in
    the way they lie.

    A class is a period and a direction; a window a phase, a strength and noise.
    """
    rng = np.random.default_rng(seed)
    kinds = np.random.default_rng(7)
    period, (along, still) = kinds.uniform(8, 40, ACTIVITIES), kinds.normal(size=(2, ACTIVITIES, SIGNALS))
    y = rng.integers(0, ACTIVITIES, count)
    turn = 2 * np.pi * (np.arange(STEPS) / period[y, None] + rng.random((count, 1)))
    wave = np.sin(turn) * rng.uniform(0.6, 1.4, (count, 1))
    x = wave[:, :, None] * along[y, None] + 0.5 * still[y, None] + 0.4 * rng.normal(size=(count, STEPS, SIGNALS))
    return Samples(x.astype(np.float32), y.astype(np.int64))
