"""Intel's GPUs under the driver i915: fdinfo's `drm-engine-render` and `drm-engine-compute`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ort_gpu_ep.load.drm import find_card
from ort_gpu_ep.load.fdinfo import FdinfoLoad

if TYPE_CHECKING:
    from ort_gpu_ep.device.info import AdapterInfo

VENDOR = 0x8086


def open_i915(info: AdapterInfo, root: Path = Path("/"), order: int = 0) -> FdinfoLoad:
    """Busy nanoseconds of all readable processes' clients. The PMU would count everybody's, but needs CAP_PERFMON.

    Raises: SourceError.
    Source: i915_drm_client.c (Linux 5.19); the `engine` names are those of uabi classes: render, copy, video, video-enhance, compute.
    """
    slot = find_card(info, root, order, ("i915",)).slot
    return FdinfoLoad(f"i915 fdinfo {slot}", slot, root)
