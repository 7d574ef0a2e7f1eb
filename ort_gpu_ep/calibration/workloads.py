"""The graphs that are measured for each family of kernels, in growing sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ort_gpu_ep.ir.graph import Array, Attribute, Graph, Node, Value
from ort_gpu_ep.ir.types import FLOAT32, Shape, dtype_of


def random(shape: Shape) -> Array:
    """Standard-normal float32: 16 Ki random numbers over and over, which is enough for a GPU and quick for the host."""
    return np.resize(np.random.default_rng(7).standard_normal(1 << 14, np.float32), shape)


def single(
    op: str, x: Shape, constants: Sequence[Array] = (), version: int = 13, outputs: int = 1, **attributes: Attribute
) -> Graph:
    """A graph of one node, whose first input is given to each run."""
    names = tuple(f"w{i}" for i in range(len(constants)))
    values = {n: Value(n, dtype_of(a), a.shape, _giver(a)) for n, a in zip(names, constants, strict=True)}
    written = ("y", "other")[:outputs]
    node = Node(op, ("x", *names), written, attributes=attributes, version=version, id=0)
    return Graph(f"calibration/{op}", ("x",), written, (node,), {"x": Value("x", FLOAT32, x), **values})


def chain(length: int) -> Graph:
    """Small kernels, each of which waits for the one before it."""
    names = ["x", *(f"h{i}" for i in range(1, length)), "y"]
    nodes = tuple(Node("Neg", (names[i],), (names[i + 1],), version=13, id=i) for i in range(length))
    return Graph("calibration/chain", ("x",), ("y",), nodes, {"x": Value("x", FLOAT32, (64,))})


def _giver(array: Array) -> Callable[[], Array]:
    return lambda: array


@dataclass(frozen=True)
class Workload:
    """A family's graphs. sizes: ascending; the work of `graph(size)` grows as size ** power."""

    family: str
    sizes: tuple[int, ...]
    power: int
    graph: Callable[[int], Graph]


def _product(n: int) -> Graph:
    return single("MatMul", (n, n), [random((n, n))])


def _elementwise(n: int) -> Graph:
    return single("Add", (n,), [random((n,))], version=14)


def _recurrent(units: int) -> Graph:
    """A layer of so many units, 16 steps for one row of a batch; so small a layer of this cell has no faster form."""
    weights = [random((1, 3 * units, units)) / 8, random((1, 3 * units, units)) / 8]
    return single("GRU", (16, 1, units), weights, version=14, hidden_size=units)


def _recurrent_held(units: int) -> Graph:
    """The same of a cell whose weights fit into registers, while the layer is small enough."""
    weights = [random((1, 4 * units, units)) / 8, random((1, 4 * units, units)) / 8, random((1, 8 * units))]
    return single("LSTM", (16, 1, units), weights, version=14, hidden_size=units)


def _recurrent_steps(units: int) -> Graph:
    """A few steps of a layer of many units."""
    weights = [random((1, 4 * units, 4)), random((1, 4 * units, units)) / 8]
    return single("LSTM", (4, 1, 4), weights, version=14, hidden_size=units)


def _reduction(rows: int) -> Graph:
    return single("ReduceSum", (rows, 256), [np.array([1])])


def _reduction_held(rows: int) -> Graph:
    return single("Softmax", (rows, 256))


def _matvec(n: int) -> Graph:
    return single("MatMul", (1, n), [random((n, n))])


def _direct(side: int) -> Graph:
    """A depthwise convolution, 3 x 3 over 32 channels."""
    return single(
        "Conv",
        (1, 32, side, side),
        [random((32, 1, 3, 3))],
        version=11,
        group=32,
        kernel_shape=(3, 3),
        pads=(1, 1, 1, 1),
    )


def _movement(n: int) -> Graph:
    return single("Transpose", (n, n), perm=(1, 0))


def _gather(rows: int) -> Graph:
    return single("Gather", (rows, 64), [np.random.default_rng(8).integers(0, rows, rows)])


def _pool(side: int) -> Graph:
    return single("MaxPool", (1, 32, side, side), version=12, kernel_shape=(3, 3), pads=(1, 1, 1, 1))


def _sorting(rows: int) -> Graph:
    return single("TopK", (rows, 256), [np.array([8])], version=11, outputs=2)


WORKLOADS = (
    Workload("product", (128, 192, 384, 768, 1536), 3, _product),
    Workload("elementwise", (1 << 16, 1 << 19, 1 << 22, 1 << 24), 1, _elementwise),
    Workload("reduction_held", (256, 2048, 16384, 65536), 1, _reduction_held),
    Workload("reduction", (256, 2048, 16384, 65536), 1, _reduction),
    Workload("matvec", (256, 1024, 2048, 4096), 2, _matvec),
    Workload("direct", (28, 112, 224, 448), 2, _direct),
    Workload("recurrent", (32, 64, 128), 2, _recurrent),
    Workload("recurrent_held", (32, 64), 2, _recurrent_held),
    Workload("recurrent_steps", (512, 1024), 2, _recurrent_steps),
    Workload("movement", (128, 512, 1024, 4096), 2, _movement),
    Workload("pool", (28, 56, 112, 448), 2, _pool),
    Workload("gather", (1024, 8192, 65536), 1, _gather),
    Workload("sorting", (16, 128, 1024), 1, _sorting),
)
"""The most important first: time may run out."""
