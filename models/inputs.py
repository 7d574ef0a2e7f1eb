"""Random but valid inputs of a model.

A draw depends only on (seed, variant, input name), so it is the same on every machine and the figures recorded in
pretrained.json (`outputs_seed0`, `outputs_variant1`) hold for it. Variant 1 is another shape, for models with dynamic
ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from ort_gpu_ep.errors import ModelError

Array = npt.NDArray[Any]
Picture = npt.NDArray[np.float64]
Distribution = Literal["uniform", "normal", "smooth", "page"]


@dataclass(frozen=True)
class InputSpec:
    """What one input may hold.

    low, high: the range, high exclusive for integers; mean and standard deviation of "normal".
    value: fixed content instead of a draw, a scalar or a nested list.
    dist: "smooth" is a low-frequency picture with a bright ellipse and a little noise, "page" a white page with dark
        text-like strokes and a ruled table; both within [low, high].
    hw: the two picture axes; the other axes share the picture.
    p_true: probability of True, for bool.
    pin: (flat index, value) pairs written after drawing.
    alt_shape, alt_value: shape and fixed content of variant 1.
    """

    dtype: str
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    value: Any = None
    dist: Distribution = "uniform"
    hw: tuple[int, int] = (2, 3)
    p_true: float = 0.5
    pin: tuple[tuple[int, float], ...] = ()
    alt_shape: tuple[int, ...] | None = None
    alt_value: Any = None

    @property
    def has_variant(self) -> bool:
        """Whether variant 1 differs from variant 0."""
        return self.alt_shape is not None or self.alt_value is not None


def has_variant(specs: Mapping[str, InputSpec]) -> bool:
    """Whether variant 1 of these inputs differs from variant 0."""
    return any(spec.has_variant for spec in specs.values())


def make_inputs(specs: Mapping[str, InputSpec], seed: int = 0, variant: int = 0) -> dict[str, Array]:
    """Draws an array for each input, by name."""
    return {name: _draw(name, spec, seed, variant) for name, spec in specs.items()}


def model_inputs(model: onnx.ModelProto, **dims: int) -> dict[str, InputSpec]:
    """Specs of a model's own inputs: N(0, 1) for floats, 0 or 1 for the rest; `dims` gives symbolic dimensions (default
    1).

    Raises:
        ModelError: an input is not a tensor.
    """
    stored = {initializer.name for initializer in model.graph.initializer}
    return {i.name: _tensor_spec(i, dims) for i in model.graph.input if i.name not in stored}


def _tensor_spec(value: onnx.ValueInfoProto, dims: Mapping[str, int]) -> InputSpec:
    if not value.type.HasField("tensor_type"):
        raise ModelError(
            f"input {value.name!r}: got {value.type.WhichOneof('value')}, expected a tensor; write an InputSpec by hand"
        )
    tensor = value.type.tensor_type
    shape = tuple(d.dim_value if d.HasField("dim_value") else dims.get(d.dim_param, 1) for d in tensor.shape.dim)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind == "f":
        return InputSpec(dtype.name, shape, dist="normal")
    return InputSpec(dtype.name, shape, low=0, high=2)


def _draw(name: str, spec: InputSpec, seed: int, variant: int) -> Array:
    dtype = np.dtype(spec.dtype)
    shape = spec.alt_shape if variant and spec.alt_shape is not None else spec.shape
    value = spec.alt_value if variant and spec.alt_value is not None else spec.value
    if value is not None:
        fixed = np.asarray(value, dtype=dtype)
        return np.full(shape, fixed) if fixed.ndim == 0 else fixed.reshape(shape)
    rng = np.random.Generator(np.random.PCG64([seed, variant, zlib.crc32(name.encode())]))
    drawn = np.asarray(_values(rng, spec, dtype, shape)).astype(dtype)
    for index, pinned in spec.pin:
        drawn.reshape(-1)[index] = pinned
    return np.asarray(drawn, order="C")  # ascontiguousarray would make a scalar a vector


def _values(rng: np.random.Generator, spec: InputSpec, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < spec.p_true)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(int(spec.low), int(spec.high), size=shape))
    if spec.dist == "normal":
        return rng.standard_normal(shape) * spec.high + spec.low
    unit = rng.random(shape) if spec.dist == "uniform" else _pictures(rng, shape, spec.dist, spec.hw)
    return unit * (spec.high - spec.low) + spec.low


def _pictures(rng: np.random.Generator, shape: tuple[int, ...], dist: Distribution, hw: tuple[int, int]) -> Picture:
    """One picture over the axes hw, repeated along the others ("smooth" with a small offset each)."""
    height, width = shape[hw[0]], shape[hw[1]]
    rest = [dim for axis, dim in enumerate(shape) if axis not in hw]
    if dist == "page":
        copies = [_page(rng, height, width)] * int(np.prod(rest))
    else:
        picture = _smooth(rng, height, width)
        copies = [np.clip(picture + 0.1 * (rng.random() - 0.5), 0.0, 1.0) for _ in range(int(np.prod(rest)))]
    stacked = np.stack(copies).reshape([*rest, height, width])
    return np.moveaxis(stacked, [len(rest), len(rest) + 1], hw)


def _smooth(rng: np.random.Generator, height: int, width: int) -> Picture:
    """A 9 x 9 grid of values, interpolated; a bright ellipse near the middle; noise."""
    grid = rng.random((9, 9))
    ys, xs, knots = np.linspace(0, 8, height), np.linspace(0, 8, width), np.arange(9)
    rows = np.stack([np.interp(xs, knots, row) for row in grid])
    picture = np.stack([np.interp(ys, knots, rows[:, x]) for x in range(width)], axis=1)
    y0, x0 = height * (0.4 + 0.2 * rng.random()), width * (0.4 + 0.2 * rng.random())
    y, x = np.mgrid[0:height, 0:width]
    inside = ((y - y0) / (0.3 * height)) ** 2 + ((x - x0) / (0.22 * width)) ** 2 < 1
    picture = np.where(inside, 0.75 + 0.25 * picture, 0.45 * picture)
    return np.clip(picture + 0.08 * (rng.random((height, width)) - 0.5), 0.0, 1.0)


def _page(rng: np.random.Generator, height: int, width: int) -> Picture:
    """Lines of speckled words 14 rows apart, and a table of 5 horizontal and 4 vertical rules."""
    page = np.ones((height, width))
    for y in range(6, height - 10, 14):
        x = int(rng.integers(4, 20))
        while x < width - 8:
            length = min(int(rng.integers(8, 48)), width - 4 - x)
            if length > 3 and rng.random() < 0.85:
                page[y : y + 8, x : x + length] = np.where(rng.random((8, length)) < 0.5, 0.05, 0.9)
            x += length + int(rng.integers(4, 16))
    for k in range(1, 6):
        page[k * height // 6 : k * height // 6 + 2, width // 12 : width - width // 12] = 0.0
    for k in range(1, 5):
        page[height // 6 : 5 * height // 6, k * width // 5 : k * width // 5 + 2] = 0.0
    return page
