"""A worker as the run has it, wherever its process is: calls with a deadline, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

from ort_gpu_ep.processes.child import BEGIN_S
from ort_gpu_ep.scoring import worker

P = ParamSpec("P")
T = TypeVar("T")

LAST_S = 10.0
"""For a worker to end by itself."""


class WorkerEndError(Exception):
    """The process ended, or did not answer in time and was ended; the message says which."""


class GoneError(WorkerEndError):
    """There will be no other worker in its place."""


class Channel(Protocol):
    """The way to one process. name: of the process, for people. advice: what to say behind a message that it did not
    start."""

    name: str
    advice: str

    def ask(self, timeout_s: float, function: Callable[..., Any], *given: Any) -> Any:
        """What a function gives there. Raises TimeoutError; WorkerEndError where the process has ended."""

    def kill(self) -> None:
        """Ends the process at once, also where it is stopped, hangs or has not begun."""

    def close(self) -> None:
        """Lets the way go; a process that has nothing more to do ends."""


class Worker:
    """One worker process. Its calls raise WorkerEndError, after which only `kill` makes sense. Not thread-safe.

    name, kind: of the adapter that it found itself, known when it is open; empty where the slot knew it before.
    """

    def __init__(self, channel: Channel, timeout_s: float) -> None:
        self.pid, self.name, self.kind = 0, "", ""
        self._channel, self._timeout_s = channel, timeout_s

    def open(self, setup: worker.Setup) -> worker.Failed | None:
        """Makes the session."""
        self.pid = self._call(BEGIN_S, worker.identify)
        answer = self.call(worker.open_worker, setup)
        if isinstance(answer, worker.Failed):
            return answer
        self.name, self.kind = answer
        return None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a function of `worker` gives there."""
        return self._call(self._timeout_s, function, *args, **kwargs)

    def _call(self, timeout_s: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        channel = self._channel
        try:
            answer: T = channel.ask(timeout_s, function, *args, **kwargs)
        except TimeoutError:
            self.kill()
            did, advice = ("answer", "") if self.pid else ("start", channel.advice)
            raise WorkerEndError(f"{channel.name} did not {did} within {timeout_s:g} s and was ended{advice}") from None
        return answer

    def kill(self) -> None:
        """Ends it at once."""
        self._channel.kill()

    def end(self) -> None:
        """Lets it end by itself; kills it where it does not."""
        try:
            self._call(LAST_S, worker.finish)
        except WorkerEndError:
            self.kill()
        finally:
            self._channel.close()
