"""Apple's GPUs: the utilization in IOKit's registry."""

from __future__ import annotations

import os
import plistlib
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.load.source import Source, SourceError, clip

if TYPE_CHECKING:
    from ort_gpu_ep.device.info import AdapterInfo

COMMAND = ("ioreg", "-a", "-r", "-d", "1", "-c", "IOAccelerator")
"""-a: as a property list; -r, -c: the entries of that class; -d 1: without their children. Source: ioreg(8)."""

KEY = "Device Utilization %"


def ask_ioreg() -> bytes:
    """The registry's accelerators. Raises SourceError."""
    try:
        return subprocess.run(COMMAND, capture_output=True, timeout=5.0, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SourceError(f"{' '.join(COMMAND)}: {error}") from error


class IoregLoad(Source):
    """PerformanceStatistics["Device Utilization %"] of the accelerator whose model is the adapter's name, or of the
    only one.

    Raises: SourceError.
    """

    includes_own = True

    def __init__(self, info: AdapterInfo, ask: Callable[[], bytes] = ask_ioreg) -> None:
        self.name, self._adapter, self._ask = "IOKit", info.name, ask
        self.read()

    def read(self) -> float | None:
        before = os.times()
        accelerators = self._accelerators(self._ask())
        after = os.times()
        self.cost_s = max(
            after.children_user + after.children_system - before.children_user - before.children_system, 0.0
        )
        statistics = self._mine(accelerators).get("PerformanceStatistics", {})
        if not isinstance(statistics.get(KEY), int):
            there = ", ".join(sorted(statistics)) or "nothing"
            raise SourceError(f"ioreg: PerformanceStatistics of {self._adapter} has no {KEY!r}; it has {there}")
        return clip(statistics[KEY] / 100.0)

    def _accelerators(self, text: bytes) -> list[dict[str, Any]]:
        try:
            entries = plistlib.loads(text) if text.strip() else []
        except (plistlib.InvalidFileException, ValueError) as error:
            raise SourceError(f"{' '.join(COMMAND)}: no property list: {error}") from error
        return [entry for entry in entries if isinstance(entry, dict)]

    def _mine(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        """The entry of this adapter. Its model is text, or bytes that end with a zero."""
        for entry in found:
            model = entry.get("model", "")
            model = model.decode("utf-8", "replace").rstrip("\0") if isinstance(model, bytes) else str(model)
            if model and (model in self._adapter or self._adapter in model):
                return entry
        if len(found) != 1:
            raise SourceError(f"ioreg: {len(found)} accelerators, none with the model {self._adapter!r}")
        return found[0]
