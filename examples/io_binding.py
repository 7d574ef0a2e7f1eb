"""A state that stays on the GPU: what a run gives is the next run's input, and only the last one comes back.

usage: PYTHONPATH=. python examples/io_binding.py
"""

import numpy as np
import onnx.parser

import ort_gpu_ep as ort

MODEL = """<ir_version: 10, opset_import: ["": 20]>
step (float[4, 4] state, float[4, 4] w) => (float[4, 4] next) { h = MatMul(state, w) next = Tanh(h) }"""

session = ort.InferenceSession(
    onnx.parser.parse_model(MODEL).SerializeToString(), provider_options={"placement": "gpu"}
)
rng = np.random.default_rng(0)
start, w = (rng.standard_normal((4, 4), dtype=np.float32) for _ in range(2))

state, weights = (ort.OrtValue.ortvalue_from_numpy(array, "gpu", 0) for array in (start, w))
for _ in range(3):
    binding = session.io_binding()
    binding.bind_ortvalue_input("state", state)
    binding.bind_ortvalue_input("w", weights)
    binding.bind_output("next", "gpu")
    session.run_with_iobinding(binding)
    (state,) = binding.get_outputs()

expected = start
for _ in range(3):
    expected = np.tanh(expected @ w)
print("farthest from numpy:", float(np.abs(state.numpy() - expected).max()))
assert np.allclose(state.numpy(), expected, rtol=1e-4, atol=1e-5)
