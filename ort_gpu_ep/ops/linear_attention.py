"""Ops with a state from token to token: LinearAttention and CausalConvWithState."""

from __future__ import annotations

from dataclasses import replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.contrib import DOMAIN
from ort_gpu_ep.ir.types import FLOATS, TensorType
from ort_gpu_ep.kernels.problems import normal, problem
from ort_gpu_ep.kernels.records import ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, kernel, op

COLUMNS, PARTS = 16, 8
"""linear_attention.wgsl: columns of a workgroup, and invocations that share one."""

MAX_ROWS = 32
"""Of a column that an invocation keeps in registers."""

record(
    "causal_conv.wgsl",
    "direct",
    loop_bound=lambda k: k["TAPS"],
    flops=lambda k: 2 * k.size("y") * k["TAPS"],
    problems=[
        problem(
            "CausalConvWithState",
            27,
            normal(2, 5, 9),
            normal(5, 1, 4),
            normal(5),
            normal(2, 5, 3),
            outputs=2,
            activation="silu",
        )
    ],
)
record(
    "linear_attention.wgsl",
    "recurrent",
    steps=lambda k: k["LENGTH"],
    loop_bound=lambda k: k["LENGTH"] * (1 + k["SHARING"] * (1 + PARTS) + PARTS),
    flops=lambda k: 2 * k.size("v") * k["DK"] * (2 + k["SHARING"] + k["DELTA"]),
)


@op("LinearAttention", since=27, dtypes={"T": FLOATS, "S": FLOATS}, bindings="q k v past? decay? beta? -> y present")
def linear_attention(node: BoundNode) -> Kernel:
    """Of each token in turn: state = exp(decay) state + k u^T, y = scale q^T state; u is v, or beta (v - state^T k) of
    the faded state.

    q: [B, T, heads K]; k: [B, T, groups K]; v: [B, T, groups V]; decay: [B, T, groups] or [B, T, groups K]; beta: [B,
    T, groups] or [B, T, 1]; past, present: [B, groups, K, V]; y: [B, T, the more of heads and groups, V].
    """
    rule = node.attr("update_rule")
    if rule not in ("linear", "gated", "delta", "gated_delta") or node.attr("state_window"):
        raise UnsupportedNodeError(Code.ATTRIBUTE, f"LinearAttention with update_rule {rule!r} or a state_window")
    (q, k, v), (past, decay, beta) = (node.input(i) for i in range(3)), (node.optional(i) for i in range(3, 6))
    heads, groups = int(node.attr("q_num_heads")), int(node.attr("kv_num_heads"))
    if (
        min(heads, groups) < 1
        or (heads % groups and groups % heads)
        or any(o.rank != 3 for o in (q, k, v))
        or q.shape[2] % heads
        or any(o.shape[:2] != q.shape[:2] or o.shape[2] % groups for o in (k, v))
    ):
        raise UnsupportedNodeError(
            Code.RANK, f"LinearAttention of {q.type}, {k.type} and {v.type} with {heads} and {groups} heads"
        )
    (batch, length, _), dk, dv = q.shape, int(k.shape[2]) // groups, int(v.shape[2]) // groups
    state = (batch, groups, dk, dv)
    gated, delta = "gated" in rule, "delta" in rule
    wrong = q.shape[2] != heads * dk or (past and past.shape != state) or dk > PARTS * MAX_ROWS or 0 in (*q.shape, dv)
    wrong = wrong or (
        gated and (decay is None or decay.shape not in ((batch, length, groups), (batch, length, groups * dk)))
    )
    if wrong or (delta and (beta is None or beta.shape not in ((batch, length, groups), (batch, length, 1)))):
        raise UnsupportedNodeError(
            Code.RANK,
            f"LinearAttention of {q.type}, {k.type}, {v.type} with state {past and past.type}, decay "
            f"{decay and decay.type}, "
            f"beta {beta and beta.type}; taken: states of at most {PARTS * MAX_ROWS} rows",
        )
    most, scale = max(heads, groups), float(node.attr("scale") or 0.0)
    outputs = [TensorType(q.dtype, (batch, length, most * dv)), TensorType(past.dtype if past else q.dtype, state)]
    consts: dict[str, Const] = {
        "LENGTH": length,
        "DK": dk,
        "DV": dv,
        "Q_HEADS": heads,
        "HEADS": groups,
        "SHARING": max(1, heads // groups),
        "JOINED": max(1, groups // heads),
        "DECAY": 0 if not gated or decay is None else 1 if decay.shape[2] == groups else 2,
        "DELTA": delta,
        "BETAS": beta.shape[2] if delta and beta else 1,
        "SCALE": scale or dk**-0.5,
        "COLUMNS": COLUMNS,
        "PARTS": PARTS,
        "ROWS": ceil_div(dk, PARTS),
    }
    optional = {"past": 3 if past else None, "decay": 4 if gated else None, "beta": 5 if delta else None}
    built = kernel(
        "linear_attention.wgsl",
        outputs,
        consts=consts,
        grid=(ceil_div(dv, COLUMNS), groups, batch),
        workgroup_size=COLUMNS * PARTS,
        workgroup_nbytes=4 * COLUMNS * PARTS,
        reads={"q": 0, "k": 1, "v": 2, **{n: at for n, at in optional.items() if at is not None}},
        writes={"y": 0, "present": 1},
    )
    return replace(built, optionals=tuple((name, at is not None) for name, at in optional.items()))


op(
    "LinearAttention",
    domain=DOMAIN,
    dtypes={"T": FLOATS, "S": FLOATS},
    bindings="q k v past? decay? beta? -> y present",
)(linear_attention)


@op("CausalConvWithState", since=27, dtypes={"T": FLOATS}, bindings="x w bias? past? -> y present")
def causal_conv(node: BoundNode) -> Lowering:
    """y[b, c, l] = act(bias[c] + sum over j of w[c, 0, j] v[b, c, l + j]), with v the state and x behind it; the state
    after x.

    x, y: [B, C, L], or [B, L, C...] where channels_last is 1; w: [C, 1, taps]; past, present: likewise of (taps - 1)
    dilation values.
    """
    x, w, last, dilation = (
        node.input(0),
        node.input(1),
        bool(node.attr("channels_last")),
        int(node.attr("dilation") or 1),
    )
    activation = node.attr("activation")
    extended = [
        name
        for name in ("state_update_capacity", "state_window", "state_length", "input_channel_offset", "input_channels")
        if node.attr(name)
    ]
    if (
        extended
        or node.wants(2)
        or (node.attr("ndim") or 1) != 1
        or node.attr("state_channels_last") not in (None, -1)
        or dilation < 1
        or activation not in ("none", "silu", "swish")
    ):
        raise UnsupportedNodeError(
            Code.ATTRIBUTE,
            f"CausalConvWithState with {', '.join(extended) or 'several spatial axes, another layout of its state'}, "
            f"dilation {dilation} or activation {activation!r}",
        )
    channels, taps = (w.shape[0], int(w.shape[2])) if w.rank == 3 else (0, 0)
    length, trailing = (x.shape[1], x.shape[2:]) if last else (x.shape[-1], x.shape[1:2])
    state = (taps - 1) * dilation
    stored = (x.shape[0], state, *trailing) if last else (x.shape[0], channels, state)
    past, bias = node.optional(3), node.optional(2)
    if (
        x.rank < 3
        or (x.rank > 3 and not last)
        or w.shape[1:2] != (1,)
        or TensorType(x.dtype, trailing).size != channels
        or taps < 1
        or (past and past.shape != stored)
        or (bias and bias.shape != (channels,))
    ):
        raise UnsupportedNodeError(
            Code.RANK, f"CausalConvWithState of {x.type} and {w.type} with state {past and past.type}"
        )
    consts: dict[str, Const] = {
        "LENGTH": length,
        "CHANNELS": channels,
        "LAST": last,
        "STATE": state,
        "TAPS": taps,
        "DILATION": dilation,
        "ACTIVATED": activation != "none",
    }
    types = (TensorType(x.dtype, x.shape), TensorType(x.dtype, stored))
    reads = {name: i for name, i in (("bias", 2), ("past", 3)) if node.has(i)}
    kernels = []
    for output, (tensor, rows) in enumerate(zip(types, (length, state), strict=True)):
        built = kernel(
            "causal_conv.wgsl",
            [tensor],
            consts={**consts, "ROWS": rows, "PRESENT": output == 1},
            reads={"x": 0, "w": 1, **reads},
            writes={"y": output},
        )
        if node.wants(output) and tensor.size:
            kernels.append(
                replace(built, optionals=tuple((name, node.has(i)) for name, i in (("bias", 2), ("past", 3))))
            )
    outputs = tuple(tensor if node.wants(i) else None for i, tensor in enumerate(types))
    return Lowering(outputs[: max(1, len(node.node.outputs))], tuple(kernels))


op("CausalConvWithState", domain=DOMAIN, dtypes={"T": FLOATS}, bindings="x w bias? past? -> y present _update")(
    causal_conv
)
