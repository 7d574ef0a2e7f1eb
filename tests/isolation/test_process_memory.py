"""Large tensors go between the worker's driver and this process's memory, without a copy in the memory that both
share."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from ort_gpu_ep.isolation import process_memory, remote
from ort_gpu_ep.isolation.process import WorkerProcess
from tests.isolation.conftest import gpu_of, isolated
from tests.plugin.cases import Opened, assert_close, info, make_model, node, reference

rng = np.random.default_rng(11)
GRAIN, I8 = 1 << 20, TensorProto.INT8


@pytest.fixture(scope="module")
def allowed() -> bool:
    """Whether this system lets a child read its parent's memory, as found out without our worker: not on macOS, nor
    behind some filters."""
    if not sys.platform.startswith("linux"):
        return False
    word = ctypes.create_string_buffer(secrets.token_bytes(8), 8)
    code = """
import ctypes, os, sys
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t)]
sys.stdin.read(1)
found = ctypes.create_string_buffer(8)
ours, its = Piece(ctypes.addressof(found), 8), Piece(int(sys.argv[1]), 8)
one = ctypes.c_ulong(1)
ctypes.CDLL(None).process_vm_readv(os.getppid(), ctypes.byref(ours), one, ctypes.byref(its), one, ctypes.c_ulong(0))
print(found.raw.hex())
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(ctypes.addressof(word))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        process_memory.AccessCheck(child.pid)
        told, _ = child.communicate("!", timeout=300)
    return bytes.fromhex(told) == word.raw


def chain() -> bytes:
    return make_model([node("Relu", "x", "a"), node("Sqrt", "a", "y")], [info("x", ["N", 1024])], ["y"])


def tile() -> bytes:
    return make_model([node("Tile", "x reps", "y")], [info("x", [3, 5])], ["y"], {"reps": np.array([301, 77])})


def mixed() -> bytes:
    """Small and large tensors at once, with numbers of bytes that are no multiples of four, and outputs larger than
    their inputs."""
    nodes = [node("Add", "i j", "k"), node("Tile", "s reps", "t"), node("Neg", "s", "u"), node("Tanh", "x", "y")]
    inputs = [info("i", ["A"], I8), info("j", [1], I8), info("s", [3, 5]), info("x", ["B", 7])]
    return make_model(nodes, inputs, [info("k", ["A"], I8), "t", "u", "y"], {"reps": np.array([301, 77])})


def mixed_feeds() -> dict[str, Any]:
    return {
        "i": rng.integers(-60, 60, 700_001, dtype=np.int8),
        "j": np.array([7], np.int8),
        "s": rng.normal(size=(3, 5)).astype("f"),
        "x": rng.normal(size=(20_011, 7)).astype("f"),
    }


def shared_nbytes(opened: Opened) -> int:
    return gpu_of(opened).process.memory.nbytes


def test_large_tensors_leave_the_shared_memory_as_it_is(allowed: bool, own: dict[str, str]) -> None:
    model, opened = chain(), isolated(chain(), **own)
    assert gpu_of(opened).reaches == allowed
    for count in (4096, 1, 4096, 3000):
        x = rng.normal(size=(count, 1024)).astype("f")
        assert_close(opened.run(x=x), reference(model, x=x))
    assert (shared_nbytes(opened) == GRAIN) == allowed
    assert not opened.state.failures


@pytest.mark.parametrize("reaches", [True, False])
def test_sizes_and_places(reaches: bool, allowed: bool, own: dict[str, str]) -> None:
    model = mixed()
    opened = isolated(model, **own)
    gpu_of(opened).reaches = reaches
    for _ in range(3):
        feeds = mixed_feeds()
        assert_close(opened.run(**feeds), reference(model, **feeds))
    assert (shared_nbytes(opened) == GRAIN) == (reaches and allowed)
    assert not opened.state.failures


@pytest.mark.parametrize("name", ["chain", "mixed"])
def test_a_worker_that_can_not_reach_what_it_should(
    name: str, own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed the trial, but is asked to reach: as when the system forbids later what it allowed, or memory is a
    device's."""
    monkeypatch.setattr(remote, "AccessCheck", NoAccessCheck)
    model, feeds = (
        (chain(), {"x": rng.normal(size=(700, 1024)).astype("f")}) if name == "chain" else (mixed(), mixed_feeds())
    )
    opened = isolated(model, **own)
    assert gpu_of(opened).reaches
    for _ in range(2):
        assert_close(opened.run(**feeds), reference(model, **feeds))
        assert not gpu_of(opened).reaches
    assert not opened.state.failures


def test_outputs_that_can_not_be_reached(own: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "AccessCheck", NoAccessCheck)
    model, x = tile(), rng.normal(size=(3, 5)).astype("f")
    opened = isolated(model, **own)
    for _ in range(2):
        assert_close(opened.run(x=x), reference(model, x=x))
        assert not gpu_of(opened).reaches
    assert not opened.state.failures


class NoAccessCheck(process_memory.AccessCheck):
    """Shows the worker an address that nobody has, and believes it all the same."""

    passed = True

    def __init__(self, worker: int) -> None:
        super().__init__(worker)
        self.address = 8


def test_the_worker_ends_while_it_writes_outputs(own: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    # so that there is something to fetch wherever this runs
    monkeypatch.setattr(remote, "AccessCheck", NoAccessCheck)
    model, opened, x = tile(), isolated(tile(), **own), rng.normal(size=(3, 5)).astype("f")
    request = WorkerProcess.request

    def killed(self: WorkerProcess, message: tuple[object, ...], timeout_s: float) -> dict[str, Any]:
        if message[0] == "fetch":
            os.kill(self.pid, signal.SIGKILL)
        return request(self, message, timeout_s)

    monkeypatch.setattr(WorkerProcess, "request", killed)
    assert_close(opened.run(x=x), reference(model, x=x))
    assert [e.kind for e in opened.state.events if "SIGKILL" in e.message] == ["fallback"]


def test_an_output_that_takes_its_inputs_place(
    allowed: bool, own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written once the worker has answered for good: the CPU can still use the input if it does not."""
    import onnxruntime

    model, opened = chain(), isolated(chain(), **own)
    x = rng.normal(size=(2048, 1024)).astype("f")
    (want,) = reference(model, x=x)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x.copy())
    binding = opened.session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("y", value)
    asked = []
    request = WorkerProcess.request
    monkeypatch.setattr(
        WorkerProcess,
        "request",
        lambda self, message, timeout_s: asked.append(message[0]) or request(self, message, timeout_s),
    )
    opened.session.run_with_iobinding(binding)
    assert_close([value.numpy()], [want])
    assert asked == ["run", "share"][: 1 + allowed]


@pytest.mark.parametrize("shares", [1, process_memory.THREADS])
@pytest.mark.parametrize("nbytes", [1, 100_001, process_memory.THREAD_NBYTES + 1, 5_000_003])
def test_reach(nbytes: int, shares: int, allowed: bool) -> None:
    """Its own process will do, by one thread and by several; an address that nobody has will not."""
    if not allowed:
        pytest.skip("this system lets no process be reached")
    mine = process_memory.ProcessMemory(os.getpid())
    mine._shares = shares
    source, target = rng.integers(0, 256, nbytes, dtype=np.uint8), np.zeros(nbytes + 1, np.uint8)
    mine.read(source.ctypes.data, target.ctypes.data, nbytes)
    assert (source == target[:-1]).all()
    target[:] = 0
    mine.write(target.ctypes.data, source.ctypes.data, nbytes)
    assert (source == target[:-1]).all()
    assert target[-1] == 0
    with pytest.raises(OSError, match=f"of process {os.getpid()}"):
        mine.read(8, target.ctypes.data, nbytes)


def test_uploads_that_nothing_came_after_do_not_pile_up(own: dict[str, str], allowed: bool) -> None:
    """Runs whose memory gives out between their upload and their readback leave nothing behind."""
    opened = isolated(chain(), faults="oom~1;seed=3", **own)
    held = []
    for _ in range(5):
        gpu_of(opened).circuit.reset()
        x = rng.normal(size=(1024, 1024)).astype("f")
        assert_close(opened.run(x=x), reference(chain(), x=x))
        held.append(gpu_of(opened).request(("release", 10**9), 60)["held"][0])
    assert gpu_of(opened).reaches == allowed
    assert held[1:] == held[1:2] * 4
