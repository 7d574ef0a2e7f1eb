"""A kernel of one invocation an element as a function of another kernel's shader, for what would else be read from
memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from ort_gpu_ep.ir.types import FLOAT16
from ort_gpu_ep.kernels.registry import Kernel


def inner_name(name: str, binding: str) -> str:
    """How a binding of the kernel that is inlined as `name` is bound."""
    return f"{name}_in_{binding}"


def is_inner(kernel: Kernel, binding: str) -> bool:
    """Whether a binding belongs to an inlined kernel."""
    return any(binding.startswith(inner_name(name, "")) for name, _ in kernel.inlined)


def inlined(
    name: str, kernel: Kernel, texts: Callable[[Kernel], Iterable[str]], raw: bool, vector: bool
) -> Iterator[str]:
    """`<name>_at(i)`: what the inlined kernel computes for element i, as bits where the other kernel is raw.

    texts: gives the constants, index functions and body of a kernel. Their names begin with `<name>_in_` then, and meet
    no other. vector: `<name>_at4(i)`, too, of elements 4 i .. 4 i + 3.
    """
    source = "\n".join(texts(kernel))
    own = set(re.findall(r"(?m)^(?:fn|const) (\w+)", source))
    bound = "|".join(binding for binding, _ in kernel.reads or ())
    source = re.sub(rf"\b({'|'.join(sorted(own, key=len, reverse=True))})\b", lambda m: inner_name(name, m[1]), source)
    source = re.sub(rf"\b({bound})_(at|word)\(", lambda m: f"{inner_name(name, m[1])}_{m[2]}(", source)
    ((written, _),) = kernel.writes or ()
    yield re.sub(rf"\b{written}_t\b", "f32", source)
    value = f"{inner_name(name, 'element')}(i)"
    yield f"alias {name}_t = {'u32' if raw else 'f32'};"
    bits = "pack2x16float(vec2<f32>({}, 0.0))" if kernel.outputs[0].dtype is FLOAT16 else "bitcast<u32>({})"
    yield f"fn {name}_at(i: u32) -> {name}_t {{ return {bits.format(value) if raw else value}; }}"
    if vector:
        fours = ", ".join(f"{name}_at(4u * i + {k}u)" for k in range(4))
        yield f"fn {name}_at4(i: u32) -> vec4<f32> {{ return vec4<f32>({fours}); }}"
