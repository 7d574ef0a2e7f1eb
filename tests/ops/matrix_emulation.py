"""Subgroup matrices in plain WGSL: what our shaders ask of matrix units, for adapters that have none.

32 lanes next to each other count as a subgroup. A lane has its row of a left operand and OWN sums of a fragment, eight
of 16 x 16; a right operand is where it lies. Of 8 x 8, 16 lanes have all sums. Sums are cut off rather than rounded,
after every eight products, as an H200 does: its error on positive data, 2.4e-5 at k = 4096, is like that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ort_gpu_ep.config import Config
from ort_gpu_ep.device import Gpu
from ort_gpu_ep.health.probe import Trial
from ort_gpu_ep.ir.types import FLOAT16
from ort_gpu_ep.kernels.records import loop_bound, work_of
from ort_gpu_ep.kernels.registry import Bindings, Kernel, Limits
from ort_gpu_ep.kernels.target import (
    LAST_ARRIVING,
    MATRIX_ATTENTION,
    MATRIX_BYTES,
    MATRIX_UNITS,
    SUBGROUP_MATRIX,
    UNIT_SHADERS,
    USUAL_SUBGROUP,
)
from ort_gpu_ep.shaders.composer import is_elementwise

FUNCTIONS = """
fn half_at(word: vec4<u32>, i: u32) -> f32 { return unpack2x16float(word[i / 2u])[i % 2u]; }
fn w_half(place: vec3<u32>, k: u32, m: u32) -> f32 {
    let line = select(k, m, place.z == 1u);
    let i = select(m, k, place.z == 1u);
    return half_at(tile[place.x + line * place.y + i / 8u], i % 8u);
}
// `zero` keeps llvmpipe from calculating with these as if they were exact.
fn kept(v: f32, zero: u32) -> f32 { return bitcast<f32>(bitcast<u32>(v) ^ zero); }
fn cut_sum(a: f32, b: f32, zero: u32) -> f32 {
    let s = kept(a + b, zero);
    let c = kept(s - a, zero);
    let d = kept(s - c, zero);
    let lost = kept(a - d, zero) + kept(b - c, zero);
    let beyond = (lost < 0.0 && s > 0.0) || (lost > 0.0 && s < 0.0);
    return select(s, bitcast<f32>(bitcast<u32>(s) - 1u), beyond);
}
fn emulated_product(a: array<vec4<u32>, EIGHTS>, b: vec3<u32>, before: array<f32, OWN>, lane: u32) -> array<f32, OWN> {
    var sums = before;
    var x = a;
    let own = OWN + (lane >> 31u);      // which the compiler does not know, and unroll: ten times as much to compile
    for (var j = 0u; j < own; j++) {
        for (var part = 0u; part < EIGHTS; part++) {
            var sum = 0.0;
            for (var k = part * 8u; k < part * 8u + 8u + (lane >> 31u); k++) {
                sum += half_at(x[part], k % 8u) * w_half(b, k, lane % ACROSS * OWN + j);
            }
            sums[j] = cut_sum(sums[j], sum, lane >> 31u);
        }
    }
    return sums;
}
fn emulated_store(first: u32, sums: array<f32, OWN>, row: u32, lane: u32) {
    if (lane % 32u / ACROSS >= LINES) { return; }
    var own = sums;
    let to = first + lane % 32u / ACROSS * row + lane % ACROSS * (OWN / 4u);
    for (var e = 0u; e < OWN / 4u; e++) {
        tile[to + e] = bitcast<vec4<u32>>(vec4<f32>(own[4u * e], own[4u * e + 1u], own[4u * e + 2u], own[4u * e + 3u]));
    }
}
"""

BYTES = """
fn byte_at(word: vec4<u32>, i: u32) -> i32 { return extractBits(bitcast<i32>(word[i / 4u]), i % 4u * 8u, 8u); }
fn emulated_product(a: array<vec4<u32>, EIGHTS>, b: vec3<u32>, before: array<i32, OWN>, lane: u32) -> array<i32, OWN> {
    var sums = before;
    var own = a;
    for (var j = 0u; j < 8u; j++) {
        for (var k = 0u; k < 32u; k++) {
            let x = byte_at(own[k / 16u], k % 16u);
            sums[j] += x * byte_at(tile[b.x + (lane % 2u * 8u + j) * b.y + k / 16u], k % 16u);
        }
    }
    return sums;
}
fn emulated_store(first: u32, sums: array<i32, OWN>, row: u32, lane: u32) {
    var own = sums;
    let to = first + lane % 32u / 2u * row + lane % 2u * 2u;
    tile[to] = bitcast<vec4<u32>>(vec4<i32>(own[0], own[1], own[2], own[3]));
    tile[to + 1u] = bitcast<vec4<u32>>(vec4<i32>(own[4], own[5], own[6], own[7]));
}
"""
LEFT = """
fn emulated_left(first: u32, row: u32, lane: u32) -> array<vec4<u32>, EIGHTS> {
    var found = array<vec4<u32>, EIGHTS>();
    for (var e = 0u; e < EIGHTS; e++) { found[e] = tile[first + lane % 32u / ACROSS % LINES * row + e]; }
    return found;
}
"""

_REPLACED = (
    # naga can't
    (
        r"return bitcast<vec2<u32>>\(v\);",
        "return vec2<u32>(pack2x16float(vec2<f32>(v.xy)), pack2x16float(vec2<f32>(v.zw)));",
    ),
    (r"return bitcast<vec2<f16>>\(word\);", "return vec2<f16>(unpack2x16float(word));"),
    (r"return bitcast<u32>\(v\);", "return pack2x16float(vec2<f32>(v));"),
    (r"enable chromium\w+;\n", ""),
    (r"// [^\n]*", ""),
    (r"diagnostic\([^)]*\);\n", ""),
    (r"subgroup_matrix_result<(\w+)[^>]*>", r"array<\1, OWN>"),
    (r"subgroup_matrix_left<[^>]*>", "array<vec4<u32>, EIGHTS>"),
    (r"subgroup_matrix_right<[^>]*>", "vec3<u32>"),
    (r"subgroupMatrixLoad<left_t, row_major>\(&\w+, (.*), (\w+)\);", r"emulated_left(\1, \2, lane);"),
    (r"subgroupMatrixLoad<\w+, row_major>\(&\w+, (.*), (\w+)\);", r"vec3<u32>(\1, \2, 0u);"),
    (r"subgroupMatrixLoad<\w+, col_major>\(&\w+, (.*), (\w+)\);", r"vec3<u32>(\1, \2, 1u);"),
    (r"subgroupMatrixMultiplyAccumulate\((.*)\);", r"emulated_product(\1, lane);"),
    (r"subgroupMatrixStore<row_major>\(&tile, (.*)\);", r"emulated_store(\1, lane);"),
    (r", @builtin\(subgroup_id\) its_subgroup_id: u32", ""),
    (
        r"\{ (subgroup_lane = its_subgroup_lane; )?subgroup_id = its_subgroup_id; ",
        r"{ \1let its_subgroup_id = lane / 32u; ",
    ),
)


def emulated(text: str) -> str:
    """The same module without subgroup matrices; other modules as they are."""
    if "subgroupMatrix" not in text:
        return text
    if not re.search(r"alias \w+ = vec4<f16>|<storage[^>]*> \w+: array<(vec4<)?f16>|vec2<f16>", text):
        text = text.replace("enable f16;\n", "")
    functions = (BYTES if "result<i32" in text else FUNCTIONS) + LEFT + _sizes(text)
    for pattern, new in _REPLACED:
        text = re.sub(pattern, new, text)
    assert "subgroupMatrix" not in text, text
    return text + functions


def _sizes(text: str) -> str:
    """Of the module's fragments. EIGHTS: vectors of 16 bytes in a row of a left operand. LINES: rows. ACROSS: lanes
    that share a row's sums."""
    given, k, n = _shape(r"left<(\w+), (\d+), (\d+)>", text)
    of_w, m, other_k = _shape(r"right<(\w+), (\d+), (\d+)>", text)
    _, columns, rows = _shape(r"result<(\w+), (\d+), (\d+)>", text)
    assert (given, k, m, n) == (of_w, other_k, columns, rows)
    own = max(4, n * m // 32)
    eights = k // {"f16": 8, "i8": 16}[given]
    return "".join(
        f"const {name}: u32 = {value}u;\n"
        for name, value in (("EIGHTS", eights), ("LINES", n), ("OWN", own), ("ACROSS", m // own))
    )


def _shape(pattern: str, text: str) -> tuple[str, int, int]:
    found = re.search(f"subgroup_matrix_{pattern}", text)
    assert found is not None
    return found[1], int(found[2]), int(found[3])


class Emulated(Trial):
    """A trial whose adapter has matrix units."""

    def _composed(self, kernel: Kernel, bindings: Bindings, limits: Limits) -> str:
        assert work_of(kernel, bindings).nbytes > 0  # each has a price
        assert loop_bound(kernel) > 0 or is_elementwise(kernel.shader) or kernel.shader not in UNIT_SHADERS
        return super()._composed(kernel, bindings, limits)

    def _drilled(self, source: str, inlined: Collection[str] = ()) -> str:
        text, fragment = super()._drilled(source, inlined), self.gpu.limits.fragment
        assert fragment is not None
        if "subgroup_matrix_left<f16" in text:
            n, m, k = fragment.n, fragment.m, fragment.k
            assert f"left<f16, {k}, {n}>" in text, "Dawn refuses a configuration that the driver does not offer"
            assert f"right<f16, {m}, {k}>" in text
        return emulated(text)


@contextmanager
def emulation(shown: bool = True, fragment: str = "16x16x16") -> Iterator[Emulated]:
    """shown: a probe has seen them. fragment: the configuration of float16 that they have."""
    gpu = Gpu.open(Config())
    usual = gpu.limits
    features = {FLOAT16.feature, "subgroup", SUBGROUP_MATRIX, LAST_ARRIVING}
    features |= {MATRIX_UNITS, MATRIX_BYTES, MATRIX_ATTENTION} if shown else set()
    configurations = f"float16 float32 {fragment}", "int8 int32 16x16x32"
    gpu.limits = replace(
        usual, features=usual.features | features, subgroup_size=USUAL_SUBGROUP, configurations=configurations
    )
    try:
        yield Emulated(gpu, np.random.default_rng())
    finally:
        gpu.limits = usual
