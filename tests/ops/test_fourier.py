"""DFT against numpy's in float64: what ONNX's own node cases lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.health.conformance import INEXACT, cases
from tests.daily import part
from tests.direct import run_direct
from tests.ops.single_node import Array, assert_agree, check_decline, check_node, model_of, node_model, normal, on_cpu


def parts(numbers: Array) -> Array:
    """Complex numbers as [..., 2] in float32."""
    return np.stack([numbers.real, numbers.imag], -1).astype(np.float32)


def exact(x: Array, length: int | None, axis: int, inverse: bool = False, onesided: bool = False) -> Array:
    signal = x[..., 0].astype(np.float64) + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    if inverse and onesided:
        return np.fft.irfft(signal, length, axis)[..., None].astype(np.float32)
    if onesided:
        return parts(np.fft.rfft(signal.real, length, axis))
    return parts((np.fft.ifft if inverse else np.fft.fft)(signal, length, axis))


def check(
    x: Array, axis: int = 1, length: int | None = None, opset: int = 20, inverse: bool = False, onesided: bool = False
) -> None:
    inputs: list[Array | None] = [x, None if length is None else np.array(length)]
    attributes: dict[str, Any] = {"inverse": int(inverse), "onesided": int(onesided)}
    if opset < 20:
        attributes["axis"] = axis
    else:
        inputs.append(np.array(axis))
    wanted = exact(x, length, axis % x.ndim, inverse, onesided)
    check_node("DFT", inputs, opset, known=(1, 2), wanted=[wanted], **attributes)


@pytest.mark.parametrize(
    ("n", "width", "inverse", "opset"), part([1, 2, 3, 31, 32, 33, 64, 1021], [1, 2], [False, True], [17, 20])
)
def test_whole_spectra(n: int, width: int, inverse: bool, opset: int) -> None:
    check(normal(3, n, width), opset=opset, inverse=inverse)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 31, 32, 1021])
def test_half_spectra(n: int, opset: int) -> None:
    check(normal(3, n, 1), opset=opset, onesided=True)
    if n > 1:
        for width in (1, 2):
            check(normal(3, n, width), opset=opset, inverse=True, onesided=True)


@pytest.mark.parametrize(
    ("length", "inverse", "onesided", "width"),
    part(
        [1, 2, 7, 16, 17, 30, 31, 67],
        [(False, False, 2), (True, False, 2), (False, True, 1), (True, True, 2), (True, True, 1), (False, False, 1)],
    ),
)
def test_lengths_cut_and_continue_with_zeros(length: int, inverse: bool, onesided: bool, width: int) -> None:
    check(normal(2, 17, width), length=length, inverse=inverse, onesided=onesided)


@pytest.mark.parametrize("axis", [0, 1, 2, -2, -3, -4])
def test_axes(axis: int) -> None:
    for opset in (17, 20):
        check(normal(3, 5, 7, 2), axis, opset=opset)
        check(normal(3, 5, 7, 1), axis, 8, opset=opset, onesided=True)


def test_long_signals_stay_precise() -> None:
    """Whatever the place on the circle, cosine and sine are right to a rounding; signals have a mean that is not
    zero."""
    check(normal(1, 4099, 1) + np.float32(3), onesided=True)
    check(normal(1, 2003, 2) + np.float32(1), inverse=True)


def test_a_signal_comes_back() -> None:
    x = normal(5, 67, 2)
    (there,) = run_direct(*node_model("DFT", [x], 20))
    check_node("DFT", [there], 20, wanted=[x], inverse=1)


def test_not_a_number_stays_in_its_line() -> None:
    x = normal(3, 17, 2)
    x[1, 4, 0] = np.nan
    (got,) = run_direct(*node_model("DFT", [x], 20))
    assert np.isnan(got[1]).all()
    assert_agree(got[::2], exact(x[::2], None, 1))


@pytest.mark.parametrize("shape", [(0, 5, 2), (3, 5, 0, 2)])
def test_empty(shape: tuple[int, ...]) -> None:
    check(np.zeros(shape, np.float32))


def test_more_than_65535_workgroups() -> None:
    check(normal(300_007, 7, 1))


def test_a_fused_step() -> None:
    x = normal(3, 31, 2)
    model, feeds = model_of("DFT", (x,), opset=17, after=(helper.make_node("Abs", ["y0"], ["y"]),), axis=1)
    assert_agree(run_direct(model, feeds)[0], np.abs(exact(x, None, 1)))


@pytest.mark.parametrize(
    ("shape", "code", "inputs", "attributes"),
    [
        ((3, 5, 3), Code.RANK, [], {}),
        ((3, 5, 2), Code.RANK, [], {"onesided": 1}),
        ((3, 1, 2), Code.ATTRIBUTE, [], {"onesided": 1, "inverse": 1}),
        ((3, 5, 2), Code.ATTRIBUTE, [None, np.array(2)], {}),
        ((3, 5, 2), Code.ATTRIBUTE, [None, np.array(-1)], {}),
        ((3, 5, 2), Code.ATTRIBUTE, [np.array(0)], {}),
        ((3, 0, 2), Code.ATTRIBUTE, [np.array(5)], {}),
        ((1, 70_001, 2), Code.LIMIT, [], {}),
        ((1, 3, 2), Code.ATTRIBUTE, [np.array(1 << 29)], {}),
    ],
)
def test_what_is_declined(shape: tuple[int, ...], code: Code, inputs: list[Any], attributes: Any) -> None:
    """The longest signal is what a driver's loops allow."""
    check_decline(code, "DFT", [normal(*shape), *inputs], 20, known=(1, 2), **attributes)


@pytest.mark.parametrize("name", [name for name in INEXACT if "dft" in name])
def test_an_excluded_case_is_wrong_beyond_its_own_tolerance(name: str) -> None:
    """Ours agrees with numpy's float64 where the case's expected values don't."""
    [case] = cases(f"^{name}$")
    inputs, (wanted,) = case.data_sets[0]
    x = np.asarray(inputs[0])
    right = exact(x, None, 1, inverse=True)
    assert not np.allclose(right, wanted, rtol=case.rtol, atol=case.atol)
    opset, given = (17, [x]) if name.endswith("19") else (20, [x, None, np.asarray(inputs[-1])])
    attributes = {"axis": 1} if opset == 17 else {}
    (got,) = run_direct(*node_model("DFT", given, opset, known=(2,), inverse=1, **attributes))
    np.testing.assert_allclose(got, right, rtol=case.rtol, atol=case.atol)


WINDOW_FACTORS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("name", WINDOW_FACTORS)
def test_windows(name: str, periodic: int) -> None:
    """As long as an axis: the host computes those whose size it knows."""
    text = (
        f"(float[N, 3] x) => (float[K] y) {{ s = Shape(x) n = Gather(s, zero) w = {name}<periodic={periodic}>(n) "
        f"y = Mul(w, two) }}"
    )
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> g {text}')
    for constant, value in (("zero", np.array(0)), ("two", np.array(2, np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(value, constant))
    for size in (2, 3, 10, 31, 400, 16_411):
        (got,) = run_direct(model, {"x": np.zeros((size, 3), np.float32)}, every_size_open=True)
        angle = 2 * np.pi * np.arange(size) / (size if periodic else size - 1)
        one, two, three = WINDOW_FACTORS[name]
        np.testing.assert_allclose(got, 2 * (one - two * np.cos(angle) + three * np.cos(2 * angle)), atol=2e-7)


def stft(x: Array, step: int, n: int, window: Array | None, onesided: bool) -> Array:
    """In float64."""
    signal = (
        x.astype(np.float64)
        if x.ndim == 2
        else x[..., 0].astype(np.float64) + (1j * x[..., 1].astype(np.float64) if x.shape[2] == 2 else 0)
    )
    frames = np.stack([signal[:, k : k + n] for k in range(0, signal.shape[1] - n + 1, step)], 1)
    spectra = np.fft.fft(frames * (1 if window is None else window.astype(np.float64)))
    return parts(spectra[..., : n // 2 + 1] if onesided else spectra)


@pytest.mark.parametrize(
    ("shape", "step", "n"),
    [
        ((2, 64, 1), 8, 16),
        ((2, 64), 8, 16),
        ((3, 101, 1), 7, 33),
        ((1, 64, 1), 64, 64),
        ((2, 65, 2), 5, 24),
        ((1, 1999, 1), 160, 400),
        ((2, 9, 1), 1, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("with_window", [False, True])
def test_stft(shape: tuple[int, ...], step: int, n: int, onesided: int, with_window: bool) -> None:
    """Against float64, onnxruntime's CPU too; sizes fixed and open, the window a constant and given in the run."""
    x, window = normal(*shape), normal(n) if with_window else None
    wanted = stft(x, step, n, window, bool(onesided))
    for known in ((1, 2, 3), (1, 3)):
        model, feeds = node_model("STFT", (x, np.array(step), window, np.array(n)), 17, known, onesided=onesided)
        assert_agree(on_cpu(model, feeds)[0], wanted, 1e-4)  # of 400 numbers, onnxruntime's CPU is off by 4e-5
        for every_size_open in (False, True):
            assert_agree(run_direct(model, feeds, every_size_open=every_size_open)[0], wanted, 2e-6)


def test_stft_in_float16_and_with_the_windows_length() -> None:
    x, window = normal(2, 64, 1), np.hanning(16).astype("f")
    check_node("STFT", (x, np.array(8), window), 17, known=(1,), wanted=[stft(x, 8, 16, window, True)], tolerance=2e-6)
    half = x.astype("e")
    check_node(
        "STFT",
        (half, np.array(8), window.astype("e")),
        17,
        known=(1,),
        tolerance=1e-3,
        wanted=[stft(half, 8, 16, window.astype("e"), True).astype("e")],
    )


@pytest.mark.parametrize(
    ("shape", "step", "n", "window", "code"),
    [
        ((2, 64, 3), 8, 16, None, Code.RANK),
        ((2, 10, 1), 8, 16, None, Code.ATTRIBUTE),
        ((2, 64, 1), 0, 16, None, Code.ATTRIBUTE),
        ((2, 64, 1), 8, 0, None, Code.ATTRIBUTE),
    ],
)
def test_what_stft_declines(shape: tuple[int, ...], step: int, n: int, window: Array | None, code: Code) -> None:
    model, feeds = node_model("STFT", (normal(*shape), np.array(step), window, np.array(n)), 17, (1, 2, 3))
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(model, feeds)
    assert caught.value.code is code
