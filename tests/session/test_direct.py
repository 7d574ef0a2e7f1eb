"""Runs that go past onnxruntime: the same answers, one submit, nothing made anew, several under way at once."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep.device.gpu import MAX_IN_FLIGHT
from ort_gpu_ep.errors import DeviceLostError, OutOfDeviceMemoryError
from ort_gpu_ep.plugin.direct import RUNS_BEFORE
from ort_gpu_ep.runtime.runs import MAX_STEADY, Steady
from ort_gpu_ep.webgpu import native, objects
from tests.patience import PATIENCE_S
from tests.session.conftest import assert_close, gpu_session, on_the_cpu
from tests.unit.graphs import model_of

pytestmark = pytest.mark.usefixtures("long_pauses", "brief_hangs")

WARM = RUNS_BEFORE + 2
"""Runs after which one of the same sizes has its buffers and its recording."""

KINDS = "(float[3, N] x, int64[3, N] i, bool[3, N] b) => (float[3, N] y, int64[3, N] j, bool[3, N] c, float[3] s) "
MODEL = KINDS + "{ y = Tanh(x) j = Add(i, i) c = Not(b) s = ReduceSum<keepdims=0>(x, axes) }"


@pytest.fixture
def many() -> bytes:
    """Inputs and outputs of several types; of 3 bools each row is no whole word."""
    return bytes(model_of(MODEL, {"axes": np.array([1])}).SerializeToString())


@pytest.fixture
def steady_runs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many runs went past onnxruntime."""
    counts, run = Counter[str](), Steady.run

    def counted(self: Steady, *arguments: Any) -> bool:
        done = run(self, *arguments)
        counts["done" if done else "refused"] += 1
        return done

    monkeypatch.setattr(Steady, "run", counted)
    return counts


def feeds_of(rng: np.random.Generator, n: int = 3) -> dict[str, Any]:
    return {
        "x": rng.standard_normal((3, n)).astype("f"),
        "i": rng.integers(-9, 9, (3, n)),
        "b": rng.integers(0, 2, (3, n)).astype(bool),
    }


def test_answers_are_onnxruntimes(many: bytes, rng: np.random.Generator, steady_runs: Counter[str]) -> None:
    session = gpu_session(many)
    for n in (3, 5, 3, 3, 5, 5, 3, 5, 3):
        feeds = feeds_of(rng, n)
        assert_close(session.run(None, feeds), on_the_cpu(many, feeds))
    assert steady_runs["done"] == 9 - 2 * RUNS_BEFORE


@pytest.mark.parametrize("names", [None, [], ["y"], ["c", "y"], ["s", "j", "c", "y"]])
def test_outputs_by_name(
    many: bytes, names: list[str] | None, rng: np.random.Generator, steady_runs: Counter[str]
) -> None:
    session, feeds = gpu_session(many), feeds_of(rng)
    for _ in range(WARM):
        assert_close(session.run(names, feeds), on_the_cpu(many, feeds, names))
    assert steady_runs["done"] == WARM - RUNS_BEFORE


def test_what_only_onnxruntime_takes(many: bytes, rng: np.random.Generator, steady_runs: Counter[str]) -> None:
    session, feeds = gpu_session(many), feeds_of(rng, 4)
    for _ in range(WARM):
        want = session.run(None, feeds)
    before = steady_runs["done"]
    given: list[dict[str, Any]] = [
        {**feeds, "x": np.asfortranarray(feeds["x"])},
        {**feeds, "x": onnxruntime.OrtValue.ortvalue_from_numpy(feeds["x"])},
        {**feeds, "i": feeds["i"].tolist()},
    ]
    for other in given:
        assert_close(session.run(None, other), want)
    assert_close(session.run(None, feeds, onnxruntime.RunOptions()), want)
    assert_close(session.run(["y", "y"], feeds), [want[0], want[0]])
    plain = onnxruntime.InferenceSession(many, providers=["CPUExecutionProvider"])
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (None, {**feeds, "x": feeds["x"].astype("d")}),
        (None, {**feeds, "x": feeds["x"][:2]}),
        (["nothing"], feeds),
        (None, {"x": feeds["x"]}),
        (None, {**feeds, "z": feeds["x"]}),
    ]
    for names, bad in wrong:
        with pytest.raises(Exception) as theirs:  # noqa: PT011  whatever onnxruntime raises
            plain.run(names, bad)
        for _ in range(WARM):
            with pytest.raises(type(theirs.value)):
                session.run(names, bad)
    assert steady_runs["done"] == before
    assert session.stats()["fallbacks"] == 0


def test_a_scalar_output(rng: np.random.Generator) -> None:
    model = model_of("(float[4] x) => (float y) { y = ReduceSum<keepdims=0>(x) }").SerializeToString()
    session, x = gpu_session(model), rng.standard_normal(4).astype("f")
    for _ in range(WARM):
        (got,), (want,) = session.run(None, {"x": x}), on_the_cpu(model, {"x": x})
        assert type(got) is type(want)
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_results_are_the_callers(mlp: bytes, x: np.ndarray[Any, Any]) -> None:
    session = gpu_session(mlp)
    results = [session.run(None, {"x": x * k}) for k in range(WARM + 2)]
    for k, got in enumerate(results):
        assert all(a.flags.writeable for a in got)
        assert_close(got, on_the_cpu(mlp, {"x": x * k}))


def test_one_submit_and_nothing_made_anew(mlp: bytes, x: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    session = gpu_session(mlp)
    for _ in range(WARM):
        session.run(None, {"x": x})
    stats, made = session.state.gpu.stats, Counter[str]()
    for kind in (
        "create_buffer",
        "create_bind_group",
        "create_bind_group_layout",
        "create_compute_pipeline",
        "create_command_encoder",
    ):
        method = getattr(objects.Device, kind)
        monkeypatch.setattr(
            objects.Device, kind, lambda *a, kind=kind, method=method: (made.update([kind]), method(*a))[1]
        )
    before = stats.submits, stats.uploads, stats.downloads
    for _ in range(3):
        session.run(None, {"x": x})
    assert (stats.submits, stats.uploads, stats.downloads) == (before[0] + 3, before[1] + 3, before[2] + 6)
    assert made == {"create_command_encoder": 3}, "each records the next one, with its readback"


def test_a_recording_of_buffers_that_are_gone_is_not_used(
    mlp: bytes, rng: np.random.Generator, steady_runs: Counter[str]
) -> None:
    session = gpu_session(mlp)
    gpu = session.state.gpu
    small, large = (rng.standard_normal((n, 16)).astype("f") for n in (3, 3000))
    for _ in range(WARM):
        session.run(None, {"x": small})
    (prepared,) = session.state.partitions[0].program.compiled.general
    version = prepared.version
    assert_close(session.run(None, {"x": large}), on_the_cpu(mlp, {"x": large}))
    assert prepared.version > version, "its intermediate values have other buffers now"
    gpu.trim()  # a submission that names those before would end the process
    before = steady_runs["done"]
    for _ in range(2):
        assert_close(session.run(None, {"x": small}), on_the_cpu(mlp, {"x": small}))
    assert steady_runs["done"] == before + 2


def test_counts_are_those_of_other_runs(many: bytes, rng: np.random.Generator) -> None:
    session, feeds, seen = gpu_session(many), feeds_of(rng), []
    for _ in range(WARM + 1):
        before = session.stats()
        session.run(None, feeds)
        after = session.stats()
        seen.append(
            (
                {k: after[k] - before[k] for k in after if k not in ("last_run", "weights", "weights_nbytes")},
                {k: sorted(v) for k, v in after["last_run"].items()},
            )
        )
    assert all(one == seen[0] for one in seen), seen


def test_threads_have_buffers_of_their_own(mlp: bytes, rng: np.random.Generator, steady_runs: Counter[str]) -> None:
    session = gpu_session(mlp)
    xs = [rng.standard_normal((5, 16)).astype("f") for _ in range(12)]
    wants = [on_the_cpu(mlp, {"x": x}) for x in xs]
    for _ in range(WARM):
        session.run(None, {"x": xs[0]})
    barrier = threading.Barrier(12)

    def some(k: int) -> None:
        barrier.wait()
        for _ in range(20):
            assert_close(session.run(None, {"x": xs[k]}), wants[k])

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(some, range(12)))
    (form,) = session.direct.partition.forms.values()
    steady = form.steady
    assert len(steady.idle) == steady.made <= MAX_IN_FLIGHT
    assert steady_runs["done"] > 100


def test_what_is_kept_for_sizes_goes_with_their_buffers(mlp: bytes, rng: np.random.Generator) -> None:
    session = gpu_session(mlp)
    for rows in range(2, 4 + MAX_STEADY):  # of one plan
        x = rng.standard_normal((rows, 16)).astype("f")
        for _ in range(WARM):
            assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    forms = session.direct.partition.forms
    assert len(forms) == MAX_STEADY
    assert not any(form.steady.closed for form in forms.values())


def test_runs_of_two_threads_are_under_way_together(
    mlp: bytes, x: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = gpu_session(mlp)
    for _ in range(WARM):
        want = session.run(None, {"x": x})
    both, wait = threading.Barrier(2), native.wait

    def meet(*arguments: Any) -> None:
        both.wait(PATIENCE_S)  # breaks where one run waits for the other's end
        wait(*arguments)

    monkeypatch.setattr(native, "wait", meet)
    with ThreadPoolExecutor(2) as pool:
        for got in pool.map(lambda _: session.run(None, {"x": x}), range(2)):
            assert_close(got, want)


@pytest.mark.parametrize(("kind", "error"), [("lost", DeviceLostError), ("oom", OutOfDeviceMemoryError)])
def test_a_fault_is_answered_by_the_cpu(kind: str, error: type[Exception], mlp: bytes, x: np.ndarray[Any, Any]) -> None:
    session = gpu_session(mlp, faults=f"{kind}@{WARM};seed=11")
    for _ in range(WARM + 2):
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert any(error.__name__ in event for event in session.explain().events)
    assert session.stats()["fallbacks"] >= 1
    strict = gpu_session(mlp, faults=f"{kind}@{WARM};seed=12", strict=1)
    for _ in range(WARM - 1):
        strict.run(None, {"x": x})
    with pytest.raises(error):
        strict.run(None, {"x": x})


def test_a_corrupt_value_comes_in_the_run_it_was_asked_for(mlp: bytes, x: np.ndarray[Any, Any]) -> None:
    """Also where the runs before would have been steady ones."""
    session, want = gpu_session(mlp, faults=f"corrupt@{WARM + 2};seed=14"), on_the_cpu(mlp, {"x": x})
    right = [
        all(np.allclose(g, w, 1e-3, 1e-3) for g, w in zip(session.run(None, {"x": x}), want, strict=True))
        for _ in range(WARM + 4)
    ]
    assert right == [number != WARM + 1 for number in range(WARM + 4)]


def test_a_run_that_hangs_frees_nothing_too_early(mlp: bytes, x: np.ndarray[Any, Any]) -> None:
    session = gpu_session(mlp, faults=f"hang@{WARM};seed=13")
    for _ in range(WARM + 1):
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert any("DeviceHangError" in event for event in session.explain().events)
    del session
    gc.collect()


def test_the_memory_of_a_closed_session(mlp: bytes, x: np.ndarray[Any, Any]) -> None:
    gpu_session(mlp).run(None, {"x": x})
    session = gpu_session(mlp)
    gpu = session.state.gpu
    gpu.trim()
    before = gpu.stats.allocated_nbytes - sum(p.program.weight_nbytes for p in session.state.partitions)
    for n in (1, 2, 3, 4, 5, 6):
        for _ in range(WARM):
            session.run(None, {"x": x[:n]})
    del session
    gc.collect()
    gpu.trim()
    assert gpu.stats.allocated_nbytes <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_leaves_the_gpu_alone(python: Callable[..., Any]) -> None:
    done = python("""
        import os
        import numpy as np
        import onnxruntime
        import ort_gpu_ep as ort
        from tests.unit.graphs import model_of

        onnxruntime.set_default_logger_severity(4)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1       # a child does not have a pool's threads
        model = model_of("(float[4] x) => (float[4] y) { y = Tanh(x) }").SerializeToString()
        session, x = ort.InferenceSession(model, settings, provider_options={"placement": "gpu"}), np.linspace(-1, 1, 4, dtype="f")
        for _ in range(5):
            session.run(None, {"x": x})
        assert session.direct.partition.forms
        child = os.fork()
        if child == 0:
            np.testing.assert_allclose(session.run(None, {"x": x})[0], np.tanh(x), rtol=1e-5)
            os._exit(0 if session.stats()["fallbacks"] == 1 else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        np.testing.assert_allclose(session.run(None, {"x": x})[0], np.tanh(x), rtol=1e-5)
        assert session.stats()["fallbacks"] == 0
    """)
    assert done.returncode == 0, (done.stdout, done.stderr)


def test_a_profile_is_of_onnxruntimes_runs(
    mlp: bytes, x: np.ndarray[Any, Any], tmp_path: Any, steady_runs: Counter[str]
) -> None:
    settings = onnxruntime.SessionOptions()
    settings.enable_profiling, settings.profile_file_prefix = True, str(tmp_path / "profile")
    session = gpu_session(mlp, settings)
    for _ in range(WARM):
        session.run(None, {"x": x})
    assert not steady_runs
    session.end_profiling()
