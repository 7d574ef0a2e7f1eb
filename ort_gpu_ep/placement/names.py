"""Names of the candidates."""

NAMES = CPU, GPU, CUT = "cpu", "gpu", "cut"
"""Plain onnxruntime; every node that has a kernel on the GPU; the assignment that the partitioner predicts to be the fastest."""
