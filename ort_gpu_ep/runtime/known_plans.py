"""What plans and partitionings follow from: a process that opens a known model reads them from its artefact, and runs
none of what makes them.

An answer's key is a hash of all that it follows from beside the adapter: the graph with its small constants and what is
known of the large ones, the types, the adapter's limits, the options, and the libraries that this package asks. So a
stale answer is never asked for. What is read is checked as if anybody had written it.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ort_gpu_ep import store
from ort_gpu_ep.files import identity
from ort_gpu_ep.ir.digest import digest, graph_digest
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels import questions, target
from ort_gpu_ep.kernels.host import MAX_CONSTANT_NBYTES
from ort_gpu_ep.kernels.registry import Limits, UnknownValueError
from ort_gpu_ep.kernels.target import HALVED
from ort_gpu_ep.scheduler.kept import from_data, to_data
from ort_gpu_ep.scheduler.template import Template

if TYPE_CHECKING:
    from ort_gpu_ep.runtime.artefact import Artefact

log = logging.getLogger("ort_gpu_ep")

T = TypeVar("T")


def template(
    artefact: Artefact,
    graph: Graph,
    types: Sequence[TensorType],
    limits: Limits,
    values: Mapping[int, Array],
    about: Sequence[object],
    make: Callable[[], Template],
) -> Template:
    """What `make` gives for these. about: what else it follows from. Raises what `make` raises; UnknownValueError is
    kept, too."""

    def read(data: Mapping[str, Any]) -> Template | UnknownValueError:
        if [*data] == ["unknown"] and type(data["unknown"]) is str and data["unknown"] in graph.values:
            return UnknownValueError(data["unknown"])
        return from_data(data, types, limits, values)

    def written(plan: Template | UnknownValueError) -> dict[str, Any]:
        return to_data(plan) if isinstance(plan, Template) else {"unknown": plan.operand}

    def made() -> Template | UnknownValueError:
        try:
            return make()
        except UnknownValueError as error:
            return error

    def asked() -> str:
        content = graph_digest(graph, MAX_CONSTANT_NBYTES, limits.precision in HALVED)
        return digest("template", content, tuple(types), *said(limits), dict(values), *about)

    plan = answer(artefact, asked, read, written, made)
    if isinstance(plan, UnknownValueError):
        raise plan
    return plan


def answer(
    artefact: Artefact,
    asked: Callable[[], str],
    read: Callable[[Mapping[str, Any]], T],
    write: Callable[[T], dict[str, Any]],
    make: Callable[[], T],
) -> T:
    """The answer to what `asked` names, read or made. read: raises ValueError, LookupError, TypeError for what is no
    answer. write: raises TypeError for one that can't be kept.
    """
    if target.FORCING or questions.are_apart():  # what is answered now is answered otherwise
        return make()
    try:
        key = digest(libraries(), asked())
    except TypeError as error:
        log.info("a plan is not kept: %s", error)
        return make()
    return artefact.answer(
        key,
        lambda content: read(store.parse_json(content)),
        make,
        lambda value: json.dumps(write(value), allow_nan=False, separators=(",", ":")).encode(),
    )


def said(limits: Limits) -> tuple[object, ...]:
    """The limits as what `digest` takes."""
    plain = {f.name: getattr(limits, f.name) for f in fields(limits) if f.name != "tuned"}
    return plain, dict(limits.tuned.items())


@cache
def libraries() -> tuple[object, ...]:
    """What tells the versions of the libraries that rows ask, without loading any: the operators' schemas are
    theirs."""
    versions = list[object]()
    for name in ("onnx", "onnxruntime", "numpy", "ml_dtypes"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and os.path.isfile(spec.origin):
            beside = os.listdir(os.path.dirname(os.path.dirname(spec.origin)))
            versions.append(
                (spec.origin, identity(spec.origin).kept(), sorted(n for n in beside if n.startswith(f"{name}-")))
            )
    return tuple(versions)
