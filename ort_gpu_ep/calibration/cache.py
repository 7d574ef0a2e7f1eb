"""The device profile of an adapter: measured once, then read from memory or, in later processes, from disk.

What kernels are chosen by, an empty run and a few transfers are measured first, in a second or two; families of kernels
and more transfers when somebody asks for them.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

from ort_gpu_ep.calibration.measure import Progress, measure
from ort_gpu_ep.calibration.roofs import Bench, measure_roofs
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.timing import WAKE_S, Timer
from ort_gpu_ep.health.open_adapter import everything, open_gpu
from ort_gpu_ep.health.verdicts import key_of
from ort_gpu_ep.kernels.cost_parameters import Roofs, figures_for
from ort_gpu_ep.kernels.profile import GUESSED, Profile, read, write
from ort_gpu_ep.processes.interrupts import uninterrupted

log = logging.getLogger("ort_gpu_ep")

_known: dict[str, Profile] = {}
_lock = threading.Lock()


def profile_of(
    gpu: Gpu, config: Config, fresh: bool = False, progress: Progress | None = None, whole: bool = True
) -> Profile:
    """The profile of the adapter, its driver, wgpu's version and this code. GUESSED where that fails, with a warning in
    the log.

    fresh: measure, whatever is known. whole: with families of kernels; else without, unless they are known. The first
    call of a process may take some seconds; others wait for it. A device that fails on purpose (option `faults`) is not
    measured: the submits would count, and its times are not the adapter's.
    """
    key = key_of(gpu.info)
    with _lock:
        stored = None if fresh else _known.get(key)
        if stored is None and (gpu.lost or config.faults):
            return GUESSED
        if stored is None:
            stored = None if fresh else read(config.cache_path, key)
        if stored is None or (whole and not stored.is_whole and not gpu.lost):
            # families of kernels as sessions run them: without bounds checks where they may
            if whole and not gpu.info.is_software:
                open_gpu(config, everything)
            stored = _measured(gpu, config.cache_path, key, progress, stored, whole)
        _known[key] = stored
        return stored


def known_profile(gpu: Gpu, config: Config) -> Profile | None:
    """The profile of the adapter, where it was measured; None where it was not. Nobody is waited for who measures
    it."""
    key = key_of(gpu.info)
    return _known.get(key) or read(config.cache_path, key)


def with_roofs(gpu: Gpu, config: Config) -> Profile:
    """The profile with its roofs: measured by the first who asks, where the profile was made without them, and kept
    with it.

    Without them where they can't be measured. Raises DeviceError, ShaderError.
    """
    profile = profile_of(gpu, config)
    with _lock:
        if profile is GUESSED or profile.has_roofs:
            return profile
        key = key_of(gpu.info)
        measured = _known[key] = replace(profile, roofs=_roofs(gpu, False))
        write(config.cache_path, key, measured)
    return measured


def _roofs(gpu: Gpu, busy: bool) -> Roofs:
    """busy: as of Bench. A GPU at rest is woken first: one that had its clock at rest (an H200) was taken for a quarter
    of itself."""
    # llvmpipe may take a timestamp late
    by_gpu = "timestamp-query" in gpu.limits.features and not gpu.info.is_software
    wake_s = 0.0 if gpu.info.is_software else WAKE_S
    return uninterrupted(measure_roofs, Bench(gpu, Timer(gpu) if by_gpu else None, busy), wake_s)


def _measured(
    gpu: Gpu, cache_path: str, key: str, progress: Progress | None, known: Profile | None, whole: bool
) -> Profile:
    """known: what was measured without the rest; what kernels are chosen by stays as it is there."""
    start = time.perf_counter()
    try:
        # Those of a software adapter choose no kernels. A program may be at work, and this is kept for good.
        roofs = _roofs(gpu, True) if known is None and not gpu.info.is_software else None
        wake_s = WAKE_S if roofs is None else 0.0  # they wake the GPU for what is measured next, too
        # 3 s: what is in flight uses its memory
        profile = uninterrupted(measure, gpu, progress=progress, whole=whole, wake_s=wake_s)
        if known is not None:
            profile = replace(profile, dispatch_s=known.dispatch_s, roofs=known.roofs)
        elif roofs is not None:
            profile = replace(profile, roofs=roofs)
    except Exception as error:  # a record that is wrong, too: no profile is worth a model
        log.warning(
            "calibration of %s failed, its times are assumed in this process: %s: %s",
            gpu.info.name,
            type(error).__name__,
            error,
        )
        return GUESSED if known is None else replace(known, families=known.assumed)
    log.info("calibration of %s took %.1f s", gpu.info.name, time.perf_counter() - start)
    write(cache_path, key, profile)
    if known is None:
        gpu.limits = replace(gpu.limits, figures=figures_for(gpu.info.type, profile.figures, gpu.info.compiler))
    return profile
