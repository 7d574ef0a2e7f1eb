"""A cache whose objects are created once, by the first thread that asks."""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any


class Cache:
    """Objects by key. Thread-safe; different keys are made at the same time.

    An object stays as long as somebody else holds it, and beyond that while it is among the `kept` last asked for: what
    nobody uses must not pile up, and what was used a moment ago will most likely be used again. made: how many there
    ever were.
    """

    def __init__(self, kept: float = math.inf) -> None:
        self.kept, self.made = kept, 0
        self._lock = threading.Lock()
        self._making: dict[Hashable, Future[Any]] = {}
        self._alive: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The object of that key, made if there is none. Raises what `make` raises, to everybody who waits for it."""
        with self._lock:
            value = self._alive.get(key)
            if value is not None:
                self._use(key, value)
                return value
            making = self._making.get(key)
            if making is None:
                mine = self._making[key] = Future()
        if making is not None:
            return making.result()
        try:
            fresh = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            mine.set_exception(error)
            raise
        with self._lock:
            self._alive[key] = fresh
            self._use(key, fresh)
            del self._making[key]
            self.made += 1
        mine.set_result(fresh)
        return fresh

    def _use(self, key: Hashable, found: Any) -> None:
        self._recent[key] = found
        self._recent.move_to_end(key)
        while len(self._recent) > self.kept:
            self._recent.popitem(last=False)
