"""Indices out of range that a run brings: ONNX Runtime's own error, whichever way the run went, and the next run is
right."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

import ort_gpu_ep
from ort_gpu_ep.device import index_check
from ort_gpu_ep.errors import IndexOutOfRangeError
from ort_gpu_ep.plugin import compute
from ort_gpu_ep.plugin.direct import RUNS_BEFORE
from ort_gpu_ep.webgpu import native
from tests.patience import PATIENCE_S
from tests.plugin.cases import info, make_model, node

pytestmark = pytest.mark.usefixtures("long_pauses")

INT64 = 7
Feeds = dict[str, np.ndarray]
X = np.arange(15, dtype="f").reshape(5, 3)
UPDATES = {"ScatterND": np.ones((2, 3), "f"), "ScatterElements": np.ones((2, 3), "f")}
GOOD: dict[str, Any] = {
    "Gather": [0, 4, -5],
    "GatherElements": [[0, 4, -5], [1, 2, 3]],
    "GatherND": [[0, 2], [-5, -3]],
    "ScatterND": [[4], [-5]],
    "ScatterElements": [[0, 4, -5], [1, 2, 3]],
}
BAD = {name: np.where(np.array(good) == np.max(good), 5, good) for name, good in GOOD.items()}


def quiet() -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return settings


def model(op: str, *behind: Any, **constants: Any) -> bytes:
    """The op along axis 0, with nodes behind it; its indices are an input unless they are given."""
    attributes = {} if op.endswith("ND") else {"axis": 0}
    inputs = [
        info("x", [5, 3]),
        *([] if "i" in constants else [info("i", ["N", *np.array(GOOD[op]).shape[1:]], INT64)]),
    ]
    inputs += [info("u", ["M", 3])] if op in UPDATES else []
    nodes = [node(op, "x i u" if op in UPDATES else "x i", "g", **attributes), *(behind or (node("Neg", "g", "y"),))]
    return make_model(nodes, inputs, ["y"], {**constants})


def feeds(op: str, indices: Any) -> Feeds:
    return {"x": X, "i": np.array(indices, np.int64), **({"u": UPDATES[op]} if op in UPDATES else {})}


def on_the_cpu(made: bytes) -> Any:
    return onnxruntime.InferenceSession(made, quiet(), providers=["CPUExecutionProvider"])


def opened(made: bytes, **options: str) -> Any:
    return ort_gpu_ep.InferenceSession(made, quiet(), provider_options={"placement": "gpu", **options})


def raised(session: Any, given: Feeds) -> Exception:
    try:
        answer = session.run(None, given)
    except Exception as error:
        return error
    raise AssertionError(f"{answer} in place of an exception")


@pytest.mark.parametrize("op", GOOD)
@pytest.mark.parametrize("options", [{}, {"isolation": "process"}, {"checked_shaders": "0"}], ids=str)
def test_a_run_raises_what_onnxruntime_raises(op: str, options: dict[str, str]) -> None:
    """Through ONNX Runtime, and past it; below the range, above it, and where the low 32 bits are in it."""
    made = model(op)
    session, cpu = opened(made, **options), on_the_cpu(made)
    assert session.explain().count("cpu") == 0
    for _ in range(2):
        for bad in (BAD[op], np.where(BAD[op] == 5, -6, BAD[op]), np.where(BAD[op] == 5, 1 << 32, BAD[op])):
            want, got = raised(cpu, feeds(op, bad)), raised(session, feeds(op, bad))
            assert type(got) is type(want)
            assert str(got).partition("Status Message: ")[2] == str(want).partition("Status Message: ")[2]
        for _ in range(RUNS_BEFORE + 1):
            np.testing.assert_array_equal(
                session.run(None, feeds(op, GOOD[op]))[0], cpu.run(None, feeds(op, GOOD[op]))[0]
            )
    assert session.stats()["fallbacks"] == 6


@pytest.mark.parametrize("options", [{}, {"strict": "1"}, {"isolation": "process"}], ids=str)
def test_a_plain_session_with_our_provider_by_name_raises_it_too(options: dict[str, str]) -> None:
    ort_gpu_ep.register()
    providers = [(ort_gpu_ep.EP_NAME, {"placement": "gpu", **options}), "CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model("Gather"), quiet(), providers=providers)
    for _ in range(3):
        with pytest.raises(InvalidArgument, match=r"out of (range|data bounds)"):
            session.run(None, feeds("Gather", BAD["Gather"]))
        np.testing.assert_array_equal(session.run(None, feeds("Gather", GOOD["Gather"]))[0], -X[GOOD["Gather"]])


def test_with_strict_it_is_an_exception_that_names_the_node() -> None:
    session = opened(model("Gather"), strict="1")
    for _ in range(RUNS_BEFORE + 2):
        with pytest.raises(IndexOutOfRangeError, match=r"out of range in Gather->g\. Expected"):
            session.run(None, feeds("Gather", [5]))
        np.testing.assert_array_equal(session.run(None, feeds("Gather", [4]))[0], -X[4:])
    assert session.state.gpu.circuit.is_closed


@pytest.mark.parametrize("runs_before", [RUNS_BEFORE + 2, 1], ids=["past onnxruntime", "through onnxruntime"])
def test_a_bad_run_beside_it_is_not_a_good_runs_fault(runs_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The good one is submitted behind the bad one, before that has read what it noted: in the same word."""
    session, wait, submitted, both = (
        opened(model("Gather"), strict="1"),
        native.wait,
        list[threading.Event](),
        threading.Barrier(2),
    )
    for _ in range(runs_before):
        session.run(None, feeds("Gather", [4]))

    def meet(*arguments: Any) -> None:
        if submitted:
            submitted.pop().set()
            both.wait(PATIENCE_S)
        wait(*arguments)

    monkeypatch.setattr(native, "wait", meet)
    behind, before = submitted[:] = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        bad = pool.submit(session.run, None, feeds("Gather", [5]))
        assert before.wait(PATIENCE_S)
        good = pool.submit(session.run, None, feeds("Gather", [4]))
        np.testing.assert_array_equal(good.result()[0], -X[4:])
        with pytest.raises(IndexOutOfRangeError):
            bad.result()
    assert behind.is_set()


def bound(session: Any, given: Feeds) -> Any:
    """A run whose output stays on the device."""
    binding = session.io_binding()
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y", "gpu", 0)
    session.run_with_iobinding(binding)
    return binding


@pytest.mark.parametrize("runs_before", [RUNS_BEFORE + 2, 0], ids=["past onnxruntime", "through onnxruntime"])
def test_what_stays_on_the_device_is_judged_by_its_own_run(runs_before: int) -> None:
    """However late it is read, however often, and whatever runs noted and read before."""
    session = opened(model("Gather"), strict="1")
    for _ in range(runs_before):
        session.run(None, feeds("Gather", [4]))
    good, bad = bound(session, feeds("Gather", [4])), bound(session, feeds("Gather", [5]))
    with pytest.raises(IndexOutOfRangeError):
        session.run(None, feeds("Gather", [5]))
    after = bound(session, feeds("Gather", [3]))
    for _ in range(2):
        with pytest.raises(Exception, match="out of range in Gather->g"):
            bad.copy_outputs_to_cpu()
        np.testing.assert_array_equal(good.copy_outputs_to_cpu()[0], -X[4:])
        np.testing.assert_array_equal(after.copy_outputs_to_cpu()[0], -X[3:4])
    np.testing.assert_array_equal(session.run(None, feeds("Gather", [4]))[0], -X[4:])


@pytest.mark.parametrize("bad_at", [0, 3, None])
def test_a_state_on_the_device_remembers_a_bad_run(bad_at: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through any number of runs; the words of those known to be good are not carried along."""
    monkeypatch.setattr(compute, "_MAX_WORDS", 4)
    made = make_model(
        [node("Gather", "x i", "g", axis=0), node("Add", "g s", "y")],
        [info("x", [5, 3]), info("i", [1], INT64), info("s", [1, 3])],
        ["y"],
    )
    session, words = opened(made, strict="1"), list[int]()
    check = index_check.check
    monkeypatch.setattr(index_check, "check", lambda some, values: (words.append(len(some)), check(some, values))[1])
    state = ort_gpu_ep.OrtValue.ortvalue_from_numpy(np.zeros((1, 3), "f"))

    def step(at: int) -> Any:
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_cpu_input("i", np.array([5 if at == bad_at else 1]))
        binding.bind_ortvalue_input("s", state)
        binding.bind_output("y", "gpu", 0)
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    if bad_at is None:
        for at in range(20):
            state = step(at)
        np.testing.assert_array_equal(state.numpy(), 20 * X[1:2])
        assert words == [5, 5, 5, 5, 0]
    else:
        with pytest.raises(Exception, match="out of range in Gather->g"):  # noqa: PT012  whichever step reads it
            for at in range(20):
                state = step(at)


def test_what_stays_on_the_device_says_so_when_it_is_read() -> None:
    """By a copy to the host behind a node of the CPU's, and of a value that is bound on the device."""
    made = model(
        "Gather",
        node("Neg", "g", "n"),
        node("CDist", "n n", "q", domain="com.microsoft", metric="sqeuclidean"),
        node("Neg", "q", "y"),
    )
    session = opened(made)
    assert {n.device for r in session.explain().reports for n in r.nodes} == {"gpu", "cpu"}
    assert isinstance(raised(session, feeds("Gather", [5])), InvalidArgument)
    np.testing.assert_allclose(
        session.run(None, feeds("Gather", [1]))[0], on_the_cpu(made).run(None, feeds("Gather", [1]))[0], rtol=1e-5
    )

    session = opened(model("Gather"))
    binding = bound(session, feeds("Gather", [5]))
    with pytest.raises(Exception, match="out of range in Gather->g"):
        binding.copy_outputs_to_cpu()


def test_a_position_behind_the_caches() -> None:
    made = make_model(
        [node("RotaryEmbedding", "x c s i", "y")],
        [info("x", [1, 2, 3, 4]), info("i", [1, 3], INT64)],
        ["y"],
        {"c": np.ones((5, 2), "f"), "s": np.zeros((5, 2), "f")},
        opset=23,
    )
    session, cpu, x = opened(made), on_the_cpu(made), np.ones((1, 2, 3, 4), "f")
    for bad in (5, -1, 2**31 - 1, 2**32, -(2**40), 2**63 - 1):
        given = {"x": x, "i": np.array([[0, 1, bad]])}
        assert str(raised(session, given)).partition("Status")[2] == str(raised(cpu, given)).partition("Status")[2]
    np.testing.assert_array_equal(session.run(None, {"x": x, "i": np.array([[0, 1, 4]])})[0], x)
    assert session.stats()["fallbacks"] == 6


def test_nothing_is_looked_at_where_the_indices_are_known() -> None:
    def reporting(**constants: Any) -> tuple[str, ...]:
        session = opened(model("Gather", **constants))
        session.run(None, {n: a for n, a in feeds("Gather", [1]).items() if n not in constants})
        (plan,) = session.state.partitions[0].program.plans
        return tuple(plan.reporting)

    assert reporting() == ("Gather->g",)
    assert reporting(i=np.array([-5, 4])) == ()
    assert reporting(i=np.array([-1, 0])) == ()


def test_known_indices_out_of_range_raise_too() -> None:
    made = model("Gather", i=np.array([1, 5]))
    assert (
        str(raised(opened(made), {"x": X})).partition("Status")[2]
        == str(raised(on_the_cpu(made), {"x": X})).partition("Status")[2]
    )


LENGTHS: dict[str, tuple[type, int]] = {
    "LSTM": (np.int32, 4),
    "GRU": (np.int32, 3),
    "RNN": (np.int32, 1),
    "ReverseSequence": (np.int64, 0),
}


def of_lengths(op: str, **given: Any) -> bytes:
    """Two sequences of three steps."""
    kind, gates = LENGTHS[op]
    if gates:
        rng, layer = (
            np.random.default_rng(3),
            {"hidden_size": 4, "linear_before_reset": 1} if op == "GRU" else {"hidden_size": 4},
        )
        given |= {
            "w": rng.normal(size=(1, 4 * gates, 3)).astype("f"),
            "r": rng.normal(size=(1, 4 * gates, 4)).astype("f"),
        }
        sequences = node(op, "x w r", "g", **layer)
        sequences.input.extend(["", "lengths"])
    else:
        sequences = node(op, "x lengths", "g")
    inputs = [
        info("x", [3, 2, 3]),
        *([] if "lengths" in given else [info("lengths", [2], 6 if kind is np.int32 else INT64)]),
    ]
    return make_model([sequences, node("Neg", "g", "y")], inputs, ["y"], given)


@pytest.mark.parametrize("op", LENGTHS)
def test_a_length_beyond_the_steps_raises_what_onnxruntime_raises(op: str) -> None:
    kind, x = LENGTHS[op][0], np.linspace(-1, 1, 18, dtype="f").reshape(3, 2, 3)
    session, cpu, strict = opened(of_lengths(op)), on_the_cpu(of_lengths(op)), opened(of_lengths(op), strict="1")
    assert session.explain().count("cpu") == 0
    bad = ([3, 4], [-1, 2], [1, np.iinfo(np.int32).min], *([] if kind is np.int32 else [[1 << 32, 1]]))
    for lengths in bad:
        given = {"x": x, "lengths": np.array(lengths, kind)}
        assert str(raised(session, given)).partition("Status")[2] == str(raised(cpu, given)).partition("Status")[2]
        with pytest.raises(IndexOutOfRangeError, match=rf"length is out of range in {op}->g\. Expected 0 to"):
            strict.run(None, given)
    for lengths in ([3, 0], [1, 2]):
        given = {"x": x, "lengths": np.array(lengths, kind)}
        np.testing.assert_allclose(strict.run(None, given)[0], cpu.run(None, given)[0], atol=1e-6)
    fixed = opened(of_lengths(op, lengths=np.array([3, 0], kind)), strict="1")
    fixed.run(None, {"x": x})
    assert fixed.state.partitions[0].program.plans[0].reporting == ()
