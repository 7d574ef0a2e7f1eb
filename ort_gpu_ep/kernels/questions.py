"""Memoisation key of a claim: all that a kernel builder may depend on, so that equal layers are claimed once.

Nodes are read anew for each stage, so a question is told by content: the row, the node's form, the types, and the
content of those operands that the builder looked at. Names count only in a refusal, which tells them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from ort_gpu_ep.ir.graph import Array, Attribute, Node
from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.kernels.registry import BoundNode, Decline, Lowering, Operand, OpSpec
from ort_gpu_ep.kernels.target import HALVED
from ort_gpu_ep.memo import Memo

KEPT = 4096
"""Questions whose answers are kept, process-wide: more than any known model has of different nodes. One takes a few
kilobytes."""

PLAIN_NBYTES = 64
"""Content up to here stands in a key itself, longer content by its digest."""

_STEPS = -1
"""Stands among positions for whether steps are fused behind the node, and what they end in."""

# form -> positions of the operands whose content its builder has looked at
_looked_at: Memo[frozenset[int]] = Memo(KEPT)
_built: Memo[Lowering] = Memo(KEPT)
_answers: Memo[Lowering | Decline] = Memo(KEPT)
_apart = 0


@contextmanager
def apart() -> Iterator[None]:
    """For who plants something in a row or its helpers: what is answered meanwhile is not mixed up with what is
    answered otherwise."""
    global _looked_at, _built, _answers, _apart
    usual = _looked_at, _built, _answers
    _apart += 1
    _looked_at, _built, _answers = Memo(KEPT), Memo(KEPT), Memo(KEPT)
    try:
        yield
    finally:
        _looked_at, _built, _answers = usual
        _apart -= 1


def are_apart() -> bool:
    """Whether something is planted now: what is planned meanwhile is not what other processes would plan."""
    return _apart > 0


class Question:
    """One node, as `claim` asks its row. Not for nodes with sizes of a run: what is recorded of those belongs to one
    trace."""

    def __init__(self, spec: OpSpec, bound: BoundNode) -> None:
        node = bound.node
        self.bound = bound
        # the operands of the fused steps are not the builder's business, but for the op that consists of nothing else
        self._operands = (*bound.inputs, *(() if bound.inputs else bound.operands))
        attributes = tuple(sorted((name, _attribute(value)) for name, value in node.attributes.items()))
        self._form: Hashable = (
            spec.build,
            node.domain,
            node.op,
            node.version,
            attributes,
            node.channels_last,
            tuple(map(bool, node.outputs)),
            tuple(map(_type, self._operands)),
            bound.target,
        )

    def _content(self) -> Hashable:
        looked_at = sorted(_looked_at.get(self._form) or ())
        # else nobody asks, and to look at each weight takes long
        halves = self.bound.target.limits.precision in HALVED
        return tuple(
            (k, _end(self.bound.node) if k == _STEPS else _content(self._operands[k], halves)) for k in looked_at
        )

    def _whole(self) -> Hashable:
        return self._form, self._content(), self.bound.node.epilogue, tuple(map(_type, self.bound.operands))

    def _names(self) -> Hashable:
        return self.bound.node.inputs, self.bound.node.operands

    def answer(self) -> Lowering | Decline | None:
        """What the claim said before, None if it was not asked."""
        key = self._whole()
        return _answers.get(key) or _answers.get((key, self._names()))

    def keep(self, answer: Lowering | Decline) -> None:
        key = self._whole()
        _answers.put(key if isinstance(answer, Lowering) else (key, self._names()), answer)

    def built(self) -> Lowering | None:
        """What the builder made before, whatever steps were fused behind it."""
        return _built.get((self._form, self._content()))

    def keep_built(self, lowering: Lowering) -> None:
        _built.put((self._form, self._content()), lowering)

    def watched(self) -> BoundNode:
        """The node for its builder; which operands it looks into is noted."""
        operands = tuple(o and replace(o, asked=partial(self._note, k)) for k, o in enumerate(self._operands))
        bound = replace(self.bound, asked=partial(self._note, _STEPS))
        if self.bound.inputs:
            return replace(bound, inputs=operands, operands=())
        return replace(bound, operands=tuple(o for o in operands if o is not None))

    def _note(self, position: int) -> None:
        looked_at = _looked_at.get(self._form) or frozenset()
        if position not in looked_at:
            _looked_at.put(self._form, looked_at | {position})


def question(spec: OpSpec, bound: BoundNode) -> Question | None:
    """None where a size or a value is one that only a run knows."""
    for operand in (*bound.inputs, *bound.operands):
        if operand is not None and (any(map(is_symbolic, operand.shape)) or _is_of_a_run(operand.content)):
            return None
    return Question(spec, bound)


def _is_of_a_run(content: Array | None) -> bool:
    return content is not None and content.dtype == object


def _type(operand: Operand | None) -> Hashable:
    return None if operand is None else (operand.dtype.name, operand.shape)


def _end(node: Node) -> Hashable:
    return node.epilogue[-1].dtype.name if node.epilogue else None


def _attribute(value: Attribute) -> Hashable:
    """By its text: 1, 1.0 and True are equal, but not the same attribute."""
    return _array(value) if isinstance(value, np.ndarray) else repr(value)


def _content(operand: Operand | None, halves: bool) -> Hashable:
    if operand is None:
        return None
    nonzeros = operand.count() if operand.count is not None else None
    content = operand.expected if operand.content is None else _array(operand.content)
    return operand.constant, nonzeros, halves and operand.fits_half, content


def _array(array: Array) -> Hashable:
    data = array.tobytes()
    return (
        array.dtype.str,
        array.shape,
        data if len(data) <= PLAIN_NBYTES else hashlib.blake2b(data, digest_size=16).digest(),
    )
