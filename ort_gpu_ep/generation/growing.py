"""Tokens of decoders whose caches grow with each step, as optimum exports them: `past_key_values.*` in, `present.*`
out.

The caches stay on the device; the host brings tokens, mask and positions, and waits for each token. Of a merged decoder
(an If over `use_cache_branch`) the branch without caches reads the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    checked,
    choice,
    has_nan,
)
from ort_gpu_ep.session.bound_runs import state_of

BRANCH = "use_cache_branch"
"""An input of merged decoders: whether there is a cache."""

_PAST, _PRESENT = "past_key_values.", "present."
_KNOWN = (IDS, MASK, POSITIONS, BRANCH)

Choose = Callable[[Any], int] | None
"""Gives a token for logits, which are an OrtValue; None: the most likely one."""


@dataclass(frozen=True)
class GrowingStep:
    """model: the decoder with the last token's logits and the most likely token behind it. empty: arrays that begin the
    caches, by input. kinds: numpy types of the other inputs.
    """

    model: onnx.ModelProto
    empty: dict[str, npt.NDArray[Any]]
    kinds: dict[str, np.dtype[Any]]


def growing_step_of(model: onnx.ModelProto) -> GrowingStep | None:
    """The step of such a decoder, None where the model has no inputs `past_key_values.*`. The model given is changed.

    Raises ModelError: an input or output that a generation does not know, or sizes of a cache that the model leaves
    open.
    """
    graph = model.graph
    stored = {t.name for t in graph.initializer}
    inputs = {i.name: i for i in graph.input if i.name not in stored}
    outputs = {o.name for o in graph.output}
    pasts = [name for name in inputs if name.startswith(_PAST)]
    if not pasts:
        return None
    others = [n for n in inputs if n not in (*_KNOWN, *pasts)]
    missing = [n for n in (GIVEN_LOGITS, *map(_present, pasts)) if n not in outputs]
    if others or missing or IDS not in inputs:
        what = f"inputs that a generation does not know: {others}" if others else f"no {', '.join(missing or [IDS])}"
        raise ModelError(
            f"generate: the model has {what}. Expected a decoder: {', '.join(_KNOWN)}, {_PAST}* of which the last "
            f"three may be missing, "
            f"{GIVEN_LOGITS} and {_PRESENT}*. Run other models' steps with InferenceSession."
        )
    kinds = {n: np.dtype(helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)) for n, i in inputs.items()}
    empty = {name: np.zeros(_shape(inputs[name]), kinds[name]) for name in pasts}
    logits = next(o for o in graph.output if o.name == GIVEN_LOGITS).type.tensor_type
    graph.node.extend(choice(model))
    kept = [o for o in graph.output if o.name != GIVEN_LOGITS]
    del graph.output[:]
    vocabulary = logits.shape.dim[-1].dim_value if logits.shape.dim else 0
    graph.output.extend(
        [
            helper.make_tensor_value_info(NEXT, inputs[IDS].type.tensor_type.elem_type, [1, 1]),
            helper.make_tensor_value_info(LOGITS, logits.elem_type, [1, 1, vocabulary or "vocabulary"]),
            *kept,
        ]
    )
    return GrowingStep(model, empty, kinds)


def _present(name: str) -> str:
    return _PRESENT + name.removeprefix(_PAST)


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
    """Steps of a session of such a decoder. device: where the caches are, as bind_output takes it."""

    def __init__(self, session: Any, step: GrowingStep, device: Sequence[Any]) -> None:
        self._session, self._empty, self._kinds, self._device = session, step.empty, step.kinds, tuple(device)
        self._on_cpu = state_of(session) is None

    def tokens(self, prompt: npt.NDArray[Any], count: int, choose: Choose, stop: frozenset[int]) -> Iterator[int]:
        caches: Mapping[str, Any] | None = None
        tokens, total = prompt, prompt.shape[1]
        for _ in range(count):
            token, caches = self._step(tokens, total, caches, choose)
            yield checked(token, total)
            if token in stop:
                return
            tokens, total = np.array([[token]], prompt.dtype), total + 1

    def _step(
        self,
        ids: npt.NDArray[Any],
        total: int,
        caches: Mapping[str, Any] | None,
        choose: Choose,
    ) -> tuple[int, dict[str, Any]]:
        binding = self._session.io_binding()
        values = {
            IDS: ids,
            MASK: np.ones((1, total)),
            POSITIONS: np.arange(total - ids.shape[1], total)[None],
            BRANCH: np.array([caches is not None]),
        }
        for name, kind in self._kinds.items():
            if name in values:
                binding.bind_cpu_input(name, np.ascontiguousarray(values[name], kind))
            elif caches is None:
                binding.bind_cpu_input(name, self._empty[name])
            else:
                binding.bind_ortvalue_input(name, caches[name])
        places = {NEXT: ("cpu",)} if choose is None else {}
        places |= {LOGITS: self._device} if choose is not None or self._on_cpu else {}
        places |= {_present(name): self._device for name in self._empty}
        for name, place in places.items():
            binding.bind_output(name, *place)
        self._session.run_with_iobinding(binding)
        outputs = dict(zip(places, binding.get_outputs(), strict=True))
        if LOGITS in outputs and has_nan(outputs[LOGITS]):
            token = NOTHING
        else:
            token = int(outputs[NEXT].numpy().item()) if choose is None else choose(outputs[LOGITS])
        return token, {name: outputs[_present(name)] for name in self._empty}
