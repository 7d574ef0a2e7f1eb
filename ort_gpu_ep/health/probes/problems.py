"""Probes made of the problems in kernels' records that no other probe is about: each against ONNX's reference
implementation."""

from __future__ import annotations

import ort_gpu_ep.ops  # noqa: F401  fills the records
from ort_gpu_ep.health.probe import POOLS, PROBES, solves
from ort_gpu_ep.kernels.records import RECORDS

_OPS = {"pool.wgsl": POOLS}
"""Shader files of families that no other probe of a first use is about, and for which models it is one."""

_CURES = {"integer_product.wgsl": "plain_dots"}
"""Of shader files that have nothing else of which a driver is known to get it wrong."""

_elsewhere = {id(problem) for probe in PROBES.values() for problem in probe.problems}

for _shader, _record in RECORDS.items():
    _problems = [problem for problem in _record.problems if id(problem) not in _elsewhere]
    if _problems:
        _count = sum(len(problem.forms) or 1 for problem in _problems)
        solves(
            _shader.removesuffix(".wgsl").replace("_", " "),
            *_problems,
            of=-(-_count // 2) if _count > 2 else 1,
            about=f"The problems in the record of {_shader}.",
            disables=(_shader,),
            ops=_OPS.get(_shader, ()),
            cure=_CURES.get(_shader, ""),
        )
