"""The random models of `random_graphs` with open sizes and run-time steering inputs, run in one session with several
sets of both.

What may vary is found out by asking onnxruntime's CPU: a change that it refuses is taken back. `python -m
tests.session.random_graphs --open --count 500` runs them for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import ort_gpu_ep
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.runtime.program import Program
from tests.direct import run_program
from tests.session.random_graphs import Array, Value, quiet, random_model, wrong

STEERING: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Slice": (1, 2, 3, 4),
    "Pad": (1,),
    "Split": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "TopK": (1,),
    "CumSum": (1,),
    "Trilu": (1,),
    "OneHot": (1,),
    "Resize": (2, 3),
    "ReduceSum": (1,),
    "ReduceMean": (1,),
    "ReduceMax": (1,),
    "ReduceMin": (1,),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceSumSquare": (1,),
    "ReduceLogSumExp": (1,),
}
"""The inputs whose content decides on a shape, or on what a kernel does."""

FIXED = ("ScatterElements", "ScatterND", "LSTM", "GRU", "RNN")
"""Their integers stay constants: indices must not repeat, and lengths not exceed the sequence."""

FLAVOURS: Mapping[str, tuple[int, ...]] = {
    "other": (2, 3, 4, 6, 8, 9, 16, 17, 33, 64, 65),
    "one": (1,),
    "prime": (2, 3, 5, 7, 11, 13, 31, 61, 127),
    "none": (0,),
}

NEVER_EMPTY = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "MaxPool",
        "AveragePool",
        "GlobalMaxPool",
        "GlobalAveragePool",
        "Resize",
        "LSTM",
        "GRU",
        "RNN",
        "MatMulInteger",
        "InstanceNormalization",
        "LayerNormalization",
        "LpNormalization",
    }
)
"""onnxruntime's CPU ends the process (a division by zero), or gives memory as it found it, for some sizes of zero."""

MOST_ELEMENTS, LARGEST = 60_000, 1e4
"""Of a value: more is too slow for many models, too large for exact sums."""

Place = tuple[str, int]
"""An axis of an input."""


@dataclass
class OpenModel:
    """runs: the feeds of each run, the first ones last again. outputs: name -> what is known of it."""

    model: bytes
    runs: list[dict[str, Array]]
    outputs: dict[str, Value]


class Opener:
    """Opens the sizes and the steering constants of one model."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng((seed, 1))
        data, feeds, self.outputs = random_model(seed)
        self.proto = onnx.load_from_string(data)
        self.feeds = dict(feeds)
        self.steering: set[str] = set()
        self.takes_none = not NEVER_EMPTY.intersection(n.op_type for n in self.proto.graph.node)
        self._shapes_on_host()
        self._scales()
        self._constants_to_inputs()
        # ONNX wants to know how many
        resized = {name for n in self.proto.graph.node if n.op_type == "Resize" for name in n.input}
        self.closed = {n for n in sorted(self.steering) if n in resized or self.maybe(0.8)}
        for info in self.proto.graph.input:
            _declare(
                info, self.feeds[info.name].shape if info.name in self.closed else [None] * self.feeds[info.name].ndim
            )
        self.probe, self.before = _probe(self.proto), _probe(_before(self.proto))
        self.original = dict(self.feeds)
        self.constants = {t.name: numpy_helper.to_array(t) for t in self.proto.graph.initializer}

    def maybe(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    # ---- the model

    def _reads(self) -> Iterator[tuple[onnx.NodeProto, int, Array]]:
        """The constants that nodes read."""
        constants = {t.name: numpy_helper.to_array(t) for t in self.proto.graph.initializer}
        for node in list(self.proto.graph.node):
            for index, name in enumerate(node.input):
                if name in constants:
                    yield node, index, constants[name]

    def _constant(self, array: Array) -> str:
        name = f"k{len(self.proto.graph.initializer)}"
        self.proto.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def _shapes_on_host(self) -> None:
        """Some shapes are calculated from those of inputs, as exporters do it."""
        graph, made = self.proto.graph, list[onnx.NodeProto]()
        sizes = [(name, axis, size) for name, array in self.feeds.items() for axis, size in enumerate(array.shape)]
        for node, index, array in self._reads():
            if (
                index not in STEERING.get(node.op_type, ())
                or array.ndim != 1
                or array.dtype != np.int64
                or not self.maybe(0.4)
            ):
                continue
            parts = []
            for number in array.tolist():
                name, axis, size = self.pick([s for s in sizes if s[2] == number] or sizes)
                if number < 1 or self.maybe(0.2):
                    parts.append(self._constant(np.array([number])))
                    continue
                stem = f"h{len(made)}"
                made.append(helper.make_node("Shape", [name], [f"{stem}s"]))
                made.append(helper.make_node("Gather", [f"{stem}s", self._constant(np.array([axis]))], [f"{stem}g"]))
                parts.append(f"{stem}g")
                if number % size == 0 and number != size:
                    made.append(
                        helper.make_node("Mul", [f"{stem}g", self._constant(np.array([number // size]))], [f"{stem}m"])
                    )
                    parts[-1] = f"{stem}m"
                elif number != size:
                    made.append(
                        helper.make_node("Add", [f"{stem}g", self._constant(np.array([number - size]))], [f"{stem}a"])
                    )
                    parts[-1] = f"{stem}a"
            made.append(helper.make_node("Concat", parts, [f"h{len(made)}c"], axis=0))
            node.input[index] = made[-1].output[0]
        nodes = [*made, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)

    def _scales(self) -> None:
        """Some Resize nodes take scales instead of sizes, where these are exact."""
        shapes = {}
        if any(n.op_type == "Resize" for n in self.proto.graph.node):
            probe = _probe(self.proto)
            shapes = {o.name: a.shape for o, a in zip(probe.get_outputs(), probe.run(None, self.feeds), strict=True)}
            shapes |= {name: a.shape for name, a in self.feeds.items()}
        for node, index, array in self._reads():
            if node.op_type != "Resize" or index != 3 or not self.maybe(0.6):
                continue
            scales = array / np.array(shapes[node.input[0]])
            if np.array_equal(scales * 64, np.round(scales * 64)):
                reads = [node.input[0], "", self._constant(scales.astype("f"))]
                del node.input[:]
                node.input.extend(reads)

    def _constants_to_inputs(self) -> None:
        graph = self.proto.graph
        chosen: dict[str, Array] = {}
        fixed = {name for node in graph.node if node.op_type in FIXED for name in node.input}
        for node, index, array in self._reads():
            name = node.input[index]
            steers = index in STEERING.get(node.op_type, ())
            if name in fixed or (name.startswith("k") and not steers) or not self.maybe(0.5 if steers else 0.3):
                continue
            chosen[name] = array
            if steers:
                self.steering.add(name)
        kept = [t for t in graph.initializer if t.name not in chosen]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        for name, array in chosen.items():
            graph.input.append(
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            )
            self.feeds[name] = array

    # ---- what may vary

    def accepts(self, feeds: Mapping[str, Array]) -> bool:
        """Whether onnxruntime's CPU takes them, and the results are no noise."""
        if sum(a.size for a in feeds.values()) > MOST_ELEMENTS:
            return False
        try:
            if not self.takes_none and any(not a.size for a in self.before.run(None, dict(feeds))):
                return False
            found = self.probe.run(None, dict(feeds))
        except Exception:
            return False
        values = {o.name: a for o, a in zip(self.probe.get_outputs(), found, strict=True)}
        if any(a.size > MOST_ELEMENTS or (a.dtype.kind == "f" and not np.all(np.abs(a) <= LARGEST)) for a in found):
            return False
        values |= dict(feeds) | self.constants
        for node in self.proto.graph.node:
            x = values.get(node.input[0])
            if node.op_type.startswith("Reduce") and x is not None and not x.size and np.any(values[node.input[1]] < 0):
                return False  # onnxruntime's CPU does not count from the end there
            if node.op_type.startswith("Reduce") and x is not None and x.size and x.dtype.kind == "f":
                largest = float(np.abs(values[node.output[0]]).max(initial=0))
                if 0 < largest < 1e-3 * float(np.abs(x).max()):
                    return False  # what cancels out is noise
            if node.op_type == "MatMul" and x is not None and x.shape[-1] == 0:
                return False  # onnxruntime's FusedMatMul leaves memory as it found it
            if node.op_type in ("InstanceNormalization", "LayerNormalization") and x is not None:
                axis = (
                    2
                    if node.op_type == "InstanceNormalization"
                    else next(a.i for a in node.attribute if a.name == "axis")
                )
                if x.size > 0 and np.prod(x.shape[axis:]) < 3:
                    return False
        return True

    def resized(self, feeds: Mapping[str, Array], places: Sequence[Place], size: int) -> dict[str, Array]:
        """The feeds with these axes of another size."""
        shapes = {name: list(feeds[name].shape) for name, _ in places}
        for name, axis in places:
            shapes[name][axis] = size
        made = {
            name: np.resize(self.rng.permutation(self.original[name].reshape(-1)), shape)
            for name, shape in shapes.items()
        }
        return {**feeds, **made}

    def groups(self) -> list[list[Place]]:
        """Axes that can vary, with those that must vary with them."""
        alone, tied = [], list[Place]()
        for name, array in self.feeds.items():
            for axis, size in enumerate(array.shape):
                takes = any(self.accepts(self.resized(self.feeds, [(name, axis)], s)) for s in (size + 1, 2 * size + 1))
                if takes:
                    alone.append([(name, axis)])
                else:
                    tied.append((name, axis))
        while tied:
            first, *rest = tied
            size = self.feeds[first[0]].shape[first[1]]
            equal = [p for p in rest if self.feeds[p[0]].shape[p[1]] == size]
            for together in (*([first, p] for p in equal), [first, *equal]):
                if len(together) > 1 and self.accepts(self.resized(self.feeds, together, size + 1)):
                    alone.append(together)
                    tied = [p for p in tied if p not in together]
                    break
            else:
                tied = rest
        return alone

    def steered(self, feeds: Mapping[str, Array], name: str) -> dict[str, Array]:
        """The feeds with other content of a steering input."""
        array = np.array(feeds[name])
        flat = array.reshape(-1)
        for i in range(flat.size):
            if self.maybe(0.5):
                changes = (
                    (flat[i] + 1, flat[i] - 1, flat[i] + 2, -flat[i], 0, 1, -1, self.pick(flat))
                    if array.dtype.kind == "i"
                    else (1, 0.5, 2, 1.5, 0.75)
                )
                flat[i] = self.pick(changes)
        return {**feeds, name: flat.reshape(array.shape)}

    def varied(self, feeds: dict[str, Array], groups: Sequence[Sequence[Place]], flavour: str) -> dict[str, Array]:
        knobs = [*groups, *sorted(self.steering)]
        for k in self.rng.permutation(len(knobs)):
            knob = knobs[k]
            if not self.maybe(0.6):
                continue
            for _ in range(3):
                sizes = FLAVOURS["one" if flavour == "none" and not self.takes_none else flavour]
                new = (
                    self.steered(feeds, knob) if isinstance(knob, str) else self.resized(feeds, knob, self.pick(sizes))
                )
                if self.accepts(new):
                    feeds = new
                    break
        return feeds

    def open(self) -> OpenModel:
        groups = self.groups()
        runs = [dict(self.feeds)]
        for flavour in ("other", "one", "prime", "none", "other"):
            feeds = self.varied(self.pick((runs[0], runs[-1])), groups, flavour)
            if not any(_same(feeds, known) for known in runs):
                runs.append(feeds)
        named = {place: f"g{k}" for k, group in enumerate(groups) for place in group}
        for info in self.proto.graph.input:
            places = [(info.name, axis) for axis in range(self.feeds[info.name].ndim)]
            _declare(info, [self._shown(p, named) for p in places])
        model = self.proto.SerializeToString()
        cpu = onnxruntime.InferenceSession(model, quiet(), providers=["CPUExecutionProvider"])
        # what onnxruntime fuses takes less than its single nodes
        runs = [feeds for feeds in runs if _runs(cpu, feeds)]
        return OpenModel(model, [*runs, runs[0]], self.outputs)

    def _shown(self, place: Place, named: Mapping[Place, str]) -> int | str | None:
        if place[0] in self.closed or (place not in named and self.maybe(0.8)):
            return int(self.feeds[place[0]].shape[place[1]])
        return (
            None
            if self.maybe(0.15)
            else f"{place[0]}_{place[1]}"
            if place not in named or self.maybe(0.3)
            else named[place]
        )


def _before(proto: onnx.ModelProto) -> onnx.ModelProto:
    """What is computed without the operators that must not meet an empty tensor."""
    model, late = onnx.ModelProto(), set[str]()
    model.CopyFrom(proto)
    del model.graph.node[:], model.graph.output[:]
    for node in proto.graph.node:
        if node.op_type in NEVER_EMPTY or late.intersection(node.input):
            late.update(node.output)
        else:
            model.graph.node.append(node)
    if not model.graph.node:
        model.graph.node.append(helper.make_node("Identity", [proto.graph.input[0].name], ["nothing"]))
    return model


def _runs(session: Any, feeds: Mapping[str, Array]) -> bool:
    try:
        session.run(None, dict(feeds))
    except Exception:
        return False
    return True


def _same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return all(a.shape == other[n].shape and np.array_equal(a, other[n]) for n, a in one.items())


def _declare(info: onnx.ValueInfoProto, shape: Sequence[int | str | None]) -> None:
    kind = info.type.tensor_type.elem_type
    info.CopyFrom(helper.make_tensor_value_info(info.name, kind, shape))


def _probe(proto: onnx.ModelProto) -> Any:
    """A CPU session that gives every value."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    shown = {o.name for o in model.graph.output}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=n) for node in model.graph.node for n in node.output if n and n not in shown
    )
    return onnxruntime.InferenceSession(model.SerializeToString(), quiet(), providers=["CPUExecutionProvider"])


def open_model(seed: int) -> OpenModel:
    return Opener(seed).open()


def open_differences(made: OpenModel, **options: object) -> tuple[list[str], list[str], Any]:
    """What our session answers otherwise than onnxruntime's CPU over all runs, what was declined in a run, and the
    session.

    A node may be declined, nothing else may fail.
    """
    session = ort_gpu_ep.InferenceSession(made.model, quiet(), provider_options={"placement": "gpu", **options})
    found = _wrong_runs(made, lambda feeds: session.run(None, feeds))
    events = [e for e in session.state.events if e.kind in ("error", "fallback", "warning")]
    found += [
        f"{e.kind} {e.where}: {e.message[:300]}" for e in events if not e.message.startswith("UnsupportedNodeError")
    ]
    return found, [e.message for e in events if e.kind == "fallback"], session


def direct_differences(made: OpenModel) -> tuple[list[str], list[str]] | None:
    """As `open_differences` for one program of the whole model, whatever would be claimed before sizes are known. None
    where it can't be."""
    declined: list[str] = []
    graph = from_onnx(onnx.load_from_string(made.model))
    try:
        program = Program(graph, Config(), Gpu.open(Config()), rewrite)
    except UnsupportedNodeError:
        return None

    def run(feeds: Mapping[str, Array]) -> list[Array] | None:
        try:
            return run_program(program, feeds)
        except UnsupportedNodeError as error:
            declined.append(f"{type(error).__name__}: {error}")
            return None

    try:
        if run(made.runs[0]) is None:
            return None
        return _wrong_runs(made, run), declined
    finally:
        program.close()


def _wrong_runs(made: OpenModel, run: Callable[[dict[str, Array]], Sequence[Array] | None]) -> list[str]:
    """What `run` answers otherwise than onnxruntime's CPU; None is no answer."""
    cpu = onnxruntime.InferenceSession(made.model, quiet(), providers=["CPUExecutionProvider"])
    found: list[str] = []
    for number, feeds in enumerate(made.runs):
        shapes = {
            n: (a.shape, a.tolist()) if a.dtype.kind == "i" and 0 < a.size < 9 else a.shape for n, a in feeds.items()
        }
        want = cpu.run(None, feeds)
        try:
            got = run(feeds)
        except Exception as error:
            found.append(f"run {number} of {shapes}: {type(error).__name__}: {str(error)[:300]}")
            continue
        for name, g, w in zip(made.outputs, got if got is not None else want, want, strict=True):
            what = wrong(g, w, made.outputs[name])
            if what:
                found.append(f"run {number} of {shapes}, {name}: {what}")
    return found
