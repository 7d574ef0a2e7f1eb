"""Probes of kernels whose output size depends on the data."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.health.probe import Trial, agree, graph_of, probe, solve
from ort_gpu_ep.ir.graph import Node
from ort_gpu_ep.kernels.problems import integers, normal, problem


@probe(
    "selected",
    "kernels",
    disables=("coordinates.wgsl", "chosen_slices.wgsl"),
    fault=(r"chosen_at\(min\([^()]*\)\)", "0u"),
)
@probe("selection", "kernels", disables=("chunk_counts.wgsl", "chunk_starts.wgsl", "chunk_places.wgsl"))
def selection(trial: Trial) -> str:
    """NonZero and Compress over several chunks, the last one ragged: which places are selected, and what is written of
    them."""
    for _ in range(trial.rounds):
        solve(trial, problem("NonZero", 13, integers(0, 2, 53, 67, dtype="int32")))
        solve(trial, problem("Compress", 11, normal(2500, 3), integers(0, 2, 2500, dtype="bool"), axis=0))
    return "2 ops"


@probe("sizes", "kernels", disables=("sizes.wgsl",), fault=(r"value = left \+ right;", "value = left;"))
def sizes(trial: Trial) -> str:
    """Every second of the last rows that NonZero chooses, and how many elements that are with some more: sizes by sums,
    products, quotients and maxima.
    """
    x, rows = trial.integers(0, 2, 301, dtype="int32"), trial.normal(301, 6)
    constants = {
        "axis": np.array([0]),
        "from": np.array([-70]),
        "to": np.array([1 << 40]),
        "step": np.array([2]),
        "more": np.array([1000]),
    }
    nodes = (
        Node("NonZero", ("x",), ("places",), version=13),
        Node("Squeeze", ("places", "axis"), ("row",), version=13),
        Node("Gather", ("rows", "row"), ("chosen",), version=13),
        Node("Slice", ("chosen", "from", "to", "axis", "step"), ("y",), version=13),
    )
    told = (*nodes, Node("Size", ("y",), ("size",), version=13), Node("Add", ("size", "more"), ("sum",), version=14))
    for _ in range(trial.rounds):
        feeds, want = {"x": x, "rows": rows}, rows[np.flatnonzero(x)][-70::2]
        agree("the last rows", trial.graph(graph_of(feeds, constants, *nodes), list(feeds.values()))[0], want)
        agree(
            "a size",
            trial.graph(graph_of(feeds, constants, *told), list(feeds.values()))[0],
            np.array([want.size + 1000]),
        )
    return "2 graphs"


@probe(
    "unique in order",
    "kernels",
    disables=("unique_flags.wgsl", "unique_order.wgsl"),
    fault=(r"first_at\(k\)|chosen_at\(j\)", "0u"),
)
@probe("unique", "kernels", disables=("unique_first.wgsl", "unique_indices.wgsl"))
def unique(trial: Trial) -> str:
    """Unique numbers, sorted and as they come, with where they are: which are the first of their kind, and their
    order."""
    for _ in range(trial.rounds):
        x = trial.integers(0, 90, 300)
        want, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
        for k, (got, expected) in enumerate(
            zip(trial.node("Unique", 11, [x], outputs=4, sorted=1), (want, first, inverse, counts), strict=True)
        ):
            agree(f"Unique output {k}", got, expected)
        agree("Unique unsorted", trial.node("Unique", 11, [x], sorted=0)[0], x[np.sort(first)])
    return "300 numbers"


@probe("suppression", "kernels", disables=("suppress.wgsl", "suppressed_rows.wgsl"))
def suppression(trial: Trial) -> str:
    """NonMaxSuppression of boxes that overlap."""
    for _ in range(trial.rounds):
        corners = abs(trial.normal(1, 40, 2))
        boxes = np.concatenate([corners, corners + np.float32(0.2) + abs(trial.normal(1, 40, 2))], -1)
        constants = {2: np.array([6]), 3: np.array([0.3], np.float32), 4: np.array([-9.0], np.float32)}
        (got,) = trial.node(
            "NonMaxSuppression", 11, [boxes, scores := trial.normal(1, 2, 40), None, None, None], constants
        )
        want = [(0, c, k) for c in range(2) for k in _kept(boxes[0].astype(np.float64), scores[0, c], 6, 0.3)]
        agree("NonMaxSuppression", got, np.array(want))
    return "40 boxes"


def _kept(boxes: np.ndarray, scores: np.ndarray, most: int, overlap: float) -> list[int]:
    """Boxes [y, x, y, x] by falling score, without those that overlap one before by more."""
    areas, kept = (boxes[:, 2:] - boxes[:, :2]).prod(1), list[int]()
    for k in np.argsort(-scores, kind="stable"):
        shared = [
            np.maximum(np.minimum(boxes[k, 2:], boxes[j, 2:]) - np.maximum(boxes[k, :2], boxes[j, :2]), 0).prod()
            for j in kept
        ]
        if (
            all(s <= overlap * (areas[k] + areas[j] - s) for s, j in zip(shared, kept, strict=True))
            and len(kept) < most
        ):
            kept.append(int(k))
    return kept
