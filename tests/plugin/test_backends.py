"""A session's backend: what the plugin asks of it is backend.py, so a third one is one module."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.config import Config
from ort_gpu_ep.device.circuit import Circuit
from ort_gpu_ep.device.info import AdapterInfo
from ort_gpu_ep.errors import DeviceError
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.kernels.profile import GUESSED, Profile
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.plugin import backends
from ort_gpu_ep.runtime.artefact import Artefact
from ort_gpu_ep.runtime.backend import Adapter, Backend, FilePlace, Host
from ort_gpu_ep.scheduler import Plan
from ort_gpu_ep.scheduler.planner import Rewrite
from ort_gpu_ep.utilization import Uses
from tests.plugin.cases import info, make_model, node, open_session

X = np.array([[-1.5, 0.0, 2.5]], "f")


class Numpy:
    """An adapter whose device is numpy."""

    def __init__(self) -> None:
        self.info = AdapterInfo(0, "numpy", "unknown", "Null", "", 0, 0)
        self.limits, self.circuit, self.uses = Limits(), Circuit(lambda: None), Uses(False)
        self.lost, self.reported = "", False


class Doubling:
    """Of a graph of one Add of a value with itself."""

    plans: tuple[Plan, ...] = ()
    specialized = ()
    unit_plans = ()
    problem, weight_nbytes, uploads, uploaded_nbytes, blamed = "", 0, 0, 0, True

    def __init__(self, graph: Graph, config: Config, gpu: Adapter, rewrite: Rewrite | None) -> None:
        self.graph, self.config, self.gpu, self.rewrite = graph, config, gpu, rewrite
        self.error: Exception | None = None

    def execute(self, host: Host) -> None:
        if self.error is not None:
            raise self.error
        ((address, tensor),) = host.inputs()
        array = np.empty(tensor.shape, tensor.dtype.numpy)
        host.read(address, array.ctypes.data, tensor.nbytes)
        doubled = array + array
        into, made = host.output(0, doubled.shape)
        host.write(into, doubled.ctypes.data, made.nbytes)
        host.count("device_to_host", made.nbytes)

    def wait_plans(self, timeout_s: float | None = None) -> bool:
        return True

    def blames(self, error: Exception) -> bool:
        return self.blamed

    def close(self) -> None:
        self.problem = "closed"


class NumpyBackend:
    notices: Sequence[str] = ("this is numpy",)
    rereads_constants = False
    device = allowance = None
    key = "numpy"

    def __init__(self) -> None:
        self.adapter, self.made, self.closed = Numpy(), list[Doubling](), False

    def settled(self, config: Config) -> Config:
        return config

    def compile(
        self,
        graph: Graph,
        config: Config,
        rewrite: Rewrite | None,
        constants: Mapping[str, Array | FilePlace],
        artefact: Artefact | None,
    ) -> Doubling:
        self.made.append(Doubling(graph, config, self.adapter, rewrite))
        return self.made[-1]

    def profile(self, config: Config) -> Profile:
        return GUESSED

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> list[NumpyBackend]:
    """The backends that are opened, each of the module `numpy_backend`."""
    opened: list[NumpyBackend] = []

    def open_backend(config: Config) -> Backend:
        opened.append(NumpyBackend())
        return opened[-1]

    module: Any = ModuleType("numpy_backend")
    module.open_backend = open_backend
    monkeypatch.setitem(sys.modules, "numpy_backend", module)
    monkeypatch.setitem(backends._MODULES, "none", "numpy_backend")
    return opened


DOUBLE = make_model([node("Add", "x x", "y")], [info("x", [1, 3])], ["y"])


def test_a_third_backend_is_one_module(third: list[NumpyBackend]) -> None:
    opened = open_session(DOUBLE)
    (got,) = opened.run(x=X)
    np.testing.assert_array_equal(got, X + X)
    (backend,) = third
    assert [e.message for e in opened.state.events] == ["this is numpy"]
    assert opened.state.counts()["device_to_host_nbytes"] == X.nbytes
    assert opened.state.gpu is None
    del opened.session
    assert backend.closed
    assert backend.made[0].problem == "closed"


@pytest.mark.parametrize("blamed", [True, False])
def test_a_program_says_whether_its_error_is_what_it_did_there(third: list[NumpyBackend], blamed: bool) -> None:
    opened = open_session(DOUBLE)
    (backend,) = third
    backend.made[0].error, backend.made[0].blamed = DeviceError("on purpose"), blamed
    for _ in range(3):
        np.testing.assert_array_equal(opened.run(x=X)[0], X + X)  # by the CPU
    assert opened.state.partitions[0].circuit.state == ("open" if blamed else "closed")
    assert backend.adapter.circuit.state == "closed"


def test_a_program_that_cannot_run_is_left_alone(third: list[NumpyBackend]) -> None:
    opened = open_session(DOUBLE)
    third[0].made[0].problem = "not now"
    np.testing.assert_array_equal(opened.run(x=X)[0], X + X)
    assert opened.state.events[-1].message == "not now"
    assert opened.state.failures == 1


def test_file_place_reads_what_is_there(tmp_path: Any) -> None:
    array = np.arange(6, dtype="i4").reshape(2, 3)
    (tmp_path / "w").write_bytes(b"\0" * 8 + array.tobytes())
    np.testing.assert_array_equal(FilePlace(str(tmp_path / "w"), 8, array.dtype, array.shape).load(), array)
