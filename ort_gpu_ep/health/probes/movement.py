"""Probes of kernels that move elements, create tensors of a shape, or sort (TopK: keys, sorted runs, merges)."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, probe, solves
from ort_gpu_ep.ir.graph import Graph, Node, Value
from ort_gpu_ep.ir.types import FLOAT32, dtype_of
from ort_gpu_ep.kernels.records import RECORDS


@probe("strided reads", "kernels", disables=("strided.wgsl",), quick=True)
def strided(trial: Trial) -> str:
    """Transposes and slices at odd sizes, of 4 and of 8 bytes."""
    for _ in range(trial.rounds):
        x = trial.normal(3, 17, 5)
        agree("Transpose", trial.node("Transpose", 13, [x], perm=(2, 0, 1))[0], x.transpose(2, 0, 1))
        y = trial.integers(-(2**60), 2**60, 31, 33)
        agree("Transpose of int64", trial.node("Transpose", 13, [y], perm=(1, 0))[0], y.T)
        bounds = {k: np.array(v, np.int64) for k, v in enumerate(((29, 2), (1, 31), (0, 1), (-3, 4)), 1)}
        agree("Slice", trial.node("Slice", 13, [y, *[None] * 4], bounds)[0], y[29:1:-3, 2:31:4])
    return "3 forms"


solves(
    "transposition by tiles",
    *RECORDS["transpose.wgsl"].problems,
    of=2,
    about="Two dimensions that change places within a batch, by tiles of each form, around their edges; elements of 1 to 8 bytes.",
    disables=("transpose.wgsl",),
)


@probe("tensors made of a shape", "kernels", disables=("fill.wgsl", "range.wgsl", "range_float.wgsl", "window.wgsl"))
def made_of_a_shape(trial: Trial) -> str:
    """ConstantOfShape, Range and a window of sizes that the run brings: of fixed ones, the host computes them."""
    constants = {
        "zero": np.array(0),
        "one": np.array(1),
        "start": np.array(-2.5, np.float32),
        "step": np.array(0.25, np.float32),
    }
    values = {n: Value(n, dtype_of(a), a.shape, lambda a=a: a) for n, a in constants.items()}  # type: ignore[misc]
    nodes = (
        Node("Shape", ("x",), ("s",), version=15),
        Node("ConstantOfShape", ("s",), ("f",), attributes={"value": np.array([2.5], np.float32)}, version=9),
        Node("Gather", ("s", "one"), ("n",), attributes={"axis": 0}, version=13),
        Node("Range", ("zero", "n", "one"), ("r",), version=11),
        Node("Cast", ("n",), ("m",), attributes={"to": 1}, version=13),
        Node("Range", ("start", "m", "step"), ("q",), version=11),
        Node("HannWindow", ("n",), ("w",), version=17),
    )
    graph = Graph("probe", ("x",), ("f", "r", "q", "w"), nodes, {"x": Value("x", FLOAT32, ("N", "L")), **values})
    for shape in ((3, 67), (1, 4099)):
        filled, counted, stepped, window = trial.graph(graph, [trial.normal(*shape)])
        agree(f"ConstantOfShape of {shape}", filled, np.full(shape, 2.5))
        agree(f"Range of {shape[1]}", counted, np.arange(shape[1]))
        agree(f"Range up to {shape[1]} by quarters", stepped, np.arange(-2.5, shape[1], 0.25))
        agree(f"HannWindow of {shape[1]}", window, 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(shape[1]) / shape[1]))
    return "2 shapes"


FILES = ("topk_keys.wgsl", "topk_sort.wgsl", "topk_merge.wgsl", "topk_indices.wgsl", "gather.wgsl")


@probe("top k", "kernels", disables=FILES)
def topk(trial: Trial) -> str:
    """Runs around a power of two, several runs to merge, both directions."""
    shapes = ((3, 7, 7), (2, 257, 31), (1, 5003, 1500))
    for (rows, n, k), largest in trial.repeated(shapes, (0, 1), of=3):
        x = trial.normal(rows, n)
        order = np.argsort(-x if largest else x, 1, kind="stable")[:, :k]
        values, indices = trial.node("TopK", 11, [x, None], {1: np.array([k], np.int64)}, 2, largest=largest)
        agree(f"TopK {k} of {n}: indices", indices, order)
        agree(f"TopK {k} of {n}: values", values, np.take_along_axis(x, order, 1))
    return f"{2 * len(shapes)} shapes"


@probe("resized bytes", "kernels", disables=("resize.wgsl", "resize_antialias.wgsl"))
def resized_bytes(trial: Trial) -> str:
    """Twice as large, in both layouts, and half as large with antialias: by weights of whole eighths, so that the bytes
    are known."""
    x = trial.integers(0, 256, 1, 2, 10, 12).astype(np.uint8)
    rows, columns = (np.minimum(np.arange(size)[:, None] // 2 + [0, 1], size // 2 - 1) for size in (20, 24))
    weights = [np.where(np.arange(size)[:, None] % 2 == 0, [1.0, 0.0], 0.5) for size in (20, 24)]
    wide = sum(
        weights[0][:, a][:, None] * weights[1][:, b] * x[:, :, rows[:, a]][..., columns[:, b]]
        for a in (0, 1)
        for b in (0, 1)
    )
    scales = np.array([1, 1, 2, 2], np.float32)
    asymmetric = "asymmetric"
    got = trial.node(
        "Resize", 19, [x, None, None], {2: scales}, mode="linear", coordinate_transformation_mode=asymmetric
    )[0]
    agree("planes", got, np.floor(wide), 0.0)
    last = trial.node(
        "Resize",
        19,
        [np.ascontiguousarray(x.transpose(0, 2, 3, 1)), None, None],
        {2: scales[[0, 2, 3, 1]]},
        mode="linear",
        coordinate_transformation_mode=asymmetric,
    )[0]
    agree("channels last", last, np.floor(wide).transpose(0, 2, 3, 1), 0.0)
    small = x.astype(np.int64)
    for axis in (3, 2):
        size = small.shape[axis]
        taps = [small.take(np.clip(np.arange(0, size, 2) + k, 0, size - 1), axis) for k in (-1, 0, 1, 2)]
        small = (taps[0] + 3 * taps[1] + 3 * taps[2] + taps[3] + 4) // 8
    half = trial.node(
        "Resize", 19, [x, None, None], {2: np.array([1, 1, 0.5, 0.5], np.float32)}, mode="linear", antialias=1
    )[0]
    agree("antialias", half, small, 0.0)
    return "3 forms"
