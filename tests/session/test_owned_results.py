"""Results own their memory: in every way of running, through every view, after further runs, the placement's move and
the session's end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state as C

from tests.patience import PATIENCE_S
from tests.session.conftest import on_the_cpu
from tests.unit.graphs import model_of

Array = np.ndarray[Any, Any]
CPU = "CPUExecutionProvider"
RUNS = 12

SESSIONS: dict[str, dict[str, object]] = {
    "auto": {},
    "gpu": {"placement": "gpu"},
    "cpu": {"placement": "cpu"},
    "process": {"placement": "gpu", "isolation": "process"},
}


def value_of(x: Array) -> Any:
    return onnxruntime.OrtValue.ortvalue_from_numpy(x)


def by_run(session: Any, x: Array) -> Any:
    return session.run(["y"], {"x": x})[0]


def by_run_async(session: Any, x: Array) -> Any:
    done, got = threading.Event(), list[Any]()
    session.run_async(["y"], {"x": x}, lambda results, *_: (got.extend(results), done.set()), None)
    assert done.wait(PATIENCE_S)
    return got[0]


def by_ort_values(session: Any, x: Array) -> Any:
    return session.run_with_ort_values(["y"], {"x": value_of(x)})[0]


def by_vector(session: Any, x: Array) -> Any:
    feeds, fetches = C.OrtValueVector(), C.OrtValueVector()
    feeds.push_back(value_of(x)._ortvalue)
    session.run_with_ortvaluevector(
        onnxruntime.RunOptions(), ["x"], feeds, ["y"], fetches, [C.OrtDevice(C.OrtDevice.cpu(), 0, 0)]
    )
    return onnxruntime.OrtValue(fetches[0])


def bound(session: Any, x: Array) -> Any:
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    return binding


def by_binding(session: Any, x: Array) -> Any:
    return bound(session, x).get_outputs()[0]


def by_copy(session: Any, x: Array) -> Any:
    return bound(session, x).copy_outputs_to_cpu()[0]


def as_torch(value: Any) -> Array:
    return np.asarray(import_module("torch").from_dlpack(value).numpy())


WAYS: dict[str, tuple[Callable[[Any, Array], Any], bool]] = {
    "run": (by_run, False),
    "run_async": (by_run_async, False),
    "ort_values": (by_ort_values, True),
    "vector": (by_vector, True),
    "binding": (by_binding, True),
    "copied": (by_copy, False),
}
"""Each way to run, and whether it gives OrtValues."""

VIEWS: dict[str, Callable[[Any], Array]] = {
    "numpy": lambda value: np.asarray(value.numpy()),
    "asarray": np.asarray,
    "dlpack": np.from_dlpack,
    "torch": as_torch,
}


@pytest.fixture(params=SESSIONS)
def opened(request: pytest.FixtureRequest, auto: Callable[..., Any]) -> Callable[..., Any]:
    return lambda model: auto(model, **SESSIONS[request.param])


@pytest.fixture
def used() -> Callable[[], None]:
    """What frees and overwrites memory that nobody holds."""
    kept = list[Array]()

    def overwrite() -> None:
        gc.collect()
        kept.extend(np.full(64 << k % 8, np.nan, "f") for k in range(200))

    return overwrite


def has_torch() -> bool:
    try:
        import_module("torch")
    except ImportError:
        return False
    return True


def test_results_stay_what_they_are(
    opened: Callable[..., Any], mlp: bytes, used: Callable[[], None], rng: np.random.Generator
) -> None:
    xs = [rng.standard_normal((5 + k % 2, 16)).astype("f") for k in range(RUNS)]
    want = [on_the_cpu(mlp, {"x": x}, ["y"])[0] for x in xs]
    session, got = opened(mlp), list[tuple[str, Array, Array]]()
    for way, (run, gives_values) in WAYS.items():
        views = [v for v in VIEWS if v != "torch" or has_torch()] if gives_values else ["asarray"]
        got += [
            (f"{way}, {view}", VIEWS[view](run(session, x)), y) for x, y in zip(xs, want, strict=True) for view in views
        ]
    for x in xs * 8:
        session.run(None, {"x": x[:3]})
    del session
    used()
    wrong = [way for way, y, expected in got if not np.allclose(y, expected, rtol=2e-5, atol=2e-5)]
    assert not wrong


def sparse_output() -> bytes:
    """A sparse tensor comes out, of which the session says that it is a tensor."""
    entries = (
        helper.make_tensor("entries", TensorProto.FLOAT, [2], [1.0, 2.0]),
        helper.make_tensor("places", TensorProto.INT64, [2], [1, 3]),
    )
    nodes = [
        helper.make_node("Constant", [], ["z"], sparse_value=helper.make_sparse_tensor(*entries, [2, 4])),
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("Exp", ["t"], ["y"]),
    ]
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["N"]), ("y", ["N"]), ("z", [2, 4]))
    ]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:])
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()
    )


def sequence_output() -> bytes:
    text = "(float[N] x) => (float[N] y, seq(float[N]) z) { t = Tanh(x) y = Exp(t) z = SequenceConstruct(t, y) }"
    return bytes(model_of(text).SerializeToString())


def content(value: Any) -> list[Array]:
    """What is in the result of a run."""
    if isinstance(value, onnxruntime.OrtValue):
        if value.is_sparse_tensor():
            return [np.array(value.as_sparse_tensor().values())]
        return [np.array(value.numpy())] if value.is_tensor() else []
    return (
        [np.array(v) for v in value]
        if isinstance(value, list)
        else [np.array(value if isinstance(value, np.ndarray) else value.values())]
    )


@pytest.mark.parametrize("opened", ["auto", "gpu"], indirect=True)
@pytest.mark.parametrize("model", [sparse_output, sequence_output])
def test_outputs_that_are_no_dense_tensors(
    model: Callable[[], bytes],
    opened: Callable[..., Any],
    used: Callable[[], None],
    rng: np.random.Generator,
) -> None:
    plain, session = onnxruntime.InferenceSession(model(), providers=[CPU]), opened(model())
    for _ in range(3):
        x = rng.standard_normal(6).astype("f")
        want, got = (s.run_with_ort_values(None, {"x": value_of(x)}) for s in (plain, session))
        used()
        assert [g.data_type() for g in got] == [w.data_type() for w in want]
        want, got = want + plain.run(None, {"x": x}), got + session.run(None, {"x": x})
        assert [type(g) for g in got] == [type(w) for w in want]
        for one, other in zip(got, want, strict=True):
            for ours, theirs in zip(content(one), content(other), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=2e-5)


def on_device(session: Any, x: Array) -> list[Any]:
    """Values in the device's memory, made in each way; the last one has no elements."""
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "gpu")
    session.run_with_iobinding(binding)
    new, value = onnxruntime.OrtValue.ortvalue_from_shape_and_type, onnxruntime.OrtValue.ortvalue_from_numpy
    own = getattr(session, "create_ortvalue_from_shape_and_type", new)
    return [
        *binding.get_outputs(),
        value(x, "gpu"),
        new([2, 3], np.float32, "gpu"),
        own([2, 3], np.float32, "gpu"),
        value(x[:0], "gpu"),
    ]


def test_a_value_on_the_device_says_so_and_no_library_takes_its_address(
    auto: Callable[..., Any], mlp: bytes, x: Array
) -> None:
    """onnxruntime takes any GPU for CUDA, and torch would use the address."""
    session = auto(mlp, placement="gpu")
    takers: list[Callable[[Any], object]] = [
        np.from_dlpack,
        lambda v: v.__dlpack__(),
        lambda v: v.__dlpack_device__(),
        onnxruntime.OrtValue.from_dlpack,
    ]
    if has_torch():
        takers += [import_module("torch").from_dlpack, import_module("torch").as_tensor]
    for value in on_device(session, x):
        assert value.device_name() == "gpu"
        assert np.asarray(value).shape == tuple(value.shape())
        for take in takers:
            with pytest.raises(BufferError, match=r"value\.numpy\(\), or bind the output to 'cpu'"):
                take(value)
        # the name is one that onnxruntime takes
        again = onnxruntime.OrtValue.ortvalue_from_numpy(value.numpy(), value.device_name())
        np.testing.assert_array_equal(again.numpy(), value.numpy())


def test_libraries_share_values_in_host_memory(opened: Callable[..., Any], mlp: bytes, x: Array) -> None:
    """Both ways by DLPack, without a copy: what is written on one side is there on the other, and in the next run."""
    session, given = opened(mlp), x.copy()
    value = onnxruntime.OrtValue.from_dlpack(given)
    assert value.data_ptr() == given.ctypes.data
    assert (value.device_name(), tuple(value.__dlpack_device__())) == ("cpu", (1, 0))
    assert np.from_dlpack(value).ctypes.data == value.data_ptr()
    if has_torch():
        torch = import_module("torch")
        seen = torch.from_dlpack(value)
        assert seen.data_ptr() == value.data_ptr()
        assert onnxruntime.OrtValue.from_dlpack(seen).data_ptr() == value.data_ptr()
    for k in range(6):
        given[:] = x * (k + 1)
        got = session.run_with_ort_values(["y"], {"x": value})[0]
        np.testing.assert_allclose(np.from_dlpack(got), on_the_cpu(mlp, {"x": given}, ["y"])[0], rtol=2e-5, atol=2e-5)
        assert np.from_dlpack(got).ctypes.data == got.data_ptr()
