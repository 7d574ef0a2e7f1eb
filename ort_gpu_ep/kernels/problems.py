"""Problems: one node with its sizes, element types and attributes, and the forms that it can be computed in.

The records of kernels list them (`cases`, in `ops/`); the doctor's probes, the ops' tests, replay and the benchmarks of
kernels read them, and make of a problem what they need: values, a graph, or a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ort_gpu_ep.ir.graph import Array, Graph, Node, Value
from ort_gpu_ep.ir.types import BY_NAME, Shape, dtype_of

if TYPE_CHECKING:
    import onnx

LAST = (0, 2, 3, 1)
"""Transpose's perm from [N, C, H, W] to [N, H, W, C]."""


@dataclass(frozen=True, slots=True)
class Random:
    """An input that is drawn anew each time: standard-normal, or uniform integers, low <= i < high.

    scale: what standard-normal numbers are multiplied by. constant: the model has it as a constant; else a run brings it.
    density: the share of its numbers that are not zero.
    """

    shape: Shape
    dtype: str = "float32"
    low: int | None = None
    high: int = 0
    scale: float = 1.0
    constant: bool = False
    density: float = 1.0

    def draw(self, rng: np.random.Generator) -> Array:
        """Numbers of this shape and type."""
        if self.low is None:
            array: Array = (np.float32(self.scale) * rng.standard_normal(self.shape, np.float32)).astype(self.dtype)
        else:
            array = rng.integers(self.low, self.high, self.shape).astype(self.dtype)
        return array if self.density == 1.0 else array * (rng.random(self.shape) < self.density).astype(self.dtype)


@dataclass(frozen=True, slots=True)
class Known:
    """An input that the host knows before the run. values: a number, or lists of them."""

    values: Any
    dtype: str = "int64"


def normal(*shape: int) -> Random:
    return Random(shape)


def weights(*shape: int, density: float = 1.0) -> Random:
    """Standard-normal numbers that the model holds."""
    return Random(shape, constant=True, density=density)


def integers(low: int, high: int, *shape: int, dtype: str = "int64") -> Random:
    return Random(shape, dtype, low, high)


@dataclass(frozen=True, slots=True)
class Problem:
    """One node.

    tolerance: of its results, relative to the largest value. forms: its kernels' that are to be right, each by itself;
    empty for the one that is chosen. last: None, or the positions of inputs that are stored [N, H, W, C], as the layout
    pass has it; then outputs whose channels are fours are stored so, too. Shapes are always those of [N, C, H, W].
    """

    op: str
    version: int
    inputs: tuple[Random | Known | None, ...]
    outputs: int = 1
    tolerance: float = 2e-5
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    forms: tuple[str, ...] = ()
    last: tuple[int, ...] | None = None

    def __str__(self) -> str:
        shapes = " ".join(str(list(operand.shape)) for operand in self.inputs if isinstance(operand, Random))
        return f"{self.op} {shapes} {dict(self.attributes) or ''}{'' if self.last is None else ', channels last'}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of its inputs; empty for one that is left out."""
        return tuple("" if operand is None else f"x{k}" for k, operand in enumerate(self.inputs))

    @property
    def fed(self) -> tuple[int, ...]:
        """The positions of the inputs that a run brings."""
        return tuple(k for k, operand in enumerate(self.inputs) if isinstance(operand, Random) and not operand.constant)

    def draw(self, rng: np.random.Generator) -> list[Array | None]:
        """Values of all inputs."""
        return [
            operand.draw(rng)
            if isinstance(operand, Random)
            else None
            if operand is None
            else np.array(operand.values, operand.dtype)
            for operand in self.inputs
        ]

    def graph(self, values: Sequence[Array | None]) -> tuple[Graph, list[Array]]:
        """The node by itself, with its constants of these values, and what a run of it brings; both as they are
        stored."""
        stored = [
            np.ascontiguousarray(array.transpose(LAST)) if k in (self.last or ()) and array is not None else array
            for k, array in enumerate(values)
        ]
        names, fed, outputs = self.names, self.fed, tuple(f"y{k}" for k in range(self.outputs))
        edges = {
            name: Value(name, dtype_of(array), array.shape, None if k in fed else _giver(array))
            for k, (name, array) in enumerate(zip(names, stored, strict=True))
            if array is not None
        }
        node = Node(
            self.op,
            names,
            outputs,
            domain=self.domain,
            version=self.version,
            attributes=self.attributes,
            channels_last=self.last is not None,
        )
        feeds = [np.asarray(stored[k]) for k in fed]
        return Graph(str(self), tuple(names[k] for k in fed), outputs, (node,), edges), feeds

    def stored(self, result: Array) -> Array:
        """An output as the node stores it."""
        if self.last is None or result.ndim != len(LAST) or result.shape[1] % 4:
            return result
        return result.transpose(LAST)

    def model(self, values: Sequence[Array | None] = ()) -> onnx.ModelProto:
        """As an ONNX file, over [N, C, H, W]. values: of the inputs that the model holds; without them a run brings
        what is drawn."""
        from onnx import ValueInfoProto, helper, numpy_helper

        names, outputs = self.names, [f"y{k}" for k in range(self.outputs)]
        constants = {
            name: np.array(operand.values, operand.dtype) if isinstance(operand, Known) else np.asarray(values[k])
            for k, (name, operand) in enumerate(zip(names, self.inputs, strict=True))
            if isinstance(operand, Known) or (operand is not None and operand.constant and values)
        }
        fed = [
            helper.make_tensor_value_info(name, BY_NAME[operand.dtype].onnx, operand.shape)
            for name, operand in zip(names, self.inputs, strict=True)
            if isinstance(operand, Random) and name not in constants
        ]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attributes)
        initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        graph = helper.make_graph([node], "problem", fed, [ValueInfoProto(name=name) for name in outputs], initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid(self.domain, self.version)])


def _giver(array: Array) -> Callable[[], Array]:
    return lambda: array


def problem(
    op: str,
    version: int,
    *inputs: Random | Known | None,
    outputs: int = 1,
    tolerance: float = 2e-5,
    forms: Sequence[str] = (),
    last: tuple[int, ...] | None = None,
    **attributes: Any,
) -> Problem:
    """A row of the table."""
    return Problem(op, version, inputs, outputs, tolerance, attributes, forms=tuple(forms), last=last)
