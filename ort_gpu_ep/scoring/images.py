"""Reads a folder of images as a model's input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.processes.known import cores
from ort_gpu_ep.scoring.columns import Array, Rows
from ort_gpu_ep.scoring.model import Value
from ort_gpu_ep.scoring.require import require

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")

IMAGE, FILE = "image", "file"


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """resize: [height, width], or the shorter side. crop: [height, width] out of the middle. layout: NCHW or NHWC.
    channels: RGB, BGR or L.

    scale: pixels are multiplied by it; then mean (a channel) is subtracted and std divided by. dtype: the model's.
    """

    resize: tuple[int, ...] = ()
    crop: tuple[int, ...] = ()
    layout: str = "NCHW"
    channels: str = "RGB"
    scale: float = 1 / 255
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    dtype: str = "float32"

    def __str__(self) -> str:
        cut = "".join(
            f"{what} to {' x '.join(map(str, size))}, "
            for what, size in (("resized", self.resize), ("cut", self.crop))
            if size
        )
        by = f"1/{1 / self.scale:g}" if 0 < self.scale < 1 else f"{self.scale:g}"
        norm = f", minus mean {list(self.mean)}" if self.mean else ", no mean"
        norm += f", divided by std {list(self.std)}" if self.std else " and no std" if not self.mean else ""
        return f"{cut}{self.channels}, pixels times {by}{norm}, {self.layout} {self.dtype}"


def preprocessing(given: str | Path | Mapping[str, Any] | None, value: Value) -> Preprocessing:
    """What is given, or read from a JSON file, completed by the model's input. Raises ScoringError for what does not
    fit."""
    where = "preprocess" if given is None or isinstance(given, Mapping) else str(given)
    facts = _facts(given, where)
    names = {f.name for f in fields(Preprocessing)} - {"dtype"}
    unknown = [name for name in facts if name not in names]
    if unknown:
        raise ScoringError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(names))}")
    facts = {
        k: (v,) if k == "resize" and isinstance(v, int) else tuple(v) if isinstance(v, list) else v
        for k, v in facts.items()
    }
    if len(value.inner) != 3:
        raise ScoringError(
            f"{where}: input {value} is no image; expected [rows, channels, height, width], or the channels last"
        )
    last = value.inner[0] not in (1, 3) and value.inner[2] in (1, 3)
    settings = replace(Preprocessing(layout="NHWC" if last else "NCHW", dtype=value.dtype), **facts)
    if np.dtype(value.dtype).kind != "f" and "scale" not in facts:
        settings = replace(settings, scale=1.0)
    depth, height, width = (value.inner[2], *value.inner[:2]) if settings.layout == "NHWC" else value.inner
    if settings.layout not in ("NCHW", "NHWC") or settings.channels not in ("RGB", "BGR", "L"):
        raise ScoringError(
            f"{where}: layout {settings.layout!r}, channels {settings.channels!r}; expected NCHW or NHWC, and "
            f"RGB, BGR or L"
        )
    if depth == 1 and "channels" not in facts:
        settings = replace(settings, channels="L")
    if not settings.resize and not settings.crop:
        if height is None or width is None:
            raise ScoringError(f'{where}: the model leaves the size of {value} open; say it: {{"resize": [224, 224]}}')
        settings = replace(settings, resize=(height, width))
    if len(settings.resize) == 1 and not settings.crop:
        settings = replace(settings, crop=(height or settings.resize[0], width or settings.resize[0]))
    count = 1 if settings.channels == "L" else 3
    for name, numbers in (("mean", settings.mean), ("std", settings.std)):
        if len(numbers) not in (0, count):
            raise ScoringError(f"{where}: {name} has {len(numbers)} numbers, expected {count}, one a channel")
    return settings


def _facts(given: str | Path | Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    try:
        facts = json.loads(Path(given).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ScoringError(f"{where}: no JSON file with the preprocessing ({error})") from error
    if not isinstance(facts, dict):
        raise ScoringError(
            f'{where}: got {type(facts).__name__}, expected an object like {{"resize": 256, "crop": [224, 224]}}'
        )
    return facts


class Images:
    """A folder: an image a row, by its path in the folder. What can't be decoded is an error of its row."""

    groups: tuple[int, ...] = ()

    def __init__(self, path: Path, paths: Sequence[Path], how: Preprocessing) -> None:
        require("PIL.Image", f"{path}, a folder of images,")
        self.path, self.paths, self.rows, self.how = path, list(paths), len(paths), how
        import pyarrow as pa

        self.kinds = {IMAGE: np.dtype(how.dtype), FILE: pa.string()}
        self._pool = ThreadPoolExecutor(cores(), "ort_gpu_ep-images")

    def read(self, start: int, stop: int, names: Sequence[str]) -> Rows:
        import pyarrow as pa

        chosen = self.paths[start:stop]
        files = pa.chunked_array([pa.array([str(p.relative_to(self.path)) for p in chosen], pa.string())])
        if IMAGE not in names:
            return Rows(stop - start, {FILE: files})
        results = list(self._pool.map(self._one, chosen))
        shape = next((f.shape for f in results if not isinstance(f, str)), (0, 0, 0))
        errors = {k: f for k, f in enumerate(results) if isinstance(f, str)}
        images = np.stack([np.zeros(shape, self.how.dtype) if isinstance(f, str) else f for f in results])
        return Rows(stop - start, {FILE: files, IMAGE: images}, errors)

    def _one(self, path: Path) -> Array | str:
        """An image as the model takes it, or what is wrong with it."""
        from PIL import Image

        try:
            with Image.open(path) as image:
                return prepared(image, self.how)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            return f"{path.name}: not an image that can be decoded ({error})"

    def close(self) -> None:
        self._pool.shutdown()


def prepared(image: Any, how: Preprocessing) -> Array:
    """A PIL image, resized, cut out, scaled and normalised, in the model's layout and type."""
    from PIL import Image

    image = image.convert("L" if how.channels == "L" else "RGB")
    if how.resize:
        image = image.resize(_size(image.size, how.resize), Image.Resampling.BILINEAR)
    if how.crop:
        height, width = how.crop
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    pixels: Array = np.asarray(image, np.float32).reshape(image.height, image.width, -1)
    if how.channels == "BGR":
        pixels = pixels[..., ::-1]
    mean, std = np.array(how.mean or (0.0,), np.float32), np.array(how.std or (1.0,), np.float32)
    pixels = (pixels * np.float32(how.scale) - mean) / std
    return np.ascontiguousarray(pixels.transpose(2, 0, 1) if how.layout == "NCHW" else pixels, np.dtype(how.dtype))


def _size(size: tuple[int, int], resize: tuple[int, ...]) -> tuple[int, int]:
    """(width, height) for PIL."""
    if len(resize) == 2:
        return resize[1], resize[0]
    factor = resize[0] / min(size)
    return round(size[0] * factor), round(size[1] * factor)
