"""A session's way back to the GPU after its device was lost: its programs, rebuilt on a new device in the background.

Weights come from the CPU fallback, which keeps them on disk (spill.py). The lost device is not used again.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ort_gpu_ep.device import Program
from ort_gpu_ep.health.admission import open_gpu
from ort_gpu_ep.plugin.state import SessionState, forget_frames

if TYPE_CHECKING:
    from ort_gpu_ep.device import Gpu
    from ort_gpu_ep.plugin.compute import Partition

log = logging.getLogger("ort_gpu_ep")


def renew(state: SessionState) -> None:
    """Begins to rebuild the programs of a session, unless that goes on already. Does not wait."""
    if state.renewing.acquire(blocking=False):
        threading.Thread(target=_renew, args=(state,), name="ort_gpu_ep-renewal", daemon=True).start()


def _renew(state: SessionState) -> None:
    """All programs or none; a failure opens the adapter's circuit again, so that the next attempt waits longer."""
    made: list[tuple[Partition, Program]] = []
    old = state.gpu
    try:
        assert state.config is not None
        gpu = open_gpu(state.config)
        for partition in list(state.partitions):
            if isinstance(partition.program, Program) and partition.program.gpu is not gpu:
                made.append((partition, _rebuilt(partition, partition.program, gpu)))
        for partition, program in made:
            partition.replace(program)
        state.gpu = gpu
        state.renewals += 1
        state.record("notice", "renewal", f"the session uses the GPU again, on a new device ({gpu.info.name})")
    except Exception as error:   # whatever a driver raises means: not yet
        for _, program in made:
            program.close()
        state.record("warning", "renewal", error)
        if old is not None:
            old.circuit.failed(f"the session's programs can't be rebuilt: {type(error).__name__}", at_once=True)
        forget_frames(error)
    finally:
        state.renewing.release()


def _rebuilt(partition: Partition, old: Program, gpu: Gpu) -> Program:
    assert partition.fallback is not None
    return Program(partition.fallback.graph_with_constants(), old.config, gpu, old.rewrite)
