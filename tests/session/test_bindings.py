"""Bound inputs in host memory that change in place: each run reads them anew, wherever it happens, as the CPU provider
does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gpu_ep as ort
from ort_gpu_ep.plugin import COPIES, plain
from ort_gpu_ep.plugin.bound import BoundRun
from ort_gpu_ep.private import OrtBinding
from tests.session.conftest import gpu_session, on_the_cpu
from tests.unit.graphs import model_of

Array = np.ndarray[Any, Any]
CPU = "CPUExecutionProvider"
KINDS: dict[str, dict[str, object]] = {
    "auto": {},
    "gpu": {"placement": "gpu"},
    "cpu": {"placement": "cpu"},
    "process": {"placement": "gpu", "isolation": "process"},
    "patched": {"placement": "gpu"},
}


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, auto: Callable[..., Any], tmp_path: Path) -> Any:
    options = KINDS[request.param]
    if request.param == "patched":
        with ort.patch({**options, "cache_dir": str(tmp_path)}, say=False):
            yield onnxruntime.InferenceSession
    else:
        with nullcontext():
            yield lambda model: auto(model, **options)


def by_array(binding: Any, x: Array) -> Callable[[Array], object]:
    binding.bind_cpu_input("x", x)
    return lambda new: np.copyto(x, new)


def by_pointer(binding: Any, x: Array) -> Callable[[Array], object]:
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    return lambda new: np.copyto(x, new)


def by_number(binding: Any, x: Array) -> Callable[[Array], object]:
    binding.bind_input(
        name="x", device_type="cpu", device_id=0, element_type=1, shape=list(x.shape), buffer_ptr=x.ctypes.data
    )
    return lambda new: np.copyto(x, new)


def by_value(binding: Any, x: Array) -> Callable[[Array], object]:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x)
    binding.bind_ortvalue_input("x", value)
    return value.update_inplace


def by_view(binding: Any, x: Array) -> Callable[[Array], object]:
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(x.shape, np.float32)
    view = value.numpy()
    binding.bind_ortvalue_input("x", value)
    np.copyto(view, x)
    return lambda new: np.copyto(view, new)


def by_device_value(binding: Any, x: Array) -> Callable[[Array], object]:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu")
    binding.bind_ortvalue_input("x", value)
    return value.update_inplace


WAYS = [by_array, by_pointer, by_number, by_value, by_view, by_device_value]


def test_what_is_bound_is_read_in_each_run(opened: Any, mlp: bytes, rng: np.random.Generator) -> None:
    session = opened(mlp)
    for way in WAYS:
        for make in (session.io_binding, lambda: onnxruntime.IOBinding(session)):
            if way is by_device_value and session.get_providers() == [CPU]:
                continue
            binding, x = make(), rng.standard_normal((5, 16)).astype("f")
            change = way(binding, x.copy())
            binding.bind_output("y")
            for k in range(4):
                if k != 1:  # the first one comes after binding and before any run
                    x = rng.standard_normal((5, 16)).astype("f")
                    change(x)
                if k == 2:
                    binding.synchronize_inputs()
                session.run_with_iobinding(binding)
                np.testing.assert_allclose(
                    binding.copy_outputs_to_cpu()[0],
                    on_the_cpu(mlp, {"x": x}, ["y"])[0],
                    rtol=2e-5,
                    atol=2e-5,
                    err_msg=f"{way.__name__}, run {k}",
                )


@pytest.mark.parametrize("way", WAYS)
def test_what_is_bound_is_read_in_runs_that_are_alike(
    rng: np.random.Generator, way: Callable[[Any, Array], Callable[[Array], object]]
) -> None:
    """They go by what the run before bound, from some run on."""
    model = bytes(model_of("(float[N, 16] x) => (float[N, 16] y) { a = Tanh(x) y = Add(a, x) }").SerializeToString())
    session, gone = gpu_session(model), list[bool]()
    binding = session.io_binding()
    change = way(binding, np.zeros((5, 16), "f"))
    binding.bind_output("y")
    usual = BoundRun._by_recording

    def told(*arguments: Any) -> bool:
        gone.append(usual(*arguments))
        return gone[-1]

    with patch.object(BoundRun, "_by_recording", told):
        for _ in range(8):
            x = rng.standard_normal((5, 16)).astype("f")
            change(x)
            session.run_with_iobinding(binding)
            np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], np.tanh(x) + x, rtol=2e-5, atol=2e-5)
    assert sum(gone) >= 3 or way in (by_pointer, by_number)  # of those onnxruntime does the run


def test_state_that_a_run_writes_is_read_by_the_next(opened: Any) -> None:
    model = bytes(
        model_of(
            "(float[4] x) => (float[4] y) { t = Tanh(x) y = Add(t, o) }", {"o": np.ones(1, "f")}
        ).SerializeToString()
    )
    session, want = opened(model), np.arange(4, dtype="f")
    state = onnxruntime.OrtValue.ortvalue_from_numpy(want.copy())
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", state)
    binding.bind_ortvalue_output("y", state)
    for _ in range(5):
        session.run_with_iobinding(binding)
        want = np.tanh(want) + 1
        np.testing.assert_allclose(state.numpy(), want, rtol=2e-5)


def test_what_can_not_be_bound_is_refused_at_once(opened: Any, mlp: bytes) -> None:
    x, answers = np.ones((5, 16), "f"), []
    for session in (opened(mlp), ort.InferenceSession(mlp, providers=[CPU])):
        found = []
        for bind in (
            lambda b: b.bind_cpu_input("no", x),
            lambda b: b.bind_ortvalue_input("no", onnxruntime.OrtValue.ortvalue_from_numpy(x)),
            lambda b: b.bind_input("x", "cpu", 0, "no type", x.shape, x.ctypes.data),
            lambda b: b.bind_cpu_input("x", "text"),
            lambda b: b.bind_cpu_input("x", x.astype("d")),
            lambda b: b.bind_cpu_input("x", x[:, ::2]),
        ):
            binding = session.io_binding()
            binding.bind_output("y")
            for step in (lambda b=binding, how=bind: how(b), lambda b=binding, s=session: s.run_with_iobinding(b)):
                try:
                    found.append(step())
                except Exception as error:
                    found.append(type(error).__name__)
        answers.append(found)
    assert answers[0] == answers[1]


def test_a_binding_knows_its_session(mlp: bytes) -> None:
    """onnxruntime before 1.31 does not keep it."""
    one = gpu_session(mlp)
    with patch.object(OrtBinding, "__init__", without_session):
        binding = one.io_binding()
    binding.bind_cpu_input("x", np.ones((5, 16), "f"))
    binding.bind_output("y")
    one.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].shape[0] == 5


def without_session(self: Any, session: Any, init: Any = OrtBinding.__init__) -> None:
    init(self, session)
    self.__dict__.pop("_session", None)


@pytest.mark.parametrize("strings", [onnx.TensorProto.STRING, np.dtype("U1"), "S1", object])
def test_memory_without_strings_is_not_bound_as_strings(
    strings: Any, mlp: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OrtBinding, "bind_input", lambda *_: pytest.fail("onnxruntime before 1.30 writes to it"))
    memory = np.zeros(4, np.uint8)
    with pytest.raises(RuntimeError, match="Only binding non-string Tensors"):
        gpu_session(mlp).io_binding().bind_input("x", "cpu", 0, strings, [1], memory.ctypes.data)


def test_an_input_that_is_bound_for_one_run_crosses_once(
    auto: Callable[..., Any], mlp: bytes, rng: np.random.Generator
) -> None:
    session, x = auto(mlp, placement="gpu"), rng.standard_normal((5, 16)).astype("f")
    before = COPIES.host_to_device
    for k in range(1, 4):
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert COPIES.host_to_device - before == k


def test_an_input_bound_elsewhere_afterwards_is_forgotten(
    auto: Callable[..., Any], mlp: bytes, rng: np.random.Generator
) -> None:
    session, (x, y) = auto(mlp, placement="gpu"), rng.standard_normal((2, 5, 16)).astype("f")
    binding = session.io_binding()
    binding.bind_output("y")
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(y, "gpu"))
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(
        binding.copy_outputs_to_cpu()[0], on_the_cpu(mlp, {"x": y}, ["y"])[0], rtol=2e-5, atol=2e-5
    )
    binding.bind_cpu_input("x", x)
    binding.clear_binding_inputs()
    with pytest.raises(RuntimeError):
        session.run_with_iobinding(binding)


def calls_of_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each bound run that onnxruntime makes from now on."""
    made, run = list[int](), plain.OrtSession.run_with_iobinding

    def counted(*arguments: Any) -> Any:
        made.append(1)
        return run(*arguments)

    monkeypatch.setattr(plain.OrtSession, "run_with_iobinding", counted)
    return made


def test_bound_runs_go_past_onnxruntime(
    auto: Callable[..., Any],
    mlp: bytes,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arrays of other sizes, values on the device, outputs on either side, each bound anew or not: the answers of the
    CPU."""
    session, made = auto(mlp, placement="gpu"), calls_of_onnxruntime(monkeypatch)
    binding, kept = session.io_binding(), []
    for k, rows in enumerate((5, 5, 5, 5, 3, 3, 7, 5)):
        x = rng.standard_normal((rows, 16)).astype("f")
        if k % 2:
            binding.bind_cpu_input("x", x)
        else:
            binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu"))
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        (value,), (want,) = binding.get_outputs(), on_the_cpu(mlp, {"x": x}, ["y"])
        kept.append((value.numpy(), want))
        for found in (
            value.numpy(),
            binding.copy_outputs_to_cpu()[0],
            binding.get_outputs_as_ortvaluevector()[0].numpy(),
        ):
            np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5)
        assert len(made) == min(k + 1, 2)
    y = onnxruntime.OrtValue.ortvalue_from_shape_and_type((5, kept[0][1].shape[1]), np.float32, "gpu")
    binding.bind_ortvalue_output("y", y)
    for _ in range(3):
        np.copyto(x, rng.standard_normal(x.shape).astype("f"))
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(y.numpy(), on_the_cpu(mlp, {"x": x}, ["y"])[0], rtol=2e-5, atol=2e-5)
    assert len(made) == 2
    del binding, value
    for found, want in kept:  # what was given stays as it was
        np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-5)


def test_what_does_not_fit_is_left_to_onnxruntime(
    auto: Callable[..., Any],
    mlp: bytes,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, x = auto(mlp, placement="gpu"), rng.standard_normal((5, 16)).astype("f")
    binding = session.io_binding()
    for _ in range(3):
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
    made = calls_of_onnxruntime(monkeypatch)
    good = binding.copy_outputs_to_cpu()[0]
    wrong = onnxruntime.OrtValue.ortvalue_from_shape_and_type((4, good.shape[1]), np.float32, "gpu")
    of_other_types = [
        onnxruntime.OrtValue.ortvalue_from_shape_and_type(good.shape, kind, device)
        # 2 bytes are too few, too
        for kind in (np.float64, np.float16, np.int32)
        for device in ("cpu", "gpu")
    ]
    for spoil in (
        lambda: binding.bind_cpu_input("x", x[:, :8].copy()),
        lambda: binding.bind_ortvalue_output("y", wrong),
        *(lambda v=value: binding.bind_ortvalue_output("y", v) for value in of_other_types),
        binding.clear_binding_inputs,
        binding.clear_binding_outputs,
    ):
        before = len(made)
        spoil()
        with pytest.raises(Exception, match=r"x|y|dimension|shape|[Oo]utput|type"):
            session.run_with_iobinding(binding)
        assert len(made) == before + 1
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], good)


def test_a_state_on_the_device_whatever_happens_between_runs(
    auto: Callable[..., Any],
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs by what is bound already, between others: new arrays and sizes, a state that is written, moved or shared by
    other means."""
    w = rng.standard_normal((8, 6)).astype("f")
    model = model_of(
        """(float[N, 8] x, float[1, 8] state) => (float[N, 6] y, float[1, 8] next)
        { p = MatMul(x, w) s = ReduceSum <keepdims=1> (state) y = Add(p, s) t = ReduceMean <axes=[0]> (x) next = Add(state, t) }""",
        {"w": w},
        opset=17,
    ).SerializeToString()
    session, writer = auto(model, placement="gpu"), auto(model, placement="gpu")
    quick, bound = list[bool](), BoundRun._by_recording
    monkeypatch.setattr(BoundRun, "_by_recording", lambda *arguments: quick.append(bound(*arguments)) or quick[-1])
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, 8), "f"), "gpu") for _ in range(2)]
    state, spare, unrelated, x, at = np.zeros((1, 8), "f"), list[Any](), list[Any](), np.zeros((5, 8), "f"), 0
    binding = session.io_binding()
    for turn in range(120):
        what = rng.integers(12) if turn > 20 else 11
        if what == 0:
            state = rng.standard_normal((1, 8)).astype("f")
            values[at].update_inplace(state)
        elif what == 1:
            unrelated = [onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu")]
        elif what == 2:
            values[at] = onnxruntime.OrtValue.ortvalue_from_numpy(state, "gpu")
        elif what in (3, 7):  # 7: where it was read, which moves it
            other, to = writer.io_binding(), at if what == 7 else 1 - at
            other.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x, "gpu"))
            other.bind_ortvalue_input("state", values[at])
            other.bind_output("y")
            other.bind_ortvalue_output("next", values[to])
            writer.run_with_iobinding(other)
            state, at = state + x.mean(axis=0, keepdims=True), to
        elif what == 4:
            spare.append((values[at], values[at].numpy()))
            values[at] = onnxruntime.OrtValue.ortvalue_from_numpy(state, "gpu")
        rows = int(rng.choice([1, 5, 40])) if what == 5 else len(x)
        x = rng.standard_normal((rows, 8)).astype("f")
        binding.bind_cpu_input("x", x)
        binding.bind_ortvalue_input("state", values[at])
        binding.bind_ortvalue_output("next", values[at] if what == 6 else values[1 - at])
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.get_outputs()[1].numpy(), x @ w + state.sum(), rtol=1e-4, atol=1e-4)
        state, at = state + x.mean(axis=0, keepdims=True), at if what == 6 else 1 - at
        if turn > 60:  # the same two for a while, then one way only
            at, state = 0, np.array(values[0].numpy())
    np.testing.assert_allclose(values[at].numpy(), state, rtol=1e-4, atol=1e-4)
    for value, content in spare:
        np.testing.assert_array_equal(value.numpy(), content)
    assert sum(quick) > 20, f"{sum(quick)} of {len(quick)}"
    assert len(unrelated) <= 1


@pytest.mark.parametrize("shared", [False, True], ids=["one each", "one for all"])
def test_bindings_in_several_threads(opened: Any, mlp: bytes, rng: np.random.Generator, shared: bool) -> None:
    """Runs of one binding wait for each other. Those of several go on beside each other, each with its own values."""
    session, xs = opened(mlp), rng.standard_normal((3, 5, 16)).astype("f")
    made, found = [session.io_binding() for _ in xs], list[Any]()
    if shared:
        made, xs = made[:1] * 3, np.broadcast_to(xs[:1], xs.shape)
    wanted = [on_the_cpu(mlp, {"x": x}, ["y"])[0] for x in xs]
    for binding, x in zip(made, xs, strict=True):
        binding.bind_cpu_input("x", x.copy())
        binding.bind_output("y")

    def work(k: int) -> None:
        try:
            for _ in range(12):
                session.run_with_iobinding(made[k])
                if not shared:
                    np.testing.assert_allclose(made[k].copy_outputs_to_cpu()[0], wanted[k], rtol=2e-5, atol=2e-5)
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not found
    for binding, y in zip(made, wanted, strict=True):
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], y, rtol=2e-5, atol=2e-5)
