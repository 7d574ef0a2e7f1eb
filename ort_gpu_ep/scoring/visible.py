"""Which adapter a process is to use where a cluster says it in CUDA_VISIBLE_DEVICES, which Vulkan does not read.

Equal GPUs have nothing but UUID and PCI address to tell them apart; an index means what the NVIDIA driver lists at that
place.
"""

from __future__ import annotations

import csv
import io
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ort_gpu_ep.config import resolve
from ort_gpu_ep.device.info import NVIDIA, AdapterInfo, pick
from ort_gpu_ep.errors import AdapterError

VARIABLE = "CUDA_VISIBLE_DEVICES"

CPU, AUTO = "cpu", "auto"
"""Instead of an adapter: none, and the one that this process is to find for itself."""

ALL, AUTO_CPU = "all", "auto"
"""In a list of adapters: those that are hardware, and the CPU if it helps them."""

CPU_NAME = "CPU"

_ADVICE = "Name the adapter (adapter=PCI address or UUID, as `ort-gpu-ep doctor` lists them)"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One of nvidia-smi's list, whose order is that of the PCI bus. uuid: without `GPU-`; pci: `0000:65:00.0`."""

    index: int
    uuid: str
    pci: str
    name: str


def nvidia_gpus() -> list[Gpu]:
    """Raises AdapterError where the driver's tool does not answer."""
    command = ["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise AdapterError(
            f"{VARIABLE} is set, and which GPU it means is not known: {command[0]} failed ({error}). {_ADVICE}"
        ) from error
    return [gpu(*row) for row in csv.reader(io.StringIO(done.stdout), skipinitialspace=True) if row]


def gpu(index: str, uuid: str, pci: str, name: str) -> Gpu:
    """A line of nvidia-smi. Its PCI domain has eight digits, Vulkan's four."""
    domain, _, rest = pci.strip().lower().partition(":")
    return Gpu(int(index), uuid.strip().lower().removeprefix("gpu-"), f"{int(domain, 16):04x}:{rest}", name.strip())


def visible(
    adapters: Sequence[AdapterInfo],
    environment: Mapping[str, str],
    gpus: Callable[[], list[Gpu]] = nvidia_gpus,
) -> list[AdapterInfo] | None:
    """The adapters that CUDA_VISIBLE_DEVICES means, in its order; None where it is not set. Raises AdapterError where
    that is not certain.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables": indices or UUIDs, of which the beginning is
    enough; what is behind the first one that is none does not count.
    """
    text = environment.get(VARIABLE)
    if text is None:
        return None
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries or entries[0] in ("-1", "NoDevFiles"):
        return []
    there = gpus()
    return [_adapter(adapters, _meant(entry, there, environment), entry) for entry in entries]


def _meant(entry: str, there: list[Gpu], environment: Mapping[str, str]) -> Gpu:
    if entry.isdecimal():
        if int(entry) >= len(there):
            raise AdapterError(f"{VARIABLE} has {entry}, the driver lists {len(there)} GPUs. {_ADVICE}")
        if len({g.name for g in there}) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            raise AdapterError(
                f"{VARIABLE} has the index {entry}, and this machine has GPUs of several kinds, which CUDA "
                f"orders by their "
                f"speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or give UUIDs. {_ADVICE}"
            )
        return there[int(entry)]
    prefix = entry.lower()
    fitting = [g for g in there if f"gpu-{g.uuid}".startswith(prefix)] if prefix.startswith("gpu-") else []
    if len(fitting) != 1:
        raise AdapterError(
            f"{VARIABLE} has {entry!r}, which is {'several' if fitting else 'none'} of "
            f"{', '.join(g.uuid for g in there)}"
            f" (a part of a GPU, MIG, is no adapter of Vulkan's). {_ADVICE}"
        )
    return fitting[0]


def _adapter(adapters: Sequence[AdapterInfo], wanted: Gpu, entry: str) -> AdapterInfo:
    for info in adapters:
        if info.uuid == wanted.uuid or info.pci == wanted.pci:
            return info
    there = ", ".join(f"{a.name} {a.pci or a.uuid or '(unknown place)'}" for a in adapters) or "none"
    raise AdapterError(
        f"{VARIABLE} has {entry}, the GPU at {wanted.pci}: no adapter is known to be it; there are: {there}. {_ADVICE}"
    )


def chosen(adapter: str, options: Mapping[str, Any]) -> tuple[str, str, str]:
    """What the option `adapter` is to be for this process, its name and where it is. adapter: as in the option, `cpu`,
    or `auto`.

    Raises AdapterError where it can't be told, or is not there.
    """
    from ort_gpu_ep.health.enumeration import look

    if adapter == CPU:
        return CPU, CPU_NAME, ""
    there = look(resolve(options))
    adapter = own_adapter(there) if adapter == AUTO else adapter
    if adapter == CPU:
        return CPU, CPU_NAME, ""
    info = pick(there, adapter)
    return str(info.index), info.name, info.pci


_claimed: list[IO[bytes]] = []
"""Locks of this process, which end with it."""


def own_adapter(
    adapters: Sequence[AdapterInfo],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """What the option `adapter` is to be for this process: the GPU that the cluster gave it, else one that no other
    process has claimed.

    `cpu` where there is no hardware adapter. Raises AdapterError where all are claimed.
    """
    own = visible(adapters, os.environ if environment is None else environment)
    if own:
        return str(own[0].index)
    free = [a for a in adapters if not a.is_software and not (own is not None and a.vendor_id == NVIDIA)]
    folder = (
        folder or Path(tempfile.gettempdir()) / f"ort_gpu_ep-adapters-{os.getuid() if hasattr(os, 'getuid') else 0}"
    )
    for info in free:
        if _claim(folder, (info.pci or info.uuid or str(info.index)).replace(":", "-")):
            return str(info.index)
    if free:
        raise AdapterError(
            f"all {len(free)} adapters of this machine are claimed by other processes: let the cluster start as "
            f"many actors "
            "on a node as it has adapters (num_gpus, or a resource of your own), or name the adapter"
        )
    return CPU


def _claim(folder: Path, name: str) -> bool:
    from ort_gpu_ep.scoring.parts import LockedError, locked

    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        _claimed.append(locked(folder / f"{name}.lock"))
    except LockedError:
        return False
    return True
