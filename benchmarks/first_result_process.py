"""One new process from its start to its first result, split into parts: what benchmarks/first_result.py starts many of.

    python -m benchmarks.first_result_process STARTED_S MODEL INPUTS OPTIONS

STARTED_S: time.monotonic() before the process was started. INPUTS: JSON, name -> [numpy type, shape]; zeros are fed.
OPTIONS: JSON, of the provider. Prints JSON: part -> seconds; their sum is the time from the start to the result.
Nothing of the package knows of it: the functions below are wrapped here, and an import counts for the package that is
imported, less what that imports from others.
"""

import time

BEGUN_S = time.monotonic()

import builtins  # noqa: E402  the line above is the end of the interpreter's own start
import functools  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from collections import defaultdict  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from typing import Any  # noqa: E402

PACKAGES = {
    "numpy": "import numpy",
    "onnxruntime": "import onnxruntime",
    "onnx": "import onnx",
    "google": "import onnx",
    "ml_dtypes": "import onnx",
    "ort_gpu_ep": "import ort_gpu_ep",
}
MODULES = {"ort_gpu_ep.webgpu.library": "load wgpu-native"}

FUNCTIONS = {
    ("ort_gpu_ep.plugin", "ensure_registered"): "register the provider",
    ("ort_gpu_ep.device.adapter", "enumerate_adapters"): "driver: instance, adapters",
    ("ort_gpu_ep.webgpu.objects", "Adapter.request_device"): "device",
    ("ort_gpu_ep.health.enumeration", "look"): "verdicts from the cache",
    ("ort_gpu_ep.health.open_adapter", "open_gpu"): "verdicts from the cache",
    ("ort_gpu_ep.plugin.provider", "Provider.get_capability"): "read, fuse, claim, place",
    ("ort_gpu_ep.plugin.provider", "Provider.compile"): "read the partitions",
    ("ort_gpu_ep.runtime.context", "make_template"): "plan",
    ("ort_gpu_ep.runtime.prepared", "pipelines"): "pipelines: compose, compile",
    ("ort_gpu_ep.runtime.context", "PlanContext._take_constants"): "weights",
}
"""(module, name in it) -> part. A function that another module has imported by name is wrapped there."""

SESSION, RUN = "onnxruntime: load, optimise", "first run"
PARTS = (
    "interpreter",
    *dict.fromkeys(PACKAGES.values()),
    *MODULES.values(),
    *dict.fromkeys(FUNCTIONS.values()),
    SESSION,
    RUN,
    "rest",
)
GROUPS = {
    "driver": ("load wgpu-native", "driver: instance, adapters"),
    "device": ("device",),
    "pipelines": ("pipelines: compose, compile",),
    "onnxruntime": ("import onnxruntime", SESSION),
    "run, weights": (RUN, "weights"),
}
"""What the parts come to; what is in none is Python."""


class Clock:
    """Gives each moment of the main thread to the innermost part that is open."""

    def __init__(self, begun_s: float) -> None:
        self.spent_s: dict[str, float] = defaultdict(float)
        self._open, self._last_s = ["rest"], begun_s

    def _tick(self) -> None:
        now = time.monotonic()
        self.spent_s[self._open[-1]] += now - self._last_s
        self._last_s = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._tick()
        self._open.append(name)
        try:
            yield
        finally:
            self._tick()
            self._open.pop()

    def wrap(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, its time given to a part; on other threads, which the main one waits for, as it is."""

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*arguments, **named)
            with self.part(name):
                return function(*arguments, **named)

        return timed


def part_of(module: str) -> str | None:
    return MODULES.get(module) or PACKAGES.get(module.partition(".")[0])


def watch_imports(clock: Clock) -> dict[tuple[str, str], str]:
    """Times imports, and wraps FUNCTIONS as soon as their modules are there. Returns those that are still to come."""
    to_come, begin, by_name = dict(FUNCTIONS), builtins.__import__, importlib.import_module

    def loaded() -> None:
        for (module, name), part in list(to_come.items()):
            owner: Any = sys.modules.get(module)
            *classes, function = name.split(".")
            for step in classes:
                owner = getattr(owner, step, None)
            if owner is not None and hasattr(owner, function):
                setattr(owner, function, clock.wrap(getattr(owner, function), part))
                del to_come[module, name]

    def timed(original: Callable[..., Any], name: str, *arguments: Any, **named: Any) -> Any:
        part = part_of(name)
        if name in sys.modules or part is None or threading.current_thread() is not threading.main_thread():
            return original(name, *arguments, **named)
        with clock.part(part):
            found = original(name, *arguments, **named)
        loaded()
        return found

    builtins.__import__ = functools.partial(timed, begin)
    importlib.import_module = functools.partial(timed, by_name)
    return to_come


def main(started_s: float, model: str, inputs: dict[str, tuple[str, list[int]]], options: dict[str, str]) -> None:
    clock = Clock(BEGUN_S)
    clock.spent_s["interpreter"] = BEGUN_S - started_s
    to_come = watch_imports(clock)
    import numpy as np

    from ort_gpu_ep import InferenceSession

    feeds = {name: np.zeros(shape, kind) for name, (kind, shape) in inputs.items()}
    with clock.part(SESSION):
        session = InferenceSession(model, provider_options=options)
    with clock.part(RUN):
        session.run(None, feeds)
    clock._tick()
    if to_come:
        sys.exit(f"benchmarks/first_result_process.py: not found: {', '.join('.'.join(at) for at in to_come)}")
    print(
        json.dumps(
            {
                "parts_s": {part: clock.spent_s[part] for part in PARTS},
                "cpu_nodes": session.explain().count("cpu"),
                "adapter": session._state.gpu.info.name,
            }
        )
    )


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]))
