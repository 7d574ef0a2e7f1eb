"""Models of one to four nodes with whatever a file may hold: a valid small model, and changes to it that nobody had in
mind.

A model starts as one of ONNX's node tests or of `random_graphs`, so that most operators and attributes occur. Then
nodes are put behind it and, by chance, element types, sizes, attributes, names, constants and the inputs' content are
changed. Most results are models that onnxruntime still runs; what it refuses has to be refused with ours in it, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from ort_gpu_ep.health import conformance
from tests.session.random_graphs import Array, random_model

SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 16, 17, 33, 64, 65, 130, 300)
HUGE = (2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1)
INTEGERS = (0, 1, -1, 2, -2, 3, 4, 7, 8, 100, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 3e38, -3e38, math.inf, -math.inf, math.nan)
TEXTS = ("", "none", "NOTSET", "linear", "wrap", "reflect", "forward", "mean", "add", 'É\n"%s{}', "x" * 5000)
NAMES = (
    "",
    " ",
    "fn",
    "x_at",
    "}; var y = 0u;",
    "a/b\\c",
    "%s%n{0}{}",
    "\n\t",
    "\N{GREEK SMALL LETTER ALPHA}\u202e",
    "../../etc",
    "main",
    "0",
    "n" * 3000,
)
"""An empty name is an input or output that isn't there."""

ELEMENT_TYPES = (
    "float32",
    "float16",
    "float64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "uint32",
    "uint64",
    "bool",
)
MOST_ELEMENTS = 200_000
MOST_NODES = 4

RANDOM = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
)
"""They give something else each time."""

Content = str
"""Kind of values: normal, nan, infinite, tiny (denormal), zero, large, any."""


@dataclass(frozen=True)
class FuzzModel:
    """runs: the feeds of each run. changes: what was done to the model that it started as. content: of the inputs.
    step: of a quantized model, what a byte of its float outputs is worth: few elements may differ by few of them.
    """

    model: bytes
    runs: list[dict[str, Array]]
    base: str
    changes: tuple[str, ...]
    content: Content
    step: float = 0.0

    @property
    def nodes(self) -> list[str]:
        return [n.op_type for n in onnx.load_from_string(self.model).graph.node]


@dataclass(frozen=True)
class _Base:
    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]


@cache
def node_tests() -> tuple[_Base, ...]:
    """ONNX's node tests of few nodes, whose inputs are tensors of numbers."""
    found = []
    for case in conformance.cases():
        nodes = case.model.graph.node
        arrays = case.data_sets[0][0] if case.data_sets else ()
        if (
            len(nodes) > MOST_NODES
            or any(n.op_type in RANDOM or n.op_type == "Dropout" for n in nodes)
            or not _are_numbers(arrays)
        ):
            continue
        names = [i.name for i in case.model.graph.input]
        found.append(_Base(case.name, case.model, dict(zip(names, map(conformance._array, arrays), strict=False))))
    return tuple(found)


def _are_numbers(arrays: Sequence[Any]) -> bool:
    converted = (
        [a if isinstance(a, np.ndarray) else None for a in map(conformance._array, arrays)]
        if all(isinstance(a, (np.ndarray, onnx.TensorProto, np.generic)) for a in arrays)
        else [None]
    )
    return all(a is not None and a.dtype.name in ELEMENT_TYPES and a.size <= MOST_ELEMENTS for a in converted)


class Fuzzer:
    """Changes one model."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.changes: list[str] = []
        self.renamed: dict[str, str] = {}
        self.content: Content = "normal"
        if self.maybe(0.75):
            base = self.pick(node_tests())
            self.base, self.model, self.feeds = base.name, onnx.ModelProto(), dict(base.feeds)
            self.model.CopyFrom(base.model)
        else:
            model, feeds, _ = random_model(
                int(self.rng.integers(1 << 30)), nodes=int(self.rng.integers(1, MOST_NODES + 1))
            )
            self.base, self.model, self.feeds = "random", onnx.load_from_string(model), dict(feeds)
        self.graph = self.model.graph
        self.model.ir_version = min(self.model.ir_version, 10)

    # ---- chance

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def maybe(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    # ---- changes: each changes the model, or raises Unchanged

    def more_nodes(self) -> None:
        """Nodes behind the outputs, none of which turns a rounding difference into another number."""
        for _ in range(int(self.rng.integers(1, MOST_NODES))):
            if len(self.graph.node) >= MOST_NODES:
                return
            output = self.pick(self.graph.output)
            kind = output.type.tensor_type.elem_type
            if helper.tensor_dtype_to_np_dtype(kind).name not in ELEMENT_TYPES if kind else True:
                return
            name = f"more{len(self.graph.node)}"
            op, more, attributes = self.pick(_BEHIND_INTEGERS if kind in (6, 7) else _BEHIND_FLOATS)
            for i, values in enumerate(more):
                array = np.array(values) if np.ndim(values) else np.array(values, helper.tensor_dtype_to_np_dtype(kind))
                self.graph.initializer.append(numpy_helper.from_array(array, f"{name}_{i}"))
            reads = [output.name] * (2 if op in ("Add", "Mul", "Concat") and not more else 1) + [
                f"{name}_{i}" for i in range(len(more))
            ]
            self.graph.node.append(helper.make_node(op, reads, [name], name, **attributes))
            self.graph.output.append(helper.make_tensor_value_info(name, attributes.get("to", kind), None))
            self.changes.append(f"+{op}")

    def values(self) -> None:
        """The content of the inputs."""
        self.content = self.pick(("nan", "infinite", "tiny", "zero", "large", "any"))
        for name, array in self.feeds.items():
            if array.size and self.maybe(0.8):
                self.feeds[name] = self._special(array)
        self.changes.append(f"values {self.content}")

    def _special(self, array: Array) -> Array:
        choices: dict[str, tuple[float, ...]] = {
            "nan": (math.nan,),
            "infinite": (math.inf, -math.inf),
            "tiny": (1e-40, -3e-39, 1e-45),
            "zero": (0.0, -0.0),
            "large": (3e38, -3e38),
            "any": FLOATS,
        }
        if array.dtype.kind == "f":
            some = self.rng.random(array.shape) < self.pick((0.1, 0.5, 1.0))
            with np.errstate(all="ignore"):
                return np.where(some, self.rng.choice(choices[self.content], array.shape), array).astype(array.dtype)
        if array.dtype.kind in "iu":
            limits = np.iinfo(array.dtype)
            pool = (
                [i for i in INTEGERS if limits.min <= i <= limits.max]
                if self.content in ("large", "any", "infinite")
                else [0, 1, 2, 3]
            )
            some = self.rng.random(array.shape) < 0.3
            return np.where(
                some, np.array([self.pick(pool) for _ in range(array.size)], array.dtype).reshape(array.shape), array
            ).astype(array.dtype)
        return array

    def sizes(self) -> None:
        """One size becomes another one, in all inputs or in one."""
        shaped = [n for n, a in self.feeds.items() if a.ndim]
        if not shaped:
            return
        old, new = self.pick(self.feeds[self.pick(shaped)].shape), self.pick(SIZES)
        chosen = shaped if self.maybe(0.8) else [self.pick(shaped)]
        for name in chosen:
            self._resize(name, tuple(new if d == old else d for d in self.feeds[name].shape))
        self.changes.append(f"size {old} -> {new} of {', '.join(chosen)}"[:200])

    def rank(self) -> None:
        """An input gets more or fewer dimensions, up to nine."""
        if not self.feeds:
            return
        name = self.pick(list(self.feeds))
        shape = self.feeds[name].shape
        at = int(self.rng.integers(len(shape) + 1))
        new = (
            (*shape[:at], *(1,) * int(self.rng.integers(1, 10 - min(len(shape), 8))), *shape[at:])
            if self.maybe(0.6)
            else shape[:at] + shape[at + 1 :]
        )
        self._resize(name, new)
        self.changes.append(f"{name[:20]!r}: {shape} -> {new}")

    def _resize(self, name: str, shape: tuple[int, ...]) -> None:
        if math.prod(shape) <= MOST_ELEMENTS:
            self.feeds[name] = resized(self.feeds[name], shape)
            self._declare(name, shape)

    def _declare(self, name: str, shape: Sequence[int | str]) -> None:
        for info in self.graph.input:
            if info.name == name:
                info.CopyFrom(helper.make_tensor_value_info(name, info.type.tensor_type.elem_type, list(shape)))
        for output in self.graph.output:  # onnxruntime finds out
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")

    def huge(self) -> None:
        """An input is declared with a size that no memory holds; or an integer that steers a shape is that large."""
        integers = [n for n, a in self.feeds.items() if a.dtype == np.int64 and a.size]
        if integers and self.maybe(0.7):
            name = self.pick(integers)
            array = self.feeds[name].copy()
            array.reshape(-1)[int(self.rng.integers(array.size))] = self.pick(HUGE)
            self.feeds[name] = array
            self.changes.append(f"huge in {name[:20]!r}")
        elif self.feeds:
            name = self.pick(list(self.feeds))
            shape = list(self.feeds[name].shape)
            if shape:
                shape[int(self.rng.integers(len(shape)))] = self.pick(HUGE)
                self._declare(name, shape)
                self.changes.append(f"{name[:20]!r} declared {shape}")

    def attributes(self) -> None:
        """One attribute gets an extreme value, or goes."""
        node = self.pick(self.graph.node)
        if not node.attribute:
            return
        attribute = self.pick(node.attribute)
        if self.maybe(0.1):
            node.attribute.remove(attribute)
        elif attribute.type == AttributeProto.INT:
            attribute.i = self.pick(INTEGERS)
        elif attribute.type == AttributeProto.FLOAT:
            attribute.f = self.pick(FLOATS)
        elif attribute.type == AttributeProto.STRING:
            attribute.s = self.pick(TEXTS).encode()
        elif attribute.type == AttributeProto.INTS:
            values = list(attribute.ints)
            at = int(self.rng.integers(len(values) + 1))
            values[at : at + int(self.rng.integers(2))] = [self.pick(INTEGERS)] * int(self.rng.integers(2))
            attribute.ints[:] = values
        self.changes.append(f"{node.op_type}.{attribute.name}")

    def element_type(self) -> None:
        """All tensors of a type become those of another one."""
        kinds = sorted({a.dtype.name for a in self.feeds.values()})
        if not kinds:
            return
        old, new = self.pick(kinds), self.pick(ELEMENT_TYPES)
        code = {k: helper.np_dtype_to_tensor_dtype(np.dtype(k)) for k in (old, new)}
        for info in (*self.graph.input, *self.graph.output):
            if info.type.tensor_type.elem_type == code[old]:
                info.type.tensor_type.elem_type = code[new]
        with np.errstate(all="ignore"):
            for name, array in self.feeds.items():
                self.feeds[name] = array.astype(new) if array.dtype == old else array
            for tensor in self.graph.initializer:
                if tensor.data_type == code[old]:
                    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(new), tensor.name))
        self.changes.append(f"{old} -> {new}")

    def constants(self) -> None:
        """An input becomes an initializer."""
        if self.feeds:
            name = self.pick(list(self.feeds))
            self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(self.feeds.pop(name)), name))
            for info in [i for i in self.graph.input if i.name == name]:
                self.graph.input.remove(info)
            self.changes.append(f"constant {name[:20]!r}")

    def names(self) -> None:
        """Values and nodes get hostile names."""
        known = {n for node in self.graph.node for n in (*node.input, *node.output) if n}
        new = {
            n: self.pick(NAMES) + (str(k) if self.maybe(0.9) else "")
            for k, n in enumerate(sorted(known))
            if self.maybe(0.7)
        }
        for node in self.graph.node:
            node.name = self.pick(NAMES)
            for names in (node.input, node.output):
                names[:] = [new.get(n, n) for n in names]
        for named in (*self.graph.input, *self.graph.output, *self.graph.initializer):
            named.name = new.get(named.name, named.name)
        self.renamed = new
        self.changes.append("names")

    # ---- sizes that change from run to run

    def runs(self) -> list[dict[str, Array]]:
        """The feeds of each run: with open sizes, of several sets of them."""
        if not self.maybe(0.4) or not self.feeds:
            return [self.feeds]
        sizes = sorted({d for a in self.feeds.values() for d in a.shape})
        opened = {d: f"size_{d}" for d in sizes if self.maybe(0.6)}
        for name, array in self.feeds.items():
            self._declare(name, [opened.get(d, d) for d in array.shape])
        self.changes.append(f"open {sorted(opened)}")
        made = [self.feeds]
        for _ in range(int(self.rng.integers(1, 4))):
            other = {d: self.pick(SIZES) if self.maybe(0.7) else d for d in opened}
            shapes = {n: tuple(other.get(d, d) for d in a.shape) for n, a in self.feeds.items()}
            if all(math.prod(s) <= MOST_ELEMENTS for s in shapes.values()):
                made.append({n: resized(a, shapes[n]) for n, a in self.feeds.items()})
        return [*made, self.feeds]


def resized(array: Array, shape: tuple[int, ...]) -> Array:
    """The same elements again and again in another shape."""
    return np.resize(array, shape).astype(array.dtype) if array.size else np.ones(shape, array.dtype)


_BEHIND_FLOATS: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("Relu", (), {}),
    ("Neg", (), {}),
    ("Abs", (), {}),
    ("Identity", (), {}),
    ("Sigmoid", (), {}),
    ("Add", (), {}),
    ("Add", (0.5,), {}),
    ("Mul", (2.0,), {}),
    ("Reshape", ([-1],), {}),
    ("Transpose", (), {}),
    ("Concat", (), {"axis": 0}),
    ("Cast", (), {"to": 1}),
    ("Unsqueeze", ([0],), {}),
    ("Flatten", (), {}),
)
_BEHIND_INTEGERS = tuple(b for b in _BEHIND_FLOATS if b[0] not in ("Relu", "Sigmoid") and b[1] != (0.5,))

_CHANGES: Mapping[Callable[[Fuzzer], None], float] = {
    Fuzzer.element_type: 0.12,
    Fuzzer.sizes: 0.3,
    Fuzzer.rank: 0.1,
    Fuzzer.attributes: 0.25,
    Fuzzer.values: 0.3,
    Fuzzer.huge: 0.06,
    Fuzzer.constants: 0.25,
    Fuzzer.more_nodes: 0.4,
}
"""In their order; and how likely each is."""


def fuzz_model(seed: int) -> FuzzModel:
    """The model of a seed: the same one with the same versions of onnx and numpy."""
    made = Fuzzer(seed)
    for change, chance in _CHANGES.items():
        if made.maybe(chance):
            change(made)
    runs = made.runs()
    if made.maybe(0.08):
        made.names()
        runs = [{made.renamed.get(n, n): a for n, a in feeds.items()} for feeds in runs]
    return FuzzModel(bytes(made.model.SerializeToString()), runs, made.base, tuple(made.changes), made.content)
