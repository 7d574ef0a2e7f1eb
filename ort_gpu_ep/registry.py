"""The table of ops: what a row is, what a builder returns, and the claim that asks a row.

A row states only what our kernel restricts. Attribute defaults, optional inputs, type constraints and the versions of
an op come from `onnx.defs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx.defs

from ort_gpu_ep.errors import Code, InternalError, UnsupportedNodeError
from ort_gpu_ep.graph import Array, Attribute, Node, Step
from ort_gpu_ep.types import BY_ONNX, DType, Shape, TensorType, names

KNOWN_OPSET = 26
"""Newest ONNX opset whose changes were read; a later form of an op is declined until someone looks at it."""

Const: TypeAlias = int | float | bool

ADAPTER, PACKED, WORKGROUP = "adapter", "packed elements", "workgroup memory"
"""What Limits.disabled may name besides shader files and device features: everything, bindings of 8 and 16 bits, shared memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an adapter offers (WebGPU's guaranteed minimum by default). Sizes in bytes.

    disabled: (what, why) of what this driver can't be trusted with: a shader file, a device feature, ADAPTER, PACKED, WORKGROUP.
    """

    features: frozenset[str] = frozenset()
    max_binding_nbytes: int = 128 << 20
    max_buffer_nbytes: int = 256 << 20
    max_buffers_per_stage: int = 8
    max_workgroup_nbytes: int = 16384
    max_invocations: int = 256
    max_groups_per_dimension: int = 65535
    offset_alignment: int = 256
    disabled: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of a node: its concrete type, and its value where the host knows it (constants, shape arithmetic)."""

    name: str
    type: TensorType
    value: Array | None = field(default=None, compare=False)

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
        """The value. Raises UnsupportedNodeError(NOT_CONSTANT) where the host can't know it before the run."""
        if self.value is None:
            raise UnsupportedNodeError(
                Code.NOT_CONSTANT, f"input {self.name!r} must be known before the run (a constant or shape arithmetic)")
        return self.value

    def ints(self) -> tuple[int, ...]:
        """The value as a flat tuple of ints. Raises as `require` does."""
        return tuple(int(v) for v in self.require().reshape(-1))


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
    optionals: WGSL name -> given or left out, of the row's optional inputs; filled by `lower`.
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
) -> Kernel:
    """A Kernel from dicts and lists (a Kernel itself holds tuples, so that it hashes and compares)."""
    return Kernel(
        shader, tuple(outputs), tuple((consts or {}).items()), tuple((indices or {}).items()), groups, lanes, workgroup_nbytes, raw,
        None if reads is None else tuple(reads.items()), None if writes is None else tuple(writes.items()), tuple(epilogue))


@dataclass(frozen=True, slots=True)
class View:
    """Output 0 is input 0's bytes under another shape: nothing is dispatched."""

    output: TensorType


@dataclass(frozen=True, slots=True)
class Lowering:
    """What a node becomes. outputs: type of each output, None for one left out. views: output index -> input index."""

    outputs: tuple[TensorType | None, ...]
    kernels: tuple[Kernel, ...] = ()
    temps: tuple[tuple[str, TensorType], ...] = ()
    views: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Decline:
    """Why a node is not taken: data that the user can read."""

    code: Code
    reason: str


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A node with the concrete types of its inputs: what a builder reads."""

    node: Node
    inputs: tuple[Operand | None, ...]
    operands: tuple[Operand, ...] = ()

    @property
    def op(self) -> str:
        return self.node.op

    @property
    def version(self) -> int:
        return self.node.version

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


Built: TypeAlias = Kernel | View | Lowering
Builder: TypeAlias = Callable[[BoundNode], Built]


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
    epilogue: the fuser may append elementwise steps to its one output.
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


OPS: dict[tuple[str, str], OpSpec] = {}


def op(
    name: str,
    *,
    since: int = 1,
    dtypes: Mapping[str, Sequence[DType]],
    bindings: str,
    domain: str = "",
    epilogue: bool = False,
) -> Callable[[Builder], Builder]:
    """Adds a row. bindings: `x w b? -> y`; `?` optional, `...` variadic, `_` read by the host only."""

    def add(build: Builder) -> Builder:
        left, right = bindings.split("->")
        key = (domain, name)
        if key in OPS:
            raise InternalError(f"op {domain}:{name} has two rows")
        OPS[key] = OpSpec(
            name, domain, since, {k: tuple(v) for k, v in dtypes.items()}, tuple(map(_binding, left.split())),
            tuple(map(_binding, right.split())), build, (build.__doc__ or "").strip(), epilogue)
        return build

    return add


def _binding(text: str) -> Binding:
    return Binding(text.rstrip("?."), text.endswith("?"), text.endswith("..."), not text.startswith("_"))


@cache
def schema(domain: str, name: str, version: int) -> Any:
    """onnx.defs' schema of an op at a since-version, None for an op of another domain."""
    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def default_attribute(domain: str, name: str, version: int, attribute: str) -> Attribute:
    """An attribute's default value by the schema; None where there is none."""
    found = schema(domain, name, version)
    entry = found.attributes.get(attribute) if found else None
    if entry is None or not entry.default_value.type:
        return None
    value = onnx.helper.get_attribute_value(entry.default_value)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, list) else value


def broadcast(*shapes: Shape) -> Shape:
    """The shape that these broadcast to (numpy's rules). Raises UnsupportedNodeError(RANK) where they don't."""
    try:
        return tuple(int(d) for d in np.broadcast_shapes(*shapes))
    except ValueError as error:
        raise UnsupportedNodeError(Code.RANK, f"shapes {', '.join(str(list(s)) for s in shapes)} do not broadcast") from error


def spec_of(node: Node) -> OpSpec | None:
    return OPS.get((node.domain, node.op))


def claim(bound: BoundNode, limits: Limits) -> Lowering | Decline:
    """Asks the row of a node: what it becomes, or why it is not taken."""
    try:
        spec = _row(bound.node)
        _check_dtypes(spec, bound)
        lowering = lower(spec, bound)
        _check_limits(lowering, spec, bound, limits)
    except UnsupportedNodeError as error:
        return Decline(error.code, error.reason)
    return lowering


def _row(node: Node) -> OpSpec:
    spec = spec_of(node)
    where = f"{node.domain}:{node.op}" if node.domain else node.op
    if spec is None:
        raise UnsupportedNodeError(Code.OP, f"no kernel for {where}")
    if node.version < spec.since or (not node.domain and node.version > KNOWN_OPSET):
        raise UnsupportedNodeError(Code.OPSET, f"{where} of opset {node.version}; taken from opset {spec.since} to {KNOWN_OPSET}")
    return spec


def _check_dtypes(spec: OpSpec, bound: BoundNode) -> None:
    """Each input against the row's type parameters, found through the schema (or `T` where there is no schema)."""
    found = schema(bound.node.domain, bound.op, bound.version)
    for i, operand in enumerate(bound.inputs):
        if operand is None:
            continue
        parameter = "T"
        if found is not None and found.inputs:
            parameter = found.inputs[min(i, len(found.inputs) - 1)].type_str
        allowed = spec.dtypes.get(parameter)
        if allowed is not None and operand.dtype not in allowed:
            raise UnsupportedNodeError(Code.DTYPE, f"{bound.op} with {operand.dtype} input {operand.name!r}; taken: {names(allowed)}")


def lower(spec: OpSpec, bound: BoundNode) -> Lowering:
    """Runs the row's builder and completes what it returns. Raises UnsupportedNodeError."""
    built = spec.build(bound)
    if isinstance(built, View):
        built = Lowering((built.output,), views=((0, 0),))
    elif isinstance(built, Kernel):
        built = _single(spec, bound, built)
    kernels = tuple(_complete(spec, bound, k) for k in built.kernels)
    outputs = built.outputs
    if bound.node.epilogue:
        kernels, outputs = _with_epilogue(bound, kernels, outputs)
    return Lowering(outputs, kernels, built.temps, built.views)


def _single(spec: OpSpec, bound: BoundNode, built: Kernel) -> Lowering:
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
    optionals = tuple((b.name, b.name in present) for b in spec.inputs if b.optional and b.bound)
    return replace(built, reads=reads, writes=writes, optionals=optionals)


def _with_epilogue(
    bound: BoundNode, kernels: tuple[Kernel, ...], outputs: tuple[TensorType | None, ...]
) -> tuple[tuple[Kernel, ...], tuple[TensorType | None, ...]]:
    """Appends the node's fused steps to every kernel that writes its output."""
    plain = outputs[0]
    if plain is None or not kernels:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{bound.op} has no kernel to fuse elementwise steps into")
    for operand in bound.operands:
        if broadcast(operand.shape, plain.shape) != plain.shape:
            raise UnsupportedNodeError(Code.RANK, f"fused operand {operand.name!r} {operand.type} does not broadcast to {plain}")
    result = TensorType(bound.node.epilogue[-1].dtype, plain.shape)
    reads = tuple((f"e{k}", len(bound.inputs) + k) for k in range(len(bound.operands)))
    done = []
    for built in kernels:
        if any(target == 0 for _, target in built.writes or ()):
            if built.groups and result.dtype.nbytes < 4:
                raise UnsupportedNodeError(Code.DTYPE, f"fused steps end in {result.dtype}, which only an elementwise kernel can pack")
            built = replace(
                built, outputs=(result, *built.outputs[1:]), plain=built.outputs[0], epilogue=bound.node.epilogue,
                reads=(*(built.reads or ()), *reads))
        done.append(built)
    return tuple(done), (result, *outputs[1:])


def tensors_of(built: Kernel, lowering: Lowering, bound: BoundNode) -> dict[str, tuple[TensorType, bool]]:
    """WGSL name -> (type, written) of every tensor that a kernel binds, in binding order: reads, then writes."""
    temps = dict(lowering.temps)
    bindings: dict[str, tuple[TensorType, bool]] = {}
    for name, source in built.reads or ():
        bindings[name] = (temps[source] if isinstance(source, str) else bound.source(source).type, False)
    for (name, _), tensor in zip(built.writes or (), built.outputs, strict=True):
        bindings[name] = (tensor, True)
    return bindings


def parts(tensor: TensorType, max_binding_nbytes: int) -> list[tuple[int, int]]:
    """(first element, elements) of each binding that a tensor needs: more than one where it is larger than a binding may be."""
    size = max_binding_nbytes // 256 * 256 // tensor.dtype.nbytes
    return [(first, min(size, tensor.size - first)) for first in range(0, tensor.size, size)] or [(0, 0)]


def _check_limits(lowering: Lowering, spec: OpSpec, bound: BoundNode, limits: Limits) -> None:
    for built in lowering.kernels:
        bindings = tensors_of(built, lowering, bound)
        _check_trusted(built, [tensor.dtype for tensor, _ in bindings.values()], limits)
        buffers = sum(len(parts(tensor, limits.max_binding_nbytes)) for tensor, _ in bindings.values())
        if buffers > limits.max_buffers_per_stage:
            raise UnsupportedNodeError(
                Code.LIMIT, f"{spec.name} binds {buffers} buffers of at most {limits.max_binding_nbytes} B; "
                f"this adapter allows {limits.max_buffers_per_stage}")
        if built.lanes > limits.max_invocations:
            raise UnsupportedNodeError(Code.LIMIT, f"workgroup of {built.lanes}; this adapter allows {limits.max_invocations}")
        if built.workgroup_nbytes > limits.max_workgroup_nbytes:
            raise UnsupportedNodeError(
                Code.LIMIT, f"{built.workgroup_nbytes} B of workgroup memory; this adapter allows {limits.max_workgroup_nbytes}")
        for name, (tensor, written) in bindings.items():
            if tensor.nbytes > limits.max_buffer_nbytes:
                raise UnsupportedNodeError(
                    Code.LIMIT, f"tensor {name} of {spec.name} has {tensor.nbytes} B; this adapter allows {limits.max_buffer_nbytes}")
            if written and tensor.dtype.nbytes < 4 and tensor.nbytes > limits.max_binding_nbytes:
                raise UnsupportedNodeError(Code.LIMIT, f"output {name} of {spec.name} has {tensor.nbytes} B of packed elements")
            _check_type(tensor.dtype, built.raw, written, built.groups, limits)
        for step in built.epilogue:
            _check_type(step.dtype, False, False, 0, limits)


def _check_trusted(built: Kernel, dtypes: Sequence[DType], limits: Limits) -> None:
    """Declines a kernel that uses what a probe or a quirk has put out of use on this adapter."""
    if not limits.disabled:
        return
    used = {ADAPTER, built.shader}
    used |= {WORKGROUP} if built.workgroup_nbytes else set()
    used |= {PACKED} if any(d.nbytes < 4 and (built.raw or d.storage == "u32") for d in dtypes) else set()
    used |= set() if built.raw else {d.feature for d in (*dtypes, *(step.dtype for step in built.epilogue)) if d.feature}
    for what, why in limits.disabled:
        if what in used:
            raise UnsupportedNodeError(Code.DRIVER, f"{what} is not used on this adapter: {why}")


def _check_type(dtype: DType, raw: bool, written: bool, groups: int, limits: Limits) -> None:
    if written and groups and dtype.nbytes < 4 and (raw or dtype.storage == "u32"):
        raise UnsupportedNodeError(Code.DTYPE, f"{dtype} output: only one-invocation-an-element kernels can pack it")
    if raw:
        return
    if not dtype.value:
        raise UnsupportedNodeError(Code.DTYPE, f"{dtype} arithmetic has no WGSL type")
    if dtype.feature and dtype.feature not in limits.features:
        raise UnsupportedNodeError(Code.DTYPE, f"{dtype} arithmetic needs the adapter feature {dtype.feature}")


def result_dtype(onnx_type: int) -> DType:
    """The DType of a TensorProto.DataType. Raises UnsupportedNodeError(DTYPE)."""
    if onnx_type not in BY_ONNX:
        name = onnx.TensorProto.DataType.Name(onnx_type).lower()
        raise UnsupportedNodeError(Code.DTYPE, f"element type {name} is unknown to this package")
    return BY_ONNX[onnx_type]
