"""A data set in device memory, from which batches are gathered there.

A model of its own gathers them, for several steps at once: the numbers of their samples go up, 4 B each. The step reads
what that wrote as it reads a batch from the host, so it is the same step, and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx

from ort_gpu_ep.config import MEMORY_NBYTES
from ort_gpu_ep.ir.graph import Array
from ort_gpu_ep.session.bound_runs import Runs
from ort_gpu_ep.session.session import InferenceSession
from ort_gpu_ep.training.data import DataSet, Rows
from ort_gpu_ep.training.feeding import Feed
from ort_gpu_ep.training.writer import Shape, Writer

ROWS = "training.rows"

SHARE = 4
"""A data set and the next batches of it may take one part in so many of memory_limit_mb."""

NBYTES = MEMORY_NBYTES // SHARE
"""What they may take where no limit is given."""


def too_large(sizes: Mapping[str, int], batches: int, memory_limit_nbytes: int, max_binding_nbytes: int) -> str:
    """Why arrays of these sizes in bytes are not kept on a device, beside batches of so many bytes; "" if they are."""
    total, most = sum(sizes.values()) + batches, memory_limit_nbytes // SHARE if memory_limit_nbytes else NBYTES
    if total > most:
        of = "a quarter of memory_limit_mb" if memory_limit_nbytes else "of a device whose memory_limit_mb is not given"
        return (
            f"the data set and the next batches of it have {total / 2**20:,.1f} MiB, they may take "
            f"{most / 2**20:,.1f} MiB "
            f"({of})"
        )
    name = max(sizes, key=lambda n: sizes[n])
    if sizes[name] > max_binding_nbytes:
        return (
            f"{name!r} has {sizes[name] / 2**20:,.1f} MiB, a kernel of this adapter reads "
            f"{max_binding_nbytes / 2**20:,.1f} MiB"
        )
    return ""


class Gathered:
    """The batches of so many steps in turn: slots[place] has the feeds of a step there.

    session: of `gathering`. value: makes a value on the device that other sessions read, too; own: one of this session.
    """

    def __init__(
        self,
        source: DataSet,
        batch: int,
        places: int,
        session: InferenceSession,
        value: Callable[[Array], Any],
        own: Callable[[InferenceSession, Array], Any],
    ) -> None:
        self.source, self.session, self._batch = source, session, batch
        self.slots = [
            {n: value(np.zeros((batch, *a.shape[1:]), a.dtype)) for n, a in source.arrays.items()}
            for _ in range(places)
        ]
        self._rows = Feed(np.zeros(places * batch, np.int32), 1, partial(own, session), True)
        self._there: list[Array | None] = [None] * places
        inputs = {**{n: own(session, a) for n, a in source.arrays.items()}, ROWS: self._rows.value(0)}
        outputs = {
            output_name(name, place): value for place, slots in enumerate(self.slots) for name, value in slots.items()
        }
        self._runs = Runs(session, [(inputs, outputs)])

    def fetch(self, place: int, rows: Rows) -> None:
        """Sees to it that slots[place] has these rows; on the way the places behind it get the rows of the steps that
        follow."""
        if self._there[place] is rows.batches[rows.at]:
            return
        coming = rows.batches[rows.at : rows.at + len(self.slots) - place]
        numbers = np.zeros((len(self.slots), self._batch), np.int32)
        numbers[place : place + len(coming)] = coming
        self._there[:] = [None] * len(self.slots)
        self._rows.fill(0, numbers.reshape(-1), len(self.slots))
        self._runs.run(0)
        self._there[place : place + len(coming)] = coming


def gathering(source: DataSet, batch: int, places: int) -> onnx.ModelProto:
    """The model: a data set and ROWS [places * batch] in, batches out."""
    writer = Writer(opset=13, ir_version=8)
    rows = writer.input(ROWS, np.int32, (places * batch,))
    parts = writer.ops("Split", places, rows, writer.ints(*[batch] * places), axis=0)
    outputs = []
    for name, array in source.arrays.items():
        shape: Shape = array.shape
        data = writer.input(name, array.dtype, shape)
        outputs += [
            writer.named(writer.op("Gather", data, part, axis=0), output_name(name, k)) for k, part in enumerate(parts)
        ]
    return writer.model("gathering", outputs)


def output_name(feed: str, place: int) -> str:
    return f"{feed}.{place}"
