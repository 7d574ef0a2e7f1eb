"""Products of bytes on matrix units, which are emulated (matrix_emulation.py): to the last bit what byte_product.wgsl
gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ort_gpu_ep.health.probes  # noqa: F401  fills the table
from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.health.probe import PROBES
from ort_gpu_ep.ir.graph import Graph, Node, Value
from ort_gpu_ep.ir.types import INT8, UINT8, TensorType, dtype_of
from ort_gpu_ep.kernels.cost_parameters import DEFAULT_FIGURES
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.target import BYTE_UNIT_SHADERS, MATRIX_BYTES, no_byte_units
from ort_gpu_ep.ops import unit_bytes
from ort_gpu_ep.ops.matrix_units import UnitTile
from ort_gpu_ep.ops.unit_bytes import TILES
from ort_gpu_ep.plugin.explain import Explanation
from ort_gpu_ep.scheduler import make_plan
from ort_gpu_ep.scheduler.plan import Dispatch
from tests.ops.matrix_emulation import Emulated, emulation

QUICK = UnitTile("byte units quick", 32, 32, 64, 2, 2, 1.0)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulated]:
    monkeypatch.setattr(unit_bytes, "TILES", (QUICK,))
    with emulation() as made:
        yield made


WINDOWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((2, 20, 7, 5), (36, 20, 1, 1), {}),
    "1x1 steps": ((2, 32, 9, 7), (20, 32, 1, 1), {"strides": (2, 2)}),
    "3x3": ((1, 32, 7, 9), (36, 32, 3, 3), {"pads": (1, 1, 1, 1)}),
    "3x3 few channels": ((2, 12, 6, 5), (24, 12, 3, 3), {"pads": (1, 0, 0, 1), "strides": (2, 1)}),
    "3x3 a step is a tap": ((1, 64, 6, 5), (16, 64, 3, 3), {"pads": (1, 1, 1, 1), "dilations": (1, 2)}),
    "planes": ((2, 3, 15, 13), (20, 3, 5, 5), {"strides": (2, 2), "pads": (2, 2, 2, 2)}),
}


def convolution(name: str, unsigned: bool) -> tuple[Graph, Any]:
    """A QLinearConv of random bytes, channels last, and its input."""
    rng = np.random.default_rng()
    shape, filters, attributes = WINDOWS[name]
    dtype = UINT8 if unsigned else INT8
    low, high = (0, 256) if unsigned else (-128, 128)
    x = rng.integers(low, high, shape).astype(dtype.numpy)
    stored = x if filters[1] <= 4 else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    held: dict[str, Any] = {
        "xs": np.array(0.02, np.float32),
        "xz": np.array(rng.integers(low, high), dtype.numpy),
        "w": rng.integers(-128, 128, filters).astype(np.int8),
        "ws": rng.uniform(0.001, 0.01, filters[0]).astype(np.float32),
        "wz": np.zeros(filters[0], np.int8),
        "ys": np.array(0.3, np.float32),
        "yz": np.array(rng.integers(low, high), dtype.numpy),
        "b": rng.integers(-5000, 5000, filters[0]).astype(np.int32),
    }
    values = {n: Value(n, dtype_of(a), a.shape, lambda a=a: a) for n, a in held.items()}  # type: ignore[misc]
    node = Node("QLinearConv", ("x", *held), ("y",), version=10, attributes=attributes, channels_last=True)
    return Graph(
        "g", ("x",), ("y",), (node,), values | {"x": Value("x", dtype, stored.shape), "y": Value("y", dtype)}
    ), stored


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("unsigned", [False, True])
def test_convolutions(trial: Emulated, name: str, unsigned: bool) -> None:
    graph, x = convolution(name, unsigned)
    with forced("64x64*1"):
        (usual,) = trial.graph(graph, [x])
    assert "byte_product.wgsl" in trial.shaders
    with forced(QUICK.name):
        (got,) = trial.graph(graph, [x])
    assert "byte_units.wgsl" in trial.shaders
    assert np.array_equal(got, usual)
    assert len(np.unique(got)) > 20


@pytest.mark.parametrize("sizes", [(40, 36, 68), (33, 20, 260)])
def test_sums(trial: Emulated, sizes: tuple[int, int, int]) -> None:
    """MatMulInteger, against numpy."""
    m, n, k = sizes
    rng = np.random.default_rng()
    a, b, zero = (
        rng.integers(0, 256, (m, k)).astype(np.uint8),
        rng.integers(-128, 128, (k, n)).astype(np.int8),
        np.array(77, np.uint8),
    )
    values = {
        "a": Value("a", UINT8, a.shape),
        "b": Value("b", INT8, b.shape, lambda: b),
        "z": Value("z", UINT8, (), lambda: zero),
    }
    with forced(QUICK.name):
        (got,) = trial.graph(
            Graph("g", ("a",), ("y",), (Node("MatMulInteger", ("a", "b", "z"), ("y",), version=10),), values), [a]
        )
    assert "byte_units.wgsl" in trial.shaders
    assert np.array_equal(got, (a.astype(np.int64) - 77) @ b.astype(np.int64))


@pytest.mark.parametrize(
    ("size", "channels", "filters", "window", "form"),
    [
        (56, 64, 256, 1, "byte units 64x64x64"),
        (28, 128, 512, 1, "byte units 64x64x64"),
        (28, 128, 128, 3, "byte units 64x128"),
        (14, 1024, 256, 1, "byte units 64x64x64"),
        (7, 512, 512, 3, "byte units 64x64"),
    ],
)
def test_layers_of_resnet_choose_them(
    trial: Emulated,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    channels: int,
    filters: int,
    window: int,
    form: str,
) -> None:
    """By estimate, with the figures of an H200: 32 images, each in the tile that was measured to be the fastest."""
    monkeypatch.setattr(unit_bytes, "TILES", TILES)
    monkeypatch.setitem(
        WINDOWS,
        "layer",
        ((32, channels, size, size), (filters, channels, window, window), {"pads": (window // 2,) * 4}),
    )
    graph, x = convolution("layer", False)
    limits = replace(trial.gpu.limits, figures=DEFAULT_FIGURES, max_workgroup_nbytes=49152)
    for known, shader in (
        (limits, "byte_units.wgsl"),
        (replace(limits, features=limits.features - {MATRIX_BYTES}), "byte_product.wgsl"),
    ):
        plan = make_plan(graph, {"x": TensorType(INT8, x.shape)}, known)
        kernels = {step.kernel.shader: step.kernel for step in plan.steps if isinstance(step, Dispatch)}
        assert shader in kernels
        choice = kernels[shader].choice
        assert choice is not None
        assert (choice.form == form) == (shader == "byte_units.wgsl")
        assert ("exact sums of bytes" in str(Explanation("adapter", (), (), (), (plan,)))) == (
            shader == "byte_units.wgsl"
        )


def test_reasons(trial: Emulated) -> None:
    limits = trial.gpu.limits
    assert no_byte_units(limits) == ""
    assert MATRIX_BYTES in no_byte_units(replace(limits, features=limits.features - {MATRIX_BYTES}))
    assert "32" in no_byte_units(replace(limits, subgroup_size=64))
    assert "it failed" in no_byte_units(replace(limits, disabled=(("byte_units.wgsl", "it failed"),)))


@pytest.mark.parametrize("shader", ["", *BYTE_UNIT_SHADERS])
def test_the_probe_passes_and_sees_its_fault(shader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = PROBES["matrix units of bytes"]
    with emulation(shown=False) as trial, apart():
        trial.only, trial.planted = shader, found.fault if shader else ""
        monkeypatch.setattr(unit_bytes, "TILES", (QUICK,))
        if shader:
            with pytest.raises(WrongResultError):
                found.check(trial)
        else:
            assert found.check(trial)
