"""Recurrent layers whose weights are packed: each form reads W and R where they are, against ONNX Runtime's CPU with
dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gpu_ep.ir.graph import Graph, from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.registry import Limits
from ort_gpu_ep.ops.recurrent_held import GENERAL, PRODUCT, WHOLE
from ort_gpu_ep.partitioner import rewrite
from ort_gpu_ep.partitioner.passes import fuse
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from ort_gpu_ep.weights.formats import pack_codes
from ort_gpu_ep.weights.functions import CODEBOOK, DOMAIN, functions
from tests.compressed.test_compressed_sessions import TROUBLES, device_nbytes
from tests.compressed.test_packed_products import close
from tests.direct import run_direct
from tests.ops.single_node import on_cpu
from tests.plugin.cases import open_session

RNG = np.random.default_rng(11)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LIMITS = Limits(frozenset(("subgroup",)), max_invocations=1024, max_buffers_per_stage=32)


def packed(name: str, kind: str, shape: tuple[int, ...]) -> tuple[onnx.NodeProto, list[onnx.TensorProto], Any]:
    """The decoder of a weight, its constants, and the dense weight. kind: a codebook; int8 or uint4, with one scale or
    one a row."""
    if kind in CODEBOOK:
        bits = CODEBOOK[kind]
        codes, values = RNG.integers(0, 1 << bits, shape), (RNG.normal(size=1 << bits) / 4).astype("f")
        held = {f"{name}_codes": pack_codes(codes, bits), f"{name}_table": values}
        node = helper.make_node(
            kind, list(held), [name], domain=DOMAIN, shape=shape, size=[codes.size], perm=list(range(len(shape)))
        )
        return node, [numpy_helper.from_array(a, n) for n, a in held.items()], values[codes]
    dtype, _, rows = kind.partition(" ")
    scales = (shape[1],) if rows else ()
    low, high = (-128, 128) if dtype == "int8" else (0, 16)
    codes, zero = RNG.integers(low, high, shape), RNG.integers(low, high, scales) // 4
    scale = (RNG.uniform(0.5, 1.5, scales) / (high - low)).astype("f")
    onnx_type = {"int8": onnx.TensorProto.INT8, "uint4": onnx.TensorProto.UINT4}[dtype]
    made = [
        helper.make_tensor(f"{name}_codes", onnx_type, shape, codes.reshape(-1)),
        numpy_helper.from_array(scale, f"{name}_scale"),
        helper.make_tensor(f"{name}_zero", onnx_type, scales, np.reshape(zero, -1)),
    ]
    node = helper.make_node("DequantizeLinear", [tensor.name for tensor in made], [name], axis=1)
    along = (slice(None), None) if rows else ()
    return node, made, ((codes - zero[along]) * scale[along]).astype("f")


def layers_model(
    op: str, kinds: list[tuple[str, str]], x: tuple[int, int, int], hidden: int, **extra: Any
) -> tuple[onnx.ModelProto, onnx.ModelProto, Any]:
    """Layers on top of each other, of (W, R) of these kinds (empty: dense); the same with dense weights; x.

    extra: attributes, and arrays of b, seq and h0 of a layer alone; others have a bias.
    """
    given = {name: extra.pop(name) for name in ("b", "seq", "h0") if name in extra}
    directions = 2 if extra.get("direction") == "bidirectional" else 1
    nodes, decoders, held, dense, value = [], [], [], [], "x"
    held += [numpy_helper.from_array(a, n) for n, a in given.items()]
    held.append(numpy_helper.from_array(np.array([1]), "axes"))
    for k, kinds_of_layer in enumerate(kinds):
        names = []
        for kind, letter, width in zip(kinds_of_layer, "wr", (x[2] if k == 0 else hidden, hidden), strict=True):
            names.append(f"{letter}{k}")
            shape = (directions, GATES[op] * hidden, width)
            node, constants, array = packed(names[-1], kind or "int8", shape)
            decoders += [node] if kind else []
            held += constants if kind else [numpy_helper.from_array(array, names[-1])]
            dense += [numpy_helper.from_array(array, names[-1])] if kind else []
        if len(kinds) > 1:
            held.append(numpy_helper.from_array(normal(directions, 2 * GATES[op] * hidden), f"b{k}"))
        names += [name if name in given else "" for name in ("b", "seq", "h0")] if len(kinds) == 1 else [f"b{k}"]
        last = k == len(kinds) - 1
        nodes.append(
            helper.make_node(op, [value, *names], ["y", "yh"] if last else [f"s{k}"], hidden_size=hidden, **extra)
        )
        if not last:
            value = f"v{k}"
            nodes.append(helper.make_node("Squeeze", [f"s{k}", "axes"], [value]))
    used = sorted({kind for pair in kinds for kind in pair if kind in CODEBOOK})

    def model(decoders: list[onnx.NodeProto], constants: list[onnx.TensorProto]) -> onnx.ModelProto:
        graph = helper.make_graph(
            [*decoders, *nodes],
            "g",
            [helper.make_tensor_value_info("x", 1, x)],
            [helper.make_empty_tensor_value_info(o) for o in ("y", "yh")],
            [*held, *constants],
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", 21), *([helper.make_opsetid(DOMAIN, 1)] if used else [])],
            ir_version=10,
            functions=functions(used, 21) if used else [],
        )

    return model(decoders, []), model([], dense), {"x": RNG.normal(size=x).astype("f")}


def normal(*shape: int) -> Any:
    return (RNG.normal(size=shape) / 4).astype("f")


CASES: dict[str, tuple[str, tuple[int, int, int], int, dict[str, Any]]] = {
    "lstm": ("LSTM", (7, 2, 10), 24, {"b": normal(1, 192)}),
    "lstm, two directions": ("LSTM", (5, 1, 7), 13, {"direction": "bidirectional"}),
    "lstm, short rows": (
        "LSTM",
        (5, 2, 16),
        16,
        {"b": normal(1, 128), "seq": np.array([5, 2], np.int32), "h0": normal(1, 2, 16), "direction": "reverse"},
    ),
    "gru": ("GRU", (6, 2, 6), 20, {"b": normal(1, 120), "linear_before_reset": 1}),
    "gru, reset first": ("GRU", (6, 2, 6), 20, {"b": normal(1, 120)}),
    "rnn": ("RNN", (6, 3, 5), 33, {"activations": ["Relu"]}),
}
KINDS = [("int8", "int8"), ("int8 rows", "uint4 rows"), ("Codebook5", "Codebook3"), ("", "int8"), ("Codebook8", "")]
IN_FORMS = [
    pytest.param(case, kinds, form, marks=pytest.mark.nightly if case != "lstm" and kinds == KINDS[2] else [])
    for case in CASES
    for kinds in (KINDS if case == "lstm" else KINDS[1:3])
    for form in (WHOLE, PRODUCT, GENERAL)
    if form == GENERAL or case not in ("gru, reset first", "rnn")
]
"""Registers hold no other cells than the textbook's."""


@pytest.mark.parametrize(("case", "kinds", "form"), IN_FORMS, ids=str)
def test_every_form_reads_them_in_place(case: str, kinds: tuple[str, str], form: str) -> None:
    op, x, hidden, extra = CASES[case]
    model, dense, feeds = layers_model(op, [kinds], x, hidden, **extra)
    seen: list[Graph] = []

    def watched(*arguments: Any, **named: Any) -> Graph:
        seen.append(rewrite(*arguments, **named))
        return seen[-1]

    with forced(form):
        got = run_direct(model, feeds, watched)
    for ours, wanted in zip(got, on_cpu(dense, feeds), strict=True):
        close(ours, wanted)
    assert [node.op for node in seen[-1].nodes] == [f"Packed{op}"]


@pytest.mark.parametrize("form", [WHOLE, PRODUCT])
@pytest.mark.parametrize(
    ("op", "kinds"),
    [
        ("LSTM", [("int8", "int8"), ("int8", "int8")]),
        ("GRU", [("Codebook5", "Codebook5"), ("", ""), ("int8", "uint4 rows")]),
    ],
)
def test_layers_on_top_of_each_other_are_one_node(op: str, kinds: list[tuple[str, str]], form: str) -> None:
    extra = {"linear_before_reset": 1} if op == "GRU" else {}
    model, dense, feeds = layers_model(op, kinds, (6, 2, 5), 7, **extra)
    fused = fuse(from_onnx(model), {"x": TensorType(FLOAT32, (6, 2, 5))}, LIMITS)
    assert [node.op for node in fused.nodes] == ["PackedRecurrentStack"]
    with forced(form):
        for ours, wanted in zip(run_direct(model, feeds, rewrite), on_cpu(dense, feeds), strict=True):
            close(ours, wanted)


def dispatched(model: onnx.ModelProto, x: tuple[int, int, int]) -> list[str]:
    """The shaders of a run."""
    plan = make_plan(from_onnx(model), {"x": TensorType(FLOAT32, x)}, LIMITS, rewrite)
    return [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)]


def test_registers_are_filled_from_codes() -> None:
    """No kernel decodes before, none brings weights into another order."""
    x = (5, 1, 16)
    assert dispatched(layers_model("LSTM", [("int8", "int8")], x, 32, b=normal(1, 256))[0], x) == [
        "recurrent_held.wgsl"
    ]
    assert dispatched(layers_model("LSTM", [("int8", "Codebook5")] * 2, x, 16)[0], x) == ["recurrent_held.wgsl"]


@pytest.mark.parametrize(("steps", "in_place"), [(1, True), (500, False)])
def test_few_steps_decode_and_many_read_what_is_written_out(steps: int, in_place: bool) -> None:
    """By the estimate of an H200: each step decodes all of R, or one dispatch does."""
    x = (steps, 1, 16)
    shaders = dispatched(layers_model("LSTM", [("int8", "int8")], x, 192, b=normal(1, 1536))[0], x)
    assert shaders[-1] == ("recurrent.wgsl" if in_place else "recurrent_steps.wgsl")
    assert [shader for shader in shaders if shader in ("dequantize.wgsl", "recurrent_weights.wgsl")] == (
        [] if in_place else ["dequantize.wgsl", "recurrent_weights.wgsl"]
    )


@pytest.mark.parametrize("isolation", ["none", "process"])
@pytest.mark.parametrize(("kind", "hidden"), [("int8", 32), ("Codebook5", 200)])
def test_the_device_holds_codes_alone(kind: str, hidden: int, isolation: str) -> None:
    model, dense, feeds = layers_model("LSTM", [(kind, kind)], (1, 2, 48), hidden)
    opened = open_session(model.SerializeToString(), verify=1, isolation=isolation)
    for ours, wanted in zip(opened.session.run(None, feeds), on_cpu(dense, feeds), strict=True):
        close(ours, wanted)
    assert not [e for e in opened.state.events if e.kind in TROUBLES], opened.state.events
    codes = 4 * hidden * (48 + hidden) * (8 if kind == "int8" else 5) // 8
    assert codes <= device_nbytes(opened) <= 1.1 * codes + 2048  # buffers are a little larger
    (part,) = opened.state.reports[-1].partitions
    assert not part.unpacked
    assert codes <= part.packed_nbytes <= codes + 300
    assert part.dense_nbytes == 4 * 4 * hidden * (48 + hidden)
