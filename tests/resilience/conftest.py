"""Tests of what goes wrong: onnxruntime need not print each of it."""

from __future__ import annotations

import onnxruntime
import pytest


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    onnxruntime.set_default_logger_severity(4)
