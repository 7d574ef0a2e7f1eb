"""The table of ops that have kernels: what an entry contains, and what its builder reads and returns.

A row states only what our kernel restricts. Attribute defaults, optional inputs, type constraints and the versions of
an op come from `onnx.defs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias, cast

import numpy as np

from ort_gpu_ep.errors import Code, InternalError, UnsupportedNodeError
from ort_gpu_ep.ir.graph import LARGEST_HALF, Array, Attribute, Node, Nonzeros
from ort_gpu_ep.ir.schemas import default_attribute
from ort_gpu_ep.ir.symbolic import Size, derived, hints
from ort_gpu_ep.ir.types import BY_ONNX, DTYPES, FLOAT32, UINT32, DType, Shape, TensorType
from ort_gpu_ep.kernels.built import COUNT as COUNT
from ort_gpu_ep.kernels.built import DIVISOR as DIVISOR
from ort_gpu_ep.kernels.built import ERROR_FLAGS as ERROR_FLAGS
from ort_gpu_ep.kernels.built import INDEX as INDEX
from ort_gpu_ep.kernels.built import LENGTH as LENGTH
from ort_gpu_ep.kernels.built import Bindings as Bindings
from ort_gpu_ep.kernels.built import Const as Const
from ort_gpu_ep.kernels.built import Counted as Counted
from ort_gpu_ep.kernels.built import InPlace as InPlace
from ort_gpu_ep.kernels.built import Kernel as Kernel
from ort_gpu_ep.kernels.built import Lowering as Lowering
from ort_gpu_ep.kernels.built import Pieces as Pieces
from ort_gpu_ep.kernels.built import Rounded as Rounded
from ort_gpu_ep.kernels.built import Scales as Scales
from ort_gpu_ep.kernels.built import Strided as Strided
from ort_gpu_ep.kernels.built import View as View
from ort_gpu_ep.kernels.built import kernel as kernel
from ort_gpu_ep.kernels.target import ADAPTER as ADAPTER
from ort_gpu_ep.kernels.target import DEFAULT_LIMITS as DEFAULT_LIMITS
from ort_gpu_ep.kernels.target import DEFAULT_TARGET, Target
from ort_gpu_ep.kernels.target import INLINED as INLINED
from ort_gpu_ep.kernels.target import OFFSET_ALIGNMENT as OFFSET_ALIGNMENT
from ort_gpu_ep.kernels.target import PACKED as PACKED
from ort_gpu_ep.kernels.target import WORKGROUP as WORKGROUP
from ort_gpu_ep.kernels.target import Limits as Limits

KNOWN_OPSET = 28
"""Newest ONNX opset whose changes were read; a later form of an op is declined unless it allows other types and says
the same else."""


class UnknownValueError(UnsupportedNodeError):
    """A builder needs the value of an operand, not only its type.

    later: it will be known when a run begins. types: what the outputs then are, as far as can be told without the
    value.
    """

    def __init__(self, operand: str, later: bool = False, types: tuple[TensorType, ...] = ()) -> None:
        super().__init__(
            Code.NOT_CONSTANT,
            f"input {operand!r} must be known before the run (a constant, shape arithmetic, or a small input)",
        )
        self.operand, self.later, self.types = operand, later, types


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of a node: its concrete type, and its value where the host knows it (constants, shape arithmetic).

    content: the value; where sizes of the run are in it, an array of objects (ir/symbolic.py). expected: the host will
    know the value when a run begins, but does not now, when nodes are claimed. constant: the graph holds it, also where
    it is too large for `value`. count: gives how many of a constant's elements are not zero, fits whether float16
    reaches to them. decoded: bits of the code that a decoder makes an element of, in the kernel that reads it
    (ops/in_place.py); 0: it is stored. asked: called when a builder looks at more than the type (claim.py remembers
    what an answer follows from).
    """

    name: str
    type: TensorType
    content: Array | None = field(default=None, compare=False)
    expected: bool = False
    constant: bool = False
    count: Callable[[], Nonzeros | None] | None = field(default=None, compare=False, repr=False)
    decoded: int = 0
    asked: Callable[[], object] | None = field(default=None, compare=False, repr=False)
    fits: Callable[[], bool] | None = field(default=None, compare=False, repr=False)

    @property
    def value(self) -> Array | None:
        """The value where the host knows it, and it is the same in all runs of the plan; else None."""
        if self.asked is not None:
            self.asked()
        return None if self._is_of_a_run else self.content

    @property
    def _is_of_a_run(self) -> bool:
        return self.content is not None and self.content.dtype == object

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
    def nonzeros(self) -> Nonzeros | None:
        """Of a large constant matrix or filters, None for anything else."""
        if self.asked is not None:
            self.asked()
        return self.count() if self.count is not None else None

    @property
    def is_weight(self) -> bool:
        """Whether it is a float32 constant that is too large for `value`: it lives on the device."""
        return self.dtype is FLOAT32 and self.is_constant and self.content is None

    @property
    def fits_half(self) -> bool:
        """Whether float16 has a number near each element of a weight."""
        return self.is_weight and self.fits is not None and self.fits()

    @property
    def exceeds_half(self) -> bool:
        """Whether the model holds it, and float16 has no number near one of its elements: beyond the largest, infinite
        or NaN."""
        if self.dtype is not FLOAT32 or not self.is_constant:
            return False
        if self.content is not None:
            return not bool((np.abs(self.content) <= LARGEST_HALF).all())
        return self.fits is None or not self.fits()

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
        """The value; sizes of the run become numbers, for which alone the plan then holds. Raises UnknownValueError
        where the host does not know it.
        """
        content = self._known()
        return content.astype(self.dtype.numpy) if self._is_of_a_run else content

    def _known(self) -> Array:
        if self.asked is not None:
            self.asked()
        if self.content is None:
            raise UnknownValueError(self.name, self.later)
        return self.content

    def ints(self) -> tuple[int, ...]:
        """The value as a flat tuple of ints (or sizes of a run). Raises as `require` does."""
        return tuple(cast(int, v) if isinstance(v, Size) else int(v) for v in self._known().reshape(-1))

    def floats(self) -> tuple[float, ...]:
        """The value as a flat tuple of floats (or those of a run). Raises as `require` does."""
        return tuple(cast(float, derived(float, v)) for v in self._known().reshape(-1))


@dataclass(frozen=True, slots=True)
class Decline:
    """Why a node is not taken: data that the user can read.

    operand: whose value is missing. later: but will be there when a run begins; the outputs are then most likely of
    these types.
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

    def ends_in(self, plain: DType) -> DType:
        """The element type that is stored, where the kernel computes `plain`: steps fused behind it may end in
        another."""
        return self.node.epilogue[-1].dtype if self.has_steps else plain

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
    """How a node works with values of `rank` that are stored [N, spatial..., C].

    inputs: positions of those that it reads so; the others stay as they are. writes: whether it writes its outputs so.
    attributes: those that are other ones then, because axes count stored dimensions. constants: likewise inputs, by
    position. gain_ns: what it takes less than in plain; 0 where both are alike. rank: 3 to 5.
    """

    inputs: tuple[int, ...]
    writes: bool = True
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    constants: Mapping[int, Array] = field(default_factory=dict)
    gain_ns: float = 0.0
    rank: int = 4


LayoutRule: TypeAlias = Callable[[BoundNode], ChannelsLast | None]
"""Of a row: how a node works channel-last, asked with its plain types; None where it can't. May raise
UnsupportedNodeError for that."""


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

    since: oldest since-version taken. dtypes: type parameter of the schema -> element types taken. epilogue: the fuser
    may append elementwise steps to its one output. channels_last: how it works channel-last, None: not at all. weights:
    inputs whose constants the options `precision=f16` and `f16acc` keep in float16. counted: outputs of which only a
    run tells the size (built.Counted).
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
    weights: tuple[int, ...] = ()
    counted: tuple[int, ...] = ()


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
    weights: tuple[int, ...] = (),
    counted: tuple[int, ...] = (),
) -> Callable[[Builder], Builder]:
    """Adds a row. bindings: `x w b? -> y`; `?` optional, `...` variadic, `_` read by the host only. The others: see
    OpSpec."""

    def add(build: Builder) -> Builder:
        left, right = bindings.split("->")
        key = (domain, name)
        if key in OPS:
            raise InternalError(f"op {domain}:{name} has two rows")
        OPS[key] = OpSpec(
            name,
            domain,
            since,
            {k: tuple(v) for k, v in dtypes.items()},
            tuple(map(_binding, left.split())),
            tuple(map(_binding, right.split())),
            build,
            (build.__doc__ or "").strip(),
            epilogue,
            channels_last,
            weights,
            counted,
        )
        return build

    return add


@cache
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
                raise UnsupportedNodeError(
                    Code.RANK, f"shapes {', '.join(str(list(s)) for s in shapes)} do not broadcast"
                )
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
    if built.looks:
        bindings[ERROR_FLAGS] = (TensorType(UINT32, (1,)), True)
    return bindings


def parts(tensor: TensorType, max_binding_nbytes: int) -> list[tuple[int, int]]:
    """(first element, elements) of each binding that a tensor needs: more than one where it is larger than a binding
    may be."""
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
    dtype = BY_ONNX.get(onnx_type)
    if dtype not in DTYPES:
        import onnx

        name = dtype or onnx.TensorProto.DataType.Name(onnx_type).lower()
        raise UnsupportedNodeError(Code.DTYPE, f"no kernel makes element type {name}")
    return dtype
