"""Pairs of encoder and decoder, as optimum exports Whisper, T5, BART and Marian.

What the encoder gives, and the keys and values that the decoder makes of it, are calculated once in a generation and
stay on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from ort_gpu_ep.errors import InputError, ModelError
from ort_gpu_ep.generation.beams import Beam, BeamSearch, EarlyStopping, search_of
from ort_gpu_ep.generation.growing import (
    BRANCH,
    PAST,
    SEEN,
    STATES,
    Growing,
    growing_step_of,
    grows,
    present_of,
)
from ort_gpu_ep.generation.opening import Model, is_on_gpu, length_of, loaded, logits_of, options_of, session_of
from ort_gpu_ep.generation.positions import positions_of
from ort_gpu_ep.generation.request import request_of
from ort_gpu_ep.generation.sampling import Samplers
from ort_gpu_ep.generation.step import GIVEN_LOGITS, IDS, MASK
from ort_gpu_ep.generation.values import Values

_HIDDEN = "last_hidden_state"
"""What an encoder gives."""

_ENCODER, _MERGED, _FIRST, _LATER = (
    "encoder_model.onnx",
    "decoder_model_merged.onnx",
    "decoder_model.onnx",
    "decoder_with_past_model.onnx",
)
"""Optimum's names of files."""


class EncoderDecoder:
    """An encoder and its decoder, opened to generate.

    encoder: path, bytes or ModelProto; one input (`input_ids`, `input_features`, ...) and perhaps `attention_mask`,
    `last_hidden_state` out. decoder: one for all passes, with `use_cache_branch`; or the one for the first pass, and
    decoder_with_past the one for those behind it. max_length: tokens of start and answer together; None: 2048, or as
    many as the decoder's tables of positions have. provider_options and sess_options: as Generator has them.

    All methods may be called by several threads; generations go on beside each other.

    Raises:
        ModelError: a model is no such one, or they do not fit each other. ConfigError: an option, or a max_length
        beyond the decoder's tables of positions.
    """

    def __init__(
        self,
        encoder: Model,
        decoder: Model,
        decoder_with_past: Model | None = None,
        *,
        max_length: int | None = None,
        provider_options: Mapping[str, Any] | None = None,
        sess_options: Any = None,
    ) -> None:
        read, folder = loaded(encoder)
        models = [loaded(model) for model in (decoder, decoder_with_past) if model is not None]
        decoders = [model for model, _ in models]
        self._input, self._most = _input_of(read), positions_of(read)
        _check_fit(read, decoders)
        tables = [table for model in decoders if (table := positions_of(model)) is not None]
        self.max_length = length_of(max_length, min(tables, default=None))
        options = options_of(provider_options)
        steps = [growing_step_of(model, (STATES, SEEN)) for model in decoders]
        self._encoder = session_of(read, folder, sess_options, options)
        passes = [
            (session_of(step.model, of, sess_options, options), step)
            for step, (_, of) in zip(steps, models, strict=True)
        ]
        self.sessions = [self._encoder, *(session for session, _ in passes)]
        """Of the encoder, of all passes of the decoder or its first one, and of the later ones."""
        self.vocabulary, kind = logits_of(passes[0][0])
        self._values = Values(None, all(is_on_gpu(session, options) for session in self.sessions))
        self._growing = Growing(passes, self._values.device[:2])
        self._kinds = {i.name: _of(read.graph.input, i.name, "the encoder")[0] for i in self._encoder.get_inputs()}
        self._seen = steps[0].kinds.get(SEEN)
        self._request = partial(request_of, dtype=steps[0].kinds[IDS], max_length=self.max_length)
        self._beams = BeamSearch(self._growing, self.vocabulary, kind, options, self._values.device[:2])
        self._samplers = Samplers(self.vocabulary, kind, steps[0].kinds[IDS], options)

    @classmethod
    def from_folder(cls, folder: str | Path, **options: Any) -> EncoderDecoder:
        """Opens what optimum's exporter has written there: the encoder, and the merged decoder or else the two others.

        Options: of EncoderDecoder, which raises what this does.
        """
        files = [Path(folder) / name for name in (_ENCODER, _MERGED, _FIRST, _LATER)]
        there = [file.is_file() for file in files]
        if not there[0] or not (there[1] or (there[2] and there[3])):
            missing = [file.name for file, is_there in zip(files, there, strict=True) if not is_there]
            raise ModelError(
                f"generate: {folder}: there is no {', no '.join(missing)}; expected {_ENCODER}, and {_MERGED} or both "
                f"{_FIRST} and {_LATER}, as `optimum-cli export onnx` writes them"
            )
        return cls(files[0], *(files[1:2] if there[1] else files[2:]), **options)

    def generate(
        self,
        inputs: npt.ArrayLike,
        start: npt.ArrayLike,
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[int] = (),
    ) -> Iterator[int]:
        """The tokens of an answer, as they come.

        inputs: what the encoder reads, without padding: tokens [S] or [1, S], or features as its input has them, the
        batch's axis of 1 may be missing. start: the tokens that the decoder begins with, [S] or [1, S]. The others: as
        Generator.generate has them.

        Raises:
            InputError: inputs or start are empty, have another type or shape than the model wants, or are longer than
            its tables of positions; or logits have NaN, or are all -inf. ConfigError: a parameter.
        """
        request = self._request(start, max_new_tokens, temperature, top_k, top_p, seed, stop)
        choose = None if request.draw is None else partial(self._samplers.drawn, request.draw)
        encode = partial(self._encode, self._checked(inputs))
        return self._growing.tokens(request.prompt, request.count, choose, request.stop, encode)

    def beam_search(
        self,
        inputs: npt.ArrayLike,
        start: npt.ArrayLike,
        *,
        num_beams: int = 4,
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
        max_new_tokens: int | None = None,
        stop: Sequence[int] = (),
    ) -> list[Beam]:
        """The best answers that a search with so many beams finds, the best first, at most `num_beams`.

        An answer ends with a token of `stop`, or at `max_new_tokens`. Its score is the sum of its tokens'
        log-probabilities, divided by their number to the power of `length_penalty`: above 0 prefers long answers.
        early_stopping: True ends the search when `num_beams` answers have ended; False when none that goes on would be
        better if it ended now, and "never" when none could be at any length. inputs, start: as `generate` has them.

        Raises as `generate` does.
        """
        request = self._request(start, max_new_tokens, 0.0, 0, 1.0, None, stop)
        search = search_of(num_beams, request.count, length_penalty, early_stopping, request.stop)
        array = self._checked(inputs)
        return self._beams.best(request.prompt, search, self._encode(array))

    def _checked(self, inputs: npt.ArrayLike) -> npt.NDArray[Any]:
        """What the encoder reads, as its input has it. Raises InputError."""
        name, dtype, dims = self._input
        try:
            array = np.array(inputs)
        except ValueError as error:  # rows of unequal lengths
            raise InputError(f"generate: inputs: {error}; expected numbers for {name!r} of one sequence") from error
        array = array[None] if array.ndim == len(dims) - 1 else array
        fits = array.ndim == len(dims) and all(
            d in (0, size) for d, size in zip(dims[1:], array.shape[1:], strict=True)
        )
        if not fits or array.shape[0] != 1 or not array.size or array.dtype.kind not in ("iu", "f")[dtype.kind == "f"]:
            raise InputError(
                f"generate: inputs: got {array.dtype} {list(np.shape(inputs))}, expected {dtype} "
                f"{[1, *(d or 'any' for d in dims[1:])]} for the encoder's input {name!r}, one sequence at a time"
            )
        if self._most is not None and dtype.kind != "f" and array.shape[1] > self._most[0]:
            raise InputError(
                f"generate: inputs: got {array.shape[1]} tokens, expected at most {self._most[0]}, the positions of the "
                f"encoder's table {self._most[1]!r}"
            )
        return array.astype(dtype)

    def _encode(self, inputs: npt.NDArray[Any]) -> dict[str, Any]:
        """What the decoder reads of the encoder, on the device."""
        binding = self._encoder.io_binding()
        for name, kind in self._kinds.items():
            binding.bind_cpu_input(name, inputs if name == self._input[0] else np.ones(inputs.shape[:2], kind))
        binding.bind_output(_HIDDEN, *self._values.device[:2])
        self._encoder.run_with_iobinding(binding)
        states = binding.get_outputs()[0]
        encoded = {STATES: states}
        if self._seen is not None:
            encoded[SEEN] = self._values.new(np.ones(states.shape()[:2], self._seen))
        return encoded


def _of(values: Sequence[onnx.ValueInfoProto], name: str, where: str) -> tuple[np.dtype[Any], list[int]]:
    """Numpy type and sizes, 0 where one is open. Raises ModelError where there is no such input or output."""
    info = next((value for value in values if value.name == name), None)
    if info is None:
        raise ModelError(
            f"generate: {where} has no {name!r}, only {[value.name for value in values]}. Expected a pair of encoder and "
            f"decoder as optimum exports them; Generator runs decoders alone, InferenceSession any model"
        )
    kind = info.type.tensor_type
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)), [d.dim_value for d in kind.shape.dim]


def _input_of(encoder: onnx.ModelProto) -> tuple[str, np.dtype[Any], list[int]]:
    """Name, numpy type and sizes of what an encoder reads beside a mask, 0 where a size is open."""
    stored = {t.name for t in encoder.graph.initializer}
    names = [i.name for i in encoder.graph.input if i.name not in stored]
    others = [name for name in names if name != MASK]
    if len(others) != 1:
        raise ModelError(f"generate: encoder: got inputs {names}, expected one, and perhaps {MASK!r}")
    return others[0], *_of(encoder.graph.input, others[0], "the encoder")


def _check_fit(encoder: onnx.ModelProto, decoders: Sequence[onnx.ModelProto]) -> None:
    """Raises ModelError where these do not fit each other."""
    first, later = decoders[0].graph, decoders[-1].graph
    names, other_name = [i.name for i in later.input], ("decoder", "decoder_with_past")[len(decoders) - 1]
    if len(decoders) == 1 and BRANCH not in names:
        raise ModelError(
            f"generate: decoder: it has no input {BRANCH!r}, and there is no decoder_with_past. Expected {_MERGED}, or both "
            f"{_FIRST} and {_LATER} of one export"
        )
    if len(decoders) == 2 and (grows(decoders[0]) or BRANCH in names or not grows(decoders[1])):
        raise ModelError(
            f"generate: decoder, decoder_with_past: expected {_FIRST}, without inputs {PAST}*, and {_LATER}, with them"
        )
    pairs = [("encoder", encoder.graph.output, _HIDDEN, "decoder", first.input, STATES)]
    if len(decoders) == 2:
        pairs += [
            ("decoder", first.input, IDS, "decoder_with_past", later.input, IDS),
            ("decoder", first.output, GIVEN_LOGITS, "decoder_with_past", later.output, GIVEN_LOGITS),
        ]
    pairs += [
        ("decoder", first.output, present_of(name), other_name, later.input, name)
        for name in names
        if name.startswith(PAST)
    ]
    for one, values, name, other, others, of in pairs:
        (kind, dims), (other_kind, sizes) = _of(values, name, one), _of(others, of, other)
        open_or_same = [a == b or not a or not b for a, b in zip(dims, sizes, strict=False)]
        if kind != other_kind or len(dims) != len(sizes) or not all(open_or_same):
            raise ModelError(
                f"generate: {one} and {other} do not fit each other: {name!r} is {kind} {dims}, {of!r} is {other_kind} {sizes} "
                f"(0 where a size is open). Expected files of one export"
            )
