"""A value in device memory: input and output of a Program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # loads wgpu-native, which a process with isolated sessions does without
    from ort_gpu_ep.device.buffers import Buffer
    from ort_gpu_ep.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value in device memory."""

    buffer: Buffer
    offset_bytes: int
    type: TensorType
