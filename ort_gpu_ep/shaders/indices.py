"""Index functions of a shader: from the number of an element to a place, by shape and strides."""

from __future__ import annotations

from ort_gpu_ep.ir.symbolic import is_symbolic, same
from ort_gpu_ep.ir.types import Shape
from ort_gpu_ep.kernels.registry import Strided


def strided(name: str, index: Strided) -> str:
    """The coordinates of i, innermost dimension last; dimensions of size 1 drop out and mergeable ones are merged."""
    shape, strides = merged(index.shape, index.strides)
    terms = [_signed(index.offset, f"{name}_offset")] if is_symbolic(index.offset) or index.offset else []
    lines = [f"fn {name}(i: u32) -> u32 {{"]
    coordinates = _rests(name, shape, lines) if any(map(is_symbolic, shape[1:])) else _quotients(shape)
    for k in range(len(shape) - 1, -1, -1):
        if is_symbolic(strides[k]) or strides[k]:
            unit = not is_symbolic(strides[k]) and strides[k] == 1
            terms.append(f"i32({coordinates[k]})" + ("" if unit else f" * {_signed(strides[k], f'{name}_stride{k}')}"))
    lines.append(f"    return u32({' + '.join(terms) or '0i'});")
    return "\n".join([*lines, "}"])


def _signed(value: int, name: str) -> str:
    return f"i32(params.{name})" if is_symbolic(value) else f"{value}i"


def _quotients(shape: Shape) -> list[str]:
    """Coordinates by divisors that the compiler knows."""
    lines, divisor = [], 1
    for k in range(len(shape) - 1, -1, -1):
        coordinate = "i" if divisor == 1 else f"(i / {divisor}u)"
        lines.append(coordinate if k == 0 else f"({coordinate} % {shape[k]}u)")
        divisor *= shape[k] if k else 1
    return lines[::-1]


def _rests(name: str, shape: Shape, lines: list[str]) -> list[str]:
    """Coordinates one after another, each from what the last division left: sizes of a run need no products of
    sizes."""
    rest = "i"
    for k in range(len(shape) - 1, 0, -1):
        size = f"params.{name}_size{k}" if is_symbolic(shape[k]) else f"{shape[k]}u"
        lines.append(f"    let q{k} = {rest} / {size};")
        lines.append(f"    let c{k} = {rest} - q{k} * {size};")
        rest = f"q{k}"
    return [rest, *(f"c{k}" for k in range(1, len(shape)))]


def merged(shape: Shape, strides: tuple[int, ...]) -> tuple[Shape, tuple[int, ...]]:
    """The same index map over fewer dimensions: neighbours that advance together, whatever their sizes are, become
    one."""
    kept: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if same(size, 1):
            continue
        if kept and same(kept[-1][1], stride * size):
            kept[-1] = (kept[-1][0] * size, stride)
        else:
            kept.append((size, stride))
    return tuple(s for s, _ in kept), tuple(s for _, s in kept)
