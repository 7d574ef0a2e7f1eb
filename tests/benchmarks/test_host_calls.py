"""benchmarks/host_calls.py: counts repeat, and a run and a plan call no more than host_calls.json says."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from benchmarks import host_calls

NAME = "mlp_16x3"


@pytest.fixture(scope="module")
def found() -> dict[str, host_calls.Measured]:
    return host_calls.measured((NAME,), modes=("counted",))


def test_no_more_calls_than_recorded(found: dict[str, host_calls.Measured]) -> None:
    assert not host_calls.increases(json.loads(host_calls.RECORDED.read_text()), found, ("planning", "run"))
    assert all(found[NAME][phase]["calls"] > 0 for phase in host_calls.PHASES)


def test_counts_repeat(found: dict[str, host_calls.Measured]) -> None:
    again = host_calls.measured((NAME,), modes=("counted",))
    assert not host_calls.increases(found, again)
    assert not host_calls.increases(again, found)


def test_more_calls_are_told(found: dict[str, host_calls.Measured]) -> None:
    more = deepcopy(found)
    more[NAME]["run"]["calls"] *= 1.1
    (told,) = host_calls.increases(found, more)
    assert told.startswith(f"{NAME}, run: ")


def test_calls_of_the_package_are_counted() -> None:
    counter = host_calls.Counter(str(host_calls.RECORDED.parent))
    counter.count(lambda: [host_calls.increases({}, {}) for _ in range(3)])
    assert counter.calls == 3
    assert counter.modules == {host_calls.__file__}
    assert counter.all > counter.calls
