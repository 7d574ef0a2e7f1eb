"""Imports pyarrow, Pillow or Ray where they are needed; the message says what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ort_gpu_ep.errors import ScoringError

_PACKAGES = {"pyarrow": "pyarrow", "PIL": "pillow", "ray": "'ray[data,serve]'"}


def require(name: str, what: str) -> Any:
    """A module of an optional package. what: needs it, for the message. Raises ScoringError where it is not
    installed."""
    top = name.partition(".")[0]
    try:
        return import_module(name)
    except ImportError as error:
        raise ScoringError(
            f"{what} needs {top}, which can't be imported ({error}); pip install {_PACKAGES[top]}"
        ) from error
