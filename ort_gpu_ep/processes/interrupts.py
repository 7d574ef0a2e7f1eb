"""Ctrl-C while onnxruntime is at work: it takes effect once the call is over.

Python runs a signal's handler wherever its main thread next executes bytecode. During a run that is one of our
callbacks, with C++ above it that turns KeyboardInterrupt into an error of its own, and with a GPU whose work uses the
memory that an exception would free.
"""

from __future__ import annotations

import _thread
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Handler: TypeAlias = Callable[[int, FrameType | None], object]

_plain: Any = importlib.import_module("_signal")
_set, _get = _plain.signal, _plain.getsignal
"""Those of the module signal without its conversions to enums, which take 20 us a run."""

TURN_S = 0.001
"""How often it is looked whether another thread is done."""

_held = _noted = _inside = False

ending = threading.Event()
"""Set by a program that ends at Ctrl-C once one has come: no more kernels are compiled for the call that is to end."""


def _note(number: int, frame: FrameType | None) -> None:
    global _noted
    _noted = True


def hold() -> Handler | None:
    """From now on, until `release`, Ctrl-C is noted only.

    Returns what to release, None where there is nothing to do: in another thread, held already, or nothing in Python
    handles Ctrl-C.
    """
    global _held, _noted
    if _held or threading.get_ident() != threading.main_thread().ident:
        return None
    handler: Handler | None = _get(signal.SIGINT)
    if not callable(handler):
        return None
    _noted = False
    try:
        _set(signal.SIGINT, _note)
    except ValueError:  # another program's main thread is not Python's
        return None
    _held = True
    return handler


def release(handler: Handler) -> bool:
    """Gives Ctrl-C back to its handler. Returns whether one came meanwhile."""
    global _held
    _held, noted = False, _noted
    _set(signal.SIGINT, handler)
    return noted or _noted


def uninterrupted(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Calls something that must not be interrupted halfway; a Ctrl-C that came meanwhile is handled after it."""
    handler = hold()
    if handler is None:
        return function(*arguments, **named)
    try:
        return function(*arguments, **named)
    finally:
        if release(handler):
            handler(signal.SIGINT, sys._getframe())


def load(*names: str) -> None:
    """Imports modules that are not loaded with the package: whole, whatever Ctrl-C says, and one thread after the
    other.

    Two threads that load two modules of one folder at a time can wait for each other, which ends in an ImportError in
    one of them.
    """
    if all(name in _loaded for name in names):
        return
    with _loading:
        for name in names:
            uninterrupted(importlib.import_module, name)
            _loaded.add(name)


_loaded = set[str]()
_loading = threading.RLock()


def _after_fork() -> None:
    """In the child: who was loading is not there."""
    global _loading
    _loading = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def callback(function: Callable[..., T]) -> Callable[..., T]:
    """A function that C++ calls, and that raises nothing by itself, kept from Ctrl-C: it is sent anew when the call is
    over."""

    def call(*arguments: Any) -> T:
        global _inside
        handler = hold()
        if handler is None:
            return function(*arguments)
        _inside = True
        result = function(*arguments)
        if release(handler):
            _thread.start_new_thread(_send, (threading.get_ident(),))
        # the last call of a function is behind us, and with it the last bytecode that handles signals
        _inside = False
        return result

    return call


def late(kind: type[BaseException], error: BaseException, trace: TracebackType) -> Any:
    """What cffi calls where a function made by `callback` raises: a handler ran at its first bytecode, or after its
    last call."""
    global _inside
    values, on_main = trace.tb_frame.f_locals, threading.get_ident() == threading.main_thread().ident
    if on_main:
        _inside = True
        _thread.start_new_thread(_send, (threading.get_ident(),))
    result = values["result"] if "result" in values else callback(values["function"])(*values["arguments"])
    if on_main:
        _inside = False
    return result


def _send(main: int) -> None:
    """Sends a Ctrl-C once the main thread is not in a callback. Where it meets the next one, that one does this
    again."""
    while _inside:
        time.sleep(TURN_S)
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # also ends a sleep
    else:
        _thread.interrupt_main()
