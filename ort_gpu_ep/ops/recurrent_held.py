"""LSTM and GRU layers whose weights fit into the registers of a workgroup: all steps, and layers on top of each other,
in one dispatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.symbolic import hint
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import BoundNode, Const, Kernel, Lowering, Strided, kernel, op
from ort_gpu_ep.kernels.target import Choice, Target
from ort_gpu_ep.ops import recurrent_steps
from ort_gpu_ep.ops.contraction import Matrix, Product, lower_product
from ort_gpu_ep.ops.indexing import are_lengths
from ort_gpu_ep.ops.packed import UNPACKED_GAIN
from ort_gpu_ep.ops.recurrent_layer import (
    GRU,
    LSTM,
    ROUNDED,
    Cell,
    Sizes,
    check_given,
    output_types,
    problem_of,
    sizes_of,
    strides_of,
)
from ort_gpu_ep.shaders.inlining import inner_name

SHADER, PACKING = "recurrent_held.wgsl", "recurrent_held_weights.wgsl"

OTHER_REGISTERS = 56
"""Registers of a lane besides its weights."""

WHOLE, PRODUCT, GENERAL = "held", "held, after a product", "general"
"""Forms of a layer: weights in registers, with the input's or beside a matrix product of it; recurrent.wgsl, which
takes any."""

LANES, MAX_SLICES = 256, 8
"""Of a workgroup of the general form: WebGPU's guaranteed size. More parts of one sum cost more in adding them up than
they save."""

DECODING_OPS = 16
"""Instructions of a lane for a weight that it decodes: its place, its word, its scale."""

PER_LAYER = 5
"""Inputs of a stack for each layer, after x: W, R, B, initial h, initial c."""

record(
    SHADER,
    "recurrent_held",
    loop_bound=lambda k: 2 * k["T"] + k["LAYERS"],
    flops=lambda k: (
        2
        * k["T"]
        * k["B"]
        * k["DIRECTIONS"]
        * k["GATES"]
        * k["H"]
        * ((2 * k["LAYERS"] - 1) * k["H"] + (0 if k["PRE"] else k["I"]))
    ),
    steps=lambda k: k["T"],
    problems=[
        problem_of(op_type, hidden, WHOLE, PRODUCT, **attributes)
        for op_type, attributes in (("LSTM", {}), ("GRU", {"linear_before_reset": 1}))
        for hidden in (1, 8, 33)
    ],
)
record(PACKING, "movement")


@dataclass(frozen=True)
class Layer:
    """Where a layer's operands are among the inputs of the node; None: left out."""

    w: int
    r: int
    b: int | None
    h: int | None
    c: int | None


@dataclass(frozen=True)
class Shares:
    """How the lanes share what layers read, in vectors of four elements. inputs: of a row of x, 0 where a product takes
    it."""

    inputs: int
    state: int
    layers: int
    hidden: int

    @property
    def vectors(self) -> int:
        """That one lane reads in a step."""
        return -(-(max(self.inputs, self.state if self.layers > 1 else 0) + self.state) // 4)

    @property
    def workgroup_size(self) -> int:
        return 4 * self.hidden * self.layers

    def nbytes(self, quads: bool) -> int:
        """Of workgroup memory."""
        return 16 * (2 * (self.inputs + self.layers * self.state) + (0 if quads else self.workgroup_size))


def form_of(node: BoundNode, cell: Cell, sizes: Sizes, layers: int = 1, general: bool = True) -> Choice:
    """The form of a layer, or of a stack of them, with the smallest estimated time. general: whether that form fits the
    adapter."""
    times = {
        form: _estimate_ns(node.target, sizes, layers, form)
        for form in (WHOLE, PRODUCT)
        if _fits(node, cell, sizes, layers, form)
    }
    bits = node.input(2).decoded if layers == 1 else 0
    stepwise = recurrent_steps.estimates(node, cell, sizes) if layers == 1 else {}
    turns = reads_of_a_lane(sizes.hidden, sizes.hidden) * (2 if recurrent_steps.resets_first(node, cell) else 1)
    if layers == 1 and (general or bits or not (times or stepwise)):
        times[GENERAL] = general_ns(node.target, sizes, turns, bits)
    times |= {} if bits else stepwise
    if not times:
        raise UnsupportedNodeError(Code.LIMIT, f"{layers} layers of {sizes} do not fit into a workgroup together")
    steps, packed = 1 << hint(sizes.steps).bit_length(), f", {bits} bits" if bits else ""
    choice = node.target.choose(
        f"recurrent {cell.code} {sizes.inputs} {sizes.hidden} x {layers}, {sizes.directions} directions, {steps} "
        f"steps{packed}",
        times,
    )
    is_general = bits and choice.form == GENERAL and choice.because != "forced"
    if is_general and _written_out_ns(node.target, sizes, bits, turns, stepwise) < UNPACKED_GAIN * times[GENERAL]:
        raise UnsupportedNodeError(
            Code.COST, f"{node.op}: for {hint(sizes.steps)} steps, weights of {bits} bits are decoded first"
        )
    return choice


def _fits(node: BoundNode, cell: Cell, sizes: Sizes, layers: int, form: str) -> bool:
    limits, figures, shares = node.target.limits, node.target.figures, _shares(sizes, layers, form)
    registers = 16 * shares.vectors + OTHER_REGISTERS
    return (
        limits.allow(SHADER)
        and limits.allow(PACKING)
        and _is_plain(node, cell)
        and registers <= figures.lane_registers
        and registers * shares.workgroup_size <= figures.registers
        and shares.inputs <= shares.workgroup_size <= limits.max_invocations
        and shares.nbytes(_quads(node.target)) <= limits.max_workgroup_nbytes
    )


def _is_plain(node: BoundNode, cell: Cell) -> bool:
    """Whether the cell is the textbook's; a GRU: with the reset after the product."""
    attributes = node.node.attributes
    usual = tuple(name.lower() for name in cell.activations)
    activations = tuple(str(name).lower() for name in attributes.get("activations") or ())  # type: ignore[union-attr]
    return (
        (cell is LSTM or (cell is GRU and bool(node.attr("linear_before_reset"))))
        and activations in ((), usual, 2 * usual)
        and any(map(node.wants, range(3)))
        and node.attr("clip") is None
        and not node.attr("input_forget")
        and not node.attr(ROUNDED)
        and (node.node.domain != "" or not node.has(7))
    )


def _quads(target: Target) -> bool:
    return target.limits.allow(SHADER, "subgroup")


def _shares(sizes: Sizes, layers: int, form: str) -> Shares:
    return Shares(0 if form == PRODUCT else -(-int(sizes.inputs) // 4), -(-sizes.hidden // 4), layers, sizes.hidden)


def _estimate_ns(target: Target, sizes: Sizes, layers: int, form: str) -> float:
    """A step: the exchange, the activations and the barrier, then the vectors that its subgroups read."""
    by, shares = target.figures, _shares(sizes, layers, form)
    step_ns = by.held_step_ns + by.held_vector_ns * shares.vectors * shares.workgroup_size / 32
    product_ns = by.dispatch_ns + by.input_ns if form == PRODUCT else 0
    return float(_rounds(target, sizes) * (hint(sizes.steps) + layers - 1) * step_ns + product_ns)


def reads_of_a_lane(hidden: int, count: int) -> int:
    """Of each gate's weights in a step: a lane has a sum of `count` products for a hidden unit, or shares it with
    others."""
    width = min(hidden, LANES)
    return -(-hidden // width) * -(-count // max(1, min(LANES // width, MAX_SLICES, count // 4)))


def general_ns(target: Target, sizes: Sizes, turns: int, bits: int = 0) -> float:
    """Two barriers a step, and the recurrent weights, or what they are decoded from; the input's product before. turns:
    reads_of_a_lane."""
    by, weights = target.figures, sizes.gates * sizes.hidden * sizes.hidden
    nbytes = weights * (bits or 32) / 8
    weights_ns = max(turns * by.general_turn_ns, nbytes * by.general_byte_ns)
    weights_ns += 0 if nbytes <= by.cache_nbytes else nbytes / by.uncached_bytes_per_ns
    if bits:
        weights_ns = max(weights_ns, weights * DECODING_OPS / by.fma_per_ns)
    return float(
        _rounds(target, sizes) * hint(sizes.steps) * (by.general_step_ns + weights_ns) + by.dispatch_ns + by.input_ns
    )


def _written_out_ns(target: Target, sizes: Sizes, bits: int, turns: int, stepwise: Mapping[str, float]) -> float:
    """A dispatch that decodes the recurrent weights and one that brings them into the order of the steps, if not once;
    and the steps."""
    steps_ns = min(general_ns(target, sizes, turns), *stepwise.values())
    if target.limits.keeps_dense:
        return steps_ns
    by, weights = target.figures, sizes.directions * sizes.gates * sizes.hidden * sizes.hidden
    return steps_ns + 2 * by.dispatch_ns + weights * (bits / 8 + 3 * 4) * by.byte_ns


def _rounds(target: Target, sizes: Sizes) -> int:
    return int(-(-sizes.directions * hint(sizes.batch) // target.figures.units))


def held(node: BoundNode, cell: Cell, sizes: Sizes, layers: tuple[Layer, ...], choice: Choice) -> Lowering:
    """The weights of each layer as lanes read them, the product of the first layer's input if it is asked for, all
    steps.

    Lanes read each of their weights once: what a decoder makes of codes goes from there into registers, without a
    kernel between.
    """
    form = choice.form
    shares = _shares(sizes, len(layers), form)
    product = product_of(node, sizes) if form == PRODUCT else Lowering(())
    packing = {f"packed{k}": _packed(node, cell, sizes, shares, layer, k) for k, layer in enumerate(layers)}
    inlined = tuple(
        (name, packing.pop(name))
        for k, layer in enumerate(layers)
        if any(node.input(i).decoded for i in (layer.w, layer.r)) and (name := f"packed{k}")
    )
    temps = tuple((name, packed.outputs[0]) for name, packed in packing.items())
    steps = replace(_steps(node, cell, sizes, shares, layers, dict(inlined)), choice=choice, inlined=inlined)
    outputs = tuple(
        t if node.wants(i) else None for i, t in enumerate(output_types(node, sizes)[: len(node.node.outputs)])
    )
    return Lowering(outputs, (*packing.values(), *product.kernels, steps), (*temps, *product.temps))


def product_of(node: BoundNode, sizes: Sizes) -> Lowering:
    """pre [steps * batch, directions * gates * hidden] = x W^T."""
    m, n, k = sizes.steps * sizes.batch, sizes.directions * sizes.gates * sizes.hidden, sizes.inputs
    whole = Strided((1,), (0,))
    product = Product(1, m, n, k, Matrix(0, whole, k, 1), Matrix(1, whole, k, 1), target=node.target)
    return lower_product(product, TensorType(FLOAT32, (m, n)), "pre")


def _packed(node: BoundNode, cell: Cell, sizes: Sizes, shares: Shares, layer: Layer, index: int) -> Kernel:
    inputs, vectors = int(node.input(layer.w).shape[2]), shares.state if index else shares.inputs
    consts: dict[str, Const] = {
        "H": sizes.hidden,
        "HV": shares.state,
        "VECS": shares.vectors,
        "GATES": sizes.gates,
        "CELL": cell.code,
        "INPUTS": inputs,
        "IN_VECS": vectors,
        "DIRECTIONS": sizes.directions,
    }
    reads = {
        name: i for name, i in (("w", layer.w if vectors else None), ("r", layer.r), ("b", layer.b)) if i is not None
    }
    packed = TensorType(FLOAT32, (sizes.directions * sizes.hidden * (64 * shares.vectors + 4),))
    packing = kernel(PACKING, [packed], consts=consts, reads=reads, writes={"packed": f"packed{index}"})
    return replace(packing, optionals=(("w", "w" in reads), ("b", "b" in reads)))


def _steps(
    node: BoundNode,
    cell: Cell,
    sizes: Sizes,
    shares: Shares,
    layers: tuple[Layer, ...],
    inlined: Mapping[str, Kernel],
) -> Kernel:
    quads, outputs = _quads(node.target), {name: i for i, name in enumerate(("y", "yh", "yc")) if node.wants(i)}
    reads: dict[str, int | str] = {"x": 0} if shares.inputs else {"pre": "pre"}
    for k, layer in enumerate(layers):
        name = f"packed{k}"
        own = inlined[name].reads or () if name in inlined else None
        reads |= {name: name} if own is None else {inner_name(name, binding): source for binding, source in own}
        reads |= {f"{name}{k}": i for name, i in (("h", layer.h), ("c", layer.c)) if i is not None}
    is_single = node.node.domain == ""
    if is_single and node.has(4):
        reads["seq"] = 4
    consts: dict[str, Const] = {
        "H": sizes.hidden,
        "T": sizes.steps,
        "B": sizes.batch,
        "I": int(sizes.inputs),
        "DIRECTIONS": sizes.directions,
        "LAYERS": len(layers),
        "GATES": sizes.gates,
        "CELL": cell.code,
        "VECS": shares.vectors,
        "IV": shares.inputs,
        "HV": shares.state,
        "PRE": not shares.inputs,
        "QUADS": quads,
        "SEQ": "seq" in reads,
        "STATES": layers[0].h is not None,
        "CELLS": layers[0].c is not None,
        "BACKWARD": node.attr("direction") == "reverse",
        **{f"WANT_{n.upper()}": n in outputs for n in ("y", "yh", "yc")},
        **strides_of(node, sizes),
    }
    types = output_types(node, sizes)
    return kernel(
        SHADER,
        [types[i] for i in outputs.values()],
        consts=consts,
        groups=sizes.directions * sizes.batch,
        workgroup_size=shares.workgroup_size,
        workgroup_nbytes=shares.nbytes(quads),
        reads=reads,
        writes=outputs,
        vectors=[f"packed{k}" for k in range(len(layers))],
        features=["subgroup"] if quads else [],
        reports="seq" in reads and not are_lengths(node.input(4), sizes.steps),
    )


@op("RecurrentStack", domain="ort_gpu_ep", dtypes={"T": (FLOAT32,)}, bindings="x w r b? h? c? more... -> y yh yc")
def recurrent_stack(node: BoundNode) -> Lowering:
    """LSTM or GRU layers on top of each other, each a step behind the one below, in one dispatch.

    x: [T, B, I], then for each layer W, R, B, initial h, initial c; y: [T, 1, B, H] of the last layer, yh, yc: [1, B,
    H].
    """
    cell = LSTM if node.attr("cell") == "LSTM" else GRU
    layers = tuple(_layer(node, k) for k in range(1, len(node.inputs), PER_LAYER))
    sizes = sizes_of(node, cell)
    for layer in layers[1:]:
        shapes = node.input(layer.w).shape, node.input(layer.r).shape
        if shapes != ((1, cell.gates * sizes.hidden, sizes.hidden), (1, cell.gates * sizes.hidden, sizes.hidden)):
            raise UnsupportedNodeError(
                Code.ATTRIBUTE, f"a layer of W and R {shapes} on top of one of {sizes.hidden} units"
            )
    if any((a.h is None, a.c is None) != (layers[0].h is None, layers[0].c is None) for a in layers):
        raise UnsupportedNodeError(Code.ATTRIBUTE, "layers with and without initial states")
    state = output_types(node, sizes)[1].shape
    check_given(node, {position: state for layer in layers for position in (layer.h, layer.c) if position is not None})
    return held(node, cell, sizes, layers, form_of(node, cell, sizes, len(layers)))


def _layer(node: BoundNode, first: int) -> Layer:
    places = [k if node.has(k) else None for k in range(first, first + PER_LAYER)]
    return Layer(first, first + 1, *places[2:])
