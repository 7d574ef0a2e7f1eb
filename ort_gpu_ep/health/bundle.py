"""The file for a bug report: what the doctor saw, and nothing about whose machine it is."""

from __future__ import annotations

import json
import os
import platform
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

DRIVER_VARIABLES = ("VK_", "MESA_", "LP_", "GALLIUM_", "RADV_", "ANV_", "NVK_", "WGPU_", "LIBGL_", "__GLX_", "__NV_")
"""Beginnings of the names of variables that drivers read."""


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that drivers read; of a path, the last part only."""
    return {name: shortened(value) for name, value in sorted(variables.items()) if name.startswith(DRIVER_VARIABLES)}


def shortened(text: str) -> str:
    """The text with every absolute path cut down to its last part: folders name users and machines."""
    return re.sub(r"(?:[A-Za-z]:)?(?:[/\\][^/\\:;\s\"']+)+[/\\]([^/\\:;\s\"']+)", r".../\1", text)


def write(path: Path, report: Mapping[str, object]) -> None:
    """report.json and README.txt in a zip file. Raises OSError."""
    data = {**report, "system": {"system": platform.system(), "release": platform.release(), "machine": platform.machine()},
            "environment": environment(os.environ)}
    text = shortened(json.dumps(data, indent=1))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("report.json", text)
        file.writestr("README.txt", "What `ort-gpu-ep doctor` saw: adapters, driver, limits, the outcome of each probe, versions,\n"
                      "the kernel's release, and the variables that drivers read.\n"
                      "No user name, host name or folder. Nothing was sent anywhere.\n")
