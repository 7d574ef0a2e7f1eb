"""Changes of the element type, and ops that pass their input on unchanged."""

from __future__ import annotations

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.types import ANY, BOOL, FLOAT16, FLOAT64, INT64, DType, TensorType, names
from ort_gpu_ep.kernels.registry import BoundNode, Lowering, View, kernel, op, result_dtype
from ort_gpu_ep.ops import channels_last
from ort_gpu_ep.ops.elementwise import COMPUTABLE, FLOATING, REAL, Expression, elementwise


def converted(source: DType, target: DType) -> str:
    """WGSL that converts x as C does: towards zero, integers modulo 2^bits, to bool by `!= 0`.

    A float beyond the target's range is undefined in ONNX: it saturates, except that negative ones wrap in unsigned
    types.
    """
    if source is target:
        return "x"
    if target is BOOL:  # a driver may compare NaN != 0 as false
        if source is FLOAT64:
            return "x != 0.0lf || is_nan_f64(x)"
        return "(bitcast<u32>(x) & 0x7fffffffu) != 0u" if source in FLOATING else f"x != {source.value}(0)"
    if source is BOOL:
        return f"select({target.value}(0), {target.value}(1), x)"
    if target is FLOAT16:  # a fused step after this one must see the rounding, which a store would do
        return f"unpack2x16float(pack2x16float(vec2({'x' if source in FLOATING else 'f32(x)'}, 0.0))).x"
    if source in REAL and target.value[0] == "u":
        signed = target.value.replace("u", "i")
        return f"select({target.value}(x), {target.value}({signed}(x)), x < 0.0)"
    # naga extends by the sign of the target, not of x
    if (source.value, target.value) in (("i32", "u64"), ("u32", "i64")):
        return f"{target.value}({source.value[0]}64(x))"
    return f"{target.value}(x)"


def _converted_pairs(source: DType, target: DType) -> str:
    """The same where 64-bit integers, at least one of the two, are pairs of words."""
    if source.bits == target.bits:
        return "x"
    if source.bits < 64:
        if source in FLOATING:
            return "from_float_64(x)"
        word = "select(0u, 1u, x)" if source is BOOL else "bitcast<u32>(x)"
        return f"vec2<u32>({word}, {'bitcast<u32>(x >> 31u)' if source.value == 'i32' else '0u'})"
    if target is BOOL:
        return "any(x != vec2<u32>())"
    number = "float_signed_64(x)" if source is INT64 else "float_64(x)"
    if target is FLOAT16:
        return f"unpack2x16float(pack2x16float(vec2({number}, 0.0))).x"
    return number if target in FLOATING else f"{target.value}(x.x)" if target.value == "u32" else "bitcast<i32>(x.x)"


def cast(node: BoundNode) -> Expression:
    """`y_t(x)`: Cast's type is an attribute, CastLike's that of its second input."""
    source = node.input(0).dtype
    target = node.input(1).dtype if node.op == "CastLike" else result_dtype(node.attr("to"))
    if node.attr("saturate") not in (None, 0, 1):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with saturate {node.attr('saturate')}; expected 0 or 1")
    if target not in COMPUTABLE:
        raise UnsupportedNodeError(Code.DTYPE, f"{node.op} of {source} to {target}; taken: {names(COMPUTABLE)}")
    if not node.target.limits.int64 and (source.is_wide_integer or target.is_wide_integer):
        if FLOAT64 in (source, target):
            raise UnsupportedNodeError(
                Code.DTYPE, f"{node.op} of {source} to {target} needs the adapter feature {INT64.feature}"
            )
        return Expression(_converted_pairs(source, target), target, (0,))
    return Expression(converted(source, target), target, (0,))


elementwise("Cast", cast, types={"T1": COMPUTABLE}, since=6, pairs=cast)
elementwise("CastLike", cast, types={"T1": COMPUTABLE}, bindings="x _ -> y", pairs=cast)


@op("Identity", dtypes={"T": ANY, "V": ANY}, bindings="x -> y", channels_last=channels_last.elementwise)
def identity(node: BoundNode) -> View:
    """y = x."""
    return View(node.input(0).type)


@op("BitCast", dtypes={"T1": ANY}, bindings="x -> y")
def bit_cast(node: BoundNode) -> View:
    """y = the bits of x as another element type of the same size."""
    x, target = node.input(0), result_dtype(int(node.attr("to")))
    if target.nbytes != x.dtype.nbytes:
        raise UnsupportedNodeError(Code.DTYPE, f"BitCast of {x.dtype} to {target}: the sizes differ")
    return View(TensorType(target, x.shape))


@op(
    "Dropout",
    since=7,
    dtypes={"T": ANY},
    bindings="x _ratio? _training? -> y mask?",
    channels_last=channels_last.elementwise,
)
def dropout(node: BoundNode) -> Lowering:
    """y = x, mask = true everywhere: inference, or a ratio of 0. Declined: training, and the mask before opset 12.

    Before opset 12 ONNX Runtime fills the mask with false.
    """
    x, training = node.input(0), node.optional(2)
    if training is not None and bool(training.require().reshape(-1)[0]):
        ratio = node.optional(1)
        if ratio is None or ratio.require().reshape(-1)[0] != 0:
            raise UnsupportedNodeError(Code.ATTRIBUTE, "Dropout in training mode; taken: inference, or a ratio of 0")
    if not node.wants(1):
        return Lowering((x.type, *(None for _ in node.node.outputs[1:])), views=((0, 0),))
    if node.version < 12:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"Dropout of opset {node.version} with its mask output; taken: without"
        )
    mask = TensorType(BOOL, x.shape)
    fill = kernel("fill.wgsl", [mask], consts={"LOW": 1, "HIGH": 0}, raw=True, reads={}, writes={"y": 1})
    return Lowering((x.type if node.wants(0) else None, mask), (fill,), views=((0, 0),) if node.wants(0) else ())
