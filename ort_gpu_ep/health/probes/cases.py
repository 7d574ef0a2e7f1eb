"""Probes made from kernels' records: each of a record's cases against ONNX's reference implementation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import ort_gpu_ep.ops  # noqa: F401  fills the records
from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.health.probe import POOLS, Trial, Unsupported, compare, probe
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.kernels.records import RECORDS, Case, Known, Random, Record


def _drawn(trial: Trial, given: Random | Known | None) -> Array | None:
    if not isinstance(given, Random):
        return None
    if given.low is None:
        return trial.normal(*given.shape).astype(given.dtype)
    return trial.integers(given.low, given.high, *given.shape, dtype=given.dtype)


def _run(trial: Trial, case: Case) -> None:
    """Raises WrongResultError; Unsupported where the adapter lacks an element type."""
    constants = {i: np.array(item.values, item.dtype) for i, item in enumerate(case.inputs) if isinstance(item, Known)}
    try:
        compare(
            trial,
            case.op,
            case.version,
            [_drawn(trial, item) for item in case.inputs],
            constants,
            case.outputs,
            case.tolerance,
            **dict(case.attributes),
        )
    except UnsupportedNodeError as error:
        if error.code != Code.DTYPE:
            raise
        raise Unsupported(error.reason) from error


def _check(record: Record) -> Callable[[Trial], str]:
    def check(trial: Trial) -> str:
        for (case,) in trial.repeated(record.cases, of=-(-len(record.cases) // 2) if len(record.cases) > 2 else 1):
            _run(trial, case)
        return (
            f"{len(record.cases)} case{'s' if len(record.cases) > 1 else ''} of "
            f"{', '.join(sorted({c.op for c in record.cases}))}"
        )

    check.__doc__ = f"The cases in the record of {record.shader}."
    return check


_OPS = {"pool.wgsl": POOLS}
"""Shader files of families that no other probe of a first use is about, and for which models it is one."""

_CURES = {"integer_product.wgsl": "plain_dots"}
"""Of shader files that have nothing else of which a driver is known to get it wrong."""

for _record in RECORDS.values():
    if _record.cases:
        _name = _record.shader.removesuffix(".wgsl").replace("_", " ")
        probe(
            _name,
            "kernels",
            disables=(_record.shader,),
            ops=_OPS.get(_record.shader, ()),
            cure=_CURES.get(_record.shader, ""),
        )(_check(_record))
