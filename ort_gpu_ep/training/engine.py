"""Runs steps on a device, and recovers when the device fails or the loss is not finite."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from ort_gpu_ep.config import resolve
from ort_gpu_ep.errors import AdapterError, DeviceError, OutOfDeviceMemoryError, TrainingError, forget_frames
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.session.bound_runs import state_of
from ort_gpu_ep.training.data import Batch, DataSet
from ort_gpu_ep.training.diagnosis import first_bad_node
from ort_gpu_ep.training.feeding import Coming, coming
from ort_gpu_ep.training.journal import Entry, Journal
from ort_gpu_ep.training.moving import Mover, comparable
from ort_gpu_ep.training.resident import LOSSES, Resident, device_failure
from ort_gpu_ep.training.step import WEIGHT, TrainingStep

log = logging.getLogger("ort_gpu_ep")

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 3
"""Devices that are tried, one after the other, before a failure is the user's."""

TIMED_STEPS = 5

clock = time.perf_counter


def whole(method: Callable[Concatenate[Engine, P], T]) -> Callable[Concatenate[Engine, P], T]:
    """A method that goes on to its end before another thread's begins."""

    @wraps(method)
    def alone(self: Engine, /, *arguments: P.args, **named: P.kwargs) -> T:
        with self.lock:
            return method(self, *arguments, **named)

    return alone


class Loss:
    """The loss of a step: a number once it is read, which waits for the device. step: counted from 0.

    Reading raises TrainingError, if it is NaN or infinite: the trainer is then back at the last good state.
    """

    def __init__(self, engine: Engine, step: int) -> None:
        self.step = step
        self.value: Any = None
        self._engine: Engine | None = engine
        self._read = math.nan

    def __float__(self) -> float:
        engine = self._engine
        if engine is not None:
            engine.fetch(self)
        return self._read

    def settle(self, number: float) -> None:
        """Makes it a number on the host."""
        self._read, self._engine, self.value = number, None, None

    def __repr__(self) -> str:
        return f"Loss(step {self.step})" if self._engine is not None else f"Loss(step {self.step}: {self._read:.6g})"

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)


def numbers_of(losses: Sequence[Loss]) -> list[float]:
    """Reads losses of steps in order, with one wait. Raises TrainingError, see Loss."""
    return [float(loss) for loss in reversed(losses)][::-1]


class Engine:
    """A step that is run again and again. at: the number of the next step. renewals: devices that were given up.

    placement: where it runs, "gpu" or "cpu"; `why` says how that was decided. moves: how often it changed under other
    people's load. lock: held by what must be whole, so that several threads may use one.
    """

    def __init__(
        self,
        step: TrainingStep,
        options: Mapping[str, Any],
        carried: Mapping[str, Array],
        at: int,
        lock: threading.RLock | None = None,
    ) -> None:
        self.step, self.options, self.lock = step, dict(options), lock or threading.RLock()
        self.asked = str(self.options.setdefault("placement", "auto"))
        self.why = "as asked"
        self.renewals = self.moves = 0
        self._mover: Mover | None = None
        self._other: Resident | None = None
        self._why_not = ""
        self._source: DataSet | None = None
        self.resident = self._opened(dict(carried))
        self.journal = Journal(at, dict(carried))

    @property
    def at(self) -> int:
        return self.journal.step + len(self.journal.entries)

    @property
    def placement(self) -> str:
        return "gpu" if self.resident.on_gpu else "cpu"

    # ---- where

    def _opened(self, carried: Mapping[str, Array]) -> Resident:
        """The step on the device that was asked for; with `auto` on the faster one of both."""
        if self.asked != "auto":
            return Resident(self.step, self.options, carried)
        cpu = Resident(self.step, {"placement": "cpu"}, carried)
        try:
            gpu = Resident(self.step, {**self.options, "placement": "gpu"}, carried)
        except (AdapterError, DeviceError) as error:
            self.why = f"no usable GPU: {error}"
            return cpu
        state = state_of(gpu.session)
        software = state is not None and state.gpu is not None and state.gpu.info.is_software
        if state is None or (software and not self.options.get("adapter")):
            self.why = (
                "no node of the step has a kernel"
                if state is None
                else "the adapter is software, used with placement=gpu only"
            )
            return cpu
        return self._faster({"cpu": cpu, "gpu": gpu}, carried)

    def _faster(self, sides: Mapping[str, Resident], carried: Mapping[str, Array]) -> Resident:
        """The one of both whose steps are faster now; the other one is kept, if it may be the faster one under another
        load."""
        times = {side: _timed(resident, carried) for side, resident in sides.items()}
        self.why = f"a step takes {times['cpu'] * 1e3:.3g} ms on the CPU, {times['gpu'] * 1e3:.3g} ms on the GPU"
        faster, slower = ("gpu", "cpu") if times["gpu"] <= times["cpu"] else ("cpu", "gpu")
        if comparable(times):
            self._mover, self._other = Mover(times, resolve(self.options)), sides[slower]
        return sides[faster]

    @whole
    def place(self) -> None:
        """With `auto`, times a step on both sides anew, as both are busy now, and goes on where it is faster, the state
        included."""
        if self.asked != "auto":
            return
        self.snapshot()
        carried, other, self._mover, self._other = self.journal.carried, self._other, None, None
        sides = {self.placement: self.resident, **({} if other is None else {"gpu" if other.on_gpu else "cpu": other})}
        self.resident = self._faster(sides, carried) if len(sides) == 2 else self._opened(carried)
        self.surely(self._arrive)

    def _follow(self) -> None:
        """Between two steps, goes to the other side with the state, if the load asks for it."""
        if self._mover is None or self._other is None:
            return
        side = self._mover.side()
        if side == self.placement:
            return
        self.snapshot()
        self.resident, self._other = self._other, self.resident
        self.moves, self.why = self.moves + 1, self._mover.why
        self.surely(self._arrive)

    def _arrive(self) -> None:
        """On another side: it has an older state, and may not have the data set."""
        self.resident.write(self.journal.carried)
        self._hold()

    # ---- steps

    @whole
    def has_room(self, sizes: Mapping[str, int]) -> bool:
        """Whether a data set of arrays of these bytes is to be kept where the steps are. On the CPU they take it from
        where it is."""
        if not self.resident.on_gpu:
            return False
        self._keep(self._source, self.resident.no_room(sizes))
        return not self._why_not

    @whole
    def hold(self, arrays: Mapping[str, Array]) -> DataSet | None:
        """Keeps a data set where the steps are, in the place of the one before, if it is another; None, where that
        fails."""
        if self._source is None or not self._source.holds(arrays):
            self._source = DataSet({n: np.array(a) for n, a in arrays.items()})
        self.surely(self._hold)
        return self._source

    def _hold(self) -> None:
        """On this device, what is to be held."""
        if self._source is not None and self.resident.on_gpu:
            self._keep(self._source, self.resident.hold(self._source))

    def _keep(self, source: DataSet | None, why_not: str) -> None:
        self._source, self._why_not = None if why_not else source, why_not

    @property
    def data(self) -> str:
        """Where the samples of fit() are; "" before it was called, and on the CPU."""
        if not self.resident.on_gpu:
            return ""
        if self._why_not:
            return f"each step's batch comes from the host: {self._why_not}"
        if self._source is None:
            return ""
        return (
            f"the device holds the data set, {self._source.nbytes / 2**20:,.1f} MiB: of a batch only the "
            f"samples' numbers go there"
        )

    @whole
    def run(self, batch: Batch) -> Loss:
        """One step. If it raises, the state is the one before it. Losses that nobody has read since LOSSES steps are
        read: their places are needed again.
        """
        placed = [loss for loss in self._held() if not isinstance(loss.value, Coming)]
        if placed and placed[0].step <= self.at - LOSSES:
            self.fetch(placed[-1])
        self._follow()
        loss, start = Loss(self, self.at), clock()
        loss.value = self.surely(lambda: self.resident.run(batch))
        if self._mover is not None:
            self._mover.stepped(self.placement, clock() - start)
        self.journal.add(batch, loss)
        if self.journal.due:
            self.snapshot()
        return loss

    @whole
    def send_for(self, losses: Sequence[Loss]) -> None:
        """Losses of the last LOSSES steps are on their way to the host from now on: steps may follow before they are
        read."""

        def send() -> None:
            unread = _unread(losses)
            for loss, value in zip(unread, coming([loss.value for loss in unread]), strict=True):
                loss.value = value

        self.surely(send)

    @whole
    def fetch(self, last: Loss) -> None:
        """Reads a loss, and those before it that somebody holds: it waits for the device once.

        Raises: TrainingError, if one is not finite: the state is then the last good one.
        """
        if last.value is None:  # another thread has read it
            return
        losses, start = [*(loss for loss in self._held() if loss.step < last.step), last], clock()
        unread, numbers = self._numbers(losses)
        if self._mover is not None:
            self._mover.waited(self.placement, clock() - start)
        self._settle(unread, numbers)

    def _settle(self, losses: list[Loss], numbers: list[float]) -> None:
        """Notes losses that were read. Raises TrainingError, see `fetch`."""
        for loss, number in zip(losses, numbers, strict=True):
            if not math.isfinite(number):
                self._diverged(loss, number)
            loss.settle(number)

    def _held(self) -> list[Loss]:
        """Losses that somebody holds and nobody has read: all are later than the snapshot, and of the last LOSSES
        steps, or of as many before them and on their way.
        """
        losses = [entry.loss() for entry in self.journal.entries[-2 * LOSSES :]]
        return _unread([loss for loss in losses if loss is not None])

    def _numbers(self, losses: list[Loss]) -> tuple[list[Loss], list[float]]:
        """Those that are unread, and what they are: after a failure some are read already."""

        def read() -> tuple[list[Loss], list[float]]:
            unread = _unread(losses)
            return unread, self.resident.numbers([loss.value for loss in unread])

        return self.surely(read)

    @whole
    def read(self) -> dict[str, Array]:
        """The state on the host."""
        if self._mover is not None:
            self._mover.forget()  # the steps on their way are waited for here, and reading is no step
        return self.surely(lambda: self.resident.read())

    @whole
    def write(self, carried: Mapping[str, Array], at: int) -> None:
        """Another state, of which step `at` is the next."""
        self._settle_losses()
        self.journal.renew(at, dict(carried), self.journal.taken_s)
        self.surely(lambda: self.resident.write(carried))

    def snapshot(self) -> None:
        """Brings the state to the host; what is before it needs no batches any more."""
        start, at = time.perf_counter(), self.at
        carried = self.read()
        bad = next((n for n, a in carried.items() if not np.isfinite(a).all()), None)
        if bad is not None:
            self._diverged(None, math.nan)
        self._settle_losses()
        self.journal.renew(at, carried, time.perf_counter() - start)

    def _settle_losses(self) -> None:
        """Reads the losses that somebody still holds: after a snapshot nothing could compute them again."""
        losses = self._held()
        if losses:
            self.fetch(losses[-1])

    # ---- when it fails

    @whole
    def surely(self, action: Callable[[], T]) -> T:
        """Something that a device does, again on a new one if it fails. Raises what is not a device's failure, and the
        last one."""
        for _ in range(ATTEMPTS):
            try:
                return action()
            except Exception as error:
                self._recover(error)
        try:
            return action()
        except Exception as error:
            raise self._explained(device_failure(self.resident.session, error) or error) from error

    def _explained(self, error: Exception) -> Exception:
        """With what to try, where the last device had no memory left. The state is that of the last step."""
        if not isinstance(error, OutOfDeviceMemoryError):
            return error
        carried = sum(a.nbytes for a in self.step.carried.values())
        return OutOfDeviceMemoryError(
            f"{error} The steps are for batches of {self.step.feeds[WEIGHT][1][0]}; weights and state take "
            f"{2 * carried / 2**20:.0f} MiB, "
            "two sets: try a smaller batch, with accumulate= for the same update, or options={'placement': 'cpu'}"
        )

    def _recover(self, error: Exception) -> None:
        """Goes on from the snapshot on a new device, with the batches since. Raises what is not a device's failure, or
        the last one."""
        failure: Exception | None = device_failure(self.resident.session, error)
        if failure is None:
            raise error
        if isinstance(failure, OutOfDeviceMemoryError) and self._source is not None:
            self._keep(None, f"with the data set there was no memory left ({failure})")
        for _ in range(ATTEMPTS):
            log.warning(
                "training: going on from step %d on a new device, after %s: %s",
                self.journal.step,
                type(failure).__name__,
                failure,
            )
            self.renewals += 1
            try:
                self._replay(self._again())
                return
            except Exception as again:
                failure = again if isinstance(again, AdapterError) else device_failure(self.resident.session, again)
                if failure is None:
                    raise
                forget_frames(again)
        raise failure

    def _again(self) -> Resident:
        """A new device; the CPU, where `auto` was asked and none is to be had."""
        options = {**self.options, "placement": self.placement if self.asked == "auto" else self.asked}
        try:
            return Resident(self.step, options, self.journal.carried)
        except (AdapterError, DeviceError) as error:
            if self.asked != "auto":
                raise
            self.why, self._mover = f"the GPU failed, and there is no other: {error}", None
            return Resident(self.step, {"placement": "cpu"}, self.journal.carried)

    def _replay(self, resident: Resident) -> None:
        self.resident = resident
        self._hold()
        for count, entry in enumerate(self.journal.entries, start=1):
            self._repeat(entry)
            if count % LOSSES == 0 and (
                repeated := [loss for loss in self._held() if loss.step < self.journal.step + count]
            ):
                self._settle(repeated, self.resident.numbers([loss.value for loss in repeated]))

    def _repeat(self, entry: Entry) -> Any:
        value, loss = self.resident.run(entry.batch), entry.loss()
        if loss is not None and loss.value is not None:
            loss.value = value
        return value

    # ---- when the loss is no number

    def _diverged(self, loss: Loss | None, number: float) -> None:
        """Finds the first step after which something is not finite, goes back to before it, and raises
        TrainingError."""
        good, entries, numbers = dict(self.journal.carried), list(self.journal.entries), list[float]()
        self.resident.write(good)
        for entry in entries:
            (value,) = self.resident.numbers([self.resident.run(entry.batch)])
            state = self.resident.read()
            if not (math.isfinite(value) and all(np.isfinite(a).all() for a in state.values())):
                break
            good = state
            numbers.append(value)
        done = len(numbers)
        at = self.journal.step + done
        for earlier in self._held():
            earlier.settle(math.nan if earlier.step >= at else numbers[earlier.step - self.journal.step])
        self.resident.write(good)
        self.journal.renew(at, good, self.journal.taken_s)
        where = first_bad_node(self.step.model, {**entries[done].batch.whole(), **good}) if done < len(entries) else ""
        what = f"the loss of step {loss.step} is {number:g}" if loss is not None else "a parameter is not finite"
        first = f" (first in step {at})" if loss is None or loss.step != at else ""
        raise TrainingError(
            f"{what}{first}; {f'the first value that is not finite comes from {where}; ' if where else ''}"
            f"the trainer is at the state before step {at}: try a lower learning rate, clip=1.0, or look at that batch"
        )


def _unread(losses: Sequence[Loss]) -> list[Loss]:
    return [loss for loss in losses if loss.value is not None]


def _timed(resident: Resident, carried: Mapping[str, Array]) -> float:
    """Seconds of a step, the fastest of a few, on zeros; the state is afterwards what it was."""
    rng = np.random.default_rng(0)
    feeds = Batch(
        {n: rng.random(s).astype(d) if d.kind == "f" else np.zeros(s, d) for n, (d, s) in resident.step.feeds.items()}
    )
    times = []
    for _ in range(TIMED_STEPS + 2):
        start = time.perf_counter()
        resident.numbers([resident.run(feeds)])
        times.append(time.perf_counter() - start)
    resident.write(carried)
    return min(times[2:])
