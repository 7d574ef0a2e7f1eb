"""Where the values of a run were on the device: a run that gets the same ones does not look for them again.

A language model's token has a cache of keys and of values for each layer, the same ones in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ort_gpu_ep.plugin.memory import memory

if TYPE_CHECKING:
    from ort_gpu_ep.device import Gpu
    from ort_gpu_ep.device.tensor import Tensor
    from ort_gpu_ep.ir.types import TensorType
    from ort_gpu_ep.plugin.memory import Piece, Storage


@dataclass(slots=True)
class Value:
    """place: address and type, as a run has them. over: of an output, the input whose buffer it is, None for one of its
    own. users: of the storage while a run is made ready. It holds for the same place as long as the piece is not gone.
    """

    place: tuple[int, TensorType]
    storage: Storage
    offset: int
    tensor: Tensor
    piece: Piece
    over: int | None
    users: int


@dataclass(frozen=True, slots=True)
class Found:
    """A value that a run had to look for. at: storage and offset."""

    is_output: bool
    index: int
    place: tuple[int, TensorType]
    at: tuple[Storage, int]
    tensor: Tensor
    over: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """Of a partition's last runs on a GPU: inputs and outputs that lie on the device, by their positions. seen: the
    places of those that the last run had to look for.
    """

    gpu: Gpu
    inputs: dict[int, Value] = field(default_factory=dict)
    outputs: dict[int, Value] = field(default_factory=dict)
    seen: dict[tuple[bool, int], tuple[int, TensorType]] = field(default_factory=dict)

    def with_found(self, found: Sequence[Found]) -> Known:
        """The same behind a run, which is not over. A value is known once it was in the same place twice: a cache that
        grows never is."""
        inputs, outputs = dict(self.inputs), dict(self.outputs)
        for f in found:
            values = outputs if f.is_output else inputs
            values.pop(f.index, None)
            if self.seen.get((f.is_output, f.index)) == f.place:
                storage, offset = f.at
                piece = memory.piece_of(f.place[0], f.place[1].nbytes)
                if piece is not None and piece.storage is storage:
                    values[f.index] = Value(f.place, storage, offset, f.tensor, piece, f.over, storage.users)
        return Known(self.gpu, inputs, outputs, {(f.is_output, f.index): f.place for f in found})
