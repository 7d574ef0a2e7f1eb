"""Tokens of decoders whose caches grow with each step, as optimum exports them: `past_key_values.*` in, `present.*`
out.

The caches stay on the device; the host brings tokens, mask and positions, and waits for each token. Of a merged decoder
(an If over `use_cache_branch`) the branch without caches reads the prompt. Beside an encoder, a decoder reads what that
gave, and has the keys and values of it from its first pass on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from ort_gpu_ep.errors import ModelError
from ort_gpu_ep.generation.step import (
    GIVEN_LOGITS,
    IDS,
    LOGITS,
    MASK,
    NEXT,
    NOTHING,
    POSITIONS,
    SHARES,
    checked,
    choice,
    has_nan,
)
from ort_gpu_ep.session.bound_runs import state_of

BRANCH = "use_cache_branch"
"""An input of merged decoders: whether there is a cache."""

STATES, SEEN = "encoder_hidden_states", "encoder_attention_mask"
"""Inputs of decoders beside an encoder: what it gave, and which of that to look at."""

_CACHE_POSITION, PAST, _PRESENT, _CROSS = "cache_position", "past_key_values.", "present.", ".encoder."
_KNOWN = (IDS, MASK, POSITIONS, BRANCH, _CACHE_POSITION)

Choose = Callable[[Any], int] | None
"""Gives a token for logits, which are an OrtValue; None: the most likely one."""


@dataclass(frozen=True)
class GrowingStep:
    """model: the decoder with the last token's logits and the most likely token behind it. empty: arrays that begin the
    caches, by input. kinds: numpy types of the inputs. presents: caches that a first pass gives -> names of these
    outputs.
    """

    model: onnx.ModelProto
    empty: dict[str, npt.NDArray[Any]]
    kinds: dict[str, np.dtype[Any]]
    presents: dict[str, str]


def is_cross(cache: str) -> bool:
    """Whether a cache has the keys or values of what an encoder gave: these stay as the first pass made them."""
    return _CROSS in cache


def grows(model: onnx.ModelProto) -> bool:
    """Whether a decoder has caches, and none of one length."""
    return any(i.name.startswith(PAST) for i in model.graph.input) and all(
        n.op_type != SHARES for n in model.graph.node
    )


def growing_step_of(model: onnx.ModelProto, encoded: Collection[str] = ()) -> GrowingStep:
    """The step of such a decoder. The model given is changed. encoded: inputs that it may have of an encoder.

    Raises ModelError: an input or output that a generation does not know, or sizes of a cache that the model leaves
    open.
    """
    graph = model.graph
    stored = {t.name for t in graph.initializer}
    inputs = {i.name: i for i in graph.input if i.name not in stored}
    outputs = {o.name for o in graph.output}
    pasts = [name for name in inputs if name.startswith(PAST)]
    others = [n for n in inputs if n not in (*_KNOWN, *encoded, *pasts)]
    missing = [n for n in (GIVEN_LOGITS, *(present_of(p) for p in pasts if not is_cross(p))) if n not in outputs]
    if others or missing or IDS not in inputs:
        what = f"inputs that a generation does not know: {others}" if others else f"no {', '.join(missing or [IDS])}"
        raise ModelError(
            f"generate: the model has {what}. Expected a decoder: {IDS}, perhaps {', '.join((*_KNOWN[1:], *encoded))}, "
            f"and {PAST}*; {GIVEN_LOGITS} and {_PRESENT}*. "
            + ("EncoderDecoder runs decoders beside an encoder. " if {STATES, SEEN} & {*others} else "")
            + "Run other models' steps with InferenceSession."
        )
    kinds = {n: np.dtype(helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)) for n, i in inputs.items()}
    empty = {name: np.zeros(_shape(inputs[name]), kinds[name]) for name in pasts}
    presents = {PAST + n.removeprefix(_PRESENT): n for n in outputs if n.startswith(_PRESENT)}
    logits = next(o for o in graph.output if o.name == GIVEN_LOGITS).type.tensor_type
    graph.node.extend(choice(model))
    kept = [o for o in graph.output if o.name != GIVEN_LOGITS]
    del graph.output[:]
    vocabulary = logits.shape.dim[-1].dim_value if logits.shape.dim else 0
    ids = inputs[IDS].type.tensor_type
    rows = ids.shape.dim[0].dim_value if ids.shape.dim and ids.shape.dim[0].dim_value else "rows"
    graph.output.extend(
        [
            helper.make_tensor_value_info(NEXT, ids.elem_type, [rows, 1]),
            helper.make_tensor_value_info(LOGITS, logits.elem_type, [rows, 1, vocabulary or "vocabulary"]),
            *kept,
        ]
    )
    return GrowingStep(model, empty, kinds, presents)


def present_of(name: str) -> str:
    return _PRESENT + name.removeprefix(PAST)


def _shape(past: onnx.ValueInfoProto) -> tuple[int, int, int, int]:
    """Of a cache of no tokens for one sequence."""
    dims = [d.dim_value for d in past.type.tensor_type.shape.dim]
    if len(dims) != 4 or dims[1] < 1 or dims[3] < 1:
        raise ModelError(
            f"generate: input {past.name!r} is {dims}, 0 where it is open; expected [batch, heads, tokens, size "
            f"of a head], "
            "numbers for the second and the last"
        )
    return 1, dims[1], 0, dims[3]


class Growing:
    """Steps of such a decoder. steps: the session and step of its first pass, and those of the later ones if these are
    others. device: where the caches are, as bind_output takes it."""

    def __init__(self, steps: Sequence[tuple[Any, GrowingStep]], device: Sequence[Any]) -> None:
        # the weights are the sessions' now
        self._steps = [(session, replace(step, model=onnx.ModelProto())) for session, step in steps]
        self._device = tuple(device)
        self._on_cpu = any(state_of(session) is None for session, _ in steps)

    def tokens(
        self,
        prompt: npt.NDArray[Any],
        count: int,
        choose: Choose,
        stop: frozenset[int],
        encode: Callable[[], Mapping[str, Any]] = dict,
    ) -> Iterator[int]:
        """The tokens behind a prompt. encode: gives the inputs that an encoder gave, once."""
        caches: Mapping[str, Any] | None = None
        ids, total, encoded = prompt, prompt.shape[1], encode() if count else {}
        for _ in range(count):
            tokens, logits, caches = self.step(ids, total, caches, encoded, [NEXT if choose is None else LOGITS])
            token = choose(logits) if choose is not None and tokens is None else int(tokens[0])
            yield checked(token, total)
            if token in stop:
                return
            ids, total = np.array([[token]], prompt.dtype), total + 1

    def step(
        self,
        ids: npt.NDArray[Any],
        total: int,
        caches: Mapping[str, Any] | None,
        encoded: Mapping[str, Any],
        asked: Collection[str],
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Reads tokens [rows, S], the last of `total` ones. caches: of the step before, None in a first pass. asked:
        of NEXT and LOGITS.

        Returns the most likely token of each row, [rows]; the logits, an OrtValue on the device; None for what is not
        asked for; and the caches with these tokens. Where a row's logits leave no token, NOTHING is in its place; where
        the logits are on the host and have NaN, NOTHING is in all places, even if tokens are not asked for.
        """
        session, step = self._steps[0 if caches is None else -1]
        binding, (rows, count) = session.io_binding(), ids.shape
        places = np.arange(total - count, total)
        values = {
            IDS: ids,
            MASK: np.ones((rows, total)),
            POSITIONS: np.tile(places, (rows, 1)),
            _CACHE_POSITION: places,
            BRANCH: np.array([caches is not None]),
        }
        here = {**encoded, **(caches or {})}
        for name, kind in step.kinds.items():
            if name in values:
                binding.bind_cpu_input(name, np.ascontiguousarray(values[name], kind))
            elif name in here:
                binding.bind_ortvalue_input(name, here[name])
            else:
                binding.bind_cpu_input(name, step.empty[name])
        presents = {n: p for n, p in step.presents.items() if caches is None or not is_cross(n)}
        outputs: dict[str, Sequence[Any]] = {n: ("cpu",) if n == NEXT else self._device for n in asked}
        outputs |= {LOGITS: self._device} if self._on_cpu else {}
        outputs |= dict.fromkeys(presents.values(), self._device)
        for name, device in outputs.items():
            binding.bind_output(name, *device)
        session.run_with_iobinding(binding)
        results = dict(zip(outputs, binding.get_outputs(), strict=True))
        tokens, logits = results[NEXT].numpy().ravel() if NEXT in results else None, results.get(LOGITS)
        if logits is not None and has_nan(logits):
            tokens = np.full(rows, NOTHING)
        return tokens, logits, {**(caches or {}), **{n: results[p] for n, p in presents.items()}}
