"""No kernel relies on workgroup memory that begins as zeros: wgpu-native does not zero it, and Dawn need not."""

from __future__ import annotations

import numpy as np
import pytest

import ort_gpu_ep.health.probes  # noqa: F401  fills the table
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.health.probe import PROBES, Unsupported
from tests.health.spoiled_memory import Spoiled, spoiled

PROBED = [
    pytest.param(name, marks=[] if probe.quick else pytest.mark.nightly)
    for name, probe in PROBES.items()
    if probe.group == "kernels" or "workgroup" in name
]
CARELESS = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
var<workgroup> sums: array<f32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    sums[lane] += x[lane];
    workgroupBarrier();
    y[lane] = sums[lane];
}
"""


@pytest.fixture
def trial() -> Spoiled:
    made = Spoiled(Gpu.open(Config()), np.random.default_rng())
    made.had = set()
    return made


@pytest.mark.parametrize("name", PROBED)
def test_probes_pass_from_spoiled_memory(trial: Spoiled, name: str) -> None:
    try:
        PROBES[name].check(trial)
    except Unsupported:
        assert not trial.had


def test_a_kernel_that_relies_on_zeros_is_seen(trial: Spoiled) -> None:
    got = trial.wgsl("careless", spoiled(CARELESS), [np.ones(64, np.float32)], ("float32", 64), 1)
    assert np.isnan(got).all()
