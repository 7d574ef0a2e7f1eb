"""Kernels are right whatever the size of a subgroup, also where a workgroup does not fill one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import pytest

from ort_gpu_ep.kernels.registry import Limits, kernel
from ort_gpu_ep.shaders import compose
from ort_gpu_ep.shaders.composer import body
from tests.unit.graphs import tensor

# a subgroup matrix has its own sizes, which devices name
USES = re.compile(r"\b(subgroup(?!Matrix)|quad)[A-Z]\w*\(")
SHADERS = [path.name for path in files("ort_gpu_ep.shaders").iterdir() if path.name.endswith(".wgsl")]
TEAMS = {"recurrent_steps.wgsl", "recurrent_backward_steps.wgsl"}
"""They use subgroups only where these have 32 invocations: a team is a subgroup."""
WITHOUT = {"row_moments.wgsl"}
"""It includes the sums of a team, and has them added up without subgroups."""
KERNELS = {s for s in SHADERS if USES.search(body(s)) and "subgroupMatrix" not in body(s)} - TEAMS - WITHOUT
"""Without those of matrix units, whose workgroups are whole subgroups, and which no software adapter has."""


@pytest.mark.parametrize("size", [4, 16])
def test_workgroups_smaller_than_a_subgroup(size: int) -> None:
    """lavapipe takes the size of its subgroups from the environment, once a process."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.ops.subgroup_sizes"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "LP_NATIVE_VECTOR_WIDTH": str(32 * size)},
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["said"] == f"subgroups of {size}"
    assert not found["failed"]
    assert found["workgroups"].keys() == KERNELS
    smallest = {shader: min(sizes) for shader, sizes in found["workgroups"].items() if shader != "attention.wgsl"}
    assert max(smallest.values()) < 16  # attention.wgsl exchanges between neighbours only


def test_subgroups_are_counted_unless_they_are_known_to_be_full() -> None:
    out = tensor(64)
    made = kernel(
        "matvec_rows.wgsl",
        [out],
        consts={"SUBGROUPS": True},
        groups=3,
        workgroup_size=64,
        reads={"w": 0, "v": 1},
        vectors=("w", "v"),
        features=("subgroup",),
    )
    bindings = {"w": (tensor(64, 64), False), "v": (tensor(64), False), "y": (out, True)}
    for size, counted in ((0, True), (32, False), (64, False), (128, True)):
        text = compose(made, bindings, Limits(subgroup_size=size))
        assert ("let its_subgroup_size = subgroupAdd(1u);" in text) == counted, size
        assert ("@builtin(subgroup_size)" in text) == (not counted), size
    assert "subgroup_size" not in compose(replace(made, features=(), consts=(("SUBGROUPS", False),)), bindings)
