"""The .zip for a bug report: the doctor's results, without anything that identifies the user or the machine."""

from __future__ import annotations

import json
import os
import platform
import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ort_gpu_ep.files import whole

DRIVER_VARIABLES = ("VK_", "MESA_", "LP_", "GALLIUM_", "RADV_", "ANV_", "NVK_", "WGPU_", "LIBGL_", "__GLX_", "__NV_")
"""Beginnings of the names of variables that drivers read."""


_PATH = re.compile(
    r"""(?<![\w./\\])(?<!http:)(?<!https:)(?:[A-Za-z]:)?(?:[/\\](?:[^/\\:;,"'\n]{0,60}(?=[/\\])|[^/\\:;,\s"']+))+"""
)
"""An absolute path: names in it may have spaces, but for the last one. Better a word of a sentence too much than a
name."""

_LONE_HOME = re.compile(r"""(?:/home|/Users|[A-Za-z]:\\Users)[/\\][^/\\:;,"'\n]*$""", re.IGNORECASE)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that drivers read; of a path, the last part only."""
    return {
        name: os.pathsep.join(map(shortened, value.split(os.pathsep)))
        for name, value in sorted(variables.items())
        if name.startswith(DRIVER_VARIABLES)
    }


def shortened(text: str) -> str:
    """The text without the names of this user and machine, and with absolute paths cut down to their last part: folders
    name both."""
    text = _LONE_HOME.sub("<home>", text)
    for home in sorted(_homes(), key=len, reverse=True):
        text = re.sub(re.escape(home) + r"(?![^/\\:;,\s\"'])", "<home>", text)
    text = _PATH.sub(_last_part, text)
    for name in _names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "<name>", text, flags=re.IGNORECASE)
    return text


def _last_part(found: re.Match[str]) -> str:
    parts = re.split(r"[/\\]", found[0])
    if len(parts) == 2:  # no folder: a flag, a fraction, "and/or"
        return found[0]
    if len(parts) == 3 and parts[1].lower() in ("home", "users"):
        return "<home>"
    return f".../{parts[-1]}"


def _homes() -> set[str]:
    folders = (os.environ.get(name, "") for name in ("HOME", "USERPROFILE"))
    return {home.rstrip("/\\") for home in (*folders, os.path.expanduser("~")) if len(home.rstrip("/\\")) > 1}


def _names() -> set[str]:
    """What this user and this machine are called; not what half of all are."""
    texts = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "HOSTNAME", "COMPUTERNAME")]
    texts += [platform.node(), platform.node().partition(".")[0], *(re.split(r"[/\\]", home)[-1] for home in _homes())]
    return {
        name for name in texts if len(name) > 2 and name.lower() not in ("root", "user", "home", "localhost", "nobody")
    }


def redacted(value: object) -> object:
    """What JSON can hold, with each text `shortened`, without UUIDs: a device's names the machine."""
    if isinstance(value, Mapping):
        return {str(key): redacted(item) for key, item in value.items() if key != "uuid"}
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in value]
    return shortened(value) if isinstance(value, str) else value


def summary(report: Mapping[str, Any]) -> list[str]:
    """Ten lines for an issue, of what `doctor --json` prints; without anything that identifies the user or the
    machine."""
    chosen, probes, limits = report.get("chosen"), report.get("probes", ()), report.get("limits")
    counts = Counter(str(probe["status"]) for probe in probes)
    failed = [
        f"{probe['name']} ({probe['status']}: {str(probe['seen']).partition(chr(10))[0]})"
        for probe in probes
        if probe["status"] not in ("PASS", "UNSUPPORTED")
    ]
    faults = [entry["what"] for key in ("known_faults", "disabled", "workarounds") for entry in report.get(key, ())]
    ours = {name: shortened(value) for name, value in sorted(os.environ.items()) if name.startswith("ORT_GPU_EP_")}
    adapter = (
        f"{chosen['name']} ({chosen['type']}), {chosen['backend']}, driver {chosen['driver']}"
        if chosen
        else report.get("reason", "")
    )
    lines = {
        "versions": ", ".join(f"{name} {version}" for name, version in report["versions"].items()),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "adapter": adapter,
        "other adapters": "; ".join(a["name"] for a in report["adapters"] if a["index"] != (chosen or a)["index"]),
        "features": ", ".join(report.get("features", ())),
        "limits": f"{limits['max_buffer_nbytes'] >> 20} MiB a buffer, {limits['max_binding_nbytes'] >> 20} "
        f"MiB a binding"
        if limits
        else "",
        "health": "; ".join(
            filter(None, (report["health"], ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))))
        ),
        "failed": "; ".join(failed),
        "known faults": "; ".join(faults),
    }
    lines = {name: shortened(text).replace("\n", " ") for name, text in lines.items()}
    # shortened, each
    lines["environment"] = " ".join(f"{name}={value}" for name, value in {**ours, **environment(os.environ)}.items())
    return [f"{name}: {text or 'none'}" for name, text in lines.items()]


def write(path: Path, report: Mapping[str, object]) -> None:
    """report.json and README.txt in a zip file. Raises OSError."""
    system = {"system": platform.system(), "release": platform.release(), "machine": platform.machine()}
    text = json.dumps(redacted({**report, "system": system, "environment": environment(os.environ)}), indent=1)
    with whole(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("report.json", text)
        file.writestr(
            "README.txt",
            "What `ort-gpu-ep doctor` saw: adapters, driver, limits, the outcome of each probe, versions,\n"
            "the kernel's release, and the variables that drivers read.\n"
            "No user name, host name or folder. Nothing was sent anywhere.\n",
        )
