"""`patch()`: makes the onnxruntime sessions of an unchanged program use this provider."""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import onnxruntime

from ort_gpu_ep import plugin, private
from ort_gpu_ep.config import resolve
from ort_gpu_ep.plugin import CPU_PROVIDER, EP_NAME, OrtSession
from ort_gpu_ep.processes import children
from ort_gpu_ep.session.opening import IDLE_PROVIDER, forbids_cpu
from ort_gpu_ep.session.session import InferenceSession

_lock = threading.RLock()
_patches: list[Patch] = []
_said = False
_init = OrtSession.__init__


class PatchedSession(InferenceSession):
    """InferenceSession, with our provider before those that the program names."""

    def _open_any(self, providers: Any, provider_options: Any) -> None:
        super()._open_any(*in_front(providers, provider_options, self._arguments[1]))


class Patch:
    """What `patch()` has changed, until `undo()` or the end of a `with` block. Sessions that were made meanwhile stay
    what they are."""

    def __init__(self, options: Mapping[str, object]) -> None:
        changed = children.hooked(options, os.environ)
        changed.pop("PYTHONPATH")
        self._variables = {name: os.environ.get(name) for name in changed}
        with _lock:
            os.environ.update(children.hooked(options, os.environ))
            _patches.append(self)
            if len(_patches) == 1:
                _put_in()

    def undo(self) -> None:
        """Once only; a second time it does nothing. The last patch that is undone gives onnxruntime its class back."""
        with _lock:
            if self not in _patches:
                return
            _patches.remove(self)
            _set(self._variables)
            if not _patches:
                _take_out()
                rest = children.without_hook(os.environ.get("PYTHONPATH", ""))
                _set({"PYTHONPATH": os.pathsep.join(rest) if rest else None})

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def patch(options: Mapping[str, object] | None = None, say: bool = True) -> Patch:
    """From now on the sessions that this process and its Python children make by onnxruntime have our provider before
    those they name.

    options: names and values as in config.OPTIONS; they are set as environment variables, for the children too. say: a
    line on stderr, once a process. Not reached: subclasses of onnxruntime.InferenceSession that were defined before,
    sessions whose SessionOptions name their providers, and children that don't read PYTHONPATH (python -E, -I, -S).

    Raises: ConfigError for an unknown option or value.
    """
    global _said
    active = Patch(options or {})
    if say and not _said:
        _said = True
        print(f"ort_gpu_ep: {children.announcement(resolve({}).placement)}; in Python children too", file=sys.stderr)
    return active


def in_front(providers: Any, options: Any, settings: Any) -> tuple[Any, Any]:
    """A session's providers and their options, with ours first where the program does not name it, or names it behind
    the CPU's.

    Those that this onnxruntime does not have go, with onnxruntime's own warning. Malformed ones are none, as for
    onnxruntime, which prints why and goes on with the CPU.
    """
    if not providers:
        return None, options if isinstance(options, Mapping) else None  # a sequence means nothing without providers
    iter(providers)  # raises TypeError, as onnxruntime
    if not plugin.too_old():
        plugin.ensure_registered()
    there = onnxruntime.get_available_providers()
    try:
        names, all_options = private.normalized_providers(providers, options, [*there, EP_NAME])
    except ValueError as error:
        warnings.warn(f"{error} Going on with {EP_NAME} and {CPU_PROVIDER}.", stacklevel=2)
        names, all_options = [], []
    if EP_NAME in names and CPU_PROVIDER not in names[: names.index(EP_NAME)]:
        return providers, options
    by_name = {
        name: own for name, own in zip(names, all_options, strict=True) if name in there and name != IDLE_PROVIDER
    }
    # behind the CPU it would have no node: so a program passes what get_available_providers() gives
    ours = by_name.pop(EP_NAME, {})
    if not forbids_cpu(settings):
        by_name.setdefault(CPU_PROVIDER, {})
    return [EP_NAME, *by_name], [ours, *by_name.values()]


@functools.wraps(_init)
def _patched_init(self: Any, *arguments: Any, **named: Any) -> None:
    """Reaches who has the class already: `from onnxruntime import InferenceSession`, before the patch."""
    if type(self) is OrtSession:
        self.__class__ = PatchedSession
        self.__init__(*arguments, **named)
    else:
        _init(self, *arguments, **named)


_before: dict[Any, Any] = {}


def _put_in() -> None:
    """The name, so that subclasses are ours, too; the constructor, for the class that others hold."""
    for module in private.HOLDERS:
        _before[module] = module.InferenceSession
        module.InferenceSession = PatchedSession
    OrtSession.__init__ = _patched_init


def _take_out() -> None:
    OrtSession.__init__ = _init
    for module, theirs in _before.items():
        if module.InferenceSession is PatchedSession:
            module.InferenceSession = theirs


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
