// y = softmax(SCALE q k^T + mask) v of each head, in one pass over the keys: each invocation keeps the largest score so far, the sum of
// the powers relative to it, and their sum of values, and corrects the last two when a larger score comes (online softmax).
// A query has PARTS neighbouring invocations, each for every PARTS-th vector of the head's elements, in each of SLICES slices of the keys; an
// invocation has RQ queries, and takes RK keys at a time. At the end the slices are joined through workgroup memory, CHUNK vectors at a
// time. Grid: blocks of QL * RQ queries, heads, batches.
// Expects: q, k, v, mask?, y (all but mask as vectors of four elements); SQ, SK (queries, keys), DQ, DV (vectors that an invocation has of
// a head's elements), GROUP (heads that share keys), offsets in vectors <Q, K, V, Y>_<B, H, S> of a batch, head and position, from
// <Q, K, V>_FIRST on; MASK (0 none,
// 1 added, 2 bool, 3 added, but a number up to LEAST hides a key) with MASK_<B, H, Q, K> in elements; CAUSAL (query i sees keys up to
// BEFORE + i), CAPPED (scores s become CAP tanh(s / CAP)), EMPTY_IS_ZERO (what a query without a key gets; else NaN; 2: also one
// whose powers are NaN); MASK_KEYS (elements of a row of the mask); LENGTHS (0 none, 1
// given: query i is token tokens_before(b) + i, and sees keys up to its own), WINDOW (how many keys a query sees at most, its own with them; 0: any),
// SINK (0 none, 1 given for each head, 2 a score of 0: one more score in each sum of powers, without a value).
// Source: ONNX Attention; Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867.
#default CODES = 0
#if CODES
// CODES: k and v hold codes of so many bits (include/cache_codes.wgsl): the scales of keys go to the queries, those of values to the sums.
#end
const MOST: u32 = QL * RQ;
const QUERIES: u32 = QL * SLICES;
#if SLICES > 1
var<workgroup> tops: array<f32, QL * SLICES>;
var<workgroup> totals: array<f32, QL * SLICES>;
var<workgroup> sums: array<vec4<f32>, QL * SLICES * PARTS * CHUNK>;
#end

#include attention_scores.wgsl
#include cache_codes.wgsl
#if CODES
fn k_at4(i: u32) -> vec4<f32> { return codes_in(k_word(i / $(8 // CODES)u), i); }
fn v_at4(i: u32) -> vec4<f32> { return codes_in(v_word(i / $(8 // CODES)u), i); }
#end

fn grid_main(group: vec3<u32>, lane: u32) {
    let b = group.z;
    let h = group.y;
    let part = lane % PARTS;
    let slot = lane / PARTS;
    let slice = slot / QL;
    let first = group.x * MOST + slot % QL;
#if LENGTHS
    let before = tokens_before(b);
#else
    let before = BEFORE;
#end
    let k_base = b * K_B + h / GROUP * K_H + K_FIRST + part;
    let v_base = b * V_B + h / GROUP * V_H + V_FIRST + part;
#for r in RQ
    let i$r = first + $(r)u * QL;
    let q_from$r = b * Q_B + h * Q_H + min(i$r, SQ - 1u) * Q_S + Q_FIRST + part;
#for d in DQ
#if CODES
    let q$(r)_$d = q_at4(q_from$r + $(d * PARTS)u) * SCALE * scales_of_four(1u, h / GROUP, part + $(d * PARTS)u);
#else
    let q$(r)_$d = q_at4(q_from$r + $(d * PARTS)u) * SCALE;
#end
#end
#for d in DV
    var o$(r)_$d = vec4<f32>();
#end
#if SINK
#if SINK == 1
    var top$r = select(LOWEST, sink_at(h), slice == 0u);
#else
    var top$r = select(LOWEST, 0.0, slice == 0u);
#end
    var total$r = select(0.0, 1.0, slice == 0u);
#else
    var top$r = LOWEST;
    var total$r = 0.0;
#end
#end
#if CAUSAL
    let end = min(SK, min(group.x * MOST + MOST, SQ) + before);
#else
#if LENGTHS
    let end = min(SK, u32(max(lengths_at(b), 0)) + 1u);
#else
    let end = SK;
#end
#end
#if WINDOW
    let start = max(group.x * MOST + before + 1u, WINDOW) - WINDOW;     // what the first query of the workgroup sees
#else
    let start = 0u;
#end
    for (var round = start; round < end; round += SLICES * RK) {      // as often in each slice: WGSL wants all of a subgroup in quadSwap
        let j = round + slice * RK;
#for n in RK
        let k_from$n = k_base + min(j + $(n)u, end - 1u) * K_S;     // what no query sees may be no number, and no weight of 0 makes it one
        let v_from$n = v_base + min(j + $(n)u, end - 1u) * V_S;
#for r in RQ
        var s$(r)_$n = 0.0;
#end
#end
#for d in DQ
#for n in RK
        let k$(n)_$d = k_at4(k_from$n + $(d * PARTS)u);
#for r in RQ
        s$(r)_$n = fma(q$(r)_$(d).w, k$(n)_$(d).w, fma(q$(r)_$(d).z, k$(n)_$(d).z, fma(q$(r)_$(d).y, k$(n)_$(d).y, fma(q$(r)_$(d).x, k$(n)_$(d).x, s$(r)_$n))));
#end
#end
#end
#if RQ < 4
#for d in DV
#for n in RK
        let v$(n)_$d = v_at4(v_from$n + $(d * PARTS)u);      // under way while scores become powers, as far as there are registers
#end
#end
#end
#for r in RQ
        var new$r = top$r;
#for n in RK
#if PARTS > 1
        s$(r)_$n += quadSwapX(s$(r)_$n);
#end
#if PARTS > 2
        s$(r)_$n += quadSwapY(s$(r)_$n);
#end
#if PARTS > 4
        s$(r)_$n += subgroupShuffleXor(s$(r)_$n, 4u);
#end
        s$(r)_$n = scored(s$(r)_$n, b, h, i$r, j + $(n)u);
        let sees$(r)_$n = sees(b, h, i$r, j + $(n)u, before);
        new$r = max(new$r, select(LOWEST, s$(r)_$n, sees$(r)_$n));
#end
        let fade$r = power(top$r - new$r);
        top$r = new$r;
        total$r *= fade$r;
#for n in RK
        let p$(r)_$n = select(0.0, power(s$(r)_$n - top$r), sees$(r)_$n);
        total$r += p$(r)_$n;
#end
#for d in DV
        o$(r)_$d *= fade$r;
#end
#end
#for d in DV
#for n in RK
#if RQ > 2
        let v$(n)_$d = v_at4(v_from$n + $(d * PARTS)u);
#end
#for r in RQ
        o$(r)_$d = fma(vec4<f32>(p$(r)_$n), v$(n)_$d, o$(r)_$d);
#end
#end
#end
    }
#if CODES
#for d in DV
    let scales$d = scales_of_four(2u, h / GROUP, part + $(d * PARTS)u);
#for r in RQ
    o$(r)_$d *= scales$d;
#end
#end
#end
#for r in RQ
    let y_at$r = b * Y_B + h * Y_H + Y_S * (group.x * MOST + $(r)u * QL);
#if SLICES == 1
#if EMPTY_IS_ZERO
    let share$r = select(1.0 / total$r, 0.0, total$r == 0.0);
#else
    let share$r = 1.0 / total$r;
#end
    if (i$r < SQ) {
#for d in DV
#if EMPTY_IS_ZERO == 2
        y_set4(y_at$r + slot * Y_S + part + $(d * PARTS)u, select(o$(r)_$d * share$r, vec4<f32>(0.0), is_nan_f32(total$r)));
#else
        y_set4(y_at$r + slot * Y_S + part + $(d * PARTS)u, o$(r)_$d * share$r);
#end
#end
    }
#else
    workgroupBarrier();
    if (part == 0u) { tops[slot] = top$r; }
    workgroupBarrier();
    var most$r = LOWEST;
    for (var s = slot % QL; s < QUERIES; s += QL) { most$r = max(most$r, tops[s]); }
    let mine$r = power(top$r - most$r);
    if (part == 0u) { totals[slot] = total$r * mine$r; }
    workgroupBarrier();
    var whole$r = 0.0;
    for (var s = slot % QL; s < QUERIES; s += QL) { whole$r += totals[s]; }
#if EMPTY_IS_ZERO
    let share$r = select(mine$r / whole$r, 0.0, whole$r == 0.0);
#else
    let share$r = mine$r / whole$r;
#end
#for c in DV // CHUNK
    workgroupBarrier();
#for d in CHUNK
#if EMPTY_IS_ZERO == 2
    sums[lane * CHUNK + $(d)u] = select(o$(r)_$(c * CHUNK + d) * share$r, vec4<f32>(0.0), is_nan_f32(whole$r));
#else
    sums[lane * CHUNK + $(d)u] = o$(r)_$(c * CHUNK + d) * share$r;
#end
#end
    workgroupBarrier();
    for (var e = lane; e < QL * PARTS * CHUNK; e += WORKGROUP_SIZE) {
        var sum = sums[e];
        for (var s = e + QL * PARTS * CHUNK; s < WORKGROUP_SIZE * CHUNK; s += QL * PARTS * CHUNK) { sum += sums[s]; }
        let place = e / (PARTS * CHUNK);
        if (group.x * MOST + $(r)u * QL + place < SQ) {
            y_set4(y_at$r + place * Y_S + e / CHUNK % PARTS + ($(c * CHUNK)u + e % CHUNK) * PARTS, sum);
        }
    }
#end
#end
#end
}
