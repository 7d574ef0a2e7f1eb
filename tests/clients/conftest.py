"""These tests need the extra `clients` and minutes: they are there where pytest is told --clients
(scripts/clients.sh)."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if config.getoption("--clients") else True
