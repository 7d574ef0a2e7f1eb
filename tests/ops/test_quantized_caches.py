"""GroupQueryAttention whose caches hold codes of 8 or 4 bits, against ONNX Runtime's CPU."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from ort_gpu_ep.errors import UnsupportedNodeError
from ort_gpu_ep.kernels.forms import forced
from ort_gpu_ep.ops.attention_split import IN_PARTS
from tests.daily import part
from tests.direct import run_direct
from tests.ops.single_node import on_cpu
from tests.ops.test_group_query import FEW, in_parts, model, rows_alone, shaders_of

OPEN = (False, True)

PROMPT, STEP, GROWING, CHUNK = ([9], 9, 0), ([18, 5], 1, 24), ([18], 1, 17), ([21], 5, 30)
"""Lengths, tokens of this step, rows of the cache."""


def codes_of(cache: Any, bits: int) -> Any:
    """Whole numbers, one for each element of a head."""
    if bits == 8:
        return cache.astype(int)
    return np.stack([cache & 15, cache >> 4], -1).reshape(*cache.shape[:-1], -1).astype(int) - 8


def check(
    given: tuple[Any, dict[str, Any]], lengths: list[int], bits: int, is_open: bool, half: bool = False
) -> list[Any]:
    """Of the cache's codes one in a thousand may be its neighbour, where a number lies between two; of float16, one in
    twenty: ONNX Runtime rounds turned keys to it."""
    made, feeds = given
    wanted, got = on_cpu(made, feeds), run_direct(made, feeds, every_size_open=is_open)
    tolerance = 2e-2 if half else 1e-5
    np.testing.assert_allclose(got[0].astype("d"), wanted[0].astype("d"), rtol=tolerance, atol=tolerance)
    for mine, its in zip(got[1:], wanted[1:], strict=True):
        assert (mine.shape, mine.dtype) == (its.shape, its.dtype)
        for b, length in enumerate(lengths):
            apart = np.abs(codes_of(mine, bits)[b, :, :length] - codes_of(its, bits)[b, :, :length])
            assert (apart.max(), (apart > 0).mean()) <= (half, 0.05 if half else 1e-3)
    return got


@pytest.mark.parametrize(
    ("given", "bits", "channels", "when", "is_open"),
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
            {"size": 128, "rotary": 128},
        ],
        [
            (*of_cache, is_open)
            for of_cache in product((8, 4), OPEN, (PROMPT, STEP, GROWING, CHUNK))
            for is_open in OPEN
        ],
        of_two=1,
    ),
)
def test_as_onnxruntimes_cpu(
    given: dict[str, Any], bits: int, channels: bool, when: tuple[list[int], int, int], is_open: bool
) -> None:
    lengths, sequence, past = when
    if given.get("bias") and len(lengths) > 1:
        lengths = lengths[:1]
    check(model(lengths, sequence, past, bits=bits, channels=channels, **given), lengths, bits, is_open)


@pytest.mark.parametrize("bits", [8, 4])
def test_float16(bits: int) -> None:
    for lengths, sequence, past in (PROMPT, STEP):
        given = model(lengths, sequence, past, bits=bits, packed=True, rotary=16, dtype="float16")
        check(given, lengths, bits, False, half=True)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("when", [([12, 7, 9], 1, 11), ([16, 5, 3], 1, 15)], ids=str)
def test_bytes_behind_a_batchs_tokens(when: tuple[list[int], int, int], bits: int) -> None:
    """Of a cache that grows: as onnxruntime's CPU leaves them."""
    made, feeds = model(*when, bits=bits)
    for mine, its in zip(run_direct(made, feeds)[1:], on_cpu(made, feeds)[1:], strict=True):
        assert np.array_equal(mine, its)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("when", [([9], 1), ([36], 1), ([21], 5), ([30], 30)], ids=str)
def test_a_cache_that_keeps_a_window(when: tuple[list[int], int], bits: int) -> None:
    lengths, sequence = when
    window = {"local_window_size": 8, "sliding_window_cache": 1}
    given = model(lengths, sequence, 8, size=32, bits=bits, channels=True, rotary=16, **window)
    check(given, [8], bits, False)


@pytest.mark.parametrize(
    ("heads", "groups", "size", "past", "bits", "is_open"),
    part([(8, 1, 32), (6, 2, 48), (3, 3, 80), (8, 2, 128), (2, 1, 256), (7, 1, 64)], [699, 5001], [8, 4], OPEN),
)
def test_one_query_over_many_parts_of_the_keys(
    heads: int, groups: int, size: int, past: int, bits: int, is_open: bool
) -> None:
    """Of two sizes of parts; one row has room for many more tokens, and most parts have none that it has reached."""
    lengths = [past, 130]
    given = model(lengths, 1, past, heads, groups, size, bits=bits, channels=True, rotary=16, sink=heads != 8)
    assert {"attention_split.wgsl", "attention_join.wgsl"} <= shaders_of(given)
    check(given, lengths, bits, is_open)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("size", "given"), [(128, {}), (64, {"local_window_size": 300}), (80, {"sink": True})])
def test_parts_of_many_steps(size: int, given: dict[str, Any], bits: int) -> None:
    """Of keys that are read by words and by four of them, where there is room behind the tokens and where not."""
    for lengths, past in (([1030, 130, 1], 1100), ([1030, 513], 1029)):
        made = model(lengths, 1, past, 8, 2, size, bits=bits, channels=True, rotary=16, **given)
        for parts in (1, 3):
            with in_parts(parts):
                check(made, lengths, bits, parts == 1)


@pytest.mark.parametrize(("tokens", "given", "bits"), part([2, 3, 4, 8], FEW, [8, 4]))
def test_few_tokens_over_parts_of_the_keys(tokens: int, given: dict[str, Any], bits: int) -> None:
    lengths, past, half = [330, tokens, 101], 330, given.get("dtype") == "float16"
    given = {**given, "bits": bits, "channels": True}
    made, feeds = model(lengths, tokens, past, **given)
    with in_parts(3), forced(IN_PARTS):
        got = run_direct(made, feeds)
    tolerance = 2e-2 if half else 1e-5
    for b, alone in enumerate(rows_alone(feeds, lengths, tokens, past, **given)):
        y, *caches = on_cpu(*alone)
        np.testing.assert_allclose(got[0][b].astype("d"), y[0].astype("d"), rtol=tolerance, atol=tolerance)
        for mine, its in zip(got[1:], caches, strict=True):
            apart = np.abs(codes_of(mine, bits)[b, :, : lengths[b]] - codes_of(its, bits)[0, :, : lengths[b]])
            assert (apart.max(), (apart > 0).mean()) <= (half, 0.05 if half else 1e-3)


@pytest.mark.parametrize("when", [STEP, CHUNK, GROWING], ids=str)
def test_keys_and_values_of_different_kinds(when: tuple[list[int], int, int]) -> None:
    """ONNX Runtime's CPU wants the same kind: one scale gives what the same for each element of a head gives."""
    made, feeds = model(*when, bits=4, channels=True)
    feeds["x12"][:] = feeds["x12"].flat[0]
    wanted = run_direct(made, feeds)
    mixed, _ = model(*when, bits=4, channels=True, k_quant_type="PER_TENSOR")
    next(i for i in mixed.graph.input if i.name == "x12").type.tensor_type.ClearField("shape")
    for mine, its in zip(run_direct(mixed, {**feeds, "x12": feeds["x12"].ravel()[:1]}), wanted, strict=True):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("sequence", [1, 4, 20])
@pytest.mark.parametrize("bits", [8, 4])
def test_rows_that_no_token_has_reached_have_no_part_in_the_result(sequence: int, bits: int) -> None:
    made, feeds = model([49, 30], sequence, 96, bits=bits, packed=True)
    with forced(IN_PARTS):
        clean = run_direct(made, feeds)[0]
        for array in feeds.values():
            if array.ndim == 4 and array.dtype != np.float32:
                for b, length in enumerate((49, 30)):
                    array[b, :, length - sequence :] ^= 91
        assert np.array_equal(run_direct(made, feeds)[0], clean)


def test_norms_of_keys_are_applied_before_they_become_codes() -> None:
    """ONNX Runtime's CPU refuses norms: they are applied before, here."""
    for lengths, sequence, past in (STEP, CHUNK):
        made, feeds = model(lengths, sequence, past, rotary=16, norms=True, bits=8, qk_norm_epsilon=1e-5)
        got = run_direct(made, feeds)
        plain, _ = model(lengths, sequence, past, rotary=16, bits=8)
        for name, weight in (("x0", "x14"), ("x1", "x15")):
            heads = feeds[name].reshape(len(lengths), sequence, -1, 16).astype("d")
            heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-5) * feeds.pop(weight)
            feeds[name] = heads.reshape(len(lengths), sequence, -1).astype("f")
        wanted = on_cpu(plain, feeds)
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-3, atol=1e-3)
        for mine, its in zip(got[1:], wanted[1:], strict=True):
            assert all(np.abs(mine[b, :, :n].astype(int) - its[b, :, :n]).max() <= 1 for b, n in enumerate(lengths))


@pytest.mark.parametrize(
    ("changed", "inputs", "message"),
    [
        ({}, {"x12": (2,)}, r"k_scale float32\[2\] for PER_TENSOR; expected 1 element"),
        ({"channels": True}, {"x13": (1, 1, 1, 16)}, r"v_scale .*PER_CHANNEL; expected 32 elements, \[1, 2, 1, 16\]"),
        ({"kv_cache_bit_width": 4}, {}, "cache of 4 bits and past_key int8"),
        ({"v_quant_type": "NONE"}, {}, "k_quant_type PER_TENSOR and v_quant_type NONE"),
        ({"kv_cache_bit_width": 2}, {}, "kv_cache_bit_width 2"),
        ({}, {"x3": (2, 2, 24, 8)}, r"a cache int8\[2, 2, 24, 8\]; expected \[B, 2, tokens, 16\]"),
        ({"size": 20, "groups": 2, "bits": 4}, {}, "multiples of 8"),
    ],
)
def test_declines(changed: dict[str, Any], inputs: dict[str, tuple[int, ...]], message: str) -> None:
    """Before anything is written; ONNX Runtime's CPU refuses the same, but when it runs."""
    made, feeds = model([18, 5], 1, 24, **{"bits": 8, **changed})
    for name, shape in inputs.items():
        feeds[name] = np.ones(shape, feeds[name].dtype)
        next(i for i in made.graph.input if i.name == name).type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedNodeError, match=message):
        run_direct(made, feeds)
