"""What carries a state along (LinearAttention, CausalConvWithState, TensorScatter), SwiGLU, and products of bytes as
floats: against ONNX Runtime's CPU, or numpy in 64 bits where that has no kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gpu_ep
from ort_gpu_ep.errors import Code, IndexOutOfRangeError, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import TensorType, dtype_of
from ort_gpu_ep.kernels.registry import DEFAULT_LIMITS
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.daily import part
from tests.direct import run_direct
from tests.ops.single_node import Array, Host, assert_same, data, model_of, on_cpu

ORT = "com.microsoft"
B, T = 2, 6


def normal(*shape: int, dtype: str = "float32", seed: int = 1) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def agree(got: Array, wanted: Array, what: str = "", tolerance: float = 0.0) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    tolerance = tolerance or (4e-3 if got.dtype == np.float16 else 4e-6)
    np.testing.assert_allclose(
        got.astype("d"),
        wanted.astype("d"),
        rtol=tolerance,
        atol=tolerance * np.abs(wanted).max(initial=1),
        err_msg=what,
    )


def compare(model: Any, feeds: dict[str, Array], wanted: list[Array] | None = None) -> None:
    for every_size_open in (False, True):
        for k, (got, want) in enumerate(
            zip(run_direct(model, feeds, every_size_open=every_size_open), wanted or on_cpu(model, feeds), strict=True)
        ):
            agree(got, want, f"output {k}, open: {every_size_open}")


def linear(
    rule: str,
    heads: int = 4,
    groups: int = 2,
    dk: int = 16,
    dv: int = 24,
    past: bool = True,
    per_row: bool = True,
    shared: bool = False,
    length: int = T,
    **attributes: Any,
) -> tuple[Any, dict[str, Array]]:
    """LinearAttention of com.microsoft; keys of length 1, as its rules want them."""
    k = normal(B, length, groups, dk)
    k = (k / np.linalg.norm(k, axis=-1, keepdims=True)).reshape(B, length, -1)
    inputs: list[Any] = [
        normal(B, length, heads * dk),
        k,
        normal(B, length, groups * dv),
        normal(B, groups, dk, dv) if past else None,
    ]
    inputs += [-np.abs(normal(B, length, groups * (dk if per_row else 1))) if "gated" in rule else None]
    inputs += [1 / (1 + np.exp(-normal(B, length, 1 if shared else groups))) if "delta" in rule else None]
    while inputs[-1] is None:
        inputs.pop()
    return model_of(
        "LinearAttention",
        tuple(inputs),
        2,
        domain=ORT,
        q_num_heads=heads,
        kv_num_heads=groups,
        update_rule=rule,
        **attributes,
    )


@pytest.mark.parametrize(
    ("given", "rule"),
    part(
        [
            {},
            {"past": False},
            {"per_row": False},
            {"shared": True, "scale": 0.3},
            {"heads": 2, "groups": 2, "dk": 80, "dv": 33},
            {"heads": 2, "groups": 4},
            {"heads": 3, "groups": 1, "dk": 5, "dv": 3},
            {"length": 1},
            {"dk": 256, "dv": 64, "length": 2},
        ],
        ["linear", "gated", "delta", "gated_delta"],
    ),
)
def test_linear_attention(given: dict[str, Any], rule: str) -> None:
    compare(*linear(rule, **given))


@pytest.mark.parametrize(
    ("given", "code"), [({"state_window": 2}, Code.ATTRIBUTE), ({"dk": 264}, Code.RANK), ({"heads": 3}, Code.RANK)]
)
def test_linear_attention_declines(given: dict[str, Any], code: Code) -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(*linear("linear", **given))
    assert caught.value.code is code


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"activation": "silu"},
        {"dilation": 3},
        {"channels_last": 1},
        {"channels_last": 1, "dilation": 2, "activation": "swish"},
    ],
    ids=str,
)
@pytest.mark.parametrize("more", ["", "bias", "bias past"])
@pytest.mark.parametrize("length", [9, 2])
def test_causal_conv(length: int, more: str, given: dict[str, Any]) -> None:
    channels, taps, last = 5, 4, given.get("channels_last")
    state = (taps - 1) * given.get("dilation", 1)
    x, past = ((B, length, channels), (B, state, channels)) if last else ((B, channels, length), (B, channels, state))
    inputs = [
        normal(*x),
        normal(channels, 1, taps),
        normal(channels) if "bias" in more else None,
        normal(*past) if "past" in more else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    compare(*model_of("CausalConvWithState", tuple(inputs), 2, domain=ORT, **given))


@pytest.mark.parametrize(
    ("axis", "mode", "places", "dtype"),
    part(
        [-2, 1, 3],
        [("linear", [0, 5]), ("circular", [6, 3]), ("linear", None)],
        ["float32", "float16", "uint8", "int64", "bool", "uint16"],
    ),
)
def test_tensor_scatter(axis: int, mode: str, places: Any, dtype: str) -> None:
    """In a cache of 8 rows, an update of 3."""
    shape = [2, 3, 3, 5]
    shape[axis] = 8
    small = list(shape)
    small[axis] = 3
    given = (data(*shape, dtype=dtype), data(*small, dtype=dtype, seed=2), *([np.array(places)] if places else []))
    model, feeds = model_of("TensorScatter", given, opset=24, mode=mode, axis=axis)
    assert_same(run_direct(model, feeds), on_cpu(model, feeds))
    assert_same(run_direct(model, feeds, every_size_open=True), on_cpu(model, feeds))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_cache_that_is_past_and_present_is_changed_in_place(dtype: str) -> None:
    """By an IO binding, token after token: nothing but the update is written, and the cache is not copied."""
    cache, update = data(2, 3, 9, 4, dtype=dtype), data(2, 3, 2, 4, dtype=dtype, seed=2)
    model, feeds = model_of("TensorScatter", (cache, update, np.array([0, 3])), opset=24, axis=2)
    (past, new, places), (y,) = ([v.name for v in model.graph.input], [v.name for v in model.graph.output])
    session = ort_gpu_ep.InferenceSession(
        model.SerializeToString(), provider_options={"placement": "gpu", "strict": "1"}
    )
    value = onnxruntime.OrtValue.ortvalue_from_numpy(cache, "gpu")
    wanted = cache
    for turn in range(3):
        feeds = {
            past: wanted,
            new: data(*update.shape, dtype=dtype, seed=turn + 5),
            places: np.array([2 * turn, 7 - turn]),
        }
        (wanted,) = on_cpu(model, feeds)
        binding = session.io_binding()
        binding.bind_ortvalue_input(past, value)
        binding.bind_ortvalue_output(y, value)
        for name in (new, places):
            binding.bind_cpu_input(name, feeds[name])
        session.run_with_iobinding(binding)
    np.testing.assert_array_equal(value.numpy(), wanted)
    types = {name: TensorType(dtype_of(array), array.shape) for name, array in feeds.items()}
    plan = make_plan(from_onnx(model), types, DEFAULT_LIMITS)
    assert plan.in_place == ((0, 0),)
    assert [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)] == ["put_rows.wgsl"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("tuple_length", [1, 2])
def test_one_row_is_scattered_in_place(tuple_length: int, dtype: str) -> None:
    """By an IO binding with one value as data and output: ScatterND writes its update alone, and copies nothing."""
    shape = (4, 3, 7)
    index = np.zeros((1, 1, tuple_length), np.int64)
    update = data(1, 1, *shape[tuple_length:], dtype=dtype, seed=2)
    model, feeds = model_of("ScatterND", (data(*shape, dtype=dtype), index, update), opset=18)
    (past, at, new), (y,) = ([v.name for v in model.graph.input], [v.name for v in model.graph.output])
    session = ort_gpu_ep.InferenceSession(
        model.SerializeToString(), provider_options={"placement": "gpu", "strict": "1"}
    )
    wanted = feeds[past]
    value = onnxruntime.OrtValue.ortvalue_from_numpy(wanted, "gpu")

    def scatter(places: list[int], seed: int) -> dict[str, Any]:
        feeds = {past: wanted, at: np.array([[places]]), new: data(*update.shape, dtype=dtype, seed=seed)}
        binding = session.io_binding()
        binding.bind_ortvalue_input(past, value)
        binding.bind_ortvalue_output(y, value)
        for name in (at, new):
            binding.bind_cpu_input(name, feeds[name])
        session.run_with_iobinding(binding)
        return feeds

    for turn, places in enumerate(([3, 1], [-4, -1], [0, 2])):
        (wanted,) = on_cpu(model, scatter(places[:tuple_length], turn + 5))
        np.testing.assert_array_equal(value.numpy(), wanted)
    scatter([4, 0][:tuple_length], 9)
    with pytest.raises(Exception, match="an index is out of range in ScatterND"):
        value.numpy()
    types = {name: TensorType(dtype_of(array), array.shape) for name, array in feeds.items()}
    plan = make_plan(from_onnx(model), types, DEFAULT_LIMITS)
    assert plan.in_place == ((0, 0),)
    assert [step.kernel.shader for step in plan.steps if isinstance(step, Dispatch)] == ["put_row.wgsl"]


@pytest.mark.parametrize("places", [[0, 6], [-1, 0]])
def test_places_beyond_the_cache_are_noted(places: list[int]) -> None:
    model, feeds = model_of("TensorScatter", (normal(2, 8, 4), normal(2, 3, 4), np.array(places)), opset=24)
    with pytest.raises(Exception, match=r"write_indices|index"):
        on_cpu(model, feeds)
    session = ort_gpu_ep.InferenceSession(
        model.SerializeToString(), provider_options={"placement": "gpu", "strict": "1"}
    )
    with pytest.raises(IndexOutOfRangeError):
        session.run(None, feeds)


@pytest.mark.parametrize("given", [{}, {"activation_alpha": 1.702, "activation_beta": 1.0, "limit": 0.75}])
def test_swiglu_of_onnxruntime(given: dict[str, float]) -> None:
    gate, up = normal(2, 9, 36) * 3, normal(2, 9, 36, seed=2) * 3
    alpha, beta, limit = (
        given.get(n, d) for n, d in (("activation_alpha", 1.0), ("activation_beta", 0.0), ("limit", np.inf))
    )
    g, u = np.minimum(gate, limit).astype("d"), np.clip(up, -limit, limit).astype("d")
    compare(
        *model_of("SwiGLU", (gate, up), domain=ORT, **given), [(g / (1 + np.exp(-alpha * g)) * (u + beta)).astype("f")]
    )


def codes(*shape: int, dtype: str) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng([4, *shape]).integers(info.min, info.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_products_of_bytes_as_floats(dtype: str, columns: bool, held: bool) -> None:
    b, zero = codes(32, 12, dtype=dtype), codes(12, dtype=dtype) if columns else np.asarray(codes(1, dtype=dtype)[0])
    scale = np.abs(normal(12)) / 50 if columns else np.array(0.02, "f")
    weights = Host(b, dtype) if held else b
    bias = normal(12)
    a = codes(2, 7, 32, dtype="uint8")
    compare(
        *model_of(
            "MatMulIntegerToFloat",
            (a, weights, np.array(0.03, "f"), scale, np.array(9, "uint8"), zero, bias),
            domain=ORT,
        )
    )
    compare(*model_of("MatMulIntegerToFloat", (a, weights, np.array(0.03, "f"), scale), domain=ORT))
    compare(*model_of("DynamicQuantizeMatMul", (normal(2, 7, 32), weights, scale, zero, bias), domain=ORT))
    compare(*model_of("DynamicQuantizeMatMul", (normal(2, 7, 32), weights, scale), domain=ORT))


def test_cases_of_onnx() -> None:
    """LinearAttention, CausalConvWithState, SwiGLU, TensorScatter as ONNX has them."""
    assert onnx.defs.onnx_opset_version() >= 28
    from tests.ops.single_node import onnx_cases

    cases = list(onnx_cases("LinearAttention", "CausalConvWithState", "SwiGLU", "TensorScatter"))
    assert len(cases) > 25
    for name, model, feeds, wanted in cases:
        for got, want in zip(run_direct(model, feeds), wanted, strict=True):
            agree(got, want, name)
