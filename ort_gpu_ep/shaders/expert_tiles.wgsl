// y[row, n] = x[row] . w[expert of row, n] + bias: of rows that lie by expert, tiles of TJ, each of one expert, times TN rows of w, which go through
// workgroup memory STEP elements at a time. An invocation owns 4 x 4 sums: rows r + i TN / 4 of w and columns c + j TJ / 4. With FIRST the k-th row by expert
// reads x[r / SHARED] and writes y[k]; else it reads x[k] and writes y[r], where r is its number among all.
// Expects: x ([.., K]), places (as group_experts.wgsl has them), what expert_weight.wgsl does, bias? ([EXPERTS, N]), y; EXPERTS, TILES_N, PER: elements of
// a row of w and x that are read at a time, 1 or 4.
#include expert_weight.wgsl
const RQ: u32 = TN / 4u;
const CQ: u32 = TJ / 4u;
const SWIZZLE: u32 = min(CQ, 8u) - 1u;   // spreads stores along k over the memory banks
var<workgroup> w_tile: array<vec4<f32>, RQ * STEP>;
var<workgroup> x_tile: array<vec4<f32>, CQ * STEP>;
var<private> acc: mat4x4<f32>;   // a column for each of the four rows of w

// Four elements of a row of w, zero behind its end.
fn weights4(e: u32, n: u32, k: u32) -> vec4<f32> {
    if (n >= N || k >= K) { return vec4<f32>(); }
#if PER == 4 and BITS
    let at = (e * N + n) * K + k;
    let codes = four_codes(w_word(at / (32u / BITS)) >> (at % (32u / BITS) * BITS));
    return (codes - zero_of(e, n, k)) * scale_of(e, n, k);
#end
#if PER == 4 and not BITS
    return w_at4(((e * N + n) * K + k) / 4u);
#end
#if PER == 1
    var v = vec4<f32>(weight(e, n, k), 0.0, 0.0, 0.0);
    if (k + 1u < K) { v.y = weight(e, n, k + 1u); }
    if (k + 2u < K) { v.z = weight(e, n, k + 2u); }
    if (k + 3u < K) { v.w = weight(e, n, k + 3u); }
    return v;
#end
}

// Four elements of the row of x that is the `place`th by expert; zero behind its end, and from `end` on.
fn x4(place: u32, end: u32, k: u32) -> vec4<f32> {
    if (place >= end || k >= K) { return vec4<f32>(); }
#if FIRST
    let at = u32(places_at(EXPERTS + 1u + place)) / SHARED * K + k;
#else
    let at = place * K + k;
#end
#if PER == 4
    return x_at4(at / 4u);
#else
    var v = vec4<f32>(x_at(at), 0.0, 0.0, 0.0);
    if (k + 1u < K) { v.y = x_at(at + 1u); }
    if (k + 2u < K) { v.z = x_at(at + 2u); }
    if (k + 3u < K) { v.w = x_at(at + 3u); }
    return v;
#end
}

fn multiply(k: u32, row: u32, column: u32) {
    let w = w_tile[k * RQ + row];
    let x = x_tile[k * CQ + (column ^ (k / 4u & SWIZZLE))];
#for i in 4
    acc[$i] = fma(vec4<f32>(w[$i]), x, acc[$i]);
#end
}

fn group_main(group: u32, lane: u32) {
    let n0 = group % TILES_N * TN;
    let tile = group / TILES_N;
    // an expert whose rows begin at s has the tiles from s / TJ + e on: enough for all, and some of none
    var e = 0u;
    var above = EXPERTS;
    while (above - e > 1u) {
        let middle = (e + above) / 2u;
        if (u32(places_at(middle)) / TJ + middle <= tile) { e = middle; } else { above = middle; }
    }
    let start = u32(places_at(e));
    let begin = start + (tile - start / TJ - e) * TJ;
    let end = u32(places_at(e + 1u));
    if (begin >= end) { return; }
    let row = lane / CQ;
    let column = lane % CQ;
    var total = mat4x4<f32>();
    for (var k0 = 0u; k0 < K; k0 += STEP) {
        for (var t = lane; t < (RQ + CQ) * STEP / 4u; t += WORKGROUP_SIZE) {
            if (t < RQ * STEP / 4u) {
                let r = t % RQ;
                let k = t / RQ * 4u;
#for i in 4
                let w$i = weights4(e, n0 + r + $(i)u * RQ, k0 + k);
#end
#for i in 4
                w_tile[(k + $(i)u) * RQ + r] = vec4<f32>(w0[$i], w1[$i], w2[$i], w3[$i]);
#end
            } else {
                let u = t - RQ * STEP / 4u;
                let c = u / (STEP / 4u);
                let k = u % (STEP / 4u) * 4u;
#for i in 4
                let x$i = x4(begin + c + $(i)u * CQ, end, k0 + k);
#end
#for i in 4
                x_tile[(k + $(i)u) * CQ + (c ^ (k / 4u & SWIZZLE))] = vec4<f32>(x0[$i], x1[$i], x2[$i], x3[$i]);
#end
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < STEP; k += 4u) {
            multiply(k, row, column);
            multiply(k + 1u, row, column);
            multiply(k + 2u, row, column);
            multiply(k + 3u, row, column);
        }
        if (k0 / STEP % 8u == 7u) {   // rounding errors stay those of a block
            total += acc;
            acc = mat4x4<f32>();
        }
        workgroupBarrier();
    }
    total += acc;
#for j in 4
    {
        let at = begin + column + $(j)u * CQ;
        if (at < end) {
#if FIRST
            let to = at;
#else
            let to = u32(places_at(EXPERTS + 1u + at));
#end
#for i in 4
            {
                let n = n0 + row + $(i)u * RQ;
                if (n < N) {
                    var v = total[$i][$j];
#if HAS_BIAS
                    v += bias_at(e * N + n);
#end
                    y_set(to * N + n, v);
                }
            }
#end
        }
    }
#end
}
