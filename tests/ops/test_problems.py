"""The table of problems: each in each of its forms, against ONNX Runtime's CPU kernels. The doctor's probes solve them by
ONNX's reference implementation, on a software adapter a part of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ort_gpu_ep.ops  # noqa: F401  fills the records
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.problems import Problem
from ort_gpu_ep.kernels.records import RECORDS
from ort_gpu_ep.runtime.program import Program
from tests.direct import PACKED, run_program
from tests.ops.single_node import assert_agree, on_cpu

TOLERANCE = 2e-6
"""Relative L2 error: of a recurrent layer, sums behind sums."""


def forms_of(*shaders: str) -> list[Any]:
    """Parameters: each problem of these records in each of its forms."""
    return [
        pytest.param(problem, form, id=f"{shader.removesuffix('.wgsl')} {k}, {form}")
        for shader in shaders
        for k, problem in enumerate(RECORDS[shader].problems)
        for form in problem.forms
    ]


def check(problem: Problem, form: str) -> None:
    """The form is taken, and right."""
    values = problem.draw(np.random.default_rng(7))
    graph, feeds = problem.graph(values)
    with forced(form) as choices:
        program = Program(graph, PACKED, Gpu.open(Config()))
        try:
            results = run_program(program, dict(zip(graph.inputs, feeds, strict=True)))
        finally:
            program.close()
    assert form in {choice.form for choice in choices.values()}, "the node has no such form"
    fed = {problem.names[k]: values[k] for k in problem.fed}
    for got, want in zip(results, map(problem.stored, on_cpu(problem.model(values), fed)), strict=True):
        assert_agree(got, want, TOLERANCE)


@pytest.mark.parametrize(("problem", "form"), forms_of(*RECORDS))
def test_every_form(problem: Problem, form: str) -> None:
    check(problem, form)
