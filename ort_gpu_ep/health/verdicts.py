"""What is disabled on an adapter after a failed probe, and the cache of that.

A verdict belongs to an adapter, its driver, the wgpu version and this package's code. One file for each in
<cache>/health/; a file of another version, a truncated or an unreadable one is ignored with a line in the log and made
anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ort_gpu_ep import store
from ort_gpu_ep.device import AdapterInfo
from ort_gpu_ep.files import open_regular
from ort_gpu_ep.health.drivers import wgpu_version
from ort_gpu_ep.health.workarounds import REWRITINGS
from ort_gpu_ep.kernels.records import FAMILIES, RECORDS, unchecked
from ort_gpu_ep.kernels.registry import ADAPTER
from ort_gpu_ep.kernels.target import SHOWN_FEATURES
from ort_gpu_ep.webgpu import choice

if TYPE_CHECKING:
    from ort_gpu_ep.health.examination import Outcome

HEALTHY, DEGRADED, UNUSABLE = "healthy", "degraded", "unusable"

Late: TypeAlias = tuple[str, tuple[str, ...]]
"""A probe of a first use that waits for a model, and what in a model wants it: op types, shader files (probe.py
`late`)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What probes found. disabled: (what, why), as registry.Limits has it. depth: `quick` or `full`.

    strikes: processes that had the adapter open and ended without closing it, since the last full examination. probed:
    whether it holds findings at all. trusted: families of kernels whose probes have passed without bounds checks, all
    that ran; doubtful: those of which one has not. late: probes that no model has wanted so far. unchecked: the shader
    files that need no bounds checks by that: of trusted families, and no late probe is about them. shown: what no
    adapter promises and a probe has seen hold (of SHOWN_FEATURES). complete: no probe is left for want of time, or once
    more has been tried: shaders are in the driver's cache then. cures: (rewriting of shaders, why) without which a probe
    fails that passes with it.
    """

    disabled: tuple[tuple[str, str], ...] = ()
    depth: str = "quick"
    strikes: int = 0
    probed: bool = True
    trusted: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    complete: bool = True
    unchecked: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    late: tuple[Late, ...] = ()
    cures: tuple[tuple[str, str], ...] = ()

    @property
    def unfit(self) -> str:
        """Why the adapter is not used at all; empty where it is."""
        return dict(self.disabled).get(ADAPTER, "")

    @property
    def health(self) -> str:
        return UNUSABLE if self.unfit else DEGRADED if self.disabled else HEALTHY


def verdict_of(outcomes: Iterable[Outcome], depth: str, late: Iterable[Late] = ()) -> Verdict:
    """What failed outcomes put out of use; the first probe that says so is the reason. NOT_RUN condemns nothing, and
    shows nothing.

    late: probes that are left for another model.
    """
    disabled: dict[str, str] = {}
    trusted, doubtful, shown, cures = set[str](), set[str](), set[str](), dict[str, str]()
    for outcome in outcomes:
        cures |= dict(outcome.cures)
        if outcome.status in ("NOT_RUN", "UNSUPPORTED"):
            continue
        (trusted if outcome.unchecked else doubtful).update(_families(outcome))
        if outcome.passed:
            shown |= SHOWN_FEATURES & {*_covered(outcome)}
        for what in () if outcome.passed else outcome.disables:
            disabled.setdefault(what, f"probe {outcome.name!r}: {outcome.status} ({outcome.seen})")
    return _with_files(
        Verdict(
            tuple(disabled.items()),
            depth,
            trusted=tuple(sorted(trusted - doubtful)),
            shown=tuple(sorted(shown)),
            doubtful=tuple(sorted(doubtful)),
            late=tuple(late),
            cures=tuple(cures.items()),
        )
    )


def _with_files(verdict: Verdict) -> Verdict:
    waiting = {file for _, wanted_by in verdict.late for file in wanted_by}
    return replace(verdict, unchecked=tuple(sorted(unchecked(verdict.trusted) - waiting)))


def wanted(late: Iterable[Late], used: Collection[str] | None) -> set[str]:
    """Names of the late probes that a model wants. used: its op types and shader files; None: nothing is known of it,
    so all."""
    return {name for name, wanted_by in late if used is None or not {*used}.isdisjoint(wanted_by)}


def without(verdict: Verdict, late: Collection[str]) -> Verdict:
    """The verdict, whose late probes of these names are not waited for any more."""
    return _with_files(replace(verdict, late=tuple(entry for entry in verdict.late if entry[0] not in late)))


def joined(one: Verdict, other: Verdict) -> Verdict:
    """What two looks at an adapter have found, each with other probes. Rows must be loaded: it looks up the files."""
    doubtful = {*one.doubtful, *other.doubtful}
    return _with_files(
        replace(
            with_quirks(other, one.disabled),
            depth="full" if "full" in (one.depth, other.depth) else "quick",
            strikes=max(one.strikes, other.strikes),
            probed=one.probed or other.probed,
            complete=one.complete and other.complete,
            trusted=tuple(sorted({*one.trusted, *other.trusted} - doubtful)),
            doubtful=tuple(sorted(doubtful)),
            shown=tuple(sorted({*one.shown, *other.shown})),
            late=tuple(entry for entry in one.late if entry in other.late),
            cures=_cures(one, other),
        )
    )


def _cures(one: Verdict, other: Verdict) -> tuple[tuple[str, str], ...]:
    return tuple((dict(other.cures) | dict(one.cures)).items())


def added(quick: Verdict, cached: Verdict) -> Verdict:
    """A quick look at an adapter that has a verdict: it takes nothing back that the doctor has found, and no
    strikes."""
    if cached.depth == "full" and cached.probed:
        quick = replace(with_quirks(quick, cached.disabled), depth="full", cures=_cures(cached, quick))
    if not cached.complete:  # the first of two looks, each with the time that a session waits
        quick = replace(
            with_quirks(quick, cached.disabled),
            shown=tuple(sorted({*quick.shown, *cached.shown})),
            complete=True,
            cures=_cures(cached, quick),
        )
    return replace(quick, strikes=cached.strikes)


def _covered(outcome: Outcome) -> Sequence[str]:
    """What a probe tells about, also where it took nothing out of use."""
    from ort_gpu_ep.health.probe import PROBES  # it loads all rows: not for a verdict that is only read

    return PROBES[outcome.name].disables if outcome.name in PROBES else outcome.disables


def _families(outcome: Outcome) -> set[str]:
    """The families of kernels that a probe tells about: all of them, where it is about the adapter."""
    what = _covered(outcome)
    if not outcome.passed and ADAPTER in what:
        return {*FAMILIES}
    return {RECORDS[name].family for name in what if name in RECORDS}


@cache
def code_hash() -> str:
    """Of this package's kernels and Python: what the probes are, and how kernels are chosen and put together."""
    digest = hashlib.sha256()
    root = str(Path(__file__).resolve().parents[1])
    paths = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(root)
        for name in names
        if name.endswith((".wgsl", ".py"))
    ]
    for file in sorted(paths):  # as text: Paths take twice as long, 12 ms of each process
        with open(file, "rb") as data:
            digest.update(file[len(root) :].replace(os.sep, "/").encode() + b"\0" + data.read())
    return digest.hexdigest()[:16]


def key_of(info: AdapterInfo, code: str = "") -> str:
    """Names the cache file: adapter, driver, wgpu or Dawn, this package's code. Profiles and decisions go by it, too.

    code: a hash of less, for what depends on less.
    """
    versions = f"{wgpu_version()} {choice.version()}".rstrip()
    parts = (
        info.name,
        info.backend,
        info.driver,
        f"{info.vendor_id:x}:{info.device_id:x}",
        versions,
        code or code_hash(),
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def folder_of(cache_path: str) -> Path:
    return Path(cache_path) / "health"


def read(cache_path: str, key: str) -> Verdict | None:
    """The verdict in the cache, None where there is none that can be used."""
    return store.read(folder_of(cache_path) / f"{key}.json", _parsed)


def _parsed(data: dict[str, Any]) -> Verdict:
    disabled, cures = (tuple((str(what), str(why)) for what, why in data[name]) for name in ("disabled", "cures"))
    if data["depth"] not in ("quick", "full") or type(data["strikes"]) is not int or type(data["probed"]) is not bool:
        raise TypeError(f"depth {data['depth']!r}, strikes {data['strikes']!r}, probed {data['probed']!r}")
    if not {*dict(cures)} <= {*REWRITINGS}:
        raise TypeError(f"cures {str(cures)[:100]}, expected rewritings of shaders")
    trusted, shown, files, doubtful = (
        tuple(str(item) for item in data[name]) for name in ("trusted", "shown", "unchecked", "doubtful")
    )
    complete, late = data.get("complete") is not False, _parsed_late(data["late"])
    return Verdict(
        disabled,
        data["depth"],
        max(data["strikes"], 0),
        data["probed"],
        trusted,
        shown,
        complete,
        files,
        doubtful,
        late,
        cures,
    )


def _parsed_late(entries: Any) -> tuple[Late, ...]:
    if not isinstance(entries, list) or not all(
        isinstance(name, str) and isinstance(wanted_by, list) and all(isinstance(what, str) for what in wanted_by)
        for name, wanted_by in entries
    ):
        raise TypeError(f"{str(entries)[:100]}, expected a list of probes and what wants them")
    return tuple((name, tuple(wanted_by)) for name, wanted_by in entries)


def write(cache_path: str, key: str, verdict: Verdict) -> None:
    """Stores a verdict. Where the cache can't be written, that is said and nothing else happens."""
    store.write(folder_of(cache_path) / f"{key}.json", asdict(verdict))


def keep(cache_path: str, key: str, verdict: Verdict, cached: Verdict | None) -> Verdict:
    """Stores what a look has found, and gives it with what other processes have found since `cached` was read."""
    with _alone(cache_path):
        there = read(cache_path, key)
        if there is not None and there != cached:
            verdict = joined(there, verdict)
        write(cache_path, key, verdict)
    return verdict


@contextmanager
def _alone(cache_path: str) -> Iterator[None]:
    """No other process keeps a verdict meanwhile. Where that can't be, it goes on all the same."""
    file = None
    with suppress(OSError):
        store.make_folder(folder_of(cache_path))
        file = open_regular(folder_of(cache_path) / "verdicts.lock", os.O_WRONLY | os.O_CREAT)
        store.lock(file, wait=True)
    try:
        yield
    finally:
        if file is not None:
            file.close()


def with_quirks(verdict: Verdict, reasons: Sequence[tuple[str, str]]) -> Verdict:
    """The verdict and what quirks add to it."""
    disabled = dict(reasons) | dict(verdict.disabled)
    return replace(verdict, disabled=tuple(disabled.items()))
