"""pyarrow, Pillow and Ray where they are needed, with the extra that brings them in the message."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ort_gpu_ep.errors import ScoringError

_EXTRAS = {"pyarrow": "scoring", "PIL": "scoring", "ray": "ray"}


def require(name: str, what: str) -> Any:
    """A module of an optional package. what: needs it, for the message. Raises ScoringError where it is not installed."""
    top = name.partition(".")[0]
    try:
        return import_module(name)
    except ImportError as error:
        raise ScoringError(f"{what} needs {top}, which can't be imported ({error}); pip install 'ort-gpu-ep[{_EXTRAS[top]}]'") from error
