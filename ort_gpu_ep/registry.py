"""The table of ops: what a row is, what its builder reads and returns. `claim.py` asks a row.

A row states only what our kernel restricts. Attribute defaults, optional inputs, type constraints and the versions of
an op come from `onnx.defs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import onnx

from ort_gpu_ep.errors import Code, InternalError, UnsupportedNodeError
from ort_gpu_ep.graph import Array, Attribute, Node, Part, Step
from ort_gpu_ep.schemas import default_attribute
from ort_gpu_ep.symbolic import Size, hints
from ort_gpu_ep.target import ADAPTER as ADAPTER
from ort_gpu_ep.target import DEFAULT_TARGET, Choice, Target
from ort_gpu_ep.target import INLINED as INLINED
from ort_gpu_ep.target import OFFSET_ALIGNMENT as OFFSET_ALIGNMENT
from ort_gpu_ep.target import PACKED as PACKED
from ort_gpu_ep.target import WORKGROUP as WORKGROUP
from ort_gpu_ep.target import Limits as Limits
from ort_gpu_ep.types import BY_ONNX, DTYPES, UINT32, DType, Shape, TensorType

KNOWN_OPSET = 26
"""Newest ONNX opset whose changes were read; a later form of an op is declined until someone looks at it."""

Const: TypeAlias = int | float | bool

STRAY = "stray"
"""What a kernel that reports calls the word that is not 0 once an index was out of range."""


class UnknownValueError(UnsupportedNodeError):
    """A builder needs the value of an operand, not only its type.

    later: it will be known when a run begins. types: what the outputs then are, as far as can be told without the value.
    """

    def __init__(self, operand: str, later: bool = False, types: tuple[TensorType, ...] = ()) -> None:
        super().__init__(
            Code.NOT_CONSTANT, f"input {operand!r} must be known before the run (a constant, shape arithmetic, or a small input)")
        self.operand, self.later, self.types = operand, later, types


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of a node: its concrete type, and its value where the host knows it (constants, shape arithmetic).

    content: the value, as `value` gives it. expected: the host will know the value when a run begins, but does not now, when nodes are
    claimed. constant: the graph holds it, also where it is too large for `value`. asked: called when a builder looks at more than the type
    (claim.py remembers what an answer follows from).
    """

    name: str
    type: TensorType
    content: Array | None = field(default=None, compare=False)
    expected: bool = False
    constant: bool = False
    asked: Callable[[], object] | None = field(default=None, compare=False, repr=False)

    @property
    def value(self) -> Array | None:
        """The value, None where the host does not know it."""
        if self.asked is not None:
            self.asked()
        return self.content

    @property
    def later(self) -> bool:
        """Whether the host will know the value when a run begins."""
        if self.asked is not None:
            self.asked()
        return self.expected

    @property
    def is_constant(self) -> bool:
        """Whether the graph holds the value, so that every run has the same."""
        if self.asked is not None:
            self.asked()
        return self.constant

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def size(self) -> int:
        return self.type.size

    def require(self) -> Array:
        """The value. Raises UnknownValueError where the host does not know it."""
        value = self.value
        if value is None:
            raise UnknownValueError(self.name, self.later)
        return value

    def ints(self) -> tuple[int, ...]:
        """The value as a flat tuple of ints (or sizes of a run). Raises as `require` does."""
        return tuple(cast(int, v) if isinstance(v, Size) else int(v) for v in self.require().reshape(-1))


@dataclass(frozen=True, slots=True)
class Strided:
    """A WGSL function `<name>(i: u32) -> u32`: splits i over `shape` (row-major) and returns offset + sum of coordinate * stride."""

    shape: Shape
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A shader file, its constants and its grid: plain data.

    shader: file in shaders/. outputs: types of what it writes, in the order of the row's outputs.
    consts: WGSL `const`s. indices: functions made from Strided.
    groups: number of workgroups of a body with `fn group_main(group: u32, lane: u32)`; 0 for a body with
        `fn element(i: u32) -> T`, which is called once for each element of the first output.
    lanes: invocations a workgroup. workgroup_nbytes: workgroup memory that the body declares.
    raw: bind tensors as bits (u32, or vec2<u32> for 8 bytes), so that any element type can be moved.
    reads: WGSL name -> index into the node's inputs + operands, or name of a temporary; default: the row's bindings.
    writes: WGSL name -> index of a node output, or name of a temporary; default: the row's bindings.
    epilogue: elementwise steps between what the body computes and what is stored; operand k is bound as `e<k>`.
    plain: type of what the body computes, where the epilogue's result has another type.
    optionals: WGSL name -> given or left out, of the row's optional inputs; filled by `claim.lower`.
    grid: workgroups in x, y and z of a body with `fn grid_main(group: vec3<u32>, lane: u32)`; `groups` is then their product.
    vectors: bindings of float32 that are bound four elements at a time; of packed elements, four words.
    choice: which form of the kernel this is, of those that were weighed.
    into: where what it stores of its first output lies in a larger tensor, filled in by the planner.
    inlined: (name, kernel with an `element` body): what the body reads by that name is not bound but computed by that kernel, whose own
        bindings `b` are bound as `<name>_in_<b>`.
    reports: its body calls `out_of_range()` where data brings such an index; it then binds the plan's word for that, as STRAY.
    features: of the device, that its body uses (types bring their own). atomics: bindings of uint32 that are bound as atomics.
    """

    shader: str
    outputs: tuple[TensorType, ...]
    consts: tuple[tuple[str, Const], ...] = ()
    indices: tuple[tuple[str, Strided], ...] = ()
    groups: int = 0
    lanes: int = 64
    workgroup_nbytes: int = 0
    raw: bool = False
    reads: tuple[tuple[str, int | str], ...] | None = None
    writes: tuple[tuple[str, int | str], ...] | None = None
    epilogue: tuple[Step, ...] = ()
    plain: TensorType | None = None
    optionals: tuple[tuple[str, bool], ...] = ()
    grid: tuple[int, int, int] | None = None
    vectors: tuple[str, ...] = ()
    choice: Choice | None = None
    features: tuple[str, ...] = ()
    atomics: tuple[str, ...] = ()
    into: Part | None = None
    inlined: tuple[tuple[str, Kernel], ...] = ()
    reports: bool = False


def kernel(
    shader: str,
    outputs: Sequence[TensorType],
    *,
    consts: Mapping[str, Const] | None = None,
    indices: Mapping[str, Strided] | None = None,
    groups: int = 0,
    lanes: int = 64,
    workgroup_nbytes: int = 0,
    raw: bool = False,
    reads: Mapping[str, int | str] | None = None,
    writes: Mapping[str, int | str] | None = None,
    epilogue: Sequence[Step] = (),
    grid: tuple[int, int, int] | None = None,
    vectors: Sequence[str] = (),
    choice: Choice | None = None,
    features: Sequence[str] = (),
    atomics: Sequence[str] = (),
    reports: bool = False,
) -> Kernel:
    """A Kernel from dicts and lists (a Kernel itself holds tuples, so that it hashes and compares)."""
    return Kernel(
        shader, tuple(outputs), tuple((consts or {}).items()), tuple((indices or {}).items()), math.prod(grid) if grid else groups, lanes,
        workgroup_nbytes, raw, None if reads is None else tuple(reads.items()), None if writes is None else tuple(writes.items()),
        tuple(epilogue), grid=grid, vectors=tuple(vectors), choice=choice, features=tuple(features), atomics=tuple(atomics),
        reports=reports)


@dataclass(frozen=True, slots=True)
class View:
    """Output 0 is input 0's bytes under another shape: nothing is dispatched."""

    output: TensorType


@dataclass(frozen=True, slots=True)
class Lowering:
    """What a node becomes. outputs: type of each output, None for one left out. views: output index -> input index.

    deferred: a value that a run brings decides; until then only the types of the outputs are known, as shape inference tells them.
    once: temporaries whose kernels read constants of the graph only: these run once for a program, not in every run.
    kept: temporaries that are zero before the first run and that every run leaves as it found them.
    inverses: (input index, kernel from a `once` temporary to that input): the input need not stay on the device beside the temporary.
    """

    outputs: tuple[TensorType | None, ...]
    kernels: tuple[Kernel, ...] = ()
    temps: tuple[tuple[str, TensorType], ...] = ()
    views: tuple[tuple[int, int], ...] = ()
    deferred: bool = False
    once: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    inverses: tuple[tuple[int, Kernel], ...] = ()

    def runs_once(self, kernel: Kernel) -> bool:
        """Whether a kernel of it writes nothing but `once`."""
        return bool(kernel.writes) and all(target in self.once for _, target in kernel.writes or ())

    @property
    def per_run(self) -> tuple[Kernel, ...]:
        """The kernels that every run dispatches."""
        return tuple(k for k in self.kernels if not self.runs_once(k))


@dataclass(frozen=True, slots=True)
class Decline:
    """Why a node is not taken: data that the user can read.

    operand: whose value is missing. later: but will be there when a run begins; the outputs are then most likely of these types.
    """

    code: Code
    reason: str
    operand: str = ""
    later: bool = False
    types: tuple[TensorType, ...] = ()


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A node with the concrete types of its inputs, and what it is to run on: what a builder reads.

    asked: called when a builder looks at whether steps are fused behind it.
    """

    node: Node
    inputs: tuple[Operand | None, ...]
    operands: tuple[Operand, ...] = ()
    target: Target = DEFAULT_TARGET
    asked: Callable[[], object] | None = field(default=None, compare=False, repr=False)

    @property
    def op(self) -> str:
        return self.node.op

    @property
    def version(self) -> int:
        return self.node.version

    @property
    def has_steps(self) -> bool:
        """Whether elementwise steps are fused behind it."""
        if self.asked is not None:
            self.asked()
        return bool(self.node.epilogue)

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Operand:
        operand = self.optional(index)
        if operand is None:
            raise InternalError(f"{self.node.label}: input {index} of {self.op} is left out, but its builder reads it")
        return operand

    def optional(self, index: int) -> Operand | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def source(self, index: int) -> Operand:
        """What a kernel's `reads` means by `index`: an input, or past them an operand of the fused steps."""
        return self.input(index) if index < len(self.inputs) else self.operands[index - len(self.inputs)]

    def given(self) -> tuple[Operand, ...]:
        """The inputs that are not left out (of a variadic op: all)."""
        return tuple(i for i in self.inputs if i is not None)

    def wants(self, index: int) -> bool:
        """Whether output `index` is used."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def attr(self, name: str) -> Any:
        """An attribute, its default from onnx.defs, or None where it has neither."""
        if name in self.node.attributes:
            return self.node.attributes[name]
        return default_attribute(self.node.domain, self.node.op, self.node.version, name)


def at_hand(node: BoundNode) -> BoundNode:
    """The node with the sizes of the run that is planned as numbers, without a guard: for estimates only."""
    return replace(node, inputs=tuple(o and replace(o, type=TensorType(o.dtype, hints(o.shape))) for o in node.inputs))


Built: TypeAlias = Kernel | View | Lowering
Builder: TypeAlias = Callable[[BoundNode], Built]


@dataclass(frozen=True, slots=True)
class ChannelsLast:
    """How a node works with values of rank 4 stored [N, H, W, C].

    inputs: positions of those that it reads so; the others stay as they are. writes: whether it writes its outputs so.
    attributes: those that are other ones then, because axes count stored dimensions. constants: likewise inputs, by position.
    gain_ns: what it takes less than in plain; 0 where both are alike.
    """

    inputs: tuple[int, ...]
    writes: bool = True
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    constants: Mapping[int, Array] = field(default_factory=dict)
    gain_ns: float = 0.0


LayoutRule: TypeAlias = Callable[[BoundNode], ChannelsLast | None]
"""Of a row: how a node works channel-last, asked with its plain types; None where it can't. May raise UnsupportedNodeError for that."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A row's name for an input or output. bound: the shader sees it (`_` in the row: only the host reads it)."""

    name: str
    optional: bool = False
    variadic: bool = False
    bound: bool = True


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One row: an op and what our kernel of it restricts.

    since: oldest since-version taken. dtypes: type parameter of the schema -> element types taken.
    epilogue: the fuser may append elementwise steps to its one output. channels_last: how it works channel-last, None: not at all.
    """

    name: str
    domain: str
    since: int
    dtypes: Mapping[str, tuple[DType, ...]]
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    build: Builder
    doc: str
    epilogue: bool = False
    channels_last: LayoutRule | None = None


OPS: dict[tuple[str, str], OpSpec] = {}


def op(
    name: str,
    *,
    since: int = 1,
    dtypes: Mapping[str, Sequence[DType]],
    bindings: str,
    domain: str = "",
    epilogue: bool = False,
    channels_last: LayoutRule | None = None,
) -> Callable[[Builder], Builder]:
    """Adds a row. bindings: `x w b? -> y`; `?` optional, `...` variadic, `_` read by the host only."""

    def add(build: Builder) -> Builder:
        left, right = bindings.split("->")
        key = (domain, name)
        if key in OPS:
            raise InternalError(f"op {domain}:{name} has two rows")
        OPS[key] = OpSpec(
            name, domain, since, {k: tuple(v) for k, v in dtypes.items()}, tuple(map(_binding, left.split())),
            tuple(map(_binding, right.split())), build, (build.__doc__ or "").strip(), epilogue, channels_last)
        return build

    return add


def _binding(text: str) -> Binding:
    return Binding(text.rstrip("?."), text.endswith("?"), text.endswith("..."), not text.startswith("_"))


def broadcast(*shapes: Shape) -> Shape:
    """The shape that these broadcast to (numpy's rules). Raises UnsupportedNodeError(RANK) where they don't."""
    out: list[int] = []
    for k in range(-max(map(len, shapes), default=0), 0):
        size = 1
        for other in (shape[k] for shape in shapes if len(shape) >= -k):
            if size == 1:
                size = other
            elif other != 1 and other != size:
                raise UnsupportedNodeError(Code.RANK, f"shapes {', '.join(str(list(s)) for s in shapes)} do not broadcast")
        out.append(size)
    return tuple(out)


def broadcast_strides(shape: Shape, out: Shape) -> tuple[int, ...]:
    """Strides that read a tensor of `shape` as if it had the broadcast shape `out` (both row-major)."""
    padded = (1,) * (len(out) - len(shape)) + shape
    strides, step = [], 1
    for size in reversed(padded):
        strides.append(0 if size == 1 else step)
        step *= size
    return tuple(reversed(strides))


def spec_of(node: Node) -> OpSpec | None:
    return OPS.get((node.domain, node.op))


def tensors_of(built: Kernel, lowering: Lowering, bound: BoundNode) -> dict[str, tuple[TensorType, bool]]:
    """WGSL name -> (type, written) of every tensor that a kernel binds, in binding order: reads, then writes."""
    temps = dict(lowering.temps)
    bindings: dict[str, tuple[TensorType, bool]] = {}
    for name, source in built.reads or ():
        bindings[name] = (temps[source] if isinstance(source, str) else bound.source(source).type, False)
    for (name, _), tensor in zip(built.writes or (), built.outputs, strict=True):
        bindings[name] = (tensor, True)
    if built.reports:
        bindings[STRAY] = (TensorType(UINT32, (1,)), True)
    return bindings


def parts(tensor: TensorType, max_binding_nbytes: int) -> list[tuple[int, int]]:
    """(first element, elements) of each binding that a tensor needs: more than one where it is larger than a binding may be."""
    size = _part_size(tensor, max_binding_nbytes)
    if tensor.size <= size:
        return [(0, tensor.size)]
    return [(first, min(size, tensor.size - first)) for first in range(0, tensor.size, size)]


def part_count(tensor: TensorType, max_binding_nbytes: int) -> int:
    """How many bindings a tensor needs: `parts` of a tensor of any size would be a list without end."""
    size = _part_size(tensor, max_binding_nbytes)
    return 1 if tensor.size <= size else -(-tensor.size // size)


def _part_size(tensor: TensorType, max_binding_nbytes: int) -> int:
    """Elements of a binding: it begins where the adapter allows one to begin."""
    return max_binding_nbytes // OFFSET_ALIGNMENT * OFFSET_ALIGNMENT * 8 // tensor.dtype.bits


def result_dtype(onnx_type: int) -> DType:
    """The DType of a TensorProto.DataType. Raises UnsupportedNodeError(DTYPE)."""
    found = BY_ONNX.get(onnx_type)
    if found not in DTYPES:
        name = found or onnx.TensorProto.DataType.Name(onnx_type).lower()
        raise UnsupportedNodeError(Code.DTYPE, f"no kernel makes element type {name}")
    return found
