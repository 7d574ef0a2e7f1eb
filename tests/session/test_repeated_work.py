"""What a new session does not do again: ask builders, compose shaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models import build
from models.inputs import make_inputs, model_inputs
from ort_gpu_ep.kernels.registry import OPS, BoundNode, Built, OpSpec
from tests.session.conftest import gpu_session

MOST_CALLS_A_NODE = 1.2


def counted(spec: OpSpec, calls: Counter[str]) -> Callable[[BoundNode], Built]:
    def asked(node: BoundNode) -> Built:
        calls[spec.name] += 1
        return spec.build(node)

    return asked


def nodes_of(session: Any) -> int:
    return sum(len(report.nodes) for report in session.explain().reports)


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v2", "encoder"])
def test_a_builder_is_asked_about_once_for_a_node_before_the_first_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()
    for key, spec in list(OPS.items()):
        monkeypatch.setitem(OPS, key, replace(spec, build=counted(spec, calls)))
    model = build(name)
    session = gpu_session(model.SerializeToString())  # its plan is made with it: all sizes are fixed
    nodes = nodes_of(session)
    assert nodes > 50
    assert 0 < calls.total() <= MOST_CALLS_A_NODE * nodes
    calls.clear()
    again = gpu_session(model.SerializeToString())
    assert calls.total() == 0
    if name == "squeezenet1_1":
        feeds = make_inputs(model_inputs(model))
        for one, other in zip(session.run(None, feeds), again.run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, other)
        assert calls.total() == 0
