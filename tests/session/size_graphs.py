"""Models that calculate with sizes: chains of shape arithmetic over open sizes and integers of a run, whose results
steer what data becomes.

A value is known for every run while the model grows (onnxruntime's CPU computes it, node by node), so that each node is
a legal one: no division by 0, no float beyond an integer's range, no negative size. Results are outputs themselves,
steer a Reshape, Expand, Slice, Pad, Resize, Range, Tile, TopK and others, or are calculated with data. `python -m
tests.session.fuzz --sizes --count 5000` runs many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from tests.session.fuzz_models import FuzzModel
from tests.session.random_graphs import Array, quiet

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33)
RUNS = 5
INTEGERS, FLOATS = ("int64", "int32"), ("float32", "float64", "float16")
FLOAT_KINDS = ("float32", "float32", "float32", "float64", "float16")
MOST = 24
"""Elements of a value of shape arithmetic."""

OPSETS = (13, 17, 18, 21)


@dataclass(frozen=True)
class Value:
    """A value of the model: what it is in each run."""

    name: str
    arrays: tuple[Array, ...]

    @property
    def kind(self) -> str:
        return str(self.arrays[0].dtype.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """In all runs; else there is none."""
        return tuple(self.arrays[0].shape)

    @property
    def is_fixed(self) -> bool:
        return all(a.shape == self.arrays[0].shape for a in self.arrays)

    def all(self, test: Callable[[Array], Any]) -> bool:
        return all(bool(np.all(test(a))) for a in self.arrays)


class SizeModel:
    """A model that grows. numbers: values of shape arithmetic so far."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng((seed, 7))
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []
        self.declared: list[onnx.ValueInfoProto] = []
        self.opset = self.pick(OPSETS)
        self.names = 0
        self.outputs: list[str] = []
        self.x = self.data([int(self.rng.integers(2, 4))], (None, None))
        self.image = self.data([1, 2], (None, None))
        self.numbers: list[Value] = []
        for _ in range(int(self.rng.integers(0, 3))):
            self.numbers.append(self.integers())
        if self.maybe(0.3):
            self.numbers.append(self.floats())

    # ---- chance

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def maybe(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    # ---- inputs and constants

    def feed(self, arrays: Sequence[Array], declared: Sequence[int | str | None]) -> Value:
        name = f"i{len(self.declared)}"
        kind = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
        self.declared.append(helper.make_tensor_value_info(name, kind, declared))
        return Value(name, tuple(arrays))

    def data(self, front: Sequence[int], opened: Sequence[None]) -> Value:
        sizes = [tuple(self.pick(SIZES) for _ in opened) for _ in range(RUNS)]
        arrays = [self.rng.standard_normal((*front, *size)).astype("f") for size in sizes]
        return self.feed(arrays, [*front, *(f"n{len(self.declared)}_{k}" for k in range(len(opened)))])

    def integers(self) -> Value:
        """Integers that a run brings: some change from run to run, now and then large ones."""
        count, kind = self.pick((0, 1, 2, 3)), self.pick(INTEGERS)
        largest = self.pick((5, 5, 5, 40, 2**31 - 1))
        shape = (count,) if count else ()
        kept = self.rng.integers(-largest if self.maybe(0.4) else 1, largest + 1, shape)
        arrays = [
            np.asarray(kept if self.maybe(0.3) else self.rng.integers(1, largest + 1, shape), kind) for _ in range(RUNS)
        ]
        return self.feed(arrays, shape)

    def floats(self) -> Value:
        arrays = [np.asarray(self.pick((0.5, 1.0, 2.0, 1.5, -3.25)), "f") for _ in range(RUNS)]
        return self.feed(arrays, ())

    def constant(self, array: Any, kind: str = "int64") -> Value:
        made, name = np.asarray(array, kind), f"k{len(self.held)}"
        self.held.append(numpy_helper.from_array(made, name))
        return Value(name, (made,) * RUNS)

    def number(self, kind: str, shape: tuple[int, ...] = ()) -> Value:
        """A constant to calculate with."""
        if kind == "bool":
            return self.constant(self.rng.random(shape) < 0.5, "bool")
        if kind in INTEGERS:
            return self.constant(self.rng.choice((1, 2, 3, 4, 7, 8, 32, -1, 0), shape), kind)
        return self.constant(self.rng.choice((0.5, 0.25, 1.0, 2.0, 1.5, -1.0, 3.0, 0.125, 16.0), shape), kind)

    # ---- nodes

    def node(
        self, op: str, *inputs: Value | None, outputs: int = 1, keep: bool = True, **attributes: Any
    ) -> Value | None:
        """The node's first output; None, and no node, where onnxruntime refuses it in a run. keep: it may be calculated
        with."""
        found = self.computed(op, inputs, outputs, attributes)
        if found is None:
            return None
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, [i.name if i else "" for i in inputs], names, **attributes))
        values = [Value(name, arrays) for name, arrays in zip(names, found, strict=True)]
        if keep:
            self.numbers += [v for v in values if v.is_fixed and v.arrays[0].size <= MOST and v.arrays[0].size]
        return values[0]

    def computed(
        self, op: str, inputs: Sequence[Value | None], outputs: int, attributes: Mapping[str, Any]
    ) -> list[tuple[Array, ...]] | None:
        names = [f"i{k}" if i else "" for k, i in enumerate(inputs)]
        node = helper.make_node(op, names, [f"o{k}" for k in range(outputs)], **attributes)
        declared = [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(i.arrays[0].dtype), [None] * i.arrays[0].ndim
            )
            for n, i in zip(names, inputs, strict=True)
            if i
        ]
        graph = helper.make_graph([node], "g", declared, [onnx.ValueInfoProto(name=f"o{k}") for k in range(outputs)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), quiet(), providers=["CPUExecutionProvider"]
            )
            runs = [
                session.run(None, {n: i.arrays[r] for n, i in zip(names, inputs, strict=True) if i})
                for r in range(RUNS)
            ]
        except Exception:
            return None
        return [tuple(np.asarray(run[k]) for run in runs) for k in range(outputs)]

    def of_kind(self, *kinds: str) -> Value | None:
        found = [v for v in self.numbers if v.kind in kinds]
        return self.pick(found[-6:] if self.maybe(0.6) else found) if found else None

    # ---- shape arithmetic

    def shape(self) -> None:
        of = self.pick((self.x, self.image))
        if self.opset >= 15 and self.maybe(0.3):
            self.node("Shape", of, start=int(self.rng.integers(-3, 2)), end=int(self.rng.integers(2, 5)))
        else:
            self.node("Shape", of)

    def size(self) -> None:
        self.node("Size", self.pick((self.x, self.image)))

    def gather(self) -> None:
        if (v := self.pick(self.numbers)).shape:
            size = v.shape[0]
            shape = self.pick(((), (1,), (2,), (3,)))
            self.node("Gather", v, self.constant(self.rng.integers(-size, size, shape), self.pick(INTEGERS)), axis=0)

    def sliced(self) -> None:
        if (v := self.pick(self.numbers)).shape:
            step = self.pick((1, 1, 2, -1))
            start, end = (0, 2**31 - 1) if step > 0 else (-1, -(2**31))
            start = start if self.maybe() else self.pick((0, 1, -1, -2))
            self.node("Slice", v, *(self.constant([n]) for n in (start, end, self.pick(range(len(v.shape))), step)))

    def concat(self) -> None:
        kind = self.pick((*INTEGERS, *FLOATS, "bool"))
        vectors = []
        for _ in range(int(self.rng.integers(2, 4))):
            if (v := self.of_kind(kind)) is None:
                return
            if len(v.shape) != 1:
                v = self.node("Reshape", v, self.constant([-1]), keep=False)
            vectors.append(v if self.maybe(0.8) else self.number(kind, (int(self.rng.integers(1, 3)),)))
        self.node("Concat", *vectors, axis=0)

    def reranked(self) -> None:
        v = self.pick(self.numbers)
        if self.maybe(0.4):
            self.node("Unsqueeze", v, self.constant([self.pick((0, -1))]))
        elif self.maybe(0.4):
            self.node("Squeeze", v)
        elif v.arrays[0].size % 2 == 0 and self.maybe():
            self.node("Reshape", v, self.constant([2, -1]))
        else:
            self.node("Reshape", v, self.constant([-1]))

    def moved(self) -> None:
        v = self.pick(self.numbers)
        if len(v.shape) == 2 and self.maybe():
            self.node("Transpose", v, perm=[1, 0])
        elif len(v.shape) == 1:
            size, op = (
                v.shape[0],
                self.pick(
                    (
                        "Tile",
                        "Expand",
                        "Split",
                        "Pad",
                        "GatherElements",
                        "ScatterElements",
                        "ScatterND",
                        "Compress",
                        "GatherND",
                    )
                ),
            )
            places = self.rng.permutation(size)[: max(1, size // 2)]
            if op == "Tile":
                self.node("Tile", v, self.constant([2]))
            elif op == "Expand":
                self.node("Expand", v, self.constant([2, size]))
            elif op == "Split" and size % 2 == 0:
                self.node("Split", v, outputs=2, axis=0, **({"num_outputs": 2} if self.opset >= 18 else {}))
            elif op == "Pad" and v.kind != "bool":
                self.node(
                    "Pad",
                    v,
                    self.constant(self.pick(([1, 0], [0, 2], [1, 1]))),
                    *([self.number(v.kind)] if self.maybe() else []),
                )
            elif op == "GatherElements":
                self.node(op, v, self.constant(places))
            elif op == "ScatterElements":
                other = self.of_kind(v.kind)
                if other is not None and other.shape == (len(places),):
                    self.node(op, v, self.constant(places), other)
            elif op == "ScatterND":
                self.node(op, v, self.constant(places[:1].reshape(1, 1)), self.number(v.kind, (1,)))
            elif op == "Compress":
                self.node(op, v, self.constant(self.rng.random(size) < 0.6, "bool"), axis=0)
            elif op == "GatherND":
                self.node(op, v, self.constant(places.reshape(-1, 1)))

    def cast(self) -> None:
        v = self.pick(self.numbers)
        kind = self.pick((*INTEGERS, *INTEGERS, *FLOAT_KINDS, "bool"))
        if (
            v.kind in FLOATS
            and kind in INTEGERS
            and not v.all(lambda a: np.isfinite(a) & (np.abs(a) < (2**31 - 200 if kind == "int32" else 2**62)))
        ):
            return
        self.node("Cast", v, to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))

    def partner(self, v: Value) -> Value:
        """What is calculated with it: a value of its type, or a constant."""
        other = self.of_kind(v.kind) if self.maybe(0.6) else None
        if (
            other is not None
            and len(other.shape) <= 1
            and (other.shape in ((), (1,)) or v.shape in ((), (1,)) or other.shape[-1] == v.shape[-1])
        ):
            return other
        return self.number(v.kind, self.pick(((), v.shape, (1,))))

    def arithmetic(self) -> None:
        v = self.of_kind(*INTEGERS, *INTEGERS, *FLOATS)
        if v is None:
            return
        other, op = self.partner(v), self.pick(("Add", "Sub", "Mul", "Mul", "Div", "Div", "Mod", "Pow"))
        if op in ("Div", "Mod") and v.kind in INTEGERS and not other.all(lambda a: (a != 0) & (a != -1)):
            return  # by 0, or of the least integer by -1: that ends the process
        if op == "Pow":
            other = self.number(v.kind if self.maybe(0.7) else "int64")
            if v.kind in FLOATS and not (
                other.all(lambda a: np.isin(a, (1, 2))) and v.all(lambda a: np.abs(a.astype("f8")) < 2000)
            ):
                return  # a rounding of a power on the GPU, in the last place, must not become another integer
            if v.kind in INTEGERS and not (
                other.all(lambda a: (a >= 0) & (a < 4)) and v.all(lambda a: np.abs(a.astype("i8")) < 500)
            ):
                return
        if v.kind == "float16" and op in ("Div", "Pow"):
            return
        self.node(
            op,
            *((v, other) if self.maybe(0.7) or op in ("Pow", "Div", "Mod") else (other, v)),
            **({"fmod": 1} if op == "Mod" and (v.kind in FLOATS or self.maybe(0.3)) else {}),
        )

    def extremes(self) -> None:
        v = self.of_kind(*INTEGERS, *FLOATS)
        if v is not None and self.maybe(0.6):
            self.node(
                self.pick(("Max", "Min")), v, self.partner(v), *([self.number(v.kind)] if self.maybe(0.3) else [])
            )
        elif v is not None and v.all(
            lambda a: np.isfinite(a.astype("f8"))
        ):  # onnxruntime's Clip without a bound makes infinity a number
            low, high = sorted(self.rng.choice((0, 1, 2, 5, 8, 20), 2, replace=False))
            ends = [self.constant(end, v.kind) if self.maybe(0.8) else None for end in (low, high)]
            self.node("Clip", v, *ends)

    def unary(self) -> None:
        v = self.of_kind(*INTEGERS, *FLOATS)
        if v is None:
            return
        op = self.pick(
            ("Neg", "Abs", "Sign", "Identity")
            if v.kind in INTEGERS
            else ("Neg", "Abs", "Sign", "Floor", "Floor", "Ceil", "Round", "Sqrt", "Reciprocal", "IsNaN", "IsInf")
        )
        if v.kind == "float16" and op in ("Sqrt", "Reciprocal", "IsInf", "IsNaN"):
            return
        self.node(op, v)

    def compared(self) -> None:
        v = self.of_kind(*INTEGERS, *FLOATS)
        if v is not None:
            op = self.pick(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"))
            near = self.constant(self.pick(v.arrays).reshape(-1)[0], v.kind) if self.maybe(0.4) else self.partner(v)
            self.node(op, *((v, near) if self.maybe() else (near, v)))

    def logic(self) -> None:
        v = self.of_kind("bool")
        if v is not None and self.maybe(0.3):
            self.node("Not", v)
        elif v is not None:
            self.node(self.pick(("And", "Or", "Xor")), v, self.partner(v))

    def chosen(self) -> None:
        condition, v = self.of_kind("bool"), self.of_kind(*INTEGERS, *FLOATS)
        if condition is not None and v is not None:
            other = self.partner(v)
            self.node("Where", condition, *((v, other) if self.maybe() else (other, v)))

    def reduced(self) -> None:
        v = self.of_kind(*INTEGERS, *FLOATS)
        if v is None or not v.shape or v.kind == "float16":
            return
        op, keep = self.pick(("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceMean")), int(self.maybe(0.3))
        if v.kind in INTEGERS and not v.all(lambda a: np.prod(np.abs(a.astype("f8")) + 1) < 2**31):
            return  # onnxruntime saturates, kernels wrap around
        axis = self.pick(range(-len(v.shape), len(v.shape)))
        if not self.maybe(0.7):
            self.node(op, v, keepdims=keep)
        elif op == "ReduceSum" or self.opset >= 18:
            self.node(op, v, self.constant([axis]), keepdims=keep)
        else:
            self.node(op, v, keepdims=keep, axes=[axis])

    def cumulated(self) -> None:
        v = self.of_kind(*INTEGERS)
        if v is not None and len(v.shape) == 1:
            self.node("CumSum", v, self.constant(0), exclusive=int(self.maybe()), reverse=int(self.maybe(0.3)))

    def mask(self) -> None:
        """Positions before a length, as models write masks."""
        v = self.of_kind(*INTEGERS)
        if v is not None and v.arrays[0].size == 1:
            self.node(self.pick(("Less", "GreaterOrEqual")), self.constant(np.arange(MOST), v.kind), v)

    # ---- what is steered

    def scalar(self, low: int, high: int) -> Value | None:
        """An integer of the run, [1], from low to high."""
        v = self.of_kind("int64", "int64", "int32", "float32")
        v = v and self.node("Reshape", v, self.constant([-1]), keep=False)
        v = v and self.node("Gather", v, self.constant([self.pick((0, -1))]), axis=0, keep=False)
        if v is None or (v.kind == "float32" and not v.all(lambda a: np.isfinite(a) & (np.abs(a) < 2**60))):
            return None
        v = v if v.kind == "int64" else self.node("Cast", v, to=onnx.TensorProto.INT64, keep=False)
        if v is not None and not v.all(lambda a: (a >= low) & (a <= high)):
            v = self.node("Mod", v, self.constant([high - low + 1]), keep=False)
            v = v and self.node("Add", v, self.constant([low]), keep=False)
        return v

    def vector(self, count: int, low: int, high: int) -> Value | None:
        parts = [self.scalar(low, high) for _ in range(count)]
        return (
            None
            if any(p is None for p in parts)
            else self.node("Concat", *parts, axis=0, keep=False)
            if count > 1
            else parts[0]
        )

    def steered(self) -> Value | None:
        """A node on data that a value of shape arithmetic steers."""
        kind = self.pick(
            (
                "ConstantOfShape",
                "Expand",
                "Slice",
                "Pad",
                "Resize",
                "Range",
                "Tile",
                "TopK",
                "Reshape",
                "Clip",
                "Mul",
                "Pow",
                "Trilu",
                "OneHot",
                "CumSum",
                "Gather",
                "Where",
                "Range",
                "Add",
                "Mod",
                "Split",
                "Dropout",
            )
        )
        if kind in ("Clip", "Mul", "Pow", "Add"):
            v = self.of_kind("float32", "float32", "int64")
            v = v and self.node("Reshape", v, self.constant([-1]), keep=False)
            v = v and self.node("Gather", v, self.constant(0), axis=0, keep=False)
            if v is None or not v.all(lambda a: np.isfinite(a) & (np.abs(a) < 1e4)):
                return None
            if kind == "Pow":
                return (
                    self.node("Pow", self.constant([0.5, 1.0, 1.25], "float32"), v, keep=False)
                    if v.all(lambda a: np.abs(a) < 30)
                    else None
                )
            v = v if v.kind == "float32" else self.node("Cast", v, to=onnx.TensorProto.FLOAT, keep=False)
            return v and (
                self.node(kind, self.x, v, keep=False)
                if kind != "Clip"
                else self.node("Clip", self.x, None, v, keep=False)
            )
        if kind in ("ConstantOfShape", "Tile", "Expand"):
            v = self.vector({"ConstantOfShape": int(self.rng.integers(1, 4)), "Tile": 3, "Expand": 4}[kind], 1, 3)
            data = {
                "ConstantOfShape": (),
                "Tile": (self.x,),
                "Expand": (self.constant(np.ones((1, 1, 1)), "float32"),),
            }[kind]
            return v and self.node(kind, *data, v, keep=False)
        if kind == "Pad":
            v, value = self.vector(6, 0, 3), self.of_kind("float32")
            value = value and self.node("Reshape", value, self.constant([-1]), keep=False)
            value = value and self.node("Gather", value, self.constant(0), axis=0, keep=False)
            return v and self.node("Pad", self.x, v, *([value] if value and value.all(np.isfinite) else []), keep=False)
        if kind == "Resize":
            v = self.vector(2, 1, 9)
            ends = self.constant([1, 2])
            v = v and self.node("Concat", ends, v, axis=0, keep=False)
            if v is None or self.maybe():
                return v and self.node(
                    "Resize", self.image, None, None, v, keep=False, mode=self.pick(("nearest", "linear"))
                )
            had = self.node("Cast", self.node("Shape", self.image, keep=False), to=onnx.TensorProto.FLOAT, keep=False)
            wanted = self.node("Cast", v, to=onnx.TensorProto.FLOAT, keep=False)
            scales = self.node("Div", wanted, had, keep=False)
            return scales and self.node(
                "Resize", self.image, None, scales, keep=False, mode=self.pick(("nearest", "linear"))
            )
        if kind == "Range":
            limit, start = self.scalar(0, 9), self.pick((self.constant(0), self.constant(2)))
            limit = limit and self.node("Squeeze", limit, keep=False)
            return limit and self.node("Range", start, limit, self.constant(self.pick((1, 2))), keep=False)
        if kind == "Slice":
            start, end = self.scalar(0, 4), self.scalar(-1, 8)
            return (
                start
                and end
                and self.node("Slice", self.x, start, end, self.constant([self.pick((1, 2, -1))]), keep=False)
            )
        if kind == "Reshape":
            v = self.vector(2, 1, 5)
            filled = v and self.node("ConstantOfShape", v, keep=False)
            turned = v and self.node(
                "Slice",
                v,
                self.constant([-1]),
                self.constant([-9]),
                self.constant([0]),
                self.constant([-1]),
                keep=False,
            )
            return turned and self.node("Reshape", filled, turned, keep=False)
        v = self.scalar(0, 2 if kind in ("CumSum", "Gather") else 1)
        if v is None:
            return None
        if kind in ("TopK", "OneHot", "CumSum", "Gather", "Split"):
            if kind == "TopK":
                return self.node("TopK", self.x, v, outputs=2, keep=False)
            if kind == "Split":
                rest = self.node(
                    "Sub", self.node("Shape", self.constant(np.zeros(5), "float32"), keep=False), v, keep=False
                )
                sizes = rest and self.node("Concat", v, rest, axis=0, keep=False)
                return sizes and self.node(
                    "Split",
                    self.node("Tile", self.x, self.constant([1, 5, 1]), keep=False)
                    if self.maybe(0.1)
                    else self.constant(np.arange(5), "float32"),
                    sizes,
                    outputs=2,
                    keep=False,
                    axis=0,
                )
            if kind == "OneHot":
                depth = self.node("Add", v, self.constant([2]), keep=False)
                return depth and self.node(
                    "OneHot", self.constant([0, 1, 1]), depth, self.constant([0, 1], "float32"), keep=False
                )
            one = self.node("Squeeze", v, keep=False)
            return one and (
                self.node("CumSum", self.x, one, keep=False)
                if kind == "CumSum"
                else self.node("Gather", self.constant(np.arange(3), "float32"), v, keep=False)
            )
        if kind == "Trilu":
            k = self.opset >= 14 and self.node("Squeeze", v, keep=False)
            return (k and self.node("Trilu", self.x, k, keep=False)) or None
        if kind == "Where":
            wanted = self.of_kind("bool")
            return (
                wanted
                and wanted.arrays[0].size == 1
                and self.node("Where", wanted, self.x, self.constant(2.0, "float32"), keep=False)
            ) or None
        if kind == "Mod":
            return self.node(
                "Mod", self.constant(np.arange(12)), self.node("Add", v, self.constant([2]), keep=False), keep=False
            )
        return None

    def grow(self) -> None:
        while not self.numbers:
            self.shape()
        kinds = (
            self.shape,
            self.size,
            self.gather,
            self.gather,
            self.sliced,
            self.concat,
            self.concat,
            self.reranked,
            self.moved,
            self.cast,
            self.cast,
            self.cast,
            *[self.arithmetic] * 8,
            self.extremes,
            self.extremes,
            self.unary,
            self.unary,
            self.compared,
            self.compared,
            self.logic,
            self.chosen,
            self.chosen,
            self.reduced,
            self.reduced,
            self.cumulated,
            self.mask,
        )
        for _ in range(int(self.rng.integers(8, 22))):
            self.pick(kinds)()
        read = {name for node in self.nodes for name in node.input}
        loose = [
            v for v in self.numbers if v.name not in read and not any(v.name == info.name for info in self.declared)
        ]
        for _ in range(int(self.rng.integers(1, 4))):
            made = self.steered()
            if made:
                self.outputs.append(made.name)
        for v in loose:
            if all(np.isfinite(a).all() or a.dtype.kind != "f" for a in v.arrays):
                made = self.with_data(v) if self.maybe(0.7) else v
                self.outputs += [made.name] if made else []

    def with_data(self, v: Value) -> Value | None:
        """Elements of x, plus or minus those that the value says, or chosen by them."""
        flat = self.node("Reshape", v, self.constant([-1]), keep=False)
        column = flat and self.node("Unsqueeze", flat, self.constant([1]), keep=False)
        row = self.node("Slice", self.x, *(self.constant([n]) for n in (0, 1, 0)), keep=False)  # [1, n, m]
        if column is None or row is None:
            return None
        if v.kind == "bool":
            return self.node("Where", column, row, self.constant(7.0, "float32"), keep=False)
        if v.kind != "float32":
            column = self.node("Cast", column, to=onnx.TensorProto.FLOAT, keep=False)
        apart = column and self.node("Unsqueeze", column, self.constant([2]), keep=False)
        return apart and self.node(self.pick(("Add", "Sub")), row, apart, keep=False)

    def model(self) -> FuzzModel:
        written = {name for n in self.nodes for name in n.output}
        outputs = [onnx.ValueInfoProto(name=n) for n in dict.fromkeys(self.outputs) if n in written]
        if not outputs:
            outputs = [onnx.ValueInfoProto(name=self.nodes[-1].output[0])]
        wanted, nodes = {o.name for o in outputs}, []
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                nodes.insert(0, node)
                wanted.update(node.input)
        inputs = [info for info in self.declared if info.name in wanted or info.name == self.x.name]
        graph = helper.make_graph(nodes, "g", inputs, outputs, [t for t in self.held if t.name in wanted])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        fed = {v.name: v for v in (self.x, self.image, *self.fed) if v.name in {i.name for i in inputs}}
        runs = [{name: v.arrays[r] for name, v in fed.items()} for r in (*range(RUNS), 0)]
        return FuzzModel(model.SerializeToString(), runs, "sizes", (), "normal")

    @property
    def fed(self) -> list[Value]:
        names = {info.name for info in self.declared}
        return [v for v in self.numbers if v.name in names]


def size_model(seed: int) -> FuzzModel:
    """The model of a seed: the same one with the same version of numpy."""
    made = SizeModel(seed)
    made.grow()
    return made.model()
