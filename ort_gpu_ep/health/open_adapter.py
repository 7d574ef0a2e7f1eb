"""Opens an adapter for sessions, without what its verdict or known faults disable; runs the quick probes that have not
run yet."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import AdapterInfo, Gpu
from ort_gpu_ep.device.adapter import choose
from ort_gpu_ep.drills.faults import maker
from ort_gpu_ep.errors import UnfitAdapterError
from ort_gpu_ep.health import markers, verdicts
from ort_gpu_ep.health.enumeration import look
from ort_gpu_ep.health.quirks import known as known_quirks
from ort_gpu_ep.health.quirks import reasons, workarounds_for
from ort_gpu_ep.health.verdicts import Late, Verdict
from ort_gpu_ep.health.workarounds import Workaround, apply, lowered, with_workarounds
from ort_gpu_ep.kernels import profile, tuned
from ort_gpu_ep.kernels.cost_parameters import Figures, figures_for
from ort_gpu_ep.kernels.target import MATRIX_ATTENTION, MATRIX_BYTES, MATRIX_UNITS, SHOWN_FEATURES, UNTUNED
from ort_gpu_ep.processes import interrupts
from ort_gpu_ep.processes.interrupts import uninterrupted
from ort_gpu_ep.webgpu.choice import DAWN
from ort_gpu_ep.webgpu.library import KIND

if TYPE_CHECKING:
    from ort_gpu_ep.health.probe import Probe

log = logging.getLogger("ort_gpu_ep")

QUICK_S = 8.0
"""The quick probes take 2 s on an idle machine; what is not done by then is not waited for."""
DAWN_TIMES = 3
"""So many times as long with Dawn, where they took more than QUICK_S on an H100 whose driver had no shaders in its
cache."""

WORKERS, PROBES_EACH = 4, 6
"""Processes that probe a GPU at a time, where there are twice as many cores: one took 12 s beside a program at work (an
H200). And for how many probes another one is started: each takes a second of a core until it begins."""

Uses: TypeAlias = Callable[[str], Collection[str] | None]
"""Gives, for the key of an adapter (verdicts.key_of), the op types of a model and the shader files that it used there;
None: not known."""


def everything(device: str) -> None:
    """As of a model of which nothing is known, and for what measures kernels: it wants all probes."""


_lock = threading.Lock()
_known: dict[str, Verdict] = {}
"""Key -> verdict of this process, so that a cache that can't be written costs one probing a process."""

_tried: set[tuple[str, str]] = set()
"""Cache folder, key: where this process has written its verdict and its marker, or could not, which is said once."""


def open_gpu(config: Config, uses: Uses | None = None) -> Gpu:
    """The shared device of the adapter that the config asks for; what one session finds out of use stays so for the
    process.

    uses: of the model that it is opened for: the probes that it wants and that have not run yet run now. Without it,
    those that this process has asked for are enough; it is `everything` where it has asked for none. Raises:
    AdapterError, UnfitAdapterError, ConfigError (a broken quirks file).
    """
    seen = look(config)
    info, _ = choose(config.adapter)
    info = next((other for other in seen if other == info), info)  # which knows the driver's number
    quirks = known_quirks(config)
    with _lock:
        verdict = Verdict(probed=False) if config.health == "off" else _verdict_once(info, config.cache_path, uses)
        if why := verdicts.with_quirks(verdict, reasons(quirks, info)).unfit:
            raise UnfitAdapterError(
                f"{info.name} is not used: {why}. Update its driver, choose another adapter (option adapter), or "
                f"see `ort-gpu-ep doctor`."
            )
        changes = [*workarounds_for(quirks, info), *(Workaround(name, 1, why) for name, why in verdict.cures)]
        gpu = uninterrupted(Gpu.open, with_workarounds(config, changes), maker(config))
        disabled = verdicts.with_quirks(verdict, (*gpu.limits.disabled, *reasons(quirks, info))).disabled
        off = {what for what, _ in disabled}
        new = [w for w in changes if w not in gpu.workarounds]
        if verdict.probed and not info.is_software:
            gpu.trusted = frozenset(verdict.unchecked)
        features = (gpu.limits.features | {*verdict.shown}) - off
        if disabled != gpu.limits.disabled or new or features != gpu.limits.features:
            gpu.limits = replace(lowered(gpu.limits, new), disabled=disabled, features=features)
            gpu.workarounds = (*gpu.workarounds, *new)
            apply(gpu, new)
            for what, why in disabled:
                log.warning("%s: %s is not used: %s", info.name, what, why)
            for workaround in new:
                log.info("%s: workaround %s", info.name, workaround)
        if gpu.limits.tuned is UNTUNED:  # once for a device
            gpu.limits = replace(
                gpu.limits,
                tuned=tuned.read(config.cache_path, tuning_key(info)).tuned,
                figures=_figures(info, config.cache_path),
            )
    return gpu


def _figures(info: AdapterInfo, cache_path: str) -> Figures:
    """By the adapter's profile, where there is one with its roofs, and its type."""
    stored = profile.read(cache_path, verdicts.key_of(info)) if not info.is_software else None
    return figures_for(info.type, stored.figures if stored is not None else None, info.compiler)


def tuning_key(info: AdapterInfo) -> str:
    """Names what was measured of forms of kernels."""
    return verdicts.key_of(info, tuned.kernel_hash())


def _verdict_once(info: AdapterInfo, cache_path: str, uses: Uses | None = None) -> Verdict:
    """The verdict of this process; an adapter that it leaves in use is marked as open until the process ends."""
    key = verdicts.key_of(info)
    verdict, is_new_here = _known.get(key), (cache_path, key) not in _tried
    if verdict is None:
        verdict, is_new_here = _verdict(info, key, cache_path, uses or everything), True
    else:
        # found out with another cache folder
        if is_new_here and verdict.probed and verdicts.read(cache_path, key) is None:
            verdicts.keep(cache_path, key, verdict, None)
        if uses is not None and verdict.late:
            verdict = _with_late(info, key, cache_path, verdicts.read(cache_path, key) or verdict, uses)
    _known[key] = verdict
    if is_new_here:
        _tried.add((cache_path, key))
        if not verdict.unfit:
            markers.leave(cache_path, key)
    return verdict


def _verdict(info: AdapterInfo, key: str, cache_path: str, uses: Uses = everything) -> Verdict:
    """From the cache, or by quick probes: at first use, once more if there was no time for all of them, and after a
    process that did not end cleanly. Probes that this model does not want are left for another one; what ran before
    runs again.
    """
    cached, stale = verdicts.read(cache_path, key), markers.take_stale(cache_path, key)
    if cached is not None and cached.probed and cached.complete and not stale:
        return _with_late(info, key, cache_path, cached, uses)
    strikes = (cached.strikes if cached else 0) + bool(stale)
    why = "first use" if cached is None else "the last look had no time for all probes"
    if stale:
        why = f"the last process that used it did not end cleanly ({strikes} so far)"
    before = cached if cached is not None and cached.probed else None
    late = before.late if before is not None else _all_late(info)
    left = {name for name, _ in late} - verdicts.wanted(late, uses(key)) if late else set[str]()
    verdict = _looked(info, why, left)
    if before is not None and not before.complete:  # what there was no time for again is given up
        verdict = verdicts.without(verdict, {name for name, _ in verdict.late} - left)
    verdict = replace(verdicts.added(verdict, cached) if cached is not None else verdict, strikes=strikes)
    return verdicts.keep(cache_path, key, verdict, cached) if verdict.probed else verdict


def _with_late(info: AdapterInfo, key: str, cache_path: str, known: Verdict, uses: Uses) -> Verdict:
    """The verdict, after the probes that waited for such a model."""
    names = verdicts.wanted(known.late, uses(key)) if known.late else set[str]()
    if not names:
        return known
    renewed = _looked(info, "what had waited is wanted now", (), names)
    return verdicts.keep(cache_path, key, verdicts.joined(known, renewed), known) if renewed.probed else known


def _looked(info: AdapterInfo, why: str, left: Collection[str], only: Collection[str] = ()) -> Verdict:
    start = time.perf_counter()
    verdict = quick(info, left, only)
    later = f"; probes that wait for another model: {len(verdict.late)}" if verdict.late and not only else ""
    log.info("%s: %s, probed in %.1f s: %s%s", info.name, why, time.perf_counter() - start, verdict.health, later)
    return verdict


def _all_late(info: AdapterInfo) -> tuple[Late, ...]:
    """Those that no model has wanted on a new machine."""
    if info.is_software:
        return ()
    interrupts.load("ort_gpu_ep.health.probes")
    from ort_gpu_ep.health.probe import late

    return tuple(late())


def _is_of_dawn(disables: Collection[str]) -> bool:
    """Whether such a probe is what Dawn was taken for: then it runs on software adapters, too."""
    return KIND == DAWN and bool({MATRIX_UNITS, MATRIX_BYTES, MATRIX_ATTENTION} & {*disables})


def quick_probes(info: AdapterInfo) -> list[Probe]:
    """Those that the first session on an adapter runs."""
    from ort_gpu_ep.health.probe import PROBES

    return [p for p in PROBES.values() if p.is_quick(info.is_software) or _is_of_dawn(p.disables)]


def quick(info: AdapterInfo, left: Collection[str] = (), only: Collection[str] = ()) -> Verdict:
    """The quick probes in worker processes. Where no worker can be started, nothing is known and nothing disabled.

    left: names of those that wait for another model. only: if any, no others.
    """
    interrupts.load("ort_gpu_ep.health.probes")  # which fills the table
    from ort_gpu_ep.health.examination import examine, examine_at_once

    probes = [p for p in quick_probes(info) if p.name not in left and (not only or p.name in only)]
    # forms of many kernels need what these show, so they come first of those that only hardware runs
    probes.sort(key=lambda p: 0 if p.quick else 1 if SHOWN_FEATURES & {*p.disables} else 2)
    names, budget_s = [p.name for p in probes], QUICK_S * (DAWN_TIMES if KIND == DAWN else 1)
    workers = 1 if info.is_software else max(1, min(WORKERS, (os.cpu_count() or 1) // 2, -(-len(names) // PROBES_EACH)))
    try:
        outcomes = list(
            examine(info.index, names, 1, budget_s=budget_s)
            if workers == 1
            else examine_at_once(info.index, names, 1, workers, budget_s)
        )
    except OSError as error:
        log.info("%s is not probed: no process can be started (%s)", info.name, error)
        return Verdict(probed=False)
    ran = {o.name for o in outcomes if o.status != "NOT_RUN"}
    late = [entry for entry in _all_late(info) if entry[0] not in ran]
    return replace(verdicts.verdict_of(outcomes, "quick", late), probed=bool(ran), complete=len(ran) == len(outcomes))
