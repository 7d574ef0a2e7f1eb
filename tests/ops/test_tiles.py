"""product.wgsl and depthwise_last.wgsl: convolutions whose channels lie together, and matrices, in every tile; against
float64 sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ort_gpu_ep.ops  # noqa: F401  fills the registry
from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.health.probes.tiles import chosen
from ort_gpu_ep.ir.graph import Graph, Node, Step, Value
from ort_gpu_ep.ir.types import FLOAT32
from ort_gpu_ep.kernels.target import LAST_ARRIVING
from ort_gpu_ep.ops import tiles
from ort_gpu_ep.runtime.program import Program
from tests.direct import opened, run_program

Array = np.ndarray[Any, Any]
RELU = Step("Relu", "max(x, 0.0)", ("v",), FLOAT32)
ADD = Step("Add", "x + y", ("s0", "e0"), FLOAT32)


def conv_graph(x: Array, w: Array, bias: Array | None, residual: Array | None, **attributes: Any) -> Graph:
    """y = conv(x, w) + bias, and with a residual relu of it plus the residual."""
    constants = {"w": w, **({} if bias is None else {"c": bias})}
    values = {name: Value(name, FLOAT32, a.shape, lambda a=a: a) for name, a in constants.items()}
    values |= {"x": Value("x", FLOAT32, x.shape), "y": Value("y", FLOAT32)}
    fused: dict[str, Any] = {}
    if residual is not None:
        values["r"] = Value("r", FLOAT32, residual.shape)
        fused = {"epilogue": (RELU, ADD), "operands": ("r",)}
    node = Node(
        "Conv",
        ("x", "w", "c" if bias is not None else ""),
        ("y",),
        "conv",
        "",
        11,
        attributes,
        channels_last=True,
        **fused,
    )
    return Graph("g", ("x", *(("r",) if residual is not None else ())), ("y",), (node,), values)


def expected(x: Array, w: Array, bias: Array | None, residual: Array | None, attributes: dict[str, Any]) -> Array:
    """In float64; x: [N, C, spatial...], the result [N, spatial'..., M]."""
    rank = x.ndim - 2
    pads, strides = attributes.get("pads", [0] * (2 * rank)), attributes.get("strides", [1] * rank)
    dilations, groups = attributes.get("dilations", [1] * rank), attributes.get("group", 1)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *((pads[k], pads[k + rank]) for k in range(rank))))
    out = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(padded.shape[2:], w.shape[2:], dilations, strides, strict=True)
    ]
    y = np.zeros((x.shape[0], *out, w.shape[0]))
    each, filters = w.shape[1], w.shape[0] // groups
    for g in range(groups):
        own = w[g * filters : (g + 1) * filters].astype(np.float64)
        for tap in np.ndindex(*w.shape[2:]):
            places = (
                slice(t * d, t * d + (o - 1) * s + 1, s)
                for t, d, o, s in zip(tap, dilations, out, strides, strict=True)
            )
            seen = padded[:, g * each : (g + 1) * each, *places]
            y[..., g * filters : (g + 1) * filters] += np.einsum("nc...,mc->n...m", seen, own[:, :, *tap])
    y = y if bias is None else y + bias
    return y if residual is None else np.maximum(y, 0) + residual


def check_conv(
    x: tuple[int, ...],
    w: tuple[int, ...],
    bias: bool = True,
    residual: bool = False,
    every_size_open: bool = False,
    **attributes: Any,
) -> None:
    rng = np.random.default_rng([*x, *w])
    plain = rng.normal(size=x).astype(np.float32)
    weights, shift = rng.normal(size=w).astype(np.float32), rng.normal(size=w[:1]).astype(np.float32) if bias else None
    reference = expected(plain, weights, shift, None, attributes)
    added = rng.normal(size=reference.shape).astype(np.float32) if residual else None
    reference = expected(plain, weights, shift, added, attributes)
    stored = (
        plain if w[1] <= 4 and attributes.get("group", 1) == 1 else np.ascontiguousarray(plain.transpose(0, 2, 3, 1))
    )
    graph = conv_graph(stored, weights, shift, added, **attributes)
    program = Program(opened(graph) if every_size_open else graph, Config(), Gpu.open(Config()))
    try:
        for _ in range(2):  # the second run has the packed weights of the first
            (got,) = run_program(program, {"x": stored, **({} if added is None else {"r": added})})
    finally:
        program.close()
    assert got.shape == reference.shape
    scale = np.sqrt(w[1] * w[2] * w[3]) * 3
    np.testing.assert_allclose(got, reference, rtol=0, atol=2e-6 * scale)


CONVS = [
    ((1, 32, 14, 14), (64, 32, 1, 1), {}),
    # K that fills no step, M that fills no tile
    ((2, 36, 9, 11), (44, 36, 1, 1), {}),
    ((1, 64, 15, 13), (32, 64, 1, 1), {"strides": [2, 2]}),
    ((1, 16, 7, 9), (12, 16, 1, 1), {"pads": [0, 1, 1, 0]}),
    ((2, 32, 12, 10), (32, 32, 3, 3), {"pads": [1, 1, 1, 1]}),  # a step lies within one tap
    ((1, 64, 9, 8), (20, 64, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}),
    ((1, 12, 11, 7), (16, 12, 3, 5), {"pads": [1, 2, 1, 2]}),  # steps across taps
    ((2, 3, 31, 33), (32, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
    ((1, 1, 20, 20), (8, 1, 3, 3), {}),
    ((1, 4, 10, 12), (16, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 24, 13, 11), (24, 1, 3, 3), {"group": 24, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 32, 14, 14), (32, 1, 5, 3), {"group": 32, "pads": [2, 1, 2, 1], "dilations": [1, 2]}),
    ((1, 8, 20, 20), (8, 1, 7, 7), {"group": 8, "pads": [3, 3, 3, 3]}),
]


@pytest.mark.parametrize("every_size_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize(("x", "w", "attributes"), CONVS, ids=str)
def test_convolutions(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], every_size_open: bool
) -> None:
    check_conv(x, w, every_size_open=every_size_open, **attributes)


@pytest.mark.parametrize(("x", "w", "attributes"), [CONVS[1], CONVS[4], CONVS[7], CONVS[10]], ids=str)
def test_fused_steps_read_vectors(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
    check_conv(x, w, residual=True, **attributes)
    check_conv(x, w, residual=True, bias=False, every_size_open=True, **attributes)


FORMS = [(tile.name, split) for tile in tiles.TILES for split in ((1, 3) if tile.name in tiles.SPLIT_TILES else (1,))]


@pytest.mark.parametrize(("name", "split"), FORMS, ids=str)
def test_every_tile(name: str, split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is right on its own, with sizes that fill neither tile nor step, and with K cut. Further windows: its
    probe."""
    tile = next(t for t in tiles.TILES if t.name == name)
    if not tile.fits(Gpu.open(Config()).limits):
        assert name in ("64x64/4", "128x128")  # for adapters with 48 KiB of workgroup memory, as most have
        return
    with chosen(tile, split):
        check_conv((2, 40, 9, 11), (72, 40, 3, 3), pads=[1, 1, 1, 1])
        check_conv((1, 72, 12, 13), (136, 72, 1, 1), residual=True)


@pytest.mark.parametrize("split", [2, 7])
def test_the_last_workgroup_adds_the_parts_up(split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one dispatch, also in the runs after the first, whose counters the ones before left at zero."""
    gpu = Gpu.open(Config())
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, features=gpu.limits.features | {LAST_ARRIVING}))
    tile = next(t for t in tiles.TILES if t.name == "32x32/4")
    with chosen(tile, split):
        check_conv((2, 64, 9, 11), (72, 64, 3, 3), pads=[1, 1, 1, 1])
        check_conv((1, 512, 7, 7), (40, 512, 1, 1), residual=True)
        check_conv((1, 512, 7, 7), (40, 512, 1, 1), bias=False)


@pytest.mark.parametrize(("x", "w", "attributes"), [CONVS[1], CONVS[6], CONVS[7], CONVS[11]], ids=str)
def test_packed_weights_replace_those_of_the_model(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    """On the device there is one copy; who needs the other gets it back, bit for bit."""
    rng = np.random.default_rng(5)
    weights = rng.normal(size=(*w[:1], *w[1:])).astype(np.float32)
    plain = rng.normal(size=x).astype(np.float32)
    stored = (
        plain if w[1] <= 4 and attributes.get("group", 1) == 1 else np.ascontiguousarray(plain.transpose(0, 2, 3, 1))
    )
    gpu = Gpu.open(Config())
    program = Program(conv_graph(stored, weights, None, None, **attributes), Config(), gpu)
    try:
        (first,) = run_program(program, {"x": stored})
        one_copy = program.weight_nbytes
        assert one_copy < 1.7 * weights.nbytes + 4096  # zeros fill up channels and rows
        back = np.empty_like(weights)
        gpu.download(program.weight("w"), 0, back.ctypes.data, back.nbytes)
        assert np.array_equal(back, weights)
        assert program.weight_nbytes >= one_copy + weights.nbytes
        (again,) = run_program(program, {"x": stored})
        assert np.array_equal(first, again)
    finally:
        program.close()
