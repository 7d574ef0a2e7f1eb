"""The cache of pipelines: one is made once, shared while it is used, and goes when too many others came after it."""

from __future__ import annotations

import gc
import threading

import pytest

from ort_gpu_ep.device.cache import Cache
from tests.patience import PATIENCE_S


class Thing:
    """Something that can be referred to weakly."""


def test_made_once_for_all_who_ask_at_the_same_time() -> None:
    cache, barrier, made = Cache(1), threading.Barrier(4), list[Thing]()

    def make() -> Thing:
        threading.Event().wait(0.05)
        made.append(Thing())
        return made[-1]

    def ask() -> None:
        barrier.wait()
        found.append(cache.get("a", make))

    found: list[Thing] = []
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == cache.made == 1
    assert found == made * 4


def test_two_keys_are_made_at_the_same_time() -> None:
    cache, both = Cache(2), threading.Barrier(2)

    def ask(key: str) -> None:
        cache.get(key, lambda: both.wait(PATIENCE_S) is not None and Thing())

    other = threading.Thread(target=ask, args=("a",))
    other.start()
    ask("b")
    other.join()
    assert cache.made == 2


def test_what_nobody_holds_goes_after_the_last_few() -> None:
    cache, gone = Cache(2), list[str]()

    def get(key: str) -> None:
        def make() -> Thing:
            thing = Thing()
            thing.__class__ = type("Named", (Thing,), {"__del__": lambda self: gone.append(key)})
            return thing

        cache.get(key, make)

    get("a")
    get("b")
    get("a")  # b is now the one that was last asked for longest ago
    get("c")
    gc.collect()
    assert gone == ["b"]
    get("a")
    assert cache.made == 3
    get("b")
    assert cache.made == 4


def test_what_somebody_holds_is_found() -> None:
    cache = Cache(1)
    held = cache.get("a", Thing)
    for key in "bcd":
        cache.get(key, Thing)
    assert cache.get("a", Thing) is held


def test_all_are_kept_by_default() -> None:
    cache = Cache()
    for _ in range(2):
        for key in range(1000):
            cache.get(key, Thing)
    assert cache.made == 1000


def test_a_failure_is_told_and_not_kept() -> None:
    cache = Cache(1)

    def fail() -> Thing:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            cache.get("a", fail)
    assert isinstance(cache.get("a", Thing), Thing)


def test_a_failure_reaches_those_who_wait() -> None:
    cache, begun, errors = Cache(1), threading.Event(), list[str]()

    def fail() -> Thing:
        begun.set()
        threading.Event().wait(0.05)
        raise ValueError("no")

    def ask() -> None:
        try:
            cache.get("a", fail)
        except ValueError as error:
            errors.append(str(error))

    first = threading.Thread(target=ask)
    first.start()
    begun.wait(PATIENCE_S)
    ask()
    first.join()
    assert errors == ["no", "no"]
