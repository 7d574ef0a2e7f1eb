"""A worker process seen from its parent: requests, answers, deadlines, its end."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
from contextlib import suppress
from typing import Any

from ort_gpu_ep.errors import ConfigError, DeviceHangError, DeviceLostError
from ort_gpu_ep.isolation.channel import Channel, SharedMemory
from ort_gpu_ep.isolation.wire import GarbageError, parse, raise_error
from ort_gpu_ep.processes.child import command, ending, environment
from ort_gpu_ep.processes.known import count_as_own, forget

PREPARE_S = 180.0
"""For what takes compiling: a driver takes some 10 ms a shader, a large network has some 500."""

_LAST_S = 5.0
"""How long a worker that is no longer needed may take to end by itself."""

_FROM_OUTSIDE = tuple(
    -signal.Signals[name] for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") if name in signal.Signals.__members__
)
"""How a process ends by signals that no driver sends, as a return code."""

_OPENING = "Run `ort-gpu-ep doctor`, update the driver, or use placement=cpu."

_ADVICE = (
    "A new worker is started; until it has passed a probe, the CPU answers. If this comes back, run "
    "`ort-gpu-ep doctor`, "
    "update the driver, or use placement=cpu."
)
"""Once sessions use the worker."""


class WorkerProcess:
    """One worker. Not thread-safe. name, advice: for messages. Raises OSError where no process can be started."""

    def __init__(self) -> None:
        self.name, self.advice = "the GPU", _OPENING
        ours, theirs = socket.socketpair()
        self.memory = SharedMemory()
        try:
            self._process = subprocess.Popen(
                command("ort_gpu_ep.isolation.worker", str(theirs.fileno()), str(self.memory.fd)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self.memory.fd),
                env=environment(),
                start_new_session=True,
            )  # a terminal's Ctrl-C is for the parent, also while this one starts
        except BaseException:
            ours.close()
            self.memory.close()
            raise
        finally:
            theirs.close()
        self._channel = Channel(ours)
        count_as_own(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def request(self, request: tuple[object, ...], timeout_s: float) -> dict[str, Any]:
        """The worker's answer; where it says that it compiles first, that time does not count.

        Raises what the worker raised; DeviceLostError, DeviceHangError or GarbageError, after which only `kill` makes
        sense.
        """
        try:
            self._channel.send(pickle.dumps(request), timeout_s)
            answer = parse(self._channel.receive(timeout_s))
            while "wait" in answer:
                answer = parse(self._channel.receive(PREPARE_S if answer["wait"] else timeout_s))
        except TimeoutError as error:
            what = f"{self.name}: the worker process did not answer within {timeout_s:g} s and is ended"
            raise DeviceHangError(f"{what}. {self.advice}") from error
        except (EOFError, OSError) as error:
            lost = DeviceLostError(f"{self.name}: the worker process ended ({self._ending()}). {self.advice}")
            lost.killed = self._process.returncode in _FROM_OUTSIDE
            raise lost from error
        except (ValueError, GarbageError) as error:
            raise garbage(self.name, error, self.advice) from error
        if "error" in answer:
            raise_error(answer)
        return answer

    def is_opened(self, name: str) -> None:
        """From now on it is the worker of sessions. name: of its adapter."""
        self.name, self.advice = name, _ADVICE

    def _ending(self) -> str:
        try:
            return ending(self._process.wait(_LAST_S))
        except subprocess.TimeoutExpired:
            return "it closed its socket"

    def kill(self) -> None:
        """Ends it at once, also where it is stopped or hangs."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._close()

    def end(self) -> None:
        """Lets it go, with its markers removed; kills it where it does not go."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_S)
        self.kill()

    def abandon(self) -> None:
        """In a forked child: the worker is the parent's."""
        self._process.returncode = 0
        self._close()

    def _close(self) -> None:
        forget(self.pid)
        self._channel.close()
        self.memory.close()


def garbage(name: str, what: object, advice: str = _ADVICE) -> DeviceLostError:
    """What a worker that has lost its senses is to a run."""
    return DeviceLostError(f"{name}: the worker process answers garbage ({what}). {advice}")


def check_system() -> None:
    """Raises ConfigError, where a process can't inherit file descriptors."""
    if os.name != "posix":
        raise ConfigError(
            "option isolation=process: got Windows, expected Linux or macOS (file descriptors that a "
            "process inherits). "
            "Use isolation=none."
        )
