"""Sequences of any length through one session: a plan is made for all lengths, and its numbers are filled in for each.

usage: PYTHONPATH=. python examples/sequence.py
"""

import numpy as np

import ort_gpu_ep as ort
from models import build

session = ort.InferenceSession(build("har_lstm", steps="T").SerializeToString(), provider_options={"placement": "gpu"})
(given,) = session.get_inputs()
rng = np.random.default_rng(0)
for length in (16, 50, 31):
    shape = [length if size == "T" else size for size in given.shape]
    (scores,) = session.run(None, {given.name: rng.standard_normal(shape, dtype=np.float32)})
    print(f"{length} steps:", "class", int(scores[0].argmax()))
