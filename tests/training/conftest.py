"""What goes wrong on purpose is not printed by onnxruntime; no test goes by what another one learnt."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    onnxruntime.set_default_logger_severity(4)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_GPU_EP_HEALTH", "off")
