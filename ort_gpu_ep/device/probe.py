"""A tiny checked kernel on a fresh device: does the adapter work at all?"""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.device.single import Single
from ort_gpu_ep.errors import WrongResultError

_COUNT = 256
_SOURCE = """
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) { x[id.x] = x[id.x] * 3u + id.x; }
"""


def probe(info: AdapterInfo) -> None:
    """y = 3 x + i on 256 integers. Raises AdapterError, what the driver raises, or WrongResultError."""
    x = np.random.default_rng().integers(0, 1 << 30, _COUNT).astype(np.uint32)
    single = Single(info, "probe", _SOURCE, x)
    try:
        got = np.frombuffer(single.run(_COUNT // 64, 1, x.nbytes)[0], np.uint32)
    finally:
        single.close()
    want = x * np.uint32(3) + np.arange(_COUNT, dtype=np.uint32)
    if not np.array_equal(got, want):
        wrong = int(np.sum(got != want))
        raise WrongResultError(
            f"{info.name}: the probe gave {wrong} of {_COUNT} values wrong. Update the driver or use placement=cpu."
        )
