"""Runs the probes of one adapter in worker processes; a crash or hang is a result, and the next worker continues."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from ort_gpu_ep.health import helper
from ort_gpu_ep.health.helper import FROM_OUTSIDE, Worker
from ort_gpu_ep.health.probe import PROBES, Probe, Status
from ort_gpu_ep.health.worker import DONE
from ort_gpu_ep.processes.child import BEGIN_S, ending


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a probe. seen: for people. disables: what can't be trusted now.

    unchecked: its shaders passed without bounds checks. cures: rewritings of shaders that the adapter turned out to
    need while it ran, each with the reason; what follows has run with them.
    """

    name: str
    group: str
    status: Status
    seen: str = ""
    time_ms: float = 0.0
    disables: tuple[str, ...] = ()
    unchecked: bool = False
    cures: tuple[tuple[str, str], ...] = ()

    @property
    def passed(self) -> bool:
        return self.status in ("PASS", "UNSUPPORTED")

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "passed": self.passed}


@dataclass
class Device:
    """What the workers told of the adapter."""

    features: tuple[str, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)


def examine_at_once(
    adapter: int, names: Sequence[str], rounds: int, workers: int, budget_s: float = math.inf
) -> Iterator[Outcome]:
    """As `examine`, by so many workers beside each other: most of a probe is the driver's compiler, on one core."""
    parts = [part for k in range(workers) if (part := names[k::workers])]
    begun = list[Worker]()
    try:
        for part in parts:
            begun.append(_begun(adapter, part, rounds))
        left = [
            examine(adapter, part, rounds, budget_s=budget_s, begun=worker)
            for part, worker in zip(parts, begun, strict=True)
        ]
        while left:
            for one in list(left):  # the others go on meanwhile: their lines wait
                outcome = next(one, None)
                if outcome is None:
                    left.remove(one)
                else:
                    yield outcome
    except BaseException:
        for worker in begun:
            worker.end(kill=True)
        raise


def examine(
    adapter: int,
    names: Sequence[str],
    rounds: int,
    device: Device | None = None,
    budget_s: float = math.inf,
    begun: Worker | None = None,
) -> Iterator[Outcome]:
    """Yields the outcome of each probe. adapter: index. rounds: repetitions with fresh inputs. budget_s: then the rest
    is NOT_RUN.

    begun: a worker that has begun with these probes.
    """
    left, device, deadline = list(names), device or Device(), time.monotonic() + budget_s
    barren, cures = 0, dict[str, str]()
    while left and barren < 2:
        before = len(left)
        worker, begun = begun or _begun(adapter, left, rounds, cures), None
        for outcome in _one_worker(worker, list(left), device, deadline):
            left.remove(outcome.name)
            cures |= dict(outcome.cures)
            yield outcome
        barren = barren + 1 if len(left) == before else 0
        if time.monotonic() >= deadline:
            break
    for name in left:
        yield Outcome(name, PROBES[name].group, "NOT_RUN", "the time is up" if barren < 2 else "no worker came so far")


def _begun(adapter: int, names: Sequence[str], rounds: int, cures: Collection[str] = ()) -> Worker:
    return Worker(
        {
            "task": "probe",
            "adapter": adapter,
            "probes": list(names),
            "rounds": rounds,
            "seed": secrets.randbits(64),
            "cures": list(cures),
        }
    )


def _one_worker(worker: Worker, names: list[str], device: Device, deadline: float) -> Iterator[Outcome]:
    """Outcomes until the worker ends; the probe at which it ended, if it did not finish, is one of them."""
    current, limit_s = PROBES[names[0]], BEGIN_S
    running = False
    while True:
        try:
            line = worker.answer(limit_s, deadline)
        except TimeoutError:
            worker.end(kill=True)
            if time.monotonic() < deadline and worker.touches:
                what = f"no answer after {limit_s:.0f} s" + ("" if running else ", while opening the device")
                yield _failed(current, "TIMEOUT", what)
            return
        except BaseException:
            worker.end(kill=True)
            raise
        if line is None or "failed" in line:
            break
        if "touches" in line:
            limit_s = helper.START_S
            continue
        if "features" in line:
            device.features, device.limits = tuple(line["features"]), line["limits"]
        elif "start" in line:
            current, running = PROBES[line["start"]], True
            limit_s = current.timeout_s
        else:
            passed = line["status"] in ("PASS", "UNSUPPORTED")
            disables = () if passed else current.disables
            yield Outcome(
                line["name"],
                current.group,
                line["status"],
                line["seen"],
                line["time_ms"],
                disables,
                line["unchecked"],
                tuple((name, why) for name, why in line["cures"]),
            )
            running, limit_s = False, helper.START_S
            following = names.index(line["name"]) + 1
            current = PROBES[names[following]] if following < len(names) else current
    code = worker.end()
    if code != DONE and worker.touches and (running or -code not in FROM_OUTSIDE):
        yield _failed(
            current, "CRASH", ending(code) + ("" if running else ", between probes or while opening the device")
        )


def _failed(probe: Probe, status: Status, seen: str) -> Outcome:
    return Outcome(probe.name, probe.group, status, seen, 0.0, probe.disables)
