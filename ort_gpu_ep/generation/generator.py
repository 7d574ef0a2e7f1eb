"""Tokens of a language model, one after another.

The next token, the most likely or a random one, is chosen on the device and is the next step's input there. So steps
are submitted ahead of what the host has read: a token crosses and no logits, and the GPU does not wait for the host.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnxruntime import OrtValue

from ort_gpu_ep.errors import ConfigError, InputError, ModelError
from ort_gpu_ep.generation.batch import Batch, Source, joining_model
from ort_gpu_ep.generation.cache_codes import BITS, SAMPLE, quantize_caches
from ort_gpu_ep.generation.drafts import Drafts, Lookup, accepted, shared
from ort_gpu_ep.generation.growing import Growing, GrowingStep, growing_step_of, grows
from ort_gpu_ep.generation.opening import Model, is_on_gpu, length_of, loaded, logits_of, options_of, session_of
from ort_gpu_ep.generation.positions import positions_of
from ort_gpu_ep.generation.request import Request, request_of
from ort_gpu_ep.generation.sampling import Draw, Samplers
from ort_gpu_ep.generation.step import (
    IDS,
    LENGTH,
    LOGITS,
    NEXT,
    NOTHING,
    Step,
    checked,
    step_of,
)
from ort_gpu_ep.generation.values import AHEAD, Places, Values
from ort_gpu_ep.plugin import download_later
from ort_gpu_ep.processes.interrupts import uninterrupted
from ort_gpu_ep.session.bound_runs import Runs
from ort_gpu_ep.session.session import InferenceSession

CHUNK = 2048
"""Tokens of a prompt that one pass reads at most: activations take memory for so many, and not for all of a long
prompt."""


@dataclass(frozen=True)
class _Form:
    """Of passes over so many tokens: values on the device for their ids, the choices behind them, and logits."""

    ids: Any
    next: Any
    logits: Any


class Generator:
    """A decoder, opened to generate; one generation at a time, where caches do not grow.

    model: path, bytes or ModelProto of a decoder as onnxruntime-genai's model builder writes it, or optimum (its caches
    grow). max_length: tokens of prompt and answer together, for which caches that do not grow have room from the
    beginning; None: 2048, or as many as the model's tables of positions have. provider_options: as InferenceSession's;
    by default placement=gpu. sess_options: copied, and so not changed, unless the model has operators of a library,
    which no copy knows.

    lookahead: drafts that are verified in one pass, 0 to 7; packed weights are read from memory once for all of
    them. So an answer whose drafts hold takes less time, and it has the same tokens but for sums that are rounded
    otherwise. draft: a Generator of a smaller model with the same vocabulary that writes the drafts; None: they are
    looked up in the text so far. `tokens_per_pass` tells what it brings.

    rows: how many sequences a batch of this Generator has at most, see `batch`; the model's batch axis must be open.

    cache_bits: 8 or 4 hold keys and values as codes of so many bits, in a quarter or an eighth of float32's memory;
    answers are others where two logits are close. None: as the model has them. sample: tokens, [S], whose keys and
    values tell which numbers the codes stand for, at opening; None: 64 random ones.

    All methods may be called by several threads. A generation whose caches another one has taken raises InputError
    before a further token.

    Raises:
        ModelError: the model is no such decoder, or rows are wanted of one whose batch axis is fixed or whose caches
        grow, or cache_bits of one whose caches grow or hold no floats. ConfigError: an option, a max_length beyond the
        model's tables of positions, a lookahead for a decoder whose caches grow, or beside rows. InputError: a sample
        that is no prompt.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_length: int | None = None,
        provider_options: Mapping[str, Any] | None = None,
        sess_options: Any = None,
        lookahead: int = 0,
        draft: Generator | None = None,
        rows: int = 1,
        cache_bits: int | None = None,
        sample: npt.ArrayLike | None = None,
    ) -> None:
        if lookahead not in range(8) or (draft is not None and not lookahead):
            raise ConfigError(f"generate: lookahead: got {lookahead}, expected 0 to 7, and at least 1 with a draft")
        if rows != operator.index(rows) or rows < 1 or (rows > 1 and lookahead):
            raise ConfigError(
                f"generate: rows: got {rows}{f' with lookahead={lookahead}' if lookahead else ''}, expected 1 or more, "
                f"and no lookahead beside several"
            )
        if cache_bits not in (None, *BITS) or (sample is not None and cache_bits is None):
            raise ConfigError(
                f"generate: cache_bits: got {cache_bits}{' with a sample' if sample is not None else ''}, expected 8, 4, "
                f"or None without a sample"
            )
        parsed, folder = loaded(model)
        self.rows = rows
        self.max_length = length_of(max_length, positions_of(parsed))
        self._turn, self._continuing, self._lock = 0, -1, threading.RLock()
        growing = growing_step_of(parsed) if grows(parsed) else None
        if growing is not None and lookahead:
            raise ConfigError(
                "generate: lookahead: drafts that fail leave caches which grow; expected a decoder with "
                "GroupQueryAttention"
            )
        if growing is not None and rows > 1:
            raise ModelError(
                f"generate: rows: got {rows} for a decoder whose caches grow: all of them would have one length. Expected "
                f"a decoder with GroupQueryAttention, as onnxruntime-genai's model builder writes it, which is told a "
                f"length for each row"
            )
        if growing is not None and cache_bits is not None:
            raise ModelError(
                f"generate: cache_bits: got {cache_bits} for a decoder whose caches grow. Expected a decoder with "
                f"GroupQueryAttention, as onnxruntime-genai's model builder writes it"
            )
        if cache_bits is not None:
            numbers = _sampled(model, self.max_length, provider_options, sess_options, sample)
            quantize_caches(parsed, numbers, cache_bits)
        self._lookahead, self._draft = lookahead, draft
        self._passes = self._verified = 0
        step = growing or step_of(parsed, self.max_length, 1 + lookahead, rows > 1)
        self._options = options_of(provider_options, 1 + lookahead if lookahead else 0)
        self.session = session_of(step.model, folder, sess_options, self._options)
        self._values = Values(self.session, is_on_gpu(self.session, self._options))
        self.vocabulary, self._kind = logits_of(self.session)
        if draft is not None and (
            draft._growing is not None or draft._lookahead or draft.vocabulary != self.vocabulary
        ):
            raise ConfigError(
                f"generate: draft: got a decoder of {draft.vocabulary} "
                f"tokens{', whose caches grow' if draft._growing else ''}, with "
                f"lookahead={draft._lookahead}; expected {self.vocabulary} tokens as this one has, "
                f"GroupQueryAttention, and no lookahead"
            )
        self._joins: InferenceSession | None = None
        self._failed = False
        self._ids = step.kinds[IDS] if isinstance(step, GrowingStep) else step.ids
        self._request = partial(request_of, dtype=self._ids, max_length=self.max_length)
        self._samplers = Samplers(self.vocabulary, self._kind, self._ids, self._options)
        self._growing: Growing | None = (
            Growing([(self.session, step)], self._values.device[:2]) if isinstance(step, GrowingStep) else None
        )
        if isinstance(step, Step):
            self._prepare(step)

    def _prepare(self, step: Step) -> None:
        """The values that the steps with caches of one length read and write."""
        self._step = Step(onnx.ModelProto(), step.caches, step.ids)  # the weights are the session's now
        self._places = places = Places(self._values, self._step, 1, self.vocabulary, self._kind)
        self._continued = list[int]()  # tokens whose keys the caches have, where drafts are written
        if not self._lookahead:
            self._runs = Runs(self.session, [(places.inputs(at), places.outputs(1 - at)) for at in range(2)])
            return
        self._forms = {
            rows: _Form(
                self._values.new(np.zeros((1, rows), self._step.ids)),
                self._values.new(np.zeros((rows, 1), self._step.ids)),
                self._values.new(np.zeros((1, rows, self.vocabulary), self._kind)),
            )
            for rows in (1, 1 + self._lookahead)
        }
        self._runs = Runs(
            self.session,
            [({**places.inputs(1), IDS: form.ids}, self._written(form)) for form in self._forms.values()],
        )

    def generate(
        self,
        ids: npt.ArrayLike,
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[int] = (),
    ) -> Iterator[int]:
        """The tokens behind a prompt, as they come; of `stop` the first one ends them and is given, too.

        ids: the prompt, [S] or [1, S]. max_new_tokens: at most so many; None: as max_length allows. temperature: 0
        takes the most likely token; else logits are divided by it and a token is drawn by `seed`, among the `top_k`
        most likely ones (0: all), of these the fewest that have `top_p` of the probability; infinity draws among them
        alike. A logit of -inf is never drawn, one of inf counts as a very large one. A generation ends the one before
        it, in whichever thread; those whose caches grow go on beside each other.

        Raises:
            InputError: an empty prompt, or no room for one token behind it; while it goes on, another generation has
            begun, or logits have NaN, or are all -inf. ConfigError: a parameter. IndexOutOfRangeError: a token that the
            vocabulary does not have (on the CPU: what onnxruntime raises).
        """
        request = self._request(ids, max_new_tokens, temperature, top_k, top_p, seed, stop)
        if self._growing is not None:
            choose = None if request.draw is None else partial(self._samplers.drawn, request.draw)
            return self._growing.tokens(request.prompt, request.count, choose, request.stop)
        with self._lock:
            tell = self._tokens_by_passes if self._lookahead else self._tokens_of
            return tell(request.prompt, request.count, request.draw, request.stop, self._next_turn())

    def batch(self, rows: int | None = None) -> Batch:
        """Room for answers to so many prompts at once, in caches of their own; None: as many as this Generator has.

        Raises:
            ConfigError: more rows than this Generator was opened for, or none. ModelError: caches grow, or the
            Generator has a lookahead. OutOfDeviceMemoryError: the device has no room for the caches.
        """
        size = self.rows if rows is None else operator.index(rows)
        if self._growing is not None or self._lookahead:
            raise ModelError(
                "generate: batch: expected a decoder with GroupQueryAttention, opened without lookahead; got "
                + ("a lookahead" if self._lookahead else "one whose caches grow")
            )
        if not 1 <= size <= self.rows:
            raise ConfigError(
                f"generate: batch: rows: got {size}, expected 1 to {self.rows}; open the Generator with more rows for more"
            )
        return Batch(
            Source(
                self.session,
                self._step,
                self._values,
                self.vocabulary,
                self._kind,
                self.max_length,
                self._lock,
                self._request,
                self._read_apart,
                self._samplers.of,
                self._joining,
                self._leave_caches,
            ),
            size,
        )

    def generate_batch(
        self,
        prompts: Iterable[npt.ArrayLike],
        *,
        on_token: Callable[[int, int], object] | None = None,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[int] = (),
    ) -> list[list[int]]:
        """The answers to prompts of any lengths, in their order: of each the tokens that `generate` gives for it alone.

        As many are answered at once as this Generator has rows; where one ends, the next prompt joins. on_token: is
        told of each token as it comes, after the place of its prompt. Options: as `generate` has them, of each prompt;
        prompt k draws by seed + k. All prompts are checked before the first one is read. Raises as `generate`, `batch`
        and Batch.step do.
        """
        requests = [
            self._request(ids, max_new_tokens, temperature, top_k, top_p, None if seed is None else seed + k, stop)
            for k, ids in enumerate(prompts)
        ]
        answers, whose = [list[int]() for _ in requests], dict[int, int]()
        waiting = deque(k for k, request in enumerate(requests) if request.count)
        with self.batch(min(self.rows, max(len(waiting), 1))) as batch:
            while waiting or batch.rows:
                while waiting and batch.free:
                    k = waiting.popleft()
                    whose[batch.join(requests[k])] = k
                for row, token in batch.step().items():
                    answers[whose[row]].append(token)
                    if on_token is not None:
                        on_token(whose[row], token)
        return answers

    def _read_apart(self, request: Request, join: Callable[[Mapping[str, Any]], None]) -> int:
        """The token behind a prompt that joins a batch. join: takes the caches, which have the prompt's keys and
        values then."""
        with self._lock:
            turn = self._next_turn()
            with self._fit_for_others(turn):
                waiting = deque[Callable[[], list[int]]]()
                self._advance(waiting, request.prompt, 0, request.draw, turn)
                token = checked(_oldest(waiting), request.prompt.shape[1])
                join(self._places.caches)
                return token

    def _joining(self) -> InferenceSession:
        """Runs of `joining_model`, for batches of any number of rows."""
        with self._lock:
            if self._joins is None:
                model = joining_model(self._step)
                self._joins = InferenceSession(model.SerializeToString(), provider_options=self._options)
            return self._joins

    def _tokens_of(
        self,
        prompt: npt.NDArray[Any],
        count: int,
        draw: Draw | None,
        stop: frozenset[int],
        turn: int,
    ) -> Iterator[int]:
        waiting, submitted, ahead = deque[Callable[[], list[int]]](), 0, AHEAD if self._values.on_gpu else 1
        with self._fit_for_others(turn):
            try:
                for index in range(count):
                    while submitted < count and len(waiting) < ahead:
                        uninterrupted(self._advance, waiting, prompt, submitted, draw, turn)
                        submitted += 1
                    token = checked(uninterrupted(_oldest, waiting), prompt.shape[1] + index)
                    yield token
                    if token in stop:
                        return
            except Exception as error:
                try:
                    uninterrupted(_drain, waiting)
                except Exception as behind:  # steps behind the one that failed
                    error.add_note(f"the step behind it: {type(behind).__name__}: {behind}")
                raise
            finally:
                uninterrupted(_drain, waiting)  # the device writes what these read

    def _tokens_by_passes(
        self,
        prompt: npt.NDArray[Any],
        count: int,
        draw: Draw | None,
        stop: frozenset[int],
        turn: int,
    ) -> Iterator[int]:
        """The same tokens, several of a pass: the last one and drafts behind it are read at once."""
        tokens, first = prompt[0].tolist(), prompt.shape[1]
        look: Drafts = self._draft._continuation if self._draft is not None else Lookup()
        before, drafts = 0, list[int]()  # tokens whose keys the caches have; drafts behind the last token
        with self._fit_for_others(turn):
            while len(tokens) < first + count:
                here = uninterrupted(self._pass, [tokens[-1], *drafts] if before else tokens, before, draw, turn)
                fresh = accepted(drafts, here)
                before = len(tokens) + len(fresh) - 1
                for token in fresh[: first + count - len(tokens)]:
                    tokens.append(checked(token, len(tokens)))
                    yield token
                    if token in stop:
                        return
                fits = before + 1 + self._lookahead <= self.max_length and len(tokens) + 1 < first + count
                drafts = [*look(tokens, self._lookahead)] if fits else []
                # one form for all: nothing is compiled later
                drafts += [0] * (self._lookahead - len(drafts)) if drafts else []

    def _pass(self, ids: Sequence[int], before: int, draw: Draw | None, turn: int) -> Callable[[int], int]:
        """Reads tokens behind `before` others. Gives the choice behind the k-th of them; of a prompt, k = 0, behind its
        last one."""
        rows = 1 + self._lookahead if len(ids) > self._lookahead else 1
        form, tokens = self._forms[rows], np.asarray([ids], self._step.ids)
        with self._lock:
            self._check_turn(turn)
            if before:
                self._values.set(self._places.lengths[1], np.array([[before + len(ids)]]))
                self._values.set(form.ids, tokens)
                self._runs.run(int(rows > 1))
                self._passes += 1
            else:
                self._read(tokens, CHUNK if rows > 1 else 1, self._written(form))
            logits = form.logits.numpy() if draw is not None or not self._values.on_gpu else None
            chosen = _content(form.next, self._step.ids) if draw is None else None

        def choose(k: int) -> int:
            row = k if before else -1
            self._verified += before > 0
            # onnxruntime's ArgMax and TopK may not see it
            if logits is not None and np.isnan(logits[0, row]).any():
                return NOTHING
            if draw is None or logits is None:
                return int(chosen[row])  # type: ignore[index]
            return self._samplers.drawn(draw, OrtValue.ortvalue_from_numpy(np.ascontiguousarray(logits[:, row, None])))

        return choose

    def _continuation(self, tokens: Sequence[int], count: int) -> Sequence[int]:
        """The most likely tokens behind these, for another Generator's drafts. What the caches have of these is not
        read again."""
        if len(tokens) + count > self.max_length:
            return []
        with self._lock:
            if self._failed or self._turn != self._continuing:
                self._continuing, self._continued = self._next_turn(), []
            with self._fit_for_others(self._turn):
                same = min(shared(self._continued, tokens), len(tokens) - 1)
                self._read(np.asarray([tokens[same:]], self._step.ids), CHUNK, self._places.outputs(0), same)
                waiting = deque([self._places.later(0)])
                try:
                    for place in range(1, count):
                        self._runs.run((place - 1) % 2)
                        waiting.append(self._places.later(place % 2))
                    drafts = [_oldest(waiting) for _ in range(count)]
                finally:
                    _drain(waiting)  # the device writes what these read
                self._continued = [*tokens, *drafts[:-1]]
        return [*takewhile(lambda token: token != NOTHING, drafts)]

    def _next_turn(self) -> int:
        """Of a generation that begins: it may not read caches that an exception has left."""
        self._turn += 1
        if self._failed:
            self._prepare(self._step)
            self._failed = False
        return self._turn

    @property
    def tokens_per_pass(self) -> float:
        """Of the passes behind prompts until now, on average; 1 without lookahead."""
        return self._verified / self._passes if self._passes else 1.0

    @contextmanager
    def _fit_for_others(self, turn: int) -> Iterator[None]:
        """Around a generation: after an exception no later one may read its caches (a token that the vocabulary lacks,
        a lost device)."""
        try:
            yield
        except Exception:
            with self._lock:
                if turn == self._turn:
                    self._leave_caches()
            raise

    def _leave_caches(self) -> None:
        """The next generation gets others."""
        with self._lock:
            self._failed = True

    def _check_turn(self, turn: int) -> None:
        if turn != self._turn:
            raise InputError(
                "generate: another generation has begun with this Generator, whose caches it needs; use one each"
            )

    def _advance(
        self,
        waiting: deque[Callable[[], list[int]]],
        prompt: npt.NDArray[Any],
        index: int,
        draw: Draw | None,
        turn: int,
    ) -> None:
        """Submits the step of token `index`, and its readback: a step without one would write where the next generation
        has begun."""
        with self._lock:
            self._check_turn(turn)
            self._submit(prompt, index)
            if draw is not None:
                self._places.draw(self._samplers.of([draw]), draw.next(), index % 2)
            waiting.append(self._places.later(index % 2))

    def _submit(self, prompt: npt.NDArray[Any], index: int) -> None:
        """The step that gives token `index` of the answer, into place index % 2."""
        if index:
            self._runs.run((index - 1) % 2)
            return
        self._read(prompt, CHUNK, self._places.outputs(0))

    def _read(self, prompt: npt.NDArray[Any], chunk: int, outputs: Mapping[str, Any], before: int = 0) -> None:
        """Tokens behind `before` others, at most so many at a time, and about alike."""
        for part in np.array_split(prompt, -(-prompt.shape[1] // chunk), axis=1):
            before += part.shape[1]
            self._values.set(self._places.lengths[1], np.array([[before]]), waits=True)
            binding = self.session.io_binding()
            binding.bind_cpu_input(IDS, np.ascontiguousarray(part))
            binding.bind_ortvalue_input(LENGTH, self._places.lengths[1])
            for name, value in self._places.caches.items():
                binding.bind_ortvalue_input(name, value)
            for name, value in outputs.items():
                binding.bind_ortvalue_output(name, value)
            self.session.run_with_iobinding(binding)

    def _written(self, form: _Form) -> dict[str, Any]:
        return {**self._places.outputs(0), NEXT: form.next, LOGITS: form.logits}

    def _numbers(self, sample: npt.ArrayLike | None) -> dict[str, npt.NDArray[Any]]:
        """Keys and values of a sample's tokens, by the names of the caches."""
        count = min(SAMPLE, self.max_length - 1)
        ids = np.random.default_rng(0).integers(0, self.vocabulary, count) if sample is None else sample
        prompt = self._request(ids, 1, 0.0, 0, 1.0, None, ()).prompt
        self._read(prompt, CHUNK, self._places.outputs(0))
        return {name: value.numpy()[:, :, : prompt.shape[1]] for name, value in self._places.caches.items()}


def _sampled(
    model: Model, length: int, options: Mapping[str, Any] | None, settings: Any, sample: npt.ArrayLike | None
) -> dict[str, npt.NDArray[Any]]:
    """What float caches of so many tokens hold behind a sample, in a session that is closed then: the device never has
    the weights twice."""
    most = SAMPLE + 1 if sample is None else np.size(np.asarray(sample)) + 1
    opened = Generator(model, max_length=max(min(length, most), 2), provider_options=options, sess_options=settings)
    return opened._numbers(sample)


def _content(value: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Of a small value, flat."""
    wait = download_later([value])
    return np.asarray(value.numpy().ravel() if wait is None else np.frombuffer(wait()[0], dtype))


def _oldest(waiting: deque[Callable[[], list[int]]]) -> int:
    return waiting.popleft()()[0]


def _drain(waiting: deque[Callable[[], list[int]]]) -> None:
    while waiting:
        waiting.popleft()()


def generate(model: Model | Generator, ids: npt.ArrayLike, **options: Any) -> Iterator[int]:
    """The tokens behind a prompt. model: a Generator, or what makes one; it is opened for this generation alone then.

    options: of Generator (max_length, provider_options, sess_options, cache_bits, sample) and of Generator.generate.
    Raises as these do.
    """
    if isinstance(model, Generator):
        return model.generate(ids, **options)
    names = ("max_length", "provider_options", "sess_options", "cache_bits", "sample")
    own = {name: options.pop(name) for name in names if name in options}
    return Generator(model, **own).generate(ids, **options)
