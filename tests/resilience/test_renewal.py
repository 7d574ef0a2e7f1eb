"""A session whose device was lost: answered by the CPU, then by the GPU again, on a new device."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_gpu_ep
from ort_gpu_ep.device.circuit import Circuit
from ort_gpu_ep.drills.faults import FaultyGpu
from ort_gpu_ep.errors import AdapterError, DeviceHangError, DeviceLostError
from ort_gpu_ep.kernels.host import MAX_CONSTANT_NBYTES
from ort_gpu_ep.plugin import renewal
from ort_gpu_ep.webgpu.objects import Device
from tests.patience import until
from tests.plugin.cases import assert_close, info, island, make_model, node, reference

pytestmark = pytest.mark.usefixtures("long_pauses", "brief_hangs")

SIDE = 160
assert SIDE * SIDE * 4 > MAX_CONSTANT_NBYTES


def model() -> bytes:
    """Two partitions around a CPU node; one weight large enough for the weight file, one small."""
    rng = np.random.default_rng(5)
    weights = {
        "W": rng.normal(size=(SIDE, SIDE)).astype("f") / 8,
        "b": rng.normal(size=(SIDE,)).astype("f"),
        "E": 100 * np.eye(SIDE, dtype="f"),
    }
    nodes = [
        node("MatMul", "x W", "h"),
        node("Add", "h E", "r"),
        island("r", "i"),
        node("Add", "i b", "s"),
        node("Tanh", "s", "y"),
    ]
    return make_model(nodes, [info("x", ["N", SIDE])], ["y"], weights)


def session(faults: str, made: bytes = b"", **options: object) -> Any:
    return ort_gpu_ep.InferenceSession(
        made or model(), provider_options={"placement": "gpu", "faults": faults, **options}
    )


def run(opened: Any, rng: np.random.Generator) -> None:
    x = rng.normal(size=(SIDE, SIDE)).astype("f")
    assert_close(opened.run(None, {"x": x}), reference(model(), x=x))


def pause_is_over(circuit: Circuit) -> None:
    circuit._clock = lambda: time.monotonic() + 1e6


@pytest.mark.parametrize("kind", ["lost", "hang"])
def test_a_session_comes_back(kind: str, rng: np.random.Generator) -> None:
    opened = session(f"{kind}@3;seed=11")
    for _ in range(3):
        run(opened, rng)  # two partitions a run: the fault is in the second run
    lost = opened.state.gpu
    assert isinstance(lost, FaultyGpu)
    assert lost.lost
    assert opened.stats()["renewals"] == 0
    assert opened.stats()["fallbacks"] >= 1
    pause_is_over(lost.circuit)
    run(opened, rng)  # starts the probe
    until(lambda: lost.circuit.state == "closed")
    submits = lost.stats.submits
    run(opened, rng)  # starts the renewal
    until(lambda: opened.stats()["renewals"] == 1)
    new, fallbacks = opened.state.gpu, opened.stats()["fallbacks"]
    assert new is not lost
    for _ in range(3):
        run(opened, rng)
    assert opened.stats()["fallbacks"] == fallbacks
    assert new.stats.submits > 0
    assert lost.stats.submits == submits
    assert any("uses the GPU again" in event for event in opened.explain().events)


def one_partition() -> bytes:
    """Runs of sizes that come again go past onnxruntime."""
    return make_model(
        [node("MatMul", "x W", "h"), node("Tanh", "h", "y")],
        [info("x", ["N", SIDE])],
        ["y"],
        {"W": np.random.default_rng(6).normal(size=(SIDE, SIDE)).astype("f") / 8},
    )


@pytest.mark.parametrize("made", [model, one_partition])
def test_lost_devices_are_given_back_while_the_session_lives(
    made: Callable[[], bytes], rng: np.random.Generator
) -> None:
    """Nobody has to look for cycles by chance: each holds threads and memory of its driver. What was kept for one size
    goes, too, also where no run has it again.
    """
    losses = 8
    opened = session(",".join(f"lost@{6 * k}" for k in range(1, losses + 1)) + ";seed=13", made())
    gc.collect()
    gc.disable()
    try:
        before = len(Device._alive)
        while (renewals := opened.stats()["renewals"]) < losses:
            x = rng.normal(size=(SIDE if made is model else SIDE - renewals, SIDE)).astype("f")
            assert_close(opened.run(None, {"x": x}), reference(made(), x=x))
            opened.state.gpu.circuit.reset()
            until(lambda: not opened.state.renewing.locked())
        assert len(Device._alive) <= before + 1  # the last one may still be on its way
    finally:
        gc.enable()


def test_a_second_loss_and_a_second_return(rng: np.random.Generator) -> None:
    opened = session("lost@1,lost@4;seed=12")
    for number in (1, 2):
        while not opened.state.gpu.lost:
            run(opened, rng)
        opened.state.gpu.circuit.reset()
        run(opened, rng)
        until(lambda n=number: opened.stats()["renewals"] == n)
        run(opened, rng)
    assert not opened.state.gpu.lost


def test_an_adapter_that_gives_no_device_is_left_alone_longer(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = session("lost@1;seed=13")
    run(opened, rng)
    lost = opened.state.gpu
    lost.circuit.reset()

    def refuse(config: object) -> Any:
        raise AdapterError("no device for this test")

    monkeypatch.setattr(renewal, "open_backend", refuse)
    run(opened, rng)
    until(lambda: lost.circuit.state == "open")
    run(opened, rng)
    assert opened.stats()["renewals"] == 0
    assert any("no device for this test" in event for event in opened.explain().events)
    monkeypatch.undo()
    lost.circuit.reset()
    run(opened, rng)
    until(lambda: opened.stats()["renewals"] == 1)
    run(opened, rng)


def test_a_session_that_is_dropped_while_it_is_rebuilt(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = session("lost@1;seed=14")
    run(opened, rng)
    opened.state.gpu.circuit.reset()
    begun, goes_on, rebuilt = [], [], renewal._rebuilt

    def slowly(*arguments: Any) -> Any:
        begun.append(1)
        until(lambda: goes_on)
        return rebuilt(*arguments)

    monkeypatch.setattr(renewal, "_rebuilt", slowly)
    run(opened, rng)
    until(lambda: begun)
    state, partitions = opened.state, list(opened.state.partitions)
    del opened
    goes_on.append(1)
    until(lambda: not state.renewing.locked())
    assert all(p.program is None or p.program.context.closed for p in partitions)


@pytest.mark.parametrize(("kind", "error"), [("lost", DeviceLostError), ("hang", DeviceHangError)])
def test_strict_raises_and_comes_back_where_the_weights_are_at_hand(
    kind: str, error: type, rng: np.random.Generator
) -> None:
    opened = session(f"{kind}@1;seed=15", strict=1, verify=100)
    with pytest.raises(error):
        run(opened, rng)
    opened.state.gpu.circuit.reset()
    with pytest.raises(DeviceLostError):
        run(opened, rng)
    until(lambda: opened.stats()["renewals"] == 1)
    run(opened, rng)


def test_a_value_on_the_lost_device_does_not_condemn_the_new_one(rng: np.random.Generator) -> None:
    opened = session("lost@3;seed=16")
    binding = opened.io_binding()
    binding.bind_cpu_input("x", rng.normal(size=(SIDE, SIDE)).astype("f"))
    binding.bind_output("y", "gpu")
    opened.run_with_iobinding(binding)
    held = binding.get_outputs()[0]
    run(opened, rng)
    opened.state.gpu.circuit.reset()
    run(opened, rng)
    until(lambda: opened.stats()["renewals"] == 1)
    binding.bind_ortvalue_input("x", held)
    with pytest.raises(Exception, match="DeviceLostError"):
        opened.run_with_iobinding(binding)
    assert opened.state.gpu.circuit.state == "closed"
    fallbacks = opened.stats()["fallbacks"]
    run(opened, rng)
    assert opened.stats()["fallbacks"] == fallbacks


def by_values(opened: Any, x: Any) -> Any:
    return opened.run_with_ort_values(None, {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)})[0].numpy()


def by_binding(opened: Any, x: Any) -> Any:
    binding = opened.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    opened.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0]


def into_memory(opened: Any, x: Any) -> Any:
    binding, y = opened.io_binding(), np.empty_like(x)
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    opened.run_with_iobinding(binding)
    return y


@pytest.mark.parametrize("way", [by_values, by_binding, into_memory])
@pytest.mark.parametrize("kind", ["lost", "hang"])
def test_inputs_in_host_memory_are_there_for_another_run(
    kind: str, way: Callable[..., Any], rng: np.random.Generator
) -> None:
    """The copy of them that onnxruntime has made is gone with the device."""
    for at in (1, 2, 3):
        opened = session(f"{kind}@{at};seed=18")
        for _ in range(3):
            x = rng.normal(size=(SIDE, SIDE)).astype("f")
            assert_close([way(opened, x)], reference(model(), x=x))
        assert opened.stats()["fallbacks"] >= 1


def test_a_run_that_writes_where_it_reads_is_not_done_again(rng: np.random.Generator) -> None:
    opened, x = session("lost@1;seed=19"), rng.normal(size=(SIDE, SIDE)).astype("f")
    binding = opened.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    before = x.copy()
    with pytest.raises(Exception, match="DeviceLostError"):
        opened.run_with_iobinding(binding)
    opened.run_with_iobinding(binding)
    assert_close([x], reference(model(), x=before))


def test_a_cleared_cache_folder_does_not_matter(rng: np.random.Generator, tmp_path: Path) -> None:
    opened = session("lost@1;seed=17", cache_dir=str(tmp_path), health="off")
    files = list(tmp_path.rglob("*.bin"))
    assert files
    for file in files:
        file.unlink()
    run(opened, rng)
    opened.state.gpu.circuit.reset()
    run(opened, rng)
    until(lambda: opened.stats()["renewals"] == 1)
    run(opened, rng)
