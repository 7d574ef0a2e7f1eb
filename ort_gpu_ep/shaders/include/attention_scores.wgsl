// What a score becomes, and which keys a query sees. Expects what attention.wgsl says of MASK, CAUSAL, CAPPED, LENGTHS and WINDOW.
const LOWEST: f32 = -3.4028234663852886e38;
#if LENGTHS
#include tokens_before.wgsl
#end

fn power(x: f32) -> f32 { return exp2(x * 1.44269504); }

fn scored(sum: f32, b: u32, h: u32, i: u32, j: u32) -> f32 {
    var s = sum;
#if CAPPED
    s = CAP * tanh_f32(s / CAP);
#end
#if MASK == 1
    s += mask_at(b * MASK_B + h * MASK_H + min(i, SQ - 1u) * MASK_Q + min(j, MASK_KEYS - 1u) * MASK_K);
#end
#if MASK == 3
    let added = mask_at(b * MASK_B + h * MASK_H + min(i, SQ - 1u) * MASK_Q + min(j, MASK_KEYS - 1u) * MASK_K);
    s += select(added, -inf_f32(), added <= LEAST);
#end
    return s;
}

fn sees(b: u32, h: u32, i: u32, j: u32, before: u32) -> bool {
#if MASK == 2
    if (!mask_at(b * MASK_B + h * MASK_H + min(i, SQ - 1u) * MASK_Q + min(j, MASK_KEYS - 1u) * MASK_K)) { return false; }
#end
#if CAUSAL
    if (j > i + before) { return false; }
#else
#if LENGTHS
    if (i32(j) > lengths_at(b)) { return false; }       // a cache has room behind its tokens
#end
#end
#if WINDOW
    if (j + WINDOW <= i + before) { return false; }
#end
    return j < SK;
}
