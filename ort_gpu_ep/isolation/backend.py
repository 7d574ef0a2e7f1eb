"""The backend in a worker process: ONNX Runtime's values stay in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ort_gpu_ep.config import Config
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.isolation.program import RemoteProgram
from ort_gpu_ep.isolation.remote import Lease, RemoteGpu, open_remote
from ort_gpu_ep.kernels.profile import GUESSED, Profile
from ort_gpu_ep.runtime.artefact import Artefact
from ort_gpu_ep.runtime.backend import Backend, FilePlace
from ort_gpu_ep.scheduler.planner import Rewrite


class WorkerBackend:
    """See Backend. Keeps the worker alive until `close`, or until nobody has the backend any more."""

    notices: Sequence[str] = ()  # workarounds are in use where the driver is
    rereads_constants = True  # for the next worker
    device = allowance = None  # the worker has them

    def __init__(self, gpu: RemoteGpu, config: Config) -> None:
        self.adapter, self._lease = gpu, Lease(gpu)
        self.key = gpu.key

    def settled(self, config: Config) -> Config:
        return config

    def compile(
        self,
        graph: Graph,
        config: Config,
        rewrite: Rewrite | None,
        constants: Mapping[str, Array | FilePlace],
        artefact: Artefact | None,
    ) -> RemoteProgram:
        return RemoteProgram(graph, constants, config, self.adapter, rewrite, artefact.key if artefact else "")

    def profile(self, config: Config, measured: bool = True) -> Profile:
        """Only the worker could measure its adapter."""
        return GUESSED

    def close(self) -> None:
        self._lease.end()


def open_backend(config: Config) -> Backend:
    """Raises AdapterError, ConfigError."""
    return WorkerBackend(open_remote(config), config)
