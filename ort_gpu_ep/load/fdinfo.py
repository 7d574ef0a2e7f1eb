"""What each process does on a graphics card, from the DRM clients' fdinfo.

Source: Documentation/gpu/drm-usage-stats.rst. A client's file /proc/PID/fdinfo/FD has lines `drm-driver`, `drm-pdev`,
`drm-client-id`, and for each engine `drm-engine-NAME: N ns` (busy time) and, on some drivers, `drm-cycles-NAME` with
`drm-total-cycles-NAME` (busy and passed clock cycles) and `drm-engine-capacity-NAME` (how many of them there are).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ort_gpu_ep.load.drm import find_card
from ort_gpu_ep.load.source import Source, SourceError, clip
from ort_gpu_ep.processes.known import own_pids

if TYPE_CHECKING:
    from ort_gpu_ep.device.info import AdapterInfo

OTHER_ENGINES = re.compile(r"video|enc|dec|jpeg|copy|dma|bcs|vcs|vecs|vpe|tfu|cpu")
"""Engines that do not share the shader cores: video, copies. Names of i915, xe, amdgpu, v3d and panthor."""

SCANNED = 2
"""Processes that are searched for new clients at each reading: some 50 us each, so that a reading stays at 0.1 ms. Of
300 processes a new client is found after 15 to 30 s."""


@dataclass(slots=True)
class Client:
    """Counters of one client. key: its number on the card. engines: name -> (busy, total, capacity): ns and None, or
    cycles and total."""

    key: str
    engines: dict[str, tuple[int, int | None, int]] = field(default_factory=dict)


def parse(text: str, slot: str) -> Client | None:
    """A client of the card at `slot`; None for any other file. Drivers of platform devices leave drm-pdev out."""
    facts = {
        k.strip(): v.strip() for k, _, v in (line.partition(":") for line in text.splitlines()) if k.startswith("drm-")
    }
    if "drm-driver" not in facts or facts.get("drm-pdev", slot) != slot:
        return None
    client = Client(facts.get("drm-client-id", ""))
    for key in facts:
        kind, _, name = key.removeprefix("drm-").partition("-")
        if kind == "engine" and not name.startswith("capacity-"):
            client.engines.setdefault(
                name, (_count(facts, key), None, _count(facts, f"drm-engine-capacity-{name}") or 1)
            )
        elif kind == "cycles" and f"drm-total-cycles-{name}" in facts:
            total = _count(facts, f"drm-total-cycles-{name}")
            client.engines[name] = (_count(facts, key), total, _count(facts, f"drm-engine-capacity-{name}") or 1)
    client.engines = {name: counts for name, counts in client.engines.items() if not OTHER_ENGINES.search(name)}
    return client


def _count(facts: dict[str, str], key: str) -> int:
    first = facts.get(key, "0").split()[:1]
    return int(first[0]) if first and first[0].isdigit() else 0


def busy(before: Client, now: Client, passed_ns: float) -> float:
    """The part of the shader cores' time that a client took between two readings; its engines share them, so they add
    up."""
    part = 0.0
    for name, (count, total, capacity) in now.engines.items():
        old_count, old_total, _ = before.engines.get(name, (count, total, capacity))
        passed = passed_ns if total is None or old_total is None else total - old_total
        if count > old_count and passed > 0:
            part += (count - old_count) / passed / capacity
    return part


class Clients:
    """The clients of one card, found bit by bit, and how busy they were between two readings.

    listing: the processes to search; None: all that can be read (other users' by root only).
    """

    def __init__(self, slot: str, root: Path, listing: Callable[[], Iterable[int]] | None = None) -> None:
        self._slot, self._proc, self._listing = slot, root / "proc", listing or self._all
        self._files: dict[Path, int] = {}
        self._queue: list[int] = []
        for pid in self._listing():
            self._scan(pid)
        self.last, self._last_ns = self._read(), time.monotonic_ns()

    def _all(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self._proc) if name.isdigit()]
        except OSError as error:
            raise SourceError(f"{self._proc}: {error.strerror}") from error

    def _scan(self, pid: int) -> None:
        """Notes a process's open files below /dev/dri; processes of others and ended ones can't be read."""
        folder = self._proc / str(pid)
        try:
            for name in os.listdir(folder / "fd"):
                if "/dri/" in os.readlink(folder / "fd" / name):
                    self._files[folder / "fdinfo" / name] = pid
        except OSError:
            return

    def _read(self) -> dict[str, tuple[int, Client]]:
        """key -> (pid, client); each client once, for descriptors may be duplicated."""
        clients: dict[str, tuple[int, Client]] = {}
        for path, pid in list(self._files.items()):
            try:
                client = parse(path.read_text("ascii", "replace"), self._slot)
            except OSError:  # closed, or the process has ended
                client = None
            if client is None:
                del self._files[path]
            else:
                clients[client.key or str(path)] = (pid, client)
        return clients

    def busy(self, but: frozenset[int] = frozenset()) -> float:
        """The part of the card's time since the last reading that clients of other processes than `but` took."""
        self._queue = self._queue or list(self._listing())
        for pid in self._queue[:SCANNED]:
            self._scan(pid)
        del self._queue[:SCANNED]
        before, before_ns = self.last, self._last_ns
        self.last, self._last_ns = self._read(), time.monotonic_ns()
        return clip(
            sum(
                busy(before[key][1], client, self._last_ns - before_ns)
                for key, (pid, client) in self.last.items()
                if pid not in but and key in before
            )
        )


class FdinfoLoad(Source):
    """The work of all readable processes on one card but our own.

    Raises: SourceError, where no client's engines are counted.
    """

    def __init__(
        self, name: str, slot: str, root: Path = Path("/"), own: Callable[[], frozenset[int]] = own_pids
    ) -> None:
        self.name, self._own = name, own
        self._clients = Clients(slot, root)
        if not any(client.engines for _, client in self._clients.last.values()):
            raise SourceError(
                f"{root / 'proc'}/*/fdinfo: of {len(self._clients.last)} readable clients of the card {slot} none "
                f"has drm-engine-* or "
                "drm-cycles-*; a kernel that counts them is needed"
            )

    def read(self) -> float | None:
        return self._clients.busy(self._own())


def open_fdinfo(info: AdapterInfo, root: Path = Path("/"), order: int = 0, drivers: tuple[str, ...] = ()) -> FdinfoLoad:
    """The work on an adapter's card, whatever driver it has (or one of these), as long as that counts its clients'
    work.

    Raises: SourceError. Source: i915_drm_client.c (Linux 5.19), busy nanoseconds by uabi class: render, compute (the
    PMU would count everybody's, but needs CAP_PERFMON). xe_drm_client.c (Linux 6.11), cycles of those that passed: rcs
    and ccs share the execution units; bcs, vcs, vecs don't.
    """
    card = find_card(info, root, order, drivers)
    return FdinfoLoad(f"{card.driver} fdinfo {card.slot}", card.slot, root)


class OwnBusy:
    """Our own part of a card since the last reading, from our own clients alone: quick. None where the driver does not
    count."""

    def __init__(self, slot: str, root: Path = Path("/"), own: Callable[[], frozenset[int]] = own_pids) -> None:
        self._clients = Clients(slot, root, own)

    def __call__(self) -> float | None:
        part = self._clients.busy()
        return part if any(client.engines for _, client in self._clients.last.values()) else None
