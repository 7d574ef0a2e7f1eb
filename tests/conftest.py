"""Options and fixtures of all tests."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, settings

from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device import circuit as circuit_module
from ort_gpu_ep.drills import generator
from ort_gpu_ep.drills.faults import FaultyGpu
from ort_gpu_ep.health import helper, open_adapter
from ort_gpu_ep.isolation import remote
from ort_gpu_ep.runtime.artefact import Artefact
from tests import patience
from tests.seconds import Seconds

# rich keeps a width that it says when a console is made, and tests ask for several: they are made here
os.environ.pop("COLUMNS", None)
import_module("ort_gpu_ep.cli.shared")

if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a job in the background of a shell without job control: what tests start would ignore the Ctrl-C that they send,
    # too
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(  # too_slow: data that is made slowly says that the machine is busy
    "repeatable", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """A first use waits until all its probes are done: on a busy machine it would go on without some of them, which is
    another test.

    And processes that take long to start are not given up.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_adapter, "QUICK_S", 300.0)
        for module, name in ((helper, "START_S"), (remote, "START_S"), (generator, "BEGIN_S")):
            patch.setattr(module, name, 300.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def threads_that_sleep() -> Iterator[None]:
    """Threads of onnxruntime that have nothing to do spin for a while: of sessions that live for a run or two that is
    most of the CPU time.

    "" is not "1", so that they sleep at once; and it says nothing, so that this package does not take it for the
    program's wish.
    """
    collection = import_module("onnxruntime.capi.onnxruntime_inference_collection").C
    plain, defaults = onnxruntime.SessionOptions.__init__, collection.get_default_session_options

    def calm(self: Any, *arguments: Any) -> None:
        plain(self, *arguments)
        self.add_session_config_entry("session.intra_op.allow_spinning", "")

    def calm_defaults() -> Any:
        found = defaults()
        found.add_session_config_entry("session.intra_op.allow_spinning", "")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime.SessionOptions, "__init__", calm)
        patch.setattr(collection, "get_default_session_options", calm_defaults)
        yield


@pytest.fixture(autouse=True)
def closed_circuits() -> None:
    """A test that makes the GPU fail does not send the next test to the CPU."""
    for circuit in Gpu._circuits.values():
        circuit.reset()


@pytest.fixture(autouse=True)
def faults_from_the_first_run_on() -> None:
    """A test's faults on purpose count its own runs, whatever test of its process asked for the same ones before."""
    with Gpu._open_lock:
        for key in [key for key, gpu in Gpu._open.items() if isinstance(gpu, FaultyGpu)]:
            del Gpu._open[key]


@pytest.fixture(autouse=True)
def planned_anew(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that changes this package meets no plan of another test, and leaves none: its key does not tell what was
    changed.

    With the fixture `known_plans` it has them.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" in request.fixturenames and "known_plans" not in request.fixturenames:
            patch.setattr(Artefact, "answer", lambda self, key, read, make, write: make())
        yield


@pytest.fixture
def known_plans() -> None:
    """See planned_anew."""


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that failed is left alone until the test says otherwise, however long its next runs take."""
    monkeypatch.setattr(circuit_module, "FIRST_PAUSE_S", 300.0)


@pytest.fixture
def brief_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """See patience.py: instead of a short `hang_timeout_ms`, which a run on a busy machine takes, too."""
    patience.brief_hangs(monkeypatch)


@pytest.fixture
def slow_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds to place a legend, of which matplotlib warns where nobody has said how."""
    patience.Clock(monkeypatch, pytest.importorskip("matplotlib.legend"), tick_s=2.0)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Seconds(config))
    if config.pluginmanager.hasplugin("xdist"):
        import_module("tests.dead_processes").install(config)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: a search for garbage, which takes longer the more there is, leaves them
    out."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="Write the golden files anew instead of comparing with them."
    )
    parser.addoption(
        "--record-seconds",
        action="store_true",
        help="Write the CPU seconds of all files that run to tests/seconds.json.",
    )
    parser.addoption(
        "--clients",
        action="store_true",
        help="Collect tests/clients, too: they need the extra `clients` (scripts/clients.sh).",
    )
    parser.addoption(
        "--site",
        action="store_true",
        help="Collect tests/site, too: they need the group `docs`, and node (scripts/site.sh).",
    )


@pytest.fixture
def rng() -> np.random.Generator:
    """Random inputs: the same ones in every run."""
    return np.random.default_rng(20_240_229)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares a text with the file tests/golden/<name>."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, "utf-8")
        assert path.is_file(), f"{path} does not exist: run pytest with --update-golden and read what it writes"
        assert text == path.read_text("utf-8"), (
            f"{name} has changed: if that is meant, run pytest with --update-golden and read what changes"
        )

    return compare
