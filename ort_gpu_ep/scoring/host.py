"""The workers of a run on this machine, one process for each adapter."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from ort_gpu_ep.config import resolve
from ort_gpu_ep.device.info import pick
from ort_gpu_ep.scoring import memory, worker
from ort_gpu_ep.scoring.columns import Array
from ort_gpu_ep.scoring.drive import Slot
from ort_gpu_ep.scoring.model import Model
from ort_gpu_ep.scoring.process import Process
from ort_gpu_ep.scoring.transport import Worker
from ort_gpu_ep.scoring.visible import ALL, AUTO_CPU, CPU, CPU_NAME

_names = count()


class Host(Protocol):
    """What has the workers. notes: what is to be known of the choice of adapters."""

    notes: list[str]

    def slots(self, wanted: Sequence[str]) -> list[Slot]:
        """A place for a worker on each adapter that is asked for. Raises AdapterError."""

    def hold(self, arrays: Mapping[str, Array]) -> memory.Held:
        """Arrays, where workers can have them. Raises ScoringError."""

    def close(self) -> None: ...


class Machine:
    """This machine: processes, and memory that they share with this one."""

    def __init__(self, model: Model, options: Mapping[str, Any], timeout_s: float) -> None:
        self.notes: list[str] = []
        self._model, self._options, self._timeout_s = model, dict(options), timeout_s
        self._prefix = f"ortgpuep-{os.getpid()}-{next(_names)}"  # of this run: a process may have several

    def slots(self, wanted: Sequence[str]) -> list[Slot]:
        named = self._named([text for text in wanted if text != AUTO_CPU])
        optional = (
            [(CPU, CPU_NAME, "")] if AUTO_CPU in wanted and not any(adapter == CPU for adapter, _, _ in named) else []
        )
        return [
            Slot(
                number,
                f"{name} {place}".strip(),
                worker.Setup(self._model, adapter, dict(self._options)),
                self._worker,
                name,
                self._prefix,
                number >= len(named),
            )
            for number, (adapter, name, place) in enumerate(named + optional)
        ]

    def _worker(self) -> Worker:
        return Worker(Process(), self._timeout_s)

    def hold(self, arrays: Mapping[str, Array]) -> memory.Held:
        return memory.put(f"{self._prefix}-s{next(_names)}", arrays)

    def close(self) -> None:
        """Workers end with their slots."""

    def _named(self, wanted: Sequence[str]) -> list[tuple[str, str, str]]:
        """(what to open it by, its name, where it is) of each adapter that is asked for."""
        from ort_gpu_ep.health.enumeration import look

        there, rows = look(resolve(self._options)) if set(wanted) != {CPU} else (), list[tuple[str, str, str]]()
        for text in wanted:
            if text == ALL:
                rows += [(str(info.index), info.name, info.pci) for info in there if not info.is_software]
            elif text == CPU:
                rows.append((CPU, CPU_NAME, ""))
            else:
                info = pick(there, text)
                rows.append((str(info.index), info.name, info.pci))
        if ALL in wanted and all(info.is_software for info in there):
            self.notes.append(
                "no hardware adapter: the CPU has scored"
                + (f" (--adapters {there[0].index} takes {there[0].name})" if there else "")
            )
        return rows or [(CPU, CPU_NAME, "")]


def wanted(adapters: str | Sequence[str | int]) -> list[str]:
    """The list that `adapters` means."""
    names = [text.strip() for text in adapters.split(",")] if isinstance(adapters, str) else [str(a) for a in adapters]
    return [ALL, AUTO_CPU] if names == [AUTO_CPU] else names
