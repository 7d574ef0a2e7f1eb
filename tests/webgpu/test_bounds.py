"""Bounds checks in WGSL's text (webgpu/bounds.py)."""

from __future__ import annotations

import pytest

from ort_gpu_ep.webgpu.bounds import with_bounds

DECLARED = """@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
var<workgroup> seen: array<vec2<u32>, SIZE * 2>;
const SIZE = 4;
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("x[i + 1u]", "x[min(u32(i + 1u), arrayLength(&x) - 1u)]"),
        ("y[x[i]]", "y[min(u32(x[min(u32(i), arrayLength(&x) - 1u)]), arrayLength(&y) - 1u)]"),
        ("seen[k].x", "seen[min(u32(k), u32(SIZE * 2) - 1u)].x"),
        ("seen[7]", "seen[7]"),
        ("atomicAdd(&y[i], 1u)", "atomicAdd(&y[min(u32(i), arrayLength(&y) - 1u)], 1u)"),
        ("params.x[i] + max[i]", "params.x[i] + max[i]"),
        ("let x = vec4(1u); x[i]", "let x = vec4(1u); x[i]"),
    ],
)
def test_each_index_into_an_array_of_the_module(text: str, wanted: str) -> None:
    assert with_bounds(f"{DECLARED}fn f() {{ {text} }}\n") == f"{DECLARED}fn f() {{ {wanted} }}\n"


def test_a_parameter_of_the_same_name_is_no_array() -> None:
    text = f"{DECLARED}fn f(i: u32, x: vec4<u32>) -> u32 {{ return x[i]; }}\nfn g(i: u32) -> u32 {{ return x[i]; }}\n"
    assert with_bounds(text).count("min(") == 1
