"""Unit tests run on machines without any GPU: none of them may look for one."""

from __future__ import annotations

from typing import NoReturn

import pytest


@pytest.fixture(autouse=True)
def no_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> NoReturn:
        raise AssertionError("a unit test looks for a GPU adapter")

    monkeypatch.setattr("ort_gpu_ep.device.adapter._enumerate", refuse)
