"""Large inputs, which are filled in place into mapped memory: the right bytes, one submission, no wait, and nothing
left after a failure.

A software adapter writes them by the queue: these tests have all inputs go the other way.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep.device import copying, staging
from ort_gpu_ep.device import gpu as gpu_module
from ort_gpu_ep.device.buffers import size_class
from ort_gpu_ep.device.timing import start_timing
from ort_gpu_ep.errors import DeviceError, IndexOutOfRangeError
from ort_gpu_ep.plugin.direct import RUNS_BEFORE
from ort_gpu_ep.runtime import ends, joined_runs, runs
from ort_gpu_ep.runtime.ends import places_of
from ort_gpu_ep.webgpu import native, objects, wgpu_native
from tests.patience import PATIENCE_S
from tests.session.conftest import assert_close, gpu_session, on_the_cpu
from tests.session.test_coalescing import all_join, branches, joined, picks, steady_of, together
from tests.session.test_direct import WARM, feeds_of, many, steady_runs
from tests.unit.graphs import model_of

__all__ = ["all_join", "branches", "many", "picks", "steady_runs"]  # fixtures

pytestmark = pytest.mark.usefixtures("long_pauses", "brief_hangs")

Feeds = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All inputs count as large, and are copied in pieces."""
    monkeypatch.setattr(staging, "large_nbytes", lambda gpu, nbytes: nbytes)
    monkeypatch.setattr(copying, "NBYTES_A_THREAD", 64 << 10)


def idle_of(session: Any) -> Any:
    """What the next run has to itself."""
    return steady_of(session).idle[-1].ends


def warm(model: Any, feeds: Feeds, **options: object) -> Any:
    session = gpu_session(model, **options)
    for _ in range(WARM):
        session.run(None, feeds)
    assert idle_of(session).large is not None
    return session


class Counted:
    """The functions of wgpu-native, or the checked ones; calls are counted, but for what a wait takes."""

    def __init__(self, functions: Any, counts: Counter[str]) -> None:
        self._functions, self._counts = functions, counts

    def __getattr__(self, name: str) -> Any:
        if name.startswith("wgpu") and name != "wgpuDevicePoll":
            self._counts[name] += 1
        return getattr(self._functions, name)


def native_calls(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> Counter[str]:
    """What a call has wgpu-native do."""
    counts = Counter[str]()
    with monkeypatch.context() as patch:
        for module in (native, objects, ends, wgpu_native):
            for name in {"lib", "checked"} & set(vars(module)):
                patch.setattr(module, name, Counted(getattr(module, name), counts))
        run()
    return counts


@pytest.mark.parametrize("n", [1, 3, 40_001])
def test_answers_are_onnxruntimes(
    n: int,
    many: bytes,
    rng: np.random.Generator,
    steady_runs: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """float32, int64 and bool: of n = 1 none fills a cache line, of odd n the bools end within a word."""
    session = warm(many, feeds_of(rng, n))
    idle_of(session).large._threads = 3
    for _ in range(4):
        feeds = feeds_of(rng, n)
        calls = native_calls(
            monkeypatch, lambda feeds=feeds: assert_close(session.run(None, feeds), on_the_cpu(many, feeds))
        )
        assert (calls["wgpuQueueWriteBuffer"], calls["wgpuBufferMapAsync"], calls["wgpuQueueSubmitForIndex"]) == (
            0,
            2,
            1,
        )
    assert steady_runs["done"] == WARM - RUNS_BEFORE + 4


def test_results_that_several_threads_copy(
    many: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on hardware, from 1 MiB a thread on; both ways out of the device: a run's own buffer, and through onnxruntime
    before."""
    moved = list[str]()
    by_threads = copying._Work.take_part
    monkeypatch.setattr(
        copying._Work, "take_part", lambda work: (moved.append(threading.current_thread().name), by_threads(work))[1]
    )
    monkeypatch.setattr(copying, "READ_NBYTES_A_THREAD", 8 << 10)
    for module in (ends, gpu_module):
        monkeypatch.setattr(module, "read_threads", lambda nbytes, software: copying.read_threads(nbytes, False))
    monkeypatch.setattr(copying, "usable_threads", lambda: 3)
    session, counts = gpu_session(many), list[int]()
    for _ in range(WARM):
        feeds = feeds_of(rng, 40_001)
        moved.clear()
        assert_close(session.run(None, feeds), on_the_cpu(many, feeds))
        counts.append(moved.count(threading.current_thread().name))
    assert idle_of(session)._readers == 3
    assert all(counts), counts


def test_what_is_beyond_an_input_is_zero(many: bytes, rng: np.random.Generator) -> None:
    session = warm(many, feeds_of(rng, 3))
    gpu, own = session.state.gpu, idle_of(session)
    (tensor,) = [t for t in own.inputs if t.type.nbytes % 4]
    found = np.full(12, 255, "u1")
    gpu.download(tensor.buffer, 0, found.ctypes.data, 12)
    assert set(found[:9]) <= {0, 1}
    assert not found[9:].any()


def test_one_array_twice_one_of_odd_address_and_one_that_is_read_only(rng: np.random.Generator) -> None:
    model = model_of(
        "(float[N] a, float[N] b) => (float[N] y) { s = Sub(a, b) t = Tanh(a) y = Add(s, t) }"
    ).SerializeToString()
    x = rng.standard_normal(30_001).astype("f")
    raw = np.zeros(x.nbytes + 4, "u1")
    odd = raw[1 : 1 + x.nbytes].view("f")
    odd[:] = x
    fixed = x.copy()
    fixed.flags.writeable = False
    session = warm(model, {"a": x, "b": x})
    for a, b in ((x, x), (x, fixed), (fixed, odd), (odd, fixed)):
        assert_close(session.run(None, {"a": a, "b": b}), on_the_cpu(model, {"a": a, "b": b}))


def test_values_on_the_device_go_the_other_way(mlp: bytes, x: np.ndarray[Any, Any], steady_runs: Counter[str]) -> None:
    session = warm(mlp, {"x": x})
    before, binding = steady_runs["done"], session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu"))
    for name in ("y", "z"):
        binding.bind_output(name, "gpu")
    session.run_with_iobinding(binding)
    assert_close([v.numpy() for v in binding.get_outputs()], on_the_cpu(mlp, {"x": x}))
    assert steady_runs["done"] == before


def test_one_submission_nothing_made_anew_and_no_wait(
    mlp: bytes, x: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = warm(mlp, {"x": x})
    stats, made, found, write = session.state.gpu.stats, Counter[str](), list[int](), native.map_write
    for kind in ("create_buffer", "create_bind_group", "create_command_encoder"):
        method = getattr(objects.Device, kind)
        monkeypatch.setattr(
            objects.Device, kind, lambda *a, kind=kind, method=method: (made.update([kind]), method(*a))[1]
        )
    monkeypatch.setattr(
        native, "map_write", lambda *a: (found.append(a[3] in a[0].device.expected and a[3].status), write(*a))[1]
    )
    before = stats.submits, stats.uploads, stats.uploaded_nbytes
    for k in range(3):
        assert_close(session.run(None, {"x": x + k}), on_the_cpu(mlp, {"x": x + k}))
    assert (stats.submits, stats.uploads, stats.uploaded_nbytes) == (
        before[0] + 3,
        before[1] + 3,
        before[2] + 3 * x.nbytes,
    )
    assert made == {"create_command_encoder": 3}, "each records the next one"
    assert found == [native.lib.WGPUMapAsyncStatus_Success] * 3, "mapped since the run before was over"


def test_small_inputs_make_the_calls_that_they_made(
    mlp: bytes, x: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    session = gpu_session(mlp)
    for _ in range(WARM):
        session.run(None, {"x": x})
    assert idle_of(session).large is None
    assert native_calls(monkeypatch, lambda: session.run(None, {"x": x})) == {
        "wgpuQueueWriteBuffer": 1,
        "wgpuQueueSubmitForIndex": 1,
        "wgpuBufferMapAsync": 1,
        "wgpuBufferGetConstMappedRange": 1,
        "wgpuBufferUnmap": 1,
        "wgpuDeviceCreateCommandEncoder": 1,
        "wgpuCommandEncoderBeginComputePass": 1,
        "wgpuComputePassEncoderEnd": 1,
        "wgpuCommandEncoderCopyBufferToBuffer": 2,
        "wgpuCommandEncoderFinish": 1,
    }


def test_which_inputs_are_large(monkeypatch: pytest.MonkeyPatch, mlp: bytes) -> None:
    monkeypatch.undo()
    info = gpu_session(mlp).state.gpu.info
    for kind, nbytes, want in (
        ("discrete", staging.LARGE_NBYTES, staging.LARGE_NBYTES),
        ("integrated", 1 << 30, 1 << 30),
        ("discrete", staging.LARGE_NBYTES - 64, 0),
        ("software", 1 << 30, 0),
    ):
        gpu: Any = SimpleNamespace(info=replace(info, type=kind))
        assert staging.large_nbytes(gpu, nbytes) == want, (kind, nbytes)


def test_the_memory_counts_and_is_given_back(
    mlp: bytes, x: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = warm(mlp, {"x": x})
    gpu, found = session.state.gpu, steady_of(session)
    own = idle_of(session)
    assert own.large.buffer.nbytes == size_class(places_of(found.filled.inputs)[1])
    inputs, outputs = (places_of(t)[1] for t in (found.filled.inputs, found.filled.outputs))
    assert found._run_nbytes == 2 * inputs + 2 * outputs
    monkeypatch.setattr(runs, "MAX_IN_FLIGHT_NBYTES", 2 * found._run_nbytes - 1)
    first = found._take()
    assert found._take() is None, "a second one would be too much"
    found._give_back(first, True)
    before, nbytes = gpu.stats.allocated_nbytes, own.large.buffer.nbytes + own.mappings[0][0].nbytes
    found.close()
    assert gpu.stats.allocated_nbytes == before - nbytes
    assert own.large is None


@pytest.mark.usefixtures("no_mapped_memory")
def test_without_memory_for_it_the_queue_writes(mlp: bytes, x: np.ndarray[Any, Any]) -> None:
    session = gpu_session(mlp, strict=1)
    for _ in range(WARM):
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert idle_of(session).large is None


def test_a_run_that_data_ends_leaves_the_next_ones_right(picks: bytes) -> None:
    x = np.linspace(-1, 1, 4, dtype="f")
    good, bad = ({"i": np.array(i), "x": x} for i in ([1, 2, 9], [1, 2, 10]))
    session = warm(picks, good, strict="1")
    own = idle_of(session)
    for _ in range(2):
        with pytest.raises(IndexOutOfRangeError):
            session.run(None, bad)
        assert_close(session.run(None, good), on_the_cpu(picks, good))
    assert idle_of(session) is own


def test_a_run_that_was_not_submitted_leaves_the_next_one_right(mlp: bytes, x: np.ndarray[Any, Any]) -> None:
    session = warm(mlp, {"x": x})
    found = steady_of(session)
    own = idle_of(session)
    found.prepared.closed = True
    source = native.ffi.from_buffer(x)
    assert not found.run([source], [None, None])
    found.prepared.closed = False
    assert idle_of(session) is own
    assert_close(session.run(None, {"x": x * 2}), on_the_cpu(mlp, {"x": x * 2}))
    assert idle_of(session) is own


def test_a_copy_that_fails_leaves_the_next_run_right(
    mlp: bytes, x: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is interrupted: what it had is not used again."""
    session, want = warm(mlp, {"x": x}), on_the_cpu(mlp, {"x": x})
    for error in (OSError("a page that is not there"), KeyboardInterrupt()):
        own = idle_of(session)

        def fail(*arguments: Any, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(copying, "copy_all", fail)
            with pytest.raises(type(error)):
                steady_of(session).run([native.ffi.from_buffer(x)], [None, None])
        assert own.large is None
        assert_close(session.run(None, {"x": x}), want)
        assert idle_of(session) is not own
    assert steady_of(session).made == 1


@pytest.mark.parametrize("kind", ["lost", "oom"])
def test_after_a_fault_nothing_is_expected(kind: str, mlp: bytes, x: np.ndarray[Any, Any]) -> None:
    session = gpu_session(mlp, faults=f"{kind}@{WARM};seed={len(kind) + 70}")
    devices = {session.state.gpu.device}
    for k in range(WARM + 3):
        assert_close(session.run(None, {"x": x + k}), on_the_cpu(mlp, {"x": x + k}))
        devices.add(session.state.gpu.device)
    assert session.stats()["fallbacks"] >= 1
    for partition in session.state.partitions:
        if partition.program is not None:
            partition.program.close()
    assert not {a for device in devices for a in device.expected if a.mode == native.lib.WGPUMapMode_Write}


def test_a_run_that_hangs_is_answered_by_the_cpu_and_its_device_not_asked(
    mlp: bytes,
    x: np.ndarray[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = gpu_session(mlp, faults=f"hang@{WARM};seed=75")
    for _ in range(WARM - 1):
        session.run(None, {"x": x})
    own, unmapped, unmap = idle_of(session), list[Any](), native.unmap
    buffer = own.large.buffer
    monkeypatch.setattr(native, "unmap", lambda given: (unmapped.append(given), unmap(given))[1])
    for k in range(3):
        assert_close(session.run(None, {"x": x + k}), on_the_cpu(mlp, {"x": x + k}))
    assert session.stats()["fallbacks"] >= 1
    assert own.large is None
    assert unmapped.count(buffer.native) == 1, "before the submission, not once it hung"


def test_timers_measure_the_same_results(mlp: bytes, x: np.ndarray[Any, Any]) -> None:
    session, want = warm(mlp, {"x": x}), on_the_cpu(mlp, {"x": x})
    gpu = session.state.gpu
    timed = start_timing(gpu)
    try:
        for _ in range(2):
            assert_close(session.run(None, {"x": x}), want)
    finally:
        if timed:
            gpu.stop_timing()
    assert_close(session.run(None, {"x": x}), want)


def test_threads_have_memory_of_their_own(mlp: bytes, rng: np.random.Generator) -> None:
    xs = [rng.standard_normal((500, 16)).astype("f") for _ in range(6)]
    wants = [on_the_cpu(mlp, {"x": x}) for x in xs]
    session = warm(mlp, {"x": xs[0]})
    met = threading.Barrier(6)

    def some(k: int) -> None:
        met.wait(PATIENCE_S)
        for _ in range(6):
            assert_close(session.run(None, {"x": xs[k]}), wants[k])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(some, range(6)))
    assert session.stats()["fallbacks"] == 0


@pytest.mark.usefixtures("all_join")
def test_runs_together(branches: bytes, rng: np.random.Generator) -> None:
    xs = [{"x": rng.standard_normal((4, 16)).astype("f")} for _ in range(8)]
    wants = [on_the_cpu(branches, x) for x in xs]
    session, found = joined(branches, xs[0])
    assert all(run.ends.large is not None for group in found.contention.coalescer.free for run in group.runs)

    def some(k: int) -> None:
        for _ in range(6):
            assert_close(session.run(None, xs[k]), wants[k])

    together(some)
    assert found.contention.coalescer.inside == found.contention.coalescer.under_way == 0
    assert len(found.contention.coalescer.free) == joined_runs.MAX_GROUPS
    assert session.stats()["fallbacks"] == 0


@pytest.mark.usefixtures("all_join")
def test_one_of_them_that_fails_before_it_wrote_its_inputs(rng: np.random.Generator) -> None:
    """Its memory is mapped since the run before: a submission that names it so would end the process."""
    text = "(float[4, 16] x) => (float[4, 16] y) { a = MatMul(x, w) b = Tanh(a) y = Softmax(b) }"
    model = model_of(text, {"w": rng.standard_normal((16, 16)).astype("f")}).SerializeToString()
    x = rng.standard_normal((4, 16)).astype("f")
    (want,) = on_the_cpu(model, {"x": x})
    _session, found = joined(model, {"x": x})
    coalescer, results = found.contention.coalescer, [np.zeros_like(want) for _ in range(2)]

    def run(own: Any, result: np.ndarray[Any, Any]) -> None:
        assert found._run(own, [native.ffi.from_buffer(x)], [native.ffi.from_buffer(result)])
        found._give_back(own, True)

    def two() -> list[Any]:
        both = [coalescer.join(), coalescer.join()]
        assert both[0].group is both[1].group
        return both

    both = two()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, both, results))
    again, other = two()
    assert again is both[0]
    assert again.ends.large.arrival.status
    found._give_back(again, False)
    results[1][:] = 0
    run(other, results[1])
    for result in results:
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)
    assert again.ends.large is None, "the group is not used again"


def test_the_device_that_is_lost_takes_no_inputs(mlp: bytes, x: np.ndarray[Any, Any]) -> None:
    session = warm(mlp, {"x": x}, faults="slow@1x;seed=79")
    session.state.gpu.lost = "for this test"
    with pytest.raises(DeviceError):
        steady_of(session).run([native.ffi.from_buffer(x)], [None, None])
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
