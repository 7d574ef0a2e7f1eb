"""NVIDIA's GPUs, by its management library (package nvidia-ml-py, extra `nvml`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ort_gpu_ep.load.source import Source, SourceError, clip
from ort_gpu_ep.processes.known import own_pids

if TYPE_CHECKING:
    from ort_gpu_ep.device.info import AdapterInfo

PERIOD_S = 1.0
"""NVML's longest sample period: a process without a sample for so long does nothing."""


class NvmlLoad(Source):
    """Part of NVML's last sample period (1/6 to 1 s) in which a kernel ran, less our own part.

    Our part is `smUtil` of our process ids in nvmlDeviceGetProcessUtilization. In a container NVML may know other ids
    than ours: then includes_own is true, and the sampler subtracts what it was told. order: which of several equal
    GPUs, in NVML's order, which is that of the PCI bus, as Vulkan's.

    Raises: SourceError. Source: NVML API reference, nvmlUtilization_t, nvmlProcessUtilizationSample_t, nvmlPciInfo_t
    (pciDeviceId: device << 16 | vendor).
    """

    forkable = False

    def __init__(
        self,
        info: AdapterInfo,
        order: int = 0,
        library: Any = None,
        own: Callable[[], frozenset[int]] = own_pids,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml, self._own, self.includes_own = library or _library(), own, True
        self._clock, self._since_us, self._seen = clock, 0, dict[int, tuple[float, float]]()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise SourceError(f"nvmlInit: {error}") from error
        try:
            self.device = self._find(info, order)
            self.name = f"NVML {_text(self._nvml.nvmlDeviceGetPciInfo(self.device).busId)}"
            self.read()
        except SourceError:
            self.close()
            raise
        except self._nvml.NVMLError as error:
            self.close()
            raise SourceError(f"NVML: {error}") from error

    def _find(self, info: AdapterInfo, order: int) -> Any:
        devices = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        pci_id = info.device_id << 16 | info.vendor_id
        fitting = [d for d in devices if self._nvml.nvmlDeviceGetPciInfo(d).pciDeviceId == pci_id]
        fitting = fitting or [d for d in devices if _text(self._nvml.nvmlDeviceGetName(d)) == info.name]
        if order >= len(fitting):
            there = ", ".join(_text(self._nvml.nvmlDeviceGetName(d)) for d in devices) or "none"
            raise SourceError(f"NVML has no device {info.name} ({pci_id:#010x}, number {order}); it has: {there}")
        return fitting[order]

    def read(self) -> float | None:
        try:
            load = self._nvml.nvmlDeviceGetUtilizationRates(self.device).gpu / 100.0
        except self._nvml.NVMLError as error:
            raise SourceError(f"nvmlDeviceGetUtilizationRates: {error}") from error
        own = self._own_part()
        self.includes_own = own is None
        return clip(load - (own or 0.0))

    def _own_part(self) -> float | None:
        """Our part by the newest samples, of which there is none at each reading; None as long as NVML has shown none
        of ours."""
        try:
            samples = list(self._nvml.nvmlDeviceGetProcessUtilization(self.device, self._since_us))
        except self._nvml.NVMLError:  # no new sample, no process, no permission, or not supported
            samples = []
        self._since_us = max([self._since_us, *(int(s.timeStamp) for s in samples)])
        own, now_s = self._own(), self._clock()
        for sample in sorted(samples, key=lambda s: int(s.timeStamp)):
            if int(sample.pid) in own:
                self._seen[int(sample.pid)] = (float(sample.smUtil) / 100.0, now_s)
        return sum(part for part, when_s in self._seen.values() if now_s - when_s <= PERIOD_S) if self._seen else None

    def close(self) -> None:
        self._nvml.nvmlShutdown()


def _library() -> Any:
    try:
        return import_module("pynvml")
    except ImportError as error:
        raise SourceError("the package nvidia-ml-py is not installed (pip install nvidia-ml-py)") from error


def _text(name: Any) -> str:
    return name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
