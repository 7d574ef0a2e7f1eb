"""Beam search: the answers with the best sums of log-probabilities, several of which are continued at once.

A step reads a token of each beam. The device adds up what is most likely behind all of them, and the host gets a few
candidates of each step. The caches' rows are put in the order of the beams that go on; what a decoder has of an encoder
is the same for all.

Source: the search of transformers' `generate`, https://huggingface.co/docs/transformers/main_classes/text_generation
(num_beams, length_penalty, early_stopping).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from ort_gpu_ep.errors import ConfigError
from ort_gpu_ep.generation.growing import Growing, is_cross
from ort_gpu_ep.generation.sampling import KEPT, Nodes, session_of_graph
from ort_gpu_ep.generation.step import LOGITS, NEXT, NOTHING, checked
from ort_gpu_ep.memo import Memo
from ort_gpu_ep.session.session import InferenceSession

_SUMS, _VALUES, _PLACES, _ROWS = "beams.sums", "beams.values", "beams.places", "beams.rows"
"""Log-probabilities of the beams so far, [beams, 1]; the largest of them with one more token, [candidates]; beam times
vocabulary plus token of each, [candidates]; and which rows the caches are to have, [beams]."""

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True)
class Beam:
    """An answer. tokens: behind the start, with the one of `stop`. score: sum of their log-probabilities, divided by
    their number to the power of the length penalty."""

    tokens: list[int]
    score: float


@dataclass
class Search:
    """What the host knows of a search. beams: that go on, the best first: sums of log-probabilities and tokens.
    finished: the best ended ones, [at most num_beams]. count: tokens of an answer at most."""

    num_beams: int
    count: int
    length_penalty: float
    early_stopping: EarlyStopping
    stop: Collection[int]

    def __post_init__(self) -> None:
        self.beams: list[tuple[float, list[int]]] = [(0.0, [])]
        self.finished = list[Beam]()

    def candidates(self, vocabulary: int) -> int:
        """How many a step needs, so that enough of them go on: one of each beam may end with each token of `stop`."""
        return min(max(2, 1 + len(self.stop)) * self.num_beams, len(self.beams) * vocabulary)

    def advance(self, sums: Sequence[float], parents: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Takes candidates, the best first. Returns of each beam that goes on which one it was; empty at the end."""
        length = len(self.beams[0][1]) + 1
        going, origins = list[tuple[float, list[int]]](), list[int]()
        for rank, (total, parent, token) in enumerate(zip(sums, parents, tokens, strict=True)):
            answer = [*self.beams[parent][1], token]
            if token not in self.stop and length < self.count:
                going.append((total, answer))
                origins.append(parent)
            elif rank < self.num_beams and total > -np.inf:
                self.finished.append(Beam(answer, total / length**self.length_penalty))
        self.finished = sorted(self.finished, key=lambda beam: -beam.score)[: self.num_beams]
        self.beams = going[: self.num_beams]
        return origins[: self.num_beams] if self._goes_on(length) else []

    def _goes_on(self, length: int) -> bool:
        """Whether one that goes on may become better than one of those that have ended."""
        if len(self.finished) < self.num_beams or not self.beams:
            return bool(self.beams)
        longest = self.count if self.early_stopping == "never" and self.length_penalty > 0 else length
        best = self.beams[0][0] / longest**self.length_penalty
        return self.early_stopping is not True and best > self.finished[-1].score


def search_of(num_beams: int, count: int, length_penalty: float, early_stopping: EarlyStopping, stop: Any) -> Search:
    """Raises ConfigError."""
    try:
        beams, penalty = index(num_beams), float(length_penalty)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"generate: num_beams={num_beams!r}, length_penalty={length_penalty!r}: {error}") from error
    if beams < 1 or count < 1 or not np.isfinite(penalty) or early_stopping not in (False, True, "never"):
        raise ConfigError(
            f"generate: got num_beams={num_beams}, max_new_tokens={count}, length_penalty={length_penalty}, "
            f"early_stopping={early_stopping!r}; expected num_beams >= 1, max_new_tokens >= 1, a finite length_penalty, "
            f"early_stopping of False, True and 'never'"
        )
    return Search(beams, count, penalty, early_stopping, stop)


class BeamSearch:
    """Searches by the steps of a decoder. kind: numpy type of the logits. options: of the sessions' provider."""

    def __init__(
        self, growing: Growing, vocabulary: int, kind: npt.DTypeLike, options: Mapping[str, Any], device: Sequence[Any]
    ) -> None:
        self._growing, self._vocabulary, self._kind = growing, vocabulary, kind
        self._options, self._device = options, tuple(device)
        self._sessions = Memo[InferenceSession](KEPT)

    def best(self, prompt: npt.NDArray[Any], search: Search, encoded: Mapping[str, Any]) -> list[Beam]:
        """The answers behind a prompt, [1, S], the best first. encoded: inputs that an encoder gave."""
        ids, total = prompt, prompt.shape[1]
        caches: dict[str, Any] | None = None
        while True:
            tokens, logits, caches = self._growing.step(ids, total, caches, encoded, [NEXT, LOGITS])
            if NOTHING in tokens:
                checked(NOTHING, total)
            sums, places = self._candidates(logits, search)
            parents, chosen = np.divmod(places, self._vocabulary)
            order = search.advance(sums.tolist(), parents.tolist(), chosen.tolist())
            if not order:
                return search.finished
            if len(order) != len(ids):  # behind the prompt: rows of one are those of all
                encoded, caches = self._ordered(encoded, order), self._ordered(caches, order)
            elif order != [*range(len(ids))]:
                caches |= self._ordered({n: value for n, value in caches.items() if not is_cross(n)}, order)
            ids = np.array([[answer[-1]] for _, answer in search.beams], prompt.dtype)
            total += 1

    def _candidates(self, logits: Any, search: Search) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        count = search.candidates(self._vocabulary)
        session = self._sessions.get(count) or self._opened(count, _candidates(self._vocabulary, count, self._kind))
        binding = session.io_binding()
        binding.bind_ortvalue_input(LOGITS, logits)
        binding.bind_cpu_input(_SUMS, np.array([[total] for total, _ in search.beams], np.float32))
        for name in (_VALUES, _PLACES):
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        values, places = (value.numpy() for value in binding.get_outputs())
        return values, places

    def _ordered(self, values: Mapping[str, Any], order: Sequence[int]) -> dict[str, Any]:
        """Values on the device with these rows."""
        if not values:
            return {}
        kinds = {name: (value.element_type(), len(value.shape())) for name, value in values.items()}
        key = tuple(kinds.items())
        session = self._sessions.get(key) or self._opened(key, _order(kinds))
        binding = session.io_binding()
        binding.bind_cpu_input(_ROWS, np.array(order))
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in values:
            binding.bind_output(_ROWS + name, *self._device)
        session.run_with_iobinding(binding)
        return dict(zip(values, binding.get_outputs(), strict=True))

    def _opened(self, key: Hashable, graph: onnx.GraphProto) -> InferenceSession:
        return self._sessions.put(key, session_of_graph(graph, self._options))


def _candidates(vocabulary: int, count: int, kind: npt.DTypeLike) -> onnx.GraphProto:
    """LOGITS [beams, 1, vocabulary], _SUMS -> _VALUES, _PLACES."""
    op, info = Nodes(), helper.make_tensor_value_info
    logits = op("Cast", op("Reshape", LOGITS, np.array([-1, vocabulary])), to=TensorProto.FLOAT)
    sums = op("Add", op("LogSoftmax", logits, axis=1), _SUMS)
    values, places = op("TopK", op("Reshape", sums, np.array([-1])), np.array([count]), outputs=2)
    op.nodes += [helper.make_node("Identity", [values], [_VALUES]), helper.make_node("Identity", [places], [_PLACES])]
    inputs = [
        info(LOGITS, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), ["beams", 1, vocabulary]),
        info(_SUMS, TensorProto.FLOAT, ["beams", 1]),
    ]
    outputs = [info(_VALUES, TensorProto.FLOAT, [count]), info(_PLACES, TensorProto.INT64, [count])]
    return helper.make_graph(op.nodes, "candidates", inputs, outputs, op.held)


def _order(kinds: Mapping[str, tuple[int, int]]) -> onnx.GraphProto:
    """Values and _ROWS -> these rows of the values. kinds: element type and rank of each."""
    inputs, outputs = [helper.make_tensor_value_info(_ROWS, TensorProto.INT64, ["beams"])], list[onnx.ValueInfoProto]()
    for name, (kind, rank) in kinds.items():
        sizes = [f"{name}.{axis}" for axis in range(1, rank)]
        inputs.append(helper.make_tensor_value_info(name, kind, ["rows", *sizes]))
        outputs.append(helper.make_tensor_value_info(_ROWS + name, kind, ["beams", *sizes]))
    nodes = [helper.make_node("Gather", [name, _ROWS], [_ROWS + name]) for name in kinds]
    return helper.make_graph(nodes, "order", inputs, outputs)
