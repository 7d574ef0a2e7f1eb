"""Workarounds of a known fault: safer options, lower limits, other texts of shaders, submits and pipelines one by
one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.config import Config
from ort_gpu_ep.kernels.registry import Limits

if TYPE_CHECKING:
    from ort_gpu_ep.device import Gpu


@dataclass(frozen=True, slots=True)
class Workaround:
    """One change. value: a number or a truth. why: the quirk's, with its bug."""

    name: str
    value: int
    why: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}: {self.why}"


def _least(own: int, asked: int) -> int:
    """0 stands for none."""
    return min(own or asked, asked)


OPTIONS: dict[str, Callable[[Any, int], Any]] = {
    "checked_shaders": lambda own, asked: "1",
    "fusion": lambda own, asked: False,
    "verify": _least,
    "hang_timeout_ms": _least,
    "memory_limit_mb": _least,
}
"""Option -> what becomes of its value: always the safer of the two."""

CAPS = (
    "max_binding_nbytes",
    "max_buffer_nbytes",
    "max_buffers_per_stage",
    "max_workgroup_nbytes",
    "max_invocations",
    "max_groups_per_dimension",
    "max_loop_iterations",
)
"""Limits that may be lowered."""

SUBMIT_EACH, COMPILE_ALONE = "submit_each", "compile_alone"

REWRITINGS = (
    "counted_subgroups",
    "exchanged_stores",
    "plain_dots",
    "opaque_divisors",
    "compared_below_one",
    "sign_bits",
    "scalar_bounds",
)
"""Other texts of shaders, by their names in shaders/rewriting.py, which is imported where an adapter needs one."""

VALUES: dict[str, str] = {
    "fusion": "0",
    **dict.fromkeys(("checked_shaders", SUBMIT_EACH, COMPILE_ALONE, *REWRITINGS), "1"),
}
"""Where only one value makes things safer. The others take a whole number of at least 1."""

NAMES = (*OPTIONS, *CAPS, SUBMIT_EACH, COMPILE_ALONE, *REWRITINGS)


def expected(name: str) -> str:
    """What a workaround's value is, in words."""
    return repr(VALUES[name]) if name in VALUES else "a whole number of at least 1, as text"


def is_value(name: str, value: object) -> bool:
    """Whether a quirk may give a workaround this value."""
    if not isinstance(value, str):
        return False
    return value == VALUES[name] if name in VALUES else value.isdecimal() and int(value) > 0


def with_workarounds(config: Config, found: Iterable[Workaround]) -> Config:
    """The options with the workarounds in them."""
    changes: dict[str, Any] = {}
    for w in found:
        if w.name in OPTIONS:
            changes[w.name] = OPTIONS[w.name](changes.get(w.name, getattr(config, w.name)), w.value)
    return replace(config, **changes)


def lowered(limits: Limits, found: Iterable[Workaround]) -> Limits:
    """The limits with the workarounds in them."""
    changes: dict[str, Any] = {}
    for w in found:
        if w.name in CAPS:
            changes[w.name] = min(changes.get(w.name, getattr(limits, w.name)), w.value)
    return replace(limits, **changes)


def apply(gpu: Gpu, found: Iterable[Workaround]) -> None:
    """What a device does for its workarounds by itself, beside limits and options."""
    names = {w.name for w in found}
    gpu.submit_each = gpu.submit_each or SUBMIT_EACH in names
    gpu.rewritings |= names.intersection(REWRITINGS)
    if COMPILE_ALONE in names:
        gpu.compiling = threading.Lock()
