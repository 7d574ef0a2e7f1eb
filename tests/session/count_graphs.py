"""Models in which the data decide sizes: NonZero, Compress, Unique, NonMaxSuppression, and what is calculated with what
they give.

A value is known for every run while the model grows (onnxruntime's CPU computes it, node by node), so that each node is
a legal one in all of them. The runs differ in how much is chosen: nothing, one, some, all. `python -m
tests.session.fuzz --counts --count 2000` runs many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from tests.session.fuzz_models import FuzzModel
from tests.session.random_graphs import Array, quiet
from tests.session.size_graphs import Value

RUNS, MOST = 5, 4096
SHARES = (0.0, 0.02, 0.3, 0.6, 1.0)
"""Of elements that are chosen."""

UNARY = ("Relu", "Neg", "Exp", "Sigmoid", "Abs", "Tanh", "Sqrt", "Identity")
BINARY = ("Add", "Mul", "Sub", "Max", "Greater", "Equal")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceProd")


class CountModel:
    """A model that grows. values: all so far; chosen: those whose size the data decide."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng((seed, 11))
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []
        self.declared: list[onnx.ValueInfoProto] = []
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.chosen: list[Value] = []
        self.names = 0
        is_open = self.rng.random() < 0.5
        self.rows = (
            [int(self.rng.integers(2, 30)) for _ in range(RUNS)] if is_open else [int(self.rng.integers(2, 30))] * RUNS
        )
        self.width = int(self.pick((3, 4, 8, 16)))
        shares = [float(self.rng.permutation(SHARES)[0]) for _ in range(RUNS)]
        self.x = self.given([self.rng.standard_normal((n, self.width)).astype("f") for n in self.rows], is_open)
        self.mask = self.given(
            [self.rng.random(n) < share for n, share in zip(self.rows, shares, strict=True)], is_open
        )
        self.grid = self.given(
            [(self.rng.random((3, n)) < share).astype("i8") for n, share in zip(self.rows, shares, strict=True)],
            is_open,
        )
        centers = [self.rng.random((n, 4)).astype("f") for n in self.rows]
        self.boxes = self.given(
            [np.concatenate([c[:, :2], c[:, :2] + 0.05 + c[:, 2:] / 2], 1)[None] for c in centers], is_open
        )
        self.scores = self.given(
            [self.rng.random((1, 2, n)).astype("f") * share for n, share in zip(self.rows, shares, strict=True)],
            is_open,
        )

    def pick(self, from_these: Sequence[Any]) -> Any:
        return from_these[int(self.rng.integers(len(from_these)))]

    def given(self, arrays: list[Array], is_open: bool) -> Value:
        value = Value(f"i{len(self.inputs)}", tuple(arrays))
        shape = [
            d if not is_open or all(a.shape[k] == d for a in arrays) else "N" for k, d in enumerate(arrays[0].shape)
        ]
        self.declared.append(
            helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(arrays[0].dtype), shape)
        )
        self.inputs.append(value)
        return value

    def constant(self, content: Any, dtype: str = "int64") -> Value:
        self.names += 1
        array = np.array(content, dtype)
        self.held.append(numpy_helper.from_array(array, f"c{self.names}"))
        return Value(f"c{self.names}", (array,) * RUNS)

    def add(self, op: str, *inputs: Value | None, outputs: int = 1, **attributes: Any) -> list[Value]:
        """The outputs of another node. Raises what onnxruntime raises where it is no legal one in a run."""
        self.names += 1
        names = [f"v{self.names}_{k}" for k in range(outputs)]
        node = helper.make_node(op, [v.name if v else "" for v in inputs], names, **attributes)
        there = {v.name: v for v in inputs if v is not None}
        declared = [
            helper.make_tensor_value_info(
                v.name, helper.np_dtype_to_tensor_dtype(v.arrays[0].dtype), [None] * v.arrays[0].ndim
            )
            for v in there.values()
        ]
        graph = helper.make_graph([node], "g", declared, [helper.make_empty_tensor_value_info(n) for n in names])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        session = onnxruntime.InferenceSession(model.SerializeToString(), quiet(), providers=["CPUExecutionProvider"])
        runs = [session.run(None, {n: v.arrays[k] for n, v in there.items()}) for k in range(RUNS)]
        values = [Value(name, tuple(run[k] for run in runs)) for k, name in enumerate(names)]
        if any(a.size > MOST or (a.dtype.kind == "f" and not np.isfinite(a).all()) for v in values for a in v.arrays):
            raise ValueError("too much")
        self.nodes.append(node)
        self.values += values
        return values

    # ---- what chooses

    def choose(self) -> None:
        kind = self.pick(("NonZero", "NonZero", "NonZero", "Compress", "Unique", "NonMaxSuppression"))
        if kind == "NonZero":
            source = self.pick([self.mask, self.mask, self.grid, self.x, *(v for v in self.chosen if v.arrays[0].ndim)])
            if source.kind == "float32" and source is not self.mask:
                (source,) = self.add("Greater", source, self.constant(self.pick((-1.0, 0.3, 1.5)), "float32"))
            self.chosen += self.add("NonZero", source)
        elif kind == "Compress":
            self.chosen += self.add("Compress", self.x, self.mask, axis=0)
        elif kind == "Unique":
            (source,) = self.add("Cast", self.pick((self.grid, self.x)), to=onnx.TensorProto.INT64)
            self.chosen += self.add("Unique", source, outputs=4, sorted=int(self.rng.integers(2)))[: self.pick((1, 4))]
        else:
            self.chosen += self.add(
                "NonMaxSuppression",
                self.boxes,
                self.scores,
                self.constant([self.pick((3, 100))]),
                self.constant([0.5], "float32"),
                self.constant([0.2], "float32"),
            )

    # ---- what is done with it

    def one(self) -> Value:
        return self.pick(self.chosen[-6:] if self.rng.random() < 0.7 else self.chosen)

    def grow(self) -> None:
        steps: list[Callable[[Value], list[Value]]] = [
            self.unary,
            self.binary,
            self.rows_of,
            self.product,
            self.moved,
            self.viewed,
            self.sliced,
            self.joined,
            self.reduced,
            self.shared,
            self.scattered,
            self.cast,
            self.expanded,
            self.best,
            self.padded,
            self.told,
            self.ranged,
            self.picked,
            self.steered,
            self.cut,
        ]
        while not self.chosen:
            self.attempt(self.choose)
        for _ in range(int(self.rng.integers(4, 16))):
            if self.rng.random() < 0.15:
                self.attempt(self.choose)
            self.attempt(lambda: self.chosen.extend(self.pick(steps)(self.one())))

    def attempt(self, step: Callable[[], Any]) -> None:
        try:
            step()
        except (ValueError, IndexError, *_refusals()):
            pass

    def unary(self, v: Value) -> list[Value]:
        return self.add(self.pick(UNARY), v)

    def binary(self, v: Value) -> list[Value]:
        others = [w for w in self.chosen if w.kind == v.kind]
        other = self.pick([*others, self.constant(2, v.kind)])
        return self.add(self.pick(BINARY), *((v, other) if self.rng.random() < 0.5 else (other, v)))

    def rows_of(self, v: Value) -> list[Value]:
        return self.add(
            "Gather",
            self.pick((self.x, v)),
            self.pick([w for w in self.chosen if w.kind == "int64"]),
            axis=int(self.rng.integers(2)),
        )

    def product(self, v: Value) -> list[Value]:
        k, columns = v.arrays[0].shape[-1], int(self.pick((1, 4, 7, 16)))
        if v.kind == "float32" and v.arrays[0].ndim == 2 and self.rng.random() < 0.2:
            return self.add("MatMul", *self.add("Transpose", v), v)
        if v.kind != "float32" or any(a.shape[-1] != k for a in v.arrays):
            return self.add("MatMul", *self.rng.permutation(np.array([v, self.pick(self.chosen)], object)))
        w = self.constant(self.rng.standard_normal((k, columns)), "float32")
        return (
            self.add("Gemm", v, w, self.constant(self.rng.standard_normal(columns), "float32"))
            if self.rng.random() < 0.3
            else self.add("MatMul", v, w)
        )

    def moved(self, v: Value) -> list[Value]:
        return self.add("Transpose", v, perm=[int(k) for k in self.rng.permutation(v.arrays[0].ndim)])

    def viewed(self, v: Value) -> list[Value]:
        kind, rank = self.pick(("Unsqueeze", "Squeeze", "Flatten", "Reshape", "Reshape")), v.arrays[0].ndim
        if kind == "Flatten":
            return self.add(kind, v, axis=int(self.rng.integers(rank + 1)))
        if kind == "Reshape":
            return self.add(
                kind, v, self.constant(self.pick(([-1], [-1, 1], [1, -1], [0, -1], [-1, self.width], [-1, 2])))
            )
        return self.add(kind, v, self.constant([int(self.rng.integers(rank + 1))]))

    def sliced(self, v: Value) -> list[Value]:
        start, end, step = self.pick(
            ((0, 3, 1), (1, 2**31, 1), (0, 2**31, 2), (-3, 2**31, 1), (0, -1, 1), (2**31 - 1, -(2**31), -1))
        )
        return self.add(
            "Slice", v, *(self.constant([k]) for k in (start, end, int(self.rng.integers(v.arrays[0].ndim)), step))
        )

    def joined(self, v: Value) -> list[Value]:
        others = [w for w in self.chosen if w.kind == v.kind and w.arrays[0].ndim == v.arrays[0].ndim]
        axis, chosen = (
            int(self.rng.integers(v.arrays[0].ndim)),
            [v, *(self.pick(others) for _ in range(int(self.rng.integers(1, 3))))],
        )
        if any(
            np.delete(w.arrays[k].shape, axis).tolist() != np.delete(v.arrays[k].shape, axis).tolist()
            for w in chosen
            for k in range(RUNS)
        ):
            return []  # onnxruntime takes empty parts of any shape, and leaves elements as it finds them in memory
        return self.add("Concat", *chosen, axis=axis)

    def reduced(self, v: Value) -> list[Value]:
        op = self.pick((*REDUCTIONS, "ArgMax", "CumSum"))
        axis, keep = int(self.rng.integers(v.arrays[0].ndim)), int(self.rng.integers(2))
        if op == "ArgMax":
            return self.add(op, v, axis=axis, keepdims=keep)
        return (
            self.add(op, v, self.constant(axis))
            if op == "CumSum"
            else self.add(op, v, self.constant([axis]), keepdims=keep)
        )

    def shared(self, v: Value) -> list[Value]:
        axis = int(self.rng.integers(v.arrays[0].ndim))
        width = v.arrays[0].shape[-1]
        if self.rng.random() < 0.3 and all(a.shape[-1] == width for a in v.arrays):
            return self.add("LayerNormalization", v, self.constant(self.rng.random(width), "float32"), axis=-1)
        return self.add(self.pick(("Softmax", "LogSoftmax")), v, axis=axis)

    def scattered(self, v: Value) -> list[Value]:
        """Rows of the places that a NonZero gives, added up in a tensor, as experts' results are."""
        (places,) = self.add("NonZero", self.mask)
        (places,) = self.add("Squeeze", places, self.constant([0]))
        (rows,) = self.add("Gather", self.x, places, axis=0)
        (rows,) = self.add("Mul", rows, rows)
        (index,) = self.add("Unsqueeze", places, self.constant([1]))
        reduction = self.pick(("none", "add", "mul"))
        if self.rng.random() < 0.5:
            return self.add("ScatterND", self.x, index, rows, reduction=reduction)
        (shape,) = self.add("Shape", rows)
        (index,) = self.add("Expand", index, shape)
        return self.add("ScatterElements", self.x, index, rows, axis=0, reduction=reduction)

    def cast(self, v: Value) -> list[Value]:
        return self.add(
            "Cast",
            v,
            to=int(
                self.pick(
                    (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL)
                )
            ),
        )

    def expanded(self, v: Value) -> list[Value]:
        (shape,) = self.add("Shape", self.pick(self.chosen))
        if self.rng.random() < 0.3:
            return self.add("ConstantOfShape", shape, value=helper.make_tensor("v", 1, [1], [2.5]))
        return self.add("Expand", v, shape)

    def best(self, v: Value) -> list[Value]:
        (size,) = self.add("Shape", v)
        axis = int(self.rng.integers(v.arrays[0].ndim))
        if not all(a.size for a in v.arrays):
            raise ValueError("onnxruntime 1.30 ends by SIGFPE at a TopK of nothing, where it has many threads")
        (size,) = self.add("Slice", size, self.constant([axis]), self.constant([axis + 1]))
        (k,) = self.add("Min", size, self.constant([self.pick((1, 4))]))
        return self.add("TopK", v, k, outputs=2, axis=axis)

    def padded(self, v: Value) -> list[Value]:
        """To a fixed number of rows, as detectors end."""
        (whole,) = self.add("Slice", v, self.constant([0]), self.constant([6]), self.constant([0]))
        (size,) = self.add("Shape", whole, start=0, end=1)
        (missing,) = self.add("Sub", self.constant([6]), size)
        rank = v.arrays[0].ndim
        (pads,) = self.add(
            "Concat",
            self.constant([0] * rank),
            missing,
            *([self.constant([0] * (rank - 1))] if rank > 1 else []),
            axis=0,
        )
        return self.add("Pad", whole, pads)

    def told(self, v: Value) -> list[Value]:
        """The size itself, calculated with."""
        (size,) = self.add(self.pick(("Shape", "Size")), v)
        if self.rng.random() < 0.5:
            (size,) = self.add(self.pick(("Add", "Mul", "Sub")), size, self.constant(3))
        return self.add("Cast", size, to=onnx.TensorProto.FLOAT) if self.rng.random() < 0.3 else [size]

    def ranged(self, v: Value) -> list[Value]:
        (size,) = self.add("Size", v)
        return self.add("Range", self.constant(0), size, self.constant(1))

    def picked(self, v: Value) -> list[Value]:
        indices = self.pick([w for w in self.chosen if w.kind == "int64"])
        if self.rng.random() < 0.5:
            return self.add("GatherElements", v, indices, axis=0)
        (places,) = self.add("Transpose", indices)
        return self.add("GatherND", self.pick((self.x, self.grid, v)), places)

    def steered(self, v: Value) -> list[Value]:
        """A decision on the size."""
        (size,) = self.add("Size", v)
        (test,) = self.add(self.pick(("Greater", "Equal")), size, self.constant(self.pick((0, 1, 5))))
        return self.add("Where", test, self.constant(1.5, "float32"), self.constant(-1.0, "float32"))

    def cut(self, v: Value) -> list[Value]:
        axis = int(self.rng.integers(v.arrays[0].ndim))
        if min(a.shape[axis] for a in v.arrays) < 2:
            return []  # more parts than there are is an error, of which the CPU tells
        return self.add("Split", v, outputs=2, axis=axis, num_outputs=2)

    def model(self) -> FuzzModel:
        used = {name for node in self.nodes for name in node.input}
        last = [v for v in self.values if v.name not in used]
        outputs = [*last[-4:], *([self.pick(self.chosen)] if self.rng.random() < 0.4 else [])]
        names = list(dict.fromkeys(v.name for v in outputs))
        live, nodes = set(names), list[onnx.NodeProto]()
        for node in reversed(self.nodes):
            if live.intersection(node.output):
                nodes.append(node)
                live |= set(node.input)
        used = {name for node in nodes for name in node.input}
        graph = helper.make_graph(
            nodes[::-1],
            "counts",
            [d for d in self.declared if d.name in used],
            [helper.make_empty_tensor_value_info(n) for n in names],
            [c for c in self.held if c.name in used],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        runs = [{v.name: v.arrays[k] for v in self.inputs if v.name in used} for k in range(RUNS)]
        return FuzzModel(
            model.SerializeToString(), [runs[int(k)] for k in self.rng.permutation(RUNS)], "counts", (), "normal"
        )


def _refusals() -> tuple[type[Exception], ...]:
    """What onnxruntime raises for a node that is none."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented, state.RuntimeException


def count_model(seed: int) -> FuzzModel:
    """The model of a seed: the same one with the same version of numpy."""
    made = CountModel(seed)
    made.grow()
    return made.model()
