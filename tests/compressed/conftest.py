"""Fixtures of the tests of compressed models."""

from __future__ import annotations

import onnxruntime
import pytest

from ort_gpu_ep import plugin


@pytest.fixture(scope="session", autouse=True)
def registered() -> None:
    onnxruntime.set_default_logger_severity(4)
    plugin.register()
