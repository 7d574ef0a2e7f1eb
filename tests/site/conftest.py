"""These tests need the dependency group `docs` and node: they are there where pytest is told --site
(scripts/site.sh)."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if config.getoption("--site") else True
