"""A model that fails on the GPU is left to the CPU, with the right numbers; the other sessions of its process stay on
the GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ort_gpu_ep
from ort_gpu_ep.config import resolve
from ort_gpu_ep.device import circuit as circuits
from ort_gpu_ep.device.circuit import PATIENCE
from ort_gpu_ep.errors import DeviceError, DeviceLostError, OutOfDeviceMemoryError, ShaderError, WrongResultError
from ort_gpu_ep.health import verdicts
from ort_gpu_ep.placement import chooser, proof
from ort_gpu_ep.plugin.local import LocalProgram
from ort_gpu_ep.runtime.program import Program
from tests.insides import state_of
from tests.patience import until
from tests.plugin.cases import assert_close, info, make_model, node, reference
from tests.unit.graphs import model_of

pytestmark = pytest.mark.usefixtures("long_pauses", "brief_hangs")

_seeds = itertools.count(9000)
WEIGHT = np.random.default_rng(3).normal(size=(16, 16)).astype("f") / 4
SICK = make_model([node("MatMul", "x W", "h"), node("Tanh", "h", "y")], [info("x", ["N", 16])], ["y"], {"W": WEIGHT})
SICK_TOO = make_model([node("Sigmoid", "x", "h"), node("Mul", "h x", "y")], [info("x", ["N", 16])], ["y"])
HEALTHY = make_model(
    [node("Relu", "x", "r"), node("ReduceSum", "r k", "y", keepdims=0)],
    [info("x", ["N", 16])],
    ["y"],
    {"k": np.array([1])},
)


def opened(model: bytes, **options: object) -> Any:
    return ort_gpu_ep.InferenceSession(model, provider_options={"placement": "gpu", **options})


def run(session: Any, model: bytes, times: int = 1) -> int:
    """Runs on fresh inputs, each right; how many of them the CPU answered."""
    before = session.stats()["fallbacks"]
    for _ in range(times):
        x = np.random.default_rng().normal(size=(int(np.random.default_rng().integers(1, 4)), 16)).astype("f")
        assert_close(session.run(None, {"x": x}), reference(model, x=x))
    return int(session.stats()["fallbacks"] - before)


def circuit_of(session: Any) -> Any:
    return state_of(session).gpu.circuit


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has probed the adapter, at once; a test that wants a probe to fail puts `fail` there."""
    seen: list[str] = []

    def probe() -> None:
        seen.append("probed")
        if "fail" in seen:
            raise WrongResultError("the probe fails on purpose")

    monkeypatch.setattr(circuits.Circuit, "suspect", _at_once(circuits.Circuit.suspect, probe))
    return seen


def _at_once(suspect: Any, probe: Callable[[], None]) -> Any:
    def instead(self: Any, *of: Any) -> None:
        self._start, self._test = (lambda work: work()), probe
        suspect(self, *of)

    return instead


def fails(session: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[int]:
    """Runs of this session's program raise the error, and are counted."""
    (partition,) = state_of(session).partitions
    tried: list[int] = []
    program, whole = partition.program, LocalProgram.execute

    def execute(self: Any, host: Any) -> None:
        if self is program:
            tried.append(1)
            raise error
        whole(self, host)

    monkeypatch.setattr(LocalProgram, "execute", execute)
    return tried


OWN = [
    ShaderError("x.wgsl does not compile"),
    DeviceError("a bind group: validation error"),
    OutOfDeviceMemoryError("no memory"),
]


@pytest.mark.parametrize("error", OWN, ids=lambda e: type(e).__name__)
def test_what_a_model_can_t_do_is_its_own_affair(
    error: Exception, probes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sick, healthy = opened(SICK), opened(HEALTHY)
    tried = fails(sick, monkeypatch, error)
    for _ in range(10):
        assert run(sick, SICK) == 1
        assert run(healthy, HEALTHY) == 0
    assert len(tried) == PATIENCE, "it is not tried in every run"
    assert circuit_of(healthy).is_closed
    assert probes
    assert run(opened(HEALTHY), HEALTHY) == 0
    verdict = verdicts.read(resolve().cache_path, verdicts.key_of(state_of(healthy).gpu.info))
    assert verdict is None or not verdict.unfit
    monkeypatch.undo()
    state_of(sick).partitions[0].circuit._clock = lambda: 1e12
    assert run(sick, SICK, 3) == 0, "its pause is over, and nothing fails any more"


@pytest.mark.parametrize("error", OWN, ids=lambda e: type(e).__name__)
def test_a_probe_that_fails_too_opens_the_circuit(
    error: Exception, probes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sick, healthy = opened(SICK), opened(HEALTHY)
    fails(sick, monkeypatch, error)
    probes.append("fail")
    assert run(sick, SICK) == 1
    assert circuit_of(healthy).state == "open"
    assert run(healthy, HEALTHY) == 1


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_wrong_result_is_one_model_s_until_another_has_one(isolation: str) -> None:
    """By `verify`; float64 says that the CPU is right."""
    options = {"faults": f"corrupt@1,corrupt@3;seed={next(_seeds)}", "verify": 1, "isolation": isolation}
    sick, healthy, too = (opened(m, **options) for m in (SICK, HEALTHY, SICK_TOO))
    circuit = state_of(sick).backend.adapter.circuit
    pid = getattr(state_of(sick).backend.adapter, "pid", None)
    assert run(sick, SICK) == 1
    assert any("WrongResultError" in e and "Float64 agrees with the CPU" in e for e in sick.explain().events)
    until(lambda: circuit.state != "probing" and not circuit._probing)
    assert run(healthy, HEALTHY) == 0
    assert circuit.is_closed
    assert getattr(state_of(sick).backend.adapter, "pid", None) == pid, "the worker goes on"
    assert run(sick, SICK, 2) == 2, "it is left to the CPU"
    assert run(too, SICK_TOO) == 1
    assert circuit.state == "open"
    assert run(healthy, HEALTHY) == 1


def test_two_sessions_of_one_model_are_one(probes: list[str]) -> None:
    options = {"faults": f"corrupt@1,corrupt@2;seed={next(_seeds)}", "verify": 1}
    one, other, healthy = opened(SICK, **options), opened(SICK, **options), opened(HEALTHY, **options)
    assert (run(one, SICK), run(other, SICK), run(healthy, HEALTHY)) == (1, 1, 0)
    assert circuit_of(one).is_closed


@pytest.mark.parametrize("kind", ["lost", "hang"])
def test_a_device_that_is_gone_is_replaced_for_all(kind: str) -> None:
    options = {"faults": f"{kind}@2;seed={next(_seeds)}"}
    sick, healthy = opened(SICK, **options), opened(HEALTHY, **options)
    assert run(healthy, HEALTHY) == 0
    assert run(sick, SICK)
    run(sick, SICK)  # what the driver says outside of a partition, the circuit hears at the next one
    assert circuit_of(sick).state == "open"
    for session, model in ((sick, SICK), (healthy, HEALTHY)):
        circuit_of(session).reset()  # its pause is over
        run(session, model)
        until(lambda session=session: session.stats()["renewals"] == 1, seconds=20.0)
        assert run(session, model, 3) == 0


def test_a_model_that_loses_each_device_is_left_alone_for_longer_than_the_adapter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"faults": f"slow@1x;seed={next(_seeds)}"}
    sick, healthy = opened(SICK, **options), opened(HEALTHY, **options)
    losses, whole, (partition,) = [], LocalProgram.execute, state_of(sick).partitions

    def execute(self: Any, host: Any) -> None:
        if self is partition.program:
            losses.append(1)
            self.gpu.lost = "on purpose"
            raise DeviceLostError("the device is lost on purpose")
        whole(self, host)

    monkeypatch.setattr(LocalProgram, "execute", execute)
    for _ in range(3 * PATIENCE):
        run(sick, SICK)
        for session, model in ((healthy, HEALTHY), (sick, SICK)):
            circuit_of(session).reset()
            if state_of(session).gpu.lost and (session is healthy or partition.circuit.is_closed):
                before = session.stats()["renewals"]
                run(session, model)
                until(lambda: session.stats()["renewals"] > before)  # noqa: B023
    assert len(losses) == PATIENCE
    assert run(healthy, HEALTHY, 3) == 0


def test_a_session_that_can_t_be_rebuilt_holds_up_no_other(monkeypatch: pytest.MonkeyPatch, probes: list[str]) -> None:
    options = {"faults": f"lost@2;seed={next(_seeds)}"}
    sick, healthy = opened(SICK, **options), opened(HEALTHY, **options)
    made = Program.__init__

    def init(self: Any, graph: Any, *rest: Any) -> None:
        if any(n.op == "MatMul" for n in graph.nodes):
            raise OutOfDeviceMemoryError("on purpose: no room for its weights")
        made(self, graph, *rest)

    assert run(healthy, HEALTHY) == 0
    assert run(sick, SICK)
    monkeypatch.setattr(Program, "__init__", init)
    circuit_of(sick).reset()
    run(sick, SICK)
    until(lambda: not state_of(sick).partitions[0].circuit.is_closed)
    assert circuit_of(sick).is_closed
    run(healthy, HEALTHY)
    until(lambda: healthy.stats()["renewals"] == 1)
    assert run(healthy, HEALTHY, 3) == 0
    assert run(sick, SICK, 2) == 2


# ---- where onnxruntime's CPU is wrong


def by_groups() -> tuple[bytes, Callable[[Any], Any]]:
    """MatMulNBits with a g_idx, whose zero points onnxruntime's CPU does not read; and what is right."""
    g = np.random.default_rng(5)
    k, n, block = 64, 16, 32
    codes, zeros = g.integers(0, 16, (n, k)), g.integers(0, 16, (n, k // block))
    scales, groups = (
        g.random((n, k // block)).astype("f"),
        g.permutation(np.repeat(np.arange(k // block), block)).astype("i4"),
    )
    constants = {
        "B": (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8).reshape(n, k // block, block // 2),
        "S": scales.ravel(),
        "Z": (zeros[:, ::2] | zeros[:, 1::2] << 4).astype(np.uint8),
        "G": groups,
    }
    product = onnx.helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=block
    )
    made = make_model([product], [info("x", ["rows", k])], ["y"], constants)
    dense = (codes - zeros[:, groups]) * scales[:, groups].astype("f8")
    return made, lambda x: x.astype("f8") @ dense.T


def test_verify_takes_the_gpu_s_side_where_float64_does() -> None:
    model, right = by_groups()
    wrong, healthy = opened(model, verify=1), opened(HEALTHY)
    for _ in range(3):
        x = np.random.default_rng().normal(size=(3, 64)).astype("f")
        (got,) = wrong.run(None, {"x": x})
        np.testing.assert_allclose(got, right(x), rtol=1e-4, atol=1e-4)
        assert np.abs(reference(model, x=x)[0] - right(x)).max() > 0.1, "the CPU has learnt it"
        assert run(healthy, HEALTHY) == 0
    assert wrong.stats()["fallbacks"] == 0
    assert any("onnxruntime's CPU is wrong here" in event for event in wrong.explain().events)
    assert circuit_of(healthy).is_closed


@pytest.fixture
def gpu_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def race(runs: Any, *rest: Any, **more: Any) -> dict[str, float]:
        for each in runs.values():
            each()
        return {name: {"cpu": 2.0, "gpu": 1.0}.get(name, 1.5) for name in runs}

    monkeypatch.setattr(proof, "race", race)
    monkeypatch.setattr(proof, "HOPELESS", 1e9)
    monkeypatch.setattr(chooser, "FLOOR", 0.0)


def auto(model: bytes, folder: Path, **options: object) -> Any:
    session = ort_gpu_ep.InferenceSession(
        model, provider_options={"adapter": "software", "load": "off", "cache_dir": str(folder), **options}
    )
    assert session.wait_ready(300.0)
    return session


def test_auto_stays_with_the_cpu_s_answers_and_says_who_is_wrong(
    gpu_wins: None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    probes: list[str],
) -> None:
    model, right = by_groups()
    healthy, session = opened(HEALTHY), auto(model, tmp_path)
    for _ in range(3):
        x = np.random.default_rng().normal(size=(3, 64)).astype("f")
        assert_close(session.run(None, {"x": x}), reference(model, x=x))
        assert run(healthy, HEALTHY) == 0
    assert "onnxruntime's CPU gives wrong results for this model" in caplog.text
    assert "onnxruntime's CPU is wrong" in str(session.explain())
    assert not probes, "nothing speaks against the adapter"
    (got,) = opened(model).run(None, {"x": x})
    np.testing.assert_allclose(got, right(x), rtol=1e-4, atol=1e-4)


def test_auto_leaves_a_wrong_candidate_out_and_the_gpu_to_the_others(
    gpu_wins: None,
    tmp_path: Path,
    probes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its kernel is wrong, by float64: the adapter is probed, and other sessions go on with it."""
    real = proof.check_outputs

    def corrupt(names: Any, got: Any, *rest: Any) -> None:
        real(names, [np.where(np.arange(a.size).reshape(a.shape) == 1, 1e3, a).astype(a.dtype) for a in got], *rest)

    monkeypatch.setattr(proof, "check_outputs", corrupt)
    healthy, session = opened(HEALTHY), auto(SICK, tmp_path)
    for _ in range(4):
        run(session, SICK)
        assert run(healthy, HEALTHY) == 0
    assert probes
    assert circuit_of(healthy).is_closed
    assert session.explain().count("gpu") == 0


# ---- a text that the driver does not compile


@pytest.mark.parametrize(
    "op",
    [
        "LeakyRelu<alpha=A>",
        "Elu<alpha=A>",
        "Selu<alpha=A, gamma=A>",
        "ThresholdedRelu<alpha=A>",
        "HardSigmoid<alpha=A, beta=A>",
        "Shrink<lambd=A, bias=A>",
    ],
)
@pytest.mark.parametrize("number", ["-0.0", "-1.5", "0.0"])
def test_attributes_of_either_sign_compile(op: str, number: str) -> None:
    model = model_of(
        f"(float[N, 16] x) => (float[N, 16] y) {{ y = {op.replace('=A', f'={number}')}(x) }}"
    ).SerializeToString()
    assert run(opened(model, strict=1), model) == 0
