"""A small writer of ONNX graphs: names, seeded weights and the layers that the networks share."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.errors import ModelError

OPSET = 17
IR_VERSION = 8  # the IR version that came with opset 17

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]
Dim = int | str  # a str is a symbolic dimension
Attribute = int | float | str | Sequence[int] | Sequence[float] | onnx.TensorProto


@dataclass(frozen=True)
class Value:
    """An edge of the graph being built.

    channels: features per position; dimension 1 of images [N, C, ...] and rows [N, C], the last one of sequences [N, T,
    C].
    """

    name: str
    channels: int


@dataclass
class Turn:
    """The body of a Loop: the states that a turn is given, those that it ends with, and what the Loop gives after the
    last one."""

    given: dict[str, Value]
    last: dict[str, Value] = field(default_factory=dict)
    results: tuple[Value, ...] = ()

    def end(self, **last: Value) -> None:
        """What the next turn is given."""
        self.last = last


class Net:
    """A graph being built.

    Nodes are named `scope/OpType` (`_1`, `_2` for further ones) as PyTorch's exporter does, weights `node.weight`.
    A weight's draw depends only on the seed and its name, so that a change of one layer leaves the others as they were.
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        self._seed = seed
        self._scopes: list[str] = []
        self._names: Counter[str] = Counter()
        self._model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="ort_gpu_ep.models")
        self._model.opset_import.append(helper.make_opsetid("", OPSET))
        self._graph = self._model.graph
        self._graph.name = name

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes the names of nodes made inside by `name/`."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def _unique(self, label: str) -> str:
        name = "/".join([*self._scopes, label])
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}_{self._names[name] - 1}"

    # The graph's borders.

    def input(
        self, name: str, shape: Sequence[Dim], *, channels: int | None = None, dtype: int = TensorProto.FLOAT
    ) -> Value:
        """A graph input, float32 unless said otherwise; its channels are dimension 1 unless said otherwise."""
        self._graph.input.append(helper.make_tensor_value_info(name, dtype, shape))
        return Value(name, int(shape[1]) if channels is None else channels)

    def output(self, name: str, value: Value, shape: Sequence[Dim], dtype: int = TensorProto.FLOAT) -> None:
        """Makes `value` a graph output and renames it to `name`."""
        for node in self._graph.node:
            for names in (node.input, node.output):
                for i, edge in enumerate(names):
                    if edge == value.name:
                        names[i] = name
        self._graph.output.append(helper.make_tensor_value_info(name, dtype, shape))

    def model(self) -> onnx.ModelProto:
        """The finished model."""
        return self._model

    # Nodes and constants.

    def op(self, op_type: str, *inputs: Value | None, channels: int | None = None, **attributes: Attribute) -> Value:
        """A node with one output; the channels are those of the first input unless said otherwise; None omits an
        input."""
        return self._node(op_type, self._unique(op_type), inputs, channels, **attributes)

    def _node(
        self,
        op_type: str,
        name: str,
        inputs: Sequence[Value | None],
        channels: int | None = None,
        **attributes: Attribute,
    ) -> Value:
        edges = ["" if value is None else value.name for value in inputs]
        node = helper.make_node(op_type, edges, [name], name=name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        self._graph.node.append(node)
        first = inputs[0].channels if inputs and inputs[0] is not None else 0
        return Value(name, first if channels is None else channels)

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> Value:
        """A Constant node, as the exporter writes bounds, shapes and axes."""
        return self.op("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def ints(self, *values: int) -> Value:
        """A Constant node with an int64 vector."""
        return self.constant(values, np.int64)

    def initializer(self, name: str, array: Array) -> Value:
        """A stored constant."""
        self._model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return Value(name, 0)

    @contextmanager
    def loop(self, turns: int, carried: Mapping[str, tuple[Value, Sequence[Dim]]]) -> Iterator[Turn]:
        """A Loop of so many turns: what is made inside is its body, weights are the graph's.

        carried: by name, a state's first value and its shape in the body. The body ends with `Turn.end`; afterwards
        `Turn.results` has the last values, in the order of `carried`.
        """
        name, true = self._unique("Loop"), self.constant(True, np.bool_)
        trips, outer = self.constant(turns, np.int64), self._graph
        turn = Turn({key: Value(f"{name}/{key}", first.channels) for key, (first, _) in carried.items()})
        body = self._graph = onnx.GraphProto(name=f"{name}/body")
        for key, shape in (
            (f"{name}/turn", None),
            (f"{name}/go", None),
            *((turn.given[k].name, s) for k, (_, s) in carried.items()),
        ):
            kind = {f"{name}/turn": TensorProto.INT64, f"{name}/go": TensorProto.BOOL}.get(key, TensorProto.FLOAT)
            body.input.append(helper.make_tensor_value_info(key, kind, [] if shape is None else shape))
        go = self._node("Identity", f"{name}/go_on", [Value(f"{name}/go", 0)])
        yield turn
        body.output.append(helper.make_tensor_value_info(go.name, TensorProto.BOOL, []))
        for key in carried:
            body.output.append(helper.make_tensor_value_info(turn.last[key].name, TensorProto.FLOAT, None))
        self._graph = outer
        results = [Value(f"{name}/last_{key}", first.channels) for key, (first, _) in carried.items()]
        edges = [trips.name, true.name, *(first.name for first, _ in carried.values())]
        outer.node.append(helper.make_node("Loop", edges, [r.name for r in results], name=name, body=body))
        turn.results = tuple(results)

    # Draws.

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self._seed, zlib.crc32(name.encode())]))

    def normal(self, name: str, shape: Sequence[int], std: float) -> Value:
        """An initializer drawn from N(0, std²)."""
        draw = self._rng(name).standard_normal(tuple(shape), dtype=np.float32)
        draw *= np.float32(std)
        return self.initializer(name, draw)

    def uniform(self, name: str, shape: Sequence[int], low: float, high: float) -> Value:
        """An initializer drawn evenly from [low, high)."""
        return self.initializer(name, self._rng(name).uniform(low, high, tuple(shape)).astype(np.float32))

    def he(self, name: str, shape: Sequence[int], fan_in: int, gain: float = 1.0) -> Value:
        """A weight from N(0, gain² · 2 / fan_in): gain 1 keeps E[x²] through a layer and its ReLU.

        Source: He et al., Delving Deep into Rectifiers, 2015, arXiv:1502.01852, eq. 10.
        """
        return self.normal(name, shape, gain * math.sqrt(2.0 / fan_in))

    # Layers with weights.

    def conv(
        self,
        x: Value,
        out: int,
        kernel: int | Sequence[int],
        *,
        stride: int = 1,
        pad: int | Sequence[int] = 0,
        dilation: int = 1,
        group: int = 1,
        bias: bool = True,
        gain: float = 1.0,
    ) -> Value:
        """Conv [N, C, ...] -> [N, out, ...]; an int kernel is a square, a sequence gives the rank."""
        size = _spatial(kernel, 2)
        pads = _spatial(pad, len(size))
        name = self._unique("Conv")
        weights = [
            self.he(f"{name}.weight", [out, x.channels // group, *size], x.channels // group * math.prod(size), gain)
        ]
        if bias:
            weights.append(self.normal(f"{name}.bias", [out], 0.05))
        return self._node(
            "Conv",
            name,
            [x, *weights],
            out,
            kernel_shape=size,
            strides=[stride] * len(size),
            pads=[*pads, *pads],
            dilations=[dilation] * len(size),
            group=group,
        )

    def conv_transpose(self, x: Value, out: int, kernel: int, stride: int) -> Value:
        """ConvTranspose [N, C, H, W] -> [N, out, (H - 1) · stride + kernel, ...] with bias."""
        name = self._unique("ConvTranspose")
        taps = max(1, kernel // stride) ** 2  # that reach one output position
        weight = self.he(f"{name}.weight", [x.channels, out, kernel, kernel], x.channels * taps, 0.7)
        bias = self.normal(f"{name}.bias", [out], 0.05)
        return self._node(
            "ConvTranspose", name, [x, weight, bias], out, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[0] * 4
        )

    def batch_norm(self, x: Value, *, gain: float = 1.0, epsilon: float = 1e-5) -> Value:
        """BatchNormalization with statistics of a trained net's kind; keeps E[x²] on average times gain²."""
        name = self._unique("BatchNormalization")
        statistics = [
            self.uniform(f"{name}.weight", [x.channels], 0.8 * gain, 1.2 * gain),
            self.normal(f"{name}.bias", [x.channels], 0.1),
            self.normal(f"{name}.running_mean", [x.channels], 0.1),
            self.uniform(f"{name}.running_var", [x.channels], 0.6, 1.6),  # E[1 / var] is 0.98
        ]
        return self._node("BatchNormalization", name, [x, *statistics], epsilon=epsilon, momentum=0.9)

    def conv_bn(
        self,
        x: Value,
        out: int,
        kernel: int | Sequence[int],
        *,
        stride: int = 1,
        pad: int | Sequence[int] = 0,
        group: int = 1,
        gain: float = 1.0,
        epsilon: float = 1e-5,
    ) -> Value:
        """Conv without bias, then BatchNormalization."""
        return self.batch_norm(
            self.conv(x, out, kernel, stride=stride, pad=pad, group=group, bias=False), gain=gain, epsilon=epsilon
        )

    def gemm(self, x: Value, out: int, *, gain: float = 1.0) -> Value:
        """Gemm [N, C] -> [N, out], the weight stored [out, C]."""
        name = self._unique("Gemm")
        weight = self.he(f"{name}.weight", [out, x.channels], x.channels, gain)
        bias = self.normal(f"{name}.bias", [out], 0.05)
        return self._node("Gemm", name, [x, weight, bias], out, alpha=1.0, beta=1.0, transB=1)

    def linear(self, x: Value, out: int, *, gain: float = 1.0) -> Value:
        """MatMul and Add [N, T, C] -> [N, T, out], the weight stored [C, out]."""
        name = self._unique("MatMul")
        weight = self.he(f"{name}.weight", [x.channels, out], x.channels, gain)
        product = self._node("MatMul", name, [x, weight], out)
        return self.op("Add", self.normal(f"{name}.bias", [out], 0.05), product, channels=out)

    def layer_norm(self, x: Value) -> Value:
        """LayerNormalization over the last dimension."""
        name = self._unique("LayerNormalization")
        scale = self.uniform(f"{name}.weight", [x.channels], 0.8, 1.2)
        bias = self.normal(f"{name}.bias", [x.channels], 0.1)
        return self._node("LayerNormalization", name, [x, scale, bias], axis=-1, epsilon=1e-5)

    def lstm(self, x: Value, hidden: int) -> Value:
        """A forward LSTM [T, N, C] -> [T, 1, N, hidden] from a zero state, weights in twice PyTorch's range ±1 /
        √hidden."""
        name = self._unique("LSTM")
        bound = 2.0 / math.sqrt(hidden)
        weights = [
            self.uniform(f"{name}.weight", [1, 4 * hidden, x.channels], -bound, bound),
            self.uniform(f"{name}.recurrence", [1, 4 * hidden, hidden], -bound, bound),
            self.uniform(f"{name}.bias", [1, 8 * hidden], -bound, bound),
        ]
        return self._node("LSTM", name, [x, *weights], hidden, hidden_size=hidden)

    # Layers without weights.

    def relu(self, x: Value) -> Value:
        """max(x, 0)."""
        return self.op("Relu", x)

    def relu6(self, x: Value) -> Value:
        """min(max(x, 0), 6), written Clip as the exporter does."""
        return self.op("Clip", x, self.constant(0.0), self.constant(6.0))

    def max_pool(self, x: Value, kernel: int, stride: int, *, pad: int = 0, ceil: bool = False) -> Value:
        """MaxPool over squares."""
        return self.op(
            "MaxPool",
            x,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
            dilations=[1, 1],
            ceil_mode=int(ceil),
        )

    def average_pool(self, x: Value, kernel: int, stride: int, *, pad: int = 0) -> Value:
        """AveragePool over squares; padding counts, as PyTorch's default has it."""
        return self.op(
            "AveragePool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, count_include_pad=1
        )

    def flatten(self, x: Value, positions: int = 1) -> Value:
        """Flatten [N, C, ...] -> [N, C · positions]."""
        return self.op("Flatten", x, channels=x.channels * positions, axis=1)

    def global_pool(self, x: Value) -> Value:
        """The mean over all positions [N, C, H, W] -> [N, C]."""
        return self.flatten(self.op("GlobalAveragePool", x))

    def concat(self, *values: Value) -> Value:
        """Concat along the channels."""
        return self.op("Concat", *values, channels=sum(v.channels for v in values), axis=1)

    def add(self, a: Value, b: Value) -> Value:
        """a + b."""
        return self.op("Add", a, b)

    def reshape(self, x: Value, *shape: int) -> Value:
        """Reshape; 0 keeps a dimension, -1 takes what is left."""
        return self.op("Reshape", x, self.ints(*shape))

    def transpose(self, x: Value, *perm: int) -> Value:
        """Transpose."""
        return self.op("Transpose", x, perm=perm)

    def slice(self, x: Value, start: int, end: int, axis: int) -> Value:
        """x[start:end] along one axis."""
        return self.op("Slice", x, self.ints(start), self.ints(end), self.ints(axis), self.ints(1))

    def softmax_output(self, x: Value, batch: Dim) -> onnx.ModelProto:
        """Ends a classifier: Softmax over x [batch, classes] as output `probabilities`; returns the model."""
        self.output("probabilities", self.op("Softmax", x, axis=-1), [batch, x.channels])
        return self.model()


def parameter_count(model: onnx.ModelProto) -> int:
    """Trainable parameters: elements of the float initializers, less the running statistics of BatchNormalization."""
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]}
    weights = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and t.name not in statistics]
    return sum(math.prod(t.dims) for t in weights)


def require_multiple(what: str, value: int, factor: int) -> None:
    """Checks a size parameter.

    Raises:
        ModelError: value is not a positive multiple of factor.
    """
    if value < factor or value % factor:
        near = max(factor, round(value / factor) * factor)
        raise ModelError(f"{what}: got {value}, expected a positive multiple of {factor}; try {near}")


def _spatial(value: int | Sequence[int], rank: int) -> list[int]:
    return [value] * rank if isinstance(value, int) else list(value)
