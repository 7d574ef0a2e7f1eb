"""MultiHeadAttention and Attention of ONNX Runtime, and ONNX's Attention with caches: against ONNX Runtime's CPU, or
numpy in 64 bits where that has no kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import ort_gpu_ep
from ort_gpu_ep.errors import Code, IndexOutOfRangeError, UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import TensorType, dtype_of
from ort_gpu_ep.kernels.registry import DEFAULT_LIMITS
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.direct import run_direct
from tests.ops.single_node import Array, model_of, on_cpu

ORT = "com.microsoft"
B, S, N, H = 2, 7, 3, 8
KEYS = np.arange(4 * 40).reshape(4, 40)


def normal(*shape: int, dtype: str = "float32", seed: int = 1) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def agree(got: Array, wanted: Array, what: str = "") -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    tolerance = 4e-3 if got.dtype == np.float16 else 3e-6
    np.testing.assert_allclose(got.astype("d"), wanted.astype("d"), rtol=tolerance, atol=tolerance, err_msg=what)


def compare(model: Any, feeds: dict[str, Array]) -> None:
    wanted = on_cpu(model, feeds)
    for every_size_open in (False, True):
        for k, (got, want) in enumerate(
            zip(run_direct(model, feeds, every_size_open=every_size_open), wanted, strict=True)
        ):
            agree(got, want, f"output {k}, open: {every_size_open}")


def exact(q: Array, k: Array, v: Array, added: Array | float = 0.0) -> Array:
    """q, k, v: [B, N, S, H]; the result as [B, S, N H]."""
    scores = q.astype("d") @ k.astype("d").swapaxes(2, 3) * q.shape[3] ** -0.5 + added
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(
        (powers / powers.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1),
        np.float32,
    )


def heads(x: Array, count: int = N) -> Array:
    return x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)


def padding(kind: str, keys: int) -> Array | None:
    ends, starts = np.array([5, keys - 1]), np.array([0, 2])
    seen = KEYS[0, :keys] < ends[:, None]
    found = {
        "ends": ends,
        "key": seen,
        "query": seen[:, None] & ((KEYS[0, :S, None] != 3) | (KEYS[0, :keys] % 2 == 1)),
        "3B+2": np.array([5, keys - 1, 0, S, 2 * S, 0, keys, 2 * keys]),
        "starts": np.concatenate([ends, starts]),
    }
    return None if kind == "none" else found[kind].astype("int32")


def mha(
    keys: int = S,
    past: int = 0,
    bias: bool = False,
    pad: str = "none",
    mask: tuple[int, ...] = (),
    width: int = H,
    values: int = 0,
    outputs: int = 3,
    dtype: str = "float32",
    **attributes: Any,
) -> tuple[Any, dict[str, Array]]:
    """values: elements of a head's values, where they differ. pad: a form of key_padding_mask. mask: shape of
    attention_bias."""
    total, values = keys + past, values or width
    inputs: list[Any] = [
        normal(B, S, N * width, dtype=dtype),
        normal(B, keys, N * width, dtype=dtype, seed=2),
        normal(B, keys, N * values, dtype=dtype, seed=3),
    ]
    inputs += [
        normal(N * (2 * width + values), dtype=dtype) if bias else None,
        padding(pad, total),
        normal(*mask, dtype=dtype) if mask else None,
    ]
    inputs += [normal(B, N, past, w, dtype=dtype, seed=w) for w in (width, values)] if past else []
    while inputs[-1] is None:
        inputs.pop()
    return model_of("MultiHeadAttention", tuple(inputs), outputs, domain=ORT, num_heads=N, **attributes)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"outputs": 1},
        {"bias": True},
        {"bias": True, "outputs": 1},
        {"past": 9},
        {"past": 9, "bias": True, "unidirectional": 1},
        {"keys": 19},
        {"keys": 19, "bias": True},
        {"unidirectional": 1},
        {"scale": 0.7},
        {"mask": (B, N, S, S)},
        {"mask": (1, 1, S, S)},
        {"mask": (1, N, S, S + 9), "past": 9},
        {"width": 6, "past": 5},
        {"width": 6, "bias": True, "outputs": 1},
        {"width": 8, "values": 12},
        {"values": 6, "outputs": 1},
        {"width": 64, "past": 3},
    ],
    ids=str,
)
def test_multi_head_attention(given: dict[str, Any]) -> None:
    compare(*mha(**given))


@pytest.mark.parametrize("pad", ["ends", "key", "query", "3B+2"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"unidirectional": 1},
        {"mask": (B, N, S, S)},
        {"past": 9},
        {"mask_filter_value": -3.0},
        {"keys": 19, "bias": True},
    ],
    ids=str,
)
def test_keys_that_are_padding(given: dict[str, Any], pad: str) -> None:
    compare(*mha(pad=pad, **given))


@pytest.mark.parametrize(
    "given", [{}, {"past": 9}, {"pad": "key"}, {"mask": (B, N, S, S)}, {"unidirectional": 1}], ids=str
)
def test_scores_are_an_output(given: dict[str, Any]) -> None:
    model, feeds = mha(outputs=4, **given)
    model.graph.output[3].type.tensor_type.elem_type = TensorProto.FLOAT  # which ONNX Runtime does not infer
    compare(model, feeds)


@pytest.mark.parametrize(
    "given",
    [{"keys": 19}, {"keys": 3}, {"keys": 12, "past": 9}, {"keys": 19, "pad": "key"}, {"keys": 8, "mask": (B, N, S, 8)}],
    ids=str,
)
def test_causal_with_another_number_of_keys(given: dict[str, Any]) -> None:
    """Of more keys than queries ONNX Runtime's CPU lets the last query see all."""
    compare(*mha(unidirectional=1, **given))


def shared(
    past: int,
    rows: int,
    tokens: int,
    bias: bool = False,
    pad: bool = False,
    mask: tuple[int, ...] = (),
    batch: int = B,
    **attributes: Any,
) -> tuple[Any, dict[str, Array]]:
    """A cache of `rows` with room behind `past` tokens; the mask ends with the last token."""
    hidden = (np.arange(batch * (past + tokens)).reshape(batch, -1) % 5 != 2).astype("int32") if pad else None
    given = [
        *(normal(batch, tokens, N * H, seed=i) for i in range(3)),
        normal(3 * N * H) if bias else None,
        hidden,
        normal(*mask) if mask else None,
        normal(batch, N, rows, H, seed=8),
        normal(batch, N, rows, H, seed=9),
        np.array([past], "int32"),
    ]
    return model_of("MultiHeadAttention", tuple(given), 3, domain=ORT, num_heads=N, **attributes)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tokens": 5},
        {"tokens": 5, "unidirectional": 1},
        {"tokens": 5, "past": 0, "unidirectional": 1},
        {"bias": True, "past": 11},
        {"mask": (1, N, 1, 8)},
        {"pad": True, "tokens": 2, "unidirectional": 1, "scale": 0.4},
        {"pad": True, "mask_filter_value": -3.0},
    ],
    ids=str,
)
def test_a_shared_cache(given: dict[str, Any]) -> None:
    """Also without a mask the tokens behind the cache's own count for nothing: there are random numbers."""
    compare(*shared(**({"past": 7, "rows": 12, "tokens": 1} | given)))


@pytest.mark.parametrize(("past", "mask"), [(-1, ()), (12, ()), (11, ()), (5, (1, N, 2, 9))])
def test_what_a_shared_cache_can_not_hold(past: int, mask: tuple[int, ...]) -> None:
    """Nor does a mask of more keys than there are pass, which ONNX Runtime's CPU refuses, too."""
    model, feeds = shared(7, 12, 2, mask=mask)
    feeds["x8"] = np.array([past], "int32")
    session = ort_gpu_ep.InferenceSession(
        model.SerializeToString(), provider_options={"placement": "gpu", "strict": "1"}
    )
    with pytest.raises(IndexOutOfRangeError, match="MultiHeadAttention"):
        session.run(None, feeds)


def test_a_shared_cache_changes_in_place() -> None:
    """The plan writes the rows of its tokens alone where past and present are one buffer."""
    model, feeds = shared(7, 12, 1)
    plan = make_plan(
        from_onnx(model), {name: TensorType(dtype_of(a), a.shape) for name, a in feeds.items()}, DEFAULT_LIMITS
    )
    assert len(plan.in_place) == 2
    assert not any(isinstance(s, Dispatch) and s.kernel.shader == "append_tokens.wgsl" for s in plan.steps)


def test_a_query_whose_keys_are_all_padding_sees_them_all() -> None:
    """What is added is no infinity."""
    q, k, v = (normal(B, S, N * H, seed=i) for i in range(3))
    hidden = np.ones((B, S), "int32")
    hidden[1] = 0
    compare(*model_of("MultiHeadAttention", (q, k, v, None, hidden), domain=ORT, num_heads=N, mask_filter_value=-64.0))


def test_float16() -> None:
    """ONNX Runtime's CPU has no kernel."""
    model, feeds = mha(past=9, bias=True, dtype="float16", pad="key")
    wide, wide_feeds = mha(past=9, bias=True, pad="key")
    wanted = on_cpu(wide, {name: feeds[name].astype(array.dtype) for name, array in wide_feeds.items()})
    for got, want in zip(run_direct(model, feeds), wanted, strict=True):
        agree(got, want.astype("float16"))


@pytest.mark.parametrize("bias", [True, False])
def test_packed_queries_keys_and_values(bias: bool) -> None:
    packed, offset = normal(B, S, N, 3, H), normal(3 * N * H)
    given = (packed, None, None, offset) if bias else (packed,)
    (got,) = run_direct(*model_of("MultiHeadAttention", given, domain=ORT, num_heads=N))
    q, k, v = (
        (packed[:, :, :, i] + (offset[i * N * H :][: N * H].reshape(N, H) if bias else 0)).transpose(0, 2, 1, 3)
        for i in range(3)
    )
    agree(got, exact(q, k, v))


def test_packed_keys_and_values() -> None:
    q, packed = normal(B, S, N * H), normal(B, 11, N, 2, H)
    (got,) = run_direct(*model_of("MultiHeadAttention", (q, packed), domain=ORT, num_heads=N))
    agree(got, exact(heads(q), *(packed[:, :, :, i].transpose(0, 2, 1, 3) for i in range(2))))


@pytest.mark.parametrize("bias", [True, False])
def test_keys_of_another_sequence(bias: bool) -> None:
    """As a decoder has those of its encoder: [B, heads, L, H], which no bias is added to."""
    given = (
        normal(B, S, N * H),
        normal(B, N, 13, H),
        normal(B, N, 13, H, seed=5),
        *([normal(3 * N * H)] if bias else []),
    )
    compare(*model_of("MultiHeadAttention", given, domain=ORT, num_heads=N))


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda: mha(mask=(B, N, S, S + 1)), Code.RANK),
        (
            lambda: model_of(
                "Attention",
                (normal(1, 1, 1, 8), *(normal(1, 1, 8, 8),) * 2, None, *(normal(1, 1, 9, 8),) * 2),
                3,
                opset=23,
                is_causal=1,
            ),
            Code.ATTRIBUTE,
        ),
        (
            lambda: model_of("Attention", (normal(1, 1, 4, 8),) * 3, 4, opset=23, qk_matmul_output_mode=-2),
            Code.ATTRIBUTE,
        ),
        (lambda: model_of("MultiHeadAttention", (normal(B, S, 25),) * 3, domain=ORT, num_heads=N), Code.RANK),
        (
            lambda: model_of(
                "MultiHeadAttention",
                (normal(B, S, 24), normal(B, S, 24), normal(B, S, 24), normal(71)),
                domain=ORT,
                num_heads=N,
            ),
            Code.RANK,
        ),
        (
            lambda: model_of(
                "MultiHeadAttention",
                (*(normal(B, S, 24),) * 3, None, np.ones((B, S + 1), "int32")),
                domain=ORT,
                num_heads=N,
            ),
            Code.RANK,
        ),
    ],
)
def test_declines(made: Any, code: Code) -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(*made())
    assert caught.value.code is code


def packed(
    past: int = 0,
    bias: bool = True,
    pad: str = "none",
    mask: tuple[int, ...] = (),
    values: int = H,
    outputs: int = 2,
    **attributes: Any,
) -> tuple[Any, dict[str, Array]]:
    """Attention of com.microsoft."""
    width = N * (2 * H + values)
    inputs: list[Any] = [
        normal(B, S, 20),
        normal(20, width) / 3,
        normal(width) if bias else None,
        padding(pad, S + past),
    ]
    inputs += [normal(2, B, N, past, H) if past else None, normal(*mask) if mask else None]
    while inputs[-1] is None:
        inputs.pop()
    sizes = {} if values == H else {"qkv_hidden_sizes": [N * H, N * H, N * values]}
    return model_of("Attention", tuple(inputs), outputs, domain=ORT, num_heads=N, **sizes, **attributes)


@pytest.mark.parametrize(
    "given",
    [
        {"outputs": 1},
        {"bias": False},
        {"past": 9},
        {"unidirectional": 1},
        {"unidirectional": 1, "past": 4},
        {"values": 16, "outputs": 1},
        {"scale": 0.3},
        {"pad": "ends"},
        {"pad": "starts"},
        {"pad": "key"},
        {"pad": "query"},
        {"pad": "key", "past": 9},
        {"pad": "starts", "unidirectional": 1, "past": 3},
        {"pad": "key", "unidirectional": 1, "mask_filter_value": -50.0},
        {"mask": (B, N, S, S)},
        {"mask": (1, N, S, S), "pad": "key"},
    ],
    ids=str,
)
def test_attention_of_onnxruntime(given: dict[str, Any]) -> None:
    compare(*packed(**given))


def test_a_mask_for_the_most_tokens() -> None:
    """[B, 1, M, M], of which ONNX Runtime's CPU knows nothing: rows from those before on."""
    _, feeds = packed(past=4)
    seen = np.tril(np.ones((B, 1, 16, 16), "int32"))
    seen[1, 0, :, 2] = 0
    full, _ = model_of(
        "Attention", (*(feeds[f"x{i}"] for i in range(3)), seen, feeds["x4"]), 2, domain=ORT, num_heads=N
    )
    wanted, _ = model_of(
        "Attention",
        (*(feeds[f"x{i}"] for i in range(3)), np.ascontiguousarray(seen[:, 0, 4 : 4 + S, : 4 + S]), feeds["x4"]),
        2,
        domain=ORT,
        num_heads=N,
    )
    for got, want in zip(
        run_direct(full, {**feeds, "x3": seen}),
        on_cpu(wanted, {**feeds, "x3": np.ascontiguousarray(seen[:, 0, 4 : 4 + S, : 4 + S])}),
        strict=True,
    ):
        agree(got, want)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "given",
    [
        {"causal": 1},
        {"mask": "bool"},
        {"mask": "-inf", "causal": 1},
        {"mask": "lowest"},
        {"mask": "lowest", "causal": 1, "past": 4},
        {"lengths": 1},
        {"lengths": 1, "mask": "-inf"},
        {"lengths": 1, "mask": "bool", "causal": 1},
        {"mask": "bool", "softcap": 2.0},
    ],
    ids=str,
)
def test_the_probabilities_of_keys_that_are_not_seen(given: dict[str, Any], dtype: str) -> None:
    """They are 0, of a whole row that the mask hides, too: by False, minus infinity or the lowest number."""
    q, k, v = (normal(B, N, rows, H, dtype=dtype, seed=i) for i, rows in enumerate((S, 12, 12)))
    caches = [normal(B, N, given["past"], H, dtype=dtype, seed=i) for i in (3, 4)] if "past" in given else [None, None]
    seen = normal(S, 12 + given.get("past", 0)) > -0.5
    seen[2] = False
    hidden = {"-inf": -np.inf, "lowest": np.finfo(dtype).min}.get(given.get("mask", ""))
    mask = (
        None
        if "mask" not in given
        else seen
        if hidden is None
        else np.where(seen, normal(*seen.shape), hidden).astype(dtype)
    )
    lengths = np.array([5, 12]) if "lengths" in given else None
    compare(
        *model_of(
            "Attention",
            (q, k, v, mask, *caches, lengths),
            4,
            opset=24,
            qk_matmul_output_mode=3,
            is_causal=given.get("causal", 0),
            softcap=given.get("softcap", 0.0),
        )
    )


@pytest.mark.parametrize("kind", ["float", "bool"])
def test_keys_behind_a_short_mask_are_not_seen(kind: str) -> None:
    """ONNX pads it with minus infinity."""
    q, k, v, mask = normal(B, N, S, H), normal(B, N, 12, H, seed=2), normal(B, N, 12, H, seed=3), normal(S, 9)
    added = np.concatenate([np.where(mask > -1, 0, -np.inf) if kind == "bool" else mask, np.full((S, 3), -np.inf)], 1)
    model, feeds = model_of("Attention", (q, k, v, mask > -1 if kind == "bool" else mask), opset=24)
    (got,) = run_direct(model, feeds)
    agree(got.transpose(0, 2, 1, 3).reshape(B, S, -1), exact(q, k, v, added))
