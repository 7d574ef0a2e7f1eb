"""Processes of ours that a driver may end: what they are started with, and how they ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def environment() -> dict[str, str]:
    """This process's, with a path on which the child finds the same packages, and without options that are not about probing."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("ORT_GPU_EP_") or k == "ORT_GPU_EP_DRILL"}
    path = [str(Path(__file__).parents[2]), *(p for p in sys.path if p)]
    return {**own, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
