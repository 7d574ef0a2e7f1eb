"""Which candidate runs a model with placement=auto: measured, stored, and revised while it runs.

Order of reading: candidates.py, proof.py, estimate.py, latency.py, rhythm.py, decider.py, decisions.py, chooser.py,
runner.py.
"""

NAMES = CPU, GPU, CUT = "cpu", "gpu", "cut"
"""Plain onnxruntime; every node that has a kernel on the GPU; the assignment that the partitioner predicts to be the
fastest."""
