"""Weights of products in register tiles: where they are in the model, and how they are packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ort_gpu_ep.ir.types import FLOAT32, DType, Shape, TensorType
from ort_gpu_ep.kernels.records import ceil_div, record, restored_by
from ort_gpu_ep.kernels.registry import Const, Kernel, kernel


def _of_rows(k: Mapping[str, Const]) -> dict[str, Const]:
    """The constants of unpack_rows.wgsl."""
    return {**{name: k[name] for name in ("M", "PADDED", "CHANNELS", "TAPS")}, "M_LAST": k["W_M"] == 1}


record("pack_rows.wgsl", "movement", inverse=restored_by("unpack_rows.wgsl", "packed", consts=_of_rows))
record("unpack_rows.wgsl", "movement")
record("pack_phases.wgsl", "movement", inverse=restored_by("unpack_phases.wgsl", "packed"))
record("unpack_phases.wgsl", "movement")

PACKED_ROWS = 32
"""Rows of packed weights are a multiple of it: what the deepest step of a tile reads."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Of the weights [channels, filters, *window] of a ConvTranspose with these steps: a column of the product is
    (phase, filter).

    taps: of the window, those that a phase sees, in each dimension.
    """

    filters: int
    window: Shape
    steps: Shape

    @property
    def taps(self) -> Shape:
        return tuple(ceil_div(size, step) for size, step in zip(self.window, self.steps, strict=True))

    def consts(self, channels: int, m: int) -> dict[str, Const]:
        named = (("WINDOW", self.window), ("STEP", self.steps), ("TAPS", self.taps))
        axes = "ZYX"[-len(self.window) :]
        sizes: dict[str, Const] = {
            f"{name}_{axis}": n for name, own in named for axis, n in zip(axes, own, strict=True)
        }
        if len(axes) == 3:
            sizes["DEEP"] = True
        return {"M": m, "CHANNELS": channels, "FILTERS": self.filters, **sizes}


@dataclass(frozen=True, slots=True)
class Weights:
    """[K, M] of a product, k = (tap, channel), somewhere in an input (or a temporary, by its name): where each index
    leads.

    constant: the graph holds them, so that they can be packed once. filters: where M is more than they have, 0 where it
    isn't. phases: of a ConvTranspose, which have no strides. dtype: float32 or float16.
    """

    source: int | str
    channels: int
    taps: int
    m_stride: int
    channel_stride: int
    tap_stride: int
    constant: bool
    multiple: int = 4
    filters: int = 0
    phases: Phases | None = None
    dtype: DType = FLOAT32

    @property
    def padded(self) -> int:
        """Channels of a tap, filled up to a multiple."""
        return -(-self.channels // self.multiple) * self.multiple

    def are_rows(self, m: int) -> bool:
        """Whether they lie as the kernel reads them, up to rows beyond the last."""
        return (
            self.phases is None
            and self.m_stride == 1
            and self.channel_stride == m
            and self.channels == self.padded
            and (self.taps == 1 or self.tap_stride == m * self.channels)
        )


def packing(weights: Weights, packed: TensorType, target: str = "packed") -> Kernel:
    """From the order in which the model stores them to that of a product, with zeros where there is no channel, tap or
    filter."""
    if weights.phases:
        consts = weights.phases.consts(weights.channels, packed.shape[1])
        return kernel("pack_phases.wgsl", [packed], consts=consts, reads={"w": weights.source}, writes={"y": target})
    return kernel(
        "pack_rows.wgsl",
        [packed],
        consts={
            "M": packed.shape[1],
            "PADDED": weights.padded,
            "CHANNELS": weights.channels,
            "TAPS": weights.taps,
            "FILTERS": weights.filters or packed.shape[1],
            "W_M": weights.m_stride,
            "W_CHANNEL": weights.channel_stride,
            "W_TAP": weights.tap_stride,
        },
        reads={"w": weights.source},
        writes={"y": target},
    )
