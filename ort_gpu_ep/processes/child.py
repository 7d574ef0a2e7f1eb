"""Starts helper processes, and reports how they ended.

`python -m` and `python -c` put the current folder first in `sys.path`: what lies there (numpy.py in a folder of
downloads) would be executed. So a helper begins with a script of this package, launch.py, which is told where this
process has its packages from.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PACKAGES = (
    "ort_gpu_ep",
    "_cffi_backend",
    "cffi",
    "ml_dtypes",
    "numpy",
    "onnx",
    "onnxruntime",
    "platformdirs",
    "psutil",
    "wgpu",
    "wgpudawn",
)
"""What helpers import, and must have from where this process has it: other versions beside it would not fit each
other."""

BEGIN_S = 120.0
"""For a helper to begin: Python starts and imports packages, 0.3 s to 2 s on an idle machine; it may load a driver."""

_LAUNCH = Path(__file__).with_name("launch.py")


def command(module: str, *arguments: str) -> list[str]:
    """The command line of a helper that runs a module. Raises OSError, where no Python can be started."""
    if not sys.executable or getattr(sys, "frozen", False):
        raise OSError("this Python has no interpreter of its own that could be started")
    folders = _folders()
    # what is not imported yet lies beside them at last
    rest = [folder for name, folder in folders.items() if name != "ort_gpu_ep"]
    # ASCII, whatever the folders are called
    places = json.dumps({"path": list(_path()), "rest": rest, "folders": folders})
    return [sys.executable, *_flags(), str(_LAUNCH), places, module, *arguments]


def _flags() -> Iterator[str]:
    """-s, -P: neither the user's site-packages, which come by `sys.path`, nor the script's folder. The rest as in this
    process."""
    yield from ("-s", "-P")
    for name, flag in (
        ("isolated", "-I"),
        ("ignore_environment", "-E"),
        ("no_site", "-S"),
        ("dont_write_bytecode", "-B"),
    ):
        if getattr(sys.flags, name):
            yield flag


def _path() -> Iterator[str]:
    """This process's `sys.path` without the current folder, whatever it is called there."""
    try:
        current = os.path.realpath(os.getcwd())
    except OSError:  # it was removed: nothing relative can be found
        yield from filter(os.path.isabs, sys.path)
        return
    for entry in sys.path:
        if isinstance(entry, str) and os.path.realpath(entry) != current:
            yield os.path.abspath(entry)


def _folders() -> dict[str, str]:
    """Where this process has imported PACKAGES from."""
    folders = {}
    for name in PACKAGES:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec is not None and spec.has_location and spec.origin:
            folders[name] = os.path.abspath(
                Path(spec.origin).parents[1 if spec.submodule_search_locations is not None else 0]
            )
    return folders


_KEPT = ("ORT_GPU_EP_DRILL", "ORT_GPU_EP_WEBGPU", "ORT_GPU_EP_WEBGPU_LIBRARY")
"""A drill, and which library is probed."""
handed_on: dict[str, str] = {}
"""Variables that this process sets for its helpers: what it has decided for itself."""


def environment() -> dict[str, str]:
    """This process's, without options that are not about probing; packages are found by `command`, not by
    PYTHONPATH."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("ORT_GPU_EP_") or k in _KEPT}
    own.pop("PYTHONPATH", None)
    return own | handed_on


def starved_s(pid: int) -> dict[str, float]:
    """Seconds that each thread of a process has waited for a core so far, by its number; empty where the system does
    not tell.

    Source: the Linux kernel's Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat.
    """
    seconds = {}
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError, IndexError):  # the thread has ended meanwhile
            seconds[file.parent.name] = int(file.read_text().split()[1]) * 1e-9
    return seconds


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
