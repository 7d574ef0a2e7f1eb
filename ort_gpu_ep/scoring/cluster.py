"""Where a run's workers are: on a Ray cluster, an actor an adapter. What is read, committed and counted is this
process's work."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ort_gpu_ep.config import resolve
from ort_gpu_ep.device.info import NVIDIA
from ort_gpu_ep.errors import ScoringError
from ort_gpu_ep.scoring import memory, worker
from ort_gpu_ep.scoring.columns import Array
from ort_gpu_ep.scoring.drive import Slot
from ort_gpu_ep.scoring.model import Model
from ort_gpu_ep.scoring.remote import Broadcast, Put, Remote, ray_module, reason
from ort_gpu_ep.scoring.transport import Worker
from ort_gpu_ep.scoring.visible import ALL, AUTO, AUTO_CPU, CPU, CPU_NAME

LOCAL = "local"
"""Instead of an address: a cluster of this machine alone, as long as the run."""

RESOURCE = "adapter"
"""What a node has of adapters that Ray does not count itself."""

_REACH_S = 10.0
"""For a cluster to take a connection."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the cluster. address: its IP. has: resources, in Ray's words."""

    number: str
    address: str
    has: Mapping[str, float]

    def count(self, resource: str) -> int:
        return int(self.has.get(resource, 0))


class Cluster:
    """The alive nodes of a Ray cluster. Raises ScoringError where Ray is not installed or no cluster answers."""

    def __init__(self, model: Model, options: Mapping[str, Any], timeout_s: float, address: str) -> None:
        self.notes: list[str] = []
        self._model, self._options, self._timeout_s, self._ray = model, dict(options), timeout_s, ray_module()
        self._is_own = not self._ray.is_initialized()
        if self._is_own:
            _connect(self._ray, address, self._options)
        self.nodes = [
            Node(n["NodeID"], n["NodeManagerAddress"], n["Resources"]) for n in self._ray.nodes() if n["Alive"]
        ]

    def slots(self, wanted: Sequence[str]) -> list[Slot]:
        model = Broadcast(self._model)
        places, slots = self._places([text for text in wanted if text != AUTO_CPU]), list[Slot]()
        needed = len(places)
        if AUTO_CPU in wanted and not any(adapter == CPU for _, adapter, _ in places):
            places += self._places([CPU])
        for number, (node, adapter, needs) in enumerate(places):
            options = {"num_cpus": 0, **needs, "max_restarts": 0, "scheduling_strategy": self._only(node)}
            start = partial(self._worker, node.address, options)
            name, kind = (CPU_NAME, CPU_NAME) if adapter == CPU else (f"adapter {adapter}", "")
            setup = worker.Setup(self._model, adapter, dict(self._options), model.load, node.address)
            slots.append(Slot(number, f"{node.address}: {name}", setup, start, kind, is_optional=number >= needed))
        return slots

    def _worker(self, where: str, options: Mapping[str, Any]) -> Worker:
        return Worker(Remote(where, options), self._timeout_s)

    def hold(self, arrays: Mapping[str, Array]) -> memory.Held:
        return Put(arrays)

    def close(self) -> None:
        if self._is_own:
            self._ray.shutdown()

    def _only(self, node: Node) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.number, soft=False)

    def _places(self, wanted: Sequence[str]) -> list[tuple[Node, str, dict[str, Any]]]:
        """(node, adapter as its process is to take it, what the actor needs) of each worker; names of adapters are
        those of each node."""
        places = list[tuple[Node, str, dict[str, Any]]]()
        for node in self.nodes:
            for text in wanted:
                if text == ALL:
                    places += [(node, AUTO, {"num_gpus": 1})] * node.count("GPU")
                    places += [(node, AUTO, {"resources": {RESOURCE: 1}})] * node.count(RESOURCE)
                elif node.count("CPU"):
                    places.append((node, text, {"num_cpus": 1}))
        if places:
            return places
        if ALL not in wanted:
            raise ScoringError(
                f"no node of the cluster has a CPU for an actor: {_listed(self.nodes)}; start Ray with --num-cpus"
            )
        self.notes.append(
            f"no node has a GPU, or the resource {RESOURCE!r} for adapters that Ray does not count: the CPUs "
            f"have scored"
        )
        return self._places([CPU])


def _listed(nodes: Sequence[Node]) -> str:
    return "; ".join(
        f"{n.address} has "
        f"{', '.join(f'{v:g} {k}' for k, v in n.has.items() if k in ('CPU', 'GPU', RESOURCE)) or 'neither'}"
        for n in nodes
    )


def _connect(ray: Any, address: str, options: Mapping[str, Any]) -> None:
    """Raises ScoringError, saying what to try."""
    settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        settings |= {"include_dashboard": False, "resources": _own(options)}
    else:
        _reach(address if address != AUTO else _running())
    try:
        ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise _unreachable(address, reason(error)) from error


def _own(options: Mapping[str, Any]) -> dict[str, float]:
    """This machine's adapters that Ray does not count."""
    from ort_gpu_ep.health.enumeration import look

    count = sum(not info.is_software and info.vendor_id != NVIDIA for info in look(resolve(options)))
    return {RESOURCE: float(count)} if count else {}


def _running() -> str:
    """Where Ray's `auto` looks for a cluster. Raises ScoringError where none was started."""
    note = Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray", "ray_current_cluster")
    try:
        return os.environ.get("RAY_ADDRESS") or note.read_text().strip()
    except OSError as error:
        raise _unreachable(AUTO, "none was started on this machine, and RAY_ADDRESS is not set") from error


def _reach(address: str) -> None:
    """Whether somebody listens there: Ray itself would try for minutes. Raises ScoringError."""
    host, _, port = address.partition("://")[2].rpartition(":") if "://" in address else address.rpartition(":")
    if not port.isdecimal() or not host:
        raise ScoringError(
            f"ray: got {address!r}, expected HOST:PORT of a Ray cluster, auto for one that runs on this "
            f"machine, or local"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, why: str) -> ScoringError:
    return ScoringError(
        f"no Ray cluster answers at {address!r} ({why}). Start one (ray start --head; on other machines ray start "
        "--address=HOST:6379), give its address, or score without --ray on this machine"
    )
