"""The gradients of ONNX's operators: one function an op, one file a family."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path


def load() -> None:
    """Registers all rules."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        import_module(f"ort_gpu_ep.training.rules.{path.stem}")
