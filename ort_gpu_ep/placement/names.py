"""What the ways to run a model are called."""

NAMES = CPU, GPU, CUT = "cpu", "gpu", "cut"
"""Plain onnxruntime; every node that has a kernel on the GPU; the assignment that the partitioner predicts to be the fastest."""
