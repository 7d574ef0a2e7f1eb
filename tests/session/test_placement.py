"""Where nodes run: the report is onnxruntime's truth; shapes change at run time; what the GPU can't do the CPU does,
visibly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings

import ort_gpu_ep as ort
from ort_gpu_ep.errors import DeviceError, OutOfDeviceMemoryError, UnsupportedNodeError
from ort_gpu_ep.partitioner.fusions import RULES, Rule
from tests.session.conftest import NODES, assert_close, gpu_session, on_the_cpu
from tests.unit.graphs import model_of, random_models
from tests.unit.rule_models import EXAMPLES, RULE_IDS, model_of_rule

pytestmark = pytest.mark.usefixtures("long_pauses")

Array = np.ndarray[Any, Any]


def recording() -> Any:
    """Session options with which onnxruntime keeps its own record of who got which node."""
    made = onnxruntime.SessionOptions()
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return made


def assigned(session: Any) -> Counter[tuple[str, str]]:
    """(device, op) of each node by onnxruntime's record."""
    device = {ort.EP_NAME: "gpu", "CPUExecutionProvider": "cpu"}
    return Counter(
        (device[part.ep_name], n.op_type)
        for part in session.get_provider_graph_assignment_info()
        for n in part.get_nodes()
    )


def explained(session: Any) -> Counter[tuple[str, str]]:
    """The same by explain(); what the host computes for a partition is part of it."""
    return Counter(
        ("cpu" if n.device == "cpu" else "gpu", n.op) for report in session.explain().reports for n in report.nodes
    )


MODELS = {
    "island": "(float[2, 4, 4] x) => (float[2, 4, 4] y) <float[2, 4, 4] i> "
    "{ a = Tanh(x) i = com.microsoft.Inverse(a) e = Exp(i) y = Neg(e) }",
    "diamond": "(float[2, 4, 4] x) => (float[2, 4, 4] y) <float[2, 4, 4] i> "
    "{ a = Tanh(x) i = com.microsoft.Inverse(a) e = Exp(a) s = Softmax(e) y = Add(i, s) }",
    "nothing of ours": "(float[2, 4, 4] x) => (float[2, 4, 4] y) { y = com.microsoft.Inverse(x) }",
    "shapes": "(float[N, 4, M] x) => (float[N, K] y) "
    "{ s = Shape(x) i = Gather(s, zero) t = Concat<axis=0>(i, rest) e = Exp(x) y = Reshape(e, t) }",
    "an if": "(float[2, 4, 4] x, bool c) => (float[2, 4, 4] y) { a = Tanh(x) "
    "b = If(c) < then_branch = t () => (float[2, 4, 4] r) { r = Exp(a) }, "
    "else_branch = e () => (float[2, 4, 4] q) { q = Neg(x) } > y = Softmax(b) }",
}


def model_named(name: str) -> bytes:
    constants = {"zero": np.array([0]), "rest": np.array([-1])}
    used = {n: a for n, a in constants.items() if n in MODELS[name]}
    return bytes(model_of(MODELS[name], used).SerializeToString())


@pytest.mark.parametrize("placement", ["gpu", "cpu", "auto"])
@pytest.mark.parametrize("name", MODELS)
def test_explain_agrees_with_onnxruntime(name: str, placement: str) -> None:
    session = ort.InferenceSession(model_named(name), recording(), provider_options={"placement": placement})
    truth = assigned(session)
    assert explained(session) == truth
    assert sum(truth.values()) >= 1


@pytest.mark.parametrize("placement", ["cpu", "auto"])
def test_these_placements_take_nothing_on_a_software_adapter(placement: str, mlp: bytes, x: Array) -> None:
    if placement == "auto":
        assert ort.adapters()[0].is_software, "these tests expect a software adapter: set VK_DRIVER_FILES to lavapipe's"
    session = ort.InferenceSession(mlp, recording(), provider_options={"placement": placement})
    assert {device for device, _ in assigned(session)} == {"cpu"}
    assert session.explain().count("cpu") == NODES
    assert all(n.code == "COST" for r in session.explain().reports for n in r.nodes)
    assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert session.stats()["host_to_device"] == 0


def test_explain_of_a_run(mlp: bytes, x: Array) -> None:
    session = gpu_session(mlp)
    assert [m.exact for m in session.explain().memory] == [False]
    session.run(None, {"x": x})
    got = session.explain()
    assert (got.count("gpu"), got.count("cpu"), got.events) == (NODES, 0, ())
    (memory,) = got.memory
    assert memory.dispatches == 3
    assert memory.shapes == ("float32[5, 16]",)
    assert memory.unshared_nbytes == 5 * 8 * 4
    assert f"{NODES} on the GPU, 0 on the host (once per shape), 0 on the CPU" in str(got)
    assert [line for line in str(got).splitlines() if len(line) > 160] == []


def test_shapes_change_at_run_time(mlp: bytes, rng: np.random.Generator) -> None:
    session = gpu_session(mlp, strict=1)
    for rows in (1, 7, 300, 7, 1):
        x = rng.standard_normal((rows, 16)).astype("f")
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert {m.shapes[0] for m in session.explain().memory} == {"float32[1, 16]", "float32[7, 16]", "float32[300, 16]"}


def test_a_shape_chain_stays_in_one_partition(rng: np.random.Generator) -> None:
    model = model_named("shapes")
    session = gpu_session(model, recording())
    assert {device for device, _ in assigned(session)} == {"gpu"}
    (report,) = session.explain().reports
    assert len(report.partitions) == 1
    for shape in ((2, 4, 3), (5, 4, 7)):
        x = rng.standard_normal(shape).astype("f")
        assert_close(session.run(None, {"x": x}), on_the_cpu(model, {"x": x}))
    assert session.stats()["fallbacks"] == 0
    assert {m.dispatches for m in session.explain().memory} == {1}


def test_an_island(island: bytes, rng: np.random.Generator) -> None:
    session = gpu_session(island)
    x = rng.standard_normal((2, 4, 4)).astype("f")
    got, want = session.run(None, {"x": x}), on_the_cpu(island, {"x": x})
    np.testing.assert_allclose(got[0], want[0], rtol=1e-3)
    assert [len(r.partitions) for r in session.explain().reports] == [2]
    assert session.stats()["device_to_host"] >= 2


def force_a_decline(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """From now on the plan of inputs with that many rows is declined, as a limit of an adapter would do it."""
    from ort_gpu_ep.errors import Code
    from ort_gpu_ep.runtime.plans import Plans

    real = Plans.fill

    def fill(plans: Any, types: Any, values: Any) -> Any:
        if any(t.shape[:1] == (rows,) for t in types):
            raise UnsupportedNodeError(Code.LIMIT, f"{rows} rows are too many")
        return real(plans, types, values)

    monkeypatch.setattr(Plans, "fill", fill)


def test_a_shape_that_is_declined_at_run_time_goes_to_the_cpu(
    mlp: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = gpu_session(mlp)
    force_a_decline(monkeypatch, rows=9)
    small, large = (rng.standard_normal((n, 16)).astype("f") for n in (3, 9))
    for feed in (small, large, small, large):
        assert_close(session.run(None, {"x": feed}), on_the_cpu(mlp, {"x": feed}))
    assert session.stats()["fallbacks"] == 2
    events = session.explain().events
    assert len(events) == 2
    assert all("9 rows are too many" in e and e.startswith("fallback in ") for e in events)
    assert "event: fallback" in str(session.explain())


def test_strict_raises_instead(mlp: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    session = gpu_session(mlp, strict=1)
    force_a_decline(monkeypatch, rows=9)
    large = rng.standard_normal((9, 16)).astype("f")
    with pytest.raises(Exception, match="9 rows are too many"):
        session.run(None, {"x": large})
    assert session.stats()["fallbacks"] == 0
    small = large[:3].copy()
    assert_close(session.run(None, {"x": small}), on_the_cpu(mlp, {"x": small}))


@pytest.mark.parametrize("error", [DeviceError("the driver said no"), OutOfDeviceMemoryError("no room")])
def test_a_failing_device_is_answered_by_the_cpu(
    error: DeviceError, mlp: bytes, x: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_gpu_ep.runtime.program import Program

    session, strict = gpu_session(mlp), gpu_session(mlp, strict=True)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Program, "run", fail)
        assert_close(session.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
        with pytest.raises(type(error), match=str(error)):
            strict.run(None, {"x": x})
    assert any(str(error) in e for e in session.explain().events)
    for each in (session, strict):
        assert_close(each.run(None, {"x": x}), on_the_cpu(mlp, {"x": x}))
    assert (session.stats()["fallbacks"], strict.stats()["fallbacks"]) == (1, 0)


def test_the_gpu_gives_what_the_cpu_gives(rng: np.random.Generator) -> None:
    """Random graphs, with and without fusion."""

    @settings(max_examples=25)
    @given(random_models(max_nodes=16, size=7))
    def agree(model: onnx.ModelProto) -> None:
        feeds = {i.name: (rng.standard_normal((7, 7)) / 4).astype("f") for i in model.graph.input}
        data = model.SerializeToString()
        want = on_the_cpu(data, feeds)
        for fusion in (0, 1):
            session = gpu_session(data, strict=1, fusion=fusion)
            for g, w in zip(session.run(None, feeds), want, strict=True):
                np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-4 * max(1.0, float(np.abs(w).max())))

    agree()


@pytest.mark.parametrize("rule", RULES, ids=RULE_IDS)
def test_a_fused_rule_gives_what_its_pattern_gives(rule: Rule, rng: np.random.Generator) -> None:
    model = model_of_rule(rule, rng).SerializeToString()
    feeds = {"x": rng.normal(1.0, 3.0, EXAMPLES[rule.name][0]).astype("f")}
    unoptimized = onnxruntime.SessionOptions()
    unoptimized.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = gpu_session(model, unoptimized, strict=1)
    assert_close(session.run(None, feeds), on_the_cpu(model, feeds))
    assert [m.dispatches for m in session.explain().memory] == [1]


FUSED = {
    "silu": "(float[7, 33] x) => (float[7, 33] y) { s = Sigmoid(x) y = Mul(x, s) }",
    "gelu": "(float[7, 33] x) => (float[7, 33] y) { d = Div(x, root2) e = Erf(d) a = Add(e, one) p = Mul(x, a) y = "
    "Mul(p, half) }",
    "hard swish": "(float[7, 33] x) => (float[7, 33] y) { a = Add(x, three) c = Clip(a, zero, six) p = Mul(x, c) y = "
    "Div(p, six) }",
    "tanh gelu": "(float[7, 33] x) => (float[7, 33] y) { c = Pow(x, three) k = Mul(c, alpha) s = Add(x, k) q = Mul(s, "
    "beta) t = Tanh(q) "
    "o = Add(t, one) h = Mul(x, o) y = Mul(h, half) }",
    "a product with all of it": "(float[7, 33] x) => (float[7, 13] y) "
    "{ m = MatMul(x, w) a = Add(m, b) s = Sigmoid(a) g = Mul(a, s) h = Mul(g, half) y = Add(h, row) }",
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_chains_give_what_the_cpu_gives(name: str, rng: np.random.Generator) -> None:
    scalars = {
        "root2": 2**0.5,
        "one": 1.0,
        "half": 0.5,
        "three": 3.0,
        "six": 6.0,
        "zero": 0.0,
        "alpha": 0.044715,
        "beta": (2 / np.pi) ** 0.5,
    }
    constants: dict[str, Array] = {n: np.array(v, "f") for n, v in scalars.items()}
    constants |= {n: rng.standard_normal(s).astype("f") for n, s in {"w": (33, 13), "b": (13,), "row": (1, 13)}.items()}
    names = set(FUSED[name].replace(",", " ").replace(")", " ").replace("(", " ").split())
    model = model_of(FUSED[name], {n: a for n, a in constants.items() if n in names}).SerializeToString()
    feeds = {"x": rng.normal(0, 3, (7, 33)).astype("f")}
    unoptimized = onnxruntime.SessionOptions()
    unoptimized.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = gpu_session(model, unoptimized, strict=1)
    assert_close(session.run(None, feeds), on_the_cpu(model, feeds))
    assert [m.dispatches for m in session.explain().memory] == [1]


def test_explain_expects_the_memory_of_a_dynamic_model_before_any_run(rng: np.random.Generator) -> None:
    model = model_of(
        "(float[N, 9] x) => (float[N, 9] y) { a = Exp(x) b = Softmax(a) y = Softmax(b) }"
    ).SerializeToString()
    session = ort.InferenceSession(model, provider_options={"placement": "gpu"})
    (expected,) = session.explain().memory
    assert not expected.exact
    assert expected.dispatches == 3
    session.run(None, {"x": rng.standard_normal((5, 9)).astype(np.float32)})
    (made,) = session.explain().memory
    assert made.exact
    assert made.shapes == ("float32[5, 9]",)
