"""Walks a graph with concrete input types and lowers it node by node.

The partitioner calls it with representative sizes to learn what can be claimed; the scheduler calls it with the real
sizes of a run to build a plan. Both get their answer from the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from ort_gpu_ep.errors import Code
from ort_gpu_ep.ir.graph import Array, Graph, Node, Nonzeros, fits_half, nonzeros_of
from ort_gpu_ep.ir.symbolic import CountError, Real, Size, Trace, at_most, counts_of, hint, is_symbolic, mapped
from ort_gpu_ep.ir.types import BOOL, FLOAT16, FLOAT32, FLOATS, INT32, INT64, DType, TensorType
from ort_gpu_ep.kernels import host, shape_arithmetic
from ort_gpu_ep.kernels.claim import claim
from ort_gpu_ep.kernels.registry import BoundNode, Decline, Limits, Lowering, Operand, spec_of
from ort_gpu_ep.weights.functions import DOMAIN, SPARSE

SIZES = "sizes.wgsl"
"""Calculates what follows from counts. Where a probe has put it out of use, what reads a size that the data decide
begins a partition."""


@dataclass(frozen=True, slots=True)
class HostValues:
    """The outputs of a node that the host has computed, with their element types; None for one left out."""

    values: tuple[tuple[Array, DType] | None, ...] = field(compare=False)


Answer: TypeAlias = Lowering | HostValues | Decline


@dataclass
class Facts:
    """What is known of each value: its concrete type, and its content where the host knows it.

    constants: values that the graph holds. counts, fits: for each, what counts its zeros, and tells whether float16
    reaches to its numbers. later: values whose content the host will know when a run begins. computed: values that the
    GPU computes in this graph. counted: values whose size, or content that the host knows, depends on a count
    (ir/symbolic.py). breaks: by id() of a node, the computed values whose content, or of which a count, it needs as a
    number: they can't be in one group, because the host reads that in between. trace: of counts, once there is one.
    unbounded: of `counted`, what is read in another partition in any case.
    """

    types: dict[str, TensorType]
    known: dict[str, Array]
    constants: set[str] = field(default_factory=set)
    counts: dict[str, Callable[[], Nonzeros | None]] = field(default_factory=dict)
    fits: dict[str, Callable[[], bool]] = field(default_factory=dict)
    later: set[str] = field(default_factory=set)
    computed: set[str] = field(default_factory=set)
    counted: set[str] = field(default_factory=set)
    breaks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    trace: Trace | None = None
    unbounded: set[str] = field(default_factory=set)

    def operand(self, name: str) -> Operand | None:
        tensor = self.types.get(name)
        if tensor is None:
            return None
        return Operand(
            name,
            tensor,
            self.known.get(name),
            name in self.later,
            name in self.constants,
            self.counts.get(name),
            fits=self.fits.get(name),
        )


def facts_of(
    graph: Graph,
    inputs: Mapping[str, TensorType],
    known: Mapping[str, Array] | None = None,
    trace: Trace | None = None,
) -> Facts:
    """The facts before the first node: input types, constants, and the inputs whose content is known.

    known: None while nodes are claimed, before any run; small inputs will then be known later. trace: that of the sizes
    in these, if any is one of a run.
    """
    facts = Facts(dict(inputs), dict(known or {}), trace=trace)
    if known is None:
        facts.later |= {name for name, tensor in inputs.items() if is_readable(tensor)}
    for name, value in graph.values.items():
        if value.load and value.dtype is not None and value.shape is not None:
            tensor = TensorType(
                value.dtype, tuple(int(d) for d in value.shape if d is not None and not isinstance(d, str))
            )
            facts.types[name] = tensor
            facts.constants.add(name)
            facts.counts[name] = partial(nonzeros_of, value)
            facts.fits[name] = partial(fits_half, value)
            if tensor.nbytes <= host.MAX_CONSTANT_NBYTES:
                facts.known[name] = value.load()
    return facts


def is_readable(tensor: TensorType) -> bool:
    """Whether a value is small enough to be read by the host before a run, should the shape of something depend on
    it."""
    return bool(at_most(tensor.size) <= shape_arithmetic.MAX_ELEMENTS) and tensor.dtype in (
        INT32,
        INT64,
        BOOL,
        FLOAT32,
        FLOAT16,
    )


def walk(
    graph: Graph,
    facts: Facts,
    limits: Limits,
    otherwise: Callable[[str], TensorType | None] = lambda name: None,
) -> Iterator[tuple[Node, Answer, BoundNode | None]]:
    """Yields each node with its answer and adds what it learns to `facts` (made by `facts_of`).

    otherwise: gives the types of values that declined nodes write, if anybody knows them.
    """
    for node in graph.nodes:
        bound = bind(node, facts)
        answer: Answer
        if isinstance(bound, Decline):
            answer = bound
            yield node, answer, None
        else:
            answer = _asked(bound, facts, limits, otherwise)
            counts = tuple(facts.counted.intersection(node.reads))
            # what held for numbers when nodes were claimed may not hold for all sizes
            for shapes in (False, True) if counts else ():
                if not _serves_all(answer, limits):
                    answer = _asked(_pinned(bound, shapes), facts, limits, otherwise)
            if counts and (facts.unbounded.intersection(counts) or not _serves_all(answer, limits)):
                numbers = _at_most(bound)
                other = _asked(numbers, facts, limits, otherwise)
                if not isinstance(other, Decline):
                    answer, bound = other, numbers
                    facts.breaks[id(node)] = (*facts.breaks.get(id(node), ()), *counts)
            yield node, answer, bound
        _learn(facts, node, answer, otherwise)
        if isinstance(answer, Lowering) and answer.counted and not limits.allow(SIZES):
            facts.unbounded |= set(node.writes)
        if limits.keeps_dense and runs_once(node, answer, facts.constants.__contains__, graph.outputs):
            facts.constants |= set(node.writes)
            if node.op == SPARSE and node.inputs[1] in facts.known:
                facts.counts[node.outputs[0]] = partial(_nonzeros_of_entries, node, facts)
        if facts.later:
            _learn_later(facts, node, answer)


def _asked(bound: BoundNode, facts: Facts, limits: Limits, otherwise: Callable[[str], TensorType | None]) -> Answer:
    answer = _answer(bound, limits)
    if isinstance(answer, Decline) and answer.operand:
        return _deferred(bound.node, answer, facts, otherwise) or answer
    try:
        return _with_counts(bound.node, answer, facts) if isinstance(answer, Lowering) and answer.counted else answer
    except CountError as error:
        return Decline(error.code, error.reason)


def temporary(node: Node, name: str) -> str:
    """The value that a temporary of a node is."""
    return f"{node.label}#{node.id}.{name}"


def _with_counts(node: Node, lowering: Lowering, facts: Facts) -> Lowering:
    """With what the kernels find as sizes of the outputs, which are the most that there can be. Raises CountError."""
    if facts.trace is None:
        contents = (v for array in facts.known.values() if array.dtype == object for v in array.reshape(-1))
        sizes = chain((d for t in facts.types.values() for d in t.shape), contents)
        facts.trace = next((v.trace for v in sizes if isinstance(v, (Size, Real))), None) or Trace()
    outputs = list(lowering.outputs)
    for counted in lowering.counted:
        if (tensor := outputs[counted.output]) is not None:
            size = facts.trace.count(temporary(node, counted.count), tensor.shape[counted.axis])
            shape = (*tensor.shape[: counted.axis], size, *tensor.shape[counted.axis + 1 :])
            outputs[counted.output] = TensorType(tensor.dtype, shape)
    return replace(lowering, outputs=tuple(outputs))


def _serves_all(answer: Answer, limits: Limits) -> bool:
    """Whether an answer holds for every count: memory and workgroups for the most there can be are then enough for all,
    and a dispatch can bind all counts that a kernel's sizes, or a value, follow from, beside their programs, what these
    write, and the error word.
    """
    most = limits.max_buffers_per_stage - 3
    if isinstance(answer, HostValues):
        counts = [(value[1], _counts_in(value[0])) for value in answer.values if value is not None]
        return all(not names or (dtype in (INT32, INT64) and len(names) <= most) for dtype, names in counts)
    if isinstance(answer, Decline):
        return False
    tensors = [
        *answer.outputs,
        *(tensor for _, tensor in answer.temps),
        *(t for k in answer.kernels for t in k.outputs),
    ]
    sizes = [tensor.size for tensor in tensors if tensor is not None]
    sizes += [n for k in answer.kernels for n in (k.groups, *(k.grid or ()))]
    inside = list[Any]()
    for built in answer.kernels:
        inside.append(list[Any]())
        mapped(built, inside[-1].append)
    return all(not isinstance(size, Size) or size.trace.trend(size.terms) in (0, 1) for size in sizes) and all(
        len(counts_of(*of_kernel)) <= most for of_kernel in inside
    )


def _counts_in(array: Array) -> frozenset[str]:
    return counts_of(*array.reshape(-1)) if array.dtype == object else frozenset()


def _at_most(bound: BoundNode) -> BoundNode:
    """The node with numbers for the counts in its inputs: the most there can be."""
    return _with_sizes(bound, hint)


def _pinned(bound: BoundNode, shapes: bool) -> BoundNode:
    """The node with numbers for the sizes that a run brings in known content, with `shapes` in all: for these alone the
    plan then holds."""
    return _with_sizes(bound, lambda value: value.pinned() if isinstance(value, Size) else value, shapes)


def _with_sizes(bound: BoundNode, change: Callable[[Any], Any], shapes: bool = True) -> BoundNode:
    def changed(operand: Operand | None) -> Operand | None:
        if operand is None:
            return None
        content = operand.content
        if content is not None and content.dtype == object:
            values = shape_arithmetic.objects([change(v) for v in content.reshape(-1)])
            content = shape_arithmetic.plain(values.reshape(content.shape), operand.dtype)
        return replace(
            operand,
            type=TensorType(operand.dtype, tuple(map(change, operand.shape))) if shapes else operand.type,
            content=content,
        )

    operands = tuple(o for o in map(changed, bound.operands) if o is not None)
    return replace(bound, inputs=tuple(map(changed, bound.inputs)), operands=operands)


def runs_once(node: Node, answer: Answer, is_constant: Callable[[str], bool], outputs: Collection[str]) -> bool:
    """Whether a node is a decoder of constants whose result can stay on the device from one run to the next. outputs:
    of the graph."""
    return (
        _decodes(node)
        and isinstance(answer, Lowering)
        and bool(answer.kernels)
        and node.into is None
        and (all(map(is_constant, node.reads)) and not any(name in outputs for name in node.writes))
    )


def _nonzeros_of_entries(node: Node, facts: Facts) -> Nonzeros:
    """At most, of the weight that a decoder of sparse entries makes: entries that only bridge a distance count, too."""
    entries, starts = facts.types[node.inputs[0]].size, facts.known[node.inputs[1]]
    most = int(np.diff(starts.astype(np.int64)).max(initial=0))
    return Nonzeros(entries, *((entries, most) if node.attributes.get("perm") == (1, 0) else (most, entries)))


def _decodes(node: Node) -> bool:
    return (node.domain, node.op) == ("", "DequantizeLinear") or node.domain == DOMAIN


def _deferred(
    node: Node, decline: Decline, facts: Facts, otherwise: Callable[[str], TensorType | None]
) -> Lowering | None:
    """A promise to take the node once the values are there; None where that can't be, or the types of its outputs are
    not known then."""
    if not decline.later:
        if decline.operand not in facts.computed or not is_readable(facts.types[decline.operand]):
            return None
        facts.breaks[id(node)] = (*facts.breaks.get(id(node), ()), decline.operand)
    guesses = (*decline.types, *(None,) * (len(node.outputs) - len(decline.types)))
    types = tuple(
        (otherwise(name) or guess) if name else None for name, guess in zip(node.outputs, guesses, strict=False)
    )
    missing = any(name and tensor is None for name, tensor in zip(node.outputs, types, strict=True))
    return None if missing else Lowering(types, deferred=True)


def _learn_later(facts: Facts, node: Node, answer: Answer) -> None:
    """Outputs that the host will know when a run begins: shape arithmetic on what it knows then, and small ones of the
    CPU's nodes."""
    if isinstance(answer, Lowering):
        if not shape_arithmetic.has_rule(node) or not all(n in facts.later or n in facts.known for n in node.reads):
            return
        if any(
            facts.types[n].dtype in FLOATS and n in facts.later and n not in facts.computed
            for n in node.reads
            if n in facts.types
        ):
            return  # what follows from floats of a run needs a plan for each of them
    elif isinstance(answer, HostValues):
        return
    facts.later |= {n for n in node.writes if n in facts.types and is_readable(facts.types[n])}


def bind(node: Node, facts: Facts) -> BoundNode | Decline:
    """The node with the types of its inputs, or a decline where one is unknown."""
    operands: list[Operand | None] = []
    for name in (*node.inputs, *node.operands):
        operand = facts.operand(name) if name else None
        if name and operand is None:
            return Decline(
                Code.DYNAMIC_SHAPE, f"type or shape of input {name!r} of {node.op} is unknown before the run"
            )
        operands.append(operand)
    split = len(node.inputs)
    return BoundNode(node, tuple(operands[:split]), tuple(o for o in operands[split:] if o is not None))


def _answer(bound: BoundNode, limits: Limits) -> Answer:
    keeps = limits.keeps_dense and _decodes(bound.node) and bound.input(0).rank > 1
    # a decoded weight is treated as one that the model holds, also a small one
    if keeps or not host.is_host_node(bound):
        return claim(bound, limits)
    results = shape_arithmetic.evaluate(bound)
    if results is not None:
        return HostValues(
            tuple(result if name else None for name, result in zip(bound.node.outputs, results, strict=True))
        )
    if host.has_sizes(bound) and (elements := _moved(bound)) is not None:
        return HostValues(elements)
    answer = claim(bound, limits)
    if isinstance(answer, Decline) and answer.code == Code.ATTRIBUTE:
        return answer  # its row says where onnxruntime differs from ONNX, which is what the host goes by
    if host.has_sizes(bound) and isinstance(answer, Lowering) and (_varies(answer) or _is_data(bound, answer)):
        return answer  # for every size, where the host would need numbers
    if host.has_sizes(bound) and (elements := _moved(bound, pins=True)) is not None:
        return HostValues(elements)
    try:
        return HostValues(host.evaluate(bound))
    except Exception as error:  # the reference implementation lacks some forms; a kernel may still take the node
        if isinstance(answer, Decline):
            return Decline(
                answer.code, f"{answer.reason}; nor can the host compute it ({type(error).__name__}: {error})"
            )
        return answer


def _moved(bound: BoundNode, pins: bool = False) -> tuple[tuple[Array, DType] | None, ...] | None:
    try:
        return host.moved(bound, pins)
    except Exception:  # as below: what the reference implementation lacks
        return None


def _varies(lowering: Lowering) -> bool:
    """Whether the shape of an output depends on sizes of the run."""
    return any(is_symbolic(size) for tensor in lowering.outputs if tensor is not None for size in tensor.shape)


def _is_data(bound: BoundNode, lowering: Lowering) -> bool:
    """Whether an output is too large for anybody to want it on the host, or comes from a table that is."""
    tensors = [*lowering.outputs, *(operand.type for operand in bound.inputs if operand is not None)]
    return any(tensor is not None and at_most(tensor.size) > shape_arithmetic.MAX_ELEMENTS for tensor in tensors)


def _learn(facts: Facts, node: Node, answer: Answer, otherwise: Callable[[str], TensorType | None]) -> None:
    for i, name in enumerate(node.outputs):
        if not name:
            continue
        tensor: TensorType | None
        if isinstance(answer, HostValues):
            value = answer.values[i]
            if value is None:
                continue
            facts.known[name] = value[0]
            tensor = TensorType(value[1], tuple(value[0].shape))
        elif isinstance(answer, Lowering):
            tensor = answer.outputs[i] if i < len(answer.outputs) else None
            facts.computed.add(name)
            spec = spec_of(node)
            if answer.deferred and spec is not None and i in spec.counted:
                facts.counted.add(name)
                facts.unbounded.add(name)
        else:
            tensor = otherwise(name)
        if tensor is not None:
            facts.types[name] = tensor
            if facts.trace is not None and (
                counts_of(*tensor.shape) or (name in facts.known and _counts_in(facts.known[name]))
            ):
                facts.counted.add(name)
