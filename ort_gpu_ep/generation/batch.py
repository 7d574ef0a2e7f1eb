"""Answers to several prompts at once: rows of one step, which join and leave between steps (continuous batching).

A prompt is read alone, into the caches of its Generator, and these are copied on the device to a row of the batch's
caches. Each row has a length of its own, so no row waits for another one, and no cache has padding.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from ort_gpu_ep.errors import ConfigError, InputError, OutOfDeviceMemoryError
from ort_gpu_ep.generation.request import Request
from ort_gpu_ep.generation.sampling import MOST_LIKELY, Draw, Sampler
from ort_gpu_ep.generation.step import NEXT_LENGTH, NOTHING, Step, checked
from ort_gpu_ep.generation.values import AHEAD, Places, Values
from ort_gpu_ep.plugin import Turns, lacks_room
from ort_gpu_ep.processes.interrupts import uninterrupted
from ort_gpu_ep.session.bound_runs import Runs, state_of
from ort_gpu_ep.session.session import InferenceSession

ROW, _OF_ROW = "generation.row", "generation.of_row."
"""Inputs of `joining_model`: which row of the batch it is, [1, 1], and what begins the names of that row's caches."""


@dataclass(frozen=True)
class Source:
    """What a batch has of its Generator. kind: numpy type of the logits. lock: of all that is submitted.

    request: checks what Batch.add is asked for. read: the token behind a prompt; it calls with the caches that have the
    prompt's keys and values. sampler: for all of these draws, in so many rows. joining: runs of `joining_model`. leave:
    the Generator's caches may be lost.
    """

    session: InferenceSession
    step: Step
    values: Values
    vocabulary: int
    kind: npt.DTypeLike
    max_length: int
    lock: AbstractContextManager[Any]
    request: Callable[..., Request]
    read: Callable[[Request, Callable[[Mapping[str, Any]], None]], int]
    sampler: Callable[[Iterable[Draw], int], Sampler]
    joining: Callable[[], InferenceSession]
    leave: Callable[[], None]


@dataclass(eq=False)
class _Row:
    """A prompt and its answer. place: its row of the caches. length: tokens that the submitted steps read, with the
    prompt. steps: to be submitted. tokens: that have come and nobody was told of; behind: how many come before these.
    last: the newest of them. missing: how many are still to come.
    """

    place: int
    request: Request
    length: int
    steps: int
    missing: int
    behind: int
    last: int = 0
    tokens: deque[int] = field(default_factory=deque)

    def take(self, token: int) -> None:
        """A token that has come; those behind the last one are none of the answer."""
        if not self.missing:
            return
        self.tokens.append(token)
        self.last, self.missing = token, self.missing - 1
        if token in self.request.stop or token == NOTHING:
            self.missing = self.steps = 0


class Batch:
    """Rows of one step, each with a prompt and an answer of its own; made by Generator.batch.

    Rows join by `add` and leave by `remove`, or with their last token. A step takes as long for one row as for all that
    the batch has room for. All methods may be called by several threads. After an exception of the device the batch is
    closed.
    """

    def __init__(self, source: Source, rows: int) -> None:
        self._source, self._size, self._lock = source, rows, threading.RLock()
        self._rows, self._number, self._closed = dict[int, _Row](), 0, ""
        self._waiting = deque[tuple[list[_Row], Callable[[], list[int]]]]()
        self._values = values = source.values
        self._ahead = AHEAD if values.on_gpu else 1
        self._places = places = Places(values, source.step, rows, source.vocabulary, source.kind)
        if values.on_gpu and any(map(lacks_room, places.caches.values())):
            nbytes = sum(value.tensor_size_in_bytes() for value in places.caches.values())
            raise OutOfDeviceMemoryError(
                f"generate: the caches of {rows} rows of {source.max_length} tokens take {nbytes / 2**20:.0f} MiB, "
                f"and the device has no room for them. Use fewer rows, a smaller max_length, or a larger "
                f"memory_limit_mb."
            )
        counts = values.new(np.zeros((rows, 1), np.int64))  # the host knows the rows' lengths
        self._runs = Runs(
            source.session,
            [(places.inputs(at), {**places.outputs(1 - at), NEXT_LENGTH: counts}) for at in range(2)],
        )
        self._place, self._row = 0, values.new(np.zeros((1, 1), np.int64))
        self._joins: tuple[Mapping[str, Any], Turns | None] | None = None  # from which caches

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rows(self) -> tuple[int, ...]:
        """The numbers of the rows whose last token `step` has not told of yet."""
        return tuple(self._rows)

    @property
    def free(self) -> int:
        """How many rows may join now."""
        return self._size - len(self._rows)

    def add(
        self,
        ids: npt.ArrayLike,
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[int] = (),
    ) -> int:
        """Reads a prompt, [S] or [1, S], whose answer the next steps give. Returns the row's number, which no later row
        gets.

        Options: as Generator.generate has them, of this row alone; max_new_tokens at least 1. It ends a generation of
        the batch's Generator, whose caches it needs. Raises as `generate` does, and InputError where no row is free or
        the batch is closed; the other rows go on.
        """
        request = self._source.request(ids, max_new_tokens, temperature, top_k, top_p, seed, stop)
        if not request.count:
            raise ConfigError("generate: batch: max_new_tokens: got 0, expected 1 or more")
        return uninterrupted(self.join, request)

    def join(self, request: Request) -> int:
        """As `add`, for a request that its Generator has checked."""
        with self._lock:
            self._check_open()
            if not self.free:
                raise InputError(
                    f"generate: batch: all {self._size} rows are taken; call step until one leaves, remove one, or "
                    f"open the Generator with more rows"
                )
            place = min(set(range(self._size)) - {row.place for row in self._rows.values()})
            with self._closed_by_exceptions():
                while self._waiting:
                    self._receive()
            token = self._source.read(request, partial(self._copy, place))
            length = request.prompt.shape[1]
            row = _Row(place, request, length, request.count - 1, request.count, length)
            row.take(token)
            self._rows[self._number] = row
            self._number += 1
            tokens = np.zeros((self._size, 1), request.prompt.dtype)
            for other in self._rows.values():
                tokens[other.place] = other.last
            self._values.set(self._places.tokens[self._place], tokens, waits=True)
            return self._number - 1

    def step(self) -> dict[int, int]:
        """The next token of each row, by the row's number; of one that has just joined the first behind its prompt. A
        row leaves with its last token. Without rows: empty.

        Raises:
            InputError: logits of a row have NaN, or are all -inf: that row has left, and the next call goes on with the
            others; or the batch is closed. DeviceError: as the session does.
        """
        with self._lock:
            self._check_open()
            with self._closed_by_exceptions():
                while any(not row.tokens for row in self._rows.values()):
                    uninterrupted(self._forward)
            for number, row in self._rows.items():
                if row.tokens[0] == NOTHING:
                    del self._rows[number]
                    checked(NOTHING, row.behind)
            return {number: self._told(number) for number in self.rows}

    def remove(self, row: int) -> None:
        """The row leaves without a further token. Raises InputError where it is none of `rows`."""
        with self._lock:
            self._check_open()
            if row not in self._rows:
                raise InputError(
                    f"generate: batch: row: got {row!r}, expected one of {list(self._rows)}, which are there"
                )
            del self._rows[row]

    def close(self) -> None:
        """All rows leave, and the caches' memory is free."""
        with self._lock:
            if not self._closed:
                self._close("it was closed")

    # ---- rows

    def _told(self, number: int) -> int:
        row = self._rows[number]
        token = row.tokens.popleft()
        row.behind += 1
        if not row.tokens and not row.missing:
            del self._rows[number]
        return token

    def _forward(self) -> None:
        """Takes the tokens of one more step, behind which others are submitted."""
        while len(self._waiting) < self._ahead and any(row.steps for row in self._rows.values()):
            self._submit()
        self._receive()

    def _submit(self) -> None:
        """A step of the rows that want one; in the others it reads one token, and nobody reads what it gives."""
        rows, place = [row for row in self._rows.values() if row.steps], self._place
        lengths = np.ones((self._size, 1), np.int64)
        for row in rows:
            row.length, row.steps = row.length + 1, row.steps - 1
            lengths[row.place] = row.length
        with self._source.lock:
            self._values.set(self._places.lengths[place], lengths)
            self._runs.run(place)
            draws = {row.place: row.request.draw for row in rows if row.request.draw is not None}
            if draws:
                numbers = np.repeat(MOST_LIKELY, self._size, axis=0)
                for at, draw in draws.items():
                    numbers[at] = draw.next()
                sampler = self._source.sampler(draws.values(), self._size)
                self._places.draw(sampler, numbers, 1 - place)
            self._waiting.append((rows, self._places.later(1 - place)))
        self._place = 1 - place

    def _receive(self) -> None:
        rows, wait = self._waiting.popleft()
        tokens = wait()
        for row in rows:
            row.take(tokens[row.place])

    def _copy(self, place: int, caches: Mapping[str, Any]) -> None:
        """Caches of one row to a row of the batch's."""
        places, values = self._places, self._values
        with self._closed_by_exceptions():
            if values.on_gpu and (self._joins is None or self._joins[0] is not caches):
                session, of_row = self._source.joining(), {_OF_ROW + name: row for name, row in caches.items()}
                ends = {**places.caches, **of_row, ROW: self._row}, places.presents
                self._joins = caches, Turns.of(session, state_of(session), [ends])
            values.set(self._row, np.array([[place]]), waits=True)
            if self._joins is None or self._joins[1] is None or not self._joins[1].run(0):
                for name, row in caches.items():
                    values.put_row(places.caches[name], place, row)

    # ---- the end

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(f"generate: batch: {self._closed}; make another one by Generator.batch")

    @contextmanager
    def _closed_by_exceptions(self) -> Iterator[None]:
        """Around what reads or writes the caches of all rows."""
        try:
            yield
        except Exception as error:
            self._source.leave()  # a device that is lost had these, too
            try:
                self._close(f"an exception closed it ({type(error).__name__}: {error})")
            except Exception as behind:
                error.add_note(f"the step behind it: {type(behind).__name__}: {behind}")
            raise

    def _close(self, why: str) -> None:
        self._closed = why
        self._rows.clear()
        try:
            while self._waiting:
                self._waiting.popleft()[1]()  # the device writes what these read
        finally:
            self._waiting.clear()
            self._joins = None
            del self._places, self._runs, self._row


def joining_model(step: Step) -> onnx.ModelProto:
    """Caches of a batch, those of one row, ROW -> the batch's caches with that row's in its place."""
    info, inputs, outputs, nodes = helper.make_tensor_value_info, list[Any](), list[Any](), list[onnx.NodeProto]()
    for name, (present, shape, dtype) in step.caches.items():
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        of_all: list[str | int | None] = ["rows", *shape[1:]]
        inputs += [info(name, kind, of_all), info(_OF_ROW + name, kind, [1, *shape[1:]])]
        outputs.append(info(present, kind, of_all))
        nodes.append(helper.make_node("ScatterND", [name, ROW, _OF_ROW + name], [present]))
    inputs.append(info(ROW, TensorProto.INT64, [1, 1]))
    graph = helper.make_graph(nodes, "joining", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
