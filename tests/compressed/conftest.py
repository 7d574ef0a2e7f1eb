"""Fixtures of the tests of compressed models."""

from __future__ import annotations

import sys
import zlib
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep import plugin


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test draws the same numbers, whichever tests drew from the generators that these files share before it in
    its process."""
    for name, module in sys.modules.copy().items():  # a thread of an earlier test may import something meanwhile
        if name.startswith(__package__) and isinstance(generator := getattr(module, "RNG", None), np.random.Generator):
            source: Any = generator.bit_generator.seed_seq
            seed = [zlib.crc32(item.nodeid.encode()), source.entropy]
            generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state


@pytest.fixture(autouse=True)
def packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sessions: these tests are about kernels that read packed weights, test_dense_weights.py apart."""
    monkeypatch.setenv("ORT_GPU_EP_WEIGHTS", "packed")


@pytest.fixture(scope="session", autouse=True)
def registered() -> None:
    onnxruntime.set_default_logger_severity(4)
    plugin.register()
