"""Functions of training steps (domain ort_gpu_ep.training): recurrences backward in time, updates. Their bodies specify
them."""

from __future__ import annotations

import math
from dataclasses import replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT32, INT32, UINT32, Shape, TensorType
from ort_gpu_ep.kernels.records import KernelCall, ceil_div, record
from ort_gpu_ep.kernels.registry import BoundNode, Kernel, Lowering, Strided, kernel, op
from ort_gpu_ep.kernels.target import Choice
from ort_gpu_ep.ops.contraction import Matrix, Product, lower_product
from ort_gpu_ep.ops.recurrent_held import GENERAL, MAX_SLICES, general_ns, reads_of_a_lane
from ort_gpu_ep.ops.recurrent_layer import Sizes
from ort_gpu_ep.ops.recurrent_steps import STEPWISE, TEAM, estimates_of, shares_of
from ort_gpu_ep.ops.reduce import rows_of
from ort_gpu_ep.ops.window import INPUT_AXES, OUTPUT_AXES, Window

DOMAIN = "ort_gpu_ep.training"
STEPS = "recurrent_backward_steps.wgsl"
WORKGROUP_SIZE = 256


def _loop_bound(k: KernelCall) -> int:
    """Each step: the units of a lane, for each of them its slice of a sum and the slices' sums, twice where the reset
    comes first."""
    units, span = ceil_div(k["H"], k["WIDTH"]), ceil_div(k["COUNT"], k["SLICES"])
    sums = units * (1 + span // 4 + 3 + k["SLICES"])
    return k["T"] * (1 + units + sums * (2 if k["CELL"] == 3 else 1)) + 2 * units


record(
    "recurrent_backward.wgsl",
    "recurrent",
    loop_bound=_loop_bound,
    flops=lambda k: 2 * k["T"] * k["B"] * k["GATES"] * k["H"] * k["H"],
    steps=lambda k: k["T"],
)
record(
    STEPS,
    "recurrent_steps",
    loop_bound=lambda k: ceil_div(k["B"], k["ROWS"] * k["RUNS"]) * (k["GATES"] + ceil_div(k["H"], 4 * TEAM) + 11),
    flops=lambda k: 2 * k["T"] * k["B"] * k["GATES"] * k["H"] * k["H"],
    steps=lambda k: k["T"],
)
record("recurrent_transposed.wgsl", "movement")
record("lstm_cells.wgsl", "movement", loop_bound=lambda k: k["T"], steps=lambda k: k["T"])
record("adam.wgsl", "elementwise")
record("momentum.wgsl", "elementwise")
record(
    "pool_gradient.wgsl",
    "pool",
    loop_bound=lambda k: _windows(k, 0) * (1 + _windows(k, 1) * (1 + _windows(k, 2))),
    flops=lambda k: 2 * k.size("dx") * _windows(k, 0) * _windows(k, 1) * _windows(k, 2),
)
record(
    "depthwise_weight_gradient.wgsl",
    "direct",
    loop_bound=lambda k: ceil_div(k["N"] * k["OUT0"] * k["OUT1"], WORKGROUP_SIZE) + 9,
    flops=lambda k: 2 * k["N"] * k["OUT0"] * k["OUT1"] * k.size("dw"),
)
record("cross_entropy.wgsl", "reduction", loop_bound=lambda k: k.rows(3))


def _windows(k: KernelCall, axis: int) -> int:
    """Windows along an axis that may hold one place."""
    return ceil_div((k[f"K{axis}"] - 1) * k[f"D{axis}"] + 1, k[f"S{axis}"])


def _declined(node: BoundNode, wanted: str) -> UnsupportedNodeError:
    got = ", ".join(str(o.type) for o in node.given())
    return UnsupportedNodeError(Code.RANK, f"{node.op} of {got}; taken: {wanted}")


def _check(node: BoundNode, shapes: list[Shape], wanted: str) -> None:
    if any(o.dtype is not FLOAT32 or o.shape != s for o, s in zip(node.given(), shapes, strict=True)) or any(
        0 in s for s in shapes
    ):
        raise _declined(node, wanted)


_BACKWARD = {
    "RNNBackward": (0, 1, 1),
    "GRUBackward": (1, 3, 1),
    "LSTMBackward": (2, 4, 2),
    "GRUBackwardResetFirst": (3, 3, 1),
}
"""The shader's code of a cell, its gates, and how many of the first states it gives gradients of. GRUBackward:
linear_before_reset."""


@op("GRUBackward", domain=DOMAIN, dtypes={}, bindings="dy dht gates before q r -> da dh0")
@op("GRUBackwardResetFirst", domain=DOMAIN, dtypes={}, bindings="dy dht gates before r rh -> da dh0")
@op("LSTMBackward", domain=DOMAIN, dtypes={}, bindings="dy dht dct gates cells before r -> da dh0 dc0")
@op("RNNBackward", domain=DOMAIN, dtypes={}, bindings="dy dht slope r -> da dh0")
def backward(node: BoundNode) -> Kernel | Lowering:
    """da = the gradients of a recurrent layer's pre-activations, from its last step to its first. dy: [T, B, H].

    In one dispatch a workgroup has a batch row; where that would read too many weights in each step, all workgroups do
    a step together.
    """
    cell, gates, states = _BACKWARD[node.op]
    if node.input(0).rank != 3:
        raise _declined(node, "dy [T, B, H]")
    steps, batch, hidden = node.input(0).shape
    sequence, state = (steps, batch, hidden), (batch, hidden)
    wide = (steps, batch, gates * hidden)
    shapes: dict[int, list[Shape]] = {
        0: [sequence, state, sequence, (hidden, hidden)],
        1: [sequence, state, wide, sequence, sequence, (3 * hidden, hidden)],
        2: [sequence, state, state, wide, sequence, sequence, (4 * hidden, hidden)],
        3: [sequence, state, wide, sequence, (2 * hidden, hidden), (hidden, hidden)],
    }
    _check(node, shapes[cell], "float32, shapes as the function's body has them, none empty")
    sizes, halves = Sizes(steps, batch, hidden, 1, hidden, gates), 2 if cell == 3 else 1
    bindings, limits = len(node.given()) + 3 + states - (cell == 3), node.target.limits
    times = (
        estimates_of(node.target, sizes, halves)
        if limits.allow(STEPS) and bindings <= limits.max_buffers_per_stage
        else {}
    )
    if 4 * gates * hidden <= limits.max_workgroup_nbytes or not times:
        times[GENERAL] = general_ns(node.target, sizes, reads_of_a_lane(hidden, gates * hidden))
    choice = node.target.choose(f"recurrent backward {cell} {hidden}, {1 << hint(steps).bit_length()} steps", times)
    if choice.form != GENERAL:
        return _stepwise(node, cell, sizes, states, choice)
    count = (2 if cell == 3 else gates) * hidden
    width = min(-(-hidden // 32) * 32, WORKGROUP_SIZE)
    slices = max(1, min(WORKGROUP_SIZE // width, MAX_SLICES, count // 4))
    consts = {
        "CELL": cell,
        "T": steps,
        "B": batch,
        "H": hidden,
        "GATES": gates,
        "COUNT": count,
        "WIDTH": width,
        "SLICES": slices,
    }
    workgroup_size = width * slices
    return kernel(
        "recurrent_backward.wgsl",
        [TensorType(FLOAT32, wide), *[TensorType(FLOAT32, state)] * states],
        consts=consts,
        groups=batch,
        workgroup_size=workgroup_size,
        workgroup_nbytes=4 * (gates * hidden + (workgroup_size if slices > 1 else 0)),
        choice=choice,
    )


_READS = {0: "dy dht slope", 1: "dy dht gates before q", 2: "dy dht dct gates cells before", 3: "dy dht gates before"}
"""By the code of a cell: its inputs before the recurrent weights."""


def _stepwise(node: BoundNode, cell: int, sizes: Sizes, states: int, choice: Choice) -> Lowering:
    """A dispatch for each step, and one behind the last; the weights transposed before."""
    steps, batch, hidden, gates = sizes.steps, sizes.batch, sizes.hidden, sizes.gates
    shares, names = shares_of(node.target, sizes, STEPWISE[choice.form]), _READS[cell].split()
    weights = {name: len(names) + k for k, name in enumerate(("r", "rh") if cell == 3 else ("r",))}
    packed = TensorType(FLOAT32, (gates * hidden * hidden,))
    pack = kernel(
        "recurrent_transposed.wgsl",
        [packed],
        consts={"H": hidden, "GATES": gates},
        reads=weights,
        writes={"packed": "packed"},
    )
    state = TensorType(FLOAT32, (2 * batch * gates * hidden + batch * hidden,))
    results = (TensorType(FLOAT32, (steps, batch, gates * hidden)), *[TensorType(FLOAT32, (batch, hidden))] * states)
    ticks, written = TensorType(UINT32, (shares.groups,)), ("da", "dh0", "dc0")[: 1 + states]
    back = kernel(
        STEPS,
        [*results, ticks, state],
        consts={"CELL": cell, "T": steps, "B": batch, "H": hidden, "GATES": gates, **shares.consts},
        groups=shares.groups,
        workgroup_size=shares.workgroup_size,
        workgroup_nbytes=shares.workgroup_nbytes,
        reads={**{name: k for k, name in enumerate(names)}, "packed": "packed"},
        writes={**{name: k for k, name in enumerate(written)}, "ticks": "ticks", "state": "state"},
        vectors=shares.vectors,
        choice=choice,
        features=shares.features,
        repeats=(2 if cell == 3 else 1) * steps + 1,
    )
    optional = replace(pack, optionals=(("rh", "rh" in weights),))
    return Lowering(
        results, (optional, back), (("packed", packed), ("ticks", ticks), ("state", state)), kept=("ticks",)
    )


@op("LSTMCells", domain=DOMAIN, dtypes={}, bindings="forget added c0 -> c")
def lstm_cells(node: BoundNode) -> Kernel:
    """c[t] = forget[t] c[t - 1] + added[t]: an LSTM's cells from its gates. forget, added, c: [T, B, H]; c0: [B, H]."""
    shape = node.input(0).shape
    if len(shape) != 3:
        raise _declined(node, "[T, B, H]")
    _check(node, [shape, shape, shape[1:]], "float32 [T, B, H], [T, B, H], [B, H], none empty")
    size = shape[1] * shape[2]
    return kernel(
        "lstm_cells.wgsl", [TensorType(FLOAT32, shape)], consts={"T": shape[0], "N": size}, groups=ceil_div(size, 64)
    )


@op("AdamUpdate", domain=DOMAIN, dtypes={}, bindings="p grad mean square hyper -> new_p new_mean new_square")
def adam_update(node: BoundNode) -> Kernel:
    """p, its gradient's running mean and that of its square after a step of Adam. All of one shape but hyper [3]: rate,
    root, kept."""
    shape = node.input(0).shape
    _check(node, [shape] * 4 + [(3,)], "float32 of one shape, none empty, and float32[3]")
    tensor = node.input(0).type
    beta1, beta2 = float(node.attr("beta1")), float(node.attr("beta2"))
    consts = {
        "BETA1": beta1,
        "BETA2": beta2,
        "REST1": float(node.attr("rest1")),
        "REST2": float(node.attr("rest2")),
        "EPSILON": float(node.attr("epsilon")),
        "N": tensor.size,
    }
    return kernel("adam.wgsl", [tensor] * 3, consts=consts, groups=ceil_div(tensor.size, 64))


@op("MomentumUpdate", domain=DOMAIN, dtypes={}, bindings="p grad velocity hyper -> new_p new_velocity")
def momentum_update(node: BoundNode) -> Kernel:
    """p and its velocity after a step of gradient descent with momentum. All of one shape but hyper [1]: the rate."""
    shape = node.input(0).shape
    _check(node, [shape] * 3 + [(1,)], "float32 of one shape, none empty, and float32[1]")
    tensor = node.input(0).type
    consts = {name.upper(): float(node.attr(name)) for name in ("momentum", "decay", "direct", "along")}
    return kernel("momentum.wgsl", [tensor] * 2, consts=consts | {"N": tensor.size}, groups=ceil_div(tensor.size, 64))


@op("MaxPoolGradient", domain=DOMAIN, dtypes={}, bindings="dy indices -> dx")
def max_pool_gradient(node: BoundNode) -> Kernel:
    """dx = dy, each window's where the window has its maximum. dy, indices (int32, flat over x): [N, C, out...], dx:
    [N, C, in...]."""
    dy, indices, shape = node.input(0), node.input(1), tuple(node.attr("shape"))
    if (
        dy.dtype is not FLOAT32
        or indices.dtype is not INT32
        or dy.shape != indices.shape
        or not 3 <= dy.rank <= 5
        or 0 in dy.shape
    ):
        raise _declined(node, "float32 and int32 of one shape [N, C, ...] with one to three spatial axes")
    return _pool_gradient(node, shape, True)


@op("AveragePoolGradient", domain=DOMAIN, dtypes={}, bindings="dy share -> dx")
def average_pool_gradient(node: BoundNode) -> Kernel:
    """dx = dy times each window's share, summed over the windows that hold a place. dy: [N, C, out...], share: [1, 1,
    out...]."""
    dy, share, shape = node.input(0), node.input(1), tuple(node.attr("shape"))
    floats = dy.dtype is share.dtype is FLOAT32
    if not floats or not 3 <= dy.rank <= 5 or share.shape != (1, 1, *dy.shape[2:]) or 0 in dy.shape:
        raise _declined(node, "float32 [N, C, ...] and [1, 1, ...] with one to three spatial axes, none empty")
    return _pool_gradient(node, shape, False)


def _pool_gradient(node: BoundNode, shape: Shape, of_max: bool) -> Kernel:
    """Of an x of this shape. Axes that are not there have one place."""
    out = node.input(0).shape[2:]
    sizes = {
        "IN": shape[2:],
        "OUT": out,
        "K": node.attr("kernel_shape"),
        "S": node.attr("strides"),
        "D": node.attr("dilations"),
    }
    absent = 3 - len(out)
    axes = {
        f"{name}{a}": size for name, number in sizes.items() for a, size in enumerate((1,) * absent + tuple(number))
    }
    before = {f"H{a}": h for a, h in enumerate((0,) * absent + tuple(node.attr("before")))}
    return kernel("pool_gradient.wgsl", [TensorType(FLOAT32, shape)], consts=axes | before | {"MAX": of_max})


@op("DepthwiseWeightGradient", domain=DOMAIN, dtypes={}, bindings="image maps -> dw")
def depthwise_weight_gradient(node: BoundNode) -> Kernel:
    """dw = the gradient of a depthwise convolution's weights. image: [N, C, in, in], maps: [N, C, out, out], dw: [C, 1,
    taps, taps]."""
    image, maps = node.input(0), node.input(1)
    alike = image.rank == maps.rank == 4 and image.shape[:2] == maps.shape[:2]
    if not alike or any(o.dtype is not FLOAT32 or 0 in o.shape for o in (image, maps)):
        raise _declined(node, "float32 [N, C, H, W] of as many channels, none empty")
    batch, channels, *out = maps.shape
    sizes = {
        "IN": image.shape[2:],
        "OUT": out,
        "K": node.attr("kernel_shape"),
        "S": node.attr("strides"),
        "D": node.attr("dilations"),
        "H": tuple(node.attr("pads"))[:2],
    }
    consts = {f"{name}{a}": int(pair[a]) for name, pair in sizes.items() for a in range(2)} | {
        "N": batch,
        "C": channels,
    }
    taps = (consts["K0"], consts["K1"])
    return kernel(
        "depthwise_weight_gradient.wgsl",
        [TensorType(FLOAT32, (channels, 1, *taps))],
        consts=consts,
        groups=channels * taps[0] * taps[1],
        workgroup_size=WORKGROUP_SIZE,
        workgroup_nbytes=4 * WORKGROUP_SIZE,
    )


@op("ConvWeightGradient", domain=DOMAIN, dtypes={}, bindings="b a c? -> y")
def conv_weight_gradient(node: BoundNode) -> Lowering:
    """dw = the gradient of a convolution's weights. image: [N, g * C, in...], maps: [N, g * M, out...], dw: [g * M, C,
    taps...].

    A matrix product for each group: maps times the windows of the image (read in place), summed over images and their
    pixels.
    """
    image, maps, groups = node.input(0), node.input(1), int(node.attr("group"))
    fits = (
        3 <= image.rank <= 5
        and image.rank == maps.rank
        and image.shape[0] == maps.shape[0]
        and (image.shape[1] % groups == 0 and maps.shape[1] % groups == 0)
    )
    if not fits or any(o.dtype is not FLOAT32 or 0 in o.shape for o in (image, maps)):
        raise _declined(node, "float32 [N, C, ...] of as many images with one to three spatial axes, none empty")
    size, strides, dilations = (tuple(node.attr(name)) for name in ("kernel_shape", "strides", "dilations"))
    window = Window(image.shape[2:], maps.shape[2:], size, strides, dilations, tuple(node.attr("pads"))[: len(size)])
    channels, filters = image.shape[1] // groups, maps.shape[1] // groups
    pixels, plane = math.prod(window.small), math.prod(window.large)
    rows = Matrix(1, Strided((groups,), (filters * pixels,)), pixels, 1)
    columns = Matrix(0, Strided((groups,), (channels * plane,)), 1, 1)
    product = Product(
        groups,
        filters,
        channels * window.taps,
        image.shape[0] * pixels,
        rows,
        columns,
        window=window.consts(INPUT_AXES, OUTPUT_AXES),
        target=node.target,
        images=(maps.shape[1] * pixels, image.shape[1] * plane),
    )
    return lower_product(product, TensorType(FLOAT32, (groups * filters, channels, *size)))


@op("SoftmaxCrossEntropy", domain=DOMAIN, dtypes={}, bindings="z label weight -> losses dz")
def softmax_cross_entropy(node: BoundNode) -> Kernel:
    """losses = -log softmax(z)[label] weight, dz = the gradient of their sum. z, dz: [N, C], label (int32), weight,
    losses: [N]."""
    z, label, weight = (node.input(k) for k in range(3))
    rows, floats = z.shape[:1], z.dtype is weight.dtype is FLOAT32
    if (
        z.rank != 2
        or 0 in z.shape
        or not floats
        or label.dtype is not INT32
        or label.shape != rows
        or weight.shape != rows
    ):
        raise _declined(node, "float32 [N, C], int32 [N], float32 [N], none empty")
    team = rows_of(z.shape, (1,))
    consts = {"ROWS": rows[0], "N": z.shape[1], "TEAM": team.consts["TEAM"]}
    return kernel(
        "cross_entropy.wgsl",
        [TensorType(FLOAT32, rows), z.type],
        consts=consts,
        groups=team.groups,
        workgroup_size=team.workgroup_size,
        workgroup_nbytes=4 * team.workgroup_size,
    )
