"""A driver fault that this package does not know yet, as a file of yours: here, Softmax is said to be wrong on every
adapter.

usage: PYTHONPATH=. python examples/own_quirk.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import onnx.parser

import ort_gpu_ep as ort

MODEL = """<ir_version: 10, opset_import: ["": 20]>
scores (float[2, 8] x) => (float[2, 8] y) { h = Exp(x) y = Softmax(h) }"""
entry = {
    "what": "rows come out wrong",
    "disables": ["softmax.wgsl"],
    "bug": "https://example.org/1",
    "probe": "softmax",
}
with tempfile.TemporaryDirectory() as folder:
    quirks = Path(folder, "quirks.json")
    quirks.write_text(json.dumps([entry]), "utf-8")
    session = ort.InferenceSession(
        onnx.parser.parse_model(MODEL).SerializeToString(), provider_options={"placement": "gpu", "quirks": str(quirks)}
    )
    (y,) = session.run(None, {"x": np.ones((2, 8), np.float32)})

assert np.allclose(y, 1 / 8)
for node in (node for report in session.explain().reports for node in report.nodes):
    print(f"{node.op:8} {node.device:4} {node.reason}")
