"""On which adapters this package was tested, as data: health/tested.json, a list of entries, to which commands
append."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.files import whole
from ort_gpu_ep.health.drivers import wgpu_version

WHAT = ("doctor", "conformance", "models")
"""doctor: its probes. conformance: ONNX's node cases. models: networks against onnxruntime's CPU provider."""

_SAME = ("adapter", "driver", "backend", "system", "as", "what")
"""An entry takes the place of one that is equal in these."""


def entry(
    info: AdapterInfo, what: str, results: Mapping[str, int] | Mapping[str, str], held_to: str = ""
) -> dict[str, Any]:
    """results: how many of each outcome, or the outcome of each. held_to: the class of GPUs, where the adapter was held
    to one.

    Nothing in it tells whose machine it is: no UUID, PCI address, host or folder.
    """
    import onnxruntime

    return {
        "adapter": info.name.removesuffix(f" as {held_to}"),
        "type": info.type,
        "backend": info.backend,
        "driver": info.driver,
        "system": f"{platform.system()} {platform.machine()}",
        "as": held_to,
        "what": what,
        "date": date.today().isoformat(),
        "package": sys.modules["ort_gpu_ep"].__version__,
        "onnxruntime": onnxruntime.__version__,
        "wgpu": wgpu_version(),
        "python": ".".join(map(str, sys.version_info[:2])),
        "results": dict(results),
    }


def shipped() -> list[dict[str, Any]]:
    """The table of this package."""
    return list(json.loads((files("ort_gpu_ep.health") / "tested.json").read_text("utf-8")))


def append(path: Path, added: Mapping[str, Any]) -> None:
    """Adds an entry to a table, or begins one; an older one of the same adapter, driver and test goes. Raises OSError,
    ConfigError."""
    try:
        entries = json.loads(path.read_text("utf-8") or "[]") if path.exists() else []
        kept = [each for each in entries if [each[name] for name in _SAME] != [added[name] for name in _SAME]]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: {error!r}; expected a table that this command wrote. Name another file") from None
    lines = [json.dumps(each, ensure_ascii=False) for each in (*kept, added)]
    with whole(path) as part:
        part.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


def about(info: AdapterInfo) -> str:
    """Whether this adapter is in the table of this package, in a sentence or two."""
    entries = shipped()
    own = [each for each in entries if (each["adapter"], each["backend"], each["as"]) == (info.name, info.backend, "")]
    if own:
        newest = max(own, key=lambda each: str(each["date"]))
        other = "" if newest["driver"] == info.driver else f" with the driver {newest['driver'] or 'of that day'}"
        versions = f"onnxruntime {newest['onnxruntime']} and wgpu {newest['wgpu']}"
        return f"This package was tested on this adapter on {newest['date']}{other}, with {versions}."
    count = len({each["adapter"] for each in entries})
    return (
        f"This adapter is none of the {count} that this package was tested on (docs/adapters.md). Your report helps: "
        "`ort-gpu-ep doctor --report adapter.json`, and open an issue with that file."
    )
