// Codes of packed weights as numbers, and the vectors that they meet. Expects what packed_matvec.wgsl says.
#default GROUPED = 0
#if GROUPED
var<private> first_column: u32;
#end
fn four_of_x(c: u32, q: u32) -> vec4<f32> {
#if GROUPED
    let column = min(first_column + c, COUNT - 1u);
#end
#if X4
#if GROUPED
    return x_at4(column * X_COL / 4u + q);
#else
    return x_at4(c * X_COL / 4u + q);
#end
#else
    var found = vec4<f32>();
    let k = 4u * q;
#if GROUPED
    let at = column * X_COL + k * X_K;
#else
    let at = c * X_COL + k * X_K;
#end
    if (k < K) { found.x = x_at(at); }
    if (k + 1u < K) { found.y = x_at(at + X_K); }
    if (k + 2u < K) { found.z = x_at(at + 2u * X_K); }
    if (k + 3u < K) { found.w = x_at(at + 3u * X_K); }
    return found;
#end
}

#include zero_point.wgsl

#if HALVES
// A half of a word that keeps the bits of a code alone is a float16 without an exponent, code * 2^(place - 24). Times 2^24, which x is
// multiplied by, that is a float again that no driver flushes to zero.
const MASK: u32 = ((1u << BITS) - 1u) * 0x10001u;
const LIFT: f32 = 16777216.0;
#end

// Codes of BITS at bit `at` of four words, less their zero point. They become the low bits of a float that is 2^(23 - at) without them.
fn number(words: vec4<u32>, at: u32, zero: f32) -> vec4<f32> {
    let above = bitcast<vec4<f32>>((words & vec4<u32>(((1u << BITS) - 1u) << at)) | vec4<u32>((150u - at) << 23u));
    let base = f32(1u << (23u - at));
    if (WHOLE) { return above - (base + zero); }
    return above - base - zero;
}

#if CODEBOOK
fn looked_up(at: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(book[at.x], book[at.y], book[at.z], book[at.w]);
}
#end
