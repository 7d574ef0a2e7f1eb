"""What a session holds on the device goes when the session goes."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_gpu_ep as ort
from ort_gpu_ep import plugin
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.buffers import POOL_AGE_S
from ort_gpu_ep.errors import OutOfDeviceMemoryError
from ort_gpu_ep.ir.types import MAX_TOLD
from ort_gpu_ep.kernels import host
from ort_gpu_ep.runtime import prepared
from ort_gpu_ep.runtime.prepared import MAX_TURNS, OFTEN
from ort_gpu_ep.webgpu import objects
from tests.unit.graphs import model_of

Array = np.ndarray[Any, Any]
SIDE = 160
WEIGHT_NBYTES = SIDE * SIDE * 4


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    onnxruntime.set_default_logger_severity(4)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    """The device of the sessions here, with no memory limit afterwards."""
    opened = Gpu.open(Config())
    limit = opened.memory_limit_nbytes
    yield opened
    opened.memory_limit_nbytes = limit


def layers(rng: np.random.Generator) -> bytes:
    """Weights, intermediate values of two shapes, shape arithmetic, a constant of the plan."""
    text = """(float[N, 160] x) => (float[N, 160] y, float[A, B] z, int64[2] s) {
        a = MatMul(x, w) b = Softmax(a) c = MatMul(b, v) y = Softmax(c)
        s = Shape(x) t = Transpose(c) u = Softmax(t) z = Reshape(u, s) }"""
    constants = {n: rng.standard_normal((SIDE, SIDE)).astype("f") for n in "wv"}
    return bytes(model_of(text, constants).SerializeToString())


@pytest.fixture
def model(rng: np.random.Generator) -> bytes:
    return layers(rng)


def open_session(model: bytes, **options: object) -> Any:
    return ort.InferenceSession(model, provider_options={"placement": "gpu", **options})


def use(model: bytes, rng: np.random.Generator, runs: int = 3, **options: object) -> Any:
    """A session that has run with a few shapes."""
    session = open_session(model, **options)
    for rows in range(1, runs + 1):
        session.run(None, {"x": rng.standard_normal((rows, SIDE)).astype("f")})
    return session


def live(gpu: Gpu) -> dict[str, int]:
    """wgpu-native's own count of each type of object, and the wrapper's."""
    gc.collect()
    gpu.finish()
    gc.collect()
    gpu.finish()
    wrappers = Counter(type(o) for o in gc.get_objects() if isinstance(o, objects.Object))
    return {f"native {kind}": count for kind, count in objects.live().items()} | {
        f"wrapper {kind.__name__}": wrappers[kind] for kind in objects.Object.__subclasses__()
    }


GROWS_WITH_SESSIONS = ("Buffer", "BindGroup")
"""A session that is alive holds some of these."""

CACHED = ("ComputePipeline", "PipelineLayout", "BindGroupLayout", "ShaderModule")
"""Made once per shader and kept for the next session."""

CONSTANT = ("Adapter", "Device", "Queue")
NEVER = ("RenderBundle", "RenderPipeline", "Sampler", "Texture", "TextureView", "PipelineCache", "QuerySet")
PASSING = ("CommandBuffer",)
"""At most one command buffer a plan is recorded ahead; it goes with the session."""


def test_every_type_of_object_is_looked_at(gpu: Gpu) -> None:
    types = {k.removeprefix("native ") for k in live(gpu) if k.startswith("native ")}
    assert types == {*GROWS_WITH_SESSIONS, *CACHED, *CONSTANT, *NEVER, *PASSING}


@pytest.fixture(scope="module")
def counts() -> dict[str, tuple[int, int, int]]:
    """Type -> its count after a first session, with a session open, and after twenty more sessions."""
    gpu, rng = Gpu.open(Config()), np.random.default_rng(4)
    model = layers(rng)
    use(model, rng)
    first = live(gpu)
    session = use(model, rng)
    during = live(gpu)
    assert session.explain().count("cpu") == 0
    del session
    for _ in range(20):
        use(model, rng)
    last = live(gpu)
    return {k: (first[k], during[k], last[k]) for k in first}


def test_twenty_sessions_leave_nothing(counts: dict[str, tuple[int, int, int]]) -> None:
    assert {k: v for k, v in counts.items() if v[2] > v[0]} == {}


def test_what_a_session_holds(counts: dict[str, tuple[int, int, int]]) -> None:
    """The counts move with a session: they would show a leak."""
    for kind in GROWS_WITH_SESSIONS:
        before, during, after = counts[f"native {kind}"]
        assert during > before >= after
    for kind in (*CACHED, *CONSTANT):
        before, during, after = counts[f"native {kind}"]
        assert before == during == after > 0 or kind == "ShaderModule"
    for kind in NEVER:
        assert counts[f"native {kind}"][2] == 0


def test_statistics_return_to_where_they_were(gpu: Gpu, model: bytes, rng: np.random.Generator) -> None:
    use(model, rng)
    gc.collect()
    gpu.trim()
    buffers, nbytes = gpu.stats.buffers, gpu.stats.allocated_nbytes
    session = use(model, rng)
    assert gpu.stats.allocated_nbytes >= nbytes + 2 * WEIGHT_NBYTES
    del session
    for _ in range(20):
        use(model, rng)
    gc.collect()
    gpu.trim()
    assert (gpu.stats.buffers, gpu.stats.allocated_nbytes, gpu.stats.pooled_nbytes) == (buffers, nbytes, 0)


def test_the_statistics_count_what_wgpu_counts(gpu: Gpu, model: bytes, rng: np.random.Generator) -> None:
    session = use(model, rng)
    before = live(gpu)["native Buffer"] - gpu.stats.buffers
    del session
    gc.collect()
    gpu.trim()
    assert live(gpu)["native Buffer"] - gpu.stats.buffers == before
    assert before >= 0


def test_no_table_of_the_plugin_is_left(model: bytes, rng: np.random.Generator) -> None:
    gc.collect()
    before = plugin.live_tables()
    session = use(model, rng)
    assert plugin.live_tables() != before
    del session
    gc.collect()
    assert plugin.live_tables() == before


def test_plans_are_bounded(gpu: Gpu, model: bytes, rng: np.random.Generator) -> None:
    """Many shapes: one plan for one row, one for more, and no more buffers than their two sets (the pool aside)."""
    session = use(model, rng, runs=2)
    gpu.trim()
    after_some, counted = live(gpu)["native Buffer"], gpu.stats.buffers
    program = session.state.partitions[0].program
    assert program.planned == 2
    for rows in range(3, 4 * MAX_TOLD):
        session.run(None, {"x": rng.standard_normal((rows, SIDE)).astype("f")})
    assert program.planned == 2
    assert len(session.explain().plans) == MAX_TOLD
    gpu.trim()
    assert live(gpu)["native Buffer"] <= after_some + 2
    assert gpu.stats.buffers <= counted + 2


def test_activations_follow_the_sizes_of_the_runs(
    gpu: Gpu,
    model: bytes,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One large run among small ones: its memory is kept for the next large one, but much of it not for ever."""
    monkeypatch.setattr(prepared, "SHRINK_NBYTES", 1 << 20)

    def run(rows: int) -> int:
        session.run(None, {"x": rng.standard_normal((rows, SIDE)).astype("f")})
        gpu.trim()
        return gpu.stats.allocated_nbytes

    session = use(model, rng, runs=2)
    before = run(20)
    large = run(2000)
    assert large > before + 3 * 1980 * SIDE * 4
    assert run(30) == large
    for _ in range(2 * OFTEN):
        session.run(None, {"x": np.zeros((30, SIDE), "f")})
    assert run(30) < before + (large - before) / 10


def test_bindings_are_bounded(gpu: Gpu, model: bytes, rng: np.random.Generator) -> None:
    """Always new output buffers, kept by the caller: bind groups go when their set of buffers is the oldest."""
    session = use(model, rng, runs=1)
    x = onnxruntime.OrtValue.ortvalue_from_numpy(rng.standard_normal((1, SIDE)).astype("f"))
    kept, counts = [], []
    for _ in range(3 * MAX_TURNS):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x)
        for name in "yzs":
            binding.bind_output(name, "gpu")
        session.run_with_iobinding(binding)
        binding.copy_outputs_to_cpu()
        kept.append(binding)
        gc.collect()
        gpu.finish()
        counts.append(objects.live()["BindGroup"])
    assert counts[MAX_TURNS - 1] > counts[1]
    assert max(counts) == max(counts[: MAX_TURNS + 2])
    assert len(kept) == 3 * MAX_TURNS


def test_pipelines_are_shared_by_sessions(gpu: Gpu, model: bytes, rng: np.random.Generator) -> None:
    use(model, rng)
    before = live(gpu)["native ComputePipeline"]
    sessions = [use(model, rng) for _ in range(3)]
    assert live(gpu)["native ComputePipeline"] == before
    assert len(sessions) == 3


def test_host_evaluators_are_bounded() -> None:
    """Each session has nodes of its own: what is kept for them must not grow for ever."""
    info = host._evaluator.cache_info()
    assert info.maxsize is not None
    assert info.currsize <= info.maxsize <= 4096


# ---- memory_limit_mb


@pytest.fixture
def heavy(rng: np.random.Generator) -> bytes:
    """4 MiB of weights."""
    text = "(float[N, 1024] x) => (float[N, 1024] y) { a = MatMul(x, w) y = Softmax(a) }"
    return bytes(model_of(text, {"w": rng.standard_normal((1024, 1024)).astype("f") / 32}).SerializeToString())


@pytest.fixture
def wide() -> bytes:
    """No weights, but as many activations as the caller likes."""
    return bytes(
        model_of(
            "(float[N, 1024] x) => (float[N, 1024] y) { a = Softmax(x) y = Softmax<axis=0>(a) }"
        ).SerializeToString()
    )


@pytest.fixture
def limited(gpu: Gpu) -> Callable[..., Any]:
    """Sessions that may hold 2 MiB."""
    return lambda model, **options: open_session(model, memory_limit_mb=2, **options)


def reference(model: bytes, x: Array) -> Array:
    return np.asarray(onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0])


def test_weights_that_do_not_fit_leave_the_partition_to_the_cpu(
    limited: Any, gpu: Gpu, heavy: bytes, rng: np.random.Generator
) -> None:
    session = limited(heavy)
    x = rng.standard_normal((3, 1024)).astype("f")
    np.testing.assert_allclose(session.run(None, {"x": x})[0], reference(heavy, x), rtol=1e-5)
    events = session.explain().events
    assert any("MemoryLimitError" in e and "raise memory_limit_mb" in e for e in events), events
    assert session.stats()["fallbacks"] >= 1
    assert 0 <= session.state.backend.allowance.held_nbytes <= 2 << 20


def test_weights_that_do_not_fit_raise_in_strict_mode(limited: Any, heavy: bytes) -> None:
    with pytest.raises(OutOfDeviceMemoryError, match="memory_limit_mb") as caught:
        limited(heavy, strict=1)
    assert isinstance(caught.value, MemoryError)


def test_activations_that_do_not_fit_go_to_the_cpu_for_that_run(
    limited: Any, gpu: Gpu, wide: bytes, rng: np.random.Generator
) -> None:
    session = limited(wide)
    small, large = (rng.standard_normal((n, 1024)).astype("f") for n in (4, 4096))
    for x, fallbacks in ((small, 0), (large, 1), (small, 1)):
        np.testing.assert_allclose(session.run(None, {"x": x})[0], reference(wide, x), rtol=1e-4, atol=1e-9)
        assert session.stats()["fallbacks"] == fallbacks, session.explain().events
        assert 0 < session.state.backend.allowance.held_nbytes <= 2 << 20


def test_activations_that_do_not_fit_raise_in_strict_mode(limited: Any, wide: bytes, rng: np.random.Generator) -> None:
    session = limited(wide, strict=1)
    small, large = (rng.standard_normal((n, 1024)).astype("f") for n in (4, 4096))
    with pytest.raises(OutOfDeviceMemoryError, match="memory_limit_mb"):
        session.run(None, {"x": large})
    np.testing.assert_allclose(session.run(None, {"x": small})[0], reference(wide, small), rtol=1e-4, atol=1e-9)


def test_a_freed_buffer_nobody_wants_goes_back_to_the_driver(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.trim()
    before = gpu.stats.buffers
    old, young = gpu.allocate(5000), gpu.allocate(9000)
    gpu.free(old)
    assert gpu.stats.buffers == before + 2  # freed buffers are kept for the next run
    later_s = time.monotonic() + POOL_AGE_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later_s)
    gpu.free(young)
    assert gpu.stats.buffers == before + 1
    assert gpu.allocate(9000) is young
    gpu.free(young)
