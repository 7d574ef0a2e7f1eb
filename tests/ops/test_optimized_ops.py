"""Ops that ONNX Runtime's optimisers write: against ONNX Runtime's CPU, or the ops that they stand for where that has
no kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import ort_gpu_ep
from ort_gpu_ep.errors import Code, IndexOutOfRangeError, UnsupportedNodeError
from tests.daily import part
from tests.direct import run_direct
from tests.ops.single_node import Array, Host, model_of, node_model, on_cpu

ORT = "com.microsoft"


def normal(*shape: int, dtype: str = "float32", seed: int = 1) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def agree(got: Array, wanted: Array, what: str = "") -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, wanted)
        return
    tolerance = 4e-3 if got.dtype == np.float16 else 4e-6
    np.testing.assert_allclose(
        got.astype("d"), wanted.astype("d"), rtol=tolerance, atol=tolerance * np.abs(wanted).max(), err_msg=what
    )


def compare(model: Any, feeds: dict[str, Array], wanted: list[Array] | None = None) -> None:
    for every_size_open in (False, True):
        for k, (got, want) in enumerate(
            zip(run_direct(model, feeds, every_size_open=every_size_open), wanted or on_cpu(model, feeds), strict=True)
        ):
            agree(got, want, f"output {k}, open: {every_size_open}")


IDS = np.random.default_rng(0).integers(0, 40, (2, 7)).astype("int32")


@pytest.mark.parametrize("hidden", [32, 30])
@pytest.mark.parametrize("left_out", ["", "segments", "mask places", "places"])
def test_embed_layer_normalization(left_out: str, hidden: int) -> None:
    segments = (IDS % 2, normal(2, hidden)) if "segments" not in left_out else (None, None)
    mask = None if "mask" in left_out else (np.arange(7) < [[4], [7]]).astype("int32")
    places = None if "places" in left_out else np.arange(7, dtype="int32")[None, ::-1] * np.ones((2, 1), "int32")
    inputs = [
        IDS,
        segments[0],
        normal(40, hidden),
        normal(16, hidden),
        segments[1],
        normal(hidden),
        normal(hidden),
        mask,
        places,
    ]
    while inputs[-1] is None:
        inputs.pop()
    compare(*model_of("EmbedLayerNormalization", tuple(inputs), 3, domain=ORT, epsilon=1e-5))


def test_places_of_all_sequences() -> None:
    places = np.array([[3, 1, 2, 0, 5, 4, 9]], "int32")
    inputs = (IDS, None, normal(40, 32), normal(16, 32), None, normal(32), normal(32), None, places)
    compare(*model_of("EmbedLayerNormalization", inputs, 2, domain=ORT))


@pytest.mark.parametrize("wrong", [-1, 40])
def test_a_word_out_of_range_is_noted(wrong: int) -> None:
    ids = IDS.copy()
    ids[1, 3] = wrong
    model, feeds = model_of(
        "EmbedLayerNormalization",
        (ids, None, normal(40, 32), normal(16, 32), None, normal(32), normal(32)),
        2,
        domain=ORT,
    )
    with pytest.raises(Exception, match="out of range"):
        on_cpu(model, feeds)
    session = ort_gpu_ep.InferenceSession(
        model.SerializeToString(), provider_options={"placement": "gpu", "strict": "1"}
    )
    with pytest.raises(IndexOutOfRangeError, match="EmbedLayerNormalization"):
        session.run(None, feeds)


def group_norm(x: Array, scale: Array, bias: Array, groups: int, epsilon: float, silu: bool, last: bool) -> Array:
    """In 64 bits."""
    planes = np.moveaxis(x, -1, 1).astype("d") if last else x.astype("d")
    rows = planes.reshape(len(x), groups, -1)
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + epsilon)
    y = rows.reshape(planes.shape) * scale[:, None, None] + bias[:, None, None]
    y = y / (1 + np.exp(-y)) if silu else y
    return np.asarray(np.moveaxis(y, 1, -1) if last else y, x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("last", [1, 0])
@pytest.mark.parametrize(
    ("shape", "groups", "silu"), [((2, 5, 7, 24), 4, 0), ((1, 16, 16, 32), 32, 1), ((2, 3, 3, 8), 1, 1)]
)
def test_group_norm(shape: tuple[int, ...], groups: int, silu: int, last: int, dtype: str) -> None:
    n, h, w, c = shape
    x, scale, bias = normal(*(shape if last else (n, c, h, w)), dtype=dtype), normal(c), normal(c)
    given: dict[str, Any] = {"groups": groups, "activation": silu, "channels_last": last, "epsilon": 1e-4}
    compare(
        *model_of("GroupNorm", (x, scale, bias), domain=ORT, **given),
        [group_norm(x, scale, bias, groups, 1e-4, bool(silu), bool(last))],
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("skip", [(2, 5, 7, 24), (2, 1, 1, 24), (2, 24)], ids=str)
def test_skip_group_norm(skip: tuple[int, ...], bias: bool) -> None:
    x, scale, offset, skipped, added = (
        normal(2, 5, 7, 24),
        normal(24),
        normal(24, seed=2),
        normal(*skip),
        normal(24, seed=3),
    )
    model, feeds = model_of(
        "SkipGroupNorm", (x, scale, offset, skipped, *([added] if bias else [])), 2, domain=ORT, groups=6, activation=1
    )
    total = x + skipped.reshape(2, 1, 1, 24) if len(skip) == 2 else x + skipped
    total = total + added if bias else total
    compare(model, feeds, [group_norm(total, scale, offset, 6, 1e-5, True, True), total])


@pytest.mark.parametrize(
    ("x", "w", "given", "dtype", "held"),
    part(
        [
            ((1, 9, 11, 8), (12, 3, 3, 8), {"pads": (1, 1, 1, 1)}),
            ((2, 8, 8, 4), (6, 1, 1, 4), {}),
            ((1, 8, 8, 3), (4, 3, 3, 3), {"strides": (2, 2)}),
            ((1, 9, 9, 8), (8, 3, 3, 1), {"group": 8}),
            ((1, 9, 9, 8), (8, 2, 3, 4), {"group": 2, "auto_pad": "SAME_UPPER"}),
        ],
        ["float32", "float16"],
        [True, False],
    ),
)
def test_nhwc_conv(x: tuple[int, ...], w: tuple[int, ...], given: dict[str, Any], dtype: str, held: bool) -> None:
    images, filters, bias = normal(*x), normal(*w) / 4, normal(w[0])
    plain = node_model(
        "Conv", [images.transpose(0, 3, 1, 2).copy(), filters.transpose(0, 3, 1, 2).copy(), bias], 11, **given
    )
    wanted = on_cpu(*plain)[0].transpose(0, 2, 3, 1)
    weights = filters.astype(dtype)
    model, feeds = model_of(
        "NhwcConv",
        (images.astype(dtype), Host(weights, dtype) if held else weights, bias.astype(dtype)),
        domain=ORT,
        **given,
    )
    compare(model, feeds, [wanted.astype(dtype)])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("channels", [8, 5])
def test_nhwc_max_pool(channels: int, dtype: str) -> None:
    x = np.random.default_rng(3).integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (2, 9, 11, channels)).astype(dtype)
    given: dict[str, Any] = {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}
    compare(*model_of("NhwcMaxPool", (x,), domain=ORT, **given))


@pytest.mark.parametrize(
    ("shape", "bias", "inner", "axis"),
    [
        ((2, 3, 5, 40), (2, 1, 1, 40), 1, 3),
        ((2, 3, 5, 40), (1, 1, 5, 40), 0, 3),
        ((2, 3, 5, 8), (2, 1, 5, 8), 1, 2),
        ((6, 9), (1, 9), 0, 1),
    ],
    ids=str,
)
def test_bias_softmax(shape: tuple[int, ...], bias: tuple[int, ...], inner: int, axis: int) -> None:
    x, added = normal(*shape), normal(*bias)
    model, feeds = model_of("BiasSoftmax", (x, added), domain=ORT, is_inner_broadcast=inner, axis=axis)
    total = (x + added).astype("d").reshape(int(np.prod(shape[:axis])), -1)
    powers = np.exp(total - total.max(-1, keepdims=True))
    compare(model, feeds, [(powers / powers.sum(-1, keepdims=True)).reshape(shape).astype("f")])


ACTIVATIONS: list[dict[str, Any]] = [
    {"activation": "Relu"},
    {"activation": "Tanh"},
    {"activation": "Sigmoid"},
    {"activation": "LeakyRelu", "activation_params": (0.3,)},
    {"activation": "Clip", "activation_params": (-0.5, 0.75)},
    {"activation": "HardSigmoid", "activation_params": (0.25, 0.4)},
]


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("given", ACTIVATIONS, ids=lambda g: g["activation"])
def test_fused_conv(given: dict[str, Any], added: bool) -> None:
    z = (normal(2, 8, 7, 5),) if added else ()
    compare(
        *model_of(
            "FusedConv",
            (normal(2, 4, 7, 5), normal(8, 4, 3, 3) / 4, normal(8), *z),
            domain=ORT,
            pads=(1, 1, 1, 1),
            **given,
        )
    )


def test_fused_conv_of_groups() -> None:
    compare(
        *model_of(
            "FusedConv",
            (normal(1, 6, 7, 5), normal(6, 1, 3, 3), None, normal(1, 6, 5, 3)),
            domain=ORT,
            group=6,
            activation="Relu",
        )
    )
    compare(*model_of("FusedConv", (normal(1, 6, 7, 5), normal(6, 1, 3, 3)), domain=ORT, group=6, activation="Relu"))


@pytest.mark.parametrize(
    "given",
    [
        {"activation": "Relu"},
        {"activation": "Tanh", "transB": 1},
        {"activation": "LeakyRelu", "activation_alpha": 0.3, "beta": 0.5, "alpha": 2.0},
        {"activation": "Elu", "activation_alpha": 0.3},
        {"activation": "Softplus"},
        {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4},
    ],
    ids=lambda g: g["activation"],
)
def test_fused_gemm(given: dict[str, Any]) -> None:
    b = normal(12, 16) if given.get("transB") else normal(16, 12)
    compare(*model_of("FusedGemm", (normal(9, 16), b, normal(12)), domain=ORT, **given))
    compare(*model_of("FusedGemm", (normal(9, 16), Host(b, "float32")), domain=ORT, **given))


@pytest.mark.parametrize(
    ("op", "inputs", "given"),
    [
        ("GroupNorm", (normal(1, 4, 4, 6), normal(6), normal(6)), {"groups": 4, "activation": 0}),
        ("GroupNorm", (normal(1, 4, 4, 6), normal(6), normal(6)), {"groups": 2, "activation": 2}),
        ("FusedConv", (normal(1, 4, 7, 5), normal(8, 4, 3, 3)), {"activation": "Swish"}),
        ("FusedConv", (normal(1, 4, 7, 5), normal(8, 4, 3, 3)), {"activation": "LeakyRelu"}),
    ],
)
def test_declines(op: str, inputs: Any, given: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedNodeError) as caught:
        run_direct(*model_of(op, inputs, domain=ORT, **given))
    assert caught.value.code is Code.ATTRIBUTE


def test_elementwise_steps_behind_it() -> None:
    model, feeds = model_of(
        "FusedConv",
        (normal(2, 4, 7, 5), normal(8, 4, 3, 3) / 4),
        after=(helper.make_node("Neg", ["y0"], ["y"]),),
        domain=ORT,
        activation="Relu",
    )
    compare(model, feeds)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("queries", "keys"), [(200, 200), (1, 150), (9, 5)])
@pytest.mark.parametrize(("both", "buckets", "farthest"), [(1, 32, 128), (0, 32, 128), (0, 16, 40), (1, 20, 33)])
def test_relative_position_bias(both: int, buckets: int, farthest: int, queries: int, keys: int, dtype: str) -> None:
    """The buckets of T5; which ONNX Runtime's CPU does not have."""
    table = normal(buckets, 4, dtype=dtype)
    relative, each = np.arange(keys)[None] - np.arange(queries)[:, None], buckets // 2 if both else buckets
    distance = np.abs(relative) if both else np.maximum(-relative, 0)
    near = each // 2
    far = near + np.floor(
        np.log(np.maximum(distance, 1) / near) / np.log(farthest / near) * (each - near) + 1e-9
    ).astype("int64")
    bucket = np.where(distance < near, distance, np.minimum(far, each - 1)) + (each * (relative > 0) if both else 0)
    model, feeds = model_of(
        "RelativePositionBias",
        (table, Host([queries]), Host([keys])),
        domain=ORT,
        is_bidirectional=both,
        max_distance=farthest,
    )
    compare(model, feeds, [table.reshape(4, buckets)[:, bucket][None]])
