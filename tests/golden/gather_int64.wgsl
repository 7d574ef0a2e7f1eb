// (24, 1, 1) workgroups
// gather.wgsl
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> indices: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<storage, read_write> error_flags: array<atomic<u32>>;
const TUPLE: u32 = 1u;
const WIDE: bool = true;
const SIZE0: u32 = 101u;
const SIZE1: u32 = 1u;
const SIZE2: u32 = 1u;
const SIZE3: u32 = 1u;
const SIZE4: u32 = 1u;
const SIZE5: u32 = 1u;
const SIZE6: u32 = 1u;
const SIZE7: u32 = 1u;
const STEP0: u32 = 64u;
const STEP1: u32 = 0u;
const STEP2: u32 = 0u;
const STEP3: u32 = 0u;
const STEP4: u32 = 0u;
const STEP5: u32 = 0u;
const STEP6: u32 = 0u;
const STEP7: u32 = 0u;
fn base(i: u32) -> u32 {
    return u32(i32((i % 64u)));
}
fn first(i: u32) -> u32 {
    return u32(i32((i / 64u)));
}
alias x_t = u32;
fn x_at(i: u32) -> u32 { return x[i]; }
alias indices_t = vec2<u32>;
fn indices_at(i: u32) -> vec2<u32> { return indices[i]; }
alias y_t = u32;
fn y_at(i: u32) -> u32 { return y[i]; }
fn out_of_range() { atomicOr(&error_flags[0], 1u); }
fn y_set(i: u32, v: y_t) { y[i] = v; }
// y[i] = x[base(i) + sum over k < TUPLE of indices[first(i) + k] * STEPk], an invocation per element of y: Gather,
// GatherElements and GatherND, which differ in `base` and `first`.
// Expects: x, indices (32 or 64 bits), base and first (Strided over y), TUPLE, SIZEk and STEPk of each indexed dimension of x, WIDE.
// Bound raw. An index below 0 counts from the end; one out of range is noted, and clamped.
const SIZES = array<u32, 8>(SIZE0, SIZE1, SIZE2, SIZE3, SIZE4, SIZE5, SIZE6, SIZE7);
const STEPS = array<u32, 8>(STEP0, STEP1, STEP2, STEP3, STEP4, STEP5, STEP6, STEP7);

fn element(i: u32) -> y_t {
    var at = base(i);
    let start = first(i);
    for (var k = 0u; k < TUPLE; k++) {
        let size = i32(SIZES[k]);
        let words = vec2<u32>(indices_at(start + k));
        let index = bitcast<i32>(words.x);      // what fits a dimension fits the low word
        if (index < -size || index >= size || (WIDE && bitcast<i32>(words.y) != index >> 31u)) { out_of_range(); }
        at += u32(clamp(select(index, index + size, index < 0), 0, size - 1)) * STEPS[k];
    }
    return x_at(at);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    let i = id.x + id.y * n.x * 64u;
    if (i >= 1536u) { return; }
    y_set(i, element(i));
}
