"""float32 rounded to float16 on the host: numpy's bits, by the processor's instructions, by one number after another,
and by several threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.device import copying
from ort_gpu_ep.webgpu import native
from ort_gpu_ep.webgpu.library import ffi

Array = np.ndarray[Any, Any]

BY_ONE = 7
"""Fewer numbers than the processor rounds at once, so that each goes alone."""


def neighbours() -> Array:
    """Each float16, what is half way to the next one, and the float32 beside all of these; infinities and what is
    beyond float16."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = np.sort(halves[np.isfinite(halves)])
    between = ((halves[1:].astype(np.float64) + halves[:-1]) / 2).astype(np.float32)
    edges = np.array([65519.996, 65520.0, 65536.0, 3e38, np.inf, 2.0**-25, 2.0**-24, 1e-40, 1.4e-45, 0.0], np.float32)
    exact = np.concatenate([halves, between, edges, -edges])
    with np.errstate(over="ignore"):
        return np.concatenate([exact, *(np.nextafter(exact, np.float32(to)) for to in (np.inf, -np.inf))])


def random_bits(count: int) -> Array:
    return np.random.default_rng().integers(0, 1 << 32, count, np.uint32).view(np.float32)


def rounded(x: Array, count: int) -> Array:
    """By calls for so many numbers each."""
    got = np.zeros(x.size, np.float16)
    for first in range(0, x.size, count):
        size = min(count, x.size - first)
        native.loops.ort_gpu_ep_round(got.ctypes.data + 2 * first, x.ctypes.data + 4 * first, size)
    return got


def assert_numpys(got: Array, x: Array) -> None:
    """A NaN stays one; which, is nobody's business."""
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(got.view(np.uint16)[numbers], want.view(np.uint16)[numbers])
    assert np.isnan(got[~numbers]).all()


@pytest.mark.parametrize("count", [1 << 30, BY_ONE])
def test_the_bits_are_numpys(count: int) -> None:
    for x in (neighbours(), random_bits(300_001)):
        assert_numpys(rounded(x, count), x)


def test_nan_has_the_same_bits_either_way() -> None:
    x = (random_bits(70_000).view(np.uint32) | 0x7F800001).view(np.float32)
    np.testing.assert_array_equal(rounded(x, 1 << 30).view(np.uint16), rounded(x, BY_ONE).view(np.uint16))


@pytest.mark.parametrize("threads", [1, 3])
def test_beside_what_is_copied_as_it_is(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At odd addresses, too; nothing is written beyond the target."""
    monkeypatch.setattr(copying, "NBYTES_A_THREAD", 100 << 10)
    monkeypatch.setattr(copying, "_helpers", copying._Helpers())
    x, plain = random_bits(400_003), np.random.default_rng().integers(0, 256, 300_001, "u1")
    raw = np.zeros(x.nbytes + 1, "u1")
    raw[1:].view("u1")[:] = x.view("u1")
    target = np.zeros(x.nbytes // 2 * 2 + plain.size + 300, "u1")
    begin = ffi.cast("char *", ffi.from_buffer(target))
    places = 64, 64 + x.nbytes // 2 + 33, target.size - 64 - plain.size
    copying.copy_all(
        [
            copying.Copy(begin + places[0], ffi.from_buffer(x), x.size * 2, True),
            copying.Copy(begin + places[1], ffi.cast("char *", ffi.from_buffer(raw)) + 1, x.size * 2, True),
            copying.Copy(begin + places[2], ffi.from_buffer(plain), plain.size),
        ],
        threads,
    )
    expected = np.zeros_like(target)
    for place in places[:2]:
        got = target[place : place + 2 * x.size].copy()
        assert_numpys(got.view(np.float16), x)
        expected[place : place + 2 * x.size] = got
    expected[places[2] : places[2] + plain.size] = plain
    np.testing.assert_array_equal(target, expected)
    assert copying._helpers._threads == threads - 1
