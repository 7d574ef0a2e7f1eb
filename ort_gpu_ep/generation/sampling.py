"""Draws of a token from logits, as a model of its own: it runs behind a decoder's step, on the same device.

The host brings a random number for each token and no logits cross. Sums are those of powers in falling order, so a draw
depends on the seed alone, not on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from ort_gpu_ep.plugin import Turns
from ort_gpu_ep.session.bound_runs import state_of
from ort_gpu_ep.session.session import InferenceSession

DRAW = "sampling.draw"
"""An input: 1 / temperature, top_p, a random number in [0, 1)."""

_STEEPEST = 1e30
"""At most 1 / temperature, so that 0 times it is still 0; and one share of this at least is top_p, which float32 does
not make 0."""

_MOST = np.float32(1.7e38)
"""Half of the largest float32: the difference of two such numbers is one, too."""

_ROW = 512
"""Powers that are summed by one workgroup, where there are several times as many."""


@dataclass
class Draw:
    """What a user wants. rng: gives a number for each token."""

    temperature: float
    top_k: int
    top_p: float
    rng: np.random.Generator = field(repr=False)

    def next(self) -> npt.NDArray[np.float32]:
        """DRAW for one more token."""
        return np.array(
            [min(1 / self.temperature, _STEEPEST), max(self.top_p, 1 / _STEEPEST), self.rng.random()], np.float32
        )


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
    """Draws among the `count` most likely tokens of a vocabulary. kind: numpy type of the logits; ids: of tokens."""

    def __init__(
        self, vocabulary: int, count: int, kind: npt.DTypeLike, ids: npt.DTypeLike, options: Mapping[str, Any]
    ) -> None:
        model = _model(vocabulary, count, *(helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in (kind, ids)))
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        self.session = InferenceSession(model.SerializeToString(), settings, provider_options=dict(options))

    def turns(self, logits: Any, draws: Sequence[Any], tokens: Sequence[Any]) -> Turns | None:
        """Runs over values that stay on the device, in turn. None where onnxruntime is to do them: it wants values of
        this session."""
        values = [({LOGITS: logits, DRAW: draw}, {NEXT: token}) for draw, token in zip(draws, tokens, strict=True)]
        return Turns.of(self.session, state_of(self.session), values)

    def token(self, logits: Any, numbers: npt.NDArray[np.float32]) -> int:
        """One token, waited for. logits: an OrtValue of no session; numbers: of a Draw."""
        binding = self.session.io_binding()
        binding.bind_ortvalue_input(LOGITS, logits)
        binding.bind_cpu_input(DRAW, numbers)
        binding.bind_output(NEXT, "cpu")
        self.session.run_with_iobinding(binding)
        return int(binding.get_outputs()[0].numpy().item())


class _Nodes:
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


def _model(vocabulary: int, count: int, kind: int, ids: int) -> onnx.ModelProto:
    """LOGITS [1, 1, vocabulary] and DRAW -> NEXT [1, 1]; NOTHING where the largest logit is NaN or -inf: no token is
    likely then.

    Infinite logits count as _MOST, so that their differences are numbers; the power of -inf is 0 at any temperature.
    """
    op = _Nodes()
    logits = op("Cast", op("Reshape", LOGITS, np.array([vocabulary])), to=TensorProto.FLOAT)
    values, order = op("TopK", logits, np.array([count]), outputs=2)
    steepness, share, chance = op("Split", DRAW, np.array([1, 1, 1]), outputs=3)
    zero, one, end, none = np.array([0]), np.array([1]), np.array([np.iinfo(np.int64).max]), np.zeros(1, np.float32)
    lowest, first = np.array([-np.inf], np.float32), op("Clip", op("Slice", values, zero, one), -_MOST, _MOST)
    powers = op("Exp", op("Mul", op("Sub", op("Clip", values, -_MOST, _MOST), first), steepness))
    powers = op("Where", op("Greater", values, lowest), powers, none)
    powers, sums = _summed(op, powers, count)
    likely = op("Less", op("Sub", sums, powers), op("Mul", op("Slice", sums, np.array([-1]), end), share))
    most = op("ReduceMax", op("Where", likely, sums, none), axes=[0])
    passed = op("And", op("LessOrEqual", sums, op("Mul", most, chance)), likely)
    picked = op("ReduceSum", op("Cast", passed, to=TensorProto.INT32), zero)
    last = op("Sub", op("ReduceSum", op("Cast", likely, to=TensorProto.INT32), zero), np.ones(1, np.int32))
    token = op("Gather", order, op("Min", picked, last))  # the last one where rounding has passed them all
    token = op("Where", op("Less", last, np.zeros(1, np.int32)), np.array([NOTHING]), token)
    token = token if ids == TensorProto.INT64 else op("Cast", token, to=ids)
    op.nodes.append(helper.make_node("Reshape", [token, op.hold(np.array([1, 1]))], [NEXT]))
    graph = helper.make_graph(
        op.nodes,
        "sampling",
        [
            helper.make_tensor_value_info(LOGITS, kind, [1, 1, vocabulary]),
            helper.make_tensor_value_info(DRAW, TensorProto.FLOAT, [3]),
        ],
        [helper.make_tensor_value_info(NEXT, ids, [1, 1])],
        op.held,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _summed(op: _Nodes, powers: str, count: int) -> tuple[str, str]:
    """The powers, perhaps with zeros behind them, and their running sums: many in rows, whose totals are summed
    then."""
    rows, last = -(-count // _ROW), np.array([-1])
    if rows < 4:
        return powers, op("CumSum", powers, np.array(0))
    powers = op("Pad", powers, np.array([0, rows * _ROW - count]))
    within = op("CumSum", op("Reshape", powers, np.array([rows, _ROW])), np.array(1))
    totals = op("Slice", within, last, np.array([np.iinfo(np.int64).max]), np.array([1]))
    sums = op("Add", within, op("CumSum", totals, np.array(0), exclusive=1))
    return powers, op("Reshape", sums, last)
