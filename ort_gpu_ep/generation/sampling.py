"""Draws of a token from logits, as a model of its own: it runs behind a decoder's step, on the same device.

The host brings a random number for each token and no logits cross. Sums are those of powers in falling order, so a draw
depends on the seed alone, not on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.generation.step import LOGITS, NEXT, NOTHING
from ort_gpu_ep.memo import Memo
from ort_gpu_ep.plugin import Turns
from ort_gpu_ep.session.bound_runs import state_of
from ort_gpu_ep.session.session import InferenceSession

DRAW = "sampling.draw"
"""An input, [rows, 4]: 1 / temperature, top_p, a random number in [0, 1), and among how many tokens to draw."""

MOST_LIKELY = np.array([[1, 1, 0, 1]], np.float32)
"""DRAW of a row that takes the most likely token."""

_STEEPEST = 1e30
"""At most 1 / temperature, so that 0 times it is still 0; and one share of this at least is top_p, which float32 does
not make 0."""

_MOST = np.float32(1.7e38)
"""Half of the largest float32: the difference of two such numbers is one, too."""

KEPT = 8
"""Sessions beside the model's own that are kept: of samplers for values of top_k, and of searches with beams."""

_PART = 512
"""Powers that are summed by one workgroup, where there are several times as many."""


@dataclass
class Draw:
    """What a user wants. rng: gives a number for each token."""

    temperature: float
    top_k: int
    top_p: float
    rng: np.random.Generator = field(repr=False)

    def next(self) -> npt.NDArray[np.float32]:
        """DRAW for one more token, [1, 4]."""
        steepness, share = min(1 / self.temperature, _STEEPEST), max(self.top_p, 1 / _STEEPEST)
        return np.array([[steepness, share, self.rng.random(), self.top_k or np.inf]], np.float32)


def draw_of(temperature: float, top_k: int, top_p: float, seed: int | None) -> Draw | None:
    """None: the most likely token. Raises ConfigError."""
    try:
        temperature, top_k, top_p, rng = float(temperature), index(top_k), float(top_p), np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"generate: got temperature={temperature!r}, top_k={top_k!r}, top_p={top_p!r}, seed={seed!r}: {error}"
        ) from error
    if not temperature >= 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ConfigError(
            f"generate: got temperature={temperature}, top_k={top_k}, top_p={top_p}; expected temperature >= 0, "
            f"top_k >= 0, 0 < top_p <= 1"
        )
    return None if temperature == 0 or top_k == 1 else Draw(temperature, top_k, top_p, rng)


class Sampler:
    """Draws a token for each row, among the `count` most likely ones of a vocabulary or fewer. kind: numpy type of the
    logits; ids: of tokens."""

    def __init__(
        self,
        vocabulary: int,
        count: int,
        kind: npt.DTypeLike,
        ids: npt.DTypeLike,
        options: Mapping[str, Any],
        rows: int = 1,
    ) -> None:
        kinds = (helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in (kind, ids))
        self.session = session_of_graph(_graph(rows, vocabulary, count, *kinds), options)

    def turns(self, logits: Any, draws: Sequence[Any], tokens: Sequence[Any]) -> Turns | None:
        """Runs over values that stay on the device, in turn. None where onnxruntime is to do them: it wants values of
        this session."""
        values = [({LOGITS: logits, DRAW: draw}, {NEXT: token}) for draw, token in zip(draws, tokens, strict=True)]
        return Turns.of(self.session, state_of(self.session), values)

    def tokens(self, logits: Any, numbers: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """[rows, 1], waited for. logits: an OrtValue of no session; numbers: of Draws."""
        binding = self.session.io_binding()
        binding.bind_ortvalue_input(LOGITS, logits)
        binding.bind_cpu_input(DRAW, numbers)
        binding.bind_output(NEXT, "cpu")
        self.session.run_with_iobinding(binding)
        return np.asarray(binding.get_outputs()[0].numpy())


class Samplers(Memo[Sampler]):
    """The samplers of a generation, by rows and counts. As Sampler has them: kind, ids, options."""

    def __init__(self, vocabulary: int, kind: npt.DTypeLike, ids: npt.DTypeLike, options: Mapping[str, Any]) -> None:
        super().__init__(KEPT)
        self._vocabulary, self._kind, self._ids, self._options = vocabulary, kind, ids, options

    def of(self, draws: Iterable[Draw], rows: int = 1) -> Sampler:
        """For all of these draws, in a batch of so many rows: it sorts as many tokens as the one with the largest top_k
        wants, and of several rows as many as a power of two, so that others can join."""
        count = max(min(draw.top_k or self._vocabulary, self._vocabulary) for draw in draws)
        count = count if rows == 1 else min(1 << (count - 1).bit_length(), self._vocabulary)
        sampler = self.get((rows, count))
        return sampler or self.put(
            (rows, count), Sampler(self._vocabulary, count, self._kind, self._ids, self._options, rows)
        )

    def drawn(self, draw: Draw, logits: Any) -> int:
        """A token for logits [1, 1, vocabulary], an OrtValue of no session."""
        return int(self.of([draw]).tokens(logits, draw.next()).item())


class Nodes:
    """A graph as it is written."""

    def __init__(self) -> None:
        self.nodes, self.held = list[onnx.NodeProto](), list[onnx.TensorProto]()

    def __call__(self, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """inputs: names, or arrays that become constants. Returns the name of the output, or the names."""
        names = [operand if isinstance(operand, str) else self.hold(operand) for operand in inputs]
        results = [f"{op}{len(self.nodes)}.{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, names, results, **attributes))
        return results[0] if outputs == 1 else results

    def hold(self, value: Any) -> str:
        name = f"constant{len(self.held)}"
        self.held.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def session_of_graph(graph: onnx.GraphProto, options: Mapping[str, Any]) -> InferenceSession:
    """A session of a graph of this package's own, which says errors alone. options: of its provider."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    return InferenceSession(model.SerializeToString(), settings, provider_options=dict(options))


def _graph(rows: int, vocabulary: int, count: int, kind: int, ids: int) -> onnx.GraphProto:
    """LOGITS [rows, 1, vocabulary] and DRAW -> NEXT [rows, 1]; NOTHING where a row's largest logit is NaN or -inf: no
    token is likely then.

    Infinite logits count as _MOST, so that their differences are numbers; the power of -inf is 0 at any temperature.
    """
    op = Nodes()
    logits = op("Cast", op("Reshape", LOGITS, np.array([rows, vocabulary])), to=TensorProto.FLOAT)
    values, order = op("TopK", logits, np.array([count]), outputs=2)
    steepness, share, chance, kept = op("Split", DRAW, np.array([1, 1, 1, 1]), outputs=4, axis=1)
    zero, one, end, none = (
        np.array([0]),
        np.array([1]),
        np.array([np.iinfo(np.int64).max]),
        np.zeros((1, 1), np.float32),
    )
    lowest, first = np.array([[-np.inf]], np.float32), op("Clip", op("Slice", values, zero, one, one), -_MOST, _MOST)
    powers = op("Exp", op("Mul", op("Sub", op("Clip", values, -_MOST, _MOST), first), steepness))
    among = op("Less", np.arange(count, dtype=np.float32)[None], kept)
    powers = op("Where", op("And", op("Greater", values, lowest), among), powers, none)
    powers, sums = _summed(op, powers, rows, count)
    total = op("Slice", sums, np.array([-1]), end, one)
    likely = op("Less", op("Sub", sums, powers), op("Mul", total, share))
    most = op("ReduceMax", op("Where", likely, sums, none), axes=[1])
    passed = op("And", op("LessOrEqual", sums, op("Mul", most, chance)), likely)
    picked = op("ReduceSum", op("Cast", passed, to=TensorProto.INT32), one)
    last = op("Sub", op("ReduceSum", op("Cast", likely, to=TensorProto.INT32), one), np.ones((1, 1), np.int32))
    # the last one where rounding has passed them all
    place = op("Cast", op("Max", op("Min", picked, last), np.zeros((1, 1), np.int32)), to=TensorProto.INT64)
    token = op("GatherElements", order, place, axis=1)
    token = op("Where", op("Less", last, np.zeros((1, 1), np.int32)), np.array([[NOTHING]]), token)
    op.nodes.append(helper.make_node("Cast", [token], [NEXT], to=ids))
    return helper.make_graph(
        op.nodes,
        "sampling",
        [
            helper.make_tensor_value_info(LOGITS, kind, [rows, 1, vocabulary]),
            helper.make_tensor_value_info(DRAW, TensorProto.FLOAT, [rows, 4]),
        ],
        [helper.make_tensor_value_info(NEXT, ids, [rows, 1])],
        op.held,
    )


def _summed(op: Nodes, powers: str, rows: int, count: int) -> tuple[str, str]:
    """The powers, perhaps with zeros behind them, and their running sums: many in parts, whose totals are summed
    then."""
    parts, last = -(-count // _PART), np.array([-1])
    if parts < 4:
        return powers, op("CumSum", powers, np.array(1))
    powers = op("Pad", powers, np.array([0, 0, 0, parts * _PART - count]))
    within = op("CumSum", op("Reshape", powers, np.array([rows, parts, _PART])), np.array(2))
    totals = op("Slice", within, last, np.array([np.iinfo(np.int64).max]), np.array([2]))
    sums = op("Add", within, op("CumSum", totals, np.array(1), exclusive=1))
    return powers, op("Reshape", sums, np.array([rows, -1]))
