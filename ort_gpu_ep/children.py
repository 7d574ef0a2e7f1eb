"""What makes the Python processes that this one starts put our provider first: hook/ in PYTHONPATH, options in variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ort_gpu_ep.config import variables

HOOK = str(Path(__file__).with_name("hook"))


def hooked(options: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables to set in an environment. Raises ConfigError for an unknown option or value."""
    entries = [HOOK, *without_hook(environment.get("PYTHONPATH", ""))]
    return {**variables(options), "PYTHONPATH": os.pathsep.join(entries)}


def without_hook(path: str) -> list[str]:
    """The other entries of a PYTHONPATH."""
    return [entry for entry in path.split(os.pathsep) if entry != HOOK] if path else []
