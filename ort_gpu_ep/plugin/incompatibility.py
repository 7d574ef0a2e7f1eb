"""What speaks against a GPU, for those who ask ONNX Runtime before they open a session."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ort_gpu_ep.config import Config
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.errors import AdapterError
from ort_gpu_ep.kernels.registry import ADAPTER

NONE, DRIVER, DEVICE, MISSING = 0, 1 << 0, 1 << 1, 1 << 2
"""OrtDeviceEpIncompatibilityReason: driver, device, a missing dependency."""

NO_GPU = DEVICE, "this is no GPU: the provider runs on GPUs, and ONNX Runtime has others for the rest"


def incompatibility(config: Config, ids: tuple[int, int] | None) -> tuple[int, str]:
    """(reason, notes) for a GPU by its vendor and device id; None: for the one that a session chooses by itself.

    NONE with notes: a session runs there, without something. Nothing is probed: it goes by the verdict of earlier
    looks, the doctor's or a session's, and by known faults.

    Raises ConfigError, for a broken file of quirks.
    """
    from ort_gpu_ep.health.enumeration import look  # sessions register without these
    from ort_gpu_ep.webgpu.missing import no_adapter

    try:
        infos = look(config)
    except AdapterError as error:
        return DRIVER, str(error)
    if not infos:
        return MISSING, no_adapter(os.environ)
    here = [info for info in infos if ids in (None, (info.vendor_id, info.device_id))]
    if not here:
        there = "; ".join(f"{info.name} ({info.backend})" for info in infos)
        return (
            MISSING,
            f"no driver offers this GPU by Vulkan, Metal or DX12; they offer: {there}. Install the driver of the "
            f"GPU's maker.",
        )
    return _of(config, here[0])


def _of(config: Config, info: AdapterInfo) -> tuple[int, str]:
    from ort_gpu_ep.health import verdicts
    from ort_gpu_ep.health.quirks import known, reasons

    verdict = verdicts.read(config.cache_path, verdicts.key_of(info)) or verdicts.Verdict(probed=False)
    disabled: Sequence[tuple[str, str]] = verdicts.with_quirks(verdict, reasons(known(config), info)).disabled
    notes = "; ".join(f"{what} is not used: {why}" for what, why in disabled)
    return (DRIVER if any(what == ADAPTER for what, _ in disabled) else NONE), notes
