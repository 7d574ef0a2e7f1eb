"""Records of kernels: facts about each shader file besides its WGSL, written in `ops/` beside the op that uses it.

From it come what the kernel is predicted to take (profile.py), whether a driver would cut its loops short (claim.py),
the doctor's probe of it (health/probes/problems.py), and what undoes it. The functions of a record are plain arithmetic
over constants and sizes. `completed` fills in what a row's builder leaves open: also which temporaries are made once,
of constants, and how a weight is restored from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ort_gpu_ep.errors import Code, InternalError, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import hint, hints, is_symbolic
from ort_gpu_ep.ir.types import TensorType
from ort_gpu_ep.kernels.halves import halved
from ort_gpu_ep.kernels.problems import Problem
from ort_gpu_ep.kernels.registry import Bindings, BoundNode, Const, Kernel, Lowering, OpSpec, View, kernel

FAMILIES: Mapping[str, str] = {
    "product": "a tile of a matrix product in workgroup memory; most convolutions, too",
    "matvec": "a matrix times a vector: bound by reading the matrix",
    "direct": "a sum of products by each invocation, nothing shared",
    "recurrent": "one step after the other, which reads its weights from memory",
    "recurrent_held": "one step after the other, with the weights in registers",
    "recurrent_steps": "one step after the other, each a dispatch: matrices times vectors",
    "reduction": "rows that workgroups go along, an element at a time",
    "reduction_held": "rows that are read in vectors and lie in registers",
    "pool": "a window around each element",
    "sorting": "comparisons in workgroup memory, merges",
    "gather": "reads or writes at places that the data names",
    "movement": "reads or writes at places that follow from the index",
    "elementwise": "reads and writes one after the other",
}
"""Kernels whose time grows alike: calibration measures one of each."""

BY_FLOPS = frozenset({"product", "matvec", "direct", "recurrent", "recurrent_held", "recurrent_steps"})
"""Families that are measured over floating-point operations; the others are over the bytes they read and write."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel with its numbers, as the functions of a record see it.

    tensors: of each WGSL name that it binds; empty while only loops are asked for.
    """

    kernel: Kernel
    consts: Mapping[str, Any]
    tensors: Mapping[str, TensorType]

    def __getitem__(self, name: str) -> int:
        """A constant of the kernel, as a number. Raises InternalError where it has none of that name."""
        if name not in self.consts:
            raise InternalError(
                f"{self.kernel.shader} has no constant {name!r} for its record; it has "
                f"{', '.join(self.consts) or 'none'}"
            )
        value: int = self.consts[name]
        return value

    @property
    def workgroup_size(self) -> int:
        return self.kernel.workgroup_size

    def size(self, name: str) -> int:
        """Elements of a tensor that the kernel binds."""
        return self.tensors[name].size

    def nbytes(self, *names: str) -> int:
        """Bytes of some of the tensors, 0 for an optional one left out; without names of all."""
        return sum(self.tensors[name].nbytes for name in names or self.tensors if name in self.tensors)

    def rows(self, passes: int, team: int = 0) -> int:
        """Loop iterations: members of a team (of TEAM by default) go along a row of N, in blocks of 32, that often; then
        they add up in halves."""
        team = team or self["TEAM"]
        along = ceil_div(self["N"], team)
        return passes * (along + along // 32 + 2 + team.bit_length())

    def nested(self, *names: str) -> int:
        """Loop iterations of nested loops over these constants, the innermost last."""
        total = 0
        for name in reversed(names):
            total = self[name] * (1 + total)
        return total


def ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b


Count: TypeAlias = Callable[[KernelCall], int]

Inverse: TypeAlias = Callable[[Sequence[Kernel], TensorType], Kernel | None]
"""From the kernels of a shader that pack an input, and its type, to the kernel that restores the input from what they
write; None where its order can't be restored."""


def restored_by(
    shader: str,
    *names: str,
    consts: Callable[[Mapping[str, Const]], Mapping[str, Const]] = dict,
    optionals: tuple[tuple[str, bool], ...] = (),
) -> Inverse:
    """The inverse of a kernel that packs an input by itself. names: what `shader` calls the tensors that it writes.
    consts: from its constants to those of `shader`. optionals: of the inverse."""

    def inverse(packing: Sequence[Kernel], stored: TensorType) -> Kernel:
        reads = {name: target for name, (_, target) in zip(names, packing[0].writes or (), strict=True)}
        own = consts(dict(packing[0].consts))
        return replace(kernel(shader, [stored], consts=own, reads=reads, writes={"y": "restored"}), optionals=optionals)

    return inverse


@dataclass(frozen=True, slots=True)
class Record:
    """What a shader file is like.

    family: of FAMILIES. loop_bound: iterations of all loops of an invocation at most; None: its text has no loop.
    flops: floating-point operations, None where bytes alone say what it takes. nbytes: read and written, None for each
    bound tensor once. steps: parts of the work that wait for each other, None for one. data_indices: it reads or writes
    at places that the content of a tensor decides on, and its text does not clamp them: such a kernel keeps its bounds
    checks. pairs: its text also serves 64-bit integers that are pairs of words (Kernel.pairs); others it only may
    store, after fused steps. problems: nodes that show whether the kernel is right; none where a probe in health/probes/
    is written for it. inverse: of a kernel that brings weights into another order.
    """

    shader: str
    family: str
    loop_bound: Count | None = None
    flops: Count | None = None
    nbytes: Count | None = None
    steps: Count | None = None
    problems: tuple[Problem, ...] = ()
    data_indices: bool = False
    pairs: bool = False
    inverse: Inverse | None = None


RECORDS: dict[str, Record] = {}
"""Every record by shader file. Importing `ops` fills it."""


def record(
    shader: str,
    family: str,
    *,
    loop_bound: Count | None = None,
    flops: Count | None = None,
    nbytes: Count | None = None,
    steps: Count | None = None,
    problems: Sequence[Problem] = (),
    data_indices: bool = False,
    pairs: bool = False,
    inverse: Inverse | None = None,
) -> None:
    """States the record of a shader file. Raises InternalError for a second one, or an unknown family."""
    if shader in RECORDS or family not in FAMILIES:
        raise InternalError(
            f"record of {shader}: "
            + (
                "there is one already"
                if shader in RECORDS
                else f"got family {family!r}, expected one of {', '.join(FAMILIES)}"
            )
        )
    RECORDS[shader] = Record(
        shader, family, loop_bound, flops, nbytes, steps, tuple(problems), data_indices, pairs, inverse
    )


def unchecked(families: Iterable[str]) -> frozenset[str]:
    """The shader files that need no bounds checks once their families are trusted."""
    trusted = frozenset(families)
    return frozenset(
        shader for shader, record in RECORDS.items() if record.family in trusted and not record.data_indices
    )


def record_of(shader: str) -> Record:
    """Raises UnsupportedNodeError(LIMIT) where there is none: neither its loops nor its costs are known."""
    entry = RECORDS.get(shader)
    if entry is None:
        raise UnsupportedNodeError(
            Code.LIMIT,
            f"{shader} has no record of its family, loops and costs: state one beside the row (docs/adding-an-op.md)",
        )
    return entry


def loop_bound(kernel: Kernel) -> int:
    """Iterations of all loops of one invocation, at most: llvmpipe ends every loop after 65,535 of them together,
    silently.

    Source: Mesa, src/gallium/auxiliary/gallivm/lp_bld_limits.h, LP_MAX_TGSI_LOOP_ITERATIONS. Raises
    UnsupportedNodeError(LIMIT).
    """
    bound = record_of(kernel.shader).loop_bound
    return bound(KernelCall(kernel, dict(kernel.consts), {})) if bound else 0


def turns_of(kernel: Kernel) -> int:
    """Of the loops of one workgroup, of all its invocations together, in the run that is being planned: at most, as far
    as is known."""
    bound = record_of(kernel.shader).loop_bound
    turns = bound(KernelCall(kernel, {name: hint(value) for name, value in kernel.consts}, {})) if bound else 0
    return int(kernel.workgroup_size * (1 + hint(turns)))


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel does. flops: 0 where it is told by its bytes alone. steps: parts that wait for each other.
    dispatches: of it."""

    family: str
    flops: int
    nbytes: int
    steps: int = 1
    dispatches: int = 1


def work_of(kernel: Kernel, bindings: Bindings) -> Work:
    """In the run that is being planned. bindings: as registry.tensors_of has them. Raises UnsupportedNodeError(LIMIT)
    without a record."""
    tensors = {name: TensorType(tensor.dtype, hints(tensor.shape)) for name, (tensor, _) in bindings.items()}
    record, call = (
        record_of(kernel.shader),
        KernelCall(kernel, {name: hint(value) for name, value in kernel.consts}, tensors),
    )
    return Work(
        record.family,
        record.flops(call) if record.flops else 0,
        record.nbytes(call) if record.nbytes else call.nbytes(),
        record.steps(call) if record.steps else 1,
        hint(kernel.repeats),
    )


def completed(spec: OpSpec, bound: BoundNode) -> Lowering:
    """Runs the row's builder and completes what it returns. Raises UnsupportedNodeError."""
    built = spec.build(bound)
    if isinstance(built, View):
        return Lowering((built.output,), views=((0, 0),))
    if isinstance(built, Kernel):
        built = _single(bound, built)
    built = replace(built, kernels=tuple(_complete(spec, bound, k) for k in built.kernels))
    if built.in_place is not None:
        kernels = tuple(_complete(spec, bound, k) for k in built.in_place.kernels)
        built = replace(built, in_place=replace(built.in_place, kernels=kernels))
    built = _with_once(built, bound)
    stored = halved(built, bound, spec.weights)
    return built if stored is built else _with_once(stored, bound)


def _with_once(built: Lowering, bound: BoundNode) -> Lowering:
    """With the temporaries that a kernel makes of constants alone, and what restores the weights that it packs.

    What a kernel makes of nothing is only taken where the builder names it: it may cost more memory than time. Dense
    copies of what is packed are taken where they may stay on the device.
    """
    if not built.temps:
        return built
    writers = Counter(target for k in built.kernels for _, target in k.writes or ())
    each_run = {*built.kept, *(name for name, _ in built.stored)}
    each_run |= {name for name, tensor in built.temps if writers[name] > 1 or is_symbolic(tensor.size)}
    each_run |= set() if bound.target.limits.keeps_dense else {*built.dense}
    packing = _of_constants(built, bound, each_run)
    once = dict.fromkeys((*built.once, *(str(target) for k in packing for _, target in k.writes or ())))
    return replace(built, once=tuple(once), inverses=tuple(_inverses(packing, bound)))


def _of_constants(built: Lowering, bound: BoundNode, each_run: Collection[str]) -> list[Kernel]:
    """The kernels that read constants, or what others of these make, and write temporaries that are not `each_run`. One
    that looks at what data bring is none of them: a run has to hear of it."""
    once, kernels = {*built.once}, list[Kernel]()
    for k in built.kernels:
        targets = [target for _, target in k.writes or ()]
        if k.looks or not k.reads or not all(isinstance(target, str) and target not in each_run for target in targets):
            continue
        if all(at in once if isinstance(at, str) else bound.source(at).is_constant for _, at in k.reads):
            once.update(map(str, targets))
            kernels.append(k)
    return kernels


def _inverses(packing: Sequence[Kernel], bound: BoundNode) -> Iterator[tuple[int, Kernel]]:
    """Of each input the first kernel that restores it, by the record of what packs it."""
    for at in dict.fromkeys(at for k in packing for _, at in k.reads or () if isinstance(at, int)):
        readers = [k for k in packing if any(source == at for _, source in k.reads or ())]
        inverse = next((record.inverse for k in readers if (record := record_of(k.shader)).inverse), None)
        own = [k for k in readers if record_of(k.shader).inverse is inverse]
        if inverse is not None and (restoring := inverse(own, bound.source(at).type)) is not None:
            yield at, restoring


def _single(bound: BoundNode, built: Kernel) -> Lowering:
    """A lone kernel writes the node's outputs in order."""
    outputs: list[TensorType | None] = [None] * len(bound.node.outputs)
    targets = [t for _, t in built.writes] if built.writes is not None else list(range(len(built.outputs)))
    for index, tensor in zip(targets, built.outputs, strict=True):
        if isinstance(index, int) and index < len(outputs):
            outputs[index] = tensor
    return Lowering(tuple(outputs), (built,))


def _complete(spec: OpSpec, bound: BoundNode, built: Kernel) -> Kernel:
    """Fills in `reads` and `writes` from the row's bindings."""
    reads, writes = built.reads, built.writes
    if reads is None:
        named: list[tuple[str, int | str]] = []
        for i, operand in enumerate(bound.inputs):
            binding = spec.inputs[min(i, len(spec.inputs) - 1)]
            if operand is not None and binding.bound:
                named.append((f"{binding.name}{i}" if binding.variadic else binding.name, i))
        reads = tuple(named)
    if writes is None:
        writes = tuple((b.name, i) for i, b in enumerate(spec.outputs[: len(built.outputs)]))
    present = {name for name, _ in reads}
    optionals = built.optionals or tuple((b.name, b.name in present) for b in spec.inputs if b.optional and b.bound)
    return replace(built, reads=reads, writes=writes, optionals=optionals)
