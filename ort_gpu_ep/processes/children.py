"""Environment that makes child Python processes use this provider: hook/ in PYTHONPATH, options in variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ort_gpu_ep.config import variables

HOOK = str(Path(__file__).parents[1] / "hook")


def hooked(options: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables to set in an environment. Raises ConfigError for an unknown option or value."""
    entries = [HOOK, *without_hook(environment.get("PYTHONPATH", ""))]
    return {**variables(options), "PYTHONPATH": os.pathsep.join(entries)}


def announcement(placement: str) -> str:
    """What sessions of a program are about to get: with placement=auto nobody knows yet on which side their nodes will
    run."""
    chances = {
        "auto": "is offered to sessions; placement=auto may choose the CPU",
        "gpu": "comes first in all sessions (placement=gpu)",
        "cpu": "is loaded, but takes no node (placement=cpu)",
    }
    return f"WgpuExecutionProvider {chances[placement]}"


def without_hook(path: str) -> list[str]:
    """The other entries of a PYTHONPATH."""
    return [entry for entry in path.split(os.pathsep) if entry != HOOK] if path else []
