"""Stored results of tuning: the fastest kernel for each choice, one file for adapter, driver and kernels."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ort_gpu_ep import store
from ort_gpu_ep.kernels.target import Tuned

MAX_CHOICES, MAX_MODELS = 2048, 256
"""What a file holds at most; the oldest goes first. A network has some 10 to 60 choices."""

_KERNELS = ("shaders", "ops", "kernels/records.py", "kernels/cost_parameters.py", "kernels/target.py")
"""Files and folders of this package that forms, and what they take, follow from."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One choice. form: the one to take. ns: of all dispatches with this key in a run, by form, medians."""

    form: str
    ns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """All that is known of an adapter. choices: by key, the oldest first. models: names of those that were tuned as a
    whole."""

    choices: Mapping[str, Measured] = field(default_factory=dict)
    models: tuple[str, ...] = ()

    @property
    def tuned(self) -> Tuned:
        return Tuned({key: choice.form for key, choice in self.choices.items()})

    def with_choices(self, new: Mapping[str, Measured], models: Iterable[str] = ()) -> Table:
        """This and what is newer, bounded."""
        choices = {key: choice for key, choice in self.choices.items() if key not in new} | dict(new)
        names = [*(m for m in self.models if m not in models), *models]
        return Table(dict(list(choices.items())[-MAX_CHOICES:]), tuple(names[-MAX_MODELS:]))


@cache
def kernel_hash() -> str:
    """Of the kernels and of what chooses among their forms: what was measured of others says nothing."""
    digest, root = hashlib.sha256(), Path(__file__).resolve().parents[1]
    for name in _KERNELS:
        path = root / name
        for file in [path] if path.is_file() else sorted(f for f in path.iterdir() if f.suffix in (".wgsl", ".py")):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def path_of(cache_path: str, key: str) -> Path:
    """key: names adapter, driver and kernels."""
    return Path(cache_path) / "tuned" / f"{key}.json"


def read(cache_path: str, key: str) -> Table:
    """What is on disk; nothing where that can't be used."""
    return store.read(path_of(cache_path, key), _parsed) or Table()


def write(cache_path: str, key: str, table: Table) -> bool:
    """False where the cache can't be written, which the log says."""
    choices = {name: {"form": choice.form, "ns": dict(choice.ns)} for name, choice in table.choices.items()}
    return store.write(path_of(cache_path, key), {"choices": choices, "models": list(table.models)})


def forget(cache_path: str, key: str) -> bool:
    """Whether there was anything to forget. Raises OSError."""
    path = path_of(cache_path, key)
    there = path.exists()
    if there:
        path.unlink(missing_ok=True)  # another process may have done so meanwhile
    return there


def _parsed(data: dict[str, Any]) -> Table:
    choices = {str(key): _measured(choice) for key, choice in list(data["choices"].items())[-MAX_CHOICES:]}
    return Table(choices, tuple(str(name) for name in data["models"][-MAX_MODELS:]))


def _measured(data: Any) -> Measured:
    if type(data["form"]) is not str:
        raise TypeError(f"form: got {str(data['form'])[:40]}, expected str")
    ns = {str(form): float(time) for form, time in data["ns"].items()}
    if not all(math.isfinite(time) and time >= 0 for time in ns.values()):
        raise ValueError(f"ns: got {str(data['ns'])[:40]}, expected times")
    return Measured(data["form"], ns)
