"""Runs of several threads, submitted together: which of them, and when. What is submitted is in run_group.py.

Threads join the open group and write their inputs. It is submitted when the GPU has no other one, or, while another one is under way, when
it has half of all runs: the GPU then always has one to do and one to come. Every thread waits for its own results.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

from ort_gpu_ep.device.run_group import GroupedRun, RunGroup
from ort_gpu_ep.errors import DeviceError

MAX_GROUPS = 2
"""Groups of one set of sizes: one that the GPU works at, and one behind it."""

MAX_RUNS = 4
"""Runs in a group at most: of ResNet-50 on an H200, two take 572 us each, four 486, eight 437; one alone 786."""

MAX_NBYTES = 1 << 30
"""Device memory that the buffers of all runs of one set of sizes take; a group has fewer runs where they do not fit."""

CONTENDED = 3
"""Runs under way at the same time from which on they are submitted together: two keep a GPU busy by themselves."""

RECENT = 8
"""Submissions that say how many threads there are."""


class Owner(Protocol):
    """The runs of one set of sizes, see steady.py."""

    def submit(self, group: RunGroup) -> int | None:
        """Submits a group. None where the plan is gone."""


class Coalescer:
    """The groups of one set of sizes. Thread-safe; the lock is held by nobody who waits for the GPU or submits.

    inside: runs that are in a group. used_s: when the last one was over (monotonic clock).
    """

    def __init__(self, owner: Owner, groups: list[RunGroup]) -> None:
        self._owner, self._changed = owner, threading.Condition(threading.Lock())
        self._free, self._all = list(groups), len(groups)
        self._open: RunGroup | None = None
        self._under_way = self.inside = 0
        self._recent: deque[int] = deque(maxlen=RECENT)
        self.closed, self.used_s = False, time.monotonic()
        for group in groups:
            group.coalescer = self

    def join(self) -> GroupedRun | None:
        """What a run has in the open group, waited for where all is taken. None where there is no group any more."""
        with self._changed:
            while not self.closed and self._all:
                if self._open is None and self._free:
                    self._open = self._free.pop()
                group = self._open
                if group is not None and group.taken < len(group.runs):
                    run = group.runs[group.taken]
                    group.taken += 1
                    self.inside += 1
                    return run
                self._changed.wait()
        return None

    def submitted(self, run: GroupedRun) -> int | None:
        """The submission's index, once the run's group has one; the run's inputs are written.

        None where there will be none, and nothing was done. Raises DeviceError.
        """
        group = run.group
        with self._changed:
            run.ready = True
            group.ready += 1
            while group.submission is None and group.error is None and not group.closed:
                if self._may_submit(group):
                    self._submit(group)
                else:
                    self._changed.wait()
            if isinstance(group.error, DeviceError):
                raise type(group.error)(*group.error.args) from group.error     # one of its own for each thread
            if group.error is not None:
                raise group.error
            return group.submission

    def _may_submit(self, group: RunGroup) -> bool:
        if group is not self._open or group.ready < group.taken:
            return False
        enough = min(-(-max(*self._recent, self.inside, 0) // MAX_GROUPS), len(group.runs))
        return self._under_way == 0 or (self._under_way < MAX_GROUPS and group.taken >= enough)

    def _submit(self, group: RunGroup) -> None:
        """Under the lock, which is given up meanwhile. What fails is kept for all in it."""
        self._open = None
        self._recent.append(self.inside)
        self._under_way += 1
        self._changed.release()
        submission, error = None, None
        try:
            submission = self._owner.submit(group)
        except Exception as failed:
            error = failed
        finally:
            self._changed.acquire()
            group.submission, group.error, group.closed = submission, error, submission is None
            if submission is None:
                self._under_way -= 1
            group.broken |= error is not None
            self._changed.notify_all()

    def done(self, group: RunGroup) -> None:
        """The results are there: the next group may submit."""
        with self._changed:
            if not group.done:
                group.done = True
                self._under_way -= 1
                self._changed.notify_all()

    def leave(self, run: GroupedRun, whole: bool) -> None:
        """Its run is over. whole: it came to an end."""
        group = run.group
        with self._changed:
            group.ready += not run.ready
            run.ready = True
            group.left += 1
            group.broken |= not whole
            self.inside -= 1
            self.used_s = time.monotonic()
            if group.left == group.taken:
                self._reuse(group)
            self._changed.notify_all()

    def _reuse(self, group: RunGroup) -> None:
        if group.submission is not None and not group.done:
            self._under_way -= 1
        if group is self._open:
            self._open = None
        if group.broken or self.closed:
            self._all -= 1
            group.free()
        else:
            group.reset()
            self._free.append(group)

    def close(self) -> None:
        """Frees the groups, those of runs under way when they end. Who waits for a place or a submission gets none."""
        with self._changed:
            self.closed = True
            idle = self._free
            if self._open is not None:
                self._open.closed = True
            self._free, self._open = [], None
            self._all -= len(idle)
            self._changed.notify_all()
        for group in idle:
            group.free()
