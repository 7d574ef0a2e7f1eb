"""LSTM, GRU, RNN against ONNX Runtime's CPU kernels: what ONNX's own node cases lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ort_gpu_ep.errors import Code, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import FLOAT32, TensorType
from ort_gpu_ep.kernels.registry import DEFAULT_LIMITS, Limits
from ort_gpu_ep.scheduler.plan import Plan
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
INPUTS = ("x", "w", "r", "b", "seq", "h0", "c0", "p")
TOLERANCE = 2e-6


def case(
    name: str,
    op: str,
    steps: int = 5,
    batch: int = 2,
    inputs: int = 3,
    hidden: int = 7,
    given: str = "b",
    want: str = "y yh yc",
    lengths: Any = None,
    scale: float = 1.0,
    opset: int = 14,
    **attributes: Any,
) -> Any:
    """given: optional inputs. want: outputs. lengths: sequence_lens. scale: of the input, large ones saturate the
    gates."""
    sizes = {"steps": steps, "batch": batch, "inputs": inputs, "hidden": hidden}
    return pytest.param(op, sizes, given.split(), want.split(), lengths, scale, opset, attributes, id=f"{op}-{name}")


CASES = [
    case("defaults", "RNN"),
    case("defaults", "GRU"),
    case("defaults", "LSTM"),
    case("no-bias", "LSTM", given=""),
    case("no-bias", "GRU", given=""),
    case("no-bias", "RNN", given=""),
    *(case("one-everything", op, steps=1, batch=1, inputs=1, hidden=1) for op in GATES),
    case("opset7", "LSTM", opset=7),
    case("opset7", "GRU", opset=7),
    case("opset7", "RNN", opset=7),
    case("states", "LSTM", given="b h0 c0"),
    case("states", "GRU", given="b h0"),
    case("states", "RNN", given="h0"),
    case("c0-only", "LSTM", given="c0"),
    *(case("bidirectional", op, given="b h0", direction="bidirectional", hidden=37) for op in GATES),
    *(case("reverse", op, given="b h0", direction="reverse") for op in GATES),
    *(
        case(f"lengths-{direction}", op, batch=4, given="b seq h0", lengths=[5, 2, 0, 3], direction=direction)
        for op in GATES
        for direction in ("forward", "reverse", "bidirectional")
    ),
    case("peepholes", "LSTM", given="b c0 p"),
    case("all-inputs", "LSTM", given="b seq h0 c0 p", lengths=[4, 5], direction="bidirectional"),
    *(
        case(
            "linear-before-reset", "GRU", hidden=hidden, given="b h0", linear_before_reset=1, direction="bidirectional"
        )
        for hidden in (5, 67)
    ),
    case("linear-no-bias", "GRU", given="h0", linear_before_reset=1),
    *(case("prime-hidden", op, hidden=131, inputs=67, given="b h0", scale=0.5) for op in GATES),
    *(case("over-256", op, steps=3, hidden=257, inputs=5, given="b h0", scale=0.5) for op in GATES),
    case("wide", "LSTM", steps=2, batch=1, hidden=1024, inputs=17, scale=0.5),
    case("wide", "GRU", steps=2, batch=1, hidden=1024, inputs=17, scale=0.5),
    case("65536-rows", "RNN", steps=1, batch=66_000, inputs=1, hidden=2, want="yh"),
    case("large-product", "LSTM", steps=130, batch=3, inputs=33, hidden=64, scale=0.5),
    case("many-steps", "LSTM", steps=128, batch=1, inputs=9, hidden=32),
    case("many-steps", "GRU", steps=128, batch=1, inputs=9, hidden=32),
    *(case("saturated", op, scale=300.0) for op in GATES),
    *(case(f"wants-{want.replace(' ', '-')}", "LSTM", want=want) for want in ("y", "yh", "yc", "y yc", "yh yc")),
    case("wants-yh", "GRU", want="yh"),
    case("wants-y", "RNN", want="y"),
    *(case("clip", op, clip=0.3, scale=3.0, given="b h0") for op in GATES),
    case("clip-linear", "GRU", clip=0.3, scale=3.0, linear_before_reset=1),
    case("input-forget", "LSTM", input_forget=1, given="b c0"),
    *(
        case(name, "RNN", activations=[name], **parameters)
        for name, parameters in (
            ("Sigmoid", {}),
            ("Relu", {}),
            ("Softsign", {}),
            ("Softplus", {}),
            ("Elu", {"activation_alpha": [0.75]}),
            ("LeakyRelu", {"activation_alpha": [0.25]}),
            ("LeakyRelu", {}),
            ("ThresholdedRelu", {"activation_alpha": [0.125]}),
            ("ScaledTanh", {"activation_alpha": [1.5], "activation_beta": [0.5]}),
            ("HardSigmoid", {"activation_alpha": [0.3], "activation_beta": [0.4]}),
            ("HardSigmoid", {}),
            ("Affine", {"activation_alpha": [0.5], "activation_beta": [0.25]}),
            ("Affine", {"activation_alpha": [0.5]}),
            ("ThresholdedRelu", {}),
            ("ScaledTanh", {}),
        )
    ),
    case("parameters-left-out", "GRU", activations=["ScaledTanh", "ThresholdedRelu"], activation_alpha=[0.5]),
    case(
        "parameters-left-out",
        "LSTM",
        activations=["Sigmoid", "ThresholdedRelu", "Affine"] * 2,
        activation_alpha=[0.25, 1.5],
        direction="bidirectional",
    ),
    case(
        "activations",
        "LSTM",
        activations=["HardSigmoid", "Tanh", "LeakyRelu"],
        activation_alpha=[0.3, 0.125],
        activation_beta=[0.4],
    ),
    case("activations", "GRU", activations=["HardSigmoid", "Relu", "Sigmoid", "Tanh"], direction="bidirectional"),
    case("two-activations", "RNN", activations=["Relu", "Tanh"]),
    case(
        "activations-bidirectional",
        "RNN",
        activations=["Relu", "LeakyRelu"],
        activation_alpha=[0.25],
        direction="bidirectional",
    ),
]


def feeds_of(
    op: str, sizes: dict[str, int], given: list[str], lengths: Any, scale: float, directions: int
) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    t, b, i, h = sizes.values()
    gates = GATES[op]
    shapes = {
        "x": (t, b, i),
        "w": (directions, gates * h, i),
        "r": (directions, gates * h, h),
        "b": (directions, 2 * gates * h),
        "h0": (directions, b, h),
        "c0": (directions, b, h),
        "p": (directions, 3 * h),
    }
    feeds = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items() if k in ("x", "w", "r", *given)}
    feeds["x"] *= np.float32(scale)
    feeds["w"] /= np.float32(np.sqrt(i))
    feeds["r"] /= np.float32(np.sqrt(h))
    if lengths is not None:
        feeds["seq"] = np.array(lengths, np.int32)
    return feeds


def model_of(
    op: str, feeds: dict[str, Any], want: list[str], opset: int, attributes: dict[str, Any]
) -> onnx.ModelProto:
    names = [n if n in feeds else "" for n in INPUTS]
    outputs = [n if n in want else "" for n in (("y", "yh", "yc") if op == "LSTM" else ("y", "yh"))]
    node = helper.make_node(
        op, names[: max(INPUTS.index(n) for n in feeds) + 1], outputs, hidden_size=feeds["r"].shape[2], **attributes
    )
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.INT32 if n == "seq" else TensorProto.FLOAT, feeds[n].shape)
        for n in feeds
    ]
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs if n]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def on_cpu(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    return list(
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    )


def assert_close(got: list[Any], wanted: list[Any]) -> None:
    for g, w in zip(got, wanted, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        error = np.linalg.norm(g.astype(np.float64) - w) / max(np.linalg.norm(w), 1e-30)
        assert error < TOLERANCE, f"relative L2 error {error}"


@pytest.mark.parametrize(("op", "sizes", "given", "want", "lengths", "scale", "opset", "attributes"), CASES)
def test_against_ort(
    op: str, sizes: Any, given: Any, want: Any, lengths: Any, scale: float, opset: int, attributes: Any
) -> None:
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    feeds = feeds_of(op, sizes, given, lengths, scale, directions)
    model = model_of(op, feeds, want, opset, attributes)
    assert_close(run_direct(model, feeds), on_cpu(model, feeds))


@pytest.mark.parametrize("op", GATES)
def test_layout_1_is_layout_0_transposed(op: str) -> None:
    sizes = {"steps": 5, "batch": 3, "inputs": 4, "hidden": 6}
    feeds = feeds_of(op, sizes, ["b", "h0"], [5, 2, 4], 1.0, 2)
    want = ["y", "yh", "yc"]
    wanted = on_cpu(model_of(op, feeds, want, 14, {"direction": "bidirectional"}), feeds)
    batchwise = {**feeds, "x": feeds["x"].swapaxes(0, 1), "h0": feeds["h0"].swapaxes(0, 1)}
    got = run_direct(model_of(op, batchwise, want, 14, {"direction": "bidirectional", "layout": 1}), batchwise)
    assert_close(got, [wanted[0].transpose(2, 0, 1, 3), *(w.swapaxes(0, 1) for w in wanted[1:])])


@pytest.mark.parametrize("op", GATES)
def test_float16_is_stored_only(op: str) -> None:
    feeds = feeds_of(op, {"steps": 9, "batch": 2, "inputs": 5, "hidden": 7}, ["b", "h0"], None, 1.0, 1)
    halves = {k: v.astype(np.float16) for k, v in feeds.items()}
    model = model_of(op, feeds, ["y", "yh", "yc"], 14, {})
    wanted = on_cpu(model, {k: v.astype(np.float32) for k, v in halves.items()})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for got, exact in zip(run_direct(model, halves), wanted, strict=True):
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, exact, rtol=6e-4, atol=6e-5)


def test_nan_reaches_later_steps_of_its_row_only() -> None:
    feeds = feeds_of("LSTM", {"steps": 4, "batch": 2, "inputs": 3, "hidden": 5}, ["b"], None, 1.0, 1)
    feeds["x"][1, 0, 0] = np.nan
    y = run_direct(model_of("LSTM", feeds, ["y"], 14, {}), feeds)[0]
    wanted = np.zeros(y.shape, bool)
    wanted[1:, 0, 0] = True
    np.testing.assert_array_equal(np.isnan(y), wanted)


@pytest.mark.parametrize(
    ("code", "op", "sizes", "opset", "attributes"),
    [
        (Code.ATTRIBUTE, "RNN", {}, 14, {"activations": ["Swish"]}),
        *((Code.ATTRIBUTE, op, {}, 14, {"direction": "wrap"}) for op in GATES),
        (Code.ATTRIBUTE, "LSTM", {}, 14, {"activations": ["Sigmoid", "Tanh"]}),
        (Code.ATTRIBUTE, "GRU", {}, 14, {"activations": ["Sigmoid"]}),
        (Code.LIMIT, "LSTM", {"steps": 0}, 14, {}),
        (Code.OPSET, "RNN", {}, 6, {}),
    ],
)
def test_declines(code: Code, op: str, sizes: Any, opset: int, attributes: Any) -> None:
    feeds = feeds_of(op, {"steps": 2, "batch": 1, "inputs": 1, "hidden": 3, **sizes}, [], None, 1.0, 1)
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(model_of(op, feeds, ["y"], opset, attributes), feeds)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("name", "shape"), [("b", (1, 12)), ("seq", (3,)), ("h0", (1, 1, 3)), ("c0", (1, 2, 4)), ("p", (1, 12))]
)
def test_an_input_of_a_shape_that_onnxruntime_refuses_is_declined(name: str, shape: tuple[int, ...]) -> None:
    feeds = feeds_of("LSTM", {"steps": 2, "batch": 2, "inputs": 1, "hidden": 3}, ["b", "h0", "c0", "p"], [1, 2], 1.0, 1)
    feeds[name] = np.ones(shape, feeds[name].dtype)
    with pytest.raises(UnsupportedNodeError, match=rf"{list(shape)} as input \d, not".replace("[", r"\[")):
        run_direct(model_of("LSTM", feeds, ["y"], 14, {}), feeds)


def shaders_of(plan: Plan) -> list[str]:
    return [step.kernel.shader for step in plan.steps]  # type: ignore[union-attr]


def plan_of(op: str, hidden: int, limits: Limits = DEFAULT_LIMITS, steps: int = 1) -> Plan:
    shapes = {"x": (steps, 1, 1), "w": (1, GATES[op] * hidden, 1), "r": (1, GATES[op] * hidden, hidden)}
    graph = from_onnx(model_of(op, {k: np.empty(s, np.float32) for k, s in shapes.items()}, ["y"], 14, {}))
    return make_plan(graph, {k: TensorType(FLOAT32, s) for k, s in shapes.items()}, limits)


@pytest.mark.parametrize("op", GATES)
def test_hidden_1024_fits_the_guaranteed_workgroup_memory(op: str) -> None:
    assert plan_of(op, 1024).steps


@pytest.mark.parametrize(("op", "hidden"), [("LSTM", 2053), ("GRU", 1381)])
def test_states_that_are_larger_than_workgroup_memory(op: str, hidden: int) -> None:
    assert shaders_of(plan_of(op, hidden))[-1] == "recurrent_steps.wgsl"
    with pytest.raises(UnsupportedNodeError) as caught:
        plan_of(op, hidden, Limits(disabled=(("recurrent_steps.wgsl", "a probe failed"),)))
    assert caught.value.code is Code.LIMIT


def test_steps_that_a_driver_would_not_loop_through() -> None:
    """A dispatch a step has no loop over them."""
    assert shaders_of(plan_of("RNN", 64, steps=100))[-1] == "recurrent.wgsl"
    assert shaders_of(plan_of("RNN", 64, steps=30_000))[-1] == "recurrent_steps.wgsl"
