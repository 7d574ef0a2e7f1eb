"""Intel's GPUs under the driver xe: fdinfo's `drm-cycles-rcs` and `drm-cycles-ccs` against `drm-total-cycles-*`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ort_gpu_ep.load.drm import find_card
from ort_gpu_ep.load.fdinfo import FdinfoLoad

if TYPE_CHECKING:
    from ort_gpu_ep.device.info import AdapterInfo


def open_xe(info: AdapterInfo, root: Path = Path("/"), order: int = 0) -> FdinfoLoad:
    """Cycles of all readable processes' clients, as parts of the cycles that passed.

    Raises: SourceError.
    Source: xe_drm_client.c, "DOC: DRM Client usage stats" (Linux 6.11): rcs and ccs share the execution units; bcs, vcs, vecs don't.
    """
    slot = find_card(info, root, order, ("xe",)).slot
    return FdinfoLoad(f"xe fdinfo {slot}", slot, root)
