"""Tables of C callbacks that are implemented by Python methods.

A subclass of Table names its slots and defines a method per slot that it fills (`GetCapability` -> `get_capability`).
No exception leaves a callback: one that returns an OrtStatus turns it into a status, any other logs it.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ort_gpu_ep.errors import forget_frames
from ort_gpu_ep.plugin.abi import NULL, address_of, api, c_signature, ffi
from ort_gpu_ep.plugin.slots import Slot
from ort_gpu_ep.processes import interrupts

log = logging.getLogger("ort_gpu_ep")

_DEFAULTS: dict[str, Any] = {"v": None, "p": NULL, "c": NULL, "b": False, "i": 0, "u": 0, "a": 0}
_GRACE_S = 0.005
"""Time for a thread that has already read a slot to arrive in Python."""
_RETURN_S = 0.25
"""Time for such a thread to return through ONNX Runtime to Python: met in C++, the interpreter's end aborts the
process."""
_PATIENCE_S = 10.0
"""How long the exit waits for callbacks that are running."""

_live: dict[int, Table] = {}
_lock = threading.Lock()
_running = 0
_last_call = (0, 0.0)  # (thread, time) of the call that ended last


class Table:
    """An object that ONNX Runtime sees as `{uint32_t version; void *slot[]}`. It lives until `drop()`."""

    SLOTS: ClassVar[Mapping[str, Slot]] = {}
    retired = False
    _callbacks: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._callbacks = {
            name: _callback(slot.signature, _python_name(name))
            for name, slot in cls.SLOTS.items()
            if hasattr(cls, _python_name(name))
        }

    def __init__(self) -> None:
        self.pointer: Any = ffi.new("Table*")
        self.pointer.version = api.version
        for name, callback in self._callbacks.items():
            if api.has(self.SLOTS[name]):
                self.pointer.slot[self.SLOTS[name].number] = ffi.cast("void*", callback)
        with _lock:
            _live[address_of(self.pointer)] = self

    def drop(self) -> None:
        """ONNX Runtime has released the table: nothing calls it any more."""
        with _lock:
            _live.pop(address_of(self.pointer), None)

    def retire(self) -> None:
        """ONNX Runtime has released the table, but may still call it."""
        self.retired = True

    def neutralise(self, returns: str, function: Any) -> None:
        """Points the filled slots of a return type at a C function that needs no Python."""
        for slot in self.SLOTS.values():
            if slot.signature[:1] in returns and self.pointer.slot[slot.number] != NULL:
                self.pointer.slot[slot.number] = function

    def leak(self) -> None:
        """Keeps the C memory for ever: static destructors of ONNX Runtime read it after the interpreter is gone."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.pointer))


def owner_of(address: int) -> Table:
    """The object behind a table that ONNX Runtime passes back to us."""
    return _live[address]


def live_tables() -> Counter[str]:
    """How many tables ONNX Runtime still holds, by the name of the class that is directly a Table."""
    with _lock:
        kinds = (type(table).mro() for table in _live.values() if not table.retired)
        return Counter(kind[kind.index(Table) - 1].__name__ for kind in kinds)


def shut_down(null: Any, empty: Any, gone: Any) -> None:
    """The interpreter is about to go: no call may reach Python after this.

    First the calls that begin something fail; those that are running may still allocate, and are waited for.
    """
    with _lock:
        for table in _live.values():
            table.neutralise("s", gone)
    time.sleep(_GRACE_S)
    thread, ended = _last_call
    others = _running > 0 or (thread != threading.get_ident() and time.monotonic() - ended < _RETURN_S)
    deadline = time.monotonic() + _PATIENCE_S
    while _running and time.monotonic() < deadline:
        time.sleep(0.002)
    if others:
        time.sleep(_RETURN_S)
    with _lock:
        for table in _live.values():
            table.neutralise("c", empty)
            table.neutralise("vpabiuz", null)
            table.leak()


def after_fork() -> None:
    """In the child: threads that held the lock or were inside a callback do not exist."""
    global _lock, _running
    _lock, _running = threading.Lock(), 0


def entry(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Makes a C callback of a plain function that returns an OrtStatus."""
    return lambda function: _c_callback(signature, _guarded(function))


def _c_callback(signature: str, function: Callable[..., Any]) -> Any:
    """function: raises nothing."""
    return ffi.callback(c_signature(signature), interrupts.callback(function), onerror=interrupts.late)


def _callback(signature: str, name: str) -> Any:
    if signature[0] == "s":
        return _c_callback(signature, _guarded(lambda this, *arguments: getattr(_live[this], name)(*arguments)))
    default = _DEFAULTS[signature[0]]

    def call(this: int, *arguments: Any) -> Any:
        try:
            return getattr(_live[this], name)(*arguments)
        except BaseException:
            log.exception("ort_gpu_ep: %s failed", name)
            return default

    return _c_callback(signature, call)


def _guarded(function: Callable[..., None]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        global _running, _last_call
        with _lock:
            _running += 1
        try:
            function(*arguments)
            return NULL
        except BaseException as error:
            status = api.status_of(error)
            forget_frames(error)
            return status
        finally:
            with _lock:
                _running -= 1
                _last_call = threading.get_ident(), time.monotonic()

    return call


def _python_name(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
