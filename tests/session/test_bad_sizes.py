"""Sizes that nobody planned for: none, too many, contradicting ones. An error that says so or the CPU, at once, and the
session goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import psutil
import pytest

import ort_gpu_ep
from ort_gpu_ep.device.gpu import Gpu
from ort_gpu_ep.errors import DeviceError
from ort_gpu_ep.runtime.prepared import MAX_TURNS
from tests.plugin.cases import info, make_model, node

INT64 = 7

rng = np.random.default_rng(7)
WEIGHT = rng.standard_normal((8, 8)).astype("f")


def quiet() -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return settings


def opened(model: bytes, **options: str) -> Any:
    return ort_gpu_ep.InferenceSession(model, quiet(), provider_options={"placement": "gpu", **options})


def on_cpu(model: bytes) -> Any:
    return onnxruntime.InferenceSession(model, quiet(), providers=["CPUExecutionProvider"])


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype("f")


def chain(**more: Any) -> bytes:
    nodes = [node("MatMul", "x W", "a"), node("Softmax", "a", "b"), node("MatMul", "b W", "y")]
    return make_model(nodes, [info("x", ["N", 8])], ["y"], {"W": WEIGHT, **more})


def expanded() -> bytes:
    return make_model(
        [node("Expand", "x s", "e"), node("ReduceSum", "e", "y")], [info("x", [1]), info("s", [1], INT64)], ["y"]
    )


ZERO = {
    "chain": [node("MatMul", "x W", "a"), node("Softmax", "a", "b"), node("Relu", "b", "y")],
    "softmax": [node("Softmax", "x", "y", axis=0)],
    "sum": [node("ReduceSum", "x first", "y")],
    "concat": [node("Concat", "x W", "y", axis=0)],
    "product": [node("Transpose", "x", "t", perm=[1, 0]), node("MatMul", "t x", "y")],
    "reshape": [node("Reshape", "x halves", "y")],
    "slice": [node("Slice", "x first five", "y")],
    "cumsum": [node("CumSum", "x axis", "y")],
    "pad": [node("Pad", "x pads", "y")],
    "tile": [node("Tile", "x twice", "y")],
}


@pytest.mark.parametrize("name", ZERO)
def test_a_size_may_be_zero(name: str) -> None:
    constants = {
        "W": WEIGHT,
        "first": np.array([0]),
        "five": np.array([5]),
        "axis": np.array(0),
        "halves": np.array([-1, 4]),
        "pads": np.array([1, 1, 1, 1]),
        "twice": np.array([2, 2]),
    }
    model = make_model(ZERO[name], [info("x", ["N", 8])], ["y"], constants)
    session, cpu = opened(model, strict="1"), on_cpu(model)
    assert session.explain().count("cpu") == 0
    for rows in (3, 0, 1, 5, 0, 7):
        given = {"x": floats(rows, 8)}
        np.testing.assert_allclose(
            session.run(None, given)[0], cpu.run(None, given)[0], rtol=1e-5, atol=1e-5, err_msg=f"{rows} rows"
        )


def test_a_size_may_be_larger_than_32_bits_of_nothing() -> None:
    model = make_model([node("Relu", "x", "r"), node("Neg", "r", "y")], [info("x", ["N", "M"])], ["y"])
    session = opened(model, strict="1")
    for shape in ((2**31, 0), (0, 2**31), (2**40, 0)):
        assert session.run(None, {"x": np.zeros(shape, "f")})[0].shape == shape
    given = floats(3, 4)
    np.testing.assert_array_equal(session.run(None, {"x": given})[0], -np.maximum(given, 0))


@pytest.mark.parametrize("size", [2**31, 2**32 + 5, 2**62, 2**63 - 1])
def test_more_than_fits_is_an_error_at_once(size: int) -> None:
    """As many elements as 32-bit indices would wrap around at are refused before anything is allocated."""
    session = opened(expanded(), strict="1")
    before = psutil.Process().memory_info().rss
    with pytest.raises(Exception, match=r"LIMIT: Expand->e: .*this adapter allows") as caught:
        session.run(None, {"x": np.ones(1, "f"), "s": np.array([size])})
    assert "*s" not in str(caught.value).splitlines()[0], "numbers, not formulas"
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert session.run(None, {"x": np.ones(1, "f"), "s": np.array([7])})[0] == 7


def test_more_than_anybody_has_is_the_cpus_error() -> None:
    session = opened(expanded())
    with pytest.raises(Exception, match="overflow"):
        session.run(None, {"x": np.ones(1, "f"), "s": np.array([2**62])})
    assert session.run(None, {"x": np.ones(1, "f"), "s": np.array([7])})[0] == 7


def test_no_shape_has_a_negative_size() -> None:
    session = opened(expanded(), strict="1")
    assert session.run(None, {"x": np.ones(1, "f"), "s": np.array([7])})[0] == 7
    with pytest.raises(Exception, match=r"ATTRIBUTE: Expand->e: Expand of float32\[1\] to \(-5,\)"):
        session.run(None, {"x": np.ones(1, "f"), "s": np.array([-5])})
    assert session.run(None, {"x": np.ones(1, "f"), "s": np.array([9])})[0] == 9


@pytest.mark.parametrize("op", ["Add", "Concat"])
def test_one_name_for_two_sizes(op: str) -> None:
    """The model says N twice, the run brings two numbers: what onnxruntime's CPU makes of it, an error or a
    broadcast."""
    nodes = (
        [node("Add", "a b", "s"), node("Softmax", "s", "y")]
        if op == "Add"
        else [node("Concat", "a b", "s", axis=1), node("Relu", "s", "y")]
    )
    model = make_model(nodes, [info("a", ["N", 4]), info("b", ["N", 4])], ["y"])
    session, cpu = opened(model), on_cpu(model)
    for one, other in ((3, 3), (3, 5), (1, 5), (5, 1), (5, 5), (3, 5), (7, 7)):
        given = {"a": floats(one, 4), "b": floats(other, 4)}
        if one == other or (op == "Add" and 1 in (one, other)):
            np.testing.assert_allclose(session.run(None, given)[0], cpu.run(None, given)[0], rtol=1e-5, atol=1e-6)
        else:
            for either in (session, cpu):
                with pytest.raises(Exception, match="Non-zero status code"):
                    either.run(None, given)


def test_more_shapes_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is the CPU's; what fits again is the GPU's, with buffers of its own."""
    session, cpu = opened(chain()), on_cpu(chain())
    gpu = session.state.gpu
    gpu.trim()
    # other sessions hold some
    monkeypatch.setattr(gpu, "memory_limit_nbytes", gpu.stats.allocated_nbytes + (8 << 20))
    for rows in (10, 1000, 20_000, 200_000, 10, 20_001, 400_000, 60_000, 11, 20_000):
        gpu.circuit.reset()
        fallbacks, given = session.stats()["fallbacks"], {"x": floats(rows, 8)}
        np.testing.assert_allclose(
            session.run(None, given)[0], cpu.run(None, given)[0], rtol=1e-5, atol=1e-5, err_msg=f"{rows} rows"
        )
        assert rows > 40_000 or session.stats()["fallbacks"] == fallbacks, f"{rows} rows fit"
        assert gpu.stats.allocated_nbytes <= gpu.memory_limit_nbytes
    assert session.stats()["fallbacks"] >= 2
    assert all(
        "OutOfDeviceMemoryError" in str(event) or "MemoryLimitError" in str(event) for event in session.explain().events
    )


def test_parameters_that_did_not_arrive_are_not_believed_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    session, cpu = opened(chain()), on_cpu(chain())
    session.run(None, {"x": floats(3, 8)})
    (prepared,), upload, failing = session.state.partitions[0].program.compiled.general, Gpu.upload, [True]

    def failed(gpu: Gpu, buffer: Any, *arguments: Any) -> None:
        if buffer is prepared._parameters and failing:
            failing.clear()
            raise DeviceError("on purpose")
        upload(gpu, buffer, *arguments)

    monkeypatch.setattr(Gpu, "upload", failed)
    for rows in (4, 4, *range(5, 2 * MAX_TURNS), 4, 3):
        given = {"x": floats(rows, 8)}
        np.testing.assert_allclose(
            session.run(None, given)[0], cpu.run(None, given)[0], rtol=1e-5, atol=1e-5, err_msg=f"{rows} rows"
        )
    assert session.stats()["fallbacks"] == 1
    assert len({shape.region for shape in prepared._shapes.values()}) == len(prepared._shapes) <= MAX_TURNS


OPEN = {"Relu": {}, "Transpose": {"perm": [7, 6, 5, 4, 3, 2, 1, 0]}, "ReduceSum": {}, "Softmax": {"axis": 3}}


@pytest.mark.parametrize("op", OPEN)
def test_rank_8_with_all_sizes_open(op: str) -> None:
    model = make_model([node(op, "x", "y", **OPEN[op])], [info("x", list("abcdefgh"))], ["y"])
    opened(chain())  # what the first session of a process takes is not this one's
    before = psutil.Process().memory_info().rss
    session = opened(model)
    assert psutil.Process().memory_info().rss - before < 64 << 20
    given = {"x": floats(1, 2, 1, 3, 1, 2, 1, 2)}
    np.testing.assert_allclose(session.run(None, given)[0], on_cpu(model).run(None, given)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "op", ["Relu", "Transpose", "ReduceSum", "Softmax", "MatMul", "Concat", "GlobalAveragePool", "Conv"]
)
def test_huge_sizes_that_the_model_fixes(op: str) -> None:
    attributes = {"Concat": {"axis": 1}, "Transpose": {"perm": [3, 2, 1, 0]}}.get(op, {})
    weight = {"w": np.ones((1, 65536, 1, 1), "f")} if op == "Conv" else {}
    inputs = "x x" if op in ("MatMul", "Concat") else "x w" if op == "Conv" else "x"
    before = psutil.Process().memory_info().rss
    session = opened(make_model([node(op, inputs, "y", **attributes)], [info("x", [65536] * 4)], ["y"], weight))
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert session.explain().count("gpu") == 0


def refusals(model: bytes, runs: list[dict[str, np.ndarray]]) -> tuple[list[str], list[str]]:
    """Of each run, what the GPU's session and what the CPU's raises; what they answer agrees."""
    found: tuple[list[str], list[str]] = [], []
    sessions = opened(model), on_cpu(model)
    for feeds in runs:
        answers = list[Any]()
        for session, raised in zip(sessions, found, strict=True):
            try:
                answers.append(session.run(None, feeds))
                raised.append("nothing")
            except Exception as error:
                raised.append(type(error).__name__)
        if len(answers) == 2:
            for got, want in zip(*answers, strict=True):
                assert (got is None) == (want is None)
                if want is not None:
                    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    return found


def test_channels_that_a_folded_normalization_has_no_parameters_for() -> None:
    parameters = {name: np.abs(floats(1)) + 1 for name in ("scale", "bias", "mean", "var")}
    model = make_model(
        [node("BatchNormalization", "x scale bias mean var", "y")], [info("x", ["N", "C", 3])], ["y"], parameters
    )
    ours, theirs = refusals(model, [{"x": floats(2, channels, 3)} for channels in (1, 33, 1, 2)])
    assert ours == theirs == ["nothing", "InvalidArgument", "nothing", "InvalidArgument"]


def test_one_hot_values_that_are_not_two() -> None:
    model = make_model(
        [node("OneHot", "i depth v", "y")], [info("i", ["N"], INT64), info("v", ["V"])], ["y"], {"depth": np.array(5)}
    )
    ours, theirs = refusals(model, [{"i": np.array([1, 0, 4]), "v": floats(size)} for size in (2, 5, 16, 2)])
    assert ours == theirs == ["nothing", "InvalidArgument", "InvalidArgument", "nothing"]


def test_a_training_mode_that_is_neither_0_nor_1() -> None:
    inputs = [info("x", [2, 3, 4]), *(info(name, [3]) for name in ("scale", "bias", "mean", "var"))]
    model = make_model(
        [node("BatchNormalization", "x scale bias mean var", "y m v", training_mode=8)], inputs, ["y", "m", "v"]
    )
    feeds = {"x": floats(2, 3, 4), **{name: np.abs(floats(3)) + 1 for name in ("scale", "bias", "mean", "var")}}
    assert refusals(model, [feeds]) == (["nothing"], ["nothing"])


def test_keys_of_another_width_than_queries() -> None:
    inputs = [info("q", ["B", 3, 4, "D"]), info("k", ["B", 3, "K", "E"]), info("v", ["B", 3, "K", "D"])]
    model = make_model([node("Attention", "q k v", "y", softcap=2.0)], inputs, ["y"], opset=23)
    sizes = ((8, 8), (1, 4), (8, 4), (1, 1))
    ours, theirs = refusals(
        model, [{"q": floats(2, 3, 4, d), "k": floats(2, 3, 6, e), "v": floats(2, 3, 6, d)} for d, e in sizes]
    )
    assert ours == theirs == ["nothing", "Fail", "Fail", "nothing"]
