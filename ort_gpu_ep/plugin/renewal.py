"""Brings a session back to the GPU after its device was lost: rebuilds its programs on a new device in the background.

Weights come from the CPU fallback, which keeps them on disk (weight_file.py). The lost device is not used again.
"""

from __future__ import annotations

import gc
import logging
import threading
from typing import TYPE_CHECKING

from ort_gpu_ep.errors import AdapterError, DeviceHangError, DeviceLostError, UnsupportedNodeError, forget_frames
from ort_gpu_ep.plugin.backends import open_backend

if TYPE_CHECKING:
    from ort_gpu_ep.plugin.state import Compiled, SessionState
    from ort_gpu_ep.runtime.artefact import Artefact
    from ort_gpu_ep.runtime.backend import Backend, Executable

log = logging.getLogger("ort_gpu_ep")


def renew(state: SessionState) -> None:
    """Begins to rebuild the programs of a session, unless that goes on already. Does not wait."""
    if state.renewing.acquire(blocking=False):
        threading.Thread(target=_renew, args=(state,), name="ort_gpu_ep-renewal", daemon=True).start()


def _renew(state: SessionState) -> None:
    """All programs or none. The next attempt waits longer: for the adapter where that gives no device, else for this
    session alone."""
    programs: list[tuple[Compiled, Executable]] = []
    left: list[tuple[Compiled, str]] = []
    old = state.backend
    try:
        assert state.config is not None
        backend = open_backend(state.config)
        for partition in list(state.partitions):
            if partition.program is not None and partition.program.gpu is not backend.adapter:
                try:
                    programs.append((partition, _rebuilt(partition, partition.program, backend, state.artefact)))
                except UnsupportedNodeError as error:  # what it needs has been put out of use since
                    left.append((partition, error.reason))
        for partition, why in left:
            state.record("warning", "renewal", f"{partition.graph.name} is left to the CPU: {why}")
            partition.leave_to_cpu(why)
        for partition, program in programs:
            partition.replace(program)
        state.backend = backend
        state.renewals += 1
        state.record(
            "notice", "renewal", f"the session uses the GPU again, on a new device ({backend.adapter.info.name})"
        )
    except Exception as error:  # whatever a driver raises means: not yet
        for _, program in programs:
            program.close()
        state.record("warning", "renewal", error)
        why = f"the session's programs can't be rebuilt: {type(error).__name__}"
        if old is not None and isinstance(error, (AdapterError, DeviceLostError, DeviceHangError)):
            old.adapter.circuit.failed(why, at_once=True)
        elif old is not None:
            old.adapter.circuit.suspect(why)
            for partition in list(state.partitions):
                partition.circuit.failed(why, at_once=True)
        forget_frames(error)
    finally:
        programs.clear()
        old = None
        # programs are cycles, and hold the lost device with its threads and memory until somebody looks for them
        gc.collect()
        state.renewing.release()


def _rebuilt(partition: Compiled, old: Executable, backend: Backend, artefact: Artefact | None) -> Executable:
    assert partition.fallback is not None
    return backend.compile(
        partition.fallback.graph_with_constants(), old.config, old.rewrite, partition.fallback.constants(), artefact
    )
