"""Runs that bypass ONNX Runtime, if one partition gives all outputs of the session and has run with inputs of these
sizes before.

ONNX Runtime has then nothing left to check or to do but to make values, ask for memory and copy, call by call through
Python: 0.1 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ort_gpu_ep import private
from ort_gpu_ep.ir.types import MAX_SHAPES, TensorType
from ort_gpu_ep.plugin.bound import BoundRun, only_partition
from ort_gpu_ep.plugin.compute import Partition
from ort_gpu_ep.plugin.state import COPIES, SessionState

if TYPE_CHECKING:
    from ort_gpu_ep.ir.graph import Array
    from ort_gpu_ep.plugin.fallback import Fallback
    from ort_gpu_ep.runtime.backend import Executable
    from ort_gpu_ep.runtime.runs import Steady

RUNS_BEFORE = 2
"""Runs of the same sizes through ONNX Runtime, before buffers are kept for them."""

Sizes: TypeAlias = tuple[tuple[Any, tuple[int, ...]], ...]
"""(numpy's element type, shape) of each input of the session."""

Key: TypeAlias = tuple[Sizes, tuple[str, ...]]
"""What runs are alike in: their sizes, and the names of the outputs that are asked for, none for all."""


class Form:
    """Runs with inputs of certain sizes that give certain outputs. wanted: positions of those."""

    __slots__ = ("counts", "crossings", "from_buffer", "makes", "outputs", "program", "steady", "wanted")

    def __init__(self, program: Executable, steady: Steady, wanted: Sequence[int]) -> None:
        # only here: with isolation=process no driver's library comes into this process
        from ort_gpu_ep.webgpu.library import ffi

        self.from_buffer = ffi.from_buffer
        inputs, outputs = steady.sent, steady.filled.outputs
        self.steady, self.wanted, self.outputs = steady, wanted, len(outputs)
        self.program = program
        self.makes = [(outputs[i].shape, outputs[i].dtype.numpy) for i in wanted]
        targets = [outputs[i] for i in wanted]
        self.crossings = [
            *(("host_to_device", t.nbytes) for t in inputs),
            *(("device_to_host", t.nbytes) for t in targets),
        ]
        self.counts = len(inputs), sum(t.nbytes for t in inputs), len(targets), sum(t.nbytes for t in targets)


class DirectRun:
    """One run. refused: nothing was done. results: in the order of form.wanted."""

    __slots__ = ("arrays", "form", "refused", "results")

    def __init__(self, form: Form, arrays: list[Array]) -> None:
        self.form, self.arrays, self.refused = form, arrays, False
        self.results: list[Array] = []

    def on_gpu(self) -> None:
        form, from_buffer = self.form, self.form.from_buffer
        self.results = [np.empty(shape, dtype) for shape, dtype in form.makes]
        targets: list[Any] = [None] * form.outputs
        for position, result in zip(form.wanted, self.results, strict=True):
            targets[position] = from_buffer(result)
        self.refused = not form.steady.run([from_buffer(array) for array in self.arrays], targets)

    def on_cpu(self, fallback: Fallback) -> None:
        inputs = [
            (t, a.reshape(-1).view(np.uint8)) for t, a in zip(self.form.steady.filled.inputs, self.arrays, strict=True)
        ]
        values = fallback.run(inputs)
        self.refused, self.results = False, [values[i].numpy() for i in self.form.wanted]


class Direct:
    """Of one session, which it keeps alive while a run is under way. Thread-safe, as far as Partition and Steady
    are."""

    def __init__(self, session: Any, partition: Partition) -> None:
        self._alive, self.partition, self._state = private.behind(session), partition, partition.state
        self._bound_runs = 0  # of onnxruntime's
        self._seen: dict[Sizes, int] = {}  # how many of its runs had these
        self._names = tuple(i.name for i in session.get_inputs())
        graph = partition.graph
        self._read = tuple(self._names.index(name) for name in graph.inputs)
        self._given = {o.name: graph.outputs.index(o.name) for o in session.get_outputs()}

    @staticmethod
    def of(session: Any, state: SessionState | None) -> Direct | None:
        """None where runs of a session need ONNX Runtime."""
        partition = only_partition(session, state)
        return Direct(session, partition) if partition is not None else None

    def run(self, output_names: Sequence[str] | None, feeds: Any) -> list[Array] | None:
        """What the session's `run` gives. None where ONNX Runtime is to do it. Raises as the partition does in strict
        mode."""
        arrays, partition = self._arrays(feeds), self.partition
        if arrays is None:
            return None
        form = partition.forms.get((tuple([(a.dtype, a.shape) for a in arrays]), tuple(output_names or ())))
        if form is None or form.program is not partition.program or partition.avoids_the_gpu():
            return None
        run = DirectRun(form, [arrays[i] for i in self._read])
        partition.perform(run)
        if run.refused:
            return None
        partition.runs += 1
        COPIES.add_run(*form.counts)
        self._state.count_run(form.counts, form.crossings)
        return run.results

    def passed(self, output_names: Sequence[str] | None, feeds: Any) -> None:
        """ONNX Runtime has answered a run with these inputs and outputs: further ones go past it, where the program
        keeps buffers for their sizes."""
        arrays, forms, program = self._arrays(feeds), self.partition.forms, self.partition.program
        names = tuple(output_names or ())
        if arrays is None or program is None or len(set(names)) < len(names):
            return
        sizes = tuple([(a.dtype, a.shape) for a in arrays])
        seen = self._seen[sizes] = self._seen.get(sizes, 0) + 1
        if len(self._seen) > MAX_SHAPES:
            self._seen.pop(next(iter(self._seen)), None)
        with self._state.allowance:
            steady = program.steady(self._types(arrays)) if seen >= RUNS_BEFORE else None
        if steady is not None:
            for key in [key for key, form in list(forms.items()) if form.steady.closed]:
                forms.pop(key, None)
            forms[sizes, names] = Form(program, steady, [self._given[name] for name in names or self._given])

    def bound_run(
        self, dtypes: Mapping[str, Any], given: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> BoundRun | None:
        """Runs with an IO binding, see BoundRun.of; None where ONNX Runtime is to make them."""
        return BoundRun.of(self.partition, dtypes, given, wanted) if self._bound_runs >= RUNS_BEFORE else None

    def bound_passed(self) -> None:
        """ONNX Runtime has made a run with an IO binding."""
        self._bound_runs += 1

    def _arrays(self, feeds: Any) -> list[Array] | None:
        """The inputs in the session's order, if they are dense arrays and no others are given."""
        if type(feeds) is not dict or len(feeds) != len(self._names):
            return None
        arrays = []
        for name in self._names:
            array = feeds.get(name)
            if type(array) is not np.ndarray or not array.flags.c_contiguous:
                return None
            arrays.append(array)
        return arrays

    def _types(self, arrays: Sequence[Array]) -> tuple[TensorType, ...]:
        """Of what the partition reads."""
        values = self.partition.graph.values
        dtypes = [values[name].dtype for name in self.partition.graph.inputs]
        return tuple(
            TensorType(dtype, arrays[i].shape) for dtype, i in zip(dtypes, self._read, strict=True) if dtype is not None
        )
