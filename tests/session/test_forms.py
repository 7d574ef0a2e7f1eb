"""However a program comes by our class, and wherever its nodes run: what it asks of a session is answered as by
onnxruntime's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state as C

import ort_gpu_ep as ort
from tests.patience import PATIENCE_S
from tests.unit.graphs import model_of

CPU = "CPUExecutionProvider"
RNG = np.random.default_rng(11)
X = RNG.standard_normal((3, 4)).astype("f")
PLACEMENTS = {
    "gpu": {"placement": "gpu"},
    "auto": {"placement": "auto"},
    "chosen": {"placement": "auto", "adapter": "software"},
}
Case = Callable[[Any], list[Any]]


def model(text: str, constants: dict[str, Any] | None = None, **meta: str) -> bytes:
    made = model_of(text, constants or {})
    helper.set_model_props(made, meta)
    made.producer_name, made.doc_string, made.model_version = "maker", "what it is", 7
    return bytes(made.SerializeToString())


MLP = model(
    "(float[N, 4] x) => (float[N, 2] y, float[N] z) { h = MatMul(x, w) y = Relu(h) z = "
    "ReduceSum<keepdims=0>(y, axes) }",
    {"w": RNG.standard_normal((4, 2)).astype("f"), "axes": np.array([1])},
    author="me",
)
CUT = model("(float[2, 4, 4] x) => (float[2, 4, 4] y) { a = Tanh(x) i = com.microsoft.Inverse(a) y = Neg(i) }")
STRINGS = model("(string[N] x, float[N] v) => (string[N] y, float[N] w) { y = Identity(x) w = Neg(v) }")
SEQUENCE = model(
    "(seq(float[N]) x) => (float[N] y, seq(float[N]) z) { i = Constant<value_int=1>() a = SequenceAt(x, i) y = Neg(a) "
    "z = SequenceConstruct(y, a) }"
)


def overridable() -> bytes:
    """An initializer that is an input, too."""
    made = onnx.load_from_string(model("(float[N] x) => (float[N] y) { y = Mul(x, s) }", {"s": np.full(1, 3, "f")}))
    made.graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [1]))
    return bytes(made.SerializeToString())


def maps() -> bytes:
    """Dictionaries of strings come out, behind nodes that the GPU has."""
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("ZipMap", ["n"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b"]),
    ]
    y = helper.make_value_info(
        "y",
        helper.make_sequence_type_proto(
            helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        ),
    )
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])], [y])
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=10
    )
    return bytes(made.SerializeToString())


def outcome(call: Callable[[], Any]) -> Any:
    """What it returns, or the class and text of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__, str(error)


def runs(kind: Any) -> list[Any]:
    session = kind(MLP)
    asked = [session.run(names, {"x": X}) for names in (None, [], ["z"], ["z", "y"], ("y",))]
    wrong = [
        outcome(lambda n=names, f=feeds: session.run(n, f))
        for names, feeds in [
            (["no"], {"x": X}),
            (None, {}),
            (None, {"x": X, "no": X}),
            (None, {"x": X[:, :3]}),
            (None, {"x": X.astype("d")}),
            (None, {"x": 7}),
            (None, {"x": None}),
            (None, {"x": X.tolist()}),
        ]
    ]
    return [
        asked,
        wrong,
        session.run(None, {"x": np.asfortranarray(X)}),
        session.run(None, {"x": X[::-1]}),
        session.run(None, {"x": X[:0]}),
    ]


def arguments(kind: Any) -> list[Any]:
    good = [
        kind(path_or_bytes=MLP, sess_options=onnxruntime.SessionOptions(), providers=[CPU]),
        kind(MLP, None),
        kind(MLP, disabled_optimizers=["x"]),
        kind(MLP, enable_fallback=False),
    ]
    wrong = [
        outcome(lambda g=given: kind(*g))
        for given in [
            (7,),
            (None,),
            ("no such file.onnx",),
            (b"no model",),
            (Path("no such file.onnx"),),
            (bytearray(MLP),),
            (MLP, 7),
        ]
    ]
    return [[s.run(None, {"x": X}) for s in good], wrong]


def asked(kind: Any) -> list[Any]:
    session = kind(MLP)
    meta = session.get_modelmeta()
    values = [
        (v.name, v.shape, v.type)
        for v in (*session.get_inputs(), *session.get_outputs(), *session.get_overridable_initializers())
    ]
    session.disable_fallback()
    session.enable_fallback()
    return [
        values,
        [
            getattr(meta, n)
            for n in ("producer_name", "graph_name", "description", "domain", "version", "custom_metadata_map")
        ],
        session.get_session_options().intra_op_num_threads,
        CPU in session.get_providers(),
        CPU in session.get_provider_options(),
        type(session.get_tuning_results()),
        session.get_profiling_start_time_ns() >= 0,
    ]


def options(kind: Any) -> list[Any]:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 2
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.enable_mem_pattern = settings.enable_cpu_mem_arena = False
    settings.add_free_dimension_override_by_name("N", 3)
    settings.add_session_config_entry("session.use_env_allocators", "0")
    session = kind(MLP, settings)
    kept = session.get_session_options()
    return [
        session.get_inputs()[0].shape,
        session.run(None, {"x": X}),
        outcome(lambda: session.run(None, {"x": X[:2]})),
        kept.intra_op_num_threads,
        kept.get_session_config_entry("session.use_env_allocators"),
        outcome(lambda: settings.register_custom_ops_library("no such library.so"))[0],
    ]


def initializers(kind: Any) -> list[Any]:
    session = kind(overridable())
    settings = onnxruntime.SessionOptions()
    given = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((4, 2), "f"))
    settings.add_initializer("w", given)
    return [
        [v.name for v in session.get_overridable_initializers()],
        session.run(None, {"x": X[0]}),
        session.run(None, {"x": X[0], "s": np.full(1, -2, "f")}),
        session.run(None, {"x": X[1]}),
        kind(MLP, settings).run(None, {"x": X}),
    ]


def run_options(kind: Any) -> list[Any]:
    session, found = kind(MLP), []
    for change in (
        {"terminate": True},
        {"terminate": False, "logid": "mine", "log_severity_level": 4},
        {"only_execute_path_to_fetches": True},
    ):
        settings = onnxruntime.RunOptions()
        for name, value in change.items():
            setattr(settings, name, value)
        settings.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        found.append(outcome(lambda s=settings: session.run(["y"], {"x": X}, s))[0])
    return found


def other_types(kind: Any) -> list[Any]:
    words, numbers = np.array(["a", "", "ü"], object), np.arange(3, dtype="f")
    sequence = kind(SEQUENCE).run(None, {"x": [numbers, numbers + 1]})
    return [
        kind(STRINGS).run(None, {"x": words, "v": numbers}),
        sequence,
        type(sequence[1]),
        kind(maps()).run(None, {"x": X[:, :2]}),
        outcome(lambda: kind(SEQUENCE).run(None, {"x": numbers})),
    ]


def values(kind: Any) -> list[Any]:
    session, value = kind(MLP), onnxruntime.OrtValue.ortvalue_from_numpy(X)
    got = session.run_with_ort_values(["z", "y"], {"x": value})
    vector = C.OrtValueVector()
    fetches = C.OrtValueVector()
    vector.push_back(value._ortvalue)
    session.run_with_ortvaluevector(
        onnxruntime.RunOptions(), ["x"], vector, ["y"], fetches, [C.OrtDevice(C.OrtDevice.cpu(), 0, 0)]
    )
    return [
        [g.numpy() for g in got],
        [g.is_tensor() for g in got],
        [g.data_type() for g in got],
        [v.numpy() for v in fetches],
        session.run(["y"], {"x": value}),
        outcome(lambda: session.run_with_ort_values(["no"], {"x": value})),
    ]


def bindings(kind: Any) -> list[Any]:
    session, found = kind(MLP), []
    for how in (session.io_binding(), onnxruntime.IOBinding(session)):
        y = np.zeros((3, 2), "f")
        how.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
        how.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        how.bind_output("z")
        session.run_with_iobinding(how)
        how.synchronize_outputs()
        found += [y, how.copy_outputs_to_cpu(), [v.shape() for v in how.get_outputs()]]
        how.clear_binding_inputs()
        found.append(outcome(lambda h=how: session.run_with_iobinding(h))[0])
        kept = onnxruntime.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32)
        how.clear_binding_outputs()
        how.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(X))
        how.bind_ortvalue_output("y", kept)
        session.run_with_iobinding(how)
        found.append(kept.numpy())
        found.append(outcome(lambda h=how: h.bind_cpu_input("no", X)))
    return found


def partitions(kind: Any) -> list[Any]:
    """Nodes of the CPU's between ours, and runs of several threads at a time."""
    session, found = kind(CUT), dict[int, Any]()
    feeds = [{"x": np.eye(4, dtype="f")[None].repeat(2, 0) * (k + 1)} for k in range(4)]
    threads = [threading.Thread(target=lambda k=k: found.update({k: session.run(None, feeds[k])})) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[k] for k in range(4)]


def in_the_background(kind: Any) -> list[Any]:
    session, done, found = kind(MLP), threading.Event(), list[Any]()
    session.run_async(["y"], {"x": X}, lambda *a: (found.extend(a), done.set()), "mine")
    assert done.wait(PATIENCE_S)
    return found


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        runs,
        arguments,
        asked,
        options,
        initializers,
        run_options,
        other_types,
        values,
        bindings,
        partitions,
        in_the_background,
    )
}


class Subclass(ort.InferenceSession):
    """As programs write them."""

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        return super().run(output_names, input_feed, run_options)


FORMS = {"patched": None, "imported": ort.InferenceSession, "assigned": ort.InferenceSession, "subclass": Subclass}


@pytest.fixture(params=[(form, placement) for form in FORMS for placement in PLACEMENTS], ids="-".join)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The class that a program makes its sessions of."""
    form, placement = request.param
    given = {**PLACEMENTS[placement], "cache_dir": str(tmp_path), "load": "off"}
    for name, value in given.items():
        monkeypatch.setenv(f"ORT_GPU_EP_{name.upper()}", value)
    if form in ("assigned", "subclass"):
        monkeypatch.setattr(onnxruntime, "InferenceSession", FORMS[form])
    with ort.patch(given, say=False) if form == "patched" else nullcontext():
        yield FORMS[form] or onnxruntime.InferenceSession


@pytest.fixture(scope="module")
def plain() -> dict[str, list[Any]]:
    """What onnxruntime's class answers; asked before anything is patched."""
    return {name: case(onnxruntime.InferenceSession) for name, case in CASES.items()}


def assert_same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, list | tuple | dict):
        assert len(got) == len(want)
        for key in want if isinstance(want, dict) else range(len(want)):
            assert_same(got[key], want[key])
    elif isinstance(want, np.ndarray) and want.dtype.kind == "f":
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    elif isinstance(want, float):
        assert got == pytest.approx(want, rel=2e-5)
    elif isinstance(want, np.ndarray):
        np.testing.assert_array_equal(got, want)
    else:
        assert got == want


@pytest.mark.parametrize("case", CASES)
def test_a_session_answers_as_onnxruntimes(case: str, plain: dict[str, list[Any]], kind: Any) -> None:
    assert_same(CASES[case](kind), plain[case])
