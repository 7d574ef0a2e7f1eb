"""The backend in this process: ONNX Runtime's values are in buffers of its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.device.allowance import Allowance
from ort_gpu_ep.drills.faults import after_run
from ort_gpu_ep.errors import DeviceLostError, ShaderError
from ort_gpu_ep.health.open_adapter import open_gpu
from ort_gpu_ep.health.verdicts import key_of
from ort_gpu_ep.health.workarounds import REWRITINGS, with_workarounds
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.kernels.profile import Profile, guessed_for
from ort_gpu_ep.plugin.memory import memory
from ort_gpu_ep.runtime.artefact import Artefact, composer
from ort_gpu_ep.runtime.backend import Backend, FilePlace, Host
from ort_gpu_ep.runtime.program import Program
from ort_gpu_ep.scheduler.planner import Rewrite


class LocalProgram(Program):
    """A partition on a device of this process."""

    problem = ""

    def execute(self, host: Host) -> None:
        host.deliver(self.run(host.tensors(self.gpu), host.new_tensor, host.content))

    def blames(self, error: Exception) -> bool:
        """Not where an input was on a device that was lost earlier."""
        return bool(self.gpu.lost) or not isinstance(error, DeviceLostError)


ALL_CHECKED = (
    "all shaders check their bounds, which takes time: no probe has passed on this adapter without "
    "(checked_shaders=auto, "
    "docs/doctor.md)"
)


class LocalBackend:
    """See Backend. gpu: shared with other sessions. config: of this one."""

    rereads_constants = False

    def __init__(self, gpu: Gpu, config: Config) -> None:
        self._config = config
        self.adapter = self.device = gpu
        own = self.settled(config)
        self.allowance = Allowance(own.memory_limit_mb << 20, own.hang_timeout_ms / 1e3)
        # a rewritten text computes the same, about as fast: `doctor` tells of those
        self.notices: Sequence[str] = [
            f"workaround {workaround}" for workaround in gpu.workarounds if workaround.name not in REWRITINGS
        ]

    @property
    def key(self) -> str:
        return key_of(self.device.info)

    def settled(self, config: Config) -> Config:
        return with_workarounds(config, self.device.workarounds)

    def compile(
        self,
        graph: Graph,
        config: Config,
        rewrite: Rewrite | None,
        constants: Mapping[str, Array | FilePlace],
        artefact: Artefact | None,
    ) -> LocalProgram:
        while True:
            # each time without one more shader file, or from now on one pipeline at a time
            if self.device.lost_compiling:
                self.adapter = self.device = open_gpu(self._config)
            device = self.device
            try:
                with self.allowance:
                    return LocalProgram(
                        graph,
                        config,
                        device,
                        rewrite,
                        composer(artefact),
                        after_run(device),
                        artefact,
                        config.unit_plans == "background",
                    )
            except (ShaderError, DeviceLostError):
                if not device.lost_compiling:
                    raise

    def profile(self, config: Config, measured: bool = True) -> Profile:
        # a session that is told where to run loads none of it
        from ort_gpu_ep.calibration import known_profile, profile_of

        return (
            profile_of(self.device, config)
            if measured
            else known_profile(self.device, config) or guessed_for(self.device.info.type)
        )

    def close(self) -> None:
        """The device stays open for the next session."""


def open_backend(config: Config) -> Backend:
    """Raises AdapterError, DeviceError (a forked child), ConfigError."""
    memory.check_usable()
    backend = LocalBackend(open_gpu(config), config)
    if config.checked_shaders == "auto" and not backend.device.trusted and not backend.device.info.is_software:
        backend.notices = [*backend.notices, ALL_CHECKED]
    return backend
