"""The claim: asks the registration of a node's op for its kernels, and checks them against the adapter's limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.ir.schemas import told
from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, INT8, UINT8, DType, TensorType, names
from ort_gpu_ep.kernels.host import RANDOM
from ort_gpu_ep.kernels.questions import Question, question
from ort_gpu_ep.kernels.records import completed, loop_bound, record_of
from ort_gpu_ep.kernels.registry import (
    INLINED,
    KNOWN_OPSET,
    PACKED,
    WORKGROUP,
    BoundNode,
    Decline,
    Kernel,
    Limits,
    Lowering,
    OpSpec,
    Strided,
    UnknownValueError,
    broadcast,
    broadcast_strides,
    part_count,
    spec_of,
    tensors_of,
)
from ort_gpu_ep.kernels.target import Target

FLAGS = frozenset(
    (
        "align_corners",
        "allowzero",
        "antialias",
        "ceil_mode",
        "center_point_box",
        "count_include_pad",
        "exclude_outside",
        "exclusive",
        "fmod",
        "input_forget",
        "interleaved",
        "inverse",
        "is_causal",
        "keepdims",
        "largest",
        "layout",
        "linear_before_reset",
        "noop_with_empty_axes",
        "onesided",
        "reverse",
        "select_last_index",
        "sorted",
        "storage_order",
        "transA",
        "transB",
        "upper",
    )
)
"""Attributes that are 0 or 1. Of another number onnxruntime's kernels make now this, now that, or refuse it."""


def claim(bound: BoundNode, limits: Limits) -> Lowering | Decline:
    """Asks the row of a node: what it becomes, or why it is not taken. What was asked before is not asked again."""
    try:
        spec = _row(bound.node)
        _check_schema(spec, bound)
        _check_flags(bound.node)
    except UnsupportedNodeError as error:
        return Decline(error.code, error.reason)
    bound = replace(bound, target=Target(limits))
    asked = question(spec, bound)
    answer = asked.answer() if asked else None
    if answer is None:
        answer = _ask(spec, bound, limits, asked)
        if asked is not None:
            asked.keep(answer)
    return answer


def _ask(spec: OpSpec, bound: BoundNode, limits: Limits, asked: Question | None) -> Lowering | Decline:
    try:
        lowering = lower(spec, bound, asked)
        _check_limits(lowering, spec, bound, limits)
    except UnknownValueError as error:
        return Decline(error.code, error.reason, error.operand, error.later, error.types)
    except UnsupportedNodeError as error:
        return Decline(error.code, error.reason)
    return lowering


GENERATED = (
    ": its numbers are those that ONNX Runtime's generator draws one after another, and goes on with from run to run; "
    "also with a "
    "seed they depend on all runs before, so that no other result would be the right one"
)


def _row(node: Node) -> OpSpec:
    spec = spec_of(node)
    if spec is None:
        why = GENERATED if node.op in RANDOM and not node.domain else ""
        raise UnsupportedNodeError(Code.OP, f"no kernel for {_named(node)}{why}")
    return spec


def _named(node: Node) -> str:
    return f"{node.domain}:{node.op}" if node.domain else node.op


def _check_flags(node: Node) -> None:
    for name, value in node.attributes.items():
        if name in FLAGS and value not in (0, 1, None):
            raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with {name} {value!r}; taken: 0 and 1")


def _check_schema(spec: OpSpec, bound: BoundNode) -> None:
    """The op's version; each input against the row's type parameters, which the schema names (`T` where there is no
    schema); and what onnx.defs, and so onnx.checker, does not know.
    """
    node, fault = (
        bound.node,
        told(bound.node, [None if operand is None else operand.dtype for operand in bound.inputs], KNOWN_OPSET),
    )
    if node.version < spec.since or fault.newer:
        raise UnsupportedNodeError(
            Code.OPSET, f"{_named(node)} of opset {node.version}; taken from opset {spec.since} to {KNOWN_OPSET}"
        )
    for i, operand in enumerate(bound.inputs):
        if operand is None:
            continue
        parameter = fault.parameters[min(i, len(fault.parameters) - 1)] if fault.parameters else "T"
        allowed = spec.dtypes.get(parameter)
        if operand.dtype.bits < 8 and operand.dtype not in (allowed or ()):
            raise UnsupportedNodeError(
                Code.DTYPE, f"{bound.op} with {operand.dtype} input {operand.name!r}: no kernel takes that type"
            )
        if allowed is not None and operand.dtype not in allowed:
            raise UnsupportedNodeError(
                Code.DTYPE, f"{bound.op} with {operand.dtype} input {operand.name!r}; taken: {names(allowed)}"
            )
    if fault.fault:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{bound.op} is not as its schema has it: {fault.fault}")


def lower(spec: OpSpec, bound: BoundNode, asked: Question | None = None) -> Lowering:
    """What the row's builder makes of a node, with its fused steps. Raises UnsupportedNodeError."""
    built = asked.built() if asked else None
    if built is None:
        built = completed(spec, asked.watched() if asked else bound)
        if asked is not None:
            asked.keep_built(built)
    kernels, outputs = built.kernels, built.outputs
    if bound.node.epilogue:
        kernels, outputs = _with_epilogue(bound, kernels, outputs)
    types = dict(built.temps)

    def type_of(source: int | str) -> TensorType:
        return types[source] if isinstance(source, str) else bound.source(source).type

    in_place = built.in_place if not bound.node.epilogue else None
    kernels = tuple(_with_operand_indices(k, type_of) for k in kernels)
    if not bound.target.limits.int64:
        kernels = tuple(_with_pairs(k, type_of) for k in kernels)
        in_place = in_place and replace(in_place, kernels=tuple(_with_pairs(k, type_of) for k in in_place.kernels))
    return replace(built, outputs=outputs, kernels=kernels, in_place=in_place)


def _with_pairs(built: Kernel, type_of: Callable[[int | str], TensorType]) -> Kernel:
    """For an adapter without 64-bit integers: they are pairs of words, wherever a kernel calculates with one."""
    tensors = (
        *built.outputs,
        *(type_of(source) for _, source in built.reads or ()),
        *((built.plain,) if built.plain else ()),
    )
    steps = (step.dtype for step in built.epilogue)
    return replace(built, pairs=not built.raw and any(d.is_wide_integer for d in (*(t.dtype for t in tensors), *steps)))


def _with_operand_indices(built: Kernel, type_of: Callable[[int | str], TensorType]) -> Kernel:
    """With a function `e<k>_index` for each operand of the fused steps: where an element of the output finds its
    value."""
    there = {name for name, _ in built.indices}
    used = {a for step in built.epilogue for a in step.arguments if a[0] == "e" and f"{a}_index" not in there}
    if not used:
        return built
    shape = built.outputs[0].shape
    indices = (
        (f"{name}_index", Strided(shape, broadcast_strides(type_of(source).shape, shape)))
        for name, source in built.reads or ()
        if name in used
    )
    return replace(built, indices=(*built.indices, *indices))


def _with_epilogue(
    bound: BoundNode, kernels: tuple[Kernel, ...], outputs: tuple[TensorType | None, ...]
) -> tuple[tuple[Kernel, ...], tuple[TensorType | None, ...]]:
    """Appends the node's fused steps to every kernel that writes its output."""
    plain = outputs[0]
    if plain is None or not kernels:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{bound.op} has no kernel to fuse elementwise steps into")
    for operand in bound.operands:
        if broadcast(operand.shape, plain.shape) != plain.shape:
            raise UnsupportedNodeError(
                Code.RANK, f"fused operand {operand.name!r} {operand.type} does not broadcast to {plain}"
            )
    result = TensorType(bound.node.epilogue[-1].dtype, plain.shape)
    reads = tuple((f"e{k}", len(bound.inputs) + k) for k in range(len(bound.operands)))
    done = []
    for built in kernels:
        if any(target == 0 for _, target in built.writes or ()):
            words = [name for name, target in built.writes or () if target == 0 and name in built.words]
            if words and result.dtype not in (INT8, UINT8):
                raise UnsupportedNodeError(
                    Code.DTYPE, f"fused steps end in {result.dtype}, which is not stored as words of bytes"
                )
            fours = [name for name, target in built.writes or () if target == 0 and name in built.vectors]
            if built.groups and result.dtype.bits < 32 and result.dtype.storage == "u32" and not (words or fours):
                raise UnsupportedNodeError(
                    Code.DTYPE, f"fused steps end in {result.dtype}, which only an elementwise kernel can pack"
                )
            if fours and result.dtype in (INT8, UINT8):  # four bytes are a word
                built = replace(
                    built, vectors=tuple(n for n in built.vectors if n not in fours), words=(*built.words, *fours)
                )
            elif fours and result.dtype not in (FLOAT32, FLOAT16):
                raise UnsupportedNodeError(
                    Code.DTYPE, f"fused steps end in {result.dtype}, which is not stored as vectors"
                )
            built = replace(
                built,
                outputs=(result, *built.outputs[1:]),
                plain=built.outputs[0],
                epilogue=bound.node.epilogue,
                reads=(*(built.reads or ()), *reads),
            )
        done.append(built)
    return tuple(done), (result, *outputs[1:])


def _check_limits(lowering: Lowering, spec: OpSpec, bound: BoundNode, limits: Limits) -> None:
    for built in lowering.kernels:
        bindings = tensors_of(built, lowering, bound)
        _check_trusted(built, [tensor.dtype for tensor, _ in bindings.values()], limits)
        buffers = sum(part_count(tensor, limits.max_binding_nbytes) for tensor, _ in bindings.values())
        if buffers > limits.max_buffers_per_stage:
            raise UnsupportedNodeError(
                Code.LIMIT,
                f"{spec.name} binds {buffers} buffers of at most {limits.max_binding_nbytes} B; "
                f"this adapter allows {limits.max_buffers_per_stage}",
            )
        missing = set(built.features) - limits.features
        if missing:
            raise UnsupportedNodeError(
                Code.LIMIT, f"{built.shader} needs the adapter feature {', '.join(sorted(missing))}"
            )
        infinite = [name for name, value in built.consts if isinstance(value, float) and not math.isfinite(value)]
        if infinite:  # WGSL has no such constants
            raise UnsupportedNodeError(Code.ATTRIBUTE, f"{spec.name}: {', '.join(infinite).lower()} is infinite or NaN")
        if built.workgroup_size > limits.max_invocations:
            raise UnsupportedNodeError(
                Code.LIMIT, f"workgroup of {built.workgroup_size}; this adapter allows {limits.max_invocations}"
            )
        if built.workgroup_nbytes > limits.max_workgroup_nbytes:
            raise UnsupportedNodeError(
                Code.LIMIT,
                f"{built.workgroup_nbytes} B of workgroup memory; this adapter allows {limits.max_workgroup_nbytes}",
            )
        if hint(built.groups) > limits.max_groups_per_dimension**2 and built.grid is None:
            raise UnsupportedNodeError(
                Code.LIMIT,
                f"{built.shader} in {hint(built.groups)} workgroups; this adapter allows "
                f"{limits.max_groups_per_dimension} a "
                "dimension, of two",
            )
        if built.grid is not None and any(count > limits.max_groups_per_dimension for count in built.grid):
            raise UnsupportedNodeError(
                Code.LIMIT,
                f"{built.shader} in {' x '.join(map(str, built.grid))} workgroups; this adapter allows "
                f"{limits.max_groups_per_dimension} a dimension",
            )
        if (needed := loop_bound(built)) > limits.max_loop_iterations:
            raise UnsupportedNodeError(
                Code.LIMIT,
                f"{built.shader} needs {needed} loop iterations in one invocation; "
                f"this driver ends loops after {limits.max_loop_iterations}",
            )
        for name, (tensor, written) in bindings.items():
            if tensor.nbytes > limits.max_buffer_nbytes:
                raise UnsupportedNodeError(
                    Code.LIMIT,
                    f"tensor {name} of {spec.name} has {tensor.nbytes} B; this adapter allows "
                    f"{limits.max_buffer_nbytes}",
                )
            if written and tensor.dtype.bits < 32 and tensor.nbytes > limits.max_binding_nbytes:
                raise UnsupportedNodeError(
                    Code.LIMIT, f"output {name} of {spec.name} has {tensor.nbytes} B of packed elements"
                )
            _check_type(
                tensor.dtype,
                built.raw,
                written and name not in built.words,
                built.groups,
                limits,
                _in_pairs(built, name, written),
            )
        for step in built.epilogue:
            _check_type(step.dtype, False, False, 0, limits, built.pairs)


def _in_pairs(built: Kernel, name: str, written: bool) -> bool:
    """Whether the text reads, or stores, 64-bit integers as pairs of words: fused steps do, as far as rows have them; a
    body says so."""
    stored = written and built.plain is not None and not built.plain.dtype.is_wide_integer
    read = name[0] == "e" and name[1:].isdigit()
    return built.pairs and (
        (bool(built.epilogue) and (stored or read)) or (record_of(built.shader).pairs and not built.inlined)
    )


def _check_trusted(built: Kernel, dtypes: Sequence[DType], limits: Limits) -> None:
    """Declines a kernel that uses what a probe or a quirk has put out of use on this adapter."""
    if not limits.disabled:
        return
    used = {built.shader, *built.features, *(inner.shader for _, inner in built.inlined)}
    used |= {WORKGROUP} if built.workgroup_nbytes else set()
    used |= {INLINED} if built.inlined else set()
    used |= {PACKED} if any(d.bits < 32 and (built.raw or d.storage == "u32") for d in dtypes) else set()
    used |= (
        set()
        if built.raw
        else {
            d.feature
            for d in (*dtypes, *(step.dtype for step in built.epilogue))
            if d.feature and not (built.pairs and d.is_wide_integer)
        }
    )
    for what, why in limits.disabled:
        if what in used:
            raise UnsupportedNodeError(Code.DRIVER, f"{what} is not used on this adapter: {why}")


def _check_type(dtype: DType, raw: bool, written: bool, groups: int, limits: Limits, pairs: bool) -> None:
    if written and groups and dtype.bits < 32 and (raw or dtype.storage == "u32"):
        raise UnsupportedNodeError(Code.DTYPE, f"{dtype} output: only one-invocation-an-element kernels can pack it")
    if raw:
        return
    if not dtype.value:
        raise UnsupportedNodeError(Code.DTYPE, f"{dtype} arithmetic has no WGSL type")
    if dtype.feature and not limits.allow("", dtype.feature) and not (pairs and dtype.is_wide_integer):
        raise UnsupportedNodeError(Code.DTYPE, f"{dtype} arithmetic needs the adapter feature {dtype.feature}")
