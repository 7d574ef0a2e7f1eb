"""The functions of ONNX Runtime's provider API beside placement and runs: profiles, memory, what speaks against a
GPU."""

from __future__ import annotations

import gc
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as pybind

import ort_gpu_ep
from ort_gpu_ep import plugin
from ort_gpu_ep.config import resolve
from ort_gpu_ep.device.allowance import ACTIVATIONS, RUNS, WEIGHTS
from ort_gpu_ep.errors import AdapterError, DeviceError
from ort_gpu_ep.health import enumeration, verdicts
from ort_gpu_ep.kernels.registry import ADAPTER, OPS
from ort_gpu_ep.plugin import factory, slots, tables
from ort_gpu_ep.plugin.abi import api, ffi, text_of
from ort_gpu_ep.plugin.compute import Partition
from ort_gpu_ep.plugin.control_flow import LoopHelper, ScanHelper
from ort_gpu_ep.plugin.explain import device_memory_of
from ort_gpu_ep.plugin.graph_capture import CapturingProvider
from ort_gpu_ep.plugin.incompatibility import DEVICE, DRIVER, MISSING, NONE, incompatibility
from ort_gpu_ep.plugin.profiler import Profiler
from ort_gpu_ep.plugin.provider import Provider
from ort_gpu_ep.plugin.transfer import Allocator, DataTransfer, MemcpyKernel
from ort_gpu_ep.processes import interrupts
from ort_gpu_ep.weights.functions import DOMAIN, functions
from tests.plugin.cases import ORT, Opened, info, island, make_model, node, open_session, raises

Array = np.ndarray[Any, Any]

TABLES = {
    "OrtEpFactory": factory.Factory,
    "OrtEp": CapturingProvider,
    "OrtNodeComputeInfo": Partition,
    "OrtAllocator": Allocator,
    "OrtDataTransferImpl": DataTransfer,
    "OrtEpProfilerImpl": Profiler,
    "OrtKernelImpl": MemcpyKernel,
    "OrtLoopKernelHelper": LoopHelper,
    "OrtScanKernelHelper": ScanHelper,
}

SHRINK = "memory.enable_memory_arena_shrinkage"

# ---- the tables


def test_every_function_of_a_table_is_filled_or_says_why_not() -> None:
    assert set(TABLES) == set(slots.FILLED)
    for name, table in TABLES.items():
        functions = slots.FILLED[name]
        assert table.SLOTS is functions, name
        assert [slot.number for slot in functions.values()] == list(range(len(functions))), name
        for function, slot in functions.items():
            assert bool(slot.signature) != bool(slot.empty), f"{name}::{function}"
            assert (function in table._callbacks) == (not slot.empty), f"{name}::{function}"
            assert slot.since <= slots.NEWEST_API
        assert len(functions) <= ffi.typeof("Table").fields[1][1].type.length, (
            f"{name} has more functions than a Table has room for"
        )


def test_a_function_is_filled_only_where_the_running_onnxruntime_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "version", 24)
    table = Profiler.__new__(Profiler)
    tables.Table.__init__(table)
    assert not any(table.pointer.slot[slot.number] for slot in slots.PROFILER.values())
    assert table.pointer.version == 24
    table.drop()


def test_no_model_needs_an_operator_that_only_the_provider_could_declare() -> None:
    """What GetCustomOpDomains would be for."""
    interrupts.load("ort_gpu_ep.health.probes")  # and with them all operators
    declared = {("" if s.domain == "ai.onnx" else s.domain, s.name) for s in pybind.get_all_operator_schema()}
    later = (
        set()
        if ORT >= (1, 32)
        else {("", "SwiGLU"), ("com.microsoft", "SwiGLU"), ("", "LinearAttention"), ("", "CausalConvWithState")}
    )
    foreign = {(domain, name) for domain, name in OPS if not domain.startswith("ort_gpu_ep")}
    assert len(foreign) > 100
    assert foreign - declared <= later
    ours = {name for domain, name in OPS if domain == DOMAIN}
    assert ours == {f.name for f in functions(ours, 21) if f.node}


# ---- onnxruntime's profile


@pytest.fixture
def two_partitions(rng: np.random.Generator) -> bytes:
    """Two partitions with a node of the CPU between them, for x: [N, 32]."""
    return make_model(
        [node("MatMul", "x W", "h"), island("h", "i"), node("MatMul", "i W", "k"), node("Softmax", "k", "y")],
        [info("x", ["N", 32])],
        ["y"],
        {"W": rng.normal(size=(32, 32)).astype("f")},
    )


def _profiled(model: bytes, folder: Path, **options: object) -> Opened:
    settings = onnxruntime.SessionOptions()
    settings.enable_profiling, settings.profile_file_prefix = True, str(folder / "profile")
    return open_session(model, settings, **options)


def _events(opened: Opened) -> list[dict[str, Any]]:
    return list(json.loads(Path(opened.session.end_profiling()).read_text("utf-8")))


def _square(rng: np.random.Generator) -> Array:
    return rng.normal(size=(32, 32)).astype("f")


def test_kernels_are_in_onnxruntimes_profile_inside_their_nodes(
    rng: np.random.Generator, two_partitions: bytes, tmp_path: Path
) -> None:
    opened = _profiled(two_partitions, tmp_path)
    for _ in range(3):
        opened.run(x=_square(rng))
    events = _events(opened)
    spans = [(e["args"]["op_name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == "Node"]
    kernels = [e for e in events if e["cat"] == "Kernel"]
    assert Counter(e["args"]["shader"] for e in kernels) == {"product.wgsl": 6, "softmax_rows.wgsl": 3}
    assert Counter(e["name"].partition("->")[0] for e in kernels) == {"MatMul": 6, "Softmax": 3}
    used = Counter[tuple[str, int, int]]()
    for e in kernels:
        around = [
            span
            for span in spans
            if span[0] == e["args"]["op_name"] and span[1] <= e["ts"] and e["ts"] + e["dur"] <= span[2]
        ]
        assert len(around) == 1, (e, spans)
        assert e["dur"] > 0
        used.update(around)
    assert sorted(used.values()) == [1, 1, 1, 2, 2, 2], "each run has times of its own"
    assert {e["pid"] for e in kernels} == {os.getpid()}
    assert opened.state.gpu is not None
    assert opened.state.gpu.timer is None, "nothing is timed once the profile is written"


def test_the_times_are_the_gpus(
    rng: np.random.Generator, two_partitions: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durations, and what lies between two dispatches of a run."""
    from ort_gpu_ep.device import timing

    plain = timing.Stopwatch.read
    seen = list[tuple[float, float]]()

    def read(watch: Any, context: object = None) -> list[tuple[Any, int, float, float]]:
        found = plain(watch, context)
        seen.extend((begin, end) for _, _, begin, end in found)
        return found

    monkeypatch.setattr(timing.Stopwatch, "read", read)
    opened = _profiled(two_partitions, tmp_path)
    opened.run(x=_square(rng))
    kernels = [e for e in _events(opened) if e["cat"] == "Kernel"]
    assert len(seen) == len(kernels) == 3
    for event, (begin, end) in zip(kernels, seen, strict=True):
        assert event["dur"] == -(-(end - begin) // 1e3)
    starts, begins = [e["ts"] for e in kernels[1:]], [begin / 1e3 for begin, _ in seen[1:]]  # of one run
    assert abs((starts[1] - starts[0]) - (begins[1] - begins[0])) <= 1


def test_a_call_that_comes_late_moves_no_kernel_out_of_its_node(
    rng: np.random.Generator,
    two_partitions: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread has the interpreter when onnxruntime tells how long ago the profile began."""
    from ort_gpu_ep.plugin import profiler

    late = SimpleNamespace(perf_counter_ns=lambda: time.perf_counter_ns() + 3_000_000_000)
    monkeypatch.setattr(profiler, "time", late)
    opened = _profiled(two_partitions, tmp_path)
    calls = list[int]()
    plain = Profiler.stop_event
    monkeypatch.setattr(Profiler, "stop_event", lambda self, *arguments: calls.append(1) or plain(self, *arguments))
    for _ in range(4):
        opened.run(x=_square(rng))
    before = len(calls)
    for _ in range(4):
        opened.run(x=_square(rng))
    assert 0 < before == len(calls), "onnxruntime goes on asking"
    events = _events(opened)
    spans = {
        op: [(e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == "Node" and e["args"]["op_name"] == op]
        for op in {e["args"]["op_name"] for e in events if e["cat"] == "Kernel"}
    }
    for e in (e for e in events if e["cat"] == "Kernel"):
        assert any(begin <= e["ts"] and e["ts"] + e["dur"] <= end for begin, end in spans[e["args"]["op_name"]]), (
            e,
            spans,
        )


def test_profiles_of_two_sessions_share_the_stopwatch(
    rng: np.random.Generator, two_partitions: bytes, tmp_path: Path
) -> None:
    one, other = _profiled(two_partitions, tmp_path), _profiled(two_partitions, tmp_path / "b")
    (tmp_path / "b").mkdir(exist_ok=True)
    x = _square(rng)
    one.run(x=x)
    other.run(x=x)
    assert sum(e["cat"] == "Kernel" for e in _events(one)) == 3
    other.run(x=x)
    gpu = other.state.gpu
    assert gpu is not None
    assert gpu.timer is not None, "the other profile still wants times"
    del other
    gc.collect()
    assert gpu.timer is None, "a session that ends takes its profile along"


def test_runs_without_a_profile_are_not_timed(
    rng: np.random.Generator, two_partitions: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Partition, "_note", raises(AssertionError("timed")))
    opened = open_session(two_partitions, strict=1)
    opened.run(x=_square(rng))
    assert opened.state.gpu is not None
    assert opened.state.gpu.timer is None
    assert opened.state.profiles == ()


def test_without_timestamps_the_profile_is_onnxruntimes_alone(
    rng: np.random.Generator,
    two_partitions: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = open_session(two_partitions).state.gpu
    assert gpu is not None
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, features=gpu.limits.features - {"timestamp-query"}))
    opened = _profiled(two_partitions, tmp_path)
    x = _square(rng)
    (got,) = opened.run(x=x)
    assert {e["cat"] for e in _events(opened)} == {"Session", "Node"}
    assert any(e.where == "profile" and "no timestamps" in e.message for e in opened.state.events)
    np.testing.assert_allclose(got, open_session(two_partitions).run(x=x)[0], rtol=1e-6)


def test_a_device_that_fails_to_tell_the_times_spoils_no_run(
    rng: np.random.Generator,
    two_partitions: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ort_gpu_ep.device import timing

    opened = _profiled(two_partitions, tmp_path, strict=1)
    monkeypatch.setattr(timing.Stopwatch, "read", raises(DeviceError("planted")))
    x = _square(rng)
    (got,) = opened.run(x=x)
    np.testing.assert_allclose(got, open_session(two_partitions).run(x=x)[0], rtol=1e-6)
    assert any(e.where == "profile" and "planted" in e.message for e in opened.state.events)


def test_any_name_of_a_node_leaves_the_profile_readable(rng: np.random.Generator, tmp_path: Path) -> None:
    opened = _profiled(make_model([node("Relu", "x", "y", name='n"1\\2\n3')], [info("x", [4])], ["y"]), tmp_path)
    opened.run(x=rng.normal(size=4).astype("f"))
    assert [e["name"] for e in _events(opened) if e["cat"] == "Kernel"] == ["n'1/2 3/elementwise"]


def test_a_run_of_the_profiles_command_is_not_timed_by_dispatch(
    rng: np.random.Generator,
    two_partitions: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """session.profile() takes the spans of nodes with onnxruntime's profile: passes of their own would make ours
    longer."""
    from ort_gpu_ep.profiling import nodes

    timers = list[Any]()
    plain = nodes._run

    def run(session: Any, *arguments: Any) -> Any:
        timers.append(session.state.gpu.timer)
        return plain(session, *arguments)

    monkeypatch.setattr(nodes, "_run", run)
    session = ort_gpu_ep.InferenceSession(two_partitions, provider_options={"placement": "gpu"})
    assert session.profile({"x": _square(rng)}, runs=1).nodes
    assert timers
    assert set(timers) == {None}


# ---- memory


def _shrinking() -> Any:
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(SHRINK, "gpu:0")
    return options


@pytest.fixture
def deep(rng: np.random.Generator) -> bytes:
    """relu(x @ W) @ W, for x: [N, 256]: a value inside, and a weight of 256 KiB."""
    return make_model(
        [node("MatMul", "x W", "h"), node("Softmax", "h", "s"), node("MatMul", "s W", "y")],
        [info("x", ["N", 256])],
        ["y"],
        {"W": rng.normal(size=(256, 256)).astype("f")},
    )


def test_arena_shrinkage_gives_device_memory_back(rng: np.random.Generator, deep: bytes) -> None:
    opened = open_session(deep)
    x = rng.normal(size=(512, 256)).astype("f")
    for rows in (100, 300, 512):
        (want,) = opened.run(x=x[:rows])
    before = device_memory_of(opened.state)
    (got,) = opened.session.run(None, {"x": x}, _shrinking())
    after = device_memory_of(opened.state)
    assert before is not None
    assert after is not None
    assert opened.state.gpu is not None
    np.testing.assert_array_equal(got, want)
    assert before.session[ACTIVATIONS] >= x.nbytes
    assert after.session[ACTIVATIONS] == 0
    assert after.session[WEIGHTS] == before.session[WEIGHTS] > 0
    assert before.waiting_nbytes >= x.nbytes
    assert after.waiting_nbytes == 0
    # what is left is that of other sessions of the process
    assert before.staging_nbytes - after.staging_nbytes >= x.nbytes
    assert after.process_nbytes <= before.process_nbytes - before.waiting_nbytes - before.session[ACTIVATIONS]
    np.testing.assert_array_equal(opened.run(x=x)[0], want)
    assert not opened.state.failures


def test_values_on_the_device_survive_the_shrinkage(rng: np.random.Generator, deep: bytes) -> None:
    opened = open_session(deep)
    x = rng.normal(size=(8, 256)).astype("f")
    (want,) = opened.run(x=x)
    binding = opened.session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "gpu")
    opened.session.run_with_iobinding(binding, _shrinking())
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], want)


def test_direct_runs_go_on_after_the_shrinkage(rng: np.random.Generator, deep: bytes) -> None:
    session = ort_gpu_ep.InferenceSession(deep, provider_options={"placement": "gpu", "strict": "1"})
    x = rng.normal(size=(8, 256)).astype("f")
    for _ in range(5):
        (want,) = session.run(None, {"x": x})
    state = session.state
    held = device_memory_of(state)
    assert held is not None
    assert held.session[RUNS] > 0
    (partition,) = state.partitions
    assert partition.program is not None
    partition.program.shrink()
    held = device_memory_of(state)
    assert held is not None
    assert held.session[RUNS] == held.session[ACTIVATIONS] == 0
    for _ in range(5):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)


def test_arena_shrinkage_reaches_the_worker(rng: np.random.Generator, deep: bytes) -> None:
    opened = open_session(deep, isolation="process")
    x = rng.normal(size=(512, 256)).astype("f")
    (want,) = opened.run(x=x)
    (partition,) = opened.state.partitions
    assert partition.program is not None
    worker: Any = partition.program.gpu

    def held() -> int:
        with worker.held(60.0):
            return int(worker.request(("release", -1), 60.0)["held"][0])

    before = held()
    np.testing.assert_array_equal(opened.session.run(None, {"x": x}, _shrinking())[0], want)
    assert held() <= before - 2 * x.nbytes
    np.testing.assert_array_equal(opened.run(x=x)[0], want)


def _table(kind: type[tables.Table], state: plugin.SessionState) -> Any:
    return next(t for t in list(tables._live.values()) if isinstance(t, kind) and getattr(t, "state", None) is state)


def _call(table: tables.Table, name: str, *arguments: Any) -> None:
    """As onnxruntime calls it; in its Python package nothing does."""
    slot = table.SLOTS[name]
    kinds = {"p": "void*", "o": "void**"}
    function = ffi.cast(
        f"void*(*)({', '.join(['void*', *(kinds[letter] for letter in slot.signature[2:])])})",
        table.pointer.slot[slot.number],
    )
    status = function(table.pointer, *arguments)
    assert not status, text_of(api.GetErrorMessage(status))


def _stats(opened: Opened) -> dict[str, int]:
    out, keys, values, count = ffi.new("void**"), ffi.new("char***"), ffi.new("char***"), ffi.new("size_t*")
    _call(_table(Allocator, opened.state), "GetStats", out)
    api.GetKeyValuePairs(out[0], keys, values, count)
    found = {text_of(keys[0][i]): int(text_of(values[0][i])) for i in range(count[0])}
    api.ReleaseKeyValuePairs(out[0])
    return found


def test_an_allocator_tells_what_its_session_holds(rng: np.random.Generator, deep: bytes) -> None:
    opened = open_session(deep, memory_limit_mb=64)
    opened.run(x=rng.normal(size=(8, 256)).astype("f"))
    held, found = device_memory_of(opened.state), _stats(opened)
    assert held is not None
    assert found == {
        "Limit": 64 << 20,
        "InUse": held.session_nbytes,
        "TotalAllocated": held.process_nbytes,
        "MaxInUse": held.most_nbytes,
    }
    assert found["InUse"] >= 256 * 256 * 4


@pytest.mark.parametrize(("limit", "kind"), [(64, 1), (0, 0)])
def test_the_budget_is_what_the_limit_leaves(rng: np.random.Generator, deep: bytes, limit: int, kind: int) -> None:
    opened = open_session(deep, memory_limit_mb=limit)
    opened.run(x=rng.normal(size=(8, 256)).astype("f"))
    count = ffi.new("uint64_t[7]", [-1 & 0xFFFFFFFF] * 7)  # OrtResourceCount: kind, reserved; six words
    _call(_table(Provider, opened.state), "GetAvailableResource", count)
    assert int(count[0]) & 0xFFFFFFFF == kind
    if kind:
        assert count[1] == (limit << 20) - _stats(opened)["InUse"]


def test_runs_may_be_concurrent(deep: bytes) -> None:
    answer = ffi.new("bool*", False)
    opened = open_session(deep)
    _call(_table(Provider, opened.state), "IsConcurrentRunSupported", answer)
    assert answer[0] is True


# ---- Sync


def test_synchronized_outputs_are_there(rng: np.random.Generator, deep: bytes) -> None:
    opened = open_session(deep)
    x = rng.normal(size=(64, 256)).astype("f")
    (want,) = opened.run(x=x)
    binding = opened.session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "gpu")
    opened.session.run_with_iobinding(binding)
    gpu = opened.state.gpu
    assert gpu is not None
    assert gpu._pending, "nobody has waited for the run"
    binding.synchronize_outputs()
    assert not gpu._pending
    assert gpu.finished(None)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], want)


def test_a_session_without_a_gpu_synchronizes(
    rng: np.random.Generator, deep: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factory, "open_backend", raises(AdapterError("no GPU")))
    opened = open_session(deep)
    binding = opened.session.io_binding()
    binding.bind_cpu_input("x", rng.normal(size=(4, 256)).astype("f"))
    binding.bind_output("y")
    binding.synchronize_inputs()
    opened.session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    assert np.isfinite(binding.copy_outputs_to_cpu()[0]).all()


# ---- what speaks against a GPU


@pytest.fixture
def details() -> Callable[[], tuple[int, str]]:
    """What onnxruntime tells of the first device of ours."""

    def ask() -> tuple[int, str]:
        device = next(d.device for d in onnxruntime.get_ep_devices() if d.ep_name == plugin.EP_NAME)
        found = pybind.get_hardware_device_ep_incompatibility_details(plugin.EP_NAME, device)
        assert found["error_code"] == 0
        return found["reasons_bitmask"], found["notes"] or ""

    return ask


@pytest.fixture
def kept_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Keeps a verdict of the adapter in a cache of its own."""
    adapter = enumeration.look(resolve())[0]
    monkeypatch.setenv("ORT_GPU_EP_CACHE_DIR", str(tmp_path))

    def keep(*disabled: tuple[str, str]) -> None:
        verdicts.write(resolve().cache_path, verdicts.key_of(adapter), verdicts.Verdict(disabled, "full"))

    return keep


def test_nothing_speaks_against_a_healthy_gpu(
    details: Callable[[], tuple[int, str]], kept_verdict: Callable[..., None]
) -> None:
    assert details() == (NONE, ""), "nobody has looked: nothing is known"
    kept_verdict()
    assert details() == (NONE, "")


def test_the_doctors_verdict_is_onnxruntimes_reason(
    details: Callable[[], tuple[int, str]], kept_verdict: Callable[..., None]
) -> None:
    kept_verdict((ADAPTER, "probe 'f32 arithmetic': FAIL (1.5 instead of 2.5)"))
    reason, notes = details()
    assert reason == DRIVER == int(pybind.OrtDeviceEpIncompatibilityReason.DRIVER_INCOMPATIBLE)
    assert "probe 'f32 arithmetic': FAIL (1.5 instead of 2.5)" in notes


def test_a_degraded_gpu_is_compatible_and_told_about(
    details: Callable[[], tuple[int, str]], kept_verdict: Callable[..., None]
) -> None:
    kept_verdict(("shader-f16", "probe 'half': FAIL"))
    assert details() == (NONE, "shader-f16 is not used: probe 'half': FAIL")


def test_drivers_that_fail_and_drivers_that_are_missing(
    details: Callable[[], tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enumeration, "look", raises(AdapterError("a driver ends the process")))
    assert details() == (DRIVER, "a driver ends the process")
    monkeypatch.setattr(enumeration, "look", lambda config: ())
    reason, notes = details()
    assert reason == MISSING
    assert notes.startswith("no GPU adapter")
    another = replace(enumeration.look_again(resolve().cache_path).adapters[0], vendor_id=0x1234, name="another GPU")
    monkeypatch.setattr(enumeration, "look", lambda config: (another,))
    # asked directly: the device may be the one that stands for any GPU
    reason, notes = incompatibility(resolve(), (0x5678, 1))
    assert reason == MISSING
    assert "another GPU" in notes


def test_a_cpu_is_no_device_for_the_provider() -> None:
    cpu = next(d.device for d in onnxruntime.get_ep_devices() if d.ep_name == "CPUExecutionProvider")
    found = pybind.get_hardware_device_ep_incompatibility_details(plugin.EP_NAME, cpu)
    assert found["reasons_bitmask"] == DEVICE == int(pybind.OrtDeviceEpIncompatibilityReason.DEVICE_INCOMPATIBLE)
    assert "no GPU" in found["notes"]


# ---- a run's own options


RUN_PROFILE = """
import ctypes, glob, json
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p

FREE, CREATE_ENV, SESSION, RUN, OPTIONS, RUN_OPTIONS, VALUE, MEMORY, REGISTER, DEVICES, APPEND, PROFILE = 2, 3, 8, 9, 10, 39, 49, 69, 301, 303, 304, 415
library = ctypes.CDLL(glob.glob(os.path.join(os.path.dirname(onnxruntime.__file__), "capi", "*onnxruntime.*[0-9]*"))[0])
library.OrtGetApiBase.restype = POINTER(c_void_p)
slots = ctypes.cast(ctypes.CFUNCTYPE(c_void_p, c_uint32)(library.OrtGetApiBase()[0])(26), POINTER(c_void_p))

def call(number, *arguments):
    given = [c_size_t(a) if isinstance(a, int) else ctypes.cast(a, c_void_p) if isinstance(a, (ctypes.Array, ctypes._Pointer)) else a for a in arguments]
    status = ctypes.CFUNCTYPE(c_void_p, *map(type, given))(slots[number])(*given)
    assert not status, ctypes.CFUNCTYPE(c_char_p, c_void_p)(slots[FREE])(status)

def made(number, *arguments):
    out = c_void_p()
    call(number, *arguments, ctypes.pointer(out))
    return out

model = make_model([node("MatMul", "x W", "h"), node("Softmax", "h", "y")], [info("x", [4, 8])], ["y"], {"W": np.eye(8, dtype="f")})
environment = made(CREATE_ENV, c_int(3), c_char_p(b"test"))
call(REGISTER, environment, c_char_p(b"ours"), c_char_p(plugin.get_library_path().encode()))
devices, count, options = c_void_p(), c_size_t(), made(OPTIONS)
call(DEVICES, environment, ctypes.pointer(devices), ctypes.pointer(count))
ours = (c_void_p * 1)(ctypes.cast(devices, POINTER(c_void_p))[count.value - 1])
call(APPEND, options, environment, ours, 1, (c_char_p * 1)(b"placement"), (c_char_p * 1)(b"gpu"), 1)
with plugin.capture() as seen:
    session = made(SESSION, environment, c_char_p(model), len(model), options)
x = np.random.default_rng(0).normal(size=(4, 8)).astype("f")
value = made(VALUE, made(MEMORY, c_int(0), c_int(0)), c_void_p(x.ctypes.data), x.nbytes, (c_int64 * 2)(4, 8), 2, c_int(1))
profiled = made(RUN_OPTIONS)
call(PROFILE, profiled, c_char_p(os.path.join(os.getcwd(), "one_run_").encode()))
for run_options in (c_void_p(), profiled, c_void_p()):
    call(RUN, session, run_options, (c_char_p * 1)(b"x"), (c_void_p * 1)(value.value), 1, (c_char_p * 1)(b"y"), 1, ctypes.pointer(c_void_p()))
events = json.load(open(glob.glob("one_run_*")[0]))
node_span, = [e for e in events if e["cat"] == "Node"]
kernels = [e for e in events if e["cat"] == "Kernel"]
assert [e["name"].partition("->")[0] for e in kernels] == ["MatMul", "Softmax"], events
for e in kernels:
    assert node_span["ts"] <= e["ts"] and e["ts"] + e["dur"] <= node_span["ts"] + node_span["dur"], (node_span, e)
assert seen[0].partitions[0].runs == 3 and seen[0].gpu.timer is None and seen[0].profiles == ()
os._exit(0)
"""


@pytest.mark.skipif(os.name == "nt", reason="paths of onnxruntime's C API are wide there")
def test_the_profile_of_one_run_has_its_kernels(python: Callable[..., Any]) -> None:
    """By the C API: Python's RunOptions have no profile."""
    done = python(RUN_PROFILE)
    assert done.returncode == 0, done.stderr
