"""Recurrent layers: a sequence in one dispatch (recurrent.wgsl, recurrent_held.wgsl), or a step (recurrent_steps.wgsl);
packed weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from ort_gpu_ep.health.probe import RECURRENT, Trial, agree, graph_of, probe, reference, solve, solves
from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.records import RECORDS
from ort_gpu_ep.kernels.registry import INLINED
from ort_gpu_ep.ops.in_place import PARTS, prefix
from ort_gpu_ep.ops.recurrent_held import GENERAL, PACKING, PRODUCT, SHADER, WHOLE
from ort_gpu_ep.ops.recurrent_steps import SHADER as STEPS

GENERAL_LAYERS = RECORDS["recurrent.wgsl"].problems


@probe("recurrent layers", "kernels", disables=("recurrent.wgsl", "recurrent_weights.wgsl"), problems=GENERAL_LAYERS)
def layers(trial: Trial) -> str:
    """Hidden sizes below, at and above the number of lanes a slice has."""
    for ((problem, form),) in trial.repeated([(p, *p.forms) for p in GENERAL_LAYERS], of=4, turn=1):
        with forced(form):
            solve(trial, problem)
    _rounded(trial)
    return f"{len(GENERAL_LAYERS)} layers"


def _rounded(trial: Trial) -> None:
    """A step of DynamicQuantizeLSTM: x is codes of themselves, rows of the state have a range each."""
    hidden, scale = 12, np.full(1, 1 / 2048, np.float32)
    w, r = (trial.integers(-128, 128, 1, size, 4 * hidden, dtype="int8") for size in (3, hidden))
    x, h, zero = (
        trial.integers(0, 256, 1, 2, 3).astype(np.float32) / 255,
        trial.normal(1, 2, hidden),
        np.zeros(1, np.int8),
    )
    x[..., 0] = 1
    inputs = [x, w, r, None, None, h, None, None, scale, zero, scale, zero]
    got = trial.node("DynamicQuantizeLSTM", 1, inputs, domain="com.microsoft", hidden_size=hidden)[0]
    low, high = (
        np.clip(of(h, axis=2, keepdims=True), *ends) for of, ends in ((np.min, (None, 0)), (np.max, (0, None)))
    )
    step = (high - low) / np.float32(255)
    zeros = np.rint(-low / step)
    rounded = (np.clip(np.rint(h / step) + zeros, 0, 255) - zeros) * step
    dense = [(m.astype(np.float32) * scale).transpose(0, 2, 1) for m in (w, r)]
    agree(
        "rounded states", got, reference("LSTM", 14, [x, *dense, None, None, rounded], 1, hidden_size=hidden)[0], 1e-4
    )


solves(
    "recurrent layers in registers",
    *RECORDS[SHADER].problems,
    of=4,
    about="Units that fill a subgroup and that don't, vectors with and without a rest, the input's share from the kernel or from "
    "a product.",
    disables=(SHADER, PACKING),
    ops=RECURRENT,
)
solves(
    "recurrent layers, a dispatch a step",
    *RECORDS[STEPS].problems,
    of=4,
    turn=1,
    about="Hidden units that teams and vectors fill, and that they don't; a GRU's steps in two halves.",
    disables=(STEPS,),
    ops=RECURRENT,
)


@probe(
    "recurrent layers of packed weights",
    "packed elements",
    disables=(INLINED,),
    fault=(r"_in_scale_at\(at\);", "_in_scale_at(at) * 1.1;"),
)
def packed(trial: Trial) -> str:
    """Bytes of the input's weights and of the state's, decoded into registers, and in each step."""
    layers: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
        ("LSTM", 4, 12, {}),
        ("GRU", 3, 21, {"linear_before_reset": 1}),
    )
    for form, (op, gates, hidden, attributes) in trial.some((WHOLE, PRODUCT, GENERAL), layers, of=3):
        with forced(form):
            for _ in range(trial.rounds):
                _packed_layer(trial, op, gates, hidden, **attributes)
    return "2 ops, 3 forms"


def _packed_layer(trial: Trial, op: str, gates: int, hidden: int, **attributes: Any) -> None:
    """W and R as int8, with a scale and a zero point for all."""
    x, b = trial.normal(5, 2, 3), trial.normal(1, 2 * gates * hidden)
    constants, dense = {"b": b}, []
    described: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": "forward",
        "layout": 0,
        "op_version": 14,
        **attributes,
    }
    for k, width in enumerate((3, hidden)):
        codes, zero = (
            trial.integers(-128, 128, 1, gates * hidden, width, dtype="int8"),
            trial.integers(-9, 9, 1, dtype="int8"),
        )
        scale = abs(trial.normal(1)) / np.float32(300) + np.float32(0.001)
        constants |= {f"c{k}": codes, f"s{k}": scale, f"z{k}": zero}
        dense.append((codes.astype(np.float32) - zero) * scale)
        described |= {
            f"{prefix(k)}_{name}": value
            for name, value in {
                "input": 1 + PARTS * k,
                "axis": 1,
                "block": 0,
                "bits": 0,
                "sparse": 0,
                "shape": (),
                "perm": (),
            }.items()
        }
    node = Node(
        f"Packed{op}",
        ("x", "c0", "s0", "z0", "c1", "s1", "z1", "b"),
        ("y",),
        domain="ort_gpu_ep",
        version=1,
        attributes=described,
    )
    (got,) = trial.graph(graph_of({"x": x}, constants, node), [x])
    agree(
        f"{op} of {hidden} packed", got, reference(op, 14, [x, *dense, b], 2, hidden_size=hidden, **attributes)[0], 1e-4
    )
