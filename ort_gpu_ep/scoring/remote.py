"""A worker in an actor of Ray's, as the run has it; arrays and models in Ray's object store, which brings each to a
node once."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ort_gpu_ep.errors import AdapterError, ModelError, ScoringError
from ort_gpu_ep.files import content, open_regular
from ort_gpu_ep.ir import external
from ort_gpu_ep.scoring import visible, worker
from ort_gpu_ep.scoring.columns import Array
from ort_gpu_ep.scoring.model import Model
from ort_gpu_ep.scoring.process import BEGIN_S, GoneError, WorkerEndError
from ort_gpu_ep.scoring.require import require

P = ParamSpec("P")
T = TypeVar("T")

_MODEL = "model.onnx"

_LONGEST = 300
"""Characters of a message of Ray's."""

_folder: tempfile.TemporaryDirectory[str] | None = None
"""Of this process's model."""


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

    def load(self) -> str:
        """Where the model is now, in a folder of this process: its weights take no memory of a session then."""
        global _folder
        ray = ray_module()
        _folder = tempfile.TemporaryDirectory(prefix="ort_gpu_ep-model-")
        folder = Path(_folder.name)
        for name, stored in self._files.items():
            with open_regular(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                file.write(ray.get(stored.reference).data)
        return str(folder / _MODEL)


class Actor:
    """What runs in the actor: functions of `worker`, one after another."""

    def call(self, function: Callable[..., T], *given: Any) -> T:
        return function(*given)


def open_here(setup: worker.Setup, model: Broadcast) -> worker.Failed | tuple[str, str]:
    """Finds this process's adapter and makes the session on it; (name, place) of the adapter."""
    try:
        adapter, name, place = visible.chosen(setup.adapter, setup.options)
    except AdapterError as error:  # a worker before this one may not have ended yet, which had the adapter
        return worker.Failed("device" if setup.adapter == visible.AUTO else "fatal", f"{type(error).__name__}: {error}")
    failed = worker.open_worker(replace(setup, adapter=adapter, path=model.load()))
    return failed if failed is not None else (name, place)


def finish_here() -> None:
    worker.finish()
    if _folder is not None:
        _folder.cleanup()


class Remote:
    """An actor on one node: a drive.Worker. where: the node, for people. options: of the actor, for Ray."""

    def __init__(self, where: str, options: Mapping[str, Any], model: Broadcast, timeout_s: float) -> None:
        self.pid, self.name, self.kind = 0, "", ""
        self._where, self._model, self._timeout_s, self._ray = where, model, timeout_s, ray_module()
        self._actor = self._ray.remote(Actor).options(**options).remote()

    def open(self, setup: worker.Setup) -> worker.Failed | None:
        self.pid = self._call(BEGIN_S, worker.identify)
        failure = self.call(open_here, setup, self._model)
        if isinstance(failure, worker.Failed):
            return failure
        self.name, self.kind = " ".join((f"{self._where}:", *failure)).strip(), failure[0]
        return None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(self._timeout_s, function, *args, **kwargs)

    def _call(self, timeout_s: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        failures = self._ray.exceptions
        try:
            answer: T = self._ray.get(self._actor.call.remote(function, *args, **kwargs), timeout=timeout_s)
        except failures.GetTimeoutError:
            self.kill()
            raise WorkerEndError(
                f"the actor on {self._where} did not {'answer' if self.pid else 'start'} within "
                f"{timeout_s:g} s and was "
                "ended" + ("" if self.pid else ": what it needs of that node may be in use")
            ) from None
        except failures.ActorUnschedulableError as error:
            raise GoneError(f"the node {self._where} is gone") from error
        except failures.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except failures.RayError as error:
            raise WorkerEndError(f"the actor on {self._where} ended ({reason(error)})") from error
        return answer

    def kill(self) -> None:
        """Ends it at once, also where it hangs, or has not begun."""
        self._ray.kill(self._actor)

    def end(self) -> None:
        try:
            self.call(finish_here)
        except WorkerEndError:
            pass
        finally:
            self.kill()


def reason(error: Exception) -> str:
    """The one line that tells of Ray's messages, which have places before it and advice behind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)][-1:]
    return (raised or [line for line in lines if " because " in line] or lines or [type(error).__name__])[0][:_LONGEST]
