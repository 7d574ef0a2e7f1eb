"""benchmarks/host_calls.py: counts repeat, and what is done often calls no more than host_calls.json says."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from benchmarks import host_calls

NAME = "mlp_16x3"
NAMES = (*host_calls.WALKS, NAME)
OPENING = host_calls.NEW, host_calls.PHASES[0]
"""These call more where an op is added; `python -m benchmarks.host_calls check` tells."""


@pytest.fixture(scope="module")
def found() -> dict[str, host_calls.Measured]:
    return host_calls.measured(NAMES, modes=("counted",))


def test_no_more_calls_than_recorded(found: dict[str, host_calls.Measured]) -> None:
    recorded = json.loads(host_calls.RECORDED.read_text())
    assert not host_calls.increases(recorded, found, OPENING)
    assert {name: set(phases) for name, phases in found.items()} == {name: set(recorded[name]) for name in NAMES}
    assert set(found[NAME]) == {host_calls.NEW, *host_calls.PHASES}
    assert all(values["calls"] > 0 for phases in found.values() for values in phases.values())


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
