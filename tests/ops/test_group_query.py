"""GroupQueryAttention, with its cache, against ONNX Runtime's CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.errors import UnsupportedNodeError
from ort_gpu_ep.ir.graph import from_onnx
from ort_gpu_ep.ir.types import TensorType, dtype_of
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.kernels.questions import apart
from ort_gpu_ep.kernels.registry import DEFAULT_LIMITS, Kernel
from ort_gpu_ep.ops import attention_split
from ort_gpu_ep.ops.attention import Heads
from ort_gpu_ep.ops.attention_split import IN_PARTS
from ort_gpu_ep.scheduler.plan import Dispatch
from ort_gpu_ep.scheduler.planner import make_plan
from tests.daily import part
from tests.direct import run_direct
from tests.ops.single_node import Host, model_of, on_cpu


def normal(seed: int, *shape: int, dtype: str = "float32") -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def model(
    lengths: list[int],
    sequence: int,
    past: int | None,
    heads: int = 4,
    groups: int = 2,
    size: int = 16,
    packed: bool = False,
    rotary: int = 0,
    positions: bool = False,
    bias: bool = False,
    sink: bool = False,
    norms: bool = False,
    dtype: str = "float32",
    bits: int = 0,
    channels: bool = False,
    **attributes: Any,
) -> tuple[Any, dict[str, Any]]:
    """lengths: of each batch with this step. past: rows of the cache, None for none. rotary: elements of a head that
    are turned. bits: of a code in the cache, 0 for numbers. channels: a scale for each element of a head."""
    batch, total = len(lengths), max(lengths)
    widths = [(heads + 2 * groups) * size] if packed else [heads * size, groups * size, groups * size]
    tokens = [normal(k, batch, sequence, w, dtype=dtype) for k, w in enumerate(widths)]
    inputs: list[Any] = [
        *tokens,
        *[None] * (3 - len(tokens)),
        None,
        None,
        (np.array(lengths) - 1).astype("int32"),
        Host(total, "int32"),
    ]
    if past is not None:
        inputs[3:5] = [normal(k, batch, groups, past, size, dtype=dtype) for k in (7, 8)]
    if bits:
        rng, kind = np.random.default_rng([bits, size]), "PER_CHANNEL" if channels else "PER_TENSOR"
        of_cache = (2, batch, groups, past or 0, size * bits // 8)
        inputs[3:5] = rng.integers(0, 256, of_cache, "uint8").view("int8" if bits == 8 else "uint8")
        attributes = {"kv_cache_bit_width": bits, "k_quant_type": kind, "v_quant_type": kind, **attributes}
    angles = np.arange(max(64, total + 1))[:, None] * 100.0 ** (-np.arange(rotary // 2) / max(rotary // 2, 1))
    inputs += [np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)] if rotary else [None, None]
    before = np.array(lengths) - sequence
    inputs += [(np.maximum(before, 0)[:, None] + np.arange(sequence)).astype("int64") if positions else None]
    inputs += [
        normal(11, batch, 1, sequence, total, dtype=dtype) if bias else None,
        normal(12, heads, dtype=dtype) if sink else None,
    ]
    of_scales = (1, groups, 1, size) if channels else (1,)
    scales = np.random.default_rng([bits, 15]).uniform(1, 3, (2, *of_scales)).astype("float32") / 2**bits
    if channels:
        scales[:, ..., 3] = 0
    inputs += list(scales) if bits else [None, None]
    inputs += [normal(13, size, dtype=dtype), normal(14, size, dtype=dtype)] if norms else []
    while inputs[-1] is None:
        inputs.pop()
    return model_of(
        "GroupQueryAttention",
        tuple(inputs),
        3,
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=groups,
        do_rotary=int(rotary > 0),
        **attributes,
    )


@pytest.mark.parametrize(("size", "keys"), [(32, 32), (64, 16), (48, 32)])
def test_a_workgroup_has_fewer_keys_where_registers_are_few(
    size: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu.open(Config())
    monkeypatch.setattr(
        gpu, "limits", replace(gpu.limits, figures=replace(gpu.limits.figures, loads_ahead=True, lane_registers=64))
    )
    one, feeds = model([70, 33], 1, 1200, size=size, rotary=16)
    types = {name: TensorType(dtype_of(array), array.shape) for name, array in feeds.items()}
    kernels = [step.kernel for step in make_plan(from_onnx(one), types, gpu.limits).steps if isinstance(step, Dispatch)]
    assert [dict(k.consts)["KEYS"] for k in kernels if k.shader == "attention_split.wgsl"] == [keys]
    np.testing.assert_allclose(run_direct(one, feeds)[0], on_cpu(one, feeds)[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("sequence", "causal"), [(1, 1), (4, 1), (4, 0), (20, 1), (20, 0)])
def test_room_of_a_cache_may_hold_anything(sequence: int, causal: int) -> None:
    """Memory that nobody wrote is no number at times: rows behind the tokens have no part in the result, not even with
    a weight of 0."""
    lengths = [49, 30]
    made, feeds = model(lengths, sequence, 96, packed=True, causal=causal)
    with forced(IN_PARTS):
        clean = run_direct(made, feeds)[0]
        for array in feeds.values():
            if array.ndim == 4:
                for b, length in enumerate(lengths):
                    array[b, :, length - sequence :] = np.nan
        assert np.isfinite(clean).all()
        assert np.array_equal(run_direct(made, feeds)[0], clean)


OPEN = (False, True)
"""Whether the model leaves every size open: the shaders are others then, and as much work to compile."""


def check(
    given: tuple[Any, dict[str, Any]], lengths: list[int], half: bool = False, opened: tuple[bool, ...] = OPEN
) -> None:
    """Rows of the cache that no token has reached are not compared: nobody reads them."""
    made, feeds = given
    tolerance = 3e-3 if half else 2e-6
    wanted = on_cpu(made, feeds)
    for every_size_open in opened:
        got = run_direct(made, feeds, every_size_open=every_size_open)
        np.testing.assert_allclose(got[0].astype("d"), wanted[0].astype("d"), rtol=tolerance, atol=tolerance)
        for mine, its in zip(got[1:], wanted[1:], strict=True):
            assert mine.shape == its.shape
            for b, length in enumerate(lengths):
                np.testing.assert_allclose(
                    mine[b, :, :length].astype("d"), its[b, :, :length].astype("d"), rtol=tolerance, atol=tolerance
                )


PROMPT, STEP, CHUNK, STATIC = ([9], 9, None), ([18], 1, 17), ([21], 5, 16), ([11], 1, 40)
"""Lengths, tokens of this step, rows of the cache."""


@pytest.mark.parametrize(
    ("given", "when", "is_open"),
    part(
        [
            {},
            {"packed": True, "rotary": 16},
            {"rotary": 16, "rotary_interleaved": 1},
            {"rotary": 16, "size": 32, "packed": True, "local_window_size": 6},
            {"softcap": 3.0, "scale": 0.7},
            {"bias": True, "heads": 6, "groups": 6},
            {"sink": True, "heads": 8, "groups": 1},
            {"smooth_softmax": 1},
            {"causal": 0},
        ],
        [(when, is_open) for when in (PROMPT, STEP, CHUNK, STATIC) for is_open in OPEN],
    ),
)
def test_as_onnxruntimes_cpu(given: dict[str, Any], when: tuple[list[int], int, int | None], is_open: bool) -> None:
    lengths, sequence, past = when
    check(model(lengths, sequence, past, **given), lengths, opened=(is_open,))


@pytest.mark.parametrize("causal", [1, 0])
@pytest.mark.parametrize("when", [([12, 7, 9], 12, None), ([12, 7, 9], 1, 11), ([5, 16], 1, 20)], ids=str)
def test_batches_of_unequal_lengths(when: tuple[list[int], int, int | None], causal: int) -> None:
    """Rows behind a batch's own tokens hold whatever the padding was."""
    lengths, sequence, past = when
    given = model(lengths, sequence, past, packed=True, rotary=16, causal=causal)
    if sequence > 1 and past is None:  # of a padded prompt only the batch's own tokens are compared
        (got, *_), (wanted, *_) = run_direct(*given), on_cpu(*given)
        for b, length in enumerate(lengths):
            np.testing.assert_allclose(got[b, :length], wanted[b, :length], rtol=2e-6, atol=2e-6)
        return
    check(given, lengths)


@pytest.mark.parametrize("when", [([12, 7, 9], 12, None), ([12, 7, 9], 1, 11), ([16, 5, 3], 1, 15)], ids=str)
def test_rows_of_a_cache_that_grows_are_zero_behind_a_batchs_tokens(when: tuple[list[int], int, int | None]) -> None:
    """As onnxruntime's CPU leaves them, whatever the cache before had there. Those of a prompt's padding are its
    padding's."""
    made, feeds = model(*when, rotary=16)
    for mine, its in zip(run_direct(made, feeds)[1:], on_cpu(made, feeds)[1:], strict=True):
        np.testing.assert_allclose(mine, its, rtol=2e-6, atol=2e-6)


def test_position_ids() -> None:
    for when in (PROMPT, STEP, CHUNK):
        lengths, sequence, past = when
        check(model(lengths, sequence, past, rotary=16, positions=True), lengths)


@pytest.mark.parametrize(
    "when", [([9, 9], 9, None), ([9, 4], 9, 16), ([1, 1], 1, None), ([18, 11], 1, 17), ([21], 5, 16)], ids=str
)
@pytest.mark.parametrize("given", [{}, {"packed": True}, {"size": 64}], ids=str)
def test_position_ids_that_do_not_count_tokens(when: tuple[list[int], int, int | None], given: dict[str, Any]) -> None:
    """Left padding, or a sequence that begins in the middle: a first step begins where the first id says, all its
    batches too."""
    lengths, sequence, past = when
    made, feeds = model(lengths, sequence, past, rotary=16, positions=True, **given)
    name = next(name for name, array in feeds.items() if array.dtype == np.int64)
    feeds[name] = np.random.default_rng(3).integers(2, 40, feeds[name].shape)
    (got, *caches), (wanted, *its) = run_direct(made, feeds), on_cpu(made, feeds)
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(got[b, :length], wanted[b, :length], rtol=2e-6, atol=2e-6)
        for mine, other in zip(caches, its, strict=True):
            np.testing.assert_allclose(mine[b, :, :length], other[b, :, :length], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("size", "when", "is_open"), part([64, 80, 256], [(PROMPT,), (STEP,)], OPEN))
def test_sizes_of_heads(size: int, when: tuple[list[int], int, int | None], is_open: bool) -> None:
    lengths, sequence, past = when
    check(model(lengths, sequence, past, size=size, rotary=size), lengths, opened=(is_open,))


def test_float16() -> None:
    for lengths, sequence, past in (PROMPT, STEP, STATIC):
        check(model(lengths, sequence, past, packed=True, rotary=16, dtype="float16"), lengths, half=True)


def test_norms_of_queries_and_keys() -> None:
    """ONNX Runtime's CPU refuses them: they are applied before, here."""
    lengths, sequence, past = STEP
    made, feeds = model(lengths, sequence, past, rotary=16, norms=True, qk_norm_epsilon=1e-5)
    got = run_direct(made, feeds)
    plain, _ = model(lengths, sequence, past, rotary=16)
    weights = {"x0": feeds["x14"], "x1": feeds["x15"]}
    for name, weight in weights.items():
        heads = feeds[name].reshape(1, sequence, -1, 16).astype("d")
        heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-5) * weight
        feeds[name] = heads.reshape(1, sequence, -1).astype("f")
    wanted = on_cpu(plain, {n: v for n, v in feeds.items() if n not in ("x14", "x15")})
    for mine, its in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 5}, "5 heads and 2 of keys"),
        ({"sliding_window_cache": 1, "local_window_size": 4}, "window"),
        ({"sliding_window_cache": 1, "bias": True}, "window"),
        ({"rotary": 32}, "tables"),
    ],
)
def test_declines(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedNodeError, match=message):
        run_direct(*model([9], 9, None, **changed))


def resident(tokens: int, capacity: int, window: int) -> int:
    gap = capacity - window + 1
    return tokens if tokens <= capacity else tokens - gap * -(-(tokens - capacity) // gap)


@pytest.mark.parametrize(
    ("given", "lengths", "sequence", "capacity", "is_open"),
    part(
        [
            {"rotary": 16},
            {"packed": True, "rotary": 16, "positions": True, "sink": True},
            {"softcap": 2.0},
            {"dtype": "float16", "rotary": 16},
        ],
        [([5], 5), ([30], 30), ([9], 1), ([12], 1), ([35], 1), ([36], 1), ([21], 5), ([33], 20), ([7, 30, 12], 1)],
        [8, 11, 40],
        OPEN,
    ),
)
def test_a_cache_that_keeps_a_window(
    given: dict[str, Any], lengths: list[int], sequence: int, capacity: int, is_open: bool
) -> None:
    """Gemma's and gpt-oss's, as genai's builder writes them: rows go by several at once where there is room beside the
    window."""
    window, half = 8, given.get("dtype") == "float16"
    made, feeds = model(lengths, sequence, capacity, local_window_size=window, sliding_window_cache=1, **given)
    feeds = {name: array + 3 if array.dtype == np.int64 else array for name, array in feeds.items()}  # positions
    tolerance = 3e-3 if half else 2e-6
    wanted = on_cpu(made, feeds)
    got = run_direct(made, feeds, every_size_open=is_open)
    for b, length in enumerate(lengths):
        valid = slice(0, min(length, sequence))
        np.testing.assert_allclose(
            got[0][b, valid].astype("d"), wanted[0][b, valid].astype("d"), rtol=tolerance, atol=tolerance
        )
        rows = resident(length, capacity, window)
        for mine, its in zip(got[1:], wanted[1:], strict=True):
            assert mine.shape == its.shape
            np.testing.assert_allclose(
                mine[b, :, :rows].astype("d"), its[b, :, :rows].astype("d"), rtol=tolerance, atol=tolerance
            )


def test_the_cache_need_not_be_an_output() -> None:
    made, feeds = model(*STEP, rotary=16)
    wanted = run_direct(made, feeds)
    del made.graph.output[1:]
    made.graph.node[0].output[:] = ["y0"]
    (got,) = run_direct(made, feeds)
    np.testing.assert_array_equal(got, wanted[0])


@pytest.mark.parametrize(
    ("heads", "groups", "size", "past", "is_open"),
    part(
        [(8, 1, 32), (6, 2, 48), (3, 3, 80), (8, 2, 128), (2, 1, 256), (7, 1, 64)],
        [(past, is_open) for past in (699, 5000) for is_open in OPEN],
        of_two=1,
    ),
)  # growing, and of two sizes of parts
def test_one_query_over_many_parts_of_the_keys(heads: int, groups: int, size: int, past: int, is_open: bool) -> None:
    lengths = [past + 1, 130]
    given = model(
        lengths, 1, past if past == 699 else past + 1, heads, groups, size, rotary=16, bias=past == 699, sink=heads != 8
    )
    assert {"attention_split.wgsl", "attention_join.wgsl"} <= shaders_of(given)
    check(given, lengths, opened=(is_open,))


@pytest.mark.parametrize(
    ("lengths", "given"),
    part(
        [[1], [64], [65, 300], [130, 2]],
        [{"rotary": 16}, {"packed": True}, {"sink": True, "heads": 8, "groups": 1}],
        of_two=1,
    ),
)
def test_a_cache_with_room_for_many_more_tokens(lengths: list[int], given: dict[str, Any]) -> None:
    """Most parts of the keys have none that a token has reached."""
    check(model(lengths, 1, 700, **given), lengths)


@pytest.mark.parametrize("window", [1, 64, 100, 200])
def test_a_window_leaves_out_whole_parts(window: int) -> None:
    check(model([300, 77], 1, 320, local_window_size=window), [300, 77])


@pytest.mark.parametrize(
    "given",
    [
        {"local_window_size": 1},
        {"local_window_size": 64, "sink": True, "heads": 8, "groups": 1},
        {"local_window_size": 100, "smooth_softmax": 1, "softcap": 3.0},
        {"local_window_size": 33, "packed": True, "rotary": 16, "bias": True},
        {"local_window_size": 100, "dtype": "float16", "heads": 3, "groups": 3, "size": 24, "sink": True},
    ],
    ids=str,
)
def test_a_window_at_any_place(given: dict[str, Any]) -> None:
    """Longer than what there is, and as long."""
    half = given.get("dtype") == "float16"
    for lengths in ([300, 77], [1, 101], [320, 32]):
        check(model(lengths, 1, 320, **given), lengths, half, opened=(lengths[0] == 1,))


@pytest.mark.parametrize("largest", [-200.0, 200.0])
def test_a_sink_far_from_the_scores_of_a_window(largest: float) -> None:
    made, feeds = model([300, 77], 1, 320, local_window_size=64, sink=True)
    sink = next(name for name, array in feeds.items() if array.shape == (4,))
    feeds[sink] = np.full(4, largest, np.float32)
    check((made, feeds), [300, 77])


def rows_alone(
    feeds: dict[str, Any], lengths: list[int], sequence: int, past: int, **given: Any
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The node of each batch alone: ONNX Runtime's CPU takes several tokens behind others of one batch only."""
    for b, length in enumerate(lengths):
        one, own = model([length], sequence, past, **given)
        for name, array in own.items():
            first = b if len(array) == 1 and len(feeds[name]) == len(lengths) else 0
            own[name] = np.ascontiguousarray(feeds[name][first:][tuple(map(slice, array.shape))])
        yield one, own


FEW = [
    {"heads": 7, "groups": 1, "size": 64, "rotary": 16},
    {"heads": 6, "groups": 2, "size": 128, "packed": True, "local_window_size": 33},
    {"heads": 2, "groups": 2, "size": 80, "sink": True, "local_window_size": 3},
    {"heads": 8, "groups": 1, "size": 128, "softcap": 3.0, "rotary": 16},
    {"heads": 8, "groups": 2, "size": 64, "bias": True, "smooth_softmax": 1},
    {"heads": 5, "groups": 1, "size": 32, "causal": 0},
    {"heads": 12, "groups": 2, "size": 16, "local_window_size": 100, "dtype": "float16"},
]
"""Heads and their groups; a workgroup has some of a group's queries, and the last one may have fewer."""


@pytest.mark.parametrize(("tokens", "given", "parts"), part([2, 3, 4, 5, 8], FEW, [1, 3, 99]))
def test_few_tokens_over_parts_of_the_keys(tokens: int, given: dict[str, Any], parts: int) -> None:
    """Of a part, some of them may see no key: their windows begin and end at different ones."""
    lengths, past, half = [430, tokens, 101], 430, given.get("dtype") == "float16"
    made, feeds = model(lengths, tokens, past, **given)
    with in_parts(parts), forced(IN_PARTS) as choices:
        got = run_direct(made, feeds)
    assert [choice.form for choice in choices.values()] == [IN_PARTS]
    tolerance = 3e-3 if half else 5e-6
    for b, alone in enumerate(rows_alone(feeds, lengths, tokens, past, **given)):
        for mine, its in zip(got, on_cpu(*alone), strict=True):
            own, wanted = (
                (a.astype("d") if a.ndim == 3 else a[:, :, : lengths[b]].astype("d")) for a in (mine[b : b + 1], its)
            )
            np.testing.assert_allclose(own, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("tokens", [2, 7])
def test_few_tokens_without_any_before(tokens: int) -> None:
    """A prompt, padded where a batch is shorter; the cache that grows from nothing is as long."""
    lengths = [tokens, tokens - 1]
    made, feeds = model(lengths, tokens, None, heads=6, rotary=16)
    with forced(IN_PARTS) as choices:
        got = run_direct(made, feeds)[0]
    assert [choice.form for choice in choices.values()] == [IN_PARTS]
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(got[b, :length], on_cpu(made, feeds)[0][b, :length], rtol=2e-6, atol=2e-6)


def test_few_tokens_over_many_keys_take_their_parts() -> None:
    """By estimate, where the model fixes how many they are; a plan for any number of tokens stays with the forms for
    prompts."""
    for tokens, keys, are_taken in ((4, 512, True), (8, 4096, True), (9, 4096, False), (4, 8, False)):
        given = model([keys], tokens, keys, heads=32, groups=8, size=128)
        assert ("attention_split.wgsl" in shaders_of(given)) == are_taken


@pytest.mark.parametrize(
    ("heads", "groups", "tokens", "keys", "registers", "share"),
    [
        (4, 4, 1, 512, 255, 1),
        (4, 2, 1, 512, 255, 2),
        (6, 2, 1, 512, 255, 4),
        (28, 4, 1, 512, 255, 4),
        (28, 4, 1, 65536, 255, 8),
        (28, 4, 1, 65536, 128, 4),
        (32, 8, 1, 65536, 255, 4),
        (32, 8, 4, 512, 255, 8),
        (32, 8, 4, 512, 128, 4),
        (4, 4, 3, 512, 255, 4),
    ],
)
def test_queries_of_a_workgroup(heads: int, groups: int, tokens: int, keys: int, registers: int, share: int) -> None:
    """As few as let keys be read the fewest times."""
    figures = replace(DEFAULT_LIMITS.figures, lane_registers=registers)
    target: Any = SimpleNamespace(limits=DEFAULT_LIMITS, figures=figures)
    q, k = (Heads(name, (1, n, rows, 128), (0, 0, 0)) for name, n, rows in (("q", heads, tokens), ("k", groups, keys)))
    assert attention_split.shares_of(target, q, k, None).queries == share


@contextmanager
def in_parts(count: int) -> Iterator[None]:
    """The keys of one query are in so many parts at most, of as many steps as that takes."""
    with apart(), mock.patch.object(attention_split, "_most_parts", return_value=count):
        yield


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    "given",
    [
        {"rotary": 16},
        {"packed": True, "heads": 6, "groups": 6, "size": 48, "bias": True},
        {"rotary": 16, "local_window_size": 300, "size": 128},
        {"sink": True, "heads": 8, "groups": 1, "size": 80, "causal": 0},
        {"heads": 7, "groups": 1, "size": 64, "softcap": 3.0, "smooth_softmax": 1},
    ],
)
def test_parts_of_many_steps(given: dict[str, Any], parts: int) -> None:
    """With room behind the tokens, and in a cache that grows; later steps have larger scores, and smaller ones."""
    for lengths, past in (
        (([901], 900), ([1030], 1029)) if given.get("bias") else (([901, 130], 900), ([1030, 1], 1100))
    ):
        made, feeds = model(lengths, 1, past, **given)
        feeds["x3"] *= np.linspace(0.5, 2, past, dtype="f")[:, None] ** (-1) ** (past // 100)
        with in_parts(parts):
            check((made, feeds), lengths)


def kernels_of(given: tuple[Any, dict[str, Any]]) -> list[Kernel]:
    made, feeds = given
    plan = make_plan(from_onnx(made), {n: TensorType(dtype_of(a), a.shape) for n, a in feeds.items()}, DEFAULT_LIMITS)
    return [step.kernel for step in plan.steps if isinstance(step, Dispatch)]


def shaders_of(given: tuple[Any, dict[str, Any]]) -> set[str]:
    return {kernel.shader for kernel in kernels_of(given)}


@pytest.mark.parametrize("given", [{"heads": 2, "size": 256, "sink": True}, {"heads": 3, "size": 128}], ids=str)
def test_more_parts_than_are_joined_at_a_time(given: dict[str, Any]) -> None:
    """One batch has them all, the other fewer than are read at first."""
    lengths, past = [5001, 130], 5001
    made = model(lengths, 1, past, groups=1, rotary=16, **given)
    with in_parts(999):
        (join,) = (dict(k.consts) for k in kernels_of(made) if k.shader == "attention_join.wgsl")
        assert join["IS_LONG"]
        assert 2 * int(join["ROWS"]) * int(join["LOADS"]) < int(join["SPLITS"])
        check(made, lengths)


def test_parts_that_an_earlier_run_left_have_no_part_in_the_result() -> None:
    """They are read before it is known that no token sees them, and are not numbers here."""
    made, feeds = model([700], 1, 700, heads=8, groups=1, size=128)
    few, session = (
        {**feeds, "x5": np.array([39], np.int32)},
        InferenceSession(made.SerializeToString(), provider_options={"placement": "gpu", "strict": 1}),
    )
    wanted = on_cpu(made, few)[0]
    assert np.isnan(session.run(["y0"], {**feeds, "x3": feeds["x3"] * np.nan})[0]).all()
    for _ in range(2):
        np.testing.assert_allclose(session.run(["y0"], few)[0], wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("given", "size", "rotary"),
    [
        ({}, 16, 16),
        ({"packed": True}, 32, 16),
        ({"packed": True, "local_window_size": 70}, 48, 32),
        ({"packed": True, "local_window_size": 64, "sink": True}, 64, 32),
        ({"rotary_interleaved": 1}, 80, 48),
        ({"rotary_interleaved": 1, "packed": True, "heads": 8, "groups": 1}, 16, 16),
        ({"positions": True, "sink": True, "heads": 6}, 128, 64),
        ({"packed": True, "heads": 14}, 64, 64),
        ({"dtype": "float16", "heads": 3, "groups": 3}, 64, 64),
        ({}, 16, 0),
    ],
)
def test_tokens_that_are_stored_where_the_cache_is(given: dict[str, Any], size: int, rotary: int) -> None:
    """Step by step behind caches of different lengths, whose rows the kernel turns, stores and reads itself: on both
    sides of a part's end."""
    rows, dtype = 200, given.get("dtype", "float32")
    made, feeds = model([63, rows], 1, rows, size=size, rotary=rotary, **given)
    feeds["x5"] = np.array([62, 124], np.int32)
    feeds |= {name: feeds["x5"][:, None].astype(a.dtype) for name, a in feeds.items() if a.dtype == np.int64}
    caches = {name: array for name, array in feeds.items() if array.ndim == 4}
    tolerance, cpu = 3e-3 if dtype == "float16" else 1e-5, onnxruntime.InferenceSession(made.SerializeToString())
    session = InferenceSession(made.SerializeToString(), provider_options={"placement": "gpu", "strict": 1})
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array, "gpu") for name, array in caches.items()}
    for step in range(5):
        feeds["x0"] = normal(step, *feeds["x0"].shape, dtype=dtype)
        binding = session.io_binding()
        for name in feeds.keys() - held.keys():
            binding.bind_cpu_input(name, feeds[name])
        binding.bind_output("y0")
        for (name, value), present in zip(held.items(), ("y1", "y2"), strict=True):
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(present, value)
        session.run_with_iobinding(binding)
        wanted = cpu.run(None, feeds)
        got = [binding.copy_outputs_to_cpu()[0], *(value.numpy() for value in held.values())]
        for mine, its in zip(got, wanted, strict=True):
            for b, before in enumerate(feeds["x5"]):
                a, c = (x[b].astype("d") if x.ndim == 3 else x[b, :, : before + 1].astype("d") for x in (mine, its))
                np.testing.assert_allclose(a, c, rtol=tolerance, atol=tolerance)
        feeds |= dict(zip(caches, wanted[1:], strict=True))
        feeds |= {name: a + 1 for name, a in feeds.items() if a.dtype.kind == "i"}
