"""Options and fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from ort_gpu_ep.device import Gpu

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def closed_circuits() -> None:
    """A test that makes the GPU fail does not send the next test to the CPU."""
    for circuit in Gpu._circuits.values():
        circuit.reset()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden files anew instead of comparing with them.")


@pytest.fixture
def rng() -> np.random.Generator:
    """Random inputs: the same ones in every run."""
    return np.random.default_rng(20_240_229)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares a text with the file tests/golden/<name>."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, "utf-8")
        assert path.is_file(), f"{path} does not exist: run pytest with --update-golden and read what it writes"
        assert text == path.read_text("utf-8"), f"{name} has changed: if that is meant, run pytest with --update-golden and read what changes"

    return compare
