"""What programs do with onnxruntime's sessions and values, each habit a function of the class of sessions: `python -m
tests.session.habits FORM FILE` writes what each gives, with the class that a program of that form has. test_habits.py
compares the forms.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from tests.patience import PATIENCE_S
from tests.session.test_forms import CUT, SEQUENCE, STRINGS, maps, overridable
from tests.session.test_owned_results import content, sparse_output
from tests.unit.graphs import model_of

CPU = "CPUExecutionProvider"
RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 4)).astype("f")
MORE = [RNG.standard_normal((1 + k % 4, 4)).astype("f") for k in range(12)]
Kind = Callable[..., Any]
Habit = Callable[[Kind], Any]
HABITS: dict[str, Habit] = {}


def habit(function: Habit) -> Habit:
    HABITS[function.__name__] = function
    return function


def raised(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def value(array: Any) -> Any:
    # a copy: such a value is written to, and shares its memory
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.array(array))


def made(text: str, **constants: Any) -> bytes:
    return bytes(model_of(text, constants).SerializeToString())


MLP = made(
    "(float[N, 4] x) => (float[N, 2] y, float[N] z) { h = MatMul(x, w) y = Tanh(h) z = "
    "ReduceSum<keepdims=0>(y, axes) }",
    w=RNG.standard_normal((4, 2)).astype("f"),
    axes=np.array([1]),
)
TWO = made("(float[N] a, float[N] b) => (float[N] y) { t = Tanh(a) y = Sub(t, b) }")

# ---- feeds, as arrays may be

FEEDS: dict[str, Callable[[], Any]] = {
    "not_contiguous": lambda: np.repeat(X, 2, axis=1)[:, ::2],
    "in_fortran_order": lambda: np.asfortranarray(X),
    "backwards": lambda: X[::-1],
    "without_rows": lambda: X[:0],
    "broadcast": lambda: np.broadcast_to(X[:1], (3, 4)),
    "byte_swapped": lambda: X.astype(">f4"),
    "a_subclass": lambda: X.view(np.recarray),
    "a_matrix": lambda: np.matrix(X),
    "masked": lambda: np.ma.masked_array(X, X > 0),
    "from_bytes": lambda: np.frombuffer(X.tobytes(), "f").reshape(3, 4),
    "not_aligned": lambda: np.frombuffer(b"." + X.tobytes(), "f", 12, 1).reshape(3, 4),
    "a_list": X.tolist,
    "a_number": lambda: 7.0,
    "nothing": lambda: None,
    "a_string": lambda: "x",
    "doubles": lambda: X.astype("d"),
    "integers": lambda: X.astype("i8"),
    "another_rank": lambda: X[0],
    "another_size": lambda: X[:, :3],
    "a_scalar": lambda: np.float32(1),
    "an_ort_value": lambda: value(X),
    "an_ort_value_of_doubles": lambda: value(X.astype("d")),
}


def fed(name: str) -> Habit:
    def run(kind: Kind) -> Any:
        session, x = kind(MLP), FEEDS[name]()
        try:
            return [session.run(None, {"x": x}) for _ in range(4)]
        except Exception as error:
            return type(error).__name__

    return run


HABITS.update({f"feeds_{name}": fed(name) for name in FEEDS})


@habit
def read_only(kind: Kind) -> Any:
    x = X.copy()
    x.flags.writeable = False
    return kind(MLP).run(None, {"x": x})


@habit
def memory_mapped(kind: Kind) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", X)
        return kind(MLP).run(None, {"x": np.load(f"{folder}/x.npy", mmap_mode="r")})


@habit
def one_array_for_two_inputs(kind: Kind) -> Any:
    session = kind(TWO)
    return [session.run(None, {"a": x, "b": x}) for x in (X[0], X[0], X[1], X[0])]


@habit
def feeds_that_change_afterwards(kind: Kind) -> Any:
    session, x, found = kind(MLP), X.copy(), []
    for k in range(5):
        found.append(session.run(None, {"x": x}))
        x += k
    return found


@habit
def feeds_in_another_order(kind: Kind) -> Any:
    return kind(TWO).run(None, {"b": X[0], "a": X[1]})


@habit
def names_that_are_not_there(kind: Kind) -> Any:
    session = kind(MLP)
    return [
        raised(lambda n=names, f=feeds: session.run(n, f))
        for names, feeds in (
            (["no"], {"x": X}),
            (None, {}),
            (None, {"x": X, "no": X}),
            ([""], {"x": X}),
            (["y", "no"], {"x": X}),
            ([7], {"x": X}),
            (None, {7: X}),
        )
    ]


@habit
def outputs_by_name(kind: Kind) -> Any:
    session = kind(MLP)
    return [
        session.run(names, {"x": X})
        for names in (None, [], ["z"], ["z", "y"], ("y",), {"y": 0}, iter(["z"]))
        for _ in range(3)
        if isinstance(names, list | tuple | None)
    ]


@habit
def the_same_output_twice(kind: Kind) -> Any:
    session = kind(MLP)
    try:
        return [session.run(["y", "y"], {"x": X}) for _ in range(4)]
    except Exception as error:
        return type(error).__name__


@habit
def arguments_by_name(kind: Kind) -> Any:
    return kind(MLP).run(output_names=["y"], input_feed={"x": X}, run_options=None)


# ---- results that are kept


@habit
def results_past_later_runs(kind: Kind) -> Any:
    session = kind(MLP)
    return [session.run(None, {"x": x}) for x in MORE * 3]


@habit
def results_past_the_session(kind: Kind) -> Any:
    session = kind(MLP)
    found = [session.run(None, {"x": x}) for x in MORE]
    del session
    gc.collect()
    return found


@habit
def results_written_to(kind: Kind) -> Any:
    session, found = kind(MLP), []
    for _ in range(4):
        (y, z) = session.run(None, {"x": X})
        found.append([y.copy(), y.flags.writeable, y.flags.c_contiguous, y.flags.aligned])
        y[:] = z[:] = 7
    return found


@habit
def results_as_feeds(kind: Kind) -> Any:
    session, y = kind(TWO), X[0]
    for _ in range(6):
        (y,) = session.run(None, {"a": y, "b": X[1]})
    return y


@habit
def results_pickled(kind: Kind) -> Any:
    return pickle.loads(pickle.dumps(kind(MLP).run(None, {"x": X})))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda v: v.numpy(),
    "asarray": np.asarray,
    "dlpack": np.from_dlpack,
    "array": np.array,
    "a_copy": lambda v: v.numpy().copy(),
}


def viewed(name: str) -> Habit:
    def run(kind: Kind) -> Any:
        session = kind(MLP)
        kept = [VIEWS[name](v) for x in MORE for v in session.run_with_ort_values(None, {"x": value(x)})]
        del session
        gc.collect()
        return [np.array(k) for k in kept]

    return run


HABITS.update({f"views_by_{name}": viewed(name) for name in VIEWS})


@habit
def values_say_what_they_are(kind: Kind) -> Any:
    got = kind(MLP).run_with_ort_values(["z", "y"], {"x": value(X)})
    return [
        (
            v.shape(),
            v.data_type(),
            v.element_type(),
            v.is_tensor(),
            v.is_sparse_tensor(),
            v.is_tensor_sequence(),
            v.has_value(),
            v.device_name(),
        )
        for v in got
    ]


@habit
def values_that_outlive_the_session(kind: Kind) -> Any:
    got = kind(MLP).run_with_ort_values(None, {"x": value(X)})
    gc.collect()
    return [v.numpy().copy() for v in got]


@habit
def values_as_inputs_again(kind: Kind) -> Any:
    session, y = kind(TWO), value(X[0])
    for _ in range(6):
        (y,) = session.run_with_ort_values(None, {"a": y, "b": value(X[1])})
    return y.numpy()


@habit
def values_that_change_in_place(kind: Kind) -> Any:
    session, v, found = kind(MLP), value(X), []
    for k in range(5):
        v.update_inplace(X * k)
        found.append(session.run_with_ort_values(["y"], {"x": v})[0].numpy().copy())
    return found


@habit
def a_view_of_a_value_is_written_to(kind: Kind) -> Any:
    session, v, found = kind(MLP), onnxruntime.OrtValue.ortvalue_from_shape_and_type((3, 4), np.float32), []
    view = v.numpy()
    for k in range(4):
        view[:] = X * k
        found.append(session.run(["y"], {"x": v}))
    return found


@habit
def values_beside_arrays(kind: Kind) -> Any:
    return raised(lambda: kind(TWO).run(None, {"a": value(X[0]), "b": X[1]}))


# ---- IO binding


def bound(session: Any, x: Any = X, output: str = "y") -> Any:
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output(output)
    return binding


@habit
def a_binding_that_runs_again(kind: Kind) -> Any:
    session, found = kind(MLP), []
    binding = bound(session)
    for _ in range(4):
        session.run_with_iobinding(binding)
        found.append(binding.copy_outputs_to_cpu())
    return found


@habit
def a_bound_array_changes_in_place(kind: Kind) -> Any:
    session, x, found = kind(MLP), X.copy(), []
    binding = bound(session, x)
    for k in range(4):
        x[:] = X * k
        session.run_with_iobinding(binding)
        found.append(binding.copy_outputs_to_cpu())
    return found


@habit
def bound_anew_for_each_run(kind: Kind) -> Any:
    session, found = kind(MLP), []
    binding = bound(session)
    for x in MORE:
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        found.append(binding.get_outputs()[0].numpy().copy())
    return found


@habit
def outputs_into_arrays(kind: Kind) -> Any:
    session, y, found = kind(MLP), np.zeros((3, 2), "f"), []
    binding = session.io_binding()
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    for k in range(4):
        binding.bind_cpu_input("x", X * k)
        session.run_with_iobinding(binding)
        found.append(y.copy())
    return found


@habit
def outputs_into_values(kind: Kind) -> Any:
    session, y, found = kind(MLP), value(np.zeros((3, 2), "f")), []
    binding = bound(session, output="z")
    binding.bind_ortvalue_output("y", y)
    for _ in range(3):
        session.run_with_iobinding(binding)
        found += [y.numpy().copy(), [v.shape() for v in binding.get_outputs()], binding.copy_outputs_to_cpu()]
    return found


@habit
def outputs_into_arrays_of_another_size(kind: Kind) -> Any:
    session, y = kind(MLP), np.zeros((2, 2), "f")
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    return raised(lambda: session.run_with_iobinding(binding))


@habit
def a_state_in_place(kind: Kind) -> Any:
    session, state = (
        kind(made("(float[4] x) => (float[4] y) { t = Tanh(x) y = Add(t, o) }", o=np.ones(1, "f"))),
        value(X[0].copy()),
    )
    binding, found = session.io_binding(), []
    for _ in range(5):
        binding.bind_ortvalue_input("x", state)
        binding.bind_ortvalue_output("y", state)
        session.run_with_iobinding(binding)
        found.append(state.numpy().copy())
    return found


@habit
def two_states_in_turn(kind: Kind) -> Any:
    session = kind(made("(float[4] x) => (float[4] y) { t = Tanh(x) y = Add(t, o) }", o=np.ones(1, "f")))
    states, binding = [value(X[0].copy()), value(X[1].copy())], session.io_binding()
    for k in range(6):
        binding.bind_ortvalue_input("x", states[k % 2])
        binding.bind_ortvalue_output("y", states[1 - k % 2])
        session.run_with_iobinding(binding)
    return [s.numpy() for s in states]


@habit
def two_bindings_in_turn(kind: Kind) -> Any:
    session, found = kind(MLP), []
    pair = [bound(session, x) for x in MORE[:2]]
    for k in range(6):
        session.run_with_iobinding(pair[k % 2])
        found.append(pair[k % 2].copy_outputs_to_cpu())
    return [found, [b.copy_outputs_to_cpu() for b in pair]]


@habit
def bindings_beside_runs(kind: Kind) -> Any:
    session, found = kind(MLP), []
    binding = bound(session)
    for x in MORE:
        session.run_with_iobinding(binding)
        found += [binding.copy_outputs_to_cpu(), session.run(None, {"x": x})]
    return found


@habit
def bindings_that_lack_something(kind: Kind) -> Any:
    session, found = kind(MLP), []
    binding = bound(session)
    binding.clear_binding_inputs()
    found.append(raised(lambda: session.run_with_iobinding(binding)))
    binding = bound(session)
    binding.clear_binding_outputs()
    found.append(raised(lambda: session.run_with_iobinding(binding)))
    return [
        *found,
        raised(lambda: session.io_binding().bind_cpu_input("no", X)),
        raised(lambda: session.io_binding().bind_output("no")),
    ]


@habit
def a_binding_past_its_session(kind: Kind) -> Any:
    session = kind(MLP)
    binding = bound(session)
    session.run_with_iobinding(binding)
    del session
    gc.collect()
    return [v.numpy().copy() for v in binding.get_outputs()]


# ---- threads and processes


@habit
def threads_on_one_session(kind: Kind) -> Any:
    session = kind(MLP)
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda x: session.run(None, {"x": x}), MORE * 4))


@habit
def threads_with_a_session_each(kind: Kind) -> Any:
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda x: kind(MLP).run(None, {"x": x}), MORE[:6]))


@habit
def threads_with_a_binding_each(kind: Kind) -> Any:
    session = kind(MLP)

    def run(x: Any) -> Any:
        binding = bound(session, x)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(run, MORE))


@habit
def a_session_of_a_thread_that_is_gone(kind: Kind) -> Any:
    found = list[Any]()
    thread = threading.Thread(target=lambda: found.append(kind(MLP)))
    thread.start()
    thread.join()
    return [found[0].run(None, {"x": x}) for x in MORE]


@habit
def in_the_background(kind: Kind) -> Any:
    session, found = kind(MLP), list[Any]()
    done = [threading.Event() for _ in MORE]
    for k, x in enumerate(MORE):
        session.run_async(["y"], {"x": x}, lambda *a: (found.append(a), done[a[1]].set()), k)
    assert all(d.wait(PATIENCE_S) for d in done)
    return sorted(found, key=lambda f: f[1])


@habit
def a_fork_with_a_session(kind: Kind) -> Any:
    session = kind(MLP)
    session.run(None, {"x": X})
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, pickle.dumps(session.run(None, {"x": X})))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pickle.loads(pipe.read())
    return [answer, os.waitpid(child, 0)[1], session.run(None, {"x": X})]


# ---- where models come from


@habit
def models_in_files(kind: Kind) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "ein Ordner ü")
        place.mkdir()
        path = place / "model.onnx"
        path.write_bytes(MLP)
        sessions = [kind(str(path)), kind(path)]
        path.unlink()
        return [s.run(None, {"x": X}) for s in sessions]


@habit
def weights_in_another_file(kind: Kind) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        onnx.save_model(
            onnx.load_from_string(MLP), path, save_as_external_data=True, location="weights.bin", size_threshold=50
        )
        session = kind(str(path))
        (path.parent / "weights.bin").unlink()
        return [session.run(None, {"x": x}) for x in MORE]


@habit
def weights_that_the_program_gives(kind: Kind) -> Any:
    settings, w = onnxruntime.SessionOptions(), np.ones((4, 2), "f")
    kept = value(w)
    settings.add_initializer("w", kept)
    return [kind(MLP, settings).run(None, {"x": X}) for _ in range(2)]


@habit
def models_that_are_none(kind: Kind) -> Any:
    return [
        raised(lambda m=model: kind(m))
        for model in (
            b"",
            b"no model",
            "no such file.onnx",
            Path("no such file.onnx"),
            7,
            None,
            MLP[:50],
            onnx.load_from_string(MLP),
        )
    ]


@habit
def names_of_all_kinds(kind: Kind) -> Any:
    graph = helper.make_graph(
        [
            helper.make_node("Tanh", ["an input/é:0"], ["h 1"], name="a node\n1"),
            helper.make_node("Neg", ["h 1"], ["ausgabe; ü"], name="ü"),
        ],
        "a graph",
        [helper.make_tensor_value_info("an input/é:0", TensorProto.FLOAT, ["N é"])],
        [helper.make_tensor_value_info("ausgabe; ü", TensorProto.FLOAT, ["N é"])],
    )
    session = kind(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()
    )
    return [
        session.run(["ausgabe; ü"], {"an input/é:0": X[0]}),
        [(v.name, v.shape, v.type) for v in (*session.get_inputs(), *session.get_outputs())],
    ]


@habit
def two_sessions_of_one_model(kind: Kind) -> Any:
    sessions = [kind(MLP), kind(MLP)]
    return [s.run(None, {"x": x}) for x in MORE for s in sessions]


@habit
def a_session_made_anew_each_time(kind: Kind) -> Any:
    return [kind(MLP).run(None, {"x": x}) for x in MORE]


# ---- values of every kind


@habit
def strings(kind: Kind) -> Any:
    return kind(STRINGS).run(None, {"x": np.array(["a", "", "ü"], object), "v": X[0, :3]})


@habit
def strings_of_a_fixed_width(kind: Kind) -> Any:
    return kind(STRINGS).run(None, {"x": np.array(["a", "", "ü"]), "v": X[0, :3]})


@habit
def sequences(kind: Kind) -> Any:
    session = kind(SEQUENCE)
    return [session.run(None, {"x": [X[0] + k, X[1]]}) for k in range(3)] + [
        raised(lambda: session.run(None, {"x": X[0]}))
    ]


@habit
def dictionaries(kind: Kind) -> Any:
    return [kind(maps()).run(None, {"x": X[:, :2]}) for _ in range(2)]


@habit
def sparse_outputs(kind: Kind) -> Any:
    session = kind(sparse_output())
    got = [*session.run(None, {"x": X[0]}), *session.run_with_ort_values(None, {"x": value(X[0])})]
    return [content(v) for v in got]


@habit
def numbers_of_every_type(kind: Kind) -> Any:
    found = []
    for name, dtype in (
        ("float", "f4"),
        ("double", "f8"),
        ("float16", "f2"),
        ("int32", "i4"),
        ("int64", "i8"),
        ("int8", "i1"),
    ):
        session = kind(
            made(
                f"({name}[N] x) => ({name}[N] y, bool[N] p) {{ y = Neg(x) a = Cast<to = 1>(x) p = Greater(a, z) }}",
                z=np.zeros(1, "f"),
            )
        )
        found.append([session.run(None, {"x": (X[0] * 5).astype(dtype)}) for _ in range(3)])
    return found


@habit
def branches_and_loops(kind: Kind) -> Any:
    branch = kind(
        made(
            "(float[N] x, bool c) => (float[N] y) { y = If (c) <then_branch = t () => (float[N] a) { a = Tanh(x) }, "
            "else_branch = e () => (float[N] b) { b = Neg(x) }> }"
        )
    )
    loop = kind(
        made(
            "(int64 n, float[4] x) => (float[4] y) { c = Constant<value_int = 1>() k = Cast<to = 9>(c) y = "
            "Loop (n, k, x) "
            "<body = b (int64 i, bool g, float[4] s) => (bool h, float[4] t) { h = Identity(g) u = Tanh(s) t = "
            "Add(u, s) }> }"
        )
    )
    return [
        [branch.run(None, {"x": X[0], "c": np.array(c)}) for c in (True, False, True)],
        [loop.run(None, {"n": np.array(n), "x": X[0]}) for n in (3, 0, 5)],
    ]


@habit
def nodes_that_only_the_cpu_has(kind: Kind) -> Any:
    session = kind(CUT)
    return [session.run(None, {"x": np.eye(4, dtype="f")[None].repeat(2, 0) * (k + 1)}) for k in range(4)]


@habit
def initializers_that_can_be_fed(kind: Kind) -> Any:
    session = kind(overridable())
    return [
        [v.name for v in session.get_overridable_initializers()],
        session.run(None, {"x": X[0]}),
        session.run(None, {"x": X[0], "s": np.full(1, -2, "f")}),
        session.run(None, {"x": X[1]}),
    ]


# ---- options


SETTINGS: dict[str, Callable[[Any], None]] = {
    "no_optimization": lambda s: setattr(
        s, "graph_optimization_level", onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    ),
    "extended": lambda s: setattr(
        s, "graph_optimization_level", onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    ),
    "parallel": lambda s: setattr(s, "execution_mode", onnxruntime.ExecutionMode.ORT_PARALLEL),
    "priority_order": lambda s: setattr(s, "execution_order", onnxruntime.ExecutionOrder.PRIORITY_BASED),
    "threads": lambda s: (setattr(s, "intra_op_num_threads", 1), setattr(s, "inter_op_num_threads", 1)),
    "no_arena": lambda s: (
        setattr(s, "enable_cpu_mem_arena", False),
        setattr(s, "enable_mem_pattern", False),
        setattr(s, "enable_mem_reuse", False),
    ),
    "deterministic": lambda s: setattr(s, "use_deterministic_compute", True),
    "a_dimension": lambda s: s.add_free_dimension_override_by_name("N", 3),
    "a_log_identifier": lambda s: setattr(s, "logid", "mine"),
    "no_spinning": lambda s: s.add_session_config_entry("session.intra_op.allow_spinning", "0"),
    "denormals": lambda s: s.add_session_config_entry("session.set_denormal_as_zero", "1"),
    "no_prepacking": lambda s: s.add_session_config_entry("session.disable_prepacking", "1"),
    "an_unknown_entry": lambda s: s.add_session_config_entry("nobody.knows", "1"),
    "no_quant_qdq": lambda s: s.add_session_config_entry("session.disable_quant_qdq", "1"),
    "initializers_from_the_device": lambda s: s.add_session_config_entry(
        "session.use_device_allocator_for_initializers", "1"
    ),
}


def with_settings(name: str) -> Habit:
    def run(kind: Kind) -> Any:
        settings = onnxruntime.SessionOptions()
        SETTINGS[name](settings)
        session = kind(MLP, settings)
        return [
            [session.run(None, {"x": X}) for _ in range(3)],
            session.get_inputs()[0].shape,
            session.get_session_options().logid,
        ]

    return run


HABITS.update({f"settings_{name}": with_settings(name) for name in SETTINGS})


@habit
def settings_for_two_sessions(kind: Kind) -> Any:
    settings = onnxruntime.SessionOptions()
    sessions = [kind(MLP, settings), kind(TWO, settings)]
    settings.intra_op_num_threads = 1
    return [
        sessions[0].run(None, {"x": X}),
        sessions[1].run(None, {"a": X[0], "b": X[1]}),
        sessions[0].get_session_options().intra_op_num_threads,
    ]


@habit
def a_profile_on_disk(kind: Kind) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        settings = onnxruntime.SessionOptions()
        settings.enable_profiling, settings.profile_file_prefix = True, f"{folder}/profile"
        session = kind(MLP, settings)
        got = session.run(None, {"x": X})
        path = session.end_profiling()
        return [got, Path(path).exists(), session.get_profiling_start_time_ns() > 0]


@habit
def the_optimised_model_on_disk(kind: Kind) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        settings = onnxruntime.SessionOptions()
        settings.optimized_model_filepath = f"{folder}/optimised.onnx"
        return [kind(MLP, settings).run(None, {"x": X}), Path(folder, "optimised.onnx").exists()]


RUN_OPTIONS: dict[str, Callable[[Any], None]] = {
    "terminate": lambda o: setattr(o, "terminate", True),
    "a_tag": lambda o: setattr(o, "logid", "mine"),
    "only_to_outputs": lambda o: setattr(o, "only_execute_path_to_fetches", True),
    "shrinking_arenas": lambda o: o.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0"),
    "no_synchronization": lambda o: o.add_run_config_entry("disable_synchronize_execution_providers", "1"),
    "an_unknown_entry": lambda o: o.add_run_config_entry("nobody.knows", "1"),
}


def with_run_options(name: str) -> Habit:
    def run(kind: Kind) -> Any:
        session, options = kind(MLP), onnxruntime.RunOptions()
        RUN_OPTIONS[name](options)
        ways = [
            lambda: session.run(["y"], {"x": X}, options),
            lambda: session.run_with_ort_values(["y"], {"x": value(X)}, options)[0].numpy().copy(),
        ]
        return [call() if raised(call) == "nothing" else raised(call) for call in ways for _ in range(2)] + [
            session.run(["y"], {"x": X})
        ]

    return run


HABITS.update({f"run_options_{name}": with_run_options(name) for name in RUN_OPTIONS})


@habit
def what_a_session_says(kind: Kind) -> Any:
    session = kind(MLP)
    meta = session.get_modelmeta()
    return [
        [(v.name, v.shape, v.type) for v in (*session.get_inputs(), *session.get_outputs())],
        CPU in session.get_providers(),
        [
            getattr(meta, n)
            for n in ("producer_name", "graph_name", "description", "domain", "version", "custom_metadata_map")
        ],
    ]


@habit
def other_providers_later(kind: Kind) -> Any:
    session = kind(MLP)
    first = session.run(None, {"x": X})
    session.set_providers([CPU])
    session.disable_fallback()
    return [first, session.run(None, {"x": X}), session.get_providers()]


@habit
def sessions_as_keys_and_attributes(kind: Kind) -> Any:
    session = kind(MLP)
    session.mine = 7
    return [
        {session: 1}[session],
        session.mine,
        isinstance(session, onnxruntime.InferenceSession),
        raised(lambda: pickle.dumps(session)),
    ]


@habit
def custom_operators_that_are_not_there(kind: Kind) -> Any:
    settings = onnxruntime.SessionOptions()
    return [
        raised(lambda: settings.register_custom_ops_library("no such library.so")),
        raised(lambda: kind(made("(float[N] x) => (float[N] y) { y = my.domain.Op(x) }"))),
    ]


# ---- forms


def by_name(model: Any, settings: Any = None) -> Any:
    """onnxruntime's own class, which names our provider."""
    import ort_gpu_ep

    ort_gpu_ep.register()
    return onnxruntime.InferenceSession(model, settings, providers=[(ort_gpu_ep.EP_NAME, {}), CPU])


def our_class(model: Any, settings: Any = None) -> Any:
    import ort_gpu_ep

    return ort_gpu_ep.InferenceSession(model, settings)


def theirs(model: Any, settings: Any = None) -> Any:
    """onnxruntime's class, or what stands in its place: after patch(), and below `ort-gpu-ep exec`."""
    return onnxruntime.InferenceSession(model, settings, providers=[CPU])


KINDS: dict[str, Kind] = {
    "plain": theirs,
    "executed": theirs,
    "patched": theirs,
    "our class": our_class,
    "by name": by_name,
}


def main() -> None:
    form, path = sys.argv[1:]
    warnings.simplefilter("ignore")
    logging.getLogger("ort_gpu_ep").setLevel(logging.CRITICAL)
    onnxruntime.set_default_logger_severity(4)
    if form == "patched":
        import ort_gpu_ep

        ort_gpu_ep.patch(say=False)
    found = dict[str, Any]()
    for name, function in HABITS.items():
        print(name, file=sys.stderr, flush=True)
        try:
            found[name] = function(KINDS[form])
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    Path(path).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
