"""Graph + input types -> Plan: kernels, views, order, lifetimes, slots."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Protocol

import numpy as np

from ort_gpu_ep.errors import Code, InternalError, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Array, Graph
from ort_gpu_ep.ir.symbolic import Trace, counts_of, hint, is_symbolic, largest, plain
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, UINT32, TensorType
from ort_gpu_ep.kernels import shape_arithmetic
from ort_gpu_ep.kernels.lowering import HostValues, facts_of, runs_once, temporary, walk
from ort_gpu_ep.kernels.records import turns_of
from ort_gpu_ep.kernels.registry import (
    ERROR_FLAGS,
    BoundNode,
    Decline,
    Limits,
    Lowering,
    UnknownValueError,
    part_count,
    parts,
    tensors_of,
)
from ort_gpu_ep.scheduler.barriers import share_barriers
from ort_gpu_ep.scheduler.counts import code_of, parameters_of_counts, sizes_kernel, struct_nbytes
from ort_gpu_ep.scheduler.lifetime import assign_slots, slots_apart
from ort_gpu_ep.scheduler.plan import ERROR_WORD, PARAMETERS, Constant, Copy, Dispatch, Kind, Place, Plan
from ort_gpu_ep.scheduler.plan import Bound as BoundTensor
from ort_gpu_ep.shaders.composer import folded, parameters, workgroup_count
from ort_gpu_ep.shaders.steps import fused_reading


@dataclass
class _Draft:
    """Dispatches over named values, before values get places."""

    graph: Graph
    limits: Limits
    types: dict[str, TensorType]
    roots: dict[str, str] = field(default_factory=dict)  # a view -> the value whose bytes it shows
    known: dict[str, Array] = field(default_factory=dict)
    dispatches: list[tuple[Dispatch, tuple[str, ...]]] = field(default_factory=list)  # with the value of each tensor
    prologue: list[Dispatch] = field(default_factory=list)
    # values that the prologue writes -> names of their places
    prepared: dict[str, str] = field(default_factory=dict)
    inverses: list[Dispatch] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)  # bytes of what is zero between runs
    channels_last: int = 0
    conversions: int = 0
    # (graph input, graph output) that may be one buffer
    in_place: list[tuple[int, int]] = field(default_factory=list)
    equal: list[tuple[str, int, int]] = field(default_factory=list)  # of the node with this label, Lowering.equal
    counts: bool = False  # whether there are sizes that a run counts
    # programs that calculate parameters -> the counts that they read
    codes: dict[str, frozenset[str]] = field(default_factory=dict)
    # what the prologue writes of weights that are stored packed
    dense: list[Place] = field(default_factory=list)
    # by a value and how it is searched: what holds them
    scales: dict[Hashable, tuple[str, TensorType]] = field(default_factory=dict)

    def is_constant(self, name: str) -> bool:
        """Whether the program keeps a value on the device from one run to the next."""
        return name in self.prepared or (name in self.graph.values and self.graph.values[name].is_constant)

    def root(self, name: str) -> str:
        while name in self.roots:
            name = self.roots[name]
        return name


class Rewrite(Protocol):
    """Makes a graph cheaper for these input types (fusion); may add constants, may not change inputs and outputs."""

    def __call__(
        self,
        graph: Graph,
        inputs: Mapping[str, TensorType],
        limits: Limits,
        *,
        known: Mapping[str, Array] | None = None,
    ) -> Graph: ...


def make_plan(
    graph: Graph,
    inputs: Mapping[str, TensorType],
    limits: Limits,
    rewrite: Rewrite | None = None,
    known: Mapping[str, Array] | None = None,
    *,
    apart: bool = False,
    trace: Trace | None = None,
) -> Plan:
    """A plan for these input types.

    inputs: type of each of graph.inputs. known: the content of some of them. apart: each value has a slot of its own.
    trace: of their sizes that are those of a run, and of what a run counts. Raises: UnsupportedNodeError, where a row
    declines a node with these types; UnknownValueError, where it needs more content.
    """
    draft = _Draft(graph, limits, dict(inputs), known=dict(known or {}))
    if rewrite is not None:
        draft.graph = rewrite(graph, inputs, limits, known=known or {})
        for name, value in draft.graph.values.items():
            if value.load and value.dtype is not None and name not in graph.values:
                draft.known[name] = array = value.load()
                draft.types[name] = TensorType(value.dtype, tuple(array.shape))
    facts = facts_of(draft.graph, inputs, known or {}, trace)
    for node, answer, bound in walk(draft.graph, facts, limits):
        if counts := facts.counted.intersection(facts.breaks.get(id(node), ())):
            raise UnsupportedNodeError(
                Code.DYNAMIC_SHAPE,
                f"{node.label}: only a run tells the size of {min(counts)!r}; what needs it as a number needs another "
                "partition",
            )
        if isinstance(answer, Decline):
            if answer.operand:
                raise UnknownValueError(answer.operand)
            raise UnsupportedNodeError(answer.code, f"{node.label}: {plain(answer.reason)}")
        if isinstance(answer, HostValues):
            for name, content in zip(node.outputs, answer.values, strict=True):
                if name and content is not None:
                    draft.known[name], dtype = content
                    draft.types[name] = TensorType(dtype, tuple(content[0].shape))
        elif bound is not None:
            _lower(draft, bound, answer)
            draft.channels_last += node.channels_last
            # placed by the layout pass
            draft.conversions += node.id < 0 and node.op == "Transpose" and bool(answer.kernels)
    draft.counts = facts.trace is not None and facts.trace.has_counts
    return _place(draft, apart)


def _lower(draft: _Draft, bound: BoundNode, lowering: Lowering) -> None:
    node = bound.node
    if lowering.in_place is not None and (pairs := _in_place(draft, bound, lowering)):
        draft.in_place += pairs
        lowering = replace(lowering, kernels=lowering.in_place.kernels)
    for operand in (*bound.given(), *bound.operands):
        draft.types.setdefault(operand.name, operand.type)
    for name, tensor in zip(node.outputs, lowering.outputs, strict=False):
        if name and tensor is not None:
            draft.types[name] = tensor
    if node.into is not None:
        draft.types[node.into.value] = node.into.type
    for target, source in lowering.views:
        draft.roots[node.outputs[target]] = bound.input(source).name
    temps = {name: temporary(node, name) for name, _ in lowering.temps}
    lowering = _with_scales(draft, bound, lowering, temps)
    temps.update((name, node.outputs[index]) for name, index in lowering.stored if bound.wants(index))
    draft.types.update({temps[name]: tensor for name, tensor in lowering.temps})
    draft.kept.update({temps[name]: tensor.nbytes for name, tensor in lowering.temps if name in lowering.kept})
    draft.equal += [(node.label, *pair) for pair in lowering.equal]
    decodes_once = draft.limits.keeps_dense and runs_once(node, lowering, draft.is_constant, draft.graph.outputs)
    for kernel in lowering.kernels:
        if all(tensor.size == 0 for tensor in kernel.outputs):
            continue
        names = [temps[s] if isinstance(s, str) else bound.source(s).name for _, s in kernel.reads or ()]
        names += [temps[t] if isinstance(t, str) else _output_name(bound, t) for _, t in kernel.writes or ()]
        if kernel.looks:
            names.append(ERROR_WORD)
            draft.kept[ERROR_WORD] = 4
        part = node.into if any(target == 0 for _, target in kernel.writes or ()) else None
        kernel = replace(kernel, into=part)
        bindings = tensors_of(kernel, lowering, bound)
        tensors = tuple(
            BoundTensor(n, tensor, Place(Kind.SLOT, -1), written, part.type if part and name == part.value else None)
            for (n, (tensor, written)), name in zip(bindings.items(), names, strict=True)
        )
        for tensor, _ in bindings.values():  # asked now, while guards can be kept: how many bindings a tensor takes
            parts(tensor, draft.limits.max_binding_nbytes)
        fused_reading(kernel, bindings)  # likewise
        first = kernel.outputs[0]
        # an output that is left out has no other
        written_type = draft.types.get(names[len(kernel.reads or ())], first)
        groups = kernel.grid or _groups(workgroup_count(kernel, first), draft.limits)
        if part is None and kernel.groups == 0 and not lowering.counted and first.size != written_type.size:
            raise InternalError(f"{node.label}: kernel {kernel.shader} writes {first}, its value is {written_type}")
        label = f"{node.label}/{kernel.shader.removesuffix('.wgsl')}"
        dispatch = Dispatch(label, kernel, tensors, groups, 0, turns=turns_of(kernel))
        if (decodes_once or lowering.runs_once(kernel)) and _may_run_once(draft, dispatch, names):
            _run_once(
                draft,
                dispatch,
                names,
                decodes_once or any(target in lowering.dense for _, target in kernel.writes or ()),
            )
            draft.inverses += _inverses(draft, bound, lowering, temps)
        else:
            draft.dispatches.append((dispatch, tuple(names)))


def _with_scales(draft: _Draft, bound: BoundNode, lowering: Lowering, temps: dict[str, str]) -> Lowering:
    """The lowering without the search for scales of an input that are there already, or that what writes the input can
    give.

    temps: is told which value holds them.
    """
    for temp, index, of_images in lowering.scaled:
        root, searched = draft.root(bound.input(index).name), dict(lowering.temps)[temp]
        search = next(k for k in lowering.kernels if any(target == temp for _, target in k.writes or ()))
        key = (root, search.shader, search.consts, search.indices)
        scales = draft.scales.get(key) or (
            _given_scales(draft, root, bound.input(index).type, searched.shape[0]) if of_images else None
        )
        if scales is None:
            draft.scales[key] = (temps[temp], searched)
            continue
        draft.scales[key] = (temps[temp], _) = scales
        kernels = tuple(
            replace(
                k, consts=tuple((name, scales[1].shape[1] if name == "PARTS" else value) for name, value in k.consts)
            )
            for k in lowering.kernels
            if all(target != temp for _, target in k.writes or ())
        )
        lowering = replace(
            lowering,
            kernels=kernels,
            temps=tuple((name, scales[1] if name == temp else tensor) for name, tensor in lowering.temps),
        )
    return lowering


def _given_scales(draft: _Draft, root: str, tensor: TensorType, images: int) -> tuple[str, TensorType] | None:
    """The value and type of the scales of a value's images, which the one dispatch that writes it gives from now on.
    None if it can't."""
    writers = [
        i
        for i, (dispatch, names) in enumerate(draft.dispatches)
        if any(t.written and draft.root(n) == root for t, n in zip(dispatch.tensors, names, strict=True))
    ]
    if len(writers) != 1:
        return None
    dispatch, names = draft.dispatches[writers[0]]
    there, stored = dispatch.kernel.scales, dispatch.kernel.outputs[0]
    most, limits = draft.limits.max_buffers_per_stage, draft.limits
    if (
        there is None
        or there.images != images
        or dispatch.kernel.into
        or stored.dtype is not FLOAT32
        or stored.size != tensor.size
    ):
        return None
    nbytes = dispatch.kernel.workgroup_nbytes + there.workgroup_nbytes
    if (
        sum(part_count(t.bound, limits.max_binding_nbytes) for t in dispatch.tensors) >= most
        or nbytes > limits.max_workgroup_nbytes
    ):
        return None
    name, scales = f"{dispatch.label}.scales of {root}", TensorType(FLOAT32, (there.images, there.parts))
    consts = {**dict(dispatch.kernel.consts), **dict(there.consts)}
    kernel = replace(
        dispatch.kernel,
        outputs=(*dispatch.kernel.outputs, scales),
        writes=(*(dispatch.kernel.writes or ()), ("y_scales", name)),
        consts=tuple(consts.items()),
        workgroup_nbytes=nbytes,
        scales=None,
    )
    tensors = (*dispatch.tensors, BoundTensor("y_scales", scales, Place(Kind.SLOT, -1), True))
    draft.dispatches[writers[0]] = (replace(dispatch, kernel=kernel, tensors=tensors), (*names, name))
    draft.types[name] = scales
    return name, scales


def _in_place(draft: _Draft, bound: BoundNode, lowering: Lowering) -> list[tuple[int, int]]:
    """The graph's inputs and outputs that a node's are, where its outputs may be its inputs: nothing else reads or
    gives these."""
    assert lowering.in_place is not None, "the caller has looked"
    graph, pairs = draft.graph, list[tuple[int, int]]()
    reads = Counter(name for node in graph.nodes for name in node.reads)
    for output, at in lowering.in_place.pairs:
        source, target = bound.input(at), bound.node.outputs[output]
        is_alone = source.name in graph.inputs and reads[source.name] == 1 and source.name not in graph.outputs
        if not is_alone or graph.outputs.count(target) != 1 or lowering.outputs[output] != source.type:
            return []
        pairs.append((graph.inputs.index(source.name), graph.outputs.index(target)))
    return pairs


def _calculate(draft: _Draft) -> None:
    """Adds what calculates sizes from counts: one dispatch for all parameters of kernels that follow from the same
    counts, and one for each value of sizes that the host would know if it knew these. Each is behind the kernel that
    finds the last of its counts.
    """
    if not draft.counts:
        return
    roots = dict.fromkeys(map(draft.root, (*(n for _, names in draft.dispatches for n in names), *draft.graph.outputs)))
    pending: dict[str, frozenset[str]] = {}
    for k, (label, size, other) in enumerate(draft.equal):
        draft.known[name := f"{label}\0equal {k}"] = shape_arithmetic.objects([size - other])
        draft.types[name] = TensorType(UINT32, (1,))
        roots[name] = None
    for name in roots:
        if name in draft.known and (counts := _counts_in(draft.known[name])):
            pending[name] = counts
    for dispatch, _ in draft.dispatches:
        if counts := _counts_of(dispatch):
            pending[_parameters_of(counts)] = counts
    there, every, dispatches = (
        set[str](),
        frozenset().union(*pending.values()),
        list[tuple[Dispatch, tuple[str, ...]]](),
    )
    for dispatch, names in draft.dispatches:
        dispatches.append((dispatch, names))
        there |= {n for t, n in zip(dispatch.tensors, names, strict=True) if t.written and n in every}
        for name in [name for name, counts in pending.items() if counts <= there]:
            dispatches.append(_calculation(draft, name, sorted(pending.pop(name))))
    draft.dispatches = dispatches


def _counts_in(array: Array) -> frozenset[str]:
    return counts_of(*array.reshape(-1)) if array.dtype == object else frozenset()


def _counts_of(dispatch: Dispatch) -> frozenset[str]:
    return counts_of(*(size for _, size in parameters_of_counts(dispatch.kernel, dispatch.bindings)))


def _parameters_of(counts: frozenset[str]) -> str:
    """Stands for what follows from some counts, where values have names."""
    return "\0".join(("", *sorted(counts)))


def _calculation(draft: _Draft, name: str, counts: list[str]) -> tuple[Dispatch, tuple[str, ...]]:
    """The dispatch that calculates a value, or parameters, from counts."""
    code, are_parameters = f"{name}\0code", name not in draft.known
    if are_parameters:
        words = [
            (k, size)
            for d, _ in draft.dispatches
            if _counts_of(d) == frozenset(counts)
            for k, size in parameters_of_counts(d.kernel, d.bindings)
        ]
        out = TensorType(
            UINT32, (sum(struct_nbytes(len(parameters(d.kernel, d.bindings))) for d, _ in draft.dispatches) // 4,)
        )
        draft.codes[code] = frozenset(counts)
    else:
        content, out = draft.known.pop(name), draft.types[name]
        words = list(enumerate(content.reshape(-1)))
    checks = "\0equal " in name
    draft.known[code] = _code(words, counts, checks)
    draft.types[code] = TensorType(UINT32, draft.known[code].shape)
    kernel = sizes_kernel(out, len(words), counts, checks)
    tensors = (
        BoundTensor("code", draft.types[code], Place(Kind.SLOT, -1), False),
        *(BoundTensor(f"count{k}", TensorType(UINT32, (1,)), Place(Kind.SLOT, -1), False) for k in range(len(counts))),
        BoundTensor("y", out, Place(Kind.SLOT, -1), True),
        *([BoundTensor(ERROR_FLAGS, TensorType(UINT32, (1,)), Place(Kind.SLOT, -1), True)] if checks else ()),
    )
    if checks:
        draft.kept[ERROR_WORD] = 4
    label = f"{name.partition(chr(0))[0] if checks else name.strip(chr(0)).replace(chr(0), ', ')}/sizes"
    dispatch = Dispatch(label, kernel, tensors, (kernel.groups, 1, 1), 0, turns=turns_of(kernel))
    return dispatch, (code, *counts, PARAMETERS if are_parameters else name, *([ERROR_WORD] if checks else ()))


def _code(words: Sequence[tuple[int, Any]], counts: Sequence[str], checks: bool = False) -> Array:
    code = code_of(words, counts, checks)
    return shape_arithmetic.plain(shape_arithmetic.objects(code), UINT32)


def _with_places(draft: _Draft, steps: Sequence[Dispatch | Copy]) -> None:
    """Writes into the programs of parameters where these are, once the order of the steps says it."""
    ends, end = list[int](), 0
    for step in steps if draft.codes else ():
        ends.append(end)
        end += struct_nbytes(len(parameters(step.kernel, step.bindings))) if isinstance(step, Dispatch) else 0
    for code, counts in draft.codes.items():
        dispatches = [(start, step) for start, step in zip(ends, steps, strict=True) if isinstance(step, Dispatch)]
        readers = [(start, step) for start, step in dispatches if _counts_of(step) == counts]
        words = [
            (start // 4 + k, size)
            for start, step in readers
            for k, size in parameters_of_counts(step.kernel, step.bindings)
        ]
        draft.known[code] = _code(words, sorted(counts))


def _groups(count: int, limits: Limits) -> tuple[int, int, int]:
    return (count, 1, 1) if is_symbolic(count) else folded(count, limits.max_groups_per_dimension)


def _may_run_once(draft: _Draft, dispatch: Dispatch, names: Sequence[str]) -> bool:
    """Whether it reads only what the program keeps on the device, and no size of a run."""
    reads = [draft.root(n) for t, n in zip(dispatch.tensors, names, strict=True) if not t.written]
    fixed = not any(map(is_symbolic, dispatch.groups)) and not parameters(dispatch.kernel, dispatch.bindings)
    return fixed and all(draft.is_constant(n) and n not in draft.known for n in reads)


def _run_once(draft: _Draft, dispatch: Dispatch, names: Sequence[str], dense: bool) -> None:
    """dense: it writes out what is stored packed.

    What it writes is named by what is computed from what, not by the node: plans that want a weight in the same order,
    for whichever node, find the same place.
    """
    reads = [_place_of(draft, {}, n) for t, n in zip(dispatch.tensors, names, strict=True) if not t.written]
    bare = replace(dispatch.kernel, reads=None, writes=None)
    digest = hashlib.sha256(repr((bare, [(t.name, t.type) for t in dispatch.tensors], reads)).encode()).hexdigest()[:16]
    label = f"{f'{reads[0].name}/' if reads else ''}{bare.shader.removesuffix('.wgsl')}"
    draft.prepared |= {
        n: f"{label}.{t.name}#{digest}" for t, n in zip(dispatch.tensors, names, strict=True) if t.written
    }
    tensors = tuple(replace(t, place=_place_of(draft, {}, n)) for t, n in zip(dispatch.tensors, names, strict=True))
    step = replace(dispatch, label=label, kernel=bare, tensors=tensors)
    if step not in draft.prologue:
        draft.prologue.append(step)
    if dense or any(t.place in draft.dense for t in tensors):
        draft.dense += [t.place for t in tensors if t.written and t.place not in draft.dense]


def _inverses(draft: _Draft, bound: BoundNode, lowering: Lowering, temps: Mapping[str, str]) -> list[Dispatch]:
    """What gives the weights back that the prologue of this node packs."""
    inverses = []
    for index, kernel in lowering.inverses:
        names = {read: temps[str(source)] for read, source in kernel.reads or ()}
        place = _place_of(draft, {}, bound.input(index).name)
        if set(names.values()) <= draft.prepared.keys() and place.kind is Kind.WEIGHT:
            tensors = (
                *(BoundTensor(read, draft.types[n], _place_of(draft, {}, n), False) for read, n in names.items()),
                BoundTensor("y", kernel.outputs[0], place, True),
            )
            groups = _groups(workgroup_count(kernel, kernel.outputs[0]), draft.limits)
            label = f"{place.name}/{kernel.shader.removesuffix('.wgsl')}"
            inverses.append(Dispatch(label, replace(kernel, reads=None, writes=None), tensors, groups, 0))
    return inverses


def _output_name(bound: BoundNode, index: int) -> str:
    """The value that output `index` writes; an unwanted output still needs a buffer."""
    if index == 0 and bound.node.into is not None:
        return bound.node.into.value
    if bound.wants(index):
        return bound.node.outputs[index]
    return f"{bound.node.label}#{bound.node.id}.unused{index}"


def _place(draft: _Draft, apart: bool) -> Plan:
    graph = draft.graph
    _drop_unread(draft)
    _store_rounded(draft)
    _calculate(draft)
    _unwanted_types(draft)
    places = _fixed_places(draft)
    levels = _levels(draft)
    written = {
        draft.root(n): t.bound.nbytes
        for d, names in draft.dispatches
        for t, n in zip(d.tensors, names, strict=True)
        if t.written
    }
    inner = {name: nbytes for name, nbytes in written.items() if name not in places}
    uses, sizes = (
        [tuple(draft.root(n) for n in names) for _, names in draft.dispatches],
        {n: hint(size) for n, size in inner.items()},
    )
    costs = _costs(draft, levels)
    order, slot_of, slots = (
        slots_apart(uses, levels, sizes, costs)
        if apart
        else assign_slots(uses, levels, sizes, costs, draft.limits.figures.dispatch_nbytes)
    )
    places.update({name: Place(Kind.SLOT, slot) for name, slot in slot_of.items()})
    steps: list[Dispatch | Copy] = []
    for i in order:
        dispatch, names = draft.dispatches[i]
        tensors = tuple(
            replace(t, place=_place_of(draft, places, n)) for t, n in zip(dispatch.tensors, names, strict=True)
        )
        steps.append(replace(dispatch, tensors=tensors, level=levels[i]))
    kept = [
        Copy(n := graph.inputs[i], Place(Kind.INPUT, i), Place(Kind.OUTPUT, o), draft.types[n].nbytes)
        for i, o in draft.in_place
    ]
    steps = share_barriers([*kept, *steps, *_output_copies(draft, places)], draft.limits)
    _with_places(draft, steps)
    used = sorted(
        {t.place for s in (*draft.prologue, *steps) if isinstance(s, Dispatch) for t in s.tensors}
        | {s.source for s in steps if isinstance(s, Copy)}
    )
    constants = tuple(_constant(draft, p.name) for p in used if p.kind is Kind.CONSTANT)
    return Plan(
        tuple(draft.types[n] for n in graph.inputs),
        tuple(_type_of(draft, n) for n in graph.outputs),
        tuple(steps),
        _slot_sizes(slots, slot_of, inner),
        tuple(p.name for p in used if p.kind is Kind.WEIGHT),
        constants,
        sum(inner.values()),
        tuple(draft.prologue),
        tuple(draft.kept.items()),
        draft.channels_last,
        draft.conversions,
        tuple(draft.inverses),
        tuple(draft.in_place),
        tuple(draft.dense),
        _halved(steps, draft.limits),
    )


def _drop_unread(draft: _Draft) -> None:
    """Leaves out dispatches of which nothing is read: nodes name outputs that no other node wants."""
    read, live = {*draft.kept, *map(draft.root, draft.graph.outputs)}, list[tuple[Dispatch, tuple[str, ...]]]()
    for dispatch, names in reversed(draft.dispatches):
        roots = [(draft.root(name), tensor.written) for name, tensor in zip(names, dispatch.tensors, strict=True)]
        if any(written and name in read for name, written in roots):
            live.append((dispatch, names))
            read |= {name for name, written in roots if not written}
    draft.dispatches = live[::-1]


def _store_rounded(draft: _Draft) -> None:
    """Stores a value in float16 where all that read it round it to that anyway: the results stay the same, bit for
    bit."""
    if not any(dispatch.kernel.rounded for dispatch, _ in draft.dispatches):
        return
    uses: dict[str, list[tuple[int, BoundTensor]]] = {}
    for i, (dispatch, names) in enumerate(draft.dispatches):
        for tensor, name in zip(dispatch.tensors, names, strict=True):
            uses.setdefault(draft.root(name), []).append((i, tensor))
    elsewhere = {*map(draft.root, (*draft.graph.inputs, *draft.graph.outputs)), *draft.kept}
    # the last one first: what only passes a value on follows what it becomes
    for root, uses_of in reversed(uses.items()):
        written, read = ([use for use in uses_of if use[1].written is way] for way in (True, False))
        if (
            root not in elsewhere
            and len(written) == 1
            and read
            and all(_rounds(draft.dispatches[i][0], t) for i, t in read)
            and (_may_store_halves(draft.dispatches[written[0][0]][0], written[0][1]))
        ):
            for i, tensor in uses_of:
                dispatch, names = draft.dispatches[i]
                draft.dispatches[i] = (_in_halves(dispatch, tensor), names)
            draft.types[root] = TensorType(FLOAT16, draft.types[root].shape)


def _rounds(dispatch: Dispatch, tensor: BoundTensor) -> bool:
    halves = dispatch.kernel.outputs[0].dtype is FLOAT16 and not dispatch.kernel.epilogue
    return any(rounded.name == tensor.name and (halves or not rounded.passes) for rounded in dispatch.kernel.rounded)


def _may_store_halves(dispatch: Dispatch, tensor: BoundTensor) -> bool:
    """Whether it writes a value as its first output, whole, by fours."""
    kernel = dispatch.kernel
    is_first = (kernel.writes or (("", ""),))[0][0] == tensor.name
    return (
        is_first
        and tensor.type.dtype is FLOAT32
        and tensor.name in kernel.vectors
        and not (kernel.raw or kernel.into or tensor.whole)
    )


def _in_halves(dispatch: Dispatch, tensor: BoundTensor) -> Dispatch:
    """With a tensor of its own in float16 instead of float32."""
    stored, kernel = TensorType(FLOAT16, tensor.type.shape), dispatch.kernel
    tensors = tuple(replace(t, type=stored) if t.name == tensor.name else t for t in dispatch.tensors)
    if tensor.written:
        return replace(dispatch, tensors=tensors, kernel=replace(kernel, outputs=(stored, *kernel.outputs[1:])))
    (rounded,), others = ([r for r in kernel.rounded if (r.name == tensor.name) is own] for own in (True, False))
    consts, words = (
        {**dict(kernel.consts), **dict(rounded.consts)},
        (*kernel.words, *((rounded.name,) if rounded.by_eight else ())),
    )
    return replace(
        dispatch,
        tensors=tensors,
        kernel=replace(kernel, consts=tuple(consts.items()), words=words, rounded=tuple(others)),
    )


def _halved(steps: Sequence[Dispatch | Copy], limits: Limits) -> tuple[tuple[int, Dispatch], ...]:
    """The steps that read inputs, with those in float16 that all of their readers round to that anyway."""
    readers: dict[int, list[tuple[int, BoundTensor | None]]] = {}
    for k, step in enumerate(steps):
        read = [(step.source, None)] if isinstance(step, Copy) else [(t.place, t) for t in step.tensors]
        for place, tensor in read:
            if place.kind is Kind.INPUT:
                readers.setdefault(place.index, []).append((k, tensor))
    copies: dict[int, Dispatch] = {}
    for use in readers.values():
        rounding = [
            (k, step, t)
            for k, t in use
            if t is not None and isinstance(step := steps[k], Dispatch) and _rounds(step, t)
        ]
        for k, step, tensor in rounding if len(rounding) == len(use) else ():
            copies[k] = _in_halves(copies.get(k, step), tensor)
    for step in copies.values():
        for tensor in step.tensors:  # asked now, as in _lower
            parts(tensor.type, limits.max_binding_nbytes)
    return tuple(sorted(copies.items()))


def _costs(draft: _Draft, levels: Sequence[int]) -> list[float]:
    """Bytes that each dispatch writes. A barrier stands in front of what writes into a value that an earlier level
    wrote, so it comes first in its level, before all others.
    """
    since: dict[str, int] = {}
    for (dispatch, names), level in zip(draft.dispatches, levels, strict=True):
        for t, name in zip(dispatch.tensors, names, strict=True):
            if t.written:
                since[draft.root(name)] = min(level, since.get(draft.root(name), level))
    since[PARAMETERS] = len(levels)
    return [
        inf
        if any(t.written and since[draft.root(n)] < level for t, n in zip(dispatch.tensors, names, strict=True))
        else hint(sum(t.type.nbytes for t in dispatch.tensors if t.written))
        for (dispatch, names), level in zip(draft.dispatches, levels, strict=True)
    ]


def _slot_sizes(slots: Sequence[int], slot_of: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Bytes of each slot: what was assigned, or for values whose sizes vary the largest of those that share it."""
    nbytes_of: dict[int, list[int]] = {}
    for name, slot in slot_of.items():
        nbytes_of.setdefault(slot, []).append(sizes[name])
    return tuple(
        largest(*nbytes_of[k]) if any(map(is_symbolic, nbytes_of[k])) else nbytes for k, nbytes in enumerate(slots)
    )


def _unwanted_types(draft: _Draft) -> None:
    for dispatch, names in draft.dispatches:
        for tensor, name in zip(dispatch.tensors, names, strict=True):
            draft.types.setdefault(name, tensor.type)


def _type_of(draft: _Draft, name: str) -> TensorType:
    return draft.types[name]


def _constant(draft: _Draft, name: str) -> Constant:
    array, tensor = draft.known[name], draft.types[name]
    if array.dtype == object:
        return Constant(name, tensor, b"", tuple(array.reshape(-1)))
    return Constant(name, tensor, array.tobytes())


def _fixed_places(draft: _Draft) -> dict[str, Place]:
    """Values that live outside the plan's slots: inputs, and those outputs that a dispatch writes."""
    places = {name: Place(Kind.INPUT, i) for i, name in enumerate(draft.graph.inputs)}
    places |= {name: Place(Kind.KEPT, name=name) for name in draft.kept} | {PARAMETERS: Place(Kind.PARAMETERS)}
    produced = {
        draft.root(n) for d, names in draft.dispatches for t, n in zip(d.tensors, names, strict=True) if t.written
    }
    for i, name in enumerate(draft.graph.outputs):
        root = draft.root(name)
        if root in produced:
            places.setdefault(root, Place(Kind.OUTPUT, i))
    return places


def _place_of(draft: _Draft, places: Mapping[str, Place], name: str) -> Place:
    root = draft.root(name)
    if root in places:
        return places[root]
    if root in draft.prepared:
        return Place(Kind.PREPARED, name=draft.prepared[root])
    if root in draft.known:
        return Place(Kind.CONSTANT, name=root)
    value = draft.graph.values.get(root)
    if value is not None and value.is_constant:
        return Place(Kind.WEIGHT, name=root)
    tensor = draft.types.get(root)
    if tensor is None or tensor.size:
        raise InternalError(f"plan of {draft.graph.name}: nothing produces {name!r}")
    # without elements there is nothing to produce
    draft.known[root] = np.empty(tuple(map(hint, tensor.shape)), tensor.dtype.numpy)
    return Place(Kind.CONSTANT, name=root)


def _output_copies(draft: _Draft, places: Mapping[str, Place]) -> list[Dispatch | Copy]:
    copies: list[Dispatch | Copy] = []
    for i, name in enumerate(draft.graph.outputs):
        target, source = Place(Kind.OUTPUT, i), _place_of(draft, places, name)
        nbytes = _type_of(draft, name).nbytes
        if source != target and nbytes:
            copies.append(Copy(name, source, target, nbytes))
    return copies


def _levels(draft: _Draft) -> list[int]:
    """Length of the longest chain of dispatches before each. Writers of different parts of one value may share a
    level."""
    ready: dict[str, int] = {}
    levels = []
    for dispatch, names in draft.dispatches:
        tensors = list(zip(dispatch.tensors, (draft.root(n) for n in names), strict=True))
        after = [_parameters_of(counts)] if draft.counts and (counts := _counts_of(dispatch)) else []
        level = max((ready.get(n, 0) for n in (*(n for t, n in tensors if not t.written), *after)), default=0)
        for t, n in tensors:
            if t.written:
                n = _parameters_of(frozenset(names[1:-1])) if n == PARAMETERS else n
                ready[n] = max(ready.get(n, 0), level + 1)
        levels.append(level)
    return levels
