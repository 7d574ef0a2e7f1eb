"""Work that takes long is no hang: a run is submitted in parts, each of which has the time that a GPU has to answer;
compiling has its own."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ort_gpu_ep
from ort_gpu_ep.device import gpu as device
from ort_gpu_ep.device.gpu import COMPILE_S, Gpu
from ort_gpu_ep.webgpu import waiting
from tests.session.random_graphs import quiet
from tests.unit.graphs import model_of

rng = np.random.default_rng(9)

MODELS = {
    "sorting": ("(float[A, B, 40] x) => (v, i) { v, i = TopK(x, k) }", {"k": np.array([7])}),
    "product": (
        "(float[A, B, 40] x) => (y) { p = MatMul(x, w) y = Relu(p) }",
        {"w": rng.standard_normal((40, 64)).astype("f")},
    ),
    "windows": (
        "(float[A, B, 40] x) => (y) { u = Unsqueeze(x, axis) y = Conv<pads = [1, 1, 1, 1]>(u, w) }",
        {"axis": np.array([1]), "w": rng.standard_normal((8, 1, 3, 3)).astype("f")},
    ),
    "rows": (
        "(float[A, B, 40] x) => (y, z) { y = Softmax(x) m = ReduceMax(x, axis) z = Sub(x, m) }",
        {"axis": np.array([1])},
    ),
    "bytes": (
        "(float[A, B, 40] x) => (y) { c = Greater(x, zero) n = Not(c) t = Transpose<perm = [2, 0, 1]>(n) y = "
        "Identity(t) }",
        {"zero": np.float32(0)},
    ),
    "moves": (
        "(float[A, B, 40] x) => (y, z) { y = Transpose<perm = [1, 2, 0]>(x) z = CumSum(x, axis) }",
        {"axis": np.array(2)},
    ),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_a_run_in_parts_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one dispatch, whose workgroups are counted from where a part begins."""
    text, constants = MODELS[name]
    model = model_of(text, constants).SerializeToString()
    cpu = onnxruntime.InferenceSession(model, quiet(), providers=["CPUExecutionProvider"])
    whole = ort_gpu_ep.InferenceSession(model, quiet(), provider_options={"placement": "gpu", "strict": "1"})
    feeds = [{"x": rng.standard_normal(shape).astype("f")} for shape in ((3, 50, 40), (5, 70, 40), (3, 50, 40))]
    submits = []
    for share in (device.SHARE, 1e-6):
        monkeypatch.setattr(device, "SHARE", share)
        session = (
            whole
            if share > 1e-6
            else ort_gpu_ep.InferenceSession(model, quiet(), provider_options={"placement": "gpu", "strict": "1"})
        )
        stats = session.state.gpu.stats
        for given in feeds:
            before = stats.submits
            for got, want in zip(session.run(None, given), cpu.run(None, given), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        submits.append(stats.submits - before)
    assert submits[1] > 2 * submits[0]
    assert not session.state.gpu.milestones, "each was waited for"


def test_no_limit_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SimpleNamespace(info=SimpleNamespace(is_software=True), hang_timeout_s=0.0)
    assert Gpu.most_turns.fget(limits) == float("inf")  # type: ignore[attr-defined]
    limits.hang_timeout_s = 80.0
    assert Gpu.most_turns.fget(limits) == 10 * device.TURNS_A_S_OF_SOFTWARE  # type: ignore[attr-defined]


class Queue:
    """A device whose submissions end at these times, one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends_s: dict[int, float], limit_s: float) -> None:
        self.now_s, self.ends_s, self.hang_timeout_s = 0.0, ends_s, limit_s
        self.last_wait_s = self.last_arrival_s = 0.0
        self.milestones: deque[tuple[int, float]] = deque()
        monkeypatch.setattr(waiting.time, "perf_counter", lambda: self.now_s)

    def ends_in_time(self, index: int, timeout_s: float) -> bool:
        end_s = min(max(self.ends_s[index], self.now_s), self.now_s + timeout_s)
        self.now_s = end_s
        return self.ends_s[index] <= end_s


def wait(queue: Any, index: int) -> bool:
    return waiting.wait_until(queue, index, None)


def test_each_part_has_the_time_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, {1: 90, 2: 180, 3: 270}, 100)
    assert not wait(queue, 3)
    queue = Queue(monkeypatch, {1: 90, 2: 180, 3: 270}, 100)
    queue.milestones += [(1, 100), (2, 100)]
    assert wait(queue, 3)
    assert not queue.milestones
    queue = Queue(monkeypatch, {1: 90, 2: 210, 3: 220}, 100)
    queue.milestones += [(1, 100), (2, 100)]
    assert not wait(queue, 3), "the second part takes 120 s"


def test_what_comes_behind_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, {1: 10, 2: 1e9}, 100)
    queue.milestones += [(2, 100)]
    assert wait(queue, 1)
    assert list(queue.milestones) == [(2, 100)]


def test_compiling_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """llvmpipe compiles at the first dispatch: that is a submission without work, which has another limit than the run
    behind it."""
    queue = Queue(monkeypatch, {1: 400, 2: 410}, 100)
    queue.milestones.append((1, COMPILE_S))
    assert wait(queue, 2)
    text, constants = MODELS["rows"]
    limits, flush = [], Gpu.flush
    monkeypatch.setattr(Gpu, "flush", lambda self, limit_s=0.0: (limits.append(limit_s), flush(self, limit_s))[1])
    session = ort_gpu_ep.InferenceSession(
        model_of(text, constants).SerializeToString(), quiet(), provider_options={"placement": "gpu", "strict": "1"}
    )
    given = {"x": rng.standard_normal((2, 3, 40)).astype("f")}
    for _ in range(3):
        session.run(None, given)
    assert limits.count(COMPILE_S) == 1


@pytest.mark.parametrize(
    "text", ["v, y = TopK(x, k)", "y = ArgMax<axis = 2>(x)", "y = ReduceSum(x, axes)", "y = Softmax<axis = 2>(x)"]
)
def test_short_rows_are_not_sorted_by_a_plan_for_long_ones(text: str) -> None:
    model = model_of(
        f"(float[A, B, C] x) => (y) {{ {text} }}", {"k": np.array([2]), "axes": np.array([2])}
    ).SerializeToString()
    session = ort_gpu_ep.InferenceSession(model, quiet(), provider_options={"placement": "gpu", "strict": "1"})
    cpu = onnxruntime.InferenceSession(model, quiet(), providers=["CPUExecutionProvider"])
    for shape in ((2, 3, 700), (20, 30, 4), (7, 5, 600), (30, 20, 3)):
        given = {"x": rng.standard_normal(shape).astype("f")}
        np.testing.assert_allclose(session.run(None, given)[0], cpu.run(None, given)[0], rtol=1e-4, atol=1e-5)
    (partition,) = session.state.partitions
    assert partition.program.planned == 2, "one for long rows, one for short ones"
