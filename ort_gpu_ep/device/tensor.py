"""A value in device memory, as a Program takes and gives it."""

from __future__ import annotations

from dataclasses import dataclass

from ort_gpu_ep.device.buffers import Buffer
from ort_gpu_ep.types import TensorType


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value in device memory."""

    buffer: Buffer
    offset_bytes: int
    type: TensorType
