"""LSTM, GRU and RNN: gates are computed again from the states, all steps at once; only what hangs together over time is
a function.

Shapes: x [T, B, I], w [directions, gates * H, I], r [directions, gates * H, H], b [directions, 2 * gates * H], y [T,
directions, B, H].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ort_gpu_ep.training.functions import function
from ort_gpu_ep.training.gradient import Gradients, Site, gradient
from ort_gpu_ep.training.writer import Value

_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


@dataclass
class Way:
    """One direction of a layer, its sequences in the order in which it goes through them.

    w [gates * H, I], r [gates * H, H]; b: both biases side by side or None; dy [T, B, H]: the gradient of what it
    gives. before [T, B, H]: the state that each step began with.
    """

    n: Site
    index: int
    reverse: bool
    w: Value
    r: Value
    b: Value | None
    x: Value
    dy: Value
    before: Value
    dh_last: Value

    @property
    def hidden(self) -> int:
        return self.r.shape[1]

    @property
    def gates(self) -> int:
        return self.r.shape[0] // self.r.shape[1]

    def flat(self, v: Value) -> Value:
        """[T, B, n] -> [T * B, n]."""
        return self.n.writer.reshape(v, [v.shape[0] * v.shape[1], v.shape[2]])

    def steps(self, v: Value) -> Value:
        """[T * B, n] -> [T, B, n]."""
        return self.n.writer.reshape(v, [*self.dy.shape[:2], v.shape[-1]])

    def bias(self, part: int) -> Value | None:
        """The input's (0) or the recurrence's (1) bias [gates * H]."""
        size = self.gates * self.hidden
        return None if self.b is None else self.n.writer.slice(self.b, 0, part * size, part * size + size)

    def product(self, v: Value, weight: Value, bias: Value | None) -> Value:
        """v weight' + bias of each row [T * B, ...]."""
        inputs = [self.flat(v), weight, *([bias] if bias is not None else [])]
        return self.n.writer.op("Gemm", *inputs, transB=1)

    def part(self, v: Value, index: int, count: int = 1) -> Value:
        """Gates index to index + count of a value whose last axis holds them."""
        return self.n.writer.slice(v, v.rank - 1, index * self.hidden, (index + count) * self.hidden)

    def call(self, name: str, outputs: int, *inputs: Value) -> list[Value]:
        """A function over the sequence: (dA [T, B, gates * H], then gradients of states [B, H])."""
        steps, batch, _ = self.dy.shape
        types = [
            ("float32", (steps, batch, self.gates * self.hidden)),
            *[("float32", (batch, self.hidden))] * (outputs - 1),
        ]
        return self.n.writer.call(function(name, self.n.writer.opset), types, *inputs)


@dataclass
class Grads:
    """What a direction gives: gradients of the pre-activations as W sees them and as R does, of r itself, and of the
    first states."""

    by_input: Value
    by_state: Value
    r: Value
    first: list[Value]


def _lstm_way(v: Way) -> Grads:
    """Gates i, o, f, g: c = f c + i g, h = o tanh c."""
    n, w = v.n, v.n.writer
    total = v.product(v.x, v.w, v.bias(0)) + v.product(v.before, v.r, v.bias(1))
    opened, added = w.op("Sigmoid", v.part(total, 0, 3)), w.op("Tanh", v.part(total, 3))
    c0 = _first_state(n, v, 6)
    (cells,) = w.call(
        function("LSTMCells", w.opset),
        [("float32", v.dy.shape)],
        v.steps(v.part(opened, 2)),
        v.steps(v.part(opened, 0) * added),
        c0,
    )
    before = w.op("Concat", w.reshape(c0, [1, *c0.shape]), w.slice(cells, 0, 0, cells.shape[0] - 1), axis=0)
    gates = v.steps(w.op("Concat", opened, added, axis=1))
    da, dh, dc = v.call("LSTMBackward", 3, v.dy, v.dh_last, _last_gradient(n, v, 2), gates, cells, before, v.r)
    return Grads(da, da, w.op("Gemm", v.flat(da), v.flat(v.before), transA=1), [dh, dc])


def _gru_gates(v: Way, hidden: Value) -> tuple[Value, Value, Value]:
    """z and r side by side, and what is left of the input's and the state's product. hidden: unused rows of neither are
    made."""
    w = v.n.writer
    from_x, from_h = v.product(v.x, v.w, v.bias(0)), hidden
    return w.op("Sigmoid", v.part(from_x, 0, 2) + v.part(from_h, 0, 2)), v.part(from_x, 2), from_h


def _gru_after(v: Way) -> Grads:
    """n = tanh(x Wh + Wbh + r q), q = h Rh + Rbh: the reset is applied to the product."""
    w = v.n.writer
    zr, from_x, from_h = _gru_gates(v, v.product(v.before, v.r, v.bias(1)))
    q = v.part(from_h, 2)
    new = w.op("Tanh", from_x + v.part(zr, 1) * q)
    gates = v.steps(w.op("Concat", zr, new, axis=1))
    da, dh = v.call("GRUBackward", 2, v.dy, v.dh_last, gates, v.before, v.steps(q), v.r)
    by_state = w.op("Concat", v.part(da, 0, 2), v.part(da, 2) * v.steps(v.part(zr, 1)), axis=2)
    return Grads(da, by_state, w.op("Gemm", v.flat(by_state), v.flat(v.before), transA=1), [dh])


def _gru_first(v: Way) -> Grads:
    """n = tanh(x Wh + Wbh + (r h) Rh + Rbh): the reset is applied to the state."""
    w, size = v.n.writer, v.hidden
    r_gates, r_new = w.slice(v.r, 0, 0, 2 * size), w.slice(v.r, 0, 2 * size, 3 * size)
    bias = v.bias(1)
    b_gates, b_new = (
        (None, None) if bias is None else (w.slice(bias, 0, 0, 2 * size), w.slice(bias, 0, 2 * size, 3 * size))
    )
    zr, from_x, _ = _gru_gates(v, v.product(v.before, r_gates, b_gates))
    reset = v.steps(v.part(zr, 1)) * v.before
    new = w.op("Tanh", from_x + v.product(reset, r_new, b_new))
    gates = v.steps(w.op("Concat", zr, new, axis=1))
    da, dh = v.call("GRUBackwardResetFirst", 2, v.dy, v.dh_last, gates, v.before, r_gates, r_new)
    flat = v.flat(da)
    dr = w.op(
        "Concat",
        w.op("Gemm", v.part(flat, 0, 2), v.flat(v.before), transA=1),
        w.op("Gemm", v.part(flat, 2), v.flat(reset), transA=1),
        axis=0,
    )
    return Grads(da, da, dr, [dh])


def _rnn_way(v: Way) -> Grads:
    w, name = v.n.writer, (v.n.attr("activations") or ("Tanh",))[v.index]
    total = v.product(v.x, v.w, v.bias(0)) + v.product(v.before, v.r, v.bias(1))
    if name == "Relu":
        slope = w.op("Where", w.op("Greater", total, w.like(0.0, total)), w.like(1.0, total), w.like(0.0, total))
    else:
        y = w.op(name, total)
        slope = 1.0 - y * y if name == "Tanh" else y * (1.0 - y)
    da, dh = v.call("RNNBackward", 2, v.dy, v.dh_last, v.steps(slope), v.r)
    return Grads(da, da, w.op("Gemm", v.flat(da), v.flat(v.before), transA=1), [dh])


# ---- what the three share: inputs x, w, r, b, sequence_lens, initial_h, initial_c (LSTM), peepholes (LSTM)


def _recurrent(n: Site, through: Callable[[Way], Grads]) -> Gradients:
    _check(n)
    w, reverse = n.writer, [n.attr("direction") == "reverse"]
    if n.attr("direction") == "bidirectional":
        reverse = [False, True]
    ways = [_way(n, index, back) for index, back in enumerate(reverse)]
    grads = [through(v) for v in ways]
    dx = None
    if n.wants(0):
        parts = [
            _in_order(n, v, v.steps(w.op("MatMul", v.flat(g.by_input), v.w))) for v, g in zip(ways, grads, strict=True)
        ]
        dx = sum(parts[1:], parts[0])
    dw = (
        [w.op("Gemm", v.flat(g.by_input), v.flat(v.x), transA=1) for v, g in zip(ways, grads, strict=True)]
        if n.wants(1)
        else []
    )
    db = [_bias_gradient(v, g) for v, g in zip(ways, grads, strict=True)] if n.wants(3) else []
    states = [[g.first[k] for g in grads] if n.wants(5 + k) else [] for k in range(len(grads[0].first))]
    return [
        dx,
        _stacked(n, dw),
        _stacked(n, [g.r for g in grads]) if n.wants(2) else None,
        _stacked(n, db),
        None,
        *(_stacked(n, s) for s in states),
    ]


def _check(n: Site) -> None:
    """Raises TrainingError for forms without a gradient."""
    lengths = n.optional(4)
    if lengths is not None and (lengths.content is None or (lengths.content != n.x.shape[0]).any()):
        raise n.unsupported("sequence_lens is given")
    if n.optional(7) is not None:
        raise n.unsupported("it has peepholes")
    if n.attr("layout") or n.attr("clip") is not None or n.attr("input_forget"):
        raise n.unsupported("layout=1, clip or input_forget is set")
    usual = _ACTIVATIONS[n.node.op_type]
    activations = n.attr("activations") or usual
    is_known = (
        set(activations) <= {"Tanh", "Relu", "Sigmoid"}
        if n.node.op_type == "RNN"
        else all(tuple(activations[i : i + len(usual)]) == usual for i in range(0, len(activations), len(usual)))
    )
    if not is_known:
        raise n.unsupported(f"activations {', '.join(activations)}")


def _way(n: Site, index: int, reverse: bool) -> Way:
    w = n.writer
    steps, batch, _ = n.x.shape

    def own(v: Value, axis: int) -> Value:
        """The direction's part of a value that has one for each."""
        return w.reshape(w.slice(v, axis, index, index + 1), [size for i, size in enumerate(v.shape) if i != axis])

    weight, recurrence, bias = own(n.input(1), 0), own(n.input(2), 0), n.optional(3)
    hidden = recurrence.shape[1]
    states = n.writer.values.get(n.node.output[0])
    if states is None:
        states = w.add_output(n.node, 0, n.x.dtype, (steps, n.input(1).shape[0], batch, hidden))
    way = own(states, 1)
    dy = w.zeros(way.shape, n.x.dtype) if n.grads[0] is None else own(n.grads[0], 1)
    v = Way(n, index, reverse, weight, recurrence, None if bias is None else own(bias, 0), n.x, dy, way, dy)
    v.x, v.dy, way = (_in_order(n, v, value) for value in (n.x, dy, way))
    first = w.reshape(_first_state(n, v, 5), [1, batch, hidden])
    v.before = w.op("Concat", first, w.slice(way, 0, 0, steps - 1), axis=0) if steps > 1 else first
    v.dh_last = _last_gradient(n, v, 1)
    return v


def _in_order(n: Site, v: Way, value: Value) -> Value:
    """A sequence as the direction goes through it, or back: the same turn."""
    if not v.reverse:
        return value
    return n.writer.op("Slice", value, n.writer.ints(-1), n.writer.ints(-(2**31)), n.writer.ints(0), n.writer.ints(-1))


def _first_state(n: Site, v: Way, index: int) -> Value:
    """A direction's initial state [B, H]; zeros where none is given."""
    state, shape = n.optional(index), v.dy.shape[1:]
    if state is None:
        return n.writer.zeros(shape, n.x.dtype)
    return n.writer.reshape(n.writer.slice(state, 0, v.index, v.index + 1), shape)


def _last_gradient(n: Site, v: Way, output: int) -> Value:
    """The gradient of a direction's last state [B, H] as an output of its own."""
    grad, shape = n.grads[output] if output < len(n.grads) else None, v.dy.shape[1:]
    if grad is None:
        return n.writer.zeros(shape, n.x.dtype)
    return n.writer.reshape(n.writer.slice(grad, 0, v.index, v.index + 1), shape)


def _bias_gradient(v: Way, g: Grads) -> Value:
    w = v.n.writer
    parts = (g.by_input,) if g.by_input is g.by_state else (g.by_input, g.by_state)
    sums = [w.reduce("ReduceSum", v.flat(part), [0], keepdims=False) for part in parts]
    return w.op("Concat", sums[0], sums[-1], axis=0)


def _stacked(n: Site, parts: list[Value]) -> Value | None:
    """The directions' parts along a first axis; None where there are none."""
    if not parts:
        return None
    first = [n.writer.reshape(p, [1, *p.shape]) for p in parts]
    return n.writer.op("Concat", *first, axis=0) if len(first) > 1 else first[0]


gradient("LSTM")(lambda n: _recurrent(n, _lstm_way))
gradient("GRU")(lambda n: _recurrent(n, _gru_after if n.attr("linear_before_reset") else _gru_first))
gradient("RNN")(lambda n: _recurrent(n, _rnn_way))
