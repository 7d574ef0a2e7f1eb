"""Interface between a session and the backend that owns its device: an open adapter, and partitions compiled for it.

A backend is one module with `open_backend(config)`, named in plugin/backends.py: the device of this process
(plugin/local.py) or a worker's (isolation/backend.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from ort_gpu_ep.config import Config
    from ort_gpu_ep.device import Gpu, Tensor
    from ort_gpu_ep.device.allowance import Allowance
    from ort_gpu_ep.device.circuit import Circuit
    from ort_gpu_ep.device.index_check import Word
    from ort_gpu_ep.device.info import AdapterInfo
    from ort_gpu_ep.ir.graph import Array, Graph
    from ort_gpu_ep.ir.types import Shape, TensorType
    from ort_gpu_ep.kernels.profile import Profile
    from ort_gpu_ep.kernels.registry import Limits
    from ort_gpu_ep.runtime.artefact import Artefact
    from ort_gpu_ep.runtime.better_plans import UnitPlan
    from ort_gpu_ep.runtime.runs import Steady
    from ort_gpu_ep.scheduler import Plan
    from ort_gpu_ep.scheduler.planner import Rewrite
    from ort_gpu_ep.scheduler.template import Specialization
    from ort_gpu_ep.utilization import Uses


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A constant in a file."""

    path: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def load(self, file: Any = None) -> Array:
        """The array, mapped from the file, which may be open already. Raises OSError."""
        nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        return np.memmap(file or self.path, np.uint8, "r", self.offset, (nbytes,)).view(self.dtype).reshape(self.shape)


class Adapter(Protocol):
    """An adapter in use, shared by sessions. lost: why its device is gone, for good; empty where it is not, or is
    replaced by itself.

    circuit: the trust in it. uses: when it worked. reported: whether the circuit knows of the loss.
    """

    info: AdapterInfo
    limits: Limits
    circuit: Circuit
    uses: Uses
    lost: str
    reported: bool


class Host(Protocol):
    """ONNX Runtime's side of a run: its values by their addresses, or as tensors of a device in this process."""

    def inputs(self) -> list[tuple[int, TensorType]]:
        """(address, type) in the order of graph.inputs."""

    def output(self, index: int, shape: Shape) -> tuple[int, TensorType]:
        """Makes an output: (address, type)."""

    def is_host(self, address: int) -> bool:
        """Whether a tensor is in the process's ordinary memory."""

    def read(self, address: int, into: int, nbytes: int) -> None:
        """Copies a tensor to host memory."""

    def write(self, address: int, source: int, nbytes: int) -> None:
        """Copies host memory to a tensor."""

    def count(self, way: str, nbytes: int) -> None:
        """Notes a copy that ONNX Runtime has not asked for: `host_to_device` or `device_to_host`."""

    def tensors(self, gpu: Gpu) -> list[Tensor]:
        """The inputs on a device. The run uses that device from now on."""

    def new_tensor(self, index: int, shape: Shape, over: int | None = None) -> Tensor:
        """Makes an output on it."""

    def content(self, index: int, tensor: TensorType) -> Array:
        """The content of a small input: shapes depend on it."""

    def deliver(self, word: Word | None) -> None:
        """Waits for the outputs that are wanted on the host, and brings them there. word: to be looked at with any of
        them, now or later.

        Raises InputError, DeviceError.
        """


class Executable(Protocol):
    """A partition, ready to run. Thread-safe.

    problem: why it can't run now, empty where it can. graph, rewrite: plans can be made of these.
    """

    config: Config
    graph: Graph
    rewrite: Rewrite | None
    problem: str

    @property
    def uploads(self) -> int:
        """Constants copied to the device so far."""

    @property
    def uploaded_nbytes(self) -> int:
        """Bytes of constants copied to the device so far."""

    @property
    def gpu(self) -> Adapter: ...

    @property
    def plans(self) -> tuple[Plan, ...]:
        """With the numbers of the last sizes seen, the most recently used last."""

    @property
    def specialized(self) -> tuple[Specialization, ...]:
        """Sizes that have a plan of their own, or could not get one."""

    @property
    def unit_plans(self) -> tuple[UnitPlan, ...]:
        """Plans on matrix units that were, or are, made beside the runs."""

    def wait_plans(self, timeout_s: float | None = None) -> bool:
        """Waits until none of these is being made; whether that is so."""

    @property
    def weight_nbytes(self) -> int:
        """Device memory of the weights."""

    def execute(self, host: Host) -> None:
        """One run. Its outputs are where the host wants them. Raises DeviceError, ShaderError, UnsupportedNodeError."""

    def steady(self, inputs: Sequence[TensorType]) -> Steady | None:
        """What further runs with these input types go by; None where each needs `execute`."""

    def blames(self, error: Exception) -> bool:
        """Whether an error of `execute` says something about the adapter."""

    def shrink(self) -> None:
        """Frees what the device holds only for runs, until the next one. Raises DeviceError."""

    def close(self) -> None:
        """Frees what the device holds for it."""


class Backend(Protocol):
    """An open adapter, as one session has it.

    notices: what its user should know. rereads_constants: it needs a partition's constants later, too, as CPU fallbacks
    keep them. key: names the adapter with its driver and this package's code, see verdicts.key_of.
    """

    notices: Sequence[str]
    rereads_constants: bool

    @property
    def key(self) -> str: ...

    @property
    def adapter(self) -> Adapter: ...

    @property
    def allowance(self) -> Allowance | None:
        """What the session may take of a device of this process; None where a worker looks after that."""

    @property
    def device(self) -> Gpu | None:
        """The device of this process that keeps values between partitions; None where they stay in host memory."""

    def settled(self, config: Config) -> Config:
        """The options that this adapter needs instead of the given ones."""

    def compile(
        self,
        graph: Graph,
        config: Config,
        rewrite: Rewrite | None,
        constants: Mapping[str, Array | FilePlace],
        artefact: Artefact | None,
    ) -> Executable:
        """A partition. constants: where graph's are later on. artefact: what is known of the model. Raises
        UnsupportedNodeError, ShaderError, DeviceError."""

    def profile(self, config: Config, measured: bool = True) -> Profile:
        """What the adapter takes, measured at the first call; GUESSED where it can't be, or is not to be and was
        not."""

    def close(self) -> None:
        """The session ends."""
