"""Qualcomm's Adreno under its own driver, as on Android: `gpubusy`, or `gpu_busy_percentage`."""

from __future__ import annotations

from pathlib import Path

from ort_gpu_ep.load.source import Percentage, Source, SourceError, clip, read_text

VENDOR = 0x5143
FOLDER = "sys/class/kgsl/kgsl-3d0"


class KgslLoad(Source):
    """`gpubusy`: two numbers, microseconds of work and of time in the driver's last window; both are 0 while the GPU
    sleeps.

    Raises: SourceError.
    Source: kgsl_pwrctrl.c, `gpubusy_show` and `gpu_busy_percentage_show`.
    """

    includes_own = True

    def __init__(self, root: Path = Path("/")) -> None:
        self.name, self._path = "kgsl gpubusy", root / FOLDER / "gpubusy"
        self.read()

    def read(self) -> float | None:
        text = read_text(self._path)
        words = text.split()
        if len(words) != 2 or not all(w.isdigit() for w in words):
            raise SourceError(f"{self._path}: got {text.strip()[:40]!r}, expected two numbers")
        busy, total = int(words[0]), int(words[1])
        return clip(busy / total) if total else 0.0


def open_kgsl(root: Path = Path("/")) -> KgslLoad | Percentage:
    """The finer file, or the one that more phones let programs read. Raises SourceError, naming both."""
    try:
        return KgslLoad(root)
    except SourceError as fine:
        try:
            return Percentage("kgsl gpu_busy_percentage", root / FOLDER / "gpu_busy_percentage")
        except SourceError as coarse:
            raise SourceError(f"{fine}; {coarse}") from coarse
