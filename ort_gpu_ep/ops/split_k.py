"""Products whose K is cut into parts (split-K), and what adds the parts up: the workgroup of a tile that arrives last, or
a dispatch behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ort_gpu_ep.ir.symbolic import is_symbolic
from ort_gpu_ep.ir.types import FLOAT32, UINT32, DType, TensorType
from ort_gpu_ep.kernels.records import record
from ort_gpu_ep.kernels.registry import Const, Limits, Lowering, Strided, kernel
from ort_gpu_ep.kernels.target import LAST_ARRIVING

PLACE_NBYTES = 4
"""Workgroup memory, beside the tile's, of a kernel whose last workgroup adds up the parts: the number of those before
it."""

record("sum_parts.wgsl", "elementwise", loop_bound=lambda k: k["SPLIT"])


def may_arrive(limits: Limits, shader: str, workgroup_nbytes: int, size: int = 0) -> bool:
    """Whether the last workgroup may add up. workgroup_nbytes: of the product with K whole. size: elements of all
    parts; not looked at if 0."""
    return (
        limits.allow(shader, LAST_ARRIVING)
        and workgroup_nbytes + PLACE_NBYTES <= limits.max_workgroup_nbytes
        and not is_symbolic(size)
        and FLOAT32.bits // 8 * size <= limits.max_binding_nbytes
    )


def in_last_arriving(
    whole: Lowering, tiles: int, size: int, consts: Mapping[str, Const], dtype: DType = FLOAT32
) -> Lowering:
    """The last kernel of a product writes `parts`, of which the workgroup that arrives last adds up those of its tile.

    tiles: of the result, each with a word that counts arrivals. size, dtype: elements of all parts. consts: in place of
    the kernel's.
    """
    *before, product = whole.kernels
    parts, arrived = TensorType(dtype, (size,)), TensorType(UINT32, (tiles,))
    product = replace(
        product,
        outputs=(*product.outputs, parts, arrived),
        writes=(*(product.writes or ()), ("parts", "parts"), ("arrived", "arrived")),
        vectors=(*product.vectors, "parts"),
        atomics=("arrived",),
        features=(*product.features, LAST_ARRIVING),
        consts=tuple({**dict(product.consts), **consts}.items()),
        workgroup_nbytes=product.workgroup_nbytes + PLACE_NBYTES,
    )
    temps = (*whole.temps, ("parts", parts), ("arrived", arrived))
    return replace(whole, kernels=(*before, product), temps=temps, kept=("arrived",))


def in_dispatch(
    whole: Lowering,
    split: int,
    alpha: float,
    beta: float,
    bias: int | None,
    index: Strided,
    target: int | str = 0,
) -> Lowering:
    """The last kernel of a product writes `split` parts of its result, and another one adds them up into `target`: alpha
    * sum + beta * bias. bias: its input, read at `index`."""
    *before, product = whole.kernels
    (out,) = product.outputs
    parts = TensorType(FLOAT32, (split, *out.shape))
    total = kernel(
        "sum_parts.wgsl",
        [out],
        consts={"SPLIT": split, "SIZE": out.size, "ALPHA": float(alpha), "BETA": float(beta)},
        indices={"c_index": index},
        reads={"part": "parts", **({} if bias is None else {"c": bias})},
        writes={"y": target},
    )
    product = replace(product, outputs=(parts,), writes=(("y", "parts"),))
    return replace(whole, kernels=(*before, product, total), temps=(*whole.temps, ("parts", parts)))
