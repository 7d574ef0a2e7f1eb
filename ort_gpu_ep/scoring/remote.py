"""A worker in an actor of Ray's; arrays and models in Ray's object store, which brings each to a
node once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ort_gpu_ep.errors import ModelError, ScoringError
from ort_gpu_ep.files import content, open_regular
from ort_gpu_ep.ir import external
from ort_gpu_ep.scoring.columns import Array
from ort_gpu_ep.scoring.model import Model
from ort_gpu_ep.scoring.require import require
from ort_gpu_ep.scoring.transport import GoneError, WorkerEndError

_MODEL = "model.onnx"

_LONGEST = 300
"""Characters of a message of Ray's."""


def ray_module() -> Any:
    """Raises ScoringError where it is not installed."""
    return require("ray", "scoring on a cluster (ray=..., --ray)")


class Fetched:
    """Arrays that lie in the object store of this process's node."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = arrays

    def close(self) -> bool:
        self.arrays = {}
        return True


@dataclass(frozen=True, slots=True)
class Stored:
    """Arrays in the object store, by a reference."""

    reference: Any

    @property
    def name(self) -> str:
        return str(self.reference.hex())

    def open(self) -> Fetched:
        return Fetched(ray_module().get(self.reference))


class Put:
    """Arrays that this process has put there. Raises ScoringError where there is no room."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        ray = ray_module()
        try:
            self._source: Stored | None = Stored(ray.put(dict(arrays)))
        except ray.exceptions.RayError as error:
            raise ScoringError(
                f"Ray's object store takes no more ({reason(error)}): start Ray with more (ray start "
                "--object-store-memory=...), or score with fewer rows in a shard (--shard-rows)"
            ) from error

    @property
    def source(self) -> Stored:
        assert self._source is not None, "released"
        return self._source

    def release(self) -> None:
        self._source = None  # without a reference Ray forgets them, on all nodes


def _stored(data: bytes) -> Stored:
    return Stored(ray_module().put(np.frombuffer(data, np.uint8)))


class Broadcast:
    """A model and the files of its weights in the object store."""

    def __init__(self, model: Model) -> None:
        """Files of external data have numbers for names on the other node, and in the model there. Raises ModelError
        where one is gone."""
        folder, numbers = (
            os.path.dirname(os.path.abspath(model.path)),
            {location: str(n) for n, location in enumerate(model.weights)},
        )
        try:
            with open_regular(Path(model.path), follow=True) as file:
                data = content(file)
            self._files = {_MODEL: _stored(external.relocated(data, numbers) if numbers else data)}
            for location, number in numbers.items():
                with external.open_location(location, folder, model.path) as file:
                    self._files[number] = _stored(content(file))
        except OSError as error:
            raise ModelError(f"model {model.path}: {error}") from error

    def load(self, folder: Path) -> str:
        """Writes the files into a folder of this process, and gives where the model is: its weights take no memory of a
        session then."""
        ray = ray_module()
        for name, stored in self._files.items():
            with open_regular(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                file.write(ray.get(stored.reference).data)
        return str(folder / _MODEL)


class Actor:
    """What runs in the actor: functions of `worker`, one after another."""

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        return function(*given)


class Remote:
    """An actor on one node: a transport.Channel. where: the node, for people. options: of the actor, for Ray."""

    advice = ": what it needs of that node may be in use"

    def __init__(self, where: str, options: Mapping[str, Any]) -> None:
        self.name, self._where, self._ray = f"the actor on {where}", where, ray_module()
        self._actor = self._ray.remote(Actor).options(**options).remote()

    def ask(self, timeout_s: float, function: Callable[..., Any], *given: Any) -> Any:
        failures = self._ray.exceptions
        try:
            return self._ray.get(self._actor.call.remote(function, *given), timeout=timeout_s)
        except failures.GetTimeoutError as error:
            raise TimeoutError from error
        except failures.ActorUnschedulableError as error:
            raise GoneError(f"the node {self._where} is gone") from error
        except failures.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except failures.RayError as error:
            raise WorkerEndError(f"{self.name} ended ({reason(error)})") from error

    def kill(self) -> None:
        self._ray.kill(self._actor)

    def close(self) -> None:
        """Ray has nobody who could let an actor end by itself."""
        self.kill()


def reason(error: Exception) -> str:
    """The one line that tells of Ray's messages, which have places before it and advice behind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)][-1:]
    return (raised or [line for line in lines if " because " in line] or lines or [type(error).__name__])[0][:_LONGEST]
