"""Classifies an image with LeNet-5. Its weights are random here: give a trained model of yours for real answers.

usage: PYTHONPATH=. python examples/classify_image.py [MODEL.onnx]
"""

import sys

import numpy as np

import ort_gpu_ep as ort
from models import build

model = sys.argv[1] if len(sys.argv) > 1 else build("lenet5").SerializeToString()
session = ort.InferenceSession(model, provider_options={"placement": "gpu"})
(given,) = session.get_inputs()

height, width = given.shape[-2:]
image = np.hypot(*np.ogrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j])  # a disc: rows x columns, 0 to 1.4
pixels = np.broadcast_to((image < 0.6).astype(np.float32), given.shape)

(scores,) = session.run(None, {given.name: pixels})
best = np.argsort(scores[0])[::-1][:3]
print("classes, the likeliest first:", *best)
print(session.explain().count("gpu"), "nodes on the GPU")
