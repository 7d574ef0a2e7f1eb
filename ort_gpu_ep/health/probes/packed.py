"""Products that read packed weights: packed_matvec.wgsl, packed_product.wgsl, and repack.wgsl before them."""

from __future__ import annotations

import numpy as np

from ort_gpu_ep.graph import Graph, Node, Value
from ort_gpu_ep.health.probe import Trial, agree, probe
from ort_gpu_ep.types import BY_NAME, FLOAT32


def _product(trial: Trial, m: int, k: int, n: int, kind: str, transposed: bool) -> None:
    """x [m, k] times a matrix of codes, stored as [k, n] or as n rows, with a scale and a zero point for each of n."""
    dtype = BY_NAME[kind]
    low = -(1 << dtype.bits - 1) if dtype.value == "i32" else 0
    shape = (n, k) if transposed else (k, n)
    codes, zeros = (trial.integers(low, low + (1 << dtype.bits), *s) for s in (shape, (n,)))
    scale, x = abs(trial.normal(n)) + np.float32(0.1), trial.normal(m, k)
    held = {"w": codes.astype(dtype.numpy), "s": scale, "z": zeros.astype(dtype.numpy)}
    values = {name: Value(name, BY_NAME[a.dtype.name], a.shape, lambda a=a: a) for name, a in held.items()}     # type: ignore[misc]
    node = Node("PackedGemm", ("x", "w", "s", "z"), ("y",), domain="ort_gpu_ep", version=1, attributes={
        "transA": 0, "transB": int(transposed), "alpha": 1.0, "beta": 1.0, "weight_axis": 0 if transposed else 1, "weight_block": 0,
        "weight_bits": 0, "weight_shape": ()})
    got = trial.graph(Graph("probe", ("x",), ("y",), (node,), {**values, "x": Value("x", FLOAT32, x.shape)}), [x])[0]
    wide = codes.T if transposed else codes
    agree(f"{kind} {m} x {k} x {n}", got, x.astype(np.float64) @ ((wide - zeros) * scale.astype(np.float64)))


@probe("packed weights", "kernels", disables=("packed_matvec.wgsl", "packed_product.wgsl", "repack.wgsl"))
def packed(trial: Trial) -> str:
    """Vectors and tiles, rows of codes and columns of codes, whole and odd sizes."""
    kinds = ("uint8", "int8", "int4", "uint2")
    for _ in range(trial.rounds):
        for kind in kinds:
            for transposed in (False, True):
                _product(trial, 1, 64, 9, kind, transposed)
                _product(trial, 3, 67, 5, kind, transposed)
                _product(trial, 17, 131, 66, kind, transposed)
    return ", ".join(kinds)
