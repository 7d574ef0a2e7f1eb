"""memory_limit_mb and hang_timeout_ms are a session's own, on a device that it shares with others."""

from __future__ import annotations

import gc
import json
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

import ort_gpu_ep as ort
from ort_gpu_ep.device import Buffer
from ort_gpu_ep.device.allowance import DENSE, REORDERED, RUNS, VALUES, WEIGHTS, current
from ort_gpu_ep.errors import MemoryLimitError, OutOfDeviceMemoryError
from ort_gpu_ep.webgpu import native
from tests.insides import state_of
from tests.session.conftest import gpu_session, on_the_cpu
from tests.unit.graphs import model_of

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def heavy() -> bytes:
    """4 MiB of weights."""
    weights = np.random.default_rng(5).standard_normal((1024, 1024)).astype("f") / 32
    return bytes(
        model_of(
            "(float[N, 1024] x) => (float[N, 1024] y) { a = MatMul(x, w) y = Softmax(a) }", {"w": weights}
        ).SerializeToString()
    )


@pytest.fixture
def x(rng: np.random.Generator) -> Array:
    return rng.standard_normal((3, 1024)).astype("f")


def answers(session: Any, model: bytes, x: Array) -> int:
    """Runs it; how often the CPU had to answer."""
    np.testing.assert_allclose(session.run(None, {"x": x})[0], on_the_cpu(model, {"x": x})[0], rtol=1e-4, atol=1e-7)
    return int(session.stats()["fallbacks"])


def held(session: Any) -> int:
    return int(state_of(session).backend.allowance.held_nbytes)


@pytest.mark.parametrize("closed", [True, False])
def test_a_limit_is_its_sessions_own(closed: bool, heavy: bytes, x: Array) -> None:
    small = gpu_session(heavy, memory_limit_mb=2)
    assert answers(small, heavy, x) >= 1
    assert any("memory_limit_mb allows 2097152 B" in event for event in small.explain().events)
    if closed:
        del small
        gc.collect()
    for options in ({}, {"memory_limit_mb": 64}):
        session = gpu_session(heavy, **options, strict=1)
        assert answers(session, heavy, x) == 0
        assert held(session) >= 4 << 20
    with pytest.raises(OutOfDeviceMemoryError, match="memory_limit_mb"):
        gpu_session(heavy, memory_limit_mb=2, strict=1)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_session_at_its_limit_does_not_take_the_gpu_from_others(isolation: str, heavy: bytes, x: Array) -> None:
    """However often it fails: only failures of the adapter make sessions leave it alone."""
    other = gpu_session(heavy, memory_limit_mb=64) if isolation == "none" else None
    small, large = gpu_session(heavy, memory_limit_mb=6, isolation=isolation), np.tile(x, (300, 1))
    for count in range(1, 13):
        assert answers(small, heavy, large) == count
    assert not [event for event in small.explain().events if "left alone" in event]
    if other is not None:
        assert answers(other, heavy, x) == 0


def test_many_sessions_have_as_much_each(heavy: bytes, x: Array) -> None:
    """Whatever the others hold."""
    sessions = [gpu_session(heavy, memory_limit_mb=6, strict=1) for _ in range(4)]
    assert [answers(s, heavy, x) for s in sessions] == [0] * 4
    assert all(4 << 20 <= held(s) <= 6 << 20 for s in sessions)


def test_what_a_session_gives_back_it_may_have_again(x: Array) -> None:
    model = bytes(
        model_of(
            "(float[N, 1024] x) => (float[N, 1024] y) { a = Softmax(x) y = Softmax<axis=0>(a) }"
        ).SerializeToString()
    )
    session = gpu_session(model, memory_limit_mb=4)
    for rows, falls in ((4, False), (4096, True), (64, False), (4096, True), (5, False)):
        state_of(session).gpu.circuit.reset()
        before = session.stats()["fallbacks"]
        given = np.random.default_rng(rows).standard_normal((rows, 1024)).astype("f")
        np.testing.assert_allclose(
            session.run(None, {"x": given})[0], on_the_cpu(model, {"x": given})[0], rtol=1e-4, atol=1e-9
        )
        assert (session.stats()["fallbacks"] > before) is falls
        assert 0 <= held(session) <= 4 << 20
    allowance = state_of(session).backend.allowance
    del session
    gc.collect()
    assert allowance.held_nbytes == 0


def test_values_on_the_device_count_for_their_session(heavy: bytes, x: Array) -> None:
    session = gpu_session(heavy, strict=1)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "gpu")
    session.run_with_iobinding(binding)
    before = held(session)
    values = [session.create_ortvalue_from_shape_and_type([64, 1024], np.float32, "gpu") for _ in range(4)]
    for value in values:
        value.update_inplace(np.ones((64, 1024), "f"))
    assert held(session) - before >= 4 * 64 * 1024 * 4
    del values, value
    assert held(session) == before


def counted_one_by_one(session: Any) -> Counter[str]:
    """Bytes of all buffers that count for a session, by what they are for."""
    allowance, found = state_of(session).backend.allowance, Counter[str]()
    for buffer in (b for b in gc.get_objects() if isinstance(b, Buffer)):
        for owner, use in buffer.users:
            found[use] += buffer.nbytes if owner is allowance else 0
    return +found


def image_network() -> bytes:
    """Two 3 x 3 convolutions of 64 channels, whose weights Winograd's algorithm transforms where it is used."""
    rng = np.random.default_rng(3)
    weights = {n: rng.standard_normal((64, 64, 3, 3)).astype("f") / 24 for n in ("v", "w")}
    text = (
        "(float[1, 64, 28, 28] x) => (float[1, 64, 28, 28] y) "
        "{ a = Conv<pads=[1, 1, 1, 1]>(x, v) b = Relu(a) y = Conv<pads=[1, 1, 1, 1]>(b, w) }"
    )
    return bytes(model_of(text, weights).SerializeToString())


def test_the_table_of_device_memory_is_what_the_limit_counts(heavy: bytes, x: Array) -> None:
    other = gpu_session(heavy, strict=1)
    answers(other, heavy, x)
    image = np.random.default_rng(1).standard_normal((1, 64, 28, 28)).astype("f")
    for model, feeds in ((heavy, x), (image_network(), image)):
        session = gpu_session(model, strict=1, memory_limit_mb=64, winograd=1)
        for _ in range(4):  # the later ones have buffers of their own
            session.run(None, {"x": feeds})
        binding = session.io_binding()
        binding.bind_cpu_input("x", feeds)
        binding.bind_output("y", "gpu")
        session.run_with_iobinding(binding)
        found = session.explain().device_memory
        assert found is not None
        assert found.session_nbytes == held(session) == counted_one_by_one(session).total()
        assert {use: n for use, n in found.session.items() if n} == counted_one_by_one(session)
        weights = sum(found.session[use] for use in (WEIGHTS, REORDERED, DENSE))
        assert weights == sum(p.program.weight_nbytes for p in state_of(session).partitions)
        assert all(found.session[use] for use in (RUNS, VALUES))
        assert found.limit_nbytes == 64 << 20
        stats = state_of(session).gpu.stats
        assert (found.process_nbytes, found.waiting_nbytes) == (stats.allocated_nbytes, stats.pooled_nbytes)
        every = [
            b
            for b in gc.get_objects()
            if isinstance(b, Buffer) and b.forgotten.alive and b.forgotten.peek()[2][0] is stats
        ]
        assert found.process_nbytes == sum(b.nbytes for b in every)
        assert found.process_nbytes >= found.session_nbytes + held(other) + found.staging_nbytes + found.waiting_nbytes
        text, data = str(session.explain()), session.explain().as_dict()["device_memory"]
        assert "memory_limit_mb allows 64.0 MiB" in text
        assert f"  {RUNS}: " in text
        assert json.loads(json.dumps(data))["session_nbytes"] == found.session_nbytes
        del session, binding
        gc.collect()


def test_a_refusal_names_what_the_table_adds_up_to(x: Array) -> None:
    model = bytes(
        model_of(
            "(float[N, 1024] x) => (float[N, 1024] y) { a = Softmax(x) y = Softmax<axis=0>(a) }"
        ).SerializeToString()
    )
    session = gpu_session(model, memory_limit_mb=4)
    session.run(None, {"x": x})
    before = session.explain().device_memory
    with pytest.raises(MemoryLimitError, match=f"holds {before.session_nbytes} B"), state_of(session).allowance:
        state_of(session).gpu.allocate(4 << 20)
    assert session.explain().device_memory.session == before.session


def test_no_table_without_a_device_in_this_process(mlp: bytes) -> None:
    session = gpu_session(mlp, isolation="process")
    session.run(None, {"x": np.ones((2, 16), "f")})
    assert session.explain().device_memory is None
    assert session.explain().as_dict()["device_memory"] is None
    assert "device memory of" not in str(session.explain())


def test_a_time_limit_is_its_sessions_own(mlp: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, wait = set[float](), native.wait
    monkeypatch.setattr(native, "wait", lambda gpu, *a: (seen.add(gpu.hang_timeout_s), wait(gpu, *a))[1])
    sessions = {seconds: gpu_session(mlp, hang_timeout_ms=int(seconds * 1e3)) for seconds in (50.0, 70.0)}
    for seconds, session in sessions.items():
        for rows in (1, 2, 2, 2, 2):
            seen.clear()
            thread = threading.Thread(target=session.run, args=(None, {"x": np.ones((rows, 16), "f")}))
            thread.start()
            thread.join()
            assert seen == {seconds}
    assert current() is None


def test_the_worker_has_the_limit_of_its_sessions(heavy: bytes, x: Array) -> None:
    small = ort.InferenceSession(
        heavy, provider_options={"placement": "gpu", "isolation": "process", "memory_limit_mb": 2}
    )
    assert answers(small, heavy, x) >= 1
    large = ort.InferenceSession(
        heavy, provider_options={"placement": "gpu", "isolation": "process", "memory_limit_mb": 64}
    )
    assert answers(large, heavy, x) == 0
