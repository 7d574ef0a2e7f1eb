"""Compares a candidate's first result with the CPU's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ort_gpu_ep.errors import WrongResultError
from ort_gpu_ep.plugin.verification import compare

log = logging.getLogger("ort_gpu_ep")

TIES = 0.01
"""Part of an integer or boolean output that may differ: indices and decisions turn over where two scores are all but equal."""


def check_outputs(
    names: Sequence[str], got: Sequence[Any], want: Sequence[Any], again: Callable[[], Sequence[Any]], precision: str = "float32",
) -> None:
    """Raises WrongResultError, where outputs differ from the CPU's by more than the option `verify` allows.

    again: runs the model on the CPU once more; one that gives something else each time (random numbers) is not judged. precision: the
    option of the session that gave `got`.
    """
    try:
        _check(names, got, want, precision)
    except WrongResultError:
        try:
            _check(names, again(), want, "float32")
        except WrongResultError:
            log.info("placement: the model gives other results each time it runs on the CPU; the GPU's are not compared with them")
            return
        raise


def _check(names: Sequence[str], got: Sequence[Any], want: Sequence[Any], precision: str) -> None:
    for name, ours, theirs in zip(names, got, want, strict=True):
        if not isinstance(theirs, np.ndarray) or theirs.dtype.kind not in "biuf":
            continue        # sequences, maps and strings come from the CPU on both sides
        if ours.ndim != theirs.ndim or ours.dtype != theirs.dtype:
            raise WrongResultError(f"output {name!r}: got {ours.dtype}{list(ours.shape)}, expected {theirs.dtype}{list(theirs.shape)}")
        if ours.shape != theirs.shape:
            continue        # so many were found or kept: a tie, as below
        if theirs.dtype.kind == "f" or np.count_nonzero(ours != theirs) > TIES * theirs.size:
            compare(f"output {name!r}", ours, theirs, precision)
