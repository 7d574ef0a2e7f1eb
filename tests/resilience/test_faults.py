"""Faults on purpose: each kind alone, strict or not, and a soak of all of them with threads (soak.py)."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.adapter import adapters
from ort_gpu_ep.device.probe import probe
from ort_gpu_ep.drills.faults import FaultyGpu, parse_faults
from ort_gpu_ep.errors import (
    ConfigError,
    DeviceHangError,
    DeviceLostError,
    OutOfDeviceMemoryError,
    ShaderError,
    WrongResultError,
)
from ort_gpu_ep.plugin.verification import compare
from tests.plugin.cases import assert_close, batches, reference
from tests.resilience.soak import KINDS, model, session

pytestmark = pytest.mark.usefixtures("long_pauses", "brief_hangs")

ERRORS = {
    "lost": DeviceLostError,
    "hang": DeviceHangError,
    "oom": OutOfDeviceMemoryError,
    "corrupt": WrongResultError,
    "compile": ShaderError,
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_is_answered_by_the_cpu(kind: str, rng: np.random.Generator) -> None:
    opened = session(model(), faults=f"{kind}@{1 if kind == 'compile' else 2};seed=1")
    for _ in range(4):
        x = rng.normal(size=(3, 16)).astype("f")
        assert_close(opened.run(None, {"x": x}), reference(model(), x=x))
    gpu = opened.state.gpu
    assert isinstance(gpu, FaultyGpu)
    assert gpu.injected[kind] == 1
    assert any(ERRORS[kind].__name__ in event for event in opened.explain().events)
    assert gpu.circuit.state == ("open" if kind in ("lost", "hang") else "closed")
    assert opened.state.partitions[0].circuit.state == ("open" if kind == "corrupt" else "closed")
    assert bool(gpu.lost) == (kind in ("lost", "hang"))
    assert opened.stats()["fallbacks"] >= 1


def test_what_ran_on_the_cpu_is_counted_there(rng: np.random.Generator) -> None:
    """The session had all nodes on the GPU; its second run was answered by the CPU, and counts there until one is on
    the GPU again."""
    opened = session(model(), faults="oom@2;seed=1")
    x = rng.normal(size=(3, 16)).astype("f")
    opened.run(None, {"x": x})
    nodes = opened.explain().count("gpu")
    assert nodes > 0
    assert opened.explain().count("cpu") == 0
    opened.run(None, {"x": x})
    shown = opened.explain()
    assert (shown.count("gpu"), shown.count("cpu")) == (0, nodes)
    assert "the CPU answered the last run: OutOfDeviceMemoryError" in str(shown)
    opened.run(None, {"x": x})
    assert opened.explain().count("gpu") == nodes


def test_what_cannot_be_compiled_is_counted_on_the_cpu(rng: np.random.Generator) -> None:
    opened = session(model(), faults="compile@1;seed=1")
    opened.run(None, {"x": rng.normal(size=(3, 16)).astype("f")})
    assert opened.explain().count("gpu") == 0


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "compile"])
def test_each_fault_raises_in_strict_mode(kind: str, rng: np.random.Generator) -> None:
    opened = session(model(), faults=f"{kind}@2;seed=2", strict=1)
    x = rng.normal(size=(3, 16)).astype("f")
    assert_close(opened.run(None, {"x": x}), reference(model(), x=x))
    with pytest.raises(ERRORS[kind]):
        opened.run(None, {"x": x})


@pytest.mark.parametrize("strict", [0, 1])
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_what_the_cpu_has_no_kernel_for_is_not_verified_and_says_so(
    isolation: str, strict: int, rng: np.random.Generator
) -> None:
    opened = session(batches(1), isolation=isolation, strict=strict)
    for _ in range(2):
        x = rng.normal(size=(3, 5, 12)).astype("f")
        (h,) = opened.run(None, {"x": x})
        (want,) = reference(batches(0), x=x.transpose(1, 0, 2))
        assert_close([h.transpose(1, 0, 2)], [want])
    assert any("not verified" in event and "layout" in event for event in opened.explain().events)
    assert opened.stats()["fallbacks"] == 0


def test_what_was_wrong_is_tried_again_later_and_compared(rng: np.random.Generator) -> None:
    opened = session(model(), faults="corrupt@1;seed=3", verify=1000)
    x = rng.normal(size=(3, 16)).astype("f")
    opened.run(None, {"x": x})
    gpu = opened.state.gpu
    assert isinstance(gpu, FaultyGpu)
    opened.run(None, {"x": x})
    assert gpu.runs == 1
    (partition,) = opened.state.partitions
    partition.circuit._clock = lambda: 1e12
    assert partition.verify_due(((), ()))
    assert_close(opened.run(None, {"x": x}), reference(model(), x=x))
    assert gpu.runs == 2
    assert partition.circuit.state == "closed"


def test_a_new_session_gets_a_new_device_after_a_loss(rng: np.random.Generator) -> None:
    config = Config(faults="lost@1;seed=4")
    opened = session(model(), faults=config.faults)
    opened.run(None, {"x": rng.normal(size=(3, 16)).astype("f")})
    assert opened.state.gpu.lost
    assert not Gpu.open(config).lost


def test_slow_answers_and_only_slows(rng: np.random.Generator) -> None:
    opened = session(model(), faults="slow@3x", verify=0)
    x = rng.normal(size=(3, 16)).astype("f")
    assert_close(opened.run(None, {"x": x}), reference(model(), x=x))
    assert opened.stats()["fallbacks"] == 0


def test_the_probe_passes_on_a_working_adapter() -> None:
    probe(adapters()[0])


@pytest.mark.parametrize("text", ["lost", "lost@0", "explode@1", "slow@2", "lost@1;speed=3", "hang~2"])
def test_a_wrong_switch_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="option faults="):
        parse_faults(text)


@pytest.mark.parametrize(
    ("got", "want", "ok"),
    [
        ([1.0, 2.0], [1.0, 2.0001], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([np.nan, 1.0], [0.0, 1.0], False),
        ([np.inf], [np.inf], True),
        ([np.inf], [-np.inf], False),
        ([1.0], [np.nan], False),
    ],
)
def test_what_counts_as_wrong(got: list[float], want: list[float], ok: bool) -> None:
    arrays = np.array(got, "f"), np.array(want, "f")
    if ok:
        compare("y", *arrays)
    else:
        with pytest.raises(WrongResultError, match="1 of"):
            compare("y", *arrays)


def test_soak() -> None:
    """In a process of its own, whose memory is the soak's."""
    done = subprocess.run([sys.executable, "-m", "tests.resilience.soak"], capture_output=True, text=True, timeout=3000)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
