"""What goes between a session's process and its worker, as plain data.

Requests are pickled tuples: the worker trusts its parent. Answers are JSON, because the worker shares its memory with a
driver: whatever it sends is read as data and checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from ort_gpu_ep import errors
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.errors import Code, DeviceError, GpuEpError, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.kernels.cost_parameters import Figures
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.kernels.target import Tuned
from ort_gpu_ep.runtime.backend import FilePlace
from ort_gpu_ep.scheduler.template import Specialization


class GarbageError(Exception):
    """An answer that no working worker gives."""


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """A constant in the memory that both processes share, while the request lasts."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def without_constants(graph: Graph) -> Graph:
    """The graph without the functions that give its constants: it pickles."""
    return graph.with_nodes(graph.nodes, {name: replace(value, load=None) for name, value in graph.values.items()})


def with_constants(graph: Graph, constants: Mapping[str, Array | FilePlace]) -> Graph:
    """The graph with these constants."""

    def giver(constant: Array | FilePlace) -> Any:
        return constant.load if isinstance(constant, FilePlace) else lambda: constant

    return graph.with_nodes(
        graph.nodes, {name: replace(graph.values[name], load=giver(c)) for name, c in constants.items()}
    )


def error_answer(error: Exception) -> dict[str, object]:
    """An exception on its way to the parent."""
    return {"error": type(error).__name__, "message": str(error)}


def raise_error(answer: Mapping[str, Any]) -> None:
    """Raises the worker's exception: the same class if it is ours, else DeviceError."""
    name, message = str(answer["error"]), str(answer.get("message", ""))
    kind = getattr(errors, name, None)
    if kind is UnsupportedNodeError:
        code, _, reason = message.partition(": ")
        raise UnsupportedNodeError(Code(code), reason)
    if isinstance(kind, type) and issubclass(kind, GpuEpError):
        raise kind(message)
    raise DeviceError(f"{name}: {message}")


def parse(message: bytes) -> dict[str, Any]:
    """An answer. Raises GarbageError."""
    try:
        answer = json.loads(message)
    except ValueError as error:
        raise GarbageError(f"got {message[:40]!r}, expected JSON") from error
    if not isinstance(answer, dict):
        raise GarbageError(f"got {message[:40]!r}, expected an object")
    return answer


def limits_answer(limits: Limits) -> dict[str, object]:
    """Limits as JSON has them."""
    limits_by_name = {f.name: getattr(limits, f.name) for f in fields(limits)}
    return {
        **limits_by_name,
        "features": sorted(limits.features),
        "disabled": [list(pair) for pair in limits.disabled],
        "tuned": dict(limits.tuned.items()),
        "figures": asdict(limits.figures),
    }


def device_of(answer: Mapping[str, Any]) -> tuple[AdapterInfo, Limits]:
    """The adapter that a worker has opened. Raises GarbageError."""
    try:
        values = dict(answer["limits"])
        values["features"] = frozenset(map(str, values["features"]))
        values["tuned"] = Tuned({str(key): str(form) for key, form in values["tuned"].items()})
        values["figures"] = Figures(**values["figures"])
        values["configurations"] = tuple(map(str, values["configurations"]))
        values["configuration_subgroups"] = tuple(
            (int(least), int(most)) for least, most in values["configuration_subgroups"]
        )
        values["disabled"] = tuple((str(what), str(why)) for what, why in values["disabled"])
        return AdapterInfo(**answer["info"]), Limits(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GarbageError(f"got {str(answer)[:80]}, expected an adapter and its limits") from error


def outputs_of(answer: Mapping[str, Any], count: int) -> list[tuple[tuple[int, ...], int | None]]:
    """(shape, offset) of each output of a run; no offset where it waits to be fetched. Raises GarbageError."""
    try:
        outputs = [
            (tuple(int(d) for d in shape), None if offset is None else int(offset))
            for shape, offset in answer["outputs"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise GarbageError(f"got {str(answer)[:80]}, expected outputs") from error
    if len(outputs) != count or any(min((offset or 0, *shape)) < 0 for shape, offset in outputs):
        raise GarbageError(f"got {str(outputs)[:80]}, expected {count} outputs")
    return outputs


def specialized_of(answer: Mapping[str, Any]) -> tuple[Specialization, ...]:
    """What a run's answer tells of plans with constant sizes. Raises GarbageError."""
    try:
        return tuple(
            Specialization(tuple(map(str, inputs)), float(seconds), str(why))
            for inputs, seconds, why in answer["specialized"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise GarbageError(f"got {str(answer)[:80]}, expected which sizes have a plan of their own") from error
