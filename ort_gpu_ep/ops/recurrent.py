"""LSTM, GRU, RNN: the input's share of the gates for all steps as one matrix product, then the steps, in one dispatch
or one each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT16, FLOAT32, INT8, INT32, UINT8, TensorType
from ort_gpu_ep.kernels.records import KernelCall, ceil_div, loop_bound, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Strided, kernel, op
from ort_gpu_ep.ops import recurrent_held
from ort_gpu_ep.ops.composed import Composed, Part
from ort_gpu_ep.ops.indexing import are_lengths
from ort_gpu_ep.ops.recurrent_held import GENERAL, LANES, MAX_SLICES, held, product_of
from ort_gpu_ep.ops.recurrent_layer import (
    CELLS,
    GRU,
    LSTM,
    RNN,
    ROUNDED,
    Cell,
    Sizes,
    output_types,
    problem_of,
    sizes_of,
    strides_of,
)
from ort_gpu_ep.ops.recurrent_steps import STEPWISE, packing_index, stepwise

BINDINGS = "x w r b? seq? h0? c? p? -> y yh yc"
"""Of LSTM. RNN and GRU share its shader and leave out c (the initial cell state), p and yc."""
OUTPUTS = ("y", "yh", "yc")

ACTIVATIONS = {
    "sigmoid": (0, ()),
    "tanh": (1, ()),
    "relu": (2, ()),
    "affine": (3, (0.0, 0.0)),
    "leakyrelu": (4, (0.01,)),
    "thresholdedrelu": (5, (0.0,)),
    "scaledtanh": (6, (0.0, 0.0)),
    "hardsigmoid": (7, (0.2, 0.5)),
    "softsign": (8, ()),
    "elu": (9, (1.0,)),
    "softplus": (10, ()),
}
"""Lower-case name -> the shader's code, and the defaults of the parameters it takes (alpha, beta): ONNX Runtime's,
which has 0 where ONNX names no operator, and for ThresholdedRelu."""


def _loop_bound(k: KernelCall) -> int:
    """Each step: the units of a lane, for each of them its slice of the state and the slices' sums, twice where the
    reset comes first."""
    units, span = ceil_div(k["H"], k["WIDTH"]), ceil_div(k["H"], k["SLICES"])
    sums = units * (span // 4 + 3 + k["SLICES"] + 1)
    rounding = k["H"] + units if dict(k.kernel.consts).get("ROUNDED") else 0
    return (
        k["T"] * (1 + units + rounding + sums * (2 if k["GATES"] == 3 and not k["LINEAR"] else 1)) + k["T"] + 6 * units
    )


record(
    "recurrent.wgsl",
    "recurrent",
    loop_bound=_loop_bound,
    flops=lambda k: 2 * k["T"] * k["B"] * k["DIRECTIONS"] * k["GATES"] * k["H"] * k["H"],
    steps=lambda k: k["T"],
    problems=[problem_of(op_type, hidden, GENERAL) for op_type in CELLS for hidden in (33, 130, 1)],
)
record("recurrent_weights.wgsl", "movement")


@op("RNN", since=7, dtypes={"T": (FLOAT32, FLOAT16), "T1": (INT32,)}, bindings=BINDINGS)
def rnn(node: BoundNode) -> Lowering:
    """h = f(W x + Wb + R h + Rb) over time. x: [T, B, I], y: [T, directions, B, H], yh: [directions, B, H]."""
    return layer(node, RNN)


@op("GRU", since=7, dtypes={"T": (FLOAT32, FLOAT16), "T1": (INT32,)}, bindings=BINDINGS)
def gru(node: BoundNode) -> Lowering:
    """h = (1 - z) g(W x + Wb + R (r h) + Rb) + z h, with gates z, r = f(...) over time; shapes as RNN."""
    return layer(node, GRU)


@op("LSTM", since=7, dtypes={"T": (FLOAT32, FLOAT16), "T1": (INT32,)}, bindings=BINDINGS)
def lstm(node: BoundNode) -> Lowering:
    """c = f c + i g(W x + Wb + R h + Rb), h = o h(c), with gates i, o, f = f(...) over time; shapes as RNN, yc as
    yh."""
    return layer(node, LSTM)


@op(
    "DynamicQuantizeLSTM",
    domain=DOMAIN,
    dtypes={"T": (FLOAT32,), "T1": (INT32,), "T2": (UINT8, INT8)},
    bindings="x w r b? seq? h0? c? p? w_scale w_zp r_scale r_zp -> y yh yc",
)
def dynamic_quantize_lstm(node: BoundNode) -> Lowering:
    """LSTM of an x and states h that are rounded to 256 steps between their least and their most number, with weights
    of bytes.

    w: [directions, I, 4 H]; r: [directions, H, 4 H]; scales, zero points: [directions] or [directions, 4 H]. x is
    rounded as a whole, h in each step, a row of the batch at a time (ONNX Runtime's CPU: all the rows that a thread
    has).
    """
    composed = Composed(node)
    codes, scale, zero = composed.add_all("DynamicQuantizeLinear", (composed.given(0),), (None, None, None), version=11)
    x = composed.elementwise("(f32(x) - f32(y)) * z", codes, zero.seen((1, 1, 1)), scale.seen((1, 1, 1)), dtype=FLOAT32)
    weights = [_dequantized(composed, i, at) for i, at in ((1, 8), (2, 10))]
    outputs = [i if node.wants(i) else None for i in range(len(node.node.outputs))]
    composed.add_all(
        "LSTM",
        (x, *weights, *(composed.optional(i) for i in range(3, 8))),
        outputs,
        version=14,
        attributes={**node.node.attributes, ROUNDED: 1},
    )
    return composed.lowering()


def _dequantized(made: Composed, weight: int, scale: int) -> Part:
    """The weights of an LSTM from bytes with scales and, in the input behind, zero points: [directions, 4 H, I]."""
    w, parts = made.given(weight), [made.given(scale), made.given(scale + 1)]
    if len(w.shape) != 3 or any(part.shape not in (w.shape[:1], (w.shape[0], w.shape[2])) for part in parts):
        raise UnsupportedNodeError(
            Code.RANK,
            f"{made.node.op} of {w.operand.type} with scales {parts[0].operand.type} and zero points "
            f"{parts[1].operand.type}; "
            "expected [directions, inputs, 4 H], and [directions] or [directions, 4 H]",
        )
    scales, zeros = (part.seen((w.shape[0], 1, part.shape[-1] if len(part.shape) == 2 else 1)) for part in parts)
    return made.add(
        "Transpose", made.elementwise("(f32(x) - f32(z)) * y", w, scales, zeros, dtype=FLOAT32), perm=(0, 2, 1)
    )


def layer(node: BoundNode, cell: Cell) -> Lowering:
    """In the form that is estimated to be the fastest. The general one: R with the hidden unit innermost, the input
    product, the steps.

    R that a decoder makes is read where it is, in each step.
    """
    sizes = sizes_of(node, cell)
    activations_of(node, cell, sizes)  # may decline
    steps, unwanted = steps_of(node, cell, sizes)
    choice = recurrent_held.form_of(node, cell, sizes, general=_fits(node, steps))
    if choice.form in (recurrent_held.WHOLE, recurrent_held.PRODUCT):
        places = [i if node.has(i) else None for i in (3, 5, 6)]
        return held(node, cell, sizes, (recurrent_held.Layer(1, 2, *places),), choice)
    product, weights = product_of(node, sizes), weights_of(node, cell, sizes)
    if choice.form in STEPWISE:
        weights = replace(weights, indices=(("r_index", packing_index(sizes)),))
        return stepwise(node, cell, sizes, choice, weights, product, consts_of(node, cell, sizes))
    steps = replace(steps, choice=choice)
    outputs = tuple(
        t if node.wants(i) else None for i, t in enumerate(output_types(node, sizes)[: len(node.node.outputs)])
    )
    temps = (*((("packed", weights.outputs[0]),) if weights.reads else ()), *product.temps, *unwanted)
    kernels = (*((weights,) if weights.reads else ()), *product.kernels, steps)
    return Lowering(outputs, kernels, temps)


def _fits(node: BoundNode, steps: Kernel) -> bool:
    """Whether the adapter has workgroup memory for the states of a layer, and lets a loop go on to its end."""
    limits = node.target.limits
    return (
        steps.workgroup_nbytes <= limits.max_workgroup_nbytes and hint(loop_bound(steps)) <= limits.max_loop_iterations
    )


def layout_of(node: BoundNode, cell: Cell, sizes: Sizes) -> dict[str, Const]:
    """Sizes of a layer, and what lies where in `packed`. R is not there if it is decoded."""
    linear = bool(cell is GRU and node.attr("linear_before_reset"))
    planes, r_size = sizes.gates + linear, 0 if node.input(2).decoded else node.input(2).size
    p_at = r_size + (sizes.directions * planes * sizes.hidden if node.has(3) else 0)
    return {"H": sizes.hidden, "GATES": sizes.gates, "LINEAR": linear, "PLANES": planes, "R_SIZE": r_size, "P_AT": p_at}


def weights_of(node: BoundNode, cell: Cell, sizes: Sizes) -> Kernel:
    """packed: R as [directions, gates, k, unit], biases, peepholes: neighbouring lanes read neighbouring units, one
    buffer holds all.

    Reads nothing where there is nothing of these, for R is decoded.
    """
    h, layout = sizes.hidden, layout_of(node, cell, sizes)
    reads = {name: i for name, i in (("r", 2), ("b", 3), ("p", 7)) if node.has(i) and not node.input(i).decoded}
    packed = TensorType(FLOAT32, (int(layout["P_AT"]) + (node.input(7).size if node.has(7) else 0),))
    index = Strided((sizes.directions * sizes.gates, h, h), (h * h, 1, h))
    pack = kernel(
        "recurrent_weights.wgsl",
        [packed],
        consts=layout,
        indices={"r_index": index},
        reads=reads,
        writes={"packed": "packed"},
    )
    return replace(pack, optionals=tuple((name, name in reads) for name in "rbp"))


def steps_of(node: BoundNode, cell: Cell, sizes: Sizes) -> tuple[Kernel, tuple[tuple[str, TensorType], ...]]:
    """The kernel that runs the steps, and a one-element temporary for each output that nobody wants."""
    wanted_outputs = {name: node.wants(i) for i, name in enumerate(OUTPUTS)}
    nothing = TensorType(FLOAT32, (1,))
    decoded, has_rest = bool(node.input(2).decoded), node.has(3) or node.has(7)
    reads: dict[str, int | str] = {
        "pre": "pre",
        "r": 2 if decoded else "packed",
        **({"rest": "packed"} if decoded and has_rest else {}),
    }
    reads.update({name: i for name, i in (("seq", 4), ("h0", 5), ("c", 6)) if node.has(i)})
    writes: dict[str, int | str] = {name: i if wanted_outputs[name] else f"no_{name}" for i, name in enumerate(OUTPUTS)}
    types = [t if w else nothing for t, w in zip(output_types(node, sizes), wanted_outputs.values(), strict=True)]
    work = work_of(node, cell, sizes.hidden)
    parts, state_size = int(work["PARTS"]), int(work["STATE_SIZE"])
    consts: dict[str, Const] = {
        **work,
        **consts_of(node, cell, sizes),
        "R_UNIT": sizes.hidden if decoded else 1,
        "R_K": 1 if decoded else sizes.hidden,
        "HAS_REST": "rest" in reads,
        **{f"WANT_{name.upper()}": w for name, w in wanted_outputs.items()},
    }
    consts |= {"ROUNDED": True} if node.attr(ROUNDED) else {}
    steps = kernel(
        "recurrent.wgsl",
        types,
        consts=consts,
        groups=sizes.directions * sizes.batch,
        workgroup_size=int(work["WIDTH"]) * int(work["SLICES"]),
        workgroup_nbytes=4 * state_size + 16 * parts,
        reads=reads,
        writes=writes,
        reports=node.has(4) and not are_lengths(node.input(4), sizes.steps),
    )
    return steps, tuple((f"no_{name}", nothing) for name, w in wanted_outputs.items() if not w)


def consts_of(node: BoundNode, cell: Cell, sizes: Sizes) -> dict[str, Const]:
    """What any form takes whose steps read the weights from memory."""
    return {
        **layout_of(node, cell, sizes),
        **options_of(node, cell, sizes),
        **strides_of(node, sizes),
        **activations_of(node, cell, sizes),
    }


def work_of(node: BoundNode, cell: Cell, hidden: int) -> dict[str, Const]:
    """How a workgroup shares the hidden units, and each unit's sum, among its lanes; sizes of its memory in
    elements."""
    width = min(hidden, LANES)
    span = -(-hidden // max(1, min(LANES // width, MAX_SLICES, hidden // 4)))
    slices = -(-hidden // span)
    vectors = 3 if (cell is GRU and not node.attr("linear_before_reset")) or node.attr(ROUNDED) else 2
    return {
        "WIDTH": width,
        "SLICES": slices,
        "STATE_SIZE": vectors * hidden,
        "PARTS": width * slices if slices > 1 else 1,
    }


def options_of(node: BoundNode, cell: Cell, sizes: Sizes) -> dict[str, Const]:
    """What the attributes and optional inputs choose."""
    clip = node.attr("clip")
    return {
        "T": sizes.steps,
        "B": sizes.batch,
        "DIRECTIONS": sizes.directions,
        "CELL": cell.code,
        "HAS_BIAS": node.has(3),
        "PEEPHOLES": node.has(7),
        "COUPLED": bool(cell is LSTM and node.attr("input_forget")),
        "BACKWARD": node.attr("direction") == "reverse",
        "CLIPPED": clip is not None,
        "CLIP": float(clip or 0.0),
    }


def activations_of(node: BoundNode, cell: Cell, sizes: Sizes) -> dict[str, Const]:
    """F_CODE_0, F_ALPHA_0, ...: code and parameters of the functions f, g, h of either direction (h is called A: H is a
    size)."""
    chosen = node.node.attributes.get("activations") or cell.activations * sizes.directions
    count = len(cell.activations) * sizes.directions
    assert isinstance(chosen, tuple)
    if cell is RNN:
        chosen = chosen[:count]  # ONNX's default names two, for either number of directions
    if len(chosen) != count:
        raise UnsupportedNodeError(
            Code.ATTRIBUTE, f"{node.op} with activations {list(chosen)} for {sizes.directions} direction(s)"
        )
    alphas, betas = iter(node.attr("activation_alpha") or ()), iter(node.attr("activation_beta") or ())
    consts: dict[str, Const] = {}
    for k in range(2 * 3):
        direction, letter = divmod(k, 3)
        consts.update(
            {f"{'FGA'[letter]}_{part}_{direction}": 0 if part == "CODE" else 0.0 for part in ("CODE", "ALPHA", "BETA")}
        )
    for k, name in enumerate(chosen):
        direction, letter = divmod(k, len(cell.activations))
        for part, value in _activation(node, str(name), alphas, betas):
            consts[f"{'FGA'[letter]}_{part}_{direction}"] = value
    return consts


def _activation(
    node: BoundNode, name: str, alphas: Iterator[float], betas: Iterator[float]
) -> Iterator[tuple[str, Const]]:
    """Code, alpha, beta of a function. It takes the next of the lists where it has that parameter, as ONNX Runtime
    does."""
    if name.lower() not in ACTIVATIONS:
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"{node.op} with activation {name}; taken: {', '.join(ACTIVATIONS)}")
    code, defaults = ACTIVATIONS[name.lower()]
    yield "CODE", code
    for part, values, default in zip(("ALPHA", "BETA"), (alphas, betas), defaults, strict=False):
        yield part, float(next(values, default))
