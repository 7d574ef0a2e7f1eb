"""Small inputs whose content decides on a shape: read when a run begins, part of what a plan is made for, no reason to
compile anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_gpu_ep
from tests.plugin.cases import info, make_model, node

pytestmark = pytest.mark.usefixtures("long_pauses")

INT64 = 7

rng = np.random.default_rng(3)


def sliced() -> bytes:
    nodes = [
        node("Relu", "x", "r"),
        node("Slice", "r from to along", "s"),
        node("Reshape", "s shape", "f"),
        node("Exp", "f", "y"),
    ]
    inputs = [info("x", ["N", 8]), info("from", [1], INT64), info("to", [1], INT64), info("shape", [2], INT64)]
    return make_model(nodes, inputs, ["y"], {"along": np.array([0])})


def opened(model: bytes, **options: str) -> Any:
    return ort_gpu_ep.InferenceSession(model, provider_options={"placement": "gpu", "strict": "1", **options})


def feeds(rows: int, start: int, end: int, columns: int) -> dict[str, np.ndarray]:
    return {
        "x": rng.standard_normal((rows, 8)).astype("f"),
        "from": np.array([start]),
        "to": np.array([end]),
        "shape": np.array([-1, columns]),
    }


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_other_contents_need_no_other_plan(isolation: str) -> None:
    session, cpu = (
        opened(sliced(), isolation=isolation),
        onnxruntime.InferenceSession(sliced(), providers=["CPUExecutionProvider"]),
    )
    assert session.explain().count("cpu") == 0
    for given in [feeds(9, 1, 5, 4), feeds(9, 2, 8, 2), feeds(40, 7, 39, 16), feeds(9, 1, 5, 4)]:
        np.testing.assert_allclose(session.run(None, given)[0], cpu.run(None, given)[0], rtol=1e-6)
    assert session.explain().count("cpu") == 0, "also now that it has run"
    if isolation == "none":
        (partition,) = session.state.partitions
        assert partition.program.planned == 1


def test_contents_of_another_kind_make_another_plan() -> None:
    """A start that counts from the end is not what the first plan was made for."""
    session, cpu = opened(sliced()), onnxruntime.InferenceSession(sliced(), providers=["CPUExecutionProvider"])
    for given in [feeds(9, 1, 5, 4), feeds(9, -3, 1000, 4), feeds(9, -2, 1000, 8), feeds(9, 3, 3, 8)]:
        np.testing.assert_allclose(session.run(None, given)[0], cpu.run(None, given)[0], rtol=1e-6)
    (partition,) = session.state.partitions
    assert 2 <= partition.program.planned <= 3


def test_what_lies_on_the_host_is_not_read_back() -> None:
    session = opened(sliced())
    session.run(None, feeds(9, 1, 5, 4))
    gpu = session.state.gpu
    downloads = gpu.stats.downloads
    session.run(None, feeds(9, 2, 6, 4))
    assert gpu.stats.downloads == downloads + 1, "only the result"


def test_what_can_not_be_done_is_said() -> None:
    session = opened(sliced())
    with pytest.raises(Exception, match="the sizes differ"):
        session.run(None, feeds(9, 1, 5, 5))
    session.run(None, feeds(9, 1, 5, 4))


def test_scales_are_floats() -> None:
    model = make_model(
        [node("Resize", "x none scales", "y", mode="linear")],
        [info("x", [1, 1, "H", "W"]), info("scales", [4])],
        ["y"],
        {"none": np.zeros(0, "f")},
    )
    session, cpu = opened(model), onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for height, scale in [(5, 2.0), (7, 2.0), (5, 1.6)]:
        given = {"x": rng.standard_normal((1, 1, height, 6)).astype("f"), "scales": np.array([1, 1, scale, 2], "f")}
        np.testing.assert_allclose(session.run(None, given)[0], cpu.run(None, given)[0], rtol=1e-5, atol=1e-6)
    assert session.state.partitions[0].program.planned == 2


def ranges(start: float, limit: float, delta: float) -> dict[str, np.ndarray]:
    return {"start": np.array(start, "f"), "limit": np.array(limit, "f"), "delta": np.array(delta, "f")}


def test_ranges_of_floats() -> None:
    """As long as onnxruntime's, which adds the steps up one by one; the last values of long ones are therefore compared
    with exact ones."""
    model = make_model(
        [node("Range", "start limit delta", "r"), node("Neg", "r", "y")],
        [info(n, []) for n in ("start", "limit", "delta")],
        ["y"],
    )
    session, cpu = opened(model), onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    drawn = [tuple(rng.uniform(-9, 9, 3)) for _ in range(20)]
    for start, limit, delta in [
        *drawn,
        (0, 1, 0.1),
        (0, -1, -0.1),
        (1, 1, 2),
        (2, 1, 1),
        (0.1, 0.9, 0.1),
        (-3, 70_001, 1),
    ]:
        given = ranges(start, limit, delta)
        (got,), (wanted,) = session.run(None, given), cpu.run(None, given)
        assert got.shape == wanted.shape
        exact = -(np.float64(given["start"]) + np.arange(wanted.size) * np.float64(given["delta"]))
        np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("given", [(0, 1, 0), (0, np.inf, 1), (0, np.nan, 1), (np.nan, 1, 1)])
def test_ranges_without_an_end_are_declined(given: tuple[float, float, float]) -> None:
    model = make_model(
        [node("Range", "start limit delta", "r"), node("Neg", "r", "y")],
        [info(n, []) for n in ("start", "limit", "delta")],
        ["y"],
    )
    with pytest.raises(Exception, match="Range from"):
        opened(model).run(None, ranges(*given))


def counted() -> bytes:
    """As many rows as the data says."""
    nodes = [
        node("Relu", "x", "r"),
        node("ReduceMax", "r", "m", keepdims=0),
        node("Cast", "m", "c", to=INT64),
        node("Reshape", "c one", "k"),
        node("Slice", "r from k along", "s"),
        node("Exp", "s", "y"),
    ]
    return make_model(
        nodes,
        [info("x", ["N", 8])],
        ["y"],
        {"from": np.array([0]), "along": np.array([0]), "one": np.array([1])},
        opset=13,
    )


def test_what_the_gpu_computed_is_read_in_between() -> None:
    """The shape of a result depends on a value of the GPU's: one readback, and both sides of it stay on the GPU."""
    session, cpu = opened(counted()), onnxruntime.InferenceSession(counted(), providers=["CPUExecutionProvider"])
    assert session.explain().count("cpu") == 0
    assert len(session.state.partitions) == 2
    for most in (3.5, 1.2, 7.9, 2.0):
        x = np.minimum(rng.standard_normal((9, 8)), 1).astype("f")
        x[4, 4] = most
        np.testing.assert_allclose(session.run(None, {"x": x})[0], cpu.run(None, {"x": x})[0], rtol=1e-6)
    assert [p.program.planned for p in session.state.partitions] == [1, 2], "a slice of one row has a plan of its own"
    downloads = session.state.gpu.stats.downloads
    session.run(None, {"x": x})
    assert session.state.gpu.stats.downloads == downloads + 2, "the value, and the result"
    x[4, 4] = 5.5
    session.run(None, {"x": x})
    assert session.state.gpu.stats.downloads == downloads + 4, "a new value is read once, too"


def test_data_that_needs_ever_new_plans_goes_to_the_cpu() -> None:
    model = make_model(
        [node("Resize", "x none scales", "y", mode="linear")],
        [info("x", [1, 1, 5, 6]), info("scales", [4])],
        ["y"],
        {"none": np.zeros(0, "f")},
    )
    session = ort_gpu_ep.InferenceSession(model, provider_options={"placement": "gpu"})
    cpu = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for k in range(40):
        given = {"x": rng.standard_normal((1, 1, 5, 6)).astype("f"), "scales": np.array([1, 1, 1 + k / 16, 2], "f")}
        np.testing.assert_allclose(session.run(None, given)[0], cpu.run(None, given)[0], rtol=1e-5, atol=1e-6)
    (partition,) = session.state.partitions
    assert partition.program.planned == 24
    assert partition.fallbacks == 16
    assert "needed a plan of their own" in str(session.explain())
