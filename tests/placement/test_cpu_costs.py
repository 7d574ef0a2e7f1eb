"""ONNX Runtime's profile of a model, and that its nodes are those which the provider is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import models
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep.partitioner import Costs
from ort_gpu_ep.placement.candidates import CUT, Candidates
from ort_gpu_ep.placement.proof import node_profile
from ort_gpu_ep.placement.source import Source
from ort_gpu_ep.plugin import register
from tests.unit.graphs import model_of


def shown(model: bytes, costs: Costs) -> Any:
    """The report of a session whose cut is made by these costs."""
    register()
    candidates = Candidates(Source(model), None, {"adapter": "0"}, {})
    candidates.costs = costs
    state = candidates.get(CUT).state
    assert state is not None
    return state.reports[-1]


@pytest.mark.parametrize("name", ["mlp_16x3", "har_lstm", "squeezenet1_1"])
def test_every_node_that_the_provider_is_shown_was_measured(name: str) -> None:
    built = models.build(name)
    model, feeds = built.SerializeToString(), make_inputs(model_inputs(built))
    found = node_profile(Source(model), None, {}, feeds).scaled(0.25)
    assert sum(found.values()) == pytest.approx(0.25)
    report = shown(model, Costs(cpu_s=found))
    assert report.measured == len(report.nodes) > 0
    on_cpu = next(p for p in report.predictions if p.candidate == "cpu")
    assert on_cpu.total_s == pytest.approx(0.25)


def test_a_body_counts_as_its_if() -> None:
    """The body's node has index 0, as the first node of the graph has."""
    text = (
        "(float[64, 64] x, bool c) => (float[64, 64] y) { a = Exp(x) b = If(c) < then_branch = t () => (float[64, 64] "
        "r) { r = Exp(a) }, "
        "else_branch = e () => (float[64, 64] q) { q = Neg(x) } > y = Softmax(b) }"
    )
    model = model_of(text).SerializeToString()
    feeds = {"x": np.random.default_rng(1).standard_normal((64, 64)).astype("f"), "c": np.array(True)}
    found = node_profile(Source(model), None, {}, feeds).seconds
    assert sorted(op for _, op in found) == ["Exp", "If", "Softmax"]


def test_the_user_s_options_come_back(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    model = model_of("(float[4] x) => (y) { y = Exp(x) }").SerializeToString()
    with pytest.raises(ValueError, match="missing"):
        node_profile(Source(model), settings, {}, {})
    assert node_profile(Source(model), settings, {}, {"x": np.ones(4, "f")}).seconds
    assert not settings.enable_profiling
    assert settings.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert not list(tmp_path.iterdir())


def test_the_cut_of_a_session_goes_by_them() -> None:
    """The same model, told that one node is slow on the CPU."""
    model = model_of("(float[N, 64] x) => (y) { a = Exp(x) y = Softmax(a) }").SerializeToString()
    slow = Costs(cpu_s={(0, "Exp"): 1.0, (1, "Softmax"): 1e-6}, shapes={"x": (8, 64)})
    assert shown(model, slow).count("gpu") == 2
    assert shown(model, Costs(cpu_s={(0, "Exp"): 1e-6, (1, "Softmax"): 1e-6}, shapes={"x": (8, 64)})).count("gpu") == 0
