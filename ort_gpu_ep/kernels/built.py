"""What a kernel builder returns: kernels, views and lowerings. Plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ort_gpu_ep.ir.graph import Part, Step
from ort_gpu_ep.ir.types import Shape, TensorType
from ort_gpu_ep.kernels.target import Choice

Const: TypeAlias = int | float | bool

Bindings: TypeAlias = Mapping[str, tuple[TensorType, bool]]
"""Of a kernel, by name: the tensor, and whether it is written."""

Pieces: TypeAlias = Mapping[str, Sequence[tuple[int, int]]]
"""Of bindings, by name: the first element and the number of elements of each part, where one buffer can't be bound as a
whole."""

ERROR_FLAGS = "error_flags"
"""What a kernel calls the word that is not 0 once data brought an index or a length out of range, or an integer divisor
of 0."""

PINNED_SUBGROUP = "PINNED_SUBGROUP"
"""A constant of a kernel: the invocations that its subgroups have to have, which the composer writes into the entry
point's attributes."""

INDEX, DIVISOR, LENGTH, COUNT = 1, 2, 4, 8
"""The bits of that word."""


@dataclass(frozen=True, slots=True)
class Strided:
    """A WGSL function `<name>(i: u32) -> u32`: splits i over `shape` (row-major) and returns offset + sum of coordinate
    * stride."""

    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Scales:
    """How a kernel can also store what brings each image of its first output into float16's range
    (shaders/include/scale_of.wgsl).

    images, parts: of each image so many powers of two, the least of which is its own; in the binding `y_scales`,
    [images, parts]. consts: with these in place of its own. workgroup_nbytes: of workgroup memory that it then
    declares.
    """

    images: int
    parts: int
    consts: tuple[tuple[str, Const], ...]
    workgroup_nbytes: int


@dataclass(frozen=True, slots=True)
class Rounded:
    """A binding of float32 that a kernel rounds to float16 as it reads it: what writes it may as well store it so.

    consts: with these the kernel reads float16. by_eight: whether the binding is among its `words` then. passes:
    instead of rounding it gives one of the numbers that it reads, so that it is all the same where its first output is
    stored in float16.
    """

    name: str
    consts: tuple[tuple[str, Const], ...] = ()
    by_eight: bool = False
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A shader file, its constants and its grid: plain data.

    shader: file in shaders/. outputs: types of what it writes, in the order of the row's outputs.
    consts: WGSL `const`s. indices: functions made from Strided.
    groups: number of workgroups of a body with `fn group_main(group: u32, lane: u32)`; 0 for a body with
        `fn element(i: u32) -> T`, which is called once for each element of the first output.
    workgroup_size: invocations of each. workgroup_nbytes: workgroup memory that the body declares. raw: bind tensors as
    bits (u32, or vec2<u32> for 8 bytes), so that any element type can be moved. reads: WGSL name -> index into the
    node's inputs + operands, or name of a temporary; default: the row's bindings. writes: WGSL name -> index of a node
    output, or name of a temporary; default: the row's bindings. epilogue: elementwise steps between what the body
    computes and what is stored; operand k is bound as `e<k>`. plain: type of what the body computes, where the
    epilogue's result has another type. optionals: WGSL name -> given or left out, of the row's optional inputs; filled
    by `claim.lower`. grid: workgroups in x, y and z of a body with `fn grid_main(group: vec3<u32>, lane: u32)`;
    `groups` is then their product. vectors: bindings of float32 (of a raw kernel, of any 32 bits) that are bound four
    elements at a time; of packed elements, four words. words: bindings of packed elements that the body stores by whole
    words. Of `vectors` that are read: where they have 16 bits, by eight. choice: which form of the kernel this is, of
    those that were weighed. into: where what it stores of its first output lies in a larger tensor, filled in by the
    planner. inlined: (name, kernel with an `element` body): what the body reads by that name is not bound but computed
    by that kernel, whose own
        bindings `b` are bound as `<name>_in_<b>`.
    reports: its body calls `out_of_range()` or `wrong_length()` where data brings such an index or length, see `looks`.
    pairs: 64-bit integers are pairs of words (vec2<u32>, the lower one first) in it: the adapter has no others.
    features: of the device, that its body uses (types bring their own). atomics: bindings of uint32 that are bound as
    atomics. scales: what it can store beside its first output, where a kernel behind it wants that. rounded: what it
    could read in float16. repeats: how often in a row it is dispatched; a dispatch begins where the one before has
    ended, and sees what that wrote.
    """

    shader: str
    outputs: tuple[TensorType, ...]
    consts: tuple[tuple[str, Const], ...] = ()
    indices: tuple[tuple[str, Strided], ...] = ()
    groups: int = 0
    workgroup_size: int = 64
    workgroup_nbytes: int = 0
    raw: bool = False
    reads: tuple[tuple[str, int | str], ...] | None = None
    writes: tuple[tuple[str, int | str], ...] | None = None
    epilogue: tuple[Step, ...] = ()
    plain: TensorType | None = None
    optionals: tuple[tuple[str, bool], ...] = ()
    grid: tuple[int, int, int] | None = None
    vectors: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    choice: Choice | None = None
    features: tuple[str, ...] = ()
    atomics: tuple[str, ...] = ()
    into: Part | None = None
    inlined: tuple[tuple[str, Kernel], ...] = ()
    reports: bool = False
    pairs: bool = False
    scales: Scales | None = None
    rounded: tuple[Rounded, ...] = ()
    repeats: int = 1

    @property
    def step(self) -> Step:
        """What the kernel of a lone elementwise op computes."""
        return self.epilogue[0]

    @property
    def looks(self) -> bool:
        """Whether its body, or a step, looks at what data brings; it then binds the plan's word for that, as
        ERROR_FLAGS."""
        return self.reports or any(step.divides for step in self.epilogue)


def kernel(
    shader: str,
    outputs: Sequence[TensorType],
    *,
    consts: Mapping[str, Const] | None = None,
    indices: Mapping[str, Strided] | None = None,
    groups: int = 0,
    workgroup_size: int = 64,
    workgroup_nbytes: int = 0,
    raw: bool = False,
    reads: Mapping[str, int | str] | None = None,
    writes: Mapping[str, int | str] | None = None,
    epilogue: Sequence[Step] = (),
    grid: tuple[int, int, int] | None = None,
    vectors: Sequence[str] = (),
    words: Sequence[str] = (),
    choice: Choice | None = None,
    features: Sequence[str] = (),
    atomics: Sequence[str] = (),
    reports: bool = False,
    repeats: int = 1,
) -> Kernel:
    """A Kernel from dicts and lists (a Kernel itself holds tuples, so that it hashes and compares)."""
    return Kernel(
        shader,
        tuple(outputs),
        tuple((consts or {}).items()),
        tuple((indices or {}).items()),
        math.prod(grid) if grid else groups,
        workgroup_size,
        workgroup_nbytes,
        raw,
        None if reads is None else tuple(reads.items()),
        None if writes is None else tuple(writes.items()),
        tuple(epilogue),
        grid=grid,
        vectors=tuple(vectors),
        words=tuple(words),
        choice=choice,
        features=tuple(features),
        atomics=tuple(atomics),
        reports=reports,
        repeats=repeats,
    )


@dataclass(frozen=True, slots=True)
class View:
    """Output 0 is input 0's bytes under another shape: nothing is dispatched."""

    output: TensorType


@dataclass(frozen=True, slots=True)
class InPlace:
    """Kernels of a node that change some of their outputs' elements, which hold those of an input of the same type
    before.

    pairs: (output index, input index).
    """

    pairs: tuple[tuple[int, int], ...]
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """An output of which the run itself tells how long it is along an axis. Its type says the most; what is there lies
    as if it were all.

    output: of the node. count: the temporary of one uint32 that holds the length.
    """

    output: int
    axis: int
    count: str


@dataclass(frozen=True, slots=True)
class Lowering:
    """What a node becomes. outputs: type of each output, None for one left out. views: output index -> input index.

    deferred: a value that a run brings decides; until then only the types of the outputs are known, as shape inference
    tells them. once: temporaries whose kernels read constants of the graph only: these run once for a program, not in
    every run; a builder names those that are made of nothing, `completed` finds the others. dense: a weight written out
    whose input is packed: once where it may stay on the device. kept: temporaries that are zero before the first run
    and that every run leaves as it found them. stored: (temporary, output index): outputs that kernels of the same node
    read again; plain temporaries where the node leaves them out. inverses: (input index, kernel from a `once` temporary
    to that input), filled by `completed`: the input need not stay on the device beside the temporary. in_place: other
    kernels, for where some outputs may be what some inputs were. counted: outputs whose length the kernels find; the
    temporary that holds it is among `kept`. equal: pairs of a size that follows from counts and what it has to be: a
    run whose data give another one is noted. scaled: (temporary, input index, whether they are of images): scales of an
    input, which another node may have found already. Those of images (Scales) may come from what writes the input: with
    another number of parts, `PARTS` in what reads them.
    """

    outputs: tuple[TensorType | None, ...]
    kernels: tuple[Kernel, ...] = ()
    temps: tuple[tuple[str, TensorType], ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    deferred: bool = False
    once: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    inverses: tuple[tuple[int, Kernel], ...] = ()
    stored: tuple[tuple[str, int], ...] = ()
    in_place: InPlace | None = None
    counted: tuple[Counted, ...] = ()
    equal: tuple[tuple[int, int], ...] = ()
    scaled: tuple[tuple[str, int, bool], ...] = ()

    def runs_once(self, kernel: Kernel) -> bool:
        """Whether a kernel of it writes nothing but `once`."""
        return bool(kernel.writes) and all(target in self.once for _, target in kernel.writes or ())

    @property
    def per_run(self) -> tuple[Kernel, ...]:
        """The kernels that every run dispatches, where outputs are inputs if they may be."""
        return tuple(k for k in (self.in_place.kernels if self.in_place else self.kernels) if not self.runs_once(k))
