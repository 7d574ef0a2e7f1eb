"""A driver that fails at one kernel's text, as V3D's does: wgpu then says that the device is lost. The text goes out of
use, the device is replaced, and the adapter stays in use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import ort_gpu_ep as ort
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.webgpu.library import GPUError
from ort_gpu_ep.webgpu.objects import Device
from tests.patience import until


def parsed(graph: str) -> bytes:
    """With the constant `axis`."""
    found = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {graph}')
    found.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.int64), "axis"))
    return found.SerializeToString()


@pytest.fixture
def model() -> bytes:
    return parsed("g (float[N, 96] x) => (float[N, 96] y, float[N, 96] z) { y = Softmax(x) z = CumSum(x, axis) }")


@pytest.fixture(autouse=True)
def own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices and circuits of this test alone: what it puts out of use is out of use for the process."""
    monkeypatch.setattr(Gpu, "_open", {})
    monkeypatch.setattr(Gpu, "_circuits", {})


def plant(monkeypatch: pytest.MonkeyPatch, shader: str) -> list[str]:
    """Devices are lost by the text of this shader file. Returns what will hold its labels, once for each device that
    was lost."""
    whole, losses, dropped = Device.create_shader_module, [], set[int]()

    def create_shader_module(self: Device, label: str, source: str) -> Any:
        if f"// {shader}" in source.splitlines():
            losses.append(label)
            dropped.add(self.number)
        if self.number in dropped:
            raise GPUError("Validation Error: Parent device is lost")
        return whole(self, label, source)

    monkeypatch.setattr(Device, "create_shader_module", create_shader_module)
    return losses


def session(model: bytes, tmp_path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(
        model, provider_options={"placement": "gpu", "health": "off", "cache_dir": str(tmp_path)}
    )


def expected(model: bytes, x: Any) -> list[Any]:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})


@pytest.mark.parametrize("shader", ["softmax_rows.wgsl", "cumulative.wgsl"])
def test_a_text_that_loses_the_device_is_put_out_of_use(
    shader: str, model: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    losses = plant(monkeypatch, shader)
    x = np.random.default_rng(5).standard_normal((3, 96), dtype="f")
    ours = session(model, tmp_path)
    for _ in range(3):
        for got, wanted in zip(ours.run(None, {"x": x}), expected(model, x), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert losses  # else nothing was planted
    until(lambda: not any(gpu.lost for gpu in Gpu._open.values()), "a new device")
    (gpu,) = Gpu._open.values()
    assert [what for what, _ in gpu.limits.disabled] == [shader]
    assert gpu.circuit.is_closed
    assert len(losses) <= 2  # a device, and one more where it was compiled beside others


def test_open_sessions_get_a_device_without_it(model: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that needs the text is left to the CPU, one that does not comes back to the GPU, without a probe or a
    pause."""
    other_model = parsed("g (float[N, 96] x) => (float[N, 96] y) { y = Softmax(x) }")
    longer = parsed("g (float[N, 50] x) => (float[N, 50] z) { h = Neg(x) z = CumSum(h, axis) }")
    rng = np.random.default_rng(6)

    def run(opened: ort.InferenceSession, made: bytes, columns: int = 96) -> None:
        x = rng.standard_normal((3, columns), dtype="f")
        for got, wanted in zip(opened.run(None, {"x": x}), expected(made, x), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)

    needs, other = session(model, tmp_path), session(other_model, tmp_path)
    run(needs, model)
    run(other, other_model)
    (lost,) = Gpu._open.values()
    assert plant(monkeypatch, "cumulative.wgsl") == []
    run(session(longer, tmp_path), longer, 50)
    assert lost.lost
    for opened, made in ((needs, model), (other, other_model)):
        run(opened, made)
        until(lambda opened=opened: opened.stats()["renewals"] == 1)
    before = other.stats()["fallbacks"]
    run(needs, model)
    run(other, other_model)
    assert other.stats()["fallbacks"] == before
    assert "cumulative.wgsl is not used" in needs._state.partitions[0].cpu_because
    assert lost.circuit.is_closed
