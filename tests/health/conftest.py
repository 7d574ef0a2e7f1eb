"""Tests of probes wait for them, however busy the machine is."""

from __future__ import annotations

import pytest

from ort_gpu_ep.health import open_adapter


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first use does not wait for what is not done after QUICK_S: on a busy machine that would be another test."""
    monkeypatch.setattr(open_adapter, "QUICK_S", 300.0)
