"""A session on an adapter without shader-int64: what exporters calculate from shapes with integers stays on the GPU,
strictly."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = '''
import numpy as np, onnx.parser, onnxruntime
from ort_gpu_ep.webgpu.wgpu_native import WgpuNative
begin = WgpuNative.__init__

def without(self):
    begin(self)
    self.features.pop("shader-int64")           # neither seen nor asked for

WgpuNative.__init__ = without
import ort_gpu_ep
model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
g (int64[B, N] ids, float[B, N, 6] x) => (float[B, N, 6] y, int64[B] best) <int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}> {
    shape = Shape (ids)
    n = Gather (shape, one)
    places = Range (zero, n, one)
    rows = Unsqueeze (places, last)
    later = Max (rows, places)
    far = Sub (later, rows)
    mask = Greater (ids, zero)
    count = Cast <to = 7> (mask)
    at = CumSum (count, one)
    used = Where (mask, at, ids)
    weight = Cast <to = 1> (used)
    wide = Unsqueeze (weight, last)
    scaled = Mul (x, wide)
    distances = Cast <to = 1> (far)
    y = MatMul (distances, scaled)
    best = ArgMax <axis = 1, keepdims = 0> (used)
}""").SerializeToString()
gpu = ort_gpu_ep.InferenceSession(model, provider_options={"placement": "gpu", "strict": "1", "health": "off"})
cpu = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
rng = np.random.default_rng(4)
for batch, n in ((1, 64), (3, 7), (2, 1), (5, 33)):
    feeds = {"ids": rng.integers(-(1 << 40), 1 << 40, (batch, n)), "x": rng.normal(size=(batch, n, 6)).astype(np.float32)}
    for got, wanted in zip(gpu.run(None, feeds), cpu.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
explanation = gpu.explain()
assert not explanation.events and not [n for r in explanation.reports for n in r.nodes if n.device == "cpu"], str(explanation)
print("agreed")
'''


def test_integers_of_shapes_and_tokens_stay_on_the_gpu() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout.strip().endswith("agreed"), done.stdout + done.stderr
